//! Measures the processor time of a solution: 10,000 flows over 1,000 resources, five resources a flow. The resources
//! are shared by weights, by queues, or by both. In a fourth network, each flow ends at a level of its own.

#![allow(missing_docs, reason = "a benchmark is a program")]

use inlane_model::{Flow, Network, Resource, Sharing};

#[path = "../src/solve/large.rs"]
mod large;

fn measure(name: &str, network: &Network) {
    let time = |_| {
        let began = large::processor_seconds();
        let solution = network.solve().unwrap();
        (large::processor_seconds() - began, solution.settled)
    };
    let mut times: Vec<(f64, bool)> = (0..9).map(time).collect();
    times.sort_by(|one, other| one.0.total_cmp(&other.0));
    let [least, median, most] = [0, 4, 8].map(|index| times[index].0 * 1e3);
    println!("{name:<18} {median:>8.1} ms ({least:.1} to {most:.1}), settled: {}", times[0].1);
}

fn main() {
    println!("10,000 flows over 1,000 resources; median (minimum to maximum) of 9");
    measure("weights", &large::network(10_000, 1_000, 7, |_| Sharing::Scheduler));
    let mixed = |index: usize| if index.is_multiple_of(50) { Sharing::Fifo } else { Sharing::Requester };
    measure("one queue in 50", &large::network(10_000, 1_000, 7, mixed));
    measure("queues", &large::network(10_000, 1_000, 7, |_| Sharing::Fifo));
    measure("10,000 levels", &large::rounds(10_000));
}
