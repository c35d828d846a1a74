//! Measures the packet rate of each built-in function on bursts of 32 packets in the cache.

#![allow(missing_docs, reason = "criterion's macros generate public items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use inlane_core::packet::{HeapPool, Packet, Pool};
use inlane_core::ring::layout::PacketVerdict;
use inlane_function::PacketFunction;
use std::hint::black_box;

const BURST: usize = 32;

fn functions(criterion: &mut Criterion) {
    let pool = HeapPool::new(BURST, 2048).expect("memory");
    let mut packets = [Packet::EMPTY; BURST];
    assert_eq!(pool.allocate(&mut packets), BURST);
    for (i, packet) in packets.iter_mut().enumerate() {
        packet.length = 64;
        // SAFETY: the packet was just allocated, and nothing else uses it.
        unsafe { packet.bytes_mut() }.copy_from_slice(&udp(i as u8));
    }
    let mut verdicts = [PacketVerdict::default(); BURST];
    let mut group = criterion.benchmark_group("function");
    group.throughput(Throughput::Elements(BURST as u64));
    for builtin in inlane_function::builtins() {
        let function = PacketFunction::parse(builtin.example).expect(builtin.example);
        let mut instance = function.instance().expect(builtin.name);
        group.bench_function(builtin.name, |bencher| {
            bencher.iter(|| {
                if builtin.name == "l3-decrement" {
                    // Reset the time to live, because packets would otherwise expire. SAFETY: this function
                    // owns the packets, which are in host memory.
                    packets.iter().for_each(|packet| unsafe { packet.bytes_mut()[22] = 255 });
                }
                // SAFETY: this function owns the packets, which are in host memory.
                black_box(unsafe { instance.run_packets(black_box(&packets), &mut verdicts, 0) })
            });
        });
    }
}

/// Returns a UDP frame of 64 bytes, without FCS. Each `flow` has another source address.
fn udp(flow: u8) -> [u8; 64] {
    let mut frame = [0u8; 64];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 50, 0, 0, 0, 0, 255, 17, 0, 0, 10, 0, 0, flow, 10, 1, 0, 1]);
    frame[34..42].copy_from_slice(&[0x10, 0, 0x20, 0, 0, 30, 0, 0]);
    let sum = |bytes: &[u8], start: u32| {
        let sum =
            bytes.chunks(2).fold(start, |sum, pair| sum + u16::from_be_bytes([pair[0], pair[1]]) as u32);
        (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
    };
    let header = sum(&frame[14..34], 0);
    frame[24..26].copy_from_slice(&header);
    // Sum the pseudo-header too: the addresses from byte 26 on, the protocol (17) and the length (30).
    let segment = sum(&frame[26..64], 17 + 30);
    frame[40..42].copy_from_slice(&segment);
    frame
}

criterion_group!(benches, functions);
criterion_main!(benches);
