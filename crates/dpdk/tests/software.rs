//! Tests of the ports that need neither hardware nor privileges: net_null and ring.

use inlane_core::packet::{Packet, Pool};
use inlane_core::port::{Port, Rx, Tx};
use inlane_core::region::Region;
use inlane_dpdk::{Error, MbufPool, open};
use std::sync::Arc;

/// Opens a port with one queue in each direction.
fn one_queue(spec: &str, pool: &Arc<MbufPool>) -> (Box<dyn Port>, Box<dyn Rx>, Box<dyn Tx>) {
    let mut port = open(spec).unwrap();
    let pool: Arc<dyn Pool> = pool.clone();
    port.configure(std::slice::from_ref(&pool), 1).unwrap();
    let rx = port.take_rx(0).unwrap();
    let tx = port.take_tx(0, pool).unwrap();
    port.start().unwrap();
    (port, rx, tx)
}

#[test]
fn net_null_generates_and_discards() {
    let pool = MbufPool::new(2048, 2048).unwrap();
    let (mut port, mut rx, mut tx) = one_queue("net_null:1024", &pool);
    let mut packets = [Packet::EMPTY; 32];
    for _ in 0..1000 {
        assert_eq!(rx.receive(&mut packets).unwrap(), 32);
        assert!(packets.iter().all(|packet| packet.length == 1024));
        // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
        assert_eq!(unsafe { tx.send(&packets) }.unwrap(), 32);
    }
    assert_eq!((rx.counters().packets, rx.counters().bytes), (32_000, 32_000 * 1024));
    assert_eq!(tx.counters(), rx.counters());
    port.stop();
    assert_eq!(pool.outstanding(), 0);
    assert!(rx.exhausted());
    assert_eq!(rx.receive(&mut packets).unwrap(), 0, "a stopped port receives nothing");
    // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
    assert!(unsafe { tx.send(&packets[..1]) }.is_err(), "a stopped port sends nothing");
}

#[test]
fn net_null_fills_bursts_from_every_kind_of_pool() {
    for pool in [
        MbufPool::new(512, 2048).unwrap(),
        MbufPool::over(Region::host(MbufPool::bytes(512, 2048)).unwrap(), 2048).unwrap(),
    ] {
        let (mut port, mut rx, _tx) = one_queue("net_null", &pool);
        let mut packets = [Packet::EMPTY; 64];
        let count = rx.receive(&mut packets).unwrap();
        assert_eq!(count, 64);
        for packet in &packets[..count] {
            assert!(packet.address >= pool.region().address());
            assert!(packet.address + 64 <= pool.region().address() + pool.region().len() as u64);
        }
        // SAFETY: the packets are of this pool, and are not used again.
        unsafe { pool.free(&packets[..count]) };
        port.stop();
        assert_eq!(pool.outstanding(), 0);
    }
}

#[test]
fn a_ring_returns_sent_packets() {
    let pool = MbufPool::new(4096, 2048).unwrap();
    let (mut port, mut rx, mut tx) = one_queue("ring:a,prime=32", &pool);
    let mut packets = [Packet::EMPTY; 64];
    assert_eq!(rx.receive(&mut packets).unwrap(), 32, "the packets put in at the start");
    for (i, packet) in packets[..32].iter_mut().enumerate() {
        // Change the packet as a packet function may: remove the first header, change the length, and write
        // other bytes.
        packet.address += 14;
        packet.length = 20 + i as u32;
        // SAFETY: the test holds this packet, in host memory.
        unsafe { packet.bytes_mut() }.fill(i as u8);
    }
    // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
    assert_eq!(unsafe { tx.send(&packets[..32]) }.unwrap(), 32);
    assert_eq!(rx.receive(&mut packets).unwrap(), 32);
    for (i, packet) in packets[..32].iter().enumerate() {
        assert_eq!(packet.length, 20 + i as u32);
        // SAFETY: the test holds this packet, in host memory.
        assert!(unsafe { packet.bytes() }.iter().all(|&byte| byte == i as u8));
    }
    // Leave packets in the ring. `stop` must return them to the pool.
    // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
    assert_eq!(unsafe { tx.send(&packets[..32]) }.unwrap(), 32);
    port.stop();
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn a_full_ring_sends_a_part() {
    let pool = MbufPool::new(4096, 256).unwrap();
    let (mut port, _rx, mut tx) = one_queue("ring:b", &pool);
    let mut packets = vec![Packet::EMPTY; 2000];
    assert_eq!(pool.allocate(&mut packets), 2000);
    packets.iter_mut().for_each(|packet| packet.length = 60);
    // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
    let sent = unsafe { tx.send(&packets) }.unwrap();
    assert!((1000..2000).contains(&sent), "{sent}");
    assert_eq!(tx.counters().packets, sent as u64);
    assert_eq!(tx.counters().bytes, 60 * sent as u64);
    // SAFETY: the packets are of this pool, and are not used again.
    unsafe { pool.free(&packets[sent..]) };
    port.stop();
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn packets_of_several_segments_are_sent_whole() {
    let pool = MbufPool::new(256, 256).unwrap();
    let (mut port, mut rx, mut tx) = one_queue("ring:c", &pool);
    let mut packet = [Packet::EMPTY; 1];
    assert_eq!(pool.allocate(&mut packet), 1);
    packet[0].length = 100;
    // SAFETY: the test holds this packet of this pool.
    unsafe { pool.append_segment(&packet[0], &[7; 200]) }.unwrap();
    packet[0].length = 90;
    // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
    assert_eq!(unsafe { tx.send(&packet) }.unwrap(), 1);
    assert_eq!(tx.counters().bytes, 290);
    let mut received = [Packet::EMPTY; 4];
    assert_eq!(rx.receive(&mut received).unwrap(), 1);
    let mut lengths = Vec::new();
    // SAFETY: the test holds this packet of this pool.
    unsafe { pool.for_each_segment(&received[0], &mut |_, length| lengths.push(length)) };
    assert_eq!(lengths, [90, 200]);
    // SAFETY: the packets are of this pool, and are not used again.
    unsafe { pool.free(&received[..1]) };
    port.stop();
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn send_as_received_sends_every_kind_of_packet() {
    let pool = MbufPool::new(4096, 256).unwrap();
    let (mut port, mut rx, mut tx) = one_queue("ring:e,prime=70,size=64", &pool);
    let mut packets = [Packet::EMPTY; 73];
    let got = rx.receive(&mut packets[..64]).unwrap();
    let got = got + rx.receive(&mut packets[got..70]).unwrap();
    assert_eq!(got, 70);
    // The first call sends an odd number of packets. `burst.c` handles packets in pairs, and the last packet
    // of an odd number separately.
    // SAFETY: the test holds these packets of this queue's pool, and does not use sent packets again.
    assert_eq!(unsafe { tx.send_as_received(&packets[..69]) }.unwrap(), 69);
    // SAFETY: as above.
    assert_eq!(unsafe { tx.send_as_received(&packets[69..70]) }.unwrap(), 1);
    assert_eq!((tx.counters().packets, tx.counters().bytes), (70, 70 * 64));

    // Add a received packet of two segments, and a packet that was allocated instead of received. The mbuf of
    // an allocated packet does not contain the length yet, so the sender must write it there.
    assert_eq!(pool.allocate(&mut packets[70..72]), 2);
    packets[70..72].iter_mut().for_each(|packet| packet.length = 100);
    // SAFETY: the test holds this packet of this pool.
    unsafe { pool.append_segment(&packets[70], &[7; 200]) }.unwrap();
    // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
    assert_eq!(unsafe { tx.send(&packets[70..71]) }.unwrap(), 1);
    let got = rx.receive(&mut packets[..64]).unwrap();
    let got = got + rx.receive(&mut packets[got..71]).unwrap();
    assert_eq!((got, packets[70].length), (71, 100));
    let bytes = tx.counters().bytes;
    // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
    assert_eq!(unsafe { tx.send_as_received(&packets[..71]) }.unwrap(), 71);
    // SAFETY: as above.
    assert_eq!(unsafe { tx.send_as_received(&packets[71..72]) }.unwrap(), 1);
    assert_eq!(tx.counters().bytes - bytes, 70 * 64 + 300 + 100);
    let got = rx.receive(&mut packets[..64]).unwrap();
    let got = got + rx.receive(&mut packets[got..]).unwrap();
    assert_eq!((got, packets[69].length, packets[71].length), (72, 64, 100));
    let mut lengths = Vec::new();
    // SAFETY: the test holds this packet of this pool.
    unsafe { pool.for_each_segment(&packets[70], &mut |_, length| lengths.push(length)) };
    assert_eq!(lengths, [100, 200]);
    // SAFETY: the packets are of this pool, and are not used again.
    unsafe { pool.free(&packets[..72]) };
    port.stop();
    assert_eq!((tx.counters().errors, pool.outstanding()), (0, 0));
}

#[test]
fn a_full_ring_takes_a_part_of_unchanged_packets_and_counts_it() {
    let pool = MbufPool::new(4096, 256).unwrap();
    let (mut port, mut rx, mut tx) = one_queue("ring:f,prime=200,size=64", &pool);
    let mut packets = vec![Packet::EMPTY; 200];
    let mut got = 0;
    while got < 200 {
        got += rx.receive(&mut packets[got..]).unwrap();
    }
    // Fill the ring, then free room for 100 packets. The 200 packets in `packets` are unchanged since they
    // were received.
    let mut filling = vec![Packet::EMPTY; 2000];
    assert_eq!(pool.allocate(&mut filling), 2000);
    // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
    let filled = unsafe { tx.send(&filling) }.unwrap();
    assert!(filled < 2000, "the ring is full");
    let mut received = vec![Packet::EMPTY; 100];
    assert_eq!(rx.receive(&mut received[..64]).unwrap() + rx.receive(&mut received[64..]).unwrap(), 100);
    let before = tx.counters();
    // SAFETY: as above.
    assert_eq!(unsafe { tx.send_as_received(&packets) }.unwrap(), 100, "one whole chunk and a part");
    let after = tx.counters();
    assert_eq!((after.packets - before.packets, after.bytes - before.bytes), (100, 100 * 64));
    // SAFETY: the packets are of this pool, and are not used again.
    unsafe {
        pool.free(&packets[100..]);
        pool.free(&filling[filled..]);
        pool.free(&received);
    }
    port.stop();
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn send_as_received_notices_each_allocated_packet_of_a_chunk() {
    let pool = MbufPool::new(4096, 256).unwrap();
    let (mut port, mut rx, mut tx) = one_queue("ring:g", &pool);
    // `burst.c` counts the allocated packets of a chunk in a field of 6 bits. If the field overflowed to 0,
    // it would send the packets like received packets, without storing their lengths.
    for count in [1, 2, 3, 31, 32, 33, 63, 64] {
        let mut packets = vec![Packet::EMPTY; count];
        assert_eq!(pool.allocate(&mut packets), count);
        packets.iter_mut().for_each(|packet| packet.length = 99);
        // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
        assert_eq!(unsafe { tx.send_as_received(&packets) }.unwrap(), count);
        assert_eq!(rx.receive(&mut packets).unwrap(), count);
        assert!(packets.iter().all(|packet| packet.length == 99), "{count} packets");
        // SAFETY: the packets are of this pool, and are not used again.
        unsafe { pool.free(&packets) };
    }
    port.stop();
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn lengths_beyond_the_buffer_are_dropped_and_counted() {
    let pool = MbufPool::new(256, 256).unwrap();
    let (mut port, mut rx, mut tx) = one_queue("ring:d", &pool);
    let mut packets = [Packet::EMPTY; 8];
    assert_eq!(pool.allocate(&mut packets), 8);
    packets.iter_mut().for_each(|packet| packet.length = 64);
    packets[2].length = 70_000;
    packets[5].address -= 4096;
    packets[7].length = 257;
    // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
    assert_eq!(unsafe { tx.send(&packets) }.unwrap(), 8);
    assert_eq!((tx.counters().packets, tx.counters().errors), (5, 3));
    assert_eq!(rx.receive(&mut packets).unwrap(), 5);
    // SAFETY: the packets are of this pool, and are not used again.
    unsafe { pool.free(&packets[..5]) };
    port.stop();
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn a_port_stops_while_another_thread_uses_its_queues() {
    let pool = MbufPool::new(4096, 2048).unwrap();
    for _ in 0..20 {
        let (mut port, mut rx, mut tx) = one_queue("net_null", &pool);
        let give = pool.clone();
        let thread = std::thread::spawn(move || {
            let mut packets = [Packet::EMPTY; 32];
            loop {
                let count = rx.receive(&mut packets).unwrap();
                if count == 0 && rx.exhausted() {
                    return;
                }
                // SAFETY: the test holds these packets of this queue's pool. It does not use sent packets
                // again.
                let sent = unsafe { tx.send(&packets[..count]) }.unwrap_or(0);
                // SAFETY: the packets are of this pool, and are not used again.
                unsafe { give.free(&packets[sent..count]) };
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(2));
        port.stop();
        thread.join().unwrap();
        assert_eq!(pool.outstanding(), 0);
    }
}

#[test]
fn calls_out_of_order_or_beyond_limits_are_refused() {
    let pool: Arc<dyn Pool> = MbufPool::new(256, 256).unwrap();
    let mut port = open("net_null").unwrap();
    assert!(port.take_rx(0).is_err(), "the port is not configured");
    assert!(port.start().is_err());
    assert!(port.configure(&[], 0).is_err());
    assert!(port.configure(std::slice::from_ref(&pool), 5000).is_err());
    port.configure(std::slice::from_ref(&pool), 1).unwrap();
    assert!(port.configure(std::slice::from_ref(&pool), 1).is_err());
    let _rx = port.take_rx(0).unwrap();
    assert!(port.take_rx(0).is_err(), "the queue was taken");
    assert!(port.take_rx(1).is_err());
    let heap: Arc<dyn Pool> = Arc::new(inlane_core::HeapPool::new(8, 256).unwrap());
    let error = port.take_tx(0, heap).err().unwrap().to_string();
    assert!(error.contains("MbufPool"), "{error}");
    assert!(matches!(open("nil").err().unwrap(), Error::Spec { .. }));
}
