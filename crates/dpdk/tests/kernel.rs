//! Ports on kernel interfaces, in network namespaces of the tests' own: af_packet, af_xdp, tap.

mod network;

use inlane_core::packet::{Packet, Pool};
use inlane_core::port::{Port, Rx, Tx};
use inlane_dpdk::{Error, MbufPool, open};
use network::{RawSocket, frame, ip, private_network};
use std::os::fd::AsRawFd;
use std::sync::Arc;
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

/// Receives until `count` packets came, or a second passed without one.
fn receive(rx: &mut dyn Rx, count: usize) -> Vec<Packet> {
    let mut all = Vec::new();
    let mut last = Instant::now();
    while all.len() < count && last.elapsed() < Duration::from_secs(1) {
        let mut packets = [Packet::EMPTY; 32];
        let got = rx.receive(&mut packets).unwrap();
        all.extend_from_slice(&packets[..got]);
        if got > 0 {
            last = Instant::now();
        }
    }
    all
}

/// Frames from the other end of `peer` come in whole and in order; frames sent go out so.
fn exchanges(spec: &str, peer: &str, sizes: &[usize]) {
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut port, mut rx, mut tx) = one_queue(spec, &pool);
    ip(&format!("link set {peer} up"));
    let raw = RawSocket::open(peer);
    // A veth's link comes up with both its ends.
    std::thread::sleep(Duration::from_millis(300));
    let packets = receive(&mut *rx, 64);
    // SAFETY: these packets are held here, are of this pool, and are not used again.
    unsafe { pool.free(&packets) };

    for round in 0..40u8 {
        let frames: Vec<Vec<u8>> = sizes.iter().map(|&size| frame(size, round)).collect();
        frames.iter().for_each(|frame| raw.send(frame));
        let packets = receive(&mut *rx, frames.len());
        assert_eq!(packets.len(), frames.len(), "{spec} round {round}");
        for (packet, frame) in packets.iter().zip(&frames) {
            // SAFETY: held; host memory.
            assert_eq!(unsafe { packet.bytes() }, &frame[..], "{spec}");
        }
        let mut unsent = &packets[..];
        let start = Instant::now();
        while !unsent.is_empty() && start.elapsed() < Duration::from_secs(1) {
            // SAFETY: these packets are held here and of this queue's pool; those sent are not used again.
            let sent = unsafe { tx.send(unsent) }.unwrap();
            unsent = &unsent[sent..];
        }
        assert!(unsent.is_empty(), "{spec}: {} packets stuck", unsent.len());
        tx.flush().unwrap();
        for frame in &frames {
            assert_eq!(
                raw.receive(Duration::from_secs(1)).as_deref(),
                Some(&frame[..]),
                "{spec} round {round}"
            );
        }
    }
    let count = 40 * sizes.len() as u64;
    assert!(rx.counters().packets >= count);
    assert_eq!(tx.counters().packets, count);
    port.stop();
    assert_eq!(pool.outstanding(), 0, "{spec}: buffers leaked");
}

/// When the interface is deleted the receiver hears of it.
fn notices_the_end(spec: &str, interface: &str) {
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut port, mut rx, _tx) = one_queue(spec, &pool);
    ip(&format!("link delete {interface}"));
    let start = Instant::now();
    let mut packets = [Packet::EMPTY; 32];
    let error = loop {
        match rx.receive(&mut packets) {
            Ok(count) => {
                // SAFETY: these packets are held here, are of this pool, and are not used again.
                unsafe { pool.free(&packets[..count]) }
            }
            Err(error) => break error,
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{spec}: nobody noticed");
    };
    assert!(error.to_string().contains("disappeared"), "{error}");
    port.stop();
    assert_eq!(pool.outstanding(), 0, "{spec}: buffers leaked");
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
    exchanges("af_packet:v0", "v1", &[60, 64, 1000, 1514]);
    notices_the_end("af_packet:v0", "v0");
}

#[test]
fn another_process_with_a_port_at_the_other_end_is_no_hindrance() {
    if !private_network("another_process_with_a_port_at_the_other_end_is_no_hindrance") {
        return;
    }
    veth();
    ip("link set v1 up");
    // The group that a process of a neighbouring number gets for v1 is the one that DPDK would name for this one's v0.
    // SAFETY: a terminated string.
    let index = unsafe { libc::if_nametoindex(c"v0".as_ptr()) };
    let group = i32::from((std::process::id() ^ index) as u16);
    let other = RawSocket::open("v1");
    let (fd, level, option) = (other.0.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT);
    // The system call itself: the crate changes what DPDK gives to the C library's function.
    // SAFETY: the value is read during the call.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, option, &raw const group, 4) }, 0);
    open("af_packet:v0").unwrap();
}

#[test]
fn af_packet_jumbo() {
    if !private_network("af_packet_jumbo") {
        return;
    }
    veth();
    ip("link set v0 mtu 9000");
    ip("link set v1 mtu 9000");
    let pool = MbufPool::new(512, 9216).unwrap();
    let (mut port, mut rx, _tx) = one_queue("af_packet:v0", &pool);
    ip("link set v1 up");
    let raw = RawSocket::open("v1");
    std::thread::sleep(Duration::from_millis(300));
    let jumbo = frame(9014, 1);
    raw.send(&jumbo);
    let packets = receive(&mut *rx, 1);
    assert_eq!(packets.len(), 1);
    // SAFETY: held; host memory.
    assert_eq!(unsafe { packets[0].bytes() }, &jumbo[..]);
    // SAFETY: these packets are held here, are of this pool, and are not used again.
    unsafe { pool.free(&packets) };
    port.stop();
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn frames_that_fit_no_slot_are_refused_and_counted() {
    if !private_network("frames_that_fit_no_slot_are_refused_and_counted") {
        return;
    }
    veth();
    let pool = MbufPool::new(512, 2048).unwrap();
    // Two rings: what is too long for one is counted once.
    let mut port = open("af_packet:v0,frame=1024,queues=2").unwrap();
    let pools: [Arc<dyn Pool>; 2] = [pool.clone(), pool.clone()];
    port.configure(&pools, 0).unwrap();
    let mut rxs = [port.take_rx(0).unwrap(), port.take_rx(1).unwrap()];
    port.start().unwrap();
    ip("link set v1 up");
    let raw = RawSocket::open("v1");
    std::thread::sleep(Duration::from_millis(300));
    // The longest that a slot holds, one byte more, the longest of the link, and short ones between.
    let sizes = [60, 958, 959, 1000, 64, 1514, 958];
    let frames: Vec<Vec<u8>> = sizes.iter().map(|&size| frame(size, 7)).collect();
    frames.iter().for_each(|frame| raw.send(frame));
    let packets: Vec<Packet> = rxs.iter_mut().flat_map(|rx| receive(&mut **rx, 4)).collect();
    let mut came: Vec<u32> = packets.iter().map(|packet| packet.length).collect();
    came.sort_unstable();
    assert_eq!(came, [60, 64, 958, 958], "whole ones alone");
    assert_eq!(port.device_counters().errors, 3);
    assert_eq!(port.device_counters().errors, 3, "asking again counts none again");
    assert_eq!(port.device_counters().missed, 0);
    // What this machine sends there is none of it.
    let near = RawSocket::open("v0");
    near.send(&frames[5]);
    assert_eq!(raw.receive(Duration::from_secs(1)).as_deref(), Some(&frames[5][..]));
    // SAFETY: these packets are held here, are of this pool, and are not used again.
    unsafe { pool.free(&packets) };
    port.stop();
    assert_eq!(port.device_counters().errors, 3);
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn fragments_pass_as_they_come() {
    if !private_network("fragments_pass_as_they_come") {
        return;
    }
    veth();
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut port, mut rx, _tx) = one_queue("af_packet:v0", &pool);
    ip("link set v1 up");
    let raw = RawSocket::open("v1");
    std::thread::sleep(Duration::from_millis(300));
    let packets = receive(&mut *rx, 64);
    // SAFETY: these packets are held here, are of this pool, and are not used again.
    unsafe { pool.free(&packets) };
    // Both halves of a datagram of 2960 bytes: more than a buffer holds, were they put together.
    let fragment = |offset: u16, more: bool| {
        let mut frame = frame(14 + 20 + 1480, offset as u8);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        let place = ((offset / 8) | (u16::from(more) << 13)).to_be_bytes();
        let header = [0x45, 0, 5, 0xdc, 0, 7, place[0], place[1], 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
        frame[14..34].copy_from_slice(&header);
        let sum: u32 = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame
    };
    let frames = [fragment(0, true), fragment(1480, false)];
    frames.iter().for_each(|frame| raw.send(frame));
    let packets = receive(&mut *rx, 2);
    // SAFETY: held; host memory.
    let came: Vec<Vec<u8>> = packets.iter().map(|packet| unsafe { packet.bytes() }.to_vec()).collect();
    assert_eq!(came, frames);
    // SAFETY: these packets are held here, are of this pool, and are not used again.
    unsafe { pool.free(&packets) };
    port.stop();
    assert_eq!(pool.outstanding(), 0);
}

#[test]
fn af_xdp() {
    if !private_network("af_xdp") {
        return;
    }
    veth();
    exchanges("af_xdp:v0", "v1", &[60, 64, 1000, 1514]);
    // Once more on the same interface: the program of the first was taken off.
    exchanges("af_xdp:v0,copy=on,descriptors=512", "v1", &[60, 1514]);
    notices_the_end("af_xdp:v0", "v0");
}

#[test]
fn tap() {
    if !private_network("tap") {
        return;
    }
    exchanges("tap:t0,mac=fixed", "t0", &[60, 64, 1000, 1514]);
    notices_the_end("tap:t1", "t1");
}

#[test]
fn what_is_missing_or_taken_is_said() {
    if !private_network("what_is_missing_or_taken_is_said") {
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

    // A second program's AF_XDP socket on the same queue.
    let pool = MbufPool::new(8192, 2048).unwrap();
    let (mut first, ..) = one_queue("af_xdp:v0", &pool);
    let second = MbufPool::new(8192, 2048).unwrap();
    let as_pool: Arc<dyn Pool> = second.clone();
    let outcome = open("af_xdp:v0").map_err(inlane_core::Error::from).and_then(|mut port| {
        port.configure(std::slice::from_ref(&as_pool), 1)?;
        port.start()
    });
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("in use") || error.contains("busy"), "{error}");
    assert_eq!(second.outstanding(), 0, "a port that failed holds nothing");
    first.stop();
}
