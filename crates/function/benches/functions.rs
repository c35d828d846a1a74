//! Packets a second of each function on packets that lie in the cache, a burst of 32 at a time.

#![allow(missing_docs, reason = "criterion makes public items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use inlane_core::packet::{HeapPool, Packet, Pool};
use inlane_core::ring::layout::Outcome;
use inlane_function::Function;
use std::hint::black_box;

const BURST: usize = 32;

fn functions(criterion: &mut Criterion) {
    let pool = HeapPool::new(BURST, 2048).expect("memory");
    let mut packets = [Packet::EMPTY; BURST];
    assert_eq!(pool.take(&mut packets), BURST);
    for (i, packet) in packets.iter_mut().enumerate() {
        packet.length = 64;
        // SAFETY: just taken.
        unsafe { packet.bytes_mut() }.copy_from_slice(&udp(i as u8));
    }
    let mut outcomes = [Outcome::default(); BURST];
    let mut group = criterion.benchmark_group("function");
    group.throughput(Throughput::Elements(BURST as u64));
    for builtin in inlane_function::builtins() {
        let function = Function::parse(builtin.example).expect(builtin.example);
        let mut instance = function.instance().expect(builtin.name);
        group.bench_function(builtin.name, |bencher| {
            bencher.iter(|| {
                // SAFETY: the packets are held here, in host memory.
                black_box(unsafe { instance.run_packets(black_box(&packets), &mut outcomes, 0) })
            });
        });
    }
}

/// Ethernet, IPv4, UDP: a frame of 64 bytes without FCS, of flow `flow`.
fn udp(flow: u8) -> [u8; 64] {
    let mut frame = [0u8; 64];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 50, 0, 0, 0, 0, 255, 17, 0, 0, 10, 0, 0, flow, 10, 1, 0, 1]);
    frame[34..42].copy_from_slice(&[0x10, 0, 0x20, 0, 0, 30, 0, 0]);
    frame
}

criterion_group!(benches, functions);
criterion_main!(benches);
