//! Received IP packets: their headers, and how they came to this thread.

use inlane_tcp::{Ecn, Flow, Segment};
use inlane_wire::checksum::Sum;
use inlane_wire::ethernet::{self, Frame};
use inlane_wire::{ipv4, ipv6, tcp, udp};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

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
    /// True if the waiting connections of the packet's listener have just been counted.
    pub counted: bool,
}

impl Arrival {
    /// The engine sent the packet to itself.
    pub const OWN: Self = Self { trusted: true, hops: 0, from: None, awaited: false, counted: false };
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

/// The longest headers of a TCP segment in a frame: Ethernet, IP without options, and TCP with all options.
pub const MOST_HEAD: usize = ethernet::HEADER + ipv6::HEADER + tcp::MAX_HEADER;

/// The headers of a TCP segment in a frame, without its payload.
pub struct Headers<'a> {
    /// The addresses and ports, as the receiver sees them.
    pub flow: Flow,
    /// The segment, with an empty payload.
    pub segment: Segment<'a>,
    /// The sum of the pseudo header and the TCP header.
    pub sum: Sum,
    /// True if the checksum field has only the sum of the pseudo header. See
    /// [`Network::accepts_partial_checksums`](super::network::Network::accepts_partial_checksums).
    pub is_partial: bool,
    /// The place of the payload in the frame.
    pub payload: Range<usize>,
}

impl<'a> Headers<'a> {
    /// Reads the headers at the start of a frame, of which `head` has the first [`MOST_HEAD`] bytes or all. Returns `None` if they
    /// are not those of a usual TCP segment: the packet is a fragment, has IP options, or is malformed.
    pub fn parse(head: &'a [u8]) -> Option<Self> {
        let ethertype = Frame::new(head).ok()?.ethertype();
        let bytes = &head[ethernet::HEADER..];
        let (source, destination, class, start, end, pseudo): (IpAddr, IpAddr, _, _, _, _) = match ethertype {
            ethernet::IPV4 => {
                let packet = ipv4::Packet::new(bytes).ok()?;
                let usual = packet.header_len() == ipv4::HEADER && packet.protocol() == ipv4::TCP;
                if !usual || packet.is_fragment() || !packet.checksum_ok() {
                    return None;
                }
                let (source, destination) = (packet.source().into(), packet.destination().into());
                let end = usize::from(packet.total_length());
                (source, destination, packet.tos(), ipv4::HEADER, end, packet.pseudo_sum())
            }
            ethernet::IPV6 => {
                let packet = ipv6::Packet::new(bytes).ok()?;
                if packet.next_header() != ipv4::TCP {
                    return None;
                }
                let (source, destination) = (packet.source().into(), packet.destination().into());
                let len = packet.payload_length();
                let pseudo = packet.pseudo_sum(ipv4::TCP, len.into());
                let end = ipv6::HEADER + usize::from(len);
                (source, destination, packet.traffic_class(), ipv6::HEADER, end, pseudo)
            }
            _ => return None,
        };
        let bytes = bytes.get(start..)?;
        let view = tcp::Segment::new(bytes).ok()?;
        let header = &bytes[..view.header_len()];
        let payload = start + header.len()..end;
        if payload.start > payload.end || source.is_loopback() {
            return None;
        }
        Some(Self {
            flow: Flow {
                local: SocketAddr::new(destination, view.destination_port()),
                remote: SocketAddr::new(source, view.source_port()),
            },
            segment: Segment::parse(header, Ecn::of(class)).ok()?,
            sum: pseudo.add_bytes(header),
            is_partial: view.checksum() == pseudo.folded(),
            payload: payload.start + ethernet::HEADER..payload.end + ethernet::HEADER,
        })
    }
}

/// The headers of a UDP datagram in a frame, without its payload.
pub struct DatagramHeaders {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The place of the datagram's payload in the frame.
    pub payload: Range<usize>,
}

impl DatagramHeaders {
    /// Reads the headers at the start of a frame, of which `head` has the first bytes. Returns `None` if they are not those of a
    /// usual datagram to `port`: the packet is a fragment, has IP options, or is malformed. Does not check the checksum of the
    /// datagram.
    pub fn parse(head: &[u8], port: u16) -> Option<Self> {
        let ethertype = Frame::new(head).ok()?.ethertype();
        let bytes = &head[ethernet::HEADER..];
        let (source, destination, start, len): (IpAddr, IpAddr, _, _) = match ethertype {
            ethernet::IPV4 => {
                let packet = ipv4::Packet::new(bytes).ok()?;
                let usual = packet.header_len() == ipv4::HEADER && packet.protocol() == ipv4::UDP;
                if !usual || packet.is_fragment() || !packet.checksum_ok() {
                    return None;
                }
                let len = usize::from(packet.total_length()).checked_sub(ipv4::HEADER)?;
                (packet.source().into(), packet.destination().into(), ipv4::HEADER, len)
            }
            ethernet::IPV6 => {
                let packet = ipv6::Packet::new(bytes).ok()?;
                if packet.next_header() != ipv4::UDP {
                    return None;
                }
                let len = usize::from(packet.payload_length());
                (packet.source().into(), packet.destination().into(), ipv6::HEADER, len)
            }
            _ => return None,
        };
        let datagram = udp::Datagram::new(bytes.get(start..)?).ok()?;
        if datagram.destination_port() != port || usize::from(datagram.length()) != len || len < udp::HEADER {
            return None;
        }
        let start = ethernet::HEADER + start;
        Some(Self { source, destination, payload: start + udp::HEADER..start + len })
    }
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
