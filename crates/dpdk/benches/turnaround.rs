//! Measures the cost of a burst on one core: receives packets, swaps their MAC addresses, and sends them
//! back.
//!
//! `cargo bench -p inlane-dpdk --bench turnaround -- [PORT [BURST [MBUFS [SECONDS]]]]`. Rates are per second
//! of this thread's CPU time.

use inlane_core::packet::{Packet, Pool};
use inlane_dpdk::{MbufPool, open};
use std::sync::Arc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let argument =
        |index: usize, default: &str| arguments.get(index).map_or(default, String::as_str).to_owned();
    let spec = argument(0, "net_null:64");
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
                    // SAFETY: the packets were just received, lie in host memory, and have at least 16 bytes.
                    unsafe { swap(&packets[..count]) };
                }
                // SAFETY: the test owns these packets of this queue's pool, and does not use sent packets
                // again.
                let sent = unsafe { tx.send(&packets[..count]) }.unwrap();
                // SAFETY: the packets are of this pool, and are not used again.
                unsafe { pool.free(&packets[sent..count]) };
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

/// Swaps the MAC addresses of each packet.
///
/// # Safety
/// The CPU has SSSE3, as x86-64 has since about 2010. The caller owns the packets. Each has at least 16 bytes
/// of memory that the CPU can access.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "ssse3"))]
unsafe fn swap(packets: &[Packet]) {
    for packet in packets {
        // SAFETY: the caller promises that the packet has at least 16 bytes and that the CPU has SSSE3.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::x86_64::{
                __m128i, _mm_loadu_si128, _mm_setr_epi8, _mm_shuffle_epi8, _mm_storeu_si128,
            };
            let order = _mm_setr_epi8(6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 12, 13, 14, 15);
            let frame = packet.address as *mut __m128i;
            _mm_storeu_si128(frame, _mm_shuffle_epi8(_mm_loadu_si128(frame), order));
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller promises that the packet begins with two addresses of 6 bytes.
        unsafe {
            let frame = packet.address as *mut [u8; 6];
            std::ptr::swap(frame, frame.add(1));
        }
    }
}

fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
