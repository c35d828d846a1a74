//! Prints the goodput of one connection over a simulated 10 Gb/s link that loses segments in both directions.
//! Time is simulated, so the speed of the machine does not matter. Shows the median, minimum and maximum of
//! several seeds.

#![allow(missing_docs, reason = "a benchmark is a program")]

#[path = "../tests/network/mod.rs"]
mod network;

use inlane_tcp::{Config, MILLISECOND, SECOND};
use network::{Link, Network};

fn goodput(rtt: u64, loss: f64, burst: u32, window: u32, seed: u64) -> f64 {
    let link =
        Link { delay: rtt / 2, rate: 10_000_000_000, queue: 4_000_000, loss, burst, ..Link::default() };
    let config = Config { send_capacity: window, receive_capacity: window, ..Config::default() };
    let mut network = Network::connected(&[config.clone(), config], link, seed, [u64::MAX / 2, 0]);
    network.hosts[0].zeros = true;
    network.hosts[1].zeros = true;
    let (start, bytes) = (network.now, 100_000_000);
    while network.hosts[1].consumed < bytes && network.now - start < 20 * SECOND {
        assert!(network.step(), "deadlock");
    }
    network.hosts[1].consumed as f64 * 8.0 / (network.now - start) as f64
}

fn main() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    println!("goodput in Gb/s: median (min to max) of {seeds} seeds");
    println!("{:>6} {:>8} {:>8} {:>6}", "RTT ms", "window", "loss %", "burst");
    for (rtt, window) in [
        (MILLISECOND, 1 << 20),
        (MILLISECOND, 4 << 20),
        (20 * MILLISECOND, 1 << 20),
        (20 * MILLISECOND, 32 << 20),
    ] {
        for (loss, burst) in [(0.0, 1), (0.0001, 1), (0.001, 1), (0.01, 1), (0.0001, 8), (0.0001, 32)] {
            let mut results: Vec<f64> =
                (0..seeds).map(|seed| goodput(rtt, loss, burst, window, seed)).collect();
            results.sort_by(f64::total_cmp);
            let (median, least, most) = (results[results.len() / 2], results[0], results[results.len() - 1]);
            println!(
                "{:>6} {:>8} {:>8} {:>6} {median:>8.3} ({least:.3} to {most:.3})",
                rtt / MILLISECOND,
                window,
                loss * 100.0,
                burst
            );
        }
    }
}
