//! Connections on a busy machine: applications read and write late, timers run late and before received frames, and the network
//! delays, reorders and loses segments. Every byte arrives, and no connection stalls.
//!
//! A connection to itself receives the segments that it sends, so a segment that it ignores is missing in both
//! directions. This finds rules that work only because the peer follows another one.
//!
//! More seeds: `SEEDS=100000 cargo test --release -p inlane-tcp --test busy`.

mod network;

use inlane_tcp::*;
use network::*;
use std::cmp::Reverse;

/// The longest time without progress. Timeouts are at most 2 s, so this is several of them in a row.
const MOST_STALL: u64 = 60 * SECOND;

/// The window of a new connection, in bytes. It doubles with each window of data that the application has read.
const FIRST_WINDOW: u64 = 65_536;

/// A host whose application runs now and then.
struct Busy {
    host: Host,
    total: u64,
    /// The most bytes that the application writes and reads at once.
    chunks: [u64; 2],
    /// When the application writes and reads next, in nanoseconds.
    next: [u64; 2],
    /// The longest pause of the application, in nanoseconds.
    pause: u64,
    window: u64,
    grows_at: u64,
}

impl Busy {
    fn new(random: &mut Random, mut host: Host, total: u64) -> Self {
        let mut chunk = || [1 << 20, 65_536, 1000][random.below(3) as usize];
        let chunks = [chunk(), chunk()];
        let pause = [MILLISECOND / 10, 5 * MILLISECOND, 2 * SECOND][random.below(3) as usize];
        let window = FIRST_WINDOW.min(host.receive.0.len() as u64);
        host.connection.set_receive_capacity(window as u32);
        host.close = false;
        Self { host, total, chunks, next: [0; 2], pause, window, grows_at: window }
    }

    fn is_finished(&self) -> bool {
        self.host.consumed == self.total && self.host.connection.peer_closed()
    }

    /// Returns when the application can write and read, in nanoseconds; `u64::MAX` if it waits for the connection.
    fn runs_at(&self, now: u64) -> [u64; 2] {
        let connection = &self.host.connection;
        let open = matches!(connection.state(), State::Established | State::CloseWait);
        let has_room = self.host.written - connection.acknowledged() < self.host.send.0.len() as u64;
        let writes = open && if self.host.written < self.total { has_room } else { !self.host.close };
        let reads = connection.received() > self.host.consumed;
        [(writes, self.next[0]), (reads, self.next[1])]
            .map(|(can, at)| if can { at.max(now) } else { u64::MAX })
    }

    fn write(&mut self, random: &mut Random, now: u64) {
        self.host.close = self.host.written == self.total;
        self.host.to_write = (self.host.written + self.chunks[0]).min(self.total);
        self.host.read_limit = 0;
        self.host.run(now);
        self.next[0] = now + random.below(self.pause);
    }

    fn read(&mut self, random: &mut Random, now: u64) {
        self.host.to_write = self.host.written;
        self.host.read_limit = self.chunks[1];
        self.host.run(now);
        if self.host.consumed >= self.grows_at {
            self.window = (2 * self.window).min(self.host.receive.0.len() as u64);
            self.grows_at = self.host.consumed + self.window;
            self.host.connection.set_receive_capacity(self.window as u32);
        }
        self.next[1] = now + random.below(self.pause);
    }
}

/// Runs the only host, whose segments go to itself, or two hosts that are connected to each other.
fn run(name: &str, random: &mut Random, hosts: &mut [Busy], wire: &mut Wire, mut now: u64) {
    let stops = random.below(3) == 0;
    let mut progress_at = now;
    for _ in 0..3_000_000 {
        let most = hosts.len() - 1;
        for (n, busy) in hosts.iter_mut().enumerate() {
            drain(now, &mut busy.host, most - n, wire);
        }
        if hosts.iter().all(Busy::is_finished) {
            return;
        }
        let read: u64 = hosts.iter().map(|busy| busy.host.consumed).sum();
        let describe = || {
            format!(
                "{name}: {read} bytes at {} ms: {:#?}",
                now / MILLISECOND,
                hosts.iter().map(|busy| &busy.host.connection).collect::<Vec<_>>()
            )
        };
        let frame_at = wire.under_way.peek().map_or(u64::MAX, |Reverse(frame)| frame.at);
        let timer = |n: usize| hosts[n].host.connection.next_deadline().unwrap_or(u64::MAX);
        let runs = |n: usize| hosts[n].runs_at(now);
        let at = (0..=most).map(|n| runs(n)[0].min(runs(n)[1]).min(timer(n))).min().unwrap().min(frame_at);
        assert!(at < u64::MAX, "deadlock: {}", describe());
        assert!(now < progress_at + MOST_STALL, "stall: {}", describe());
        now = now.max(at);
        if stops && random.below(20) == 0 {
            now += random.below(400) * MILLISECOND; // the machine runs something else
        }
        let late = (0..=most).find(|&n| timer(n) <= now && random.below(2) == 0);
        if let Some(n) = late.or_else(|| (0..=most).find(|&n| timer(n) == at)) {
            hosts[n].host.connection.on_timer(now);
        } else if at == frame_at {
            let Reverse(frame) = wire.under_way.pop().unwrap();
            let segment = Segment::parse(&frame.bytes, Ecn::of(frame.marked)).unwrap();
            let host = &mut hosts[frame.to].host;
            host.events |= host.connection.on_segment(now, &segment, &mut host.receive);
        } else {
            for busy in &mut *hosts {
                let [writes, reads] = busy.runs_at(now);
                if writes == at {
                    busy.write(random, now);
                } else if reads == at {
                    busy.read(random, now);
                }
            }
        }
        if hosts.iter().map(|busy| busy.host.consumed).sum::<u64>() > read {
            progress_at = now;
        }
    }
    panic!("livelock: {name}");
}

fn draw_config(random: &mut Random) -> Config {
    Config {
        mss: [65_495, 1460][random.below(2) as usize],
        receive_capacity: [1 << 20, 1 << 14][random.below(2) as usize],
        timestamps: random.below(4) > 0,
        sack: random.below(4) > 0,
        window_scaling: random.below(4) > 0,
        quick_ack: MILLISECOND / 5,
        ack_gap: 10_000,
        max_rto: 2 * SECOND,
        retries: 40,
        ..Config::default()
    }
}

fn draw_link(random: &mut Random) -> Link {
    Link {
        delay: [1000, 100_000][random.below(2) as usize],
        loss: [0.0, 0.01, 0.1][random.below(3) as usize],
        reorder: [0.0, 0.0, 0.1][random.below(3) as usize],
        jitter: 3 * MILLISECOND,
        ..Link::default()
    }
}

fn seeds(default: u64) -> impl Iterator<Item = (u64, Random)> {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    (0..seeds).map(|seed| (seed, Random(Random(seed).next())))
}

#[test]
fn a_connection_to_itself_gets_every_byte() {
    for (seed, mut random) in seeds(80) {
        let (config, link) = (draw_config(&mut random), draw_link(&mut random));
        let start = InitialNumbers { sequence: random.next() as u32, timestamp_offset: random.next() as u32 };
        let connection = Connection::connect(0, &config, start).unwrap();
        let host = Host::new(connection, 1 << 20, config.receive_capacity as usize, seed, seed, 0);
        let name = format!("seed {seed}, {link:?}, {config:?}");
        let mut busy = Busy::new(&mut random, host, 1 << 20);
        run(&name, &mut random, std::slice::from_mut(&mut busy), &mut Wire::new(link, seed), 0);
    }
}

#[test]
fn two_connections_do_not_stall_while_both_send() {
    for (seed, mut random) in seeds(40) {
        let (configs, link) = ([draw_config(&mut random), draw_config(&mut random)], draw_link(&mut random));
        let name = format!("seed {seed}, {link:?}, {configs:?}");
        let Network { hosts, mut wire, now } = Network::opened(&configs, link, seed, [0; 2]);
        let mut busy = hosts.map(|host| Busy::new(&mut random, host, 1 << 20));
        run(&name, &mut random, &mut busy, &mut wire, now);
    }
}
