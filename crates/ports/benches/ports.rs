//! Measures the rates of the generator and the checker, each on one core.

use inlane_core::clock::{Clock, thread_cpu_ns};
use inlane_core::{HeapPool, Packet, Pool, Port};
use inlane_ports::check::{Checker, reference};
use inlane_ports::generate::Generator;
use std::sync::Arc;

const BURST: usize = 32;
const BATCH: usize = 1024;

fn main() {
    println!("{:34} {:>10} {:>10}", "traffic", "gen Mpps", "check Mpps");
    for text in [
        "gen:64",
        "gen:64,flows=1",
        "gen:64,flows=65536",
        "gen:128,v4,v6,udp,tcp",
        "gen:imix",
        "gen:1024",
        "gen:1514",
        "gen:9000",
    ] {
        let (generated, checked) = measure(text);
        println!("{text:34} {generated:10.1} {checked:10.1}");
    }
}

/// Generates and checks batches for one second of CPU time. Returns the rates of generator and checker in
/// Mpps.
fn measure(text: &str) -> (f64, f64) {
    let clock = Clock::new();
    let mut generator = Generator::open(text, &clock).expect("the specification is valid");
    let reference = reference::find("io").expect("io has a reference");
    let mut checker =
        Checker::open("check", &clock, Some(&generator), reference, 0).expect("the generator is known");
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(BATCH, 9216).expect("memory is available"));
    generator.configure(std::slice::from_ref(&pool), 0).expect("one queue");
    checker.configure(&[], 1).expect("one queue");
    let mut rx = generator.take_rx(0).expect("queue 0");
    let mut tx = checker.take_tx(0, pool.clone()).expect("queue 0");
    let mut packets = [Packet::EMPTY; BATCH];
    let (mut generating, mut checking) = (0, 0);
    let mut count = 0usize;
    while generating + checking < 1_000_000_000 {
        let start = thread_cpu_ns();
        for burst in packets.chunks_mut(BURST) {
            count += rx.receive(burst).expect("a generator never fails");
        }
        let middle = thread_cpu_ns();
        for burst in packets.chunks(BURST) {
            // SAFETY: the packets are from this queue's pool. A checker accepts all of them, so none is used
            // again here.
            unsafe { tx.send(burst) }.expect("a checker never fails");
        }
        generating += middle - start;
        checking += thread_cpu_ns() - middle;
    }
    drop(tx);
    let verification = checker.verification().expect("a checker verifies");
    assert!(verification.passed(), "{text}: {verification:?}");
    let rate = |time_ns: u64| count as f64 * 1e3 / time_ns as f64;
    (rate(generating), rate(checking))
}
