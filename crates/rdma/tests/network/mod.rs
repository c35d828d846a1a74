//! Two hosts with a connection each over the model of an unreliable link that TCP's tests use. Packets are
//! complete IPv4 packets with an ICRC, so corruption is detected.

#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../tcp/tests/network/mod.rs"]
mod tcp;

use inlane_rdma::*;
use inlane_wire::{ipv4, roce, udp};
use std::cmp::Reverse;
pub use tcp::{Link, Network as TcpNetwork, Random, Wire, byte};

/// Bytes of the headers before the BTH.
const BEFORE: usize = ipv4::HEADER + udp::HEADER;

/// The memory of a receiver.
pub struct Buffers {
    pub ring: Vec<u8>,
    /// The part of the stream that may be in the ring: from the consumed index, the ring's capacity.
    pub consumed: u64,
}

impl Memory for Buffers {
    fn write_ring(&mut self, index: u64, bytes: &[u8]) {
        let end = index + bytes.len() as u64;
        assert!(index >= self.consumed && end <= self.consumed + self.ring.len() as u64, "outside the ring");
        let capacity = self.ring.len();
        for (at, byte) in bytes.iter().enumerate() {
            self.ring[(index as usize + at) % capacity] = *byte;
        }
    }
}

/// What the application of a host does.
#[derive(Clone, Debug)]
pub struct Application {
    pub to_write: u64,
    /// The most bytes that are read at once.
    pub read_limit: u64,
}

pub struct Host {
    pub connection: Connection,
    pub buffers: Buffers,
    pub application: Application,
    pub config: Config,
    pub written: u64,
    pub consumed: u64,
    pub longest_gap: u64,
    last_read: u64,
    seed: u64,
    peer_seed: u64,
}

impl Host {
    fn check(&mut self, now: u64, end: u64) {
        let ring = &self.buffers.ring;
        for index in self.consumed..end {
            assert_eq!(ring[index as usize % ring.len()], byte(self.peer_seed, index), "byte {index}");
        }
        if end > self.consumed {
            if self.consumed > 0 {
                self.longest_gap = self.longest_gap.max(now - self.last_read);
            }
            self.last_read = now;
        }
        self.consumed = end;
        self.buffers.consumed = end;
    }

    fn run(&mut self, now: u64) {
        let room = self.connection.acknowledged() + self.config.send_capacity as u64 - self.written;
        self.written += room.min(self.application.to_write - self.written);
        self.connection.set_written(now, self.written).unwrap();
        if self.written == self.application.to_write {
            self.connection.shutdown_write();
        }
        let end = self.connection.received().min(self.consumed.saturating_add(self.application.read_limit));
        self.check(now, end);
        self.connection.set_consumed(end).unwrap();
    }
}

pub struct Network {
    pub hosts: [Host; 2],
    pub wire: Wire,
    pub now: u64,
    pub refused_icrc: u64,
}

fn frame(headers: &[u8], transmit: &Transmit, seed: u64) -> Vec<u8> {
    let mut packet = vec![0; BEFORE];
    packet.extend_from_slice(&headers[..transmit.headers]);
    packet.extend(transmit.payload.clone().map(|index| byte(seed, index)));
    packet.resize(packet.len() + transmit.padding + roce::ICRC, 0);
    let len = packet.len();
    let mut ip = ipv4::Packet::init(&mut packet[..]).unwrap();
    ip.set_protocol(ipv4::UDP);
    let mut datagram = udp::Datagram::new(ip.payload_mut()).unwrap();
    datagram.set_destination_port(roce::PORT);
    datagram.set_length((len - ipv4::HEADER) as u16);
    roce::fill_icrc(&mut packet).unwrap();
    packet
}

pub fn endpoints(seed: u64) -> [Endpoint; 2] {
    let mut random = Random(seed);
    // In half of the cases, the PSNs wrap soon.
    [17, 18].map(|queue_pair| {
        let below = [0x100_0000, 300][random.below(2) as usize];
        Endpoint { queue_pair, psn: 0xff_ffff - random.below(below) as u32, token: random.next() }
    })
}

impl Network {
    pub fn new(configs: &[Config; 2], link: Link, seed: u64, applications: [Application; 2]) -> Self {
        let ends = endpoints(seed);
        let hosts = [0, 1].map(|n| {
            let config = configs[n].clone();
            let connection = Connection::new(&config, ends[n], ends[1 - n], [seed as u8; 16]).unwrap();
            let ring = vec![0; config.receive_capacity as usize];
            Host {
                connection,
                buffers: Buffers { ring, consumed: 0 },
                application: applications[n].clone(),
                config,
                written: 0,
                consumed: 0,
                longest_gap: 0,
                last_read: 0,
                seed: seed + n as u64,
                peer_seed: seed + 1 - n as u64,
            }
        });
        let mut network = Self { hosts, wire: Wire::new(link, seed), now: 0, refused_icrc: 0 };
        (0..2).for_each(|n| network.service(n));
        network
    }

    pub fn finished(&self) -> bool {
        (0..2).all(|n| {
            let (host, peer) = (&self.hosts[n], &self.hosts[1 - n]);
            host.consumed == peer.application.to_write && host.connection.peer_closed()
        })
    }

    pub fn service(&mut self, n: usize) {
        let host = &mut self.hosts[n];
        host.run(self.now);
        let (mut headers, mut count) = ([0; MAX_HEADERS], 0);
        while let Some(transmit) = host.connection.poll_transmit(self.now, &mut headers) {
            self.wire.send(self.now, 1 - n, frame(&headers, &transmit, host.seed), inlane_tcp::Ecn::NotEct);
            count += 1;
            assert!(count < 100_000, "poll_transmit does not end");
        }
    }

    /// Advances to the next event and processes it. Returns false if there is none.
    pub fn step(&mut self) -> bool {
        let arrival = self.wire.under_way.peek().map(|Reverse(frame)| frame.at);
        let timer = (0..2).filter_map(|n| self.hosts[n].connection.next_deadline().map(|at| (at, n))).min();
        match (arrival, timer) {
            (Some(at), _) if timer.is_none_or(|(deadline, _)| at <= deadline) => {
                let Reverse(frame) = self.wire.under_way.pop().unwrap();
                self.now = self.now.max(at);
                let host = &mut self.hosts[frame.to];
                if roce::icrc_ok(&frame.bytes) {
                    let packet = &frame.bytes[BEFORE..frame.bytes.len() - roce::ICRC];
                    host.connection.on_packet(self.now, packet, &mut host.buffers);
                } else {
                    self.refused_icrc += 1;
                }
                self.service(frame.to);
            }
            (_, Some((deadline, n))) => {
                self.now = self.now.max(deadline);
                self.hosts[n].connection.on_timer(self.now);
                self.service(n);
            }
            _ => {
                (0..2).for_each(|n| self.service(n));
                return !self.wire.under_way.is_empty();
            }
        }
        true
    }

    /// Runs until both streams have arrived.
    pub fn run(&mut self, name: &str) {
        let mut steps = 0u64;
        while !self.finished() {
            steps += 1;
            let read = self.hosts.each_ref().map(|host| host.consumed);
            let stuck = !self.step() && self.hosts.each_ref().map(|host| host.consumed) == read;
            let ended = self.hosts.iter().any(|host| host.connection.ended().is_some());
            if stuck || ended || steps > 3_000_000 {
                let hosts = self.hosts.each_ref().map(|host| (host.consumed, host.written, &host.connection));
                panic!("{name}: stuck {stuck}, ended {ended}, at {} us: {hosts:#?}", self.now / 1000);
            }
        }
    }
}
