//! Received IP packets: their headers, and how they came to this thread.

use inlane_tcp::Flow;
use inlane_wire::checksum::Sum;
use inlane_wire::{ipv4, ipv6};
use std::net::{IpAddr, SocketAddr};

/// The fields of a received IP packet that the engine uses.
#[derive(Clone, Copy)]
pub struct ReceivedPacket<'a> {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The protocol of the upper layer.
    pub protocol: u8,
    /// The traffic class.
    pub class: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// The upper layer.
    pub payload: &'a [u8],
    /// The whole IP packet.
    pub whole: &'a [u8],
    /// The sum of the pseudo header.
    pub pseudo: Sum,
    /// How the packet came to this thread.
    pub arrival: Arrival,
}

/// How a packet came to this thread.
#[derive(Clone, Copy, Default)]
pub struct Arrival {
    /// True if the engine sent the packet to itself, without checksums.
    pub trusted: bool,
    /// The number of threads that have passed the packet on.
    pub hops: usize,
    /// The other thread that received the packet and passed it on. `None` if this thread received it.
    pub from: Option<usize>,
    /// True if this thread has since taken all connections that other threads had moved to it.
    pub awaited: bool,
}

impl Arrival {
    /// The engine sent the packet to itself.
    pub const OWN: Self = Self { trusted: true, hops: 0, from: None, awaited: false };
}

/// Reads the headers of an IP packet.
///
/// # Errors
/// If the packet is malformed or a fragment.
pub fn parse(bytes: &[u8], arrival: Arrival) -> Result<ReceivedPacket<'_>, Refused> {
    match bytes.first().map_or(0, |byte| byte >> 4) {
        4 => parse_v4(bytes, arrival),
        6 => parse_v6(bytes, arrival),
        _ => Err(Refused::Malformed),
    }
}

fn parse_v4(bytes: &[u8], arrival: Arrival) -> Result<ReceivedPacket<'_>, Refused> {
    let packet = ipv4::Packet::new(bytes).map_err(|_| Refused::Malformed)?;
    if !arrival.trusted && (!packet.checksum_ok() || packet.end() < packet.total_length().into()) {
        return Err(Refused::Malformed);
    }
    if packet.is_fragment() {
        return Err(Refused::Fragment);
    }
    Ok(ReceivedPacket {
        source: packet.source().into(),
        destination: packet.destination().into(),
        protocol: packet.protocol(),
        class: packet.tos(),
        hops: packet.ttl(),
        payload: &bytes[packet.header_len()..packet.end()],
        whole: &bytes[..packet.end()],
        pseudo: packet.pseudo_sum(),
        arrival,
    })
}

fn parse_v6(bytes: &[u8], arrival: Arrival) -> Result<ReceivedPacket<'_>, Refused> {
    let packet = ipv6::Packet::new(bytes).map_err(|_| Refused::Malformed)?;
    let upper = packet.upper().map_err(|_| Refused::Malformed)?;
    if packet.end() < ipv6::HEADER + usize::from(packet.payload_length()) || upper.offset > packet.end() {
        return Err(Refused::Malformed);
    }
    if upper.fragment_offset.is_some() {
        return Err(Refused::Fragment);
    }
    let payload = &bytes[upper.offset..packet.end()];
    Ok(ReceivedPacket {
        source: packet.source().into(),
        destination: packet.destination().into(),
        protocol: upper.protocol,
        class: packet.traffic_class(),
        hops: packet.hop_limit(),
        payload,
        whole: &bytes[..packet.end()],
        pseudo: packet.pseudo_sum(upper.protocol, payload.len() as u32),
        arrival,
    })
}

/// Parses the start of one of the engine's own IP packets, which an ICMP error message quotes. Returns the
/// packet's flow, and the four bytes after the ports (in TCP, the sequence number). Returns `None` if the
/// packet's protocol is not `wanted`.
pub fn original(original: &[u8], wanted: u8) -> Option<(Flow, u32)> {
    let (source, destination, protocol, at): (IpAddr, IpAddr, u8, usize) = match original.first()? >> 4 {
        4 => {
            let packet = ipv4::Packet::new(original).ok()?;
            (packet.source().into(), packet.destination().into(), packet.protocol(), packet.header_len())
        }
        _ => {
            let packet = ipv6::Packet::new(original).ok()?;
            let upper = packet.upper().ok()?;
            (packet.source().into(), packet.destination().into(), upper.protocol, upper.offset)
        }
    };
    let bytes = original.get(at..at + 8).filter(|_| protocol == wanted)?;
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let sequence = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let flow =
        Flow { local: SocketAddr::new(source, port(0)), remote: SocketAddr::new(destination, port(2)) };
    Some((flow, sequence))
}

/// Why an IP packet is not processed.
pub enum Refused {
    /// A header is malformed.
    Malformed,
    /// The packet is a fragment.
    Fragment,
}
