//! ICMP: echo replies, errors that other hosts report, and errors that the stack reports to them.

use super::Stack;
use super::network::Payload;
use super::outcome::{Outcome, Refusal};
use super::packet::{ReceivedPacket, original};
use super::socket::{Role, Socket};
use inlane_tcp::Events;
use inlane_wire::checksum::Sum;
use inlane_wire::{icmp, ipv4, ipv6, ndp};

/// The most bytes of a received packet that an ICMP error about the packet quotes. The error is then at most
/// 576 bytes long (RFC 1812, section 4.3.2.3).
const MOST_QUOTED_V4: usize = 548;
/// The most bytes of a received packet that an ICMPv6 error about the packet quotes. The error is then at
/// most 1280 bytes long, IPv6's least MTU (RFC 4443, section 2.4).
const MOST_QUOTED_V6: usize = 1232;
/// The number of ICMP errors that the engine may send to other hosts in a burst. Later, it may send one more
/// error every `ICMP_NS` nanoseconds. Linux has the same limits. The engine's threads share them equally.
pub const ICMP_BURST: u64 = 50;
pub const ICMP_NS: u64 = 1_000_000;
/// The code of an ICMPv6 error: communication is administratively prohibited.
const PROHIBITED_V6: u8 = 1;

/// A message of ICMP or ICMPv6 that the stack sends.
struct Answer<'a, const PROTOCOL: u8> {
    kind: u8,
    code: u8,
    /// The second half of the header, and what follows the header.
    rest: ([u8; 4], &'a [u8]),
}

impl<const PROTOCOL: u8> Payload for Answer<'_, PROTOCOL> {
    const PROTOCOL: u8 = PROTOCOL;

    fn len(&self) -> usize {
        icmp::HEADER + self.rest.1.len()
    }

    fn write(&self, buffer: &mut [u8], pseudo: Option<Sum>) {
        buffer[..icmp::HEADER - 4].copy_from_slice(&[self.kind, self.code, 0, 0]);
        buffer[icmp::HEADER - 4..icmp::HEADER].copy_from_slice(&self.rest.0);
        buffer[icmp::HEADER..].copy_from_slice(self.rest.1);
        // The checksum of ICMPv6 covers the pseudo header, that of ICMP does not.
        let start = if PROTOCOL == ipv6::ICMP { pseudo.unwrap_or_default() } else { Sum::new() };
        let checksum = start.add_bytes(buffer).finish();
        icmp::Message::new(buffer).expect("the buffer has a header").set_checksum(checksum);
    }
}

impl<A> Stack<A> {
    /// Processes a message of ICMP, or of ICMPv6 if it came with an IPv6 packet.
    pub(super) fn on_icmp<'a>(&mut self, now: u64, packet: ReceivedPacket<'a>) -> Outcome<'a> {
        let v6 = packet.source.is_ipv6();
        let start = if v6 { packet.pseudo } else { Sum::new() };
        let message = match icmp::Message::new(packet.payload) {
            Ok(message) if packet.arrival.trusted || start.add_bytes(packet.payload).finish() == 0 => message,
            _ => {
                self.network.counters.malformed += 1;
                return Outcome::Done;
            }
        };
        let (hard, refusal) = match (v6, message.kind(), message.code()) {
            (false, icmp::ECHO_REQUEST, code) => {
                self.reply_echo(now, &packet, (icmp::ECHO_REPLY, code));
                return Outcome::Done;
            }
            (true, icmp::ECHO_REQUEST_V6, code) => {
                self.reply_echo(now, &packet, (icmp::ECHO_REPLY_V6, code));
                return Outcome::Done;
            }
            (true, ndp::SOLICITATION | ndp::ADVERTISEMENT, _) => {
                let addresses = (packet.source, packet.destination);
                let heard = self.network.on_discovery(now, addresses, packet.hops, packet.payload);
                return heard.map_or(Outcome::Done, Outcome::Heard);
            }
            (false, icmp::UNREACHABLE, icmp::FRAGMENTATION_NEEDED) => {
                return self.on_too_big(now, &packet, message.next_hop_mtu().into());
            }
            (true, icmp::TOO_BIG_V6, _) => return self.on_too_big(now, &packet, message.mtu_v6()),
            (false, icmp::UNREACHABLE, icmp::PROTOCOL_UNREACHABLE) => (true, Some(Refusal::Protocol)),
            (false, icmp::UNREACHABLE, icmp::PORT_UNREACHABLE)
            | (true, icmp::UNREACHABLE_V6, icmp::PORT_UNREACHABLE_V6) => (true, Some(Refusal::Port)),
            (true, icmp::UNREACHABLE_V6, PROHIBITED_V6) => (false, Some(Refusal::Prohibited)),
            (false, icmp::UNREACHABLE, _) | (true, icmp::UNREACHABLE_V6, _) => (false, None),
            _ => {
                self.network.counters.ignored += 1;
                return Outcome::Done;
            }
        };
        self.on_unreachable(&packet, hard, refusal)
    }

    /// Returns the thread of the socket that has sent the packet that an ICMP error quotes. Returns `None` if this thread
    /// must process the error.
    fn thread_of_error(&self, packet: &ReceivedPacket<'_>) -> Option<usize> {
        let owners = self.owners.as_ref().filter(|_| packet.arrival.from.is_none())?;
        let quoted = &packet.payload[icmp::HEADER..];
        let to = match original(quoted, ipv4::UDP) {
            Some((flow, _)) => owners.thread_of_port(flow.local.port()),
            None => owners.get(&original(quoted, ipv4::TCP)?.0)?.thread,
        };
        (to != self.thread).then_some(to)
    }

    /// Processes an ICMP error which reports that a packet did not arrive. `hard` is true if the destination has no such
    /// protocol or port. The message may be forged, so TCP checks the quoted sequence number (RFC 5927).
    fn on_unreachable<'a>(
        &mut self,
        packet: &ReceivedPacket<'a>,
        hard: bool,
        refusal: Option<Refusal>,
    ) -> Outcome<'a> {
        if let Some(to) = self.thread_of_error(packet) {
            return Outcome::Pass { to, bytes: packet.whole, arrival: packet.arrival };
        }
        let quoted = &packet.payload[icmp::HEADER..];
        if let Some((flow, sequence)) = original(quoted, ipv4::TCP) {
            if let Some(key) = self.flows.find(&flow)
                && let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key)
            {
                let events = stream.connection.on_unreachable(sequence, hard);
                debug_assert!(!events.contains(Events::CONNECTED));
                self.touch(key);
            }
            return Outcome::Done;
        }
        self.network.counters.ignored += 1;
        match (original(quoted, ipv4::UDP), refusal) {
            (Some((flow, _)), Some(refusal)) => match self.datagram_socket(flow.local, flow.remote) {
                Some(key) if self.is_connected_to(key, flow.remote) => Outcome::Unreachable { key, refusal },
                _ => Outcome::Done,
            },
            _ => Outcome::Done,
        }
    }

    /// Processes an ICMP error which reports that a packet was larger than the path MTU, `mtu` bytes. The message may be
    /// forged, so TCP checks the quoted sequence number (RFC 5927).
    fn on_too_big<'a>(&mut self, now: u64, packet: &ReceivedPacket<'a>, mtu: u32) -> Outcome<'a> {
        if let Some(to) = self.thread_of_error(packet) {
            return Outcome::Pass { to, bytes: packet.whole, arrival: packet.arrival };
        }
        let quoted = &packet.payload[icmp::HEADER..];
        if let Some((flow, sequence)) = original(quoted, ipv4::TCP) {
            if let Some(key) = self.flows.find(&flow)
                && let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key)
            {
                let headers = if flow.remote.is_ipv4() { 40 } else { 60 };
                let mss = u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
                stream.connection.on_packet_too_big(now, sequence, mss);
                self.touch(key);
            }
            return Outcome::Done;
        }
        self.network.counters.ignored += 1;
        self.on_datagram_too_big(now, quoted, mtu);
        Outcome::Done
    }

    /// Processes an ICMP error which reports that a datagram of the engine was larger than `mtu` bytes, the path MTU.
    /// `quoted` is the start of that datagram's IP packet.
    pub fn on_datagram_too_big(&mut self, now: u64, quoted: &[u8], mtu: u32) {
        if let Some((flow, _)) = original(quoted, ipv4::UDP)
            && self.datagram_socket(flow.local, flow.remote).is_some()
        {
            self.network.set_path_mtu(now, flow.remote.ip(), mtu);
        }
    }

    fn reply_echo(&mut self, now: u64, packet: &ReceivedPacket<'_>, kind_and_code: (u8, u8)) {
        if self.network.is_own(packet.destination)
            && let Some((rest, data)) = packet.payload[icmp::HEADER - 4..].split_first_chunk()
        {
            self.answer(now, packet, kind_and_code, (*rest, data));
        }
    }

    /// Sends an ICMP message to the sender of `packet`, if there is a route.
    fn answer(
        &mut self,
        now: u64,
        packet: &ReceivedPacket<'_>,
        (kind, code): (u8, u8),
        rest: ([u8; 4], &[u8]),
    ) {
        let Some(route) = self.network.route(packet.source) else { return };
        let (source, destination) = (packet.destination, packet.source);
        if destination.is_ipv4() {
            let answer = Answer::<{ ipv4::ICMP }> { kind, code, rest };
            self.network.send(now, route, source, destination, 0, &answer);
        } else {
            let answer = Answer::<{ ipv6::ICMP }> { kind, code, rest };
            self.network.send(now, route, source, destination, 0, &answer);
        }
    }

    /// Takes one ICMP error from this thread's share of the engine's budget. Returns false if the share is used up.
    pub fn may_send_icmp_error(&mut self, now: u64) -> bool {
        let threads = self.threads() as u64;
        self.icmp_budget.take(now, ICMP_BURST.div_ceil(threads), ICMP_NS * threads)
    }

    /// Answers a datagram to a port without a socket by an ICMP error (RFC 1122, section 4.1.3.1). Sends
    /// nothing if the budget of ICMP errors is used up, or if there is no route.
    pub fn refuse(&mut self, now: u64, packet: &ReceivedPacket<'_>) {
        if !packet.arrival.trusted && !self.may_send_icmp_error(now) {
            return;
        }
        let (kind, most) = match packet.source.is_ipv4() {
            true => ((icmp::UNREACHABLE, icmp::PORT_UNREACHABLE), MOST_QUOTED_V4),
            false => ((icmp::UNREACHABLE_V6, icmp::PORT_UNREACHABLE_V6), MOST_QUOTED_V6),
        };
        self.answer(now, packet, kind, ([0; 4], &packet.whole[..packet.whole.len().min(most)]));
    }
}
