//! Processes received packets: reassembles fragments, checks checksums, and hands each packet to its socket.

use super::{Engine, datagram};
use crate::host::socket::{Role, Socket};
use crate::stack::network::Outcome;
use inlane_tcp::{Ecn, Events, Flow, Segment, TimeWaitAction, reset_for};
use inlane_wire::checksum::{self, Sum};
use inlane_wire::ethernet::{self, Frame};
use inlane_wire::{icmp, ipv4, ipv6, ndp, tcp};
use std::net::{IpAddr, SocketAddr};

/// The fields of a received IP packet that the engine uses.
#[derive(Clone, Copy)]
pub(super) struct ReceivedPacket<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    protocol: u8,
    /// The traffic class.
    pub class: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// The upper layer.
    pub payload: &'a [u8],
    /// The whole IP packet.
    pub whole: &'a [u8],
    pub pseudo: Sum,
    pub arrival: Arrival,
}

/// How a packet came to this thread.
#[derive(Clone, Copy, Default)]
pub(super) struct Arrival {
    /// True if the engine sent the packet to itself, without checksums.
    pub trusted: bool,
    /// The number of threads that have passed the packet on.
    pub hops: usize,
    /// The other thread that received the packet and passed it on. `None` if this thread received it.
    pub from: Option<usize>,
}

impl Arrival {
    /// The engine sent the packet to itself.
    pub const OWN: Self = Self { trusted: true, hops: 0, from: None };
}

impl Engine {
    /// Processes a frame from the port.
    #[inline]
    pub(crate) fn on_frame(&mut self, now: u64, bytes: &[u8]) {
        let counters = &mut self.network.counters;
        counters.received_packets += 1;
        counters.received_bytes += bytes.len() as u64;
        let Ok(frame) = Frame::new(bytes) else {
            counters.malformed += 1;
            return;
        };
        let destination = frame.destination();
        if destination != self.network.mac() && !destination.is_multicast() {
            self.network.counters.ignored += 1;
            return;
        }
        match frame.ethertype() {
            ethernet::IPV4 | ethernet::IPV6 => {
                self.on_ip(now, &bytes[ethernet::HEADER..], Arrival::default())
            }
            ethernet::ARP => {
                if let Some(heard) = self.network.on_arp(now, &bytes[ethernet::HEADER..]) {
                    self.spread_neighbour(now, &heard);
                }
            }
            _ => self.network.counters.ignored += 1,
        }
    }

    /// Processes an IP packet.
    pub(super) fn on_ip(&mut self, now: u64, bytes: &[u8], arrival: Arrival) {
        match Self::parse(bytes, arrival) {
            Ok(packet) => self.on_whole(now, packet),
            Err(Refused::Malformed) => self.network.counters.malformed += 1,
            Err(Refused::Fragment) => self.on_fragment(now, bytes, arrival),
        }
    }

    fn parse(bytes: &[u8], arrival: Arrival) -> Result<ReceivedPacket<'_>, Refused> {
        match bytes.first().map_or(0, |byte| byte >> 4) {
            4 => Self::parse_v4(bytes, arrival),
            6 => Self::parse_v6(bytes, arrival),
            _ => Err(Refused::Malformed),
        }
    }

    /// Processes an IP packet that is not a fragment.
    fn on_whole(&mut self, now: u64, packet: ReceivedPacket<'_>) {
        let own = self.network.is_own(packet.destination);
        if packet.source.is_loopback() && !packet.arrival.trusted {
            self.network.counters.malformed += 1;
            return;
        }
        match packet.protocol {
            ipv4::TCP if own => self.on_tcp(now, packet),
            ipv4::UDP if own => self.on_datagram(now, &packet),
            ipv4::ICMP if own && packet.source.is_ipv4() => self.on_icmp(now, packet),
            ipv6::ICMP if packet.source.is_ipv6() && (own || packet.destination.is_multicast()) => {
                self.on_icmp_v6(now, packet);
            }
            _ => self.network.counters.ignored += 1,
        }
    }

    /// Keeps a fragment of an IP packet, or processes the packet that the fragment completes.
    fn on_fragment(&mut self, now: u64, bytes: &[u8], arrival: Arrival) {
        let addresses: Option<(IpAddr, IpAddr)> = match bytes.first().map_or(0, |byte| byte >> 4) {
            4 => ipv4::Packet::new(bytes)
                .ok()
                .map(|packet| (packet.source().into(), packet.destination().into())),
            _ => ipv6::Packet::new(bytes)
                .ok()
                .map(|packet| (packet.source().into(), packet.destination().into())),
        };
        let Some(addresses) = addresses.filter(|&(_, destination)| self.network.is_own(destination)) else {
            self.network.counters.ignored += 1;
            return;
        };
        if self.pass_fragment(addresses, bytes, arrival) {
            return;
        }
        let network = &mut self.network;
        network.counters.fragments += 1;
        let (outcome, given_up) = network.reassembly.add(now, bytes);
        network.counters.unassembled += given_up;
        match outcome {
            Outcome::Waits => {}
            Outcome::Refused => network.counters.unassembled += 1,
            Outcome::Whole(packet) => {
                network.counters.reassembled += 1;
                // Count a reassembled packet that is itself a fragment as malformed. Only an attacker nests
                // fragments, to cost the engine time.
                match Self::parse(&packet, Arrival::default()) {
                    Ok(packet) => self.on_whole(now, packet),
                    Err(_) => self.network.counters.malformed += 1,
                }
            }
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

    /// Returns true if the checksum of a TCP segment is correct or not needed. It is not needed for the
    /// engine's own segments. It is also not needed if a sender on the same machine left the checksum to a
    /// network card.
    fn is_intact(&self, packet: &ReceivedPacket<'_>) -> bool {
        packet.arrival.trusted
            || packet.pseudo.add_bytes(packet.payload).finish() == 0
            || (self.network.accepts_partial_checksums()
                && tcp::Segment::new(packet.payload)
                    .is_ok_and(|segment| segment.checksum() == packet.pseudo.folded()))
    }

    fn on_tcp(&mut self, now: u64, packet: ReceivedPacket<'_>) {
        let ports =
            tcp::Segment::new(packet.payload).map(|view| (view.source_port(), view.destination_port()));
        let segment = Segment::parse(packet.payload, Ecn::of(packet.class));
        let (Ok((source_port, destination_port)), Ok(segment), true) =
            (ports, segment, self.is_intact(&packet))
        else {
            self.network.counters.malformed += 1;
            return;
        };
        if packet.source.is_multicast() || packet.source.is_unspecified() {
            self.network.counters.malformed += 1;
            return;
        }
        let flow = Flow {
            local: SocketAddr::new(packet.destination, destination_port),
            remote: SocketAddr::new(packet.source, source_port),
        };
        if let Some(key) = self.flows.find(&flow) {
            if packet.arrival.from.is_none() || !self.follow_packets(key, &packet) {
                self.on_stream_segment(now, key, &segment);
            }
            return;
        }
        self.on_other_segment(now, &flow, &segment, &packet);
    }

    /// Processes a TCP segment whose flow has no connection: by its TIME-WAIT entry, by a listener, or by a
    /// reset.
    fn on_other_segment(
        &mut self,
        now: u64,
        flow: &Flow,
        segment: &Segment<'_>,
        packet: &ReceivedPacket<'_>,
    ) {
        if self.shared.is_some() {
            if self.pass_by_flow(now, flow, packet) {
                return;
            }
            if let Some(key) = self.flows.find(flow) {
                return self.on_stream_segment(now, key, segment);
            }
        }
        let mut previous = None;
        if let Some(entry) = self.time_waits.get_mut(flow) {
            match entry.on_segment(now, inlane_tcp::Config::default().time_wait, segment) {
                TimeWaitAction::Drop => return,
                TimeWaitAction::Reply(header) => return self.send_header(now, flow, &header),
                TimeWaitAction::Reopen => previous = Some(*entry),
            }
        }
        let hash = u64::from(flow.remote.port()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if let Some(listener) = self.listener(flow.local, hash) {
            let replied = self.on_listener_segment(now, listener, flow, segment, previous.as_ref(), packet);
            if replied && previous.is_some() {
                self.time_waits.remove(flow);
                self.release_flow(flow);
            }
            return;
        }
        if let Some(header) = reset_for(segment) {
            self.totals.resets_sent += 1;
            self.send_header(now, flow, &header);
        }
    }

    fn on_icmp(&mut self, now: u64, packet: ReceivedPacket<'_>) {
        let Ok(message) = icmp::Message::new(packet.payload) else {
            self.network.counters.malformed += 1;
            return;
        };
        if !packet.arrival.trusted && checksum::of(packet.payload) != 0 {
            self.network.counters.malformed += 1;
            return;
        }
        match message.kind() {
            icmp::ECHO_REQUEST => self.reply_echo(now, packet, icmp::ECHO_REPLY),
            icmp::UNREACHABLE if self.pass_icmp_error(&packet) => {}
            icmp::UNREACHABLE => {
                let error = datagram::error_v4(message.code());
                self.on_datagram_refused(&packet.payload[icmp::HEADER..], error);
                let error = match message.code() {
                    icmp::FRAGMENTATION_NEEDED => IcmpError::TooBig(message.next_hop_mtu().into()),
                    icmp::PROTOCOL_UNREACHABLE | icmp::PORT_UNREACHABLE => {
                        IcmpError::Unreachable { hard: true }
                    }
                    _ => IcmpError::Unreachable { hard: false },
                };
                self.on_icmp_error(now, &packet.payload[icmp::HEADER..], error);
            }
            _ => self.network.counters.ignored += 1,
        }
    }

    fn on_icmp_v6(&mut self, now: u64, packet: ReceivedPacket<'_>) {
        let Ok(message) = icmp::Message::new(packet.payload) else {
            self.network.counters.malformed += 1;
            return;
        };
        if !packet.arrival.trusted && packet.pseudo.add_bytes(packet.payload).finish() != 0 {
            self.network.counters.malformed += 1;
            return;
        }
        match message.kind() {
            icmp::ECHO_REQUEST_V6 => self.reply_echo(now, packet, icmp::ECHO_REPLY_V6),
            ndp::SOLICITATION | ndp::ADVERTISEMENT => {
                let addresses = (packet.source, packet.destination);
                let heard = self.network.on_discovery(now, addresses, packet.hops, packet.payload);
                if let Some(heard) = heard {
                    self.spread_neighbour(now, &heard);
                }
            }
            icmp::UNREACHABLE_V6 | icmp::TOO_BIG_V6 if self.pass_icmp_error(&packet) => {}
            icmp::UNREACHABLE_V6 => {
                let error = datagram::error_v6(message.code());
                self.on_datagram_refused(&packet.payload[icmp::HEADER..], error);
                let error = IcmpError::Unreachable { hard: message.code() == icmp::PORT_UNREACHABLE_V6 };
                self.on_icmp_error(now, &packet.payload[icmp::HEADER..], error);
            }
            icmp::TOO_BIG_V6 => {
                let mtu = message.mtu_v6();
                self.on_icmp_error(now, &packet.payload[icmp::HEADER..], IcmpError::TooBig(mtu));
            }
            _ => self.network.counters.ignored += 1,
        }
    }

    /// Processes an ICMP error about a packet that the engine sent. `original` is the start of the sent
    /// packet. The message may be forged, so TCP checks the sequence number in `original` (RFC 5927).
    fn on_icmp_error(&mut self, now: u64, original: &[u8], error: IcmpError) {
        if let IcmpError::TooBig(mtu) = error {
            self.on_datagram_too_big(now, original, mtu);
        }
        let Some((flow, sequence)) = self::original(original, ipv4::TCP) else {
            self.network.counters.ignored += 1;
            return;
        };
        let Some(key) = self.flows.find(&flow) else { return };
        let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) else { return };
        let events = match error {
            IcmpError::TooBig(mtu) => {
                let headers = if flow.remote.is_ipv4() { 40 } else { 60 };
                let mss = u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
                stream.connection.on_packet_too_big(now, sequence, mss);
                Events::NONE
            }
            IcmpError::Unreachable { hard } => stream.connection.on_unreachable(sequence, hard),
        };
        self.after_events(key, events);
    }

    fn reply_echo(&mut self, now: u64, packet: ReceivedPacket<'_>, kind: u8) {
        if !self.network.is_own(packet.destination) {
            return;
        }
        let Some(route) = self.network.route(packet.source) else { return };
        let (source, destination) = (packet.destination, packet.source);
        if destination.is_ipv4() {
            self.network.send(
                now,
                route,
                source,
                destination,
                0,
                &Echo::<{ ipv4::ICMP }> { kind, request: packet.payload },
            );
        } else {
            self.network.send(
                now,
                route,
                source,
                destination,
                0,
                &Echo::<{ ipv6::ICMP }> { kind, request: packet.payload },
            );
        }
    }
}

/// Parses the start of one of the engine's own IP packets, which an ICMP error message quotes. Returns the
/// packet's flow, and the four bytes after the ports (in TCP, the sequence number). Returns `None` if the
/// packet's protocol is not `wanted`.
pub(super) fn original(original: &[u8], wanted: u8) -> Option<(Flow, u32)> {
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

/// What an ICMP error reports about a packet that the engine sent.
#[derive(Clone, Copy)]
enum IcmpError {
    /// The packet is longer than the path MTU. The value is the path MTU in bytes.
    TooBig(u32),
    /// The packet did not arrive. `hard` is set if the destination has no such protocol or port.
    Unreachable { hard: bool },
}

/// Why an IP packet is not processed.
enum Refused {
    Malformed,
    Fragment,
}

/// The reply to an echo request.
struct Echo<'a, const PROTOCOL: u8> {
    kind: u8,
    request: &'a [u8],
}

impl<const PROTOCOL: u8> crate::stack::network::Payload for Echo<'_, PROTOCOL> {
    const PROTOCOL: u8 = PROTOCOL;

    fn len(&self) -> usize {
        self.request.len()
    }

    fn write(&self, buffer: &mut [u8], pseudo: Option<Sum>) {
        buffer.copy_from_slice(self.request);
        let mut message = icmp::Message::new(buffer).expect("the request had a header");
        message.set_kind(self.kind);
        message.set_checksum(0);
        // The checksum of ICMPv6 covers the pseudo header, that of ICMP does not.
        let start = if PROTOCOL == ipv6::ICMP { pseudo.unwrap_or_default() } else { Sum::new() };
        let checksum = start.add_bytes(message.bytes()).finish();
        message.set_checksum(checksum);
    }
}
