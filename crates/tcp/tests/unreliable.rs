//! Two connections over a model of an unreliable network: every byte arrives, nothing loops, and nothing
//! stalls.
//!
//! More seeds: `SEEDS=100000 cargo test --release -p inlane-tcp --test unreliable`.

mod network;

use inlane_tcp::*;
use network::*;

fn seeds(default: u64) -> u64 {
    std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn run(network: &mut Network, name: &str) {
    let mut steps = 0u64;
    while !network.finished() {
        steps += 1;
        let read = network.read();
        let stuck = !network.step() && network.read() == read;
        if stuck || steps > 3_000_000 {
            panic!(
                "{name}: {} at {} ms: {:#?}",
                if stuck { "deadlock" } else { "livelock" },
                network.now / MILLISECOND,
                network.hosts.each_ref().map(|host| (host.consumed, host.to_write, &host.connection))
            );
        }
    }
}

#[test]
fn a_perfect_network_carries_both_directions_without_retransmissions() {
    let config = [Config::default(), Config::default()];
    let mut network = Network::connected(&config, Link::default(), 1, [3_000_000, 2_000_000]);
    run(&mut network, "perfect");
    for host in &network.hosts {
        assert_eq!(host.connection.counters().retransmitted_bytes, 0);
    }
    assert!(network.now < 100 * MILLISECOND, "{} ms", network.now / MILLISECOND);
}

fn draw_config(random: &mut Random) -> Config {
    let mss = [88, 536, 1220, 1460, 8960][random.below(5) as usize];
    Config {
        send_capacity: 1 << (6 + random.below(13)),
        receive_capacity: (1 << (6 + random.below(13))) - random.below(30) as u32,
        mss,
        base_mss: mss.min(1160),
        gso_bytes: [0, 3000, 65_000][random.below(3) as usize],
        timestamps: random.below(4) > 0,
        sack: random.below(4) > 0,
        window_scaling: random.below(4) > 0,
        ecn: [EcnMode::Off, EcnMode::Accept, EcnMode::Request][random.below(3) as usize],
        no_delay: random.below(2) == 0,
        delayed_ack: random.below(100) * MILLISECOND,
        quick_ack: random.below(3) * MILLISECOND / 5,
        retries: 40,
        max_rto: 2 * SECOND,
        ..Config::default()
    }
}

fn draw_link(random: &mut Random) -> Link {
    let mut rate = |p: &[f64]| p[random.below(p.len() as u64) as usize];
    let (loss, duplicate) = (rate(&[0.0, 0.001, 0.01, 0.05, 0.2]), rate(&[0.0, 0.01, 0.2]));
    let (corrupt, reorder) = (rate(&[0.0, 0.001, 0.05]), rate(&[0.0, 0.01, 0.5]));
    Link {
        delay: [1_000, 100_000, 10 * MILLISECOND, 100 * MILLISECOND][random.below(4) as usize],
        rate: [0, 0, 10_000_000, 10_000_000_000][random.below(4) as usize],
        queue: [20_000, 200_000, u64::MAX][random.below(3) as usize],
        mark: [10_000, u64::MAX][random.below(2) as usize],
        loss,
        burst: [1, 1, 8, 32][random.below(4) as usize],
        duplicate,
        corrupt,
        reorder,
        jitter: [10_000, 5 * MILLISECOND, 300 * MILLISECOND][random.below(3) as usize],
        black_hole: 0,
    }
}

#[test]
fn every_byte_is_right_whatever_the_network_does() {
    for seed in 0..seeds(250) {
        let mut random = Random(seed.wrapping_mul(0x1234_5678_9abc_def1));
        let config = [draw_config(&mut random), draw_config(&mut random)];
        let link = draw_link(&mut random);
        let most = [1 << random.below(18), 1 << random.below(18)];
        let bytes = most.map(|most| random.below(most));
        let name = format!("seed {seed}, {link:?}, {bytes:?}, {config:?}");
        let mut network = Network::connected(&config, link, seed, bytes);
        for host in &mut network.hosts {
            host.read_limit = [u64::MAX, u64::MAX, 1, 1000][random.below(4) as usize];
        }
        run(&mut network, &name);
    }
}

#[test]
fn no_stall_is_longer_than_a_retransmission_timeout() {
    for seed in 0..seeds(30) {
        let mut random = Random(seed ^ 0xfeed);
        let link = Link {
            delay: [500_000, 10 * MILLISECOND][random.below(2) as usize],
            rate: 1_000_000_000,
            loss: [0.0001, 0.001, 0.01][random.below(3) as usize],
            burst: [1, 8, 32][random.below(3) as usize],
            ..Link::default()
        };
        let name = format!("seed {seed}, {link:?}");
        let mut network =
            Network::connected(&[Config::default(), Config::default()], link.clone(), seed, [3_000_000, 0]);
        run(&mut network, &name);
        // The model is deterministic, so these bounds do not depend on the machine. A loss is repaired within
        // the sum of a timeout (200 ms), a delayed acknowledgment (40 ms) and a round trip (20 ms). If a
        // burst of losses hits the retransmission, too, the doubled timeout applies.
        let bound = if link.burst == 1 { 300 } else { 700 };
        let gap = network.hosts[1].longest_gap / MILLISECOND;
        assert!(gap < bound, "{name}: a stall of {gap} ms, {:?}", network.hosts[0].connection.counters());
    }
}

#[test]
fn rfc8899_a_black_hole_is_found_and_the_transfer_completes() {
    for seed in 0..10 {
        let link = Link { black_hole: 1300, loss: 0.001, ..Link::default() };
        let mut network =
            Network::connected(&[Config::default(), Config::default()], link, seed, [500_000, 300_000]);
        run(&mut network, "black hole");
        assert!(network.hosts.iter().all(|host| host.connection.counters().black_holes == 1));
        assert!(network.now < 10 * SECOND, "{} ms", network.now / MILLISECOND);
    }
}
