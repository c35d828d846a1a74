//! Moves the datagrams of UDP sockets between socket pairs and the network.
//!
//! The socket pair is the only queue of a UDP socket, so the size of the pair bounds the socket's memory. If
//! the pair is full, a received datagram is dropped and counted, as in a kernel.

use super::Engine;
use super::input::{ReceivedPacket, original};
use crate::host::pair;
use crate::host::socket::{Role, Socket, SocketOptions};
use crate::stack::arena::Key;
use crate::stack::network::{self, Route};
use inlane_offload_protocol::datagram::{self, Header, receive, send};
use inlane_wire::checksum::Sum;
use inlane_wire::{icmp, ipv4, ipv6, udp};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// The most datagrams that one socket sends in a turn. Then other sockets have their turn.
const TURN: usize = 64;
/// Limits the datagrams that the engine sends for a socket before the socket closes, or before its address or
/// options change. They wait in the socket pair. The engine sends at most this many times [`TURN`] of them.
const MOST_TURNS: usize = 16;
/// A limit for the packets that the engine has sent to itself and not processed yet. At this number, the
/// engine reads no more datagrams from the pairs.
const MOST_OWN: usize = 256;
/// The most bytes of a received packet that an ICMP error about the packet quotes. The error is then at most
/// 576 bytes long (RFC 1812, section 4.3.2.3).
const MOST_QUOTED_V4: usize = 548;
/// The most bytes of a received packet that an ICMPv6 error about the packet quotes. The error is then at
/// most 1280 bytes long, IPv6's least MTU (RFC 4443, section 2.4).
const MOST_QUOTED_V6: usize = 1232;
/// The number of ICMP errors that the engine may send to other hosts in a burst. Later, it may send one more
/// error every `ICMP_NS` nanoseconds. Linux has the same limits. The engine's threads share them equally.
const ICMP_BURST: u64 = 50;
const ICMP_NS: u64 = 1_000_000;
/// TTL and hop limit of sockets on which the program has not set them.
const HOPS: u8 = 64;

/// Converts the code of an ICMP message of type `UNREACHABLE`. Returns the errno for a connected UDP socket,
/// or `None` if UDP ignores the code.
pub(super) fn error_v4(code: u8) -> Option<i32> {
    match code {
        2 => Some(libc::ENOPROTOOPT),
        icmp::PORT_UNREACHABLE => Some(libc::ECONNREFUSED),
        _ => None,
    }
}

/// As [`error_v4`], for ICMPv6.
pub(super) fn error_v6(code: u8) -> Option<i32> {
    match code {
        1 => Some(libc::EACCES),
        icmp::PORT_UNREACHABLE_V6 => Some(libc::ECONNREFUSED),
        _ => None,
    }
}

/// An ICMP error about a received packet.
struct Unreachable<'a, const PROTOCOL: u8> {
    quoted: &'a [u8],
}

impl<const PROTOCOL: u8> network::Payload for Unreachable<'_, PROTOCOL> {
    const PROTOCOL: u8 = PROTOCOL;

    fn len(&self) -> usize {
        icmp::HEADER + self.quoted.len()
    }

    fn write(&self, buffer: &mut [u8], pseudo: Option<Sum>) {
        buffer[icmp::HEADER..].copy_from_slice(self.quoted);
        let mut message = icmp::Message::new(buffer).expect("the buffer has this length");
        let v6 = PROTOCOL == ipv6::ICMP;
        message.set_kind(if v6 { icmp::UNREACHABLE_V6 } else { icmp::UNREACHABLE });
        message.set_code(if v6 { icmp::PORT_UNREACHABLE_V6 } else { icmp::PORT_UNREACHABLE });
        message.set_checksum(0);
        message.set_mtu_v6(0);
        // The checksum of ICMPv6 covers the pseudo header, that of ICMP does not.
        let start = if v6 { pseudo.unwrap_or_default() } else { Sum::new() };
        let checksum = start.add_bytes(message.bytes()).finish();
        message.set_checksum(checksum);
    }
}

impl Socket {
    /// Puts an option into effect that [`SocketOptions::set`] has stored.
    pub(super) fn apply_datagram_option(&mut self, level: i32, name: i32) {
        let Role::Datagram(datagram) = &mut self.role else { return };
        let options = &self.options;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                if let (Some(end), Some(bytes)) = (&self.end, options.receive_buffer) {
                    // Limit the send buffer of the engine's end of the socket pair, because the kernel counts
                    // the datagrams that wait for the program in this buffer. Pass half of the value, because
                    // the kernel doubles it.
                    let _ = pair::set_option(end, libc::SO_SNDBUF, bytes / 2);
                }
            }
            _ => datagram.wanted = options.wanted(),
        }
    }
}

impl SocketOptions {
    /// Returns the value of a numeric option in `others`, or `None` if the program has not set the option.
    fn number(&self, level: i32, name: i32) -> Option<i32> {
        match *self.others.get(&(level, name))?.as_slice() {
            [a, b, c, d, ..] => Some(i32::from_ne_bytes([a, b, c, d])),
            [a, ..] => Some(a.into()),
            [] => None,
        }
    }

    /// Returns the ancillary data that the program has asked for: flags of [`receive`].
    fn wanted(&self) -> u8 {
        let flags = [
            (libc::IPPROTO_IP, libc::IP_PKTINFO, receive::INFO_V4),
            (libc::IPPROTO_IP, libc::IP_RECVTTL, receive::HOPS_V4),
            (libc::IPPROTO_IP, libc::IP_RECVTOS, receive::CLASS_V4),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, receive::INFO_V6),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, receive::HOPS_V6),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, receive::CLASS_V6),
        ];
        let set = flags
            .into_iter()
            .filter(|&(level, name, _)| self.number(level, name).is_some_and(|number| number != 0));
        set.fold(0, |wanted, (.., flag)| wanted | flag)
    }

    /// Returns an option of a UDP socket, as Linux's getsockopt does.
    pub(super) fn datagram_option(&self, level: i32, name: i32) -> i32 {
        let usual = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEPORT) => return i32::from(self.reuse_port),
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => return i32::from(self.v6_only),
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => HOPS.into(),
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => libc::IP_PMTUDISC_WANT,
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => libc::IPV6_PMTUDISC_WANT,
            (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL | libc::IP_MULTICAST_LOOP) => 1,
            (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS | libc::IPV6_MULTICAST_LOOP) => 1,
            _ => 0,
        };
        self.number(level, name).unwrap_or(usual)
    }

    /// Returns the traffic class, and the TTL or hop limit, of a datagram. The datagram's header may override
    /// the socket's options.
    fn class_and_hops(&self, header: &Header, v6: bool) -> (u8, u8) {
        let (class, hops) = match v6 {
            false => ((libc::IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IP, libc::IP_TTL)),
            true => ((libc::IPPROTO_IPV6, libc::IPV6_TCLASS), (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)),
        };
        // Use the default for values outside 0 to 255. As in Linux, programs set -1 to return to the default.
        let set = |(level, name)| self.number(level, name).filter(|number| (0..256).contains(number));
        let class = match header.flags & send::CLASS {
            0 => set(class).unwrap_or(0) as u8,
            _ => header.class,
        };
        let hops = match header.flags & send::HOPS {
            0 => set(hops).map_or(HOPS, |hops| hops as u8),
            _ => header.hops,
        };
        (class, hops)
    }
}

impl Engine {
    /// Sends the datagrams that the program has written to the pair. Removes the socket if the program has
    /// closed it.
    pub(super) fn serve_datagrams(&mut self, now: u64, key: Key) {
        let mut buffer = std::mem::take(&mut self.datagram_buffer);
        // Make room for one byte more than the largest datagram, to detect a longer datagram.
        buffer.resize(datagram::LEN + datagram::MOST_V6 + 1, 0);
        let mut errors = 0;
        for count in 0.. {
            let Some(Socket { role: Role::Datagram(datagram), end: Some(end), closer, .. }) =
                self.sockets.get_mut(key)
            else {
                break;
            };
            if !datagram.readable {
                break;
            }
            if count == TURN || self.network.is_congested() || self.network.own.len() >= MOST_OWN {
                self.touch(key);
                break;
            }
            let fd = std::os::fd::AsRawFd::as_raw_fd(end);
            match pair::take(fd, &mut buffer, &mut [], closer) {
                Ok((0, _)) => {
                    datagram.readable = false;
                    if pair::hung_up(fd) {
                        self.remove(key);
                    }
                }
                Ok((len, _)) => self.on_program_datagram(now, key, &buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => datagram.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Continue after the first error. One read fails with ECONNRESET if the program has closed
                // its socket with unread datagrams. Later reads return the datagrams that the program had
                // sent.
                Err(_) => {
                    errors += 1;
                    if errors > 1 {
                        self.remove(key);
                    }
                }
            }
        }
        self.datagram_buffer = buffer;
    }

    /// Handles a message that the engine read from the engine's end of a socket pair. The message has data,
    /// and may begin with a header. Sends the data as a datagram, or keeps it until the program has sent the
    /// rest of the datagram. The program may be hostile, so `bytes` can be anything.
    fn on_program_datagram(&mut self, now: u64, key: Key, bytes: &[u8]) {
        let (header, data) = match Header::decode(self.number, bytes) {
            Some(header) => (header, &bytes[datagram::LEN..]),
            None => (Header::new(self.number), bytes),
        };
        let Some(Socket { role: Role::Datagram(socket), options, .. }) = self.sockets.get_mut(key) else {
            return;
        };
        let more =
            header.flags & send::MORE != 0 || options.datagram_option(libc::IPPROTO_UDP, libc::UDP_CORK) != 0;
        if !more && socket.unfinished.is_none() {
            return self.send_or_report(now, key, &header, data);
        }
        let (_, joined) = socket.unfinished.get_or_insert_with(|| (header, Vec::new()));
        if joined.len() + data.len() > datagram::MOST_V6 {
            socket.unfinished = None;
            return self.report_unsent(key, libc::EMSGSIZE);
        }
        joined.extend_from_slice(data);
        if !more {
            self.finish_datagram(now, key);
        }
    }

    /// If the engine has collected the parts of a datagram, sends this datagram.
    fn finish_datagram(&mut self, now: u64, key: Key) {
        if let Some(Socket { role: Role::Datagram(datagram), .. }) = self.sockets.get_mut(key)
            && let Some((header, data)) = datagram.unfinished.take()
        {
            self.send_or_report(now, key, &header, &data);
        }
    }

    fn send_or_report(&mut self, now: u64, key: Key, header: &Header, data: &[u8]) {
        if let Err(error) = self.send_program_datagram(now, key, header, data) {
            self.report_unsent(key, error);
        }
    }

    fn report_unsent(&mut self, key: Key, error: i32) {
        if let Some(Socket { role: Role::Datagram(datagram), .. }) = self.sockets.get_mut(key) {
            datagram.counters.unsent += 1;
        }
        self.report_error(key, error);
    }

    /// Sends the datagrams that the program has written to the socket pair so far. Call this before the
    /// address or options of the socket change, because these datagrams must be sent with the old ones.
    pub(super) fn drain_datagrams(&mut self, now: u64, key: Key) {
        for _ in 0..MOST_TURNS {
            let Some(Socket { role: Role::Datagram(datagram), .. }) = self.sockets.get_mut(key) else {
                return;
            };
            datagram.readable = true;
            self.serve_datagrams(now, key);
            match self.sockets.get(key).map(|socket| &socket.role) {
                Some(Role::Datagram(datagram)) if datagram.readable => {}
                _ => return,
            }
        }
    }

    /// Puts an option into effect that the program has just set.
    pub(super) fn on_datagram_option(&mut self, now: u64, key: Key, level: i32, name: i32) {
        if let Some(socket) = self.sockets.get_mut(key) {
            socket.apply_datagram_option(level, name);
            if (level, name) == (libc::IPPROTO_UDP, libc::UDP_CORK)
                && socket.options.datagram_option(level, name) == 0
            {
                self.finish_datagram(now, key);
            }
        }
    }

    fn send_program_datagram(&mut self, now: u64, key: Key, header: &Header, data: &[u8]) -> Result<(), i32> {
        let Some(socket) = self.sockets.get(key) else { return Ok(()) };
        let Role::Datagram(datagram) = &socket.role else { return Ok(()) };
        let remote = header.remote.or(datagram.remote).ok_or(libc::EDESTADDRREQ)?;
        let remote = super::request::this_host(super::request::canonical(remote));
        let most = if remote.is_ipv4() { datagram::MOST_V4 } else { datagram::MOST_V6 };
        if data.len() > most {
            return Err(libc::EMSGSIZE);
        }
        if remote.port() == 0 {
            return Err(libc::EINVAL);
        }
        if !socket.v6 && remote.is_ipv6() || socket.options.v6_only && remote.is_ipv4() {
            return Err(libc::ENETUNREACH);
        }
        let (route, source) = self.route_from(socket.local.ip(), header.local, remote.ip())?;
        let (class, hops) = socket.options.class_and_hops(header, remote.is_ipv6());
        let port = match socket.local.port() {
            0 => self.hold_any_port(key)?,
            port => port,
        };
        let source = SocketAddr::new(source, port);
        let datagram = network::Datagram { source, destination: remote, class, hops, data };
        let sent = self.network.send_datagram(now, route, &datagram);
        if let Some(Socket { role: Role::Datagram(datagram), .. }) = self.sockets.get_mut(key) {
            let counters = &mut datagram.counters;
            match sent {
                true => {
                    (counters.sent, counters.sent_bytes) =
                        (counters.sent + 1, counters.sent_bytes + data.len() as u64)
                }
                false => counters.unsent += 1,
            }
        }
        Ok(())
    }

    /// Returns the route and the source address of a datagram to `destination`. `wanted` is the source that
    /// the program has set for this datagram.
    pub(super) fn route_from(
        &self,
        local: IpAddr,
        wanted: Option<SocketAddr>,
        destination: IpAddr,
    ) -> Result<(Route, IpAddr), i32> {
        if self.network.is_group(destination) {
            return Err(libc::EACCES);
        }
        let route = self.network.route(destination).ok_or(libc::ENETUNREACH)?;
        let chosen =
            wanted.map(|wanted| wanted.ip().to_canonical()).or((!local.is_unspecified()).then_some(local));
        let source = match chosen {
            Some(source) if !self.network.is_own(source) => return Err(libc::EINVAL),
            Some(source) => source,
            None => self.network.source(destination).ok_or(libc::ENETUNREACH)?,
        };
        // Refuse a source of another family than the destination. Also refuse a loopback source on the link,
        // because loopback addresses must not appear there.
        if source.is_ipv4() != destination.is_ipv4() || source.is_loopback() && route != Route::Own {
            return Err(libc::EINVAL);
        }
        Ok((route, source))
    }

    /// Gives any free port to a UDP socket that has none.
    pub(super) fn hold_any_port(&mut self, key: Key) -> Result<u16, i32> {
        let socket = self.sockets.get(key).ok_or(libc::EBADF)?;
        let wanted = SocketAddr::new(socket.local.ip(), 0);
        let options = socket.options.clone();
        let port = self.choose_port(0, wanted, true, &options).map_err(|_| libc::EAGAIN)?;
        if let Some(socket) = self.sockets.get_mut(key) {
            socket.local.set_port(port);
        }
        self.hold_port(key, port);
        Ok(port)
    }

    /// Makes the next call of the program on a connected socket fail with `error`.
    fn report_error(&mut self, key: Key, error: i32) {
        let header = Header { error, ..Header::new(self.number) };
        let Some(socket) = self.sockets.get(key) else { return };
        if let (Role::Datagram(datagram), Some(fd)) = (&socket.role, socket.fd())
            && datagram.remote.is_some()
        {
            // Ignore a full socket pair, because the program then already has datagrams or errors to read.
            let _ = pair::send(fd, &header.encode(), &[]);
        }
    }

    /// Processes a received UDP datagram.
    pub(super) fn on_datagram(&mut self, now: u64, packet: &ReceivedPacket<'_>) {
        let Some((ports, data)) = self.checked_datagram(packet) else {
            self.network.counters.malformed += 1;
            return;
        };
        if self.pass_by_port(ports.1, packet) {
            return;
        }
        let local = SocketAddr::new(packet.destination, ports.1);
        let remote = SocketAddr::new(packet.source, ports.0);
        // If the program has closed the socket that was found, `deliver` fails and removes the socket. Then
        // look for another match, at most 8 times for one datagram.
        for _ in 0..8 {
            let Some(key) = self.datagram_socket(local, remote) else { break };
            if self.deliver(now, key, local, remote, packet, data) {
                return;
            }
        }
        self.totals.no_port += 1;
        self.refuse(now, packet);
    }

    /// Checks a datagram. Returns its source port, destination port and payload, or `None` if it is
    /// malformed.
    fn checked_datagram<'a>(&self, packet: &ReceivedPacket<'a>) -> Option<((u16, u16), &'a [u8])> {
        let view = udp::Datagram::new(packet.payload).ok()?;
        let len = usize::from(view.length());
        if len < udp::HEADER || len > packet.payload.len() {
            return None;
        }
        if packet.source.is_multicast()
            || packet.source.is_unspecified()
            || self.network.is_group(packet.source)
        {
            return None;
        }
        let bytes = &packet.payload[..len];
        // Pass the length from the UDP header to the pseudo header. It may be less than the length of the IP
        // payload.
        let pseudo = match (packet.source, packet.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Sum::new().add_pseudo_v4(source, destination, ipv4::UDP, len as u32)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Sum::new().add_pseudo_v6(source, destination, ipv4::UDP, len as u32)
            }
            _ => return None,
        };
        let intact = packet.arrival.trusted
            || match view.checksum() {
                0 => packet.source.is_ipv4(),
                checksum => {
                    pseudo.add_bytes(bytes).finish() == 0
                        || self.network.accepts_partial_checksums() && checksum == pseudo.folded()
                }
            };
        intact.then(|| ((view.source_port(), view.destination_port()), &bytes[udp::HEADER..]))
    }

    /// Returns the UDP socket for a received datagram. The first rule that leaves one socket decides:
    ///
    /// 1. Prefer connected sockets.
    /// 2. Prefer sockets bound to the datagram's destination to sockets bound to all addresses.
    /// 3. Among sockets with SO_REUSEPORT, a hash of the sender's address chooses.
    /// 4. Otherwise, choose the socket that got the port last.
    fn datagram_socket(&self, local: SocketAddr, remote: SocketAddr) -> Option<Key> {
        let holders = self.datagram_ports.get(&local.port())?;
        let rank = |socket: &Socket| {
            let Role::Datagram(datagram) = &socket.role else { return 0 };
            let ip = socket.local.ip();
            let address = match ip.is_unspecified() {
                false if ip == local.ip() => 3,
                true if ip.is_ipv4() == local.is_ipv4() => 2,
                true if ip.is_ipv6() && !socket.options.v6_only => 1,
                _ => return 0,
            };
            match datagram.remote {
                None => address,
                Some(connected) if connected == remote => address + 3,
                Some(_) => 0,
            }
        };
        let ranked =
            holders.iter().filter_map(|&key| self.sockets.get(key).map(|socket| (rank(socket), socket, key)));
        let best = ranked.clone().map(|(rank, ..)| rank).max().filter(|&rank| rank > 0)?;
        let equal = ranked.filter(|&(rank, ..)| rank == best);
        let sharing = equal.clone().filter(|(_, socket, _)| socket.options.reuse_port);
        let count = sharing.clone().count() as u64;
        if count > 1 {
            use std::hash::BuildHasher;
            let hash = self.by_cookie.hasher().hash_one(remote);
            return sharing.map(|(.., key)| key).nth((hash % count) as usize);
        }
        equal.map(|(.., key)| key).next_back()
    }

    /// Writes a received datagram to the socket pair of the socket `key`. If the pair is full, counts the
    /// datagram as dropped. Returns false if the socket no longer exists, because the program has closed it.
    fn deliver(
        &mut self,
        now: u64,
        key: Key,
        local: SocketAddr,
        remote: SocketAddr,
        packet: &ReceivedPacket<'_>,
        data: &[u8],
    ) -> bool {
        let engine = self.number;
        let Some(socket) = self.sockets.get_mut(key) else { return false };
        let fd = socket.fd();
        let (Role::Datagram(datagram), Some(fd)) = (&mut socket.role, fd) else { return false };
        let header = Header {
            engine,
            flags: datagram.wanted,
            hops: packet.hops,
            class: packet.class,
            error: 0,
            remote: Some(remote),
            local: Some(local),
        };
        match pair::send(fd, &header.encode(), data) {
            Ok(_) => {
                datagram.counters.received += 1;
                datagram.counters.received_bytes += data.len() as u64;
                true
            }
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) && pair::hung_up(fd) => {
                self.drain_datagrams(now, key);
                // Return true while the socket remains, because its last datagrams may still wait for room on
                // the link.
                self.sockets.get(key).is_some()
            }
            Err(_) => {
                datagram.counters.dropped += 1;
                true
            }
        }
    }

    /// Takes one ICMP error from this thread's share of the engine's budget. Returns false if the share is used up.
    fn may_send_icmp_error(&mut self, now: u64) -> bool {
        let threads = self.threads() as u64;
        self.icmp_budget.take(now, ICMP_BURST.div_ceil(threads), ICMP_NS * threads)
    }

    /// Answers a datagram to a port without a socket by an ICMP error (RFC 1122, section 4.1.3.1). Sends
    /// nothing if the budget of ICMP errors is used up, or if there is no route.
    fn refuse(&mut self, now: u64, packet: &ReceivedPacket<'_>) {
        if !packet.arrival.trusted && !self.may_send_icmp_error(now) {
            return;
        }
        let Some(route) = self.network.route(packet.source) else { return };
        let (source, destination) = (packet.destination, packet.source);
        if destination.is_ipv4() {
            let quoted = &packet.whole[..packet.whole.len().min(MOST_QUOTED_V4)];
            let error = Unreachable::<{ ipv4::ICMP }> { quoted };
            self.network.send(now, route, source, destination, 0, &error);
        } else {
            let quoted = &packet.whole[..packet.whole.len().min(MOST_QUOTED_V6)];
            let error = Unreachable::<{ ipv6::ICMP }> { quoted };
            self.network.send(now, route, source, destination, 0, &error);
        }
    }

    /// Processes an ICMP error which reports that a datagram of the engine was too large for a link. `quoted`
    /// is the start of that datagram's IP packet. `mtu` is the reported MTU.
    pub(super) fn on_datagram_too_big(&mut self, now: u64, quoted: &[u8], mtu: u32) {
        if let Some((flow, _)) = original(quoted, ipv4::UDP)
            && self.datagram_socket(flow.local, flow.remote).is_some()
        {
            self.network.set_path_mtu(now, flow.remote.ip(), mtu);
        }
    }

    /// Processes an ICMP error about a datagram of a connected socket. `quoted` is the start of the
    /// datagram's IP packet.
    pub(super) fn on_datagram_refused(&mut self, quoted: &[u8], error: Option<i32>) {
        let (Some((flow, _)), Some(error)) = (original(quoted, ipv4::UDP), error) else { return };
        let Some(key) = self.datagram_socket(flow.local, flow.remote) else { return };
        if let Some(Socket { role: Role::Datagram(datagram), .. }) = self.sockets.get(key)
            && datagram.remote == Some(flow.remote)
        {
            self.report_error(key, error);
        }
    }
}

#[cfg(test)]
mod tests;
