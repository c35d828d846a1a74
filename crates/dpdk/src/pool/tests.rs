use super::*;

#[test]
fn what_is_out_is_counted() {
    let pool = MbufPool::new(1024, 2048).unwrap();
    let mut packets = vec![Packet::EMPTY; 2000];
    assert_eq!(pool.allocate(&mut packets), 1024);
    assert_eq!(pool.outstanding(), 1024);
    assert_eq!(pool.allocate(&mut packets[1024..]), 0);
    // SAFETY: these packets are held here, are of this pool, and are not used again.
    unsafe { pool.free(&packets[..1000]) };
    assert_eq!(pool.outstanding(), 24);
    // SAFETY: these packets are held here, are of this pool, and are not used again.
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
            // SAFETY: just taken; host memory.
            unsafe { packet.bytes_mut() }.fill(i as u8);
        }
        for (i, packet) in packets.iter().enumerate() {
            // SAFETY: still held.
            assert!(unsafe { packet.bytes() }.iter().all(|&byte| byte == i as u8));
        }
        // SAFETY: these packets are held here, are of this pool, and are not used again.
        unsafe { pool.free(&packets) };
        assert_eq!(pool.outstanding(), 0);
    }
}

#[test]
fn metadata_and_segments() {
    let pool = MbufPool::new(64, 512).unwrap();
    let mut packets = [Packet::EMPTY; 2];
    assert_eq!(pool.allocate(&mut packets), 2);
    // SAFETY: the packet is held here and of this pool.
    assert_eq!(unsafe { pool.meta(&packets[0]) }, PacketMeta::default());
    let meta = PacketMeta { time_ns: 1 << 60, wire_length: 9000, interface: 3 };
    // SAFETY: the packet is held here and of this pool.
    unsafe { pool.set_meta(&packets[0], meta) };
    // SAFETY: the packet is held here and of this pool.
    assert_eq!(unsafe { pool.meta(&packets[0]) }, meta);
    // SAFETY: the packet is held here and of this pool.
    assert_eq!(unsafe { pool.meta(&packets[1]) }, PacketMeta::default());

    packets[0].length = 14;
    // SAFETY: held; host memory.
    unsafe { packets[0].bytes_mut() }.fill(1);
    // SAFETY: held; of this pool.
    unsafe { pool.append_segment(&packets[0], &[2; 300]) }.unwrap();
    // SAFETY: held; of this pool.
    unsafe { pool.append_segment(&packets[0], &[3; 512]) }.unwrap();
    // SAFETY: held; of this pool.
    assert!(unsafe { pool.append_segment(&packets[0], &[4; 513]) }.is_err(), "more than a buffer holds");
    let mut lengths = Vec::new();
    // SAFETY: the packet is held here and of this pool.
    unsafe { pool.for_each_segment(&packets[0], &mut |_, length| lengths.push(length)) };
    assert_eq!(lengths, [14, 300, 512]);
    assert_eq!(pool.outstanding(), 4);
    // SAFETY: these packets are held here, are of this pool, and are not used again.
    unsafe { pool.free(&packets) };
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn objects_that_cross_no_page_find_room() {
    // With reserved hugepages and no IOMMU, the pool is of pages that lie apart.
    assert_eq!(MbufPool::new(4096, 16384).unwrap().capacity(), 4096);
    let page = memory::HUGE;
    // SAFETY: computes a size.
    let [whole, apart] = [0, page].map(|page| unsafe { sys::inlane_pool_bytes(10_000, 16_384, page) });
    assert!(apart % page == 0 && apart > whole, "{apart} {whole}");
}

#[test]
fn senseless_pools_are_refused() {
    assert!(matches!(MbufPool::new(0, 100), Err(Error::Pool { .. })));
    assert!(MbufPool::new(1, 0).is_err());
    assert!(MbufPool::new(1, 65536).is_err());
    assert!(MbufPool::new(usize::MAX, 2048).is_err());
    let region = Region::host(8192).unwrap();
    assert!(MbufPool::over(region.slice(64, 4096).unwrap(), 1500).is_err(), "not on a page");
    assert!(MbufPool::over(region, 9000).is_err(), "not one fits");
}

#[test]
fn a_thread_that_ends_leaves_nothing_in_its_cache() {
    let pool = MbufPool::new(600, 256).unwrap();
    for _ in 0..4 {
        let pool = pool.clone();
        std::thread::spawn(move || {
            let mut packets = [Packet::EMPTY; 64];
            for _ in 0..10 {
                let count = pool.allocate(&mut packets);
                // SAFETY: these packets are held here, are of this pool, and are not used again.
                unsafe { pool.free(&packets[..count]) };
            }
        })
        .join()
        .unwrap();
    }
    let mut packets = vec![Packet::EMPTY; 600];
    assert_eq!(pool.allocate(&mut packets), 600, "every buffer can be had by one thread");
    // SAFETY: these packets are held here, are of this pool, and are not used again.
    unsafe { pool.free(&packets) };
}
