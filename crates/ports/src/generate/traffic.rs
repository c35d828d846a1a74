//! The traffic of a generator: flows, frame sizes, headers. A checker computes the same traffic from the same
//! specification.
//!
//! Flows take turns, and no two flows share a 5-tuple. The addresses are from the ranges reserved for
//! benchmarks: 198.18.0.0/15 (RFC 2544) or 2001:2::/48 (RFC 5180).

use super::stamp;
use inlane_core::Result;
use inlane_core::port::spec::SpecText;
use inlane_core::units::{Rate, parse_rate, parse_size};
use inlane_wire::checksum::{self, Sum};
use inlane_wire::{Layers, Mac, ethernet, ipv4, ipv6, tcp, udp};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The largest number of flows of a generator.
pub const MAX_FLOWS: u64 = 1 << 20;
/// The shortest Ethernet frame without FCS, in bytes.
pub const MIN_FRAME: usize = 60;
/// Length of Ethernet's frame check sequence, in bytes.
const FCS: u64 = 4;
/// The longest frame without FCS, in bytes: the longest IPv4 packet and an Ethernet header.
const MAX_FRAME: u64 = 65535 + 14;
/// Frame sizes of the simple IMIX, mixed: IP packets of 46, 576 and 1500 bytes in the ratio 7 : 4 : 1.
const IMIX: [usize; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 590, 60];
/// The lowest transport port that a flow can have.
const FIRST_PORT: u16 = 49152;

/// The network and transport protocols of a flow: IPv4 or IPv6, and UDP or TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHeaders {
    /// True for IPv6, false for IPv4.
    pub v6: bool,
    /// True for TCP, false for UDP.
    pub tcp: bool,
}

/// What a generator sends, except its rate and the number of packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Lengths of frames in bytes without FCS. Successive packets of a flow use the lengths in turn.
    pub sizes: Vec<usize>,
    /// Number of flows.
    pub flows: u32,
    /// The seed that determines ports and payloads.
    pub seed: u64,
    /// The protocols of the flows. Flow n uses entry n. If there are more flows than entries, the entries
    /// repeat.
    pub headers: Vec<FlowHeaders>,
    /// The VLAN of all frames, if they carry an 802.1Q tag.
    pub vlan: Option<u16>,
    /// Source and destination MAC addresses.
    pub macs: (Mac, Mac),
}

/// The load that a generator offers (RFC 2285).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OfferedLoad {
    /// The rate of all queues together. `None` means as fast as packets are received.
    pub rate: Option<Rate>,
    /// Total number of packets. `None` means no end.
    pub packets: Option<u64>,
}

impl Traffic {
    /// Parses `gen:SIZE|imix[,fcs,flows=N,seed=S,v4,v6,udp,tcp,vlan=N,smac=M,dmac=M,rate=R,packets=N]`.
    ///
    /// With `fcs`, SIZE includes the 4 bytes of the frame check sequence: `gen:64,fcs` sends frames of 60
    /// bytes.
    ///
    /// # Errors
    /// If an option is unknown, a value is out of range, or the size is too small for headers and stamp.
    pub fn parse(text: &str) -> Result<(Self, OfferedLoad)> {
        let mut spec = SpecText::parse(text)?;
        let imix = spec.argument() == "imix";
        let fcs = if spec.flag("fcs")? { FCS } else { 0 };
        let sizes = match spec.argument() {
            "" => {
                let kind = spec.kind();
                return Err(spec
                    .error(format!("give the size of frames before the options: {kind}:64 or {kind}:imix")));
            }
            "imix" if fcs > 0 => {
                return Err(spec.error("imix has fixed sizes without FCS; leave out 'fcs'"));
            }
            "imix" => IMIX.to_vec(),
            size => match parse_size(size) {
                Ok(size) if (1 + fcs..=MAX_FRAME + fcs).contains(&size) => vec![(size - fcs) as usize],
                Ok(_) => {
                    let (min, max) = (MIN_FRAME as u64 + fcs, MAX_FRAME + fcs);
                    return Err(spec.error(format!("give a frame size from {min} to {max} bytes")));
                }
                Err(error) => return Err(spec.error(error.to_string())),
            },
        };
        let (v4, v6) = (spec.flag("v4")?, spec.flag("v6")?);
        let (udp, tcp) = (spec.flag("udp")?, spec.flag("tcp")?);
        let mut headers = Vec::new();
        for (is_v6, wanted) in [(false, v4 || !v6), (true, v6)] {
            headers.extend((wanted && (udp || !tcp)).then_some(FlowHeaders { v6: is_v6, tcp: false }));
            headers.extend((wanted && tcp).then_some(FlowHeaders { v6: is_v6, tcp: true }));
        }
        let mac = |value: &str| {
            value.parse::<Mac>().map_err(|_| "give a MAC address such as 02:00:00:00:00:01".into())
        };
        let mut traffic = Self {
            sizes,
            headers,
            flows: spec.number("flows", 1..=MAX_FLOWS)?.unwrap_or(64),
            seed: spec.number("seed", 0..=u64::MAX)?.unwrap_or(1),
            vlan: spec.number("vlan", 0..=4094)?,
            macs: (
                spec.option("smac", mac)?.unwrap_or(Mac([2, 0, 0, 0, 0, 1])),
                spec.option("dmac", mac)?.unwrap_or(Mac([2, 0, 0, 0, 0, 2])),
            ),
        };
        let load = OfferedLoad {
            rate: spec.option("rate", |value| parse_rate(value).map_err(|error| error.to_string()))?,
            packets: spec.number("packets", 0..=u64::MAX)?,
        };
        let min = traffic.headers.iter().map(|headers| traffic.min_size(*headers)).max().unwrap_or(0);
        if imix {
            traffic.sizes.iter_mut().for_each(|size| *size = (*size).max(min));
        } else if traffic.sizes[0] < min {
            let min = min as u64 + fcs;
            return Err(spec.error(format!(
                "a packet of this size has no room for headers and a sequence number; give {min} or more"
            )));
        }
        spec.finish()?;
        Ok((traffic, load))
    }

    /// Returns the offset of the payload in the frame, in bytes.
    pub fn header_length(&self, headers: FlowHeaders) -> usize {
        let network = if headers.v6 { ipv6::HEADER } else { ipv4::HEADER };
        let transport = if headers.tcp { tcp::HEADER } else { udp::HEADER };
        self.network_offset() + network + transport
    }

    fn network_offset(&self) -> usize {
        ethernet::HEADER + if self.vlan.is_some() { ethernet::TAG } else { 0 }
    }

    /// Returns the length of the shortest possible frame in bytes.
    fn min_size(&self, headers: FlowHeaders) -> usize {
        (self.header_length(headers) + stamp::BYTES).max(MIN_FRAME)
    }

    /// Returns the length of the longest frame in bytes.
    pub fn longest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Returns the mean length of frames in bytes.
    pub fn mean(&self) -> f64 {
        self.sizes.iter().sum::<usize>() as f64 / self.sizes.len() as f64
    }

    /// Returns an index into [`Traffic::sizes`]. It selects the length of the packet with this sequence
    /// number in its flow.
    #[inline(always)]
    pub fn size_index(&self, sequence: u32) -> usize {
        if self.sizes.len() == 1 { 0 } else { sequence as usize % self.sizes.len() }
    }

    /// Returns the bytes with which all payloads begin. Each payload contains as many of these bytes as fit
    /// before its [`stamp`].
    pub fn body(&self) -> Vec<u8> {
        let mut state = self.seed;
        let mut body = Vec::with_capacity(self.longest() + 8);
        while body.len() < self.longest() {
            body.extend(mix(&mut state).to_be_bytes());
        }
        body
    }

    /// Returns a frame of `size` bytes with this [`stamp`]: headers, `body`, stamp, and correct checksums.
    /// This function is slow, so the generator uses it only to create its templates.
    pub fn frame(&self, size: usize, stamp: stamp::Stamp, body: &[u8]) -> Vec<u8> {
        let headers = self.headers[stamp.flow as usize % self.headers.len()];
        let mut bytes = vec![0; size];
        let payload = self.header_length(headers);
        let stamp_at = size - stamp::BYTES;
        bytes[payload..stamp_at].copy_from_slice(&body[..stamp_at - payload]);
        let crc = crc_fast::crc32_iscsi(&bytes[payload..stamp_at]);
        bytes[stamp_at..].copy_from_slice(&stamp.to_bytes(crc));

        let mut frame = ethernet::Frame::new(&mut bytes[..]).expect("sizes were checked against the headers");
        frame.set_source(self.macs.0);
        frame.set_destination(self.macs.1);
        let ethertype = if headers.v6 { ethernet::IPV6 } else { ethernet::IPV4 };
        frame.set_ethertype(self.vlan.map_or(ethertype, |_| ethernet::VLAN));
        if let Some(vlan) = self.vlan {
            bytes[14..16].copy_from_slice(&vlan.to_be_bytes());
            bytes[16..18].copy_from_slice(&ethertype.to_be_bytes());
        }
        let network = &mut bytes[self.network_offset()..];
        let protocol = if headers.tcp { ipv4::TCP } else { ipv4::UDP };
        let (flow_low, flow_high) = (stamp.flow as u16, (stamp.flow >> 16) as u8);
        if headers.v6 {
            let length = (network.len() - ipv6::HEADER) as u32;
            let mut packet = ipv6::Packet::init(network).expect("sizes were checked against the headers");
            packet.set_next_header(protocol);
            packet.set_source(Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, flow_low));
            packet.set_destination(Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, flow_high as u16));
            let pseudo = packet.pseudo_sum(protocol, length);
            self.fill_transport(headers, stamp.flow, packet.payload_mut(), pseudo);
        } else {
            let mut packet = ipv4::Packet::init(network).expect("sizes were checked against the headers");
            packet.set_flags_and_offset(0x4000);
            packet.set_protocol(protocol);
            packet.set_source(Ipv4Addr::from([198, 18, (flow_low >> 8) as u8, flow_low as u8]));
            packet.set_destination(Ipv4Addr::from([198, 19, flow_high, 1]));
            packet.fill_checksum();
            let pseudo = packet.pseudo_sum();
            self.fill_transport(headers, stamp.flow, packet.payload_mut(), pseudo);
        }
        bytes
    }

    fn fill_transport(&self, headers: FlowHeaders, flow: u32, bytes: &mut [u8], pseudo: Sum) {
        let random = mix(&mut (self.seed ^ (flow as u64) << 32));
        let (source, destination) =
            (FIRST_PORT + (random as u16 & 0x3fff), FIRST_PORT + ((random >> 16) as u16 & 0x3fff));
        if headers.tcp {
            let mut segment = tcp::Segment::init(bytes).expect("sizes were checked against the headers");
            segment.set_source_port(source);
            segment.set_destination_port(destination);
            segment.set_flags(tcp::ACK | tcp::PSH);
            segment.set_window(0xffff);
            segment.fill_checksum(pseudo);
        } else {
            let length = bytes.len() as u16;
            let mut datagram = udp::Datagram::new(bytes).expect("sizes were checked against the headers");
            datagram.set_source_port(source);
            datagram.set_destination_port(destination);
            datagram.set_length(length);
            datagram.fill_checksum(pseudo);
        }
    }

    /// Returns true if no generator has sent the frame: neither address is reserved for benchmarks. `layers`
    /// are its headers' offsets.
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

/// Returns the next number of the pseudo-random generator SplitMix64, and advances its state.
pub fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Returns the offsets of the transport checksum and the payload. Returns `None` unless the frame is TCP or
/// UDP.
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

/// Converts a sum to the transport checksum. For UDP, 0 becomes 0xFFFF, because 0 means that there is no
/// checksum.
#[inline(always)]
pub fn transport_checksum(sum: Sum, udp: bool) -> u16 {
    let checksum = sum.finish();
    if udp { checksum::udp(checksum) } else { checksum }
}
