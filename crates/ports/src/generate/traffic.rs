//! What a generator sends: flows, sizes, headers. The checker builds the same from the same text.
//!
//! Flows take turns, so packet n of a flow is sent in round n. Flow f goes from 198.18.0.0/16 to 198.19.0.0/16 (set aside
//! for benchmarks by RFC 2544), or within 2001:2::/48 (RFC 5180), and no two flows share a 5-tuple.

use super::stamp;
use inlane_core::Result;
use inlane_core::port::spec::PortSpec;
use inlane_core::units::{Rate, parse_rate, parse_size};
use inlane_wire::checksum::{self, Sum};
use inlane_wire::{Layers, Mac, ethernet, ipv4, ipv6, tcp, udp};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Most flows.
pub const MAX_FLOWS: u64 = 1 << 20;
/// Longest frame: an IPv4 packet cannot be longer.
const MAX_FRAME: u64 = 65535 + 14;
/// Frames of the simple IMIX in an order that spreads them: IP packets of 46, 576 and 1500 bytes as 7 : 4 : 1.
const IMIX: [usize; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 590, 60];
const UDP_PORT: u16 = 49152;

/// What carries the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// IPv6, not IPv4.
    pub v6: bool,
    /// TCP, not UDP.
    pub tcp: bool,
}

/// What to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Lengths of frames, in turn.
    pub sizes: Vec<usize>,
    /// How many flows.
    pub flows: u32,
    /// Changes ports and payloads.
    pub seed: u64,
    /// What flows are, in turn.
    pub kinds: Vec<Kind>,
    /// An 802.1Q tag for all.
    pub vlan: Option<u16>,
    /// Source and destination MAC address.
    pub macs: (Mac, Mac),
}

/// What a generator's text says beside its traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offer {
    /// How fast; `None` for as fast as it goes.
    pub rate: Option<Rate>,
    /// How many packets in all; `None` for no end.
    pub packets: Option<u64>,
}

impl Traffic {
    /// Reads `gen:SIZE|imix[,flows=N,seed=S,v4,v6,udp,tcp,vlan=N,smac=M,dmac=M,rate=R,packets=N]`.
    ///
    /// # Errors
    /// For unknown options, sizes too small for their headers and stamp, and quantities out of range.
    pub fn parse(text: &str) -> Result<(Self, Offer)> {
        let mut spec = PortSpec::parse(text)?;
        let imix = spec.argument() == "imix";
        let sizes = match spec.argument() {
            "" => return Err(spec.error("say how long frames are: gen:64 or gen:imix")),
            "imix" => IMIX.to_vec(),
            size => match parse_size(size) {
                Ok(size @ 1..=MAX_FRAME) => vec![size as usize],
                Ok(_) => return Err(spec.error(format!("frames have 60 to {MAX_FRAME} bytes"))),
                Err(error) => return Err(spec.error(error.to_string())),
            },
        };
        let (v4, v6) = (spec.flag("v4")?, spec.flag("v6")?);
        let (udp, tcp) = (spec.flag("udp")?, spec.flag("tcp")?);
        let mut kinds = Vec::new();
        for (is_v6, wanted) in [(false, v4 || !v6), (true, v6)] {
            kinds.extend((wanted && (udp || !tcp)).then_some(Kind { v6: is_v6, tcp: false }));
            kinds.extend((wanted && tcp).then_some(Kind { v6: is_v6, tcp: true }));
        }
        let mac = |value: &str| value.parse::<Mac>().map_err(|error| error.to_string());
        let mut traffic = Self {
            sizes,
            kinds,
            flows: spec.number("flows", 1..=MAX_FLOWS)?.unwrap_or(64),
            seed: spec.number("seed", 0..=u64::MAX)?.unwrap_or(1),
            vlan: spec.number("vlan", 0..=4094)?,
            macs: (
                spec.option("smac", mac)?.unwrap_or(Mac([2, 0, 0, 0, 0, 1])),
                spec.option("dmac", mac)?.unwrap_or(Mac([2, 0, 0, 0, 0, 2])),
            ),
        };
        let offer = Offer {
            rate: spec.option("rate", |value| parse_rate(value).map_err(|error| error.to_string()))?,
            packets: spec.number("packets", 0..=u64::MAX)?,
        };
        let least = traffic.kinds.iter().map(|kind| traffic.least(*kind)).max().unwrap_or(0);
        if imix {
            traffic.sizes.iter_mut().for_each(|size| *size = (*size).max(least));
        } else if traffic.sizes[0] < least {
            return Err(spec.error(format!("headers and stamp of these flows need frames of {least} bytes")));
        }
        spec.finish()?;
        Ok((traffic, offer))
    }

    /// Bytes in front of the payload.
    pub fn headers(&self, kind: Kind) -> usize {
        let network = if kind.v6 { ipv6::HEADER } else { ipv4::HEADER };
        let transport = if kind.tcp { tcp::HEADER } else { udp::HEADER };
        self.network() + network + transport
    }

    fn network(&self) -> usize {
        ethernet::HEADER + if self.vlan.is_some() { ethernet::TAG } else { 0 }
    }

    /// The shortest frame, Ethernet's own least (60 bytes without FCS) included.
    fn least(&self, kind: Kind) -> usize {
        (self.headers(kind) + stamp::BYTES).max(60)
    }

    /// The longest frame.
    pub fn longest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Mean length of frames.
    pub fn mean(&self) -> f64 {
        self.sizes.iter().sum::<usize>() as f64 / self.sizes.len() as f64
    }

    /// Which of [`Traffic::sizes`] packet `number` of a flow has.
    #[inline(always)]
    pub fn size_index(&self, number: u32) -> usize {
        // One size is the rule, and a division is dear.
        if self.sizes.len() == 1 { 0 } else { number as usize % self.sizes.len() }
    }

    /// The payload that every packet begins with: its front bytes, as many as there is room for.
    pub fn body(&self) -> Vec<u8> {
        let mut state = self.seed;
        let mut body = Vec::with_capacity(self.longest() + 8);
        while body.len() < self.longest() {
            body.extend(mix(&mut state).to_be_bytes());
        }
        body
    }

    /// Writes the frame of `size` bytes that flow `flow` sends as packet `number`, due at `due_ns`: headers, `body`, stamp,
    /// right checksums. Not fast: the generator uses it for its templates, the checker for what it cannot check faster.
    pub fn frame(&self, size: usize, stamp: stamp::Stamp, body: &[u8]) -> Vec<u8> {
        let kind = self.kinds[stamp.flow as usize % self.kinds.len()];
        let mut bytes = vec![0; size];
        let payload = self.headers(kind);
        let stamp_at = size - stamp::BYTES;
        bytes[payload..stamp_at].copy_from_slice(&body[..stamp_at - payload]);
        let crc = crc32c::crc32c(&bytes[payload..stamp_at]);
        bytes[stamp_at..].copy_from_slice(&stamp.to_bytes(crc));

        let mut frame = ethernet::Frame::new(&mut bytes[..]).expect("longer than its headers");
        frame.set_source(self.macs.0);
        frame.set_destination(self.macs.1);
        let ethertype = if kind.v6 { ethernet::IPV6 } else { ethernet::IPV4 };
        frame.set_ethertype(self.vlan.map_or(ethertype, |_| ethernet::VLAN));
        if let Some(vlan) = self.vlan {
            bytes[14..16].copy_from_slice(&vlan.to_be_bytes());
            bytes[16..18].copy_from_slice(&ethertype.to_be_bytes());
        }
        let network = &mut bytes[self.network()..];
        let protocol = if kind.tcp { ipv4::TCP } else { ipv4::UDP };
        let (flow_low, flow_high) = (stamp.flow as u16, (stamp.flow >> 16) as u8);
        if kind.v6 {
            let length = (network.len() - ipv6::HEADER) as u32;
            let mut packet = ipv6::Packet::init(network).expect("longer than its headers");
            packet.set_next_header(protocol);
            packet.set_source(Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, flow_low));
            packet.set_destination(Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, flow_high as u16));
            let pseudo = packet.pseudo_sum(protocol, length);
            self.transport(kind, stamp.flow, packet.payload_mut(), pseudo);
        } else {
            let mut packet = ipv4::Packet::init(network).expect("longer than its headers");
            packet.set_flags_and_offset(0x4000);
            packet.set_protocol(protocol);
            packet.set_source(Ipv4Addr::from([198, 18, (flow_low >> 8) as u8, flow_low as u8]));
            packet.set_destination(Ipv4Addr::from([198, 19, flow_high, 1]));
            packet.fill_checksum();
            let pseudo = packet.pseudo_sum();
            self.transport(kind, stamp.flow, packet.payload_mut(), pseudo);
        }
        bytes
    }

    fn transport(&self, kind: Kind, flow: u32, bytes: &mut [u8], pseudo: Sum) {
        let random = mix(&mut (self.seed ^ (flow as u64) << 32));
        let (source, destination) =
            (UDP_PORT + (random as u16 & 0x3fff), UDP_PORT + ((random >> 16) as u16 & 0x3fff));
        if kind.tcp {
            let mut segment = tcp::Segment::init(bytes).expect("longer than its headers");
            segment.set_source_port(source);
            segment.set_destination_port(destination);
            segment.set_flags(tcp::ACK | tcp::PSH);
            segment.set_window(0xffff);
            segment.fill_checksum(pseudo);
        } else {
            let length = bytes.len() as u16;
            let mut datagram = udp::Datagram::new(bytes).expect("longer than its headers");
            datagram.set_source_port(source);
            datagram.set_destination_port(destination);
            datagram.set_length(length);
            datagram.fill_checksum(pseudo);
        }
    }

    /// True for a frame that is none of this generator's, whatever became of it on its way: other traffic of the
    /// link. `layers` are the frame's.
    pub fn is_foreign(frame: &[u8], layers: &Layers) -> bool {
        let packet = &frame[layers.network..];
        if layers.ethertype == ethernet::IPV4 {
            let ours = |address: Ipv4Addr| matches!(address.octets(), [198, 18 | 19, ..]);
            ipv4::Packet::new(packet)
                .is_ok_and(|packet| !ours(packet.source()) && !ours(packet.destination()))
        } else {
            let ours = |address: Ipv6Addr| address.segments()[..2] == [0x2001, 2];
            ipv6::Packet::new(packet)
                .is_ok_and(|packet| !ours(packet.source()) && !ours(packet.destination()))
        }
    }
}

/// One step of SplitMix64: fast, and good enough to tell bytes apart.
pub fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Where the transport checksum of a frame lies and where its payload begins; `None` for frames that have neither.
pub fn checksum_and_payload(frame: &[u8], layers: &Layers) -> Option<(usize, usize)> {
    let bytes = frame.get(layers.transport..layers.end)?;
    match layers.protocol {
        ipv4::UDP => {
            udp::Datagram::new(bytes).ok()?;
            Some((layers.transport + 6, layers.transport + udp::HEADER))
        }
        ipv4::TCP => {
            let header = tcp::Segment::new(bytes).ok()?.header_len();
            Some((layers.transport + 16, layers.transport + header))
        }
        _ => None,
    }
}

/// A frame's transport checksum from the sum of everything under it.
#[inline(always)]
pub fn transport_checksum(sum: Sum, udp: bool) -> u16 {
    let checksum = sum.finish();
    if udp { checksum::udp(checksum) } else { checksum }
}
