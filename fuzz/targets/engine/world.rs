//! The engine with its simulated clock, and the TCP flows between the engine and its simulated peer.

use super::programs::{Program, path};
use super::{MAC, MILLISECOND, MOST_DEADLINES, PEER, PEER_MAC, SOCKETS};
use inlane_offload::stepped::Stepped;
use inlane_offload::{Settings, Transport};
use inlane_offload_protocol::rules::Prefix;
use inlane_wire::ethernet::{self, Frame};
use inlane_wire::{ipv4, ipv6, tcp};
use std::time::Duration;

/// A TCP flow between the engine and the simulated peer: the ports, and the numbers for the peer's next
/// segment.
#[derive(Clone, Copy, Default)]
pub(crate) struct Flow {
    pub(crate) v6: bool,
    pub(crate) local: u16,
    pub(crate) remote: u16,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) timestamp: u32,
}

/// The engine, its simulated peer on the link, and its two programs.
pub(crate) struct World {
    pub(crate) engine: Stepped,
    pub(crate) now: u64,
    pub(crate) flows: Vec<Flow>,
    /// The first bytes of the last IP packet that the engine sent. ICMP errors to the engine quote them.
    pub(crate) quoted: Vec<u8>,
    pub(crate) hostile: Program,
    pub(crate) honest: Program,
}

impl World {
    pub(crate) fn new(choices: u8) -> Self {
        let path = path();
        let settings = Settings {
            port: "null".parse().unwrap(),
            addresses: vec![Prefix::parse("10.0.0.1/24").unwrap(), Prefix::parse("fd00::1/64").unwrap()],
            gateways: vec![PEER[0]],
            loopback: true,
            socket: path.clone(),
            mode: 0o600,
            group: None,
            rules: String::new(),
            mtu: Some(if choices & 1 == 0 { 1500 } else { 9000 }),
            mac: Some(MAC),
            buffer: if choices & 2 == 0 { 4096 } else { 65536 },
            sockets_per_program: SOCKETS,
            threads: if choices & 8 == 0 { 1 } else { 3 },
            cores: Vec::new(),
            transport: if choices & 16 == 0 { Transport::Tcp } else { Transport::Rdma },
            card: false,
            spin: Duration::ZERO,
            faults: Default::default(),
        };
        let engine = Stepped::open(settings).unwrap();
        let mut world = Self {
            engine,
            now: 0,
            flows: Vec::new(),
            quoted: Vec::new(),
            hostile: Program::new(&path),
            honest: Program::new(&path),
        };
        if choices & 4 == 0 {
            for address in PEER {
                world.engine.set_neighbour(0, address, PEER_MAC);
            }
        }
        world
    }

    /// Hands a frame to the engine. The frame's length and last byte determine on which queue it arrives.
    pub(crate) fn receive(&mut self, frame: &[u8]) {
        let queue = (frame.len() + usize::from(frame.last().copied().unwrap_or(0))) % self.engine.threads();
        self.engine.receive_on(queue, self.now, frame);
    }

    /// Runs the engine until it is idle. Then reads the frames that the engine has sent.
    pub(crate) fn settle(&mut self) {
        assert!(
            self.engine.settle(self.now, 20_000).unwrap(),
            "the engine finds no rest at {} ms",
            self.now / MILLISECOND
        );
        while let Some(frame) = self.engine.sent() {
            self.learn(&frame);
        }
    }

    /// Moves the clock forward by `time` nanoseconds. On the way, stops at the engine's deadlines and runs
    /// the engine.
    pub(crate) fn advance(&mut self, time: u64) {
        let end = self.now + time;
        for _ in 0..MOST_DEADLINES {
            let next = self.engine.deadline().map_or(end, |deadline| deadline.max(self.now + MILLISECOND));
            self.now = next.min(end);
            self.settle();
            if self.now == end {
                return;
            }
        }
        self.now = end;
        self.settle();
    }

    /// Checks a frame that the engine has sent. If it is a TCP segment, records the numbers that the peer
    /// needs for its next segment of this flow.
    pub(crate) fn learn(&mut self, frame: &[u8]) {
        let frame = Frame::new(frame).expect("the engine sends whole frames");
        let packet = frame.payload();
        let (v6, payload) = match frame.ethertype() {
            ethernet::IPV4 => {
                let packet = ipv4::Packet::new(packet).expect("a whole IPv4 packet");
                assert!(packet.checksum_ok());
                if packet.is_fragment() || packet.protocol() != ipv4::TCP {
                    self.quoted = frame.payload()[..frame.payload().len().min(128)].to_vec();
                    return;
                }
                (false, packet.payload().to_vec())
            }
            ethernet::IPV6 => {
                let view = ipv6::Packet::new(packet).expect("a whole IPv6 packet");
                if view.upper().map_or(0, |upper| upper.protocol) != ipv4::TCP {
                    return;
                }
                (true, view.payload().to_vec())
            }
            _ => return,
        };
        self.quoted = packet[..packet.len().min(128)].to_vec();
        let segment = tcp::Segment::new(&payload[..]).expect("a whole segment");
        let header = inlane_tcp::Segment::parse(&payload, inlane_tcp::Ecn::NotEct)
            .expect("options can be read")
            .header;
        let (local, remote) = (segment.source_port(), segment.destination_port());
        let len = segment.payload().len() as u32
            + u32::from(header.flags & tcp::SYN != 0)
            + u32::from(header.flags & tcp::FIN != 0);
        let known =
            self.flows.iter_mut().find(|flow| (flow.v6, flow.local, flow.remote) == (v6, local, remote));
        let flow = match known {
            Some(flow) => flow,
            None => {
                if self.flows.len() >= 16 {
                    self.flows.remove(0);
                }
                self.flows.push(Flow { v6, local, remote, ..Flow::default() });
                self.flows.last_mut().unwrap()
            }
        };
        flow.acknowledgment = header.sequence.wrapping_add(len);
        if header.flags & tcp::ACK != 0 {
            flow.sequence = header.acknowledgment;
        }
        if let Some(timestamps) = header.options.timestamps {
            flow.timestamp = timestamps.value;
        }
    }
}
