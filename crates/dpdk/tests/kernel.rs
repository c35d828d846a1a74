//! Tests of ports on kernel interfaces (af_packet, af_xdp, tap), each in its own network namespace.

mod network;

use inlane_core::packet::{Packet, Pool};
use inlane_core::port::{Port, Rx, Tx};
use inlane_dpdk::{Error, MbufPool, open};
use network::{RawSocket, eventually, frame, ip, output_of_ip, private_network};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn one_queue(spec: &str, pool: &Arc<MbufPool>) -> (Box<dyn Port>, Box<dyn Rx>, Box<dyn Tx>) {
    let mut port = open(spec).unwrap();
    let pool: Arc<dyn Pool> = pool.clone();
    port.configure(std::slice::from_ref(&pool), 1).unwrap();
    let rx = port.take_rx(0).unwrap();
    let tx = port.take_tx(0, pool).unwrap();
    port.start().unwrap();
    (port, rx, tx)
}

/// Receives `count` packets. Returns fewer if no packet arrives for 20 seconds.
fn receive(rx: &mut dyn Rx, count: usize) -> Vec<Packet> {
    receive_until_quiet(rx, count, Duration::from_secs(20))
}

/// Receives packets until none arrives for a second.
fn receive_rest(rx: &mut dyn Rx) -> Vec<Packet> {
    receive_until_quiet(rx, usize::MAX, Duration::from_secs(1))
}

fn receive_until_quiet(rx: &mut dyn Rx, count: usize, quiet: Duration) -> Vec<Packet> {
    let mut all = Vec::new();
    let mut last = Instant::now();
    while all.len() < count {
        // Read the clock before receiving, because this thread may not run for seconds in between.
        let is_quiet = last.elapsed() >= quiet;
        let mut packets = [Packet::EMPTY; 32];
        let received = rx.receive(&mut packets).unwrap();
        all.extend_from_slice(&packets[..received]);
        if received > 0 {
            last = Instant::now();
        } else if is_quiet {
            break;
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    all
}

fn bytes(packets: &[Packet]) -> Vec<Vec<u8>> {
    // SAFETY: the caller has received these packets, in host memory, and not freed them.
    packets.iter().map(|packet| unsafe { packet.bytes() }.to_vec()).collect()
}

/// Frees received packets.
fn free(pool: &MbufPool, packets: &[Packet]) {
    // SAFETY: the packets are from this pool. The caller does not use them again.
    unsafe { pool.free(packets) }
}

/// Checks the port `spec`. `peer` is the interface at its other end. The port must receive frames of `sizes`
/// bytes from `peer` whole and in order. They must also arrive back at `peer` whole and in order.
fn exchanges(spec: &str, peer: &str, room: usize, sizes: &[usize]) {
    let pool = MbufPool::new(8192, room).unwrap();
    let (mut port, mut rx, mut tx) = one_queue(spec, &pool);
    ip(&format!("link set {peer} up"));
    let raw = RawSocket::open(peer);
    // The link of a veth comes up late, so wait. Then free the frames that arrived meanwhile.
    std::thread::sleep(Duration::from_millis(300));
    let early = receive_rest(&mut *rx);
    free(&pool, &early);

    for round in 0..40u8 {
        let frames: Vec<Vec<u8>> = sizes.iter().map(|&size| frame(size, round)).collect();
        frames.iter().for_each(|frame| raw.send(frame));
        let packets = receive(&mut *rx, frames.len());
        assert_eq!(packets.len(), frames.len(), "{spec} round {round}");
        assert!(bytes(&packets) == frames, "{spec} round {round}: altered frames");
        let mut unsent = &packets[..];
        let start = Instant::now();
        while !unsent.is_empty() && start.elapsed() < Duration::from_secs(20) {
            // SAFETY: the packets are of this queue's pool. Sent ones are not used again.
            let sent = unsafe { tx.send(unsent) }.unwrap();
            unsent = &unsent[sent..];
        }
        assert!(unsent.is_empty(), "{spec}: {} packets were not sent", unsent.len());
        tx.flush().unwrap();
        for frame in &frames {
            let back = raw.receive(Duration::from_secs(20));
            assert!(back.as_ref() == Some(frame), "{spec} round {round}: {} bytes", frame.len());
        }
    }
    let count = 40 * sizes.len() as u64;
    assert!(rx.counters().packets >= count);
    assert_eq!(tx.counters().packets, count);
    port.stop();
    assert_eq!(pool.outstanding(), 0, "{spec}: leaked buffers");
}

fn notices_a_deleted_interface(spec: &str, interface: &str) {
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut port, mut rx, _tx) = one_queue(spec, &pool);
    ip(&format!("link delete {interface}"));
    let start = Instant::now();
    let mut packets = [Packet::EMPTY; 32];
    let error = loop {
        match rx.receive(&mut packets) {
            Ok(count) => free(&pool, &packets[..count]),
            Err(error) => break error,
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{spec}: no error");
        // A thread without work pauses, too.
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(error.to_string().contains("disappeared"), "{error}");
    port.stop();
    assert_eq!(pool.outstanding(), 0, "{spec}: leaked buffers");
}

fn veth() {
    ip("link add v0 type veth peer name v1");
    ip("link set v0 up");
}

#[test]
fn af_packet() {
    if !private_network("af_packet") {
        return;
    }
    veth();
    exchanges("af_packet:v0", "v1", 2048, &[60, 64, 1000, 1514]);
    notices_a_deleted_interface("af_packet:v0", "v0");
}

/// Passes frames through a port at each listed MTU and slot size. Sends more frames than a block of the ring
/// holds, because the slots at the ends of blocks must work too.
#[test]
fn af_packet_works_with_every_mtu_and_every_slot_size() {
    if !private_network("af_packet_works_with_every_mtu_and_every_slot_size") {
        return;
    }
    for (mtu, options) in [
        (1500, ""),
        (1500, ",frame=2000"),
        (1500, ",frame=3000"),
        (2000, ""),
        (2500, ""),
        (3000, ""),
        (3498, ""),
        (5000, ",descriptors=64"),
        (9000, ""),
        (9000, ",frame=10001,descriptors=16"),
    ] {
        veth();
        ip(&format!("link set v0 mtu {mtu}"));
        ip(&format!("link set v1 mtu {mtu}"));
        exchanges(&format!("af_packet:v0{options}"), "v1", 10_240, &[mtu + 14, 60, mtu / 2]);
        ip("link delete v0");
    }
}

#[test]
fn af_packet_keeps_vlan_tags_or_refuses_them() {
    if !private_network("af_packet_keeps_vlan_tags_or_refuses_them") {
        return;
    }
    veth();
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut port, mut rx, _tx) = one_queue("af_packet:v0", &pool);
    ip("link set v1 up");
    let raw = RawSocket::open("v1");
    std::thread::sleep(Duration::from_millis(300));
    let tagged = |types: &[[u8; 2]], seed: u8| {
        let mut frame = frame(200, seed);
        let tags: Vec<u8> = types.iter().flat_map(|[a, b]| [*a, *b, 0, 7]).collect();
        frame.splice(12..12, tags);
        frame
    };
    let (customer, service) = ([0x81, 0x00], [0x88, 0xa8]);
    let kept = [tagged(&[customer], 1), tagged(&[customer, customer], 2), tagged(&[customer, service], 3)];
    let refused = [tagged(&[service], 4), tagged(&[service, customer], 5)];
    refused.iter().chain(&kept).for_each(|frame| raw.send(frame));
    let packets = receive(&mut *rx, kept.len());
    assert_eq!(bytes(&packets), kept);
    free(&pool, &packets);
    assert_eq!(receive_rest(&mut *rx).len(), 0);
    assert_eq!(port.device_counters().errors, refused.len() as u64);
    port.stop();
    assert_eq!(port.device_counters().errors, refused.len() as u64);
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn a_port_of_another_process_at_the_other_end_does_not_disturb() {
    if !private_network("a_port_of_another_process_at_the_other_end_does_not_disturb") {
        return;
    }
    veth();
    ip("link set v1 up");
    // Take the socket group (PACKET_FANOUT) that DPDK's driver would choose for this process and v0. inlane
    // must choose another group.
    // SAFETY: the string is terminated.
    let index = unsafe { libc::if_nametoindex(c"v0".as_ptr()) };
    let group = i32::from((std::process::id() ^ index) as u16);
    let other = RawSocket::open("v1");
    let (fd, level, option) = (other.0.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT);
    // This crate replaces the C library's `setsockopt`, so make the system call itself.
    // SAFETY: the value is read during the call.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, option, &raw const group, 4) }, 0);
    open("af_packet:v0").unwrap();
}

#[test]
fn frames_that_fit_no_slot_are_refused_and_counted() {
    if !private_network("frames_that_fit_no_slot_are_refused_and_counted") {
        return;
    }
    veth();
    let pool = MbufPool::new(512, 2048).unwrap();
    // Two rings receive on the interface. A frame that is too long must be counted only once.
    let mut port = open("af_packet:v0,frame=1024,queues=2").unwrap();
    let pools: [Arc<dyn Pool>; 2] = [pool.clone(), pool.clone()];
    port.configure(&pools, 0).unwrap();
    let mut rxs = [port.take_rx(0).unwrap(), port.take_rx(1).unwrap()];
    port.start().unwrap();
    ip("link set v1 up");
    let raw = RawSocket::open("v1");
    std::thread::sleep(Duration::from_millis(300));
    // A slot of 1024 bytes holds frames of at most 958 bytes. Longer frames must be refused.
    let sizes = [60, 958, 959, 1000, 64, 1514, 958];
    let frames: Vec<Vec<u8>> = sizes.iter().map(|&size| frame(size, 7)).collect();
    frames.iter().for_each(|frame| raw.send(frame));
    let packets: Vec<Packet> = rxs.iter_mut().flat_map(|rx| receive_rest(&mut **rx)).collect();
    let mut lengths: Vec<u32> = packets.iter().map(|packet| packet.length).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [60, 64, 958, 958], "only whole frames are received");
    assert_eq!(port.device_counters().errors, 3);
    assert_eq!(port.device_counters().errors, 3, "reading the counter does not change it");
    assert_eq!(port.device_counters().missed, 0);
    // Frames that this machine sends on the interface must not be counted.
    let near = RawSocket::open("v0");
    near.send(&frames[5]);
    assert_eq!(raw.receive(Duration::from_secs(20)).as_deref(), Some(&frames[5][..]));
    free(&pool, &packets);
    port.stop();
    assert_eq!(port.device_counters().errors, 3);
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn fragments_are_not_reassembled() {
    if !private_network("fragments_are_not_reassembled") {
        return;
    }
    veth();
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut port, mut rx, _tx) = one_queue("af_packet:v0", &pool);
    ip("link set v1 up");
    let raw = RawSocket::open("v1");
    std::thread::sleep(Duration::from_millis(300));
    let early = receive_rest(&mut *rx);
    free(&pool, &early);
    // Two fragments of a datagram. The kernel must not reassemble them, because the datagram would exceed the
    // buffers.
    let fragment = |offset: u16, more: bool| {
        let mut frame = frame(14 + 20 + 1480, offset as u8);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        let [high, low] = ((offset / 8) | (u16::from(more) << 13)).to_be_bytes();
        let header = [0x45, 0, 5, 0xdc, 0, 7, high, low, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
        frame[14..34].copy_from_slice(&header);
        let sum: u32 = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame
    };
    let frames = [fragment(0, true), fragment(1480, false)];
    frames.iter().for_each(|frame| raw.send(frame));
    let packets = receive(&mut *rx, 2);
    assert_eq!(bytes(&packets), frames);
    free(&pool, &packets);
    port.stop();
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn af_xdp() {
    if !private_network("af_xdp") {
        return;
    }
    veth();
    exchanges("af_xdp:v0", "v1", 2048, &[60, 64, 1000, 1514]);
    // Open a second port on the same interface. This must succeed, because closing the first port has
    // released the queue and the XDP program.
    exchanges("af_xdp:v0,copy=on,descriptors=512", "v1", 2048, &[60, 1514]);
    notices_a_deleted_interface("af_xdp:v0", "v0");
}

/// Opens a port again and again right after it was closed. Other threads start programs, which hold copies of the port's descriptors for a
/// moment, change interfaces, and keep the processors busy. Each delays the kernel when it detaches the program.
#[test]
fn af_xdp_opens_while_its_last_program_is_being_detached() {
    if !private_network("af_xdp_opens_while_its_last_program_is_being_detached") {
        return;
    }
    veth();
    let rounds = if std::env::var_os("INLANE_TEST_ALL").is_some() { 200 } else { 20 };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert!(private_network("interfaces of other threads"));
                while !done.load(Ordering::Relaxed) {
                    veth();
                    ip("link delete v0");
                }
            });
        }
        for _ in 0..6 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let opened = (0..rounds).try_for_each(|_| open("af_xdp:v0").map(drop));
        done.store(true, Ordering::Relaxed);
        opened.unwrap();
    });
}

/// Without promiscuous mode, the interface would drop frames for other MAC addresses. If the mode stayed on,
/// they would still arrive after the port was closed.
#[test]
fn an_interface_is_promiscuous_while_its_port_is_open() {
    if !private_network("an_interface_is_promiscuous_while_its_port_is_open") {
        return;
    }
    veth();
    let promiscuous = || {
        let shown = output_of_ip("-details link show v0");
        assert!(!shown.contains("PROMISC"), "the administrator's flag is set: {shown}");
        !shown.contains("promiscuity 0")
    };
    for spec in ["af_packet:v0", "af_xdp:v0"] {
        assert!(!promiscuous(), "before {spec}");
        let pool = MbufPool::new(8192, 2048).unwrap();
        let (mut port, ..) = one_queue(spec, &pool);
        assert!(promiscuous(), "{spec}");
        port.stop();
        assert!(eventually(|| !promiscuous()), "after {spec}");
    }
}

#[test]
fn tap() {
    if !private_network("tap") {
        return;
    }
    exchanges("tap:t0,mac=fixed", "t0", 2048, &[60, 64, 1000, 1514]);
    notices_a_deleted_interface("tap:t1", "t1");
}

#[test]
fn missing_interfaces_and_names_in_use_are_refused() {
    if !private_network("missing_interfaces_and_names_in_use_are_refused") {
        return;
    }
    for spec in ["af_packet:nosuch0", "af_xdp:nosuch0"] {
        let error = open(spec).err().unwrap();
        assert!(matches!(error, Error::Missing { .. }), "{error}");
        assert!(error.to_string().contains("ip link"), "{error}");
    }
    veth();
    let error = open("tap:v0").err().unwrap();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    let error = open("pci:ffff:ff:1f.7").err().unwrap();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
    let error = open("memif:/no/such/folder/m.sock").err().unwrap();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
}
