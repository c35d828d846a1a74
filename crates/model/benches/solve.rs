//! Measures the time of a solution: 10,000 flows over 1,000 resources, five resources a flow. The resources are
//! shared by weights, by queues, or by both; in a fourth network, each round of the filling ends one flow only.

#![allow(missing_docs, reason = "criterion's macros generate public items")]

use criterion::{Criterion, criterion_group, criterion_main};
use inlane_model::{Flow, Network, Resource, Sharing};

#[path = "../src/solve/large.rs"]
mod large;

fn solve(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("10,000 flows over 1,000 resources");
    group.sample_size(10);
    let sharing: [(&str, fn(usize) -> Sharing); 3] = [
        ("weights", |_| Sharing::Scheduler),
        ("one queue in 50", |index| if index % 50 == 0 { Sharing::Fifo } else { Sharing::Requester }),
        ("queues", |_| Sharing::Fifo),
    ];
    for (name, sharing) in sharing {
        let network = large::network(10_000, 1_000, 7, sharing);
        println!("{name}: settled: {}", network.solve().unwrap().settled);
        group.bench_function(name, |bencher| bencher.iter(|| network.solve().unwrap()));
    }
    let rounds = large::rounds(10_000);
    group.bench_function("10,000 rounds", |bencher| bencher.iter(|| rounds.solve().unwrap()));
}

criterion_group!(benches, solve);
criterion_main!(benches);
