//! Compares the state machine with Linux's TCP. Each test draws application calls and network faults from a
//! seed. It applies them to three pairs of ends: Linux with Linux, Linux with inlane, and inlane with Linux.
//! Needs root.
//!
//! More seeds: `SEEDS=5000 cargo test --release -p inlane-tcp --test reference -- --nocapture`.

#[path = "reference/end.rs"]
mod end;
mod network;
mod tun;

use end::{App, End, Ending, Inlane, Linux, Plan};
use inlane_tcp::*;
use network::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};
use tun::{KERNEL, OURS, device};

/// The number of seeds that one network namespace runs at the same time.
const BATCH: u64 = 40;
/// The longest time that a batch may take. Only a hang takes so long.
const LIMIT: u64 = 240 * SECOND;
const CLIENT_PORTS: u16 = 20_000;
const SERVER_PORTS: u16 = 10_000;

/// The pairs of TCP stacks. Each has a name and two values, for the client and the server: true for inlane's
/// stack, false for Linux's.
const PAIRS: [(&str, [bool; 2]); 3] = [
    ("Linux with Linux", [false, false]),
    ("Linux with inlane", [false, true]),
    ("inlane with Linux", [true, false]),
];

/// What a network does with packets. Times are in nanoseconds.
#[derive(Clone, Debug)]
struct Faults {
    delay: u64,
    jitter: u64,
    loss: f64,
    duplicate: f64,
    corrupt: f64,
    reorder: f64,
}

/// What a seed determines: the faults, and what the applications of client and server do.
#[derive(Clone, Debug)]
struct Case {
    faults: Faults,
    plans: [Plan; 2],
    expected: [(u64, Ending); 2],
    buffer: usize,
    config: Config,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x1234_5678_9abc_def1));
        let random = &mut random;
        let pick = |random: &mut Random, list: &[f64]| list[random.below(list.len() as u64) as usize];
        let faults = Faults {
            delay: [50_000, 500_000, 5 * MILLISECOND][random.below(3) as usize],
            jitter: [100_000, 3 * MILLISECOND, 20 * MILLISECOND][random.below(3) as usize],
            loss: pick(random, &[0.0, 0.01, 0.05]),
            duplicate: pick(random, &[0.0, 0.01, 0.1]),
            corrupt: pick(random, &[0.0, 0.01]),
            reorder: pick(random, &[0.0, 0.02, 0.3]),
        };
        let most = 1 << random.below(18);
        let lens = [1 + random.below(most), 1 + random.below(most)];
        let mut plan = |write| Plan {
            write,
            write_after: 0,
            read: u64::MAX,
            half_close: true,
            abort: false,
            chunk: 1 + random.below(20_000) as usize,
            pause_at: random.below(2 * most),
            pause: random.below(60) * MILLISECOND,
            no_delay: random.below(2) == 0,
        };
        let mut plans = [plan(lens[0]), plan(lens[1])];
        let mut expected = [(lens[1], Ending::Eof), (lens[0], Ending::Eof)];
        match random.below(4) {
            // Leave both plans unchanged: client and server send at the same time.
            0 => {}
            // The server answers after it has received everything.
            1 => plans[1].write_after = lens[0],
            // The client aborts after it has received the whole answer.
            2 => {
                plans[1].write_after = lens[0];
                (plans[0].half_close, plans[1].half_close) = (false, false);
                (plans[0].read, plans[0].abort) = (lens[1], true);
                expected = [(lens[1], Ending::Left), (lens[0], Ending::Reset)];
            }
            // The server closes before it has read all data, so the client must receive a reset.
            _ => {
                (plans[0].half_close, plans[1].half_close) = (false, false);
                plans[0].write += 1;
                (plans[1].write, plans[1].read) = (0, lens[0]);
                expected = [(0, Ending::Reset), (lens[0], Ending::Left)];
            }
        }
        let buffer = 1 << (12 + random.below(6));
        let config = Config {
            send_capacity: buffer as u32,
            receive_capacity: buffer as u32,
            gso_bytes: [0, 20_000][random.below(2) as usize],
            timestamps: random.below(4) > 0,
            sack: random.below(4) > 0,
            window_scaling: random.below(4) > 0,
            ecn: [EcnMode::Off, EcnMode::Accept, EcnMode::Request][random.below(3) as usize],
            ..Config::default()
        };
        Self { faults, plans, expected, buffer, config }
    }
}

/// A packet on its way: arrival time, a number that orders equal times, flow, receiving end, and bytes.
type Packet = (u64, u64, usize, usize, Vec<u8>);

/// One connection between two ends, and the random number generators of the faults in its two directions.
struct Flow {
    seed: u64,
    pair: usize,
    case: Case,
    ends: [End; 2],
    apps: [App; 2],
    random: [Random; 2],
    finished_at: Option<u64>,
}

impl Flow {
    fn new(seed: u64, pair: usize, number: u16) -> Self {
        let case = Case::new(seed);
        let ports = [CLIENT_PORTS + number, SERVER_PORTS + number];
        // The server first, because it must listen when the client connects.
        let [server, client] = [1, 0].map(|n| {
            let (own, other) = (ports[n], ports[1 - n]);
            if PAIRS[pair].1[n] {
                End::Inlane(Inlane::new(&case.config, &case.plans[n], n == 0, (own, other)).into())
            } else {
                End::Linux(Linux::new(case.buffer, &case.plans[n], n == 0, (own, other)))
            }
        });
        let app = |n: u64| App::new(case.plans[n as usize].clone(), 2 * seed + n, 2 * seed + 1 - n);
        let random = [Random(seed ^ 0x5555), Random(seed ^ 0xaaaa)];
        Self { seed, pair, apps: [app(0), app(1)], case, ends: [client, server], random, finished_at: None }
    }

    fn name(&self) -> String {
        format!("seed {}, {}, {:?}", self.seed, PAIRS[self.pair].0, self.case)
    }
}

struct Lab {
    tun: File,
    flows: Vec<Flow>,
    packets: BinaryHeap<Reverse<Packet>>,
    order: u64,
    start: Instant,
}

impl Lab {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Sends a packet to end `to` of a flow, with the faults of the test case. For one seed, packet n of a
    /// direction has the same faults in all [`PAIRS`]. Resets are never dropped, because neither end would
    /// send a reset again.
    fn send(&mut self, index: usize, to: usize, mut bytes: Vec<u8>) {
        let now = self.now();
        let flow = &mut self.flows[index];
        let (faults, random) = (&flow.case.faults, &mut flow.random[to]);
        let (lost, doubled) = (random.chance(faults.loss), random.chance(faults.duplicate));
        let (corrupt, late) = (random.chance(faults.corrupt), random.chance(faults.reorder));
        let (jitter, bit) = (random.below(faults.jitter), random.next());
        let reset = bytes.get(33).is_some_and(|flags| flags & inlane_wire::tcp::RST != 0);
        let at = now + faults.delay + if late && !reset { jitter } else { 0 };
        if lost && !reset {
            return;
        }
        if doubled {
            self.order += 1;
            self.packets.push(Reverse((at + jitter, self.order, index, to, bytes.clone())));
        }
        if corrupt && !reset {
            let bit = bit as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        self.order += 1;
        self.packets.push(Reverse((at, self.order, index, to, bytes)));
    }

    /// Takes the packets that Linux has sent. Returns true if there was one.
    fn take_from_linux(&mut self) -> bool {
        let (mut bytes, mut any) = ([0; 2048], false);
        while let Ok(len) = self.tun.read(&mut bytes) {
            let packet = &bytes[..len];
            // Skip IPv6's neighbour discovery.
            if len < 40 || packet[0] != 0x45 {
                continue;
            }
            let port = u16::from_be_bytes([packet[22], packet[23]]);
            let (number, to) =
                if port >= CLIENT_PORTS { (port - CLIENT_PORTS, 0) } else { (port - SERVER_PORTS, 1) };
            self.send(usize::from(number), to, packet.to_vec());
            any = true;
        }
        any
    }

    /// Delivers the packets that are due. Returns true if there was one.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        while self.packets.peek().is_some_and(|Reverse(packet)| packet.0 <= self.now()) {
            let Reverse((_, _, index, to, mut bytes)) = self.packets.pop().expect("just seen");
            let now = self.now();
            any = true;
            match &mut self.flows[index].ends[to] {
                End::Inlane(end) => end.receive(now, &bytes),
                End::Linux(_) => {
                    // If both ends are Linux, packets have source KERNEL and destination OURS. No host has
                    // the address OURS. Swap the two addresses, so that the packet goes from OURS to KERNEL.
                    // This changes no checksum.
                    if bytes[12..16] == KERNEL {
                        bytes[12..16].copy_from_slice(&OURS);
                        bytes[16..20].copy_from_slice(&KERNEL);
                    }
                    let _ = self.tun.write(&bytes); // Linux refuses some corrupt headers
                }
            }
        }
        any
    }

    fn run(&mut self) {
        while self.flows.iter().any(|flow| flow.finished_at.is_none()) {
            let mut busy = self.take_from_linux() | self.deliver();
            for index in 0..self.flows.len() {
                let now = self.now();
                let flow = &mut self.flows[index];
                if now > LIMIT {
                    assert!(flow.finished_at.is_some(), "hangs: {}: {:?}", flow.name(), flow.apps);
                }
                for to in 0..2 {
                    let flow = &mut self.flows[index];
                    busy |= flow.apps[1 - to].step(now, &mut flow.ends[1 - to]);
                    if let End::Inlane(end) = &mut flow.ends[1 - to] {
                        for frame in end.transmit(now) {
                            self.send(index, to, frame);
                        }
                    }
                }
                let flow = &mut self.flows[index];
                if flow.finished_at.is_none() && (0..2).all(|n| flow.apps[n].finished(&flow.ends[n])) {
                    flow.finished_at = Some(now);
                }
            }
            if !busy {
                thread::sleep(Duration::from_micros(300));
            }
        }
    }
}

/// For each of [`PAIRS`], a value for each flow: the flow's longest time without progress and the flow's
/// duration, in milliseconds.
type Times = [Vec<(u64, u64)>; 3];

/// Runs each of the seeds with all three of [`PAIRS`], in a new network namespace. Checks the outcome of
/// every flow. Returns the times of each pair.
fn batch(seeds: std::ops::Range<u64>) -> Result<Times, String> {
    let tun = device()?;
    // Vary Linux's settings from batch to batch. Ignore errors, because the namespace may not allow the
    // change, and Linux then uses its defaults.
    let shape = seeds.start / BATCH;
    for (name, value) in
        [("tcp_sack", (shape % 2) ^ 1), ("tcp_timestamps", (shape / 2 % 2) ^ 1), ("tcp_ecn", 2 - shape % 2)]
    {
        let _ = std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value.to_string());
    }
    let flows = seeds.clone().flat_map(|seed| (0..3).map(move |pair| (seed, pair)));
    let flows = flows.enumerate().map(|(n, (seed, pair))| Flow::new(seed, pair, n as u16)).collect();
    let mut lab = Lab { tun, flows, packets: BinaryHeap::new(), order: 0, start: Instant::now() };
    lab.run();
    let mut times = Times::default();
    for flow in &lab.flows {
        let outcome = flow.apps.each_ref().map(|app| (app.received, app.ending.expect("finished")));
        assert_eq!(outcome, flow.case.expected, "{}", flow.name());
        let stall = flow.apps.iter().map(|app| app.longest_stall).max().unwrap_or(0);
        times[flow.pair].push((stall / MILLISECOND, flow.finished_at.unwrap_or(0) / MILLISECOND));
    }
    Ok(times)
}

#[test]
fn outcomes_are_the_same_as_linux_has() {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(BATCH);
    let mut times = Times::default();
    for start in (0..seeds).step_by(BATCH as usize) {
        // A thread cannot leave its network namespace again, so each batch gets its own thread.
        let run = move || batch(start..(start + BATCH).min(seeds));
        match thread::spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(more) => times.iter_mut().zip(more).for_each(|(all, more)| all.extend(more)),
            Err(why) => {
                eprintln!("SKIPPED outcomes_are_the_same_as_linux_has: {why}; run as root");
                return;
            }
        }
    }
    for ((name, _), all) in PAIRS.iter().zip(times) {
        let of = |select: fn(&(u64, u64)) -> u64, share: f64| {
            let mut values: Vec<u64> = all.iter().map(select).collect();
            values.sort_unstable();
            values[((values.len() - 1) as f64 * share) as usize]
        };
        println!(
            "{name}: {} seeds; longest time without progress, ms: median {}, 99 % {}, most {}; duration, ms: \
             median {}, 99 % {}, most {}",
            all.len(),
            of(|one| one.0, 0.5),
            of(|one| one.0, 0.99),
            of(|one| one.0, 1.0),
            of(|one| one.1, 0.5),
            of(|one| one.1, 0.99),
            of(|one| one.1, 1.0),
        );
    }
}
