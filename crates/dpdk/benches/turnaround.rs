//! What a burst costs: packets received from a port, MAC addresses swapped, sent to the same port, on one core.
//!
//! `cargo bench -p inlane-dpdk --bench turnaround -- [PORT [BURST [MBUFS [SECONDS]]]]`; rates are per second of CPU time, so that other
//! programs on the machine disturb little.

use inlane_core::packet::{Packet, Pool};
use inlane_dpdk::{MbufPool, open};
use std::sync::Arc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let argument =
        |index: usize, default: &str| arguments.get(index).map_or(default, String::as_str).to_owned();
    let spec = argument(0, "null:64");
    let burst: usize = argument(1, "32").parse().expect("a burst is a number of packets");
    let mbufs: usize = argument(2, "8192").parse().expect("mbufs is a number");
    let seconds: f64 = argument(3, "1").parse().expect("seconds is a number");
    let pool = MbufPool::new(mbufs, 2048).unwrap();
    let mut port = open(&spec).unwrap();
    let as_pool: Arc<dyn Pool> = pool.clone();
    port.configure(std::slice::from_ref(&as_pool), 1).unwrap();
    let mut rx = port.take_rx(0).unwrap();
    let mut tx = port.take_tx(0, as_pool).unwrap();
    port.start().unwrap();
    for function in ["io", "macswap"] {
        let mut packets = vec![Packet::EMPTY; burst];
        let (start, mut moved) = (cpu_seconds(), 0u64);
        let elapsed = loop {
            for _ in 0..1000 {
                let count = rx.receive(&mut packets).unwrap();
                if function == "macswap" {
                    // SAFETY: held; host memory; frames of at least 14 bytes.
                    packets[..count].iter().for_each(|packet| unsafe { swap(packet) });
                }
                let sent = tx.send(&packets[..count]).unwrap();
                pool.give(&packets[sent..count]);
                moved += sent as u64;
            }
            let elapsed = cpu_seconds() - start;
            if elapsed > seconds {
                break elapsed;
            }
        };
        println!("{spec} burst {burst} mbufs {mbufs} {function}: {:.1} Mpps", moved as f64 / elapsed / 1e6);
    }
    port.stop();
    assert_eq!(pool.outstanding(), 0);
}

/// # Safety
/// At least 12 bytes at the packet's address, which the caller holds.
unsafe fn swap(packet: &Packet) {
    // One load and one store of both addresses: rotating the 12 bytes in two words.
    let frame = packet.address as *mut u8;
    // SAFETY: as the caller says.
    unsafe {
        let to = frame.cast::<[u8; 6]>().read();
        let words = (frame.cast::<u64>().read_unaligned(), frame.add(8).cast::<u32>().read_unaligned());
        let from = (words.0 >> 48) | (words.1 as u64) << 16;
        let low = u64::from_le_bytes([to[0], to[1], to[2], to[3], to[4], to[5], 0, 0]);
        frame.cast::<u64>().write_unaligned(from | low << 48);
        frame.add(8).cast::<u32>().write_unaligned((low >> 16) as u32);
    }
}

fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
