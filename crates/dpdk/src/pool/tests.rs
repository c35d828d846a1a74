use super::*;

#[test]
fn allocated_buffers_are_counted() {
    let pool = MbufPool::new(1024, 2048).unwrap();
    let mut packets = vec![Packet::EMPTY; 2000];
    assert_eq!(pool.allocate(&mut packets), 1024);
    assert_eq!(pool.outstanding(), 1024);
    assert_eq!(pool.allocate(&mut packets[1024..]), 0);
    // SAFETY: the packets are of this pool, and are not used again.
    unsafe { pool.free(&packets[..1000]) };
    assert_eq!(pool.outstanding(), 24);
    // SAFETY: the packets are of this pool, and are not used again.
    unsafe { pool.free(&packets[1000..1024]) };
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn buffers_lie_in_the_region_and_do_not_overlap() {
    for pool in [
        MbufPool::new(100, 1500).unwrap(),
        MbufPool::over(Region::host(MbufPool::bytes(100, 1500)).unwrap(), 1500).unwrap(),
    ] {
        let mut packets = [Packet::EMPTY; 100];
        assert_eq!(pool.allocate(&mut packets), 100);
        for (i, packet) in packets.iter_mut().enumerate() {
            packet.length = pool.room() as u32;
            let end = packet.address + packet.length as u64;
            assert!(packet.address >= pool.region().address());
            assert!(end <= pool.region().address() + pool.region().len() as u64);
            assert_eq!(packet.address % 64, 0, "data begins on a cache line");
            // SAFETY: the packet was just allocated, in host memory.
            unsafe { packet.bytes_mut() }.fill(i as u8);
        }
        for (i, packet) in packets.iter().enumerate() {
            // SAFETY: this test holds the packet, in host memory.
            assert!(unsafe { packet.bytes() }.iter().all(|&byte| byte == i as u8));
        }
        // SAFETY: the packets are of this pool, and are not used again.
        unsafe { pool.free(&packets) };
        assert_eq!(pool.outstanding(), 0);
    }
}

#[test]
fn metadata_and_segments() {
    let pool = MbufPool::new(64, 512).unwrap();
    let mut packets = [Packet::EMPTY; 2];
    assert_eq!(pool.allocate(&mut packets), 2);
    // SAFETY: the test holds this packet of this pool.
    assert_eq!(unsafe { pool.meta(&packets[0]) }, PacketMeta::default());
    let meta = PacketMeta { time_ns: 1 << 60, wire_length: 9000, interface: 3 };
    // SAFETY: the test holds this packet of this pool.
    unsafe { pool.set_meta(&packets[0], meta) };
    // SAFETY: the test holds this packet of this pool.
    assert_eq!(unsafe { pool.meta(&packets[0]) }, meta);
    // SAFETY: the test holds this packet of this pool.
    assert_eq!(unsafe { pool.meta(&packets[1]) }, PacketMeta::default());

    packets[0].length = 14;
    // SAFETY: the packet was allocated above, in host memory.
    unsafe { packets[0].bytes_mut() }.fill(1);
    // SAFETY: the packet was allocated above, from this pool.
    unsafe { pool.append_segment(&packets[0], &[2; 300]) }.unwrap();
    // SAFETY: the packet was allocated above, from this pool.
    unsafe { pool.append_segment(&packets[0], &[3; 512]) }.unwrap();
    // SAFETY: the packet was allocated above, from this pool.
    assert!(unsafe { pool.append_segment(&packets[0], &[4; 513]) }.is_err(), "the bytes do not fit a buffer");
    let mut lengths = Vec::new();
    // SAFETY: the test holds this packet of this pool.
    unsafe { pool.for_each_segment(&packets[0], &mut |_, length| lengths.push(length)) };
    assert_eq!(lengths, [14, 300, 512]);
    assert_eq!(pool.outstanding(), 4);
    // SAFETY: the packets are of this pool, and are not used again.
    unsafe { pool.free(&packets) };
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn a_pool_has_memory_for_objects_that_cross_no_page() {
    // If devices get physical addresses, no object may cross the end of a hugepage, because the next hugepage
    // may be anywhere in physical memory. The pool must still hold all 4096 buffers.
    assert_eq!(MbufPool::new(4096, 16384).unwrap().capacity(), 4096);
    let page = memory::HUGE;
    // SAFETY: the call only computes a size.
    let [contiguous, paged] = [0, page].map(|page| unsafe { sys::inlane_pool_bytes(10_000, 16_384, page) });
    assert!(paged % page == 0 && paged > contiguous, "{paged} {contiguous}");
}

#[test]
fn impossible_pools_are_refused() {
    assert!(matches!(MbufPool::new(0, 100), Err(Error::Pool { .. })));
    assert!(MbufPool::new(1, 0).is_err());
    assert!(MbufPool::new(1, 65536).is_err());
    assert!(MbufPool::new(usize::MAX, 2048).is_err());
    let region = Region::host(8192).unwrap();
    assert!(
        MbufPool::over(region.slice(64, 4096).unwrap(), 1500).is_err(),
        "the region does not begin on a page"
    );
    assert!(MbufPool::over(region, 9000).is_err(), "the region is too small for one buffer");
}

#[test]
fn a_thread_returns_its_cache_when_it_ends() {
    let pool = MbufPool::new(600, 256).unwrap();
    for _ in 0..4 {
        let pool = pool.clone();
        std::thread::spawn(move || {
            let mut packets = [Packet::EMPTY; 64];
            for _ in 0..10 {
                let count = pool.allocate(&mut packets);
                // SAFETY: the packets are of this pool, and are not used again.
                unsafe { pool.free(&packets[..count]) };
            }
        })
        .join()
        .unwrap();
    }
    let mut packets = vec![Packet::EMPTY; 600];
    assert_eq!(pool.allocate(&mut packets), 600, "one thread can allocate every buffer");
    // SAFETY: the packets are of this pool, and are not used again.
    unsafe { pool.free(&packets) };
}
