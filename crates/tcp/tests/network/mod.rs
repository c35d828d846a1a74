//! A model of a network with two hosts and virtual time: a link with a rate, a delay, a queue, and faults.
//! Segments have real checksums, so corruption is detected.

#![allow(dead_code)]

use inlane_tcp::*;
use inlane_wire::checksum::Sum;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A small generator of random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= p
    }
}

/// The properties of a link, the same in both directions.
#[derive(Clone, Debug)]
pub struct Link {
    /// One-way delay in nanoseconds.
    pub delay: u64,
    /// Bits per second; 0 for no limit.
    pub rate: u64,
    /// The most bytes that may wait for the link. Frames beyond this limit are dropped.
    pub queue: u64,
    /// ECN-capable segments are marked while more than this number of bytes waits for the link.
    pub mark: u64,
    /// The probability that a segment is lost.
    pub loss: f64,
    /// The number of segments that one loss drops: the lost segment and up to `burst` - 1 further segments.
    /// These are the next segments in the same direction within 5 ms.
    pub burst: u32,
    pub duplicate: f64,
    pub corrupt: f64,
    /// The probability that a segment is delayed further, so that later segments can overtake it.
    pub reorder: f64,
    /// The greatest delay that reordering adds, in nanoseconds.
    pub jitter: u64,
    /// The longest segment that passes, in bytes with its TCP header; 0 for no limit. Longer segments are
    /// dropped without an ICMP message.
    pub black_hole: usize,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: 500_000,
            rate: 0,
            queue: u64::MAX,
            mark: u64::MAX,
            loss: 0.0,
            burst: 1,
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            jitter: 0,
            black_hole: 0,
        }
    }
}

/// A ring of memory.
#[derive(Clone, Debug)]
pub struct Ring(pub Vec<u8>);

impl Ring {
    pub fn new(capacity: usize) -> Self {
        Self(vec![0; capacity])
    }

    pub fn read(&self, index: u64, bytes: &mut [u8]) {
        let at = (index % self.0.len() as u64) as usize;
        let first = bytes.len().min(self.0.len() - at);
        bytes[..first].copy_from_slice(&self.0[at..at + first]);
        let rest = bytes.len() - first;
        bytes[first..].copy_from_slice(&self.0[..rest]);
    }
}

impl ReceiveBuffer for Ring {
    fn write(&mut self, index: u64, bytes: &[u8]) {
        let at = (index % self.0.len() as u64) as usize;
        let first = bytes.len().min(self.0.len() - at);
        self.0[at..at + first].copy_from_slice(&bytes[..first]);
        let rest = bytes.len() - first;
        self.0[..rest].copy_from_slice(&bytes[first..]);
    }
}

pub fn encode(header: &inlane_tcp::Header, payload: std::ops::Range<u64>, ring: &Ring) -> Vec<u8> {
    let len = (payload.end - payload.start) as usize;
    let mut bytes = vec![0; header.wire_len() + len];
    let at = header.write(1, 2, &mut bytes).unwrap();
    ring.read(payload.start, &mut bytes[at..]);
    let mut segment = inlane_wire::tcp::Segment::new(&mut bytes[..]).unwrap();
    segment.fill_checksum(Sum::new());
    bytes
}

/// A frame that the network carries. `at` is the time of its arrival, and `to` the receiving host. `order`
/// orders frames with equal times.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame {
    pub at: u64,
    order: u64,
    pub to: usize,
    pub bytes: Vec<u8>,
    pub marked: u8,
}

/// A link in use: its properties, and the frames under way in both directions.
pub struct Wire {
    pub link: Link,
    pub random: Random,
    pub under_way: BinaryHeap<Reverse<Frame>>,
    order: u64,
    free_at: [u64; 2],
    burst_left: [u32; 2],
    burst_end: [u64; 2],
    pub sent: u64,
    pub dropped: u64,
}

impl Wire {
    pub fn new(link: Link, seed: u64) -> Self {
        let under_way = BinaryHeap::new();
        Self {
            link,
            random: Random(seed),
            under_way,
            order: 0,
            free_at: [0; 2],
            burst_left: [0; 2],
            burst_end: [0; 2],
            sent: 0,
            dropped: 0,
        }
    }

    pub fn send(&mut self, now: u64, to: usize, mut bytes: Vec<u8>, mut ecn: Ecn) {
        self.sent += 1;
        let link = self.link.clone();
        let len = bytes.len() as u64 + 58; // Ethernet with preamble and gap, IPv4
        let start = self.free_at[to].max(now);
        if link.rate > 0 {
            let waiting = (start - now) * link.rate / 8_000_000_000;
            if waiting + len > link.queue {
                self.dropped += 1;
                return;
            }
            if waiting > link.mark && ecn != Ecn::NotEct {
                ecn = Ecn::Ce;
            }
            self.free_at[to] = start + len * 8_000_000_000 / link.rate;
        }
        if self.burst_left[to] > 0 && now <= self.burst_end[to] {
            self.burst_left[to] -= 1;
            self.dropped += 1;
            return;
        }
        if self.random.chance(link.loss) {
            self.burst_left[to] = link.burst - 1;
            self.burst_end[to] = now + 5 * MILLISECOND;
            self.dropped += 1;
            return;
        }
        if link.black_hole > 0 && bytes.len() > link.black_hole {
            self.dropped += 1;
            return;
        }
        let mut at = if link.rate > 0 { self.free_at[to] } else { now } + link.delay;
        if self.random.chance(link.reorder) {
            at += self.random.below(link.jitter);
        }
        if self.random.chance(link.duplicate) {
            let again = at + self.random.below(link.jitter.max(1000));
            self.push(again, to, bytes.clone(), ecn);
        }
        if self.random.chance(link.corrupt) {
            let bit = self.random.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        self.push(at, to, bytes, ecn);
    }

    fn push(&mut self, at: u64, to: usize, bytes: Vec<u8>, ecn: Ecn) {
        self.order += 1;
        self.under_way.push(Reverse(Frame { at, order: self.order, to, bytes, marked: ecn as u8 }));
    }
}

/// A host with one connection and an application. The application sends a known stream and checks the
/// received one.
pub struct Host {
    pub connection: Connection,
    pub send: Ring,
    pub receive: Ring,
    pub written: u64,
    pub to_write: u64,
    pub consumed: u64,
    pub seed: u64,
    pub peer_seed: u64,
    pub events: Events,
    /// The most bytes that the application reads at once. If 0, the application reads nothing.
    pub read_limit: u64,
    /// True if the stream is all zeros and is not checked, for measurements.
    pub zeros: bool,
    /// True if the application closes the connection when everything is written.
    pub close: bool,
    /// The time at which the application last read data, in nanoseconds.
    pub last_read: u64,
    /// The longest time between two reads of data, in nanoseconds.
    pub longest_gap: u64,
}

pub fn byte(seed: u64, index: u64) -> u8 {
    let word = Random(seed ^ (index / 8)).next();
    (word >> (index % 8 * 8)) as u8
}

impl Host {
    pub fn new(
        connection: Connection,
        send: usize,
        receive: usize,
        seed: u64,
        peer_seed: u64,
        to_write: u64,
    ) -> Self {
        Self {
            connection,
            send: Ring::new(send),
            receive: Ring::new(receive),
            written: 0,
            to_write,
            consumed: 0,
            seed,
            peer_seed,
            events: Events::NONE,
            read_limit: u64::MAX,
            zeros: false,
            close: true,
            last_read: u64::MAX,
            longest_gap: 0,
        }
    }

    pub fn run(&mut self, now: u64) {
        let room = self.connection.acknowledged() + self.send.0.len() as u64 - self.written;
        let len = room.min(self.to_write - self.written);
        if len > 0 {
            let bytes: Vec<u8> =
                (self.written..self.written + len).map(|index| byte(self.seed, index)).collect();
            self.send.write(self.written, &bytes);
            self.written += len;
            self.connection.set_written(self.written).unwrap();
        }
        if self.written == self.to_write && self.close {
            self.connection.shutdown_write();
        }
        let end = self.connection.received().min(self.consumed.saturating_add(self.read_limit));
        if end > self.consumed {
            let mut bytes = vec![0; if self.zeros { 0 } else { (end - self.consumed) as usize }];
            self.receive.read(self.consumed, &mut bytes);
            for (index, &found) in (self.consumed..).zip(&bytes) {
                assert_eq!(found, byte(self.peer_seed, index), "byte {index} is wrong");
            }
            self.consumed = end;
            self.connection.set_consumed(end).unwrap();
            self.longest_gap = self.longest_gap.max(now.saturating_sub(self.last_read));
            self.last_read = now;
        }
    }
}

pub fn drain(now: u64, host: &mut Host, to: usize, wire: &mut Wire) {
    let mut count = 0;
    while let Some(transmit) = host.connection.poll_transmit(now) {
        send(now, &transmit, &host.send, to, wire);
        count += 1;
        assert!(count < 100_000, "poll_transmit does not end");
    }
}

pub fn send(now: u64, transmit: &Transmit, ring: &Ring, to: usize, wire: &mut Wire) {
    for (header, payload) in transmit.segments() {
        wire.send(now, to, encode(&header, payload, ring), transmit.ecn);
    }
}

pub struct Network {
    pub hosts: [Host; 2],
    pub wire: Wire,
    pub now: u64,
}

impl Network {
    /// Creates two connected hosts, and lets their applications run. Host 0 writes `bytes[0]`, host 1 `bytes[1]`.
    pub fn connected(config: &[Config; 2], link: Link, seed: u64, bytes: [u64; 2]) -> Self {
        let mut network = Self::opened(config, link, seed, bytes);
        network.start();
        network
    }

    /// Creates two connected hosts. The handshake runs through a listener and without faults. The applications have not
    /// run yet.
    pub fn opened(config: &[Config; 2], link: Link, seed: u64, bytes: [u64; 2]) -> Self {
        let secrets = Secrets::new([seed as u8; 16]);
        let mut random = Random(seed);
        let flow =
            Flow { local: ([10, 0, 0, 1], random.next() as u16).into(), remote: ([10, 0, 0, 2], 80).into() };
        let reverse = Flow { local: flow.remote, remote: flow.local };
        // In half of the cases, begin with sequence numbers and timestamps that wrap soon.
        let start = if random.below(2) == 0 {
            secrets.start(0, &flow)
        } else {
            InitialNumbers {
                sequence: 0u32.wrapping_sub(random.below(100_000) as u32),
                timestamp_offset: 0u32.wrapping_sub(50),
            }
        };
        let mut a = Connection::connect(0, &config[0], start).unwrap();
        let mut listener = Listener::new(&config[1], Secrets::new([9; 16]), 4).unwrap();
        let received = |header| Segment { header, payload: &[], ecn: Ecn::NotEct };
        let syn = a.poll_transmit(0).unwrap().header;
        let Verdict::Reply(syn_ack) = listener.on_segment(link.delay, &reverse, &received(syn), None) else {
            panic!()
        };
        let mut ring = Ring::new(1);
        assert!(a.on_segment(2 * link.delay, &received(syn_ack), &mut ring).contains(Events::CONNECTED));
        let ack = a.poll_transmit(2 * link.delay).unwrap().header;
        let now = 3 * link.delay;
        let Verdict::Established(handshake) = listener.on_segment(now, &reverse, &received(ack), None) else {
            panic!()
        };
        let b = Connection::accept(now, &config[1], &handshake).unwrap();
        let host = |connection, n: usize| {
            let config: &Config = &config[n];
            let (send, receive) = (config.send_capacity as usize, config.receive_capacity as usize);
            Host::new(connection, send, receive, seed + n as u64, seed + 1 - n as u64, bytes[n])
        };
        Network { hosts: [host(a, 0), host(b, 1)], wire: Wire::new(link, seed), now }
    }

    pub fn read(&self) -> u64 {
        self.hosts.iter().map(|host| host.consumed).sum()
    }

    pub fn finished(&self) -> bool {
        (0..2).all(|n| {
            self.hosts[n].consumed == self.hosts[1 - n].to_write && self.hosts[n].connection.peer_closed()
        })
    }

    /// Lets the applications run and the hosts send. Call it once before `step`.
    pub fn start(&mut self) {
        for n in 0..2 {
            self.service(n);
        }
    }

    pub fn service(&mut self, n: usize) {
        self.hosts[n].run(self.now);
        drain(self.now, &mut self.hosts[n], 1 - n, &mut self.wire);
    }

    /// Advances to the next event and processes it. Returns false if there is none.
    pub fn step(&mut self) -> bool {
        let frame = self.wire.under_way.peek().map(|Reverse(frame)| frame.at);
        let timer = (0..2).filter_map(|n| self.hosts[n].connection.next_deadline().map(|at| (at, n))).min();
        match (frame, timer) {
            (None, None) => {
                self.start(); // an application may still have something to read
                return false;
            }
            (Some(at), timer) if timer.is_none_or(|(deadline, _)| at <= deadline) => {
                let Reverse(frame) = self.wire.under_way.pop().unwrap();
                self.now = self.now.max(at);
                self.deliver(&frame);
            }
            (_, Some((deadline, n))) => {
                assert!(deadline < u64::MAX);
                self.now = self.now.max(deadline);
                let host = &mut self.hosts[n];
                host.events |= host.connection.on_timer(self.now);
                let next = host.connection.next_deadline();
                self.service(n);
                let _ = next;
            }
            (Some(_), None) => unreachable!(),
        }
        true
    }

    fn deliver(&mut self, frame: &Frame) {
        let host = &mut self.hosts[frame.to];
        let Ok(view) = inlane_wire::tcp::Segment::new(&frame.bytes) else { return };
        if !view.checksum_ok(Sum::new()) {
            return;
        }
        let segment = Segment::parse(&frame.bytes, Ecn::of(frame.marked)).unwrap();
        host.events |= host.connection.on_segment(self.now, &segment, &mut host.receive);
        self.service(frame.to);
    }
}
