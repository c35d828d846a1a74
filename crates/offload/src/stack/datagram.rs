//! UDP sockets: finds the socket of a received datagram, and sends datagrams.

use super::Stack;
use super::arena::Key;
use super::network::{self, Route};
use super::outcome::{Outcome, ReceivedDatagram};
use super::packet::ReceivedPacket;
use super::socket::{Role, Socket};
use inlane_wire::checksum::Sum;
use inlane_wire::{ipv4, udp};
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The most payload bytes of a datagram over IPv4.
const MOST_V4: usize = 65507;
/// The most payload bytes of a datagram over IPv6.
const MOST_V6: usize = 65527;

/// Why a datagram cannot be sent, or a UDP socket cannot be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsendable {
    /// The destination stands for several hosts.
    Group,
    /// There is no route to the destination.
    Route,
    /// The socket's address family or option excludes the destination.
    Family,
    /// The socket has an IPv4 address, and the destination an IPv6 address.
    SourceV4,
    /// The source is not an address of the engine, or does not fit the destination.
    Source,
    /// The destination's port is 0.
    Destination,
    /// The datagram is too long.
    Length,
    /// No local port is free.
    Port,
}

/// A UDP datagram to send.
pub struct Outgoing<'a> {
    /// The source address that the program has set for this datagram.
    pub source: Option<IpAddr>,
    /// The destination.
    pub remote: SocketAddr,
    /// The traffic class.
    pub class: u8,
    /// TTL or hop limit.
    pub hops: u8,
    /// The payload.
    pub data: &'a [u8],
}

/// Returns the local address of a UDP socket for datagrams to `remote`, or an unspecified one if the route decides. A connect to an
/// IPv6 address may have set the socket's address. As in Linux, the address then does not apply to IPv4 destinations.
pub fn local_for<A>(socket: &Socket<A>, remote: SocketAddr) -> IpAddr {
    match &socket.role {
        Role::Datagram(datagram)
            if !datagram.address_chosen && socket.local.is_ipv6() && remote.is_ipv4() =>
        {
            Ipv6Addr::UNSPECIFIED.into()
        }
        _ => socket.local.ip(),
    }
}

impl<A> Stack<A> {
    /// Sends a datagram of the UDP socket `key`. Gives the socket a port if it has none. Returns false if the datagram was
    /// dropped.
    ///
    /// # Errors
    /// Why the datagram cannot be sent.
    pub fn send_datagram(&mut self, now: u64, key: Key, outgoing: &Outgoing<'_>) -> Result<bool, Unsendable> {
        let &Outgoing { source, remote, class, hops, data } = outgoing;
        let Some(socket) = self.sockets.get(key) else { return Ok(false) };
        if data.len() > if remote.is_ipv4() { MOST_V4 } else { MOST_V6 } {
            return Err(Unsendable::Length);
        }
        if remote.port() == 0 {
            return Err(Unsendable::Destination);
        }
        if !socket.v6 && remote.is_ipv6() || socket.options.v6_only && remote.is_ipv4() {
            return Err(Unsendable::Family);
        }
        let (route, source) = self.route_from(local_for(socket, remote), source, remote.ip())?;
        let port = match socket.local.port() {
            0 => self.hold_any_port(key)?,
            port => port,
        };
        let source = SocketAddr::new(source, port);
        let datagram = network::Datagram { source, destination: remote, class, hops, data };
        Ok(self.network.send_datagram(now, route, &datagram))
    }

    /// Returns the route and the source address of a datagram to `destination`. `local` is the socket's address, and
    /// `wanted` the source that the program has set for this datagram.
    ///
    /// # Errors
    /// Why there is no such route.
    pub fn route_from(
        &self,
        local: IpAddr,
        wanted: Option<IpAddr>,
        destination: IpAddr,
    ) -> Result<(Route, IpAddr), Unsendable> {
        if self.network.is_group(destination) {
            return Err(Unsendable::Group);
        }
        let route = self.network.route(destination).ok_or(Unsendable::Route)?;
        let source = match wanted.or((!local.is_unspecified()).then_some(local)) {
            Some(source) if !self.network.is_own(source) => return Err(Unsendable::Source),
            Some(source) => source,
            None => self.network.source(destination).ok_or(Unsendable::Route)?,
        };
        match (source.is_ipv4(), destination.is_ipv4()) {
            (true, false) => return Err(Unsendable::SourceV4),
            (false, true) => return Err(Unsendable::Route),
            _ => {}
        }
        // Refuse a loopback source on the link, because loopback addresses must not appear there.
        if source.is_loopback() && route != Route::Own {
            return Err(Unsendable::Source);
        }
        Ok((route, source))
    }

    /// Gives any free port to a UDP socket that has none.
    ///
    /// # Errors
    /// [`Unsendable::Port`] if none is free.
    pub fn hold_any_port(&mut self, key: Key) -> Result<u16, Unsendable> {
        let socket = self.sockets.get(key).ok_or(Unsendable::Port)?;
        let wanted = SocketAddr::new(socket.local.ip(), 0);
        let options = socket.options.clone();
        let port = self.choose_port(wanted, true, &options).ok_or(Unsendable::Port)?;
        if let Some(socket) = self.sockets.get_mut(key) {
            socket.local.set_port(port);
        }
        self.hold_port(key, port);
        Ok(port)
    }

    /// Processes a received UDP datagram.
    pub(super) fn on_datagram<'a>(&mut self, packet: ReceivedPacket<'a>) -> Outcome<'a> {
        let Some((ports, data)) = self.checked_datagram(&packet) else {
            self.network.counters.malformed += 1;
            return Outcome::Done;
        };
        let home = self.owners.as_ref().map(|owners| owners.thread_of_port(ports.1));
        if let Some(to) = home.filter(|&home| home != self.thread) {
            return Outcome::Pass { to, bytes: packet.whole, arrival: packet.arrival };
        }
        let local = SocketAddr::new(packet.destination, ports.1);
        let remote = SocketAddr::new(packet.source, ports.0);
        Outcome::Datagram(ReceivedDatagram { local, remote, data, packet })
    }

    /// Returns true if the UDP socket `key` is connected to `remote`.
    pub(super) fn is_connected_to(&self, key: Key, remote: SocketAddr) -> bool {
        matches!(self.sockets.get(key), Some(Socket { role: Role::Datagram(datagram), .. })
            if datagram.remote == Some(remote))
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
    pub fn datagram_socket(&self, local: SocketAddr, remote: SocketAddr) -> Option<Key> {
        let holders = self.datagram_ports.get(&local.port())?;
        let rank = |socket: &Socket<A>| {
            let Role::Datagram(datagram) = socket.role else { return 0 };
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
            let hash = self.datagram_ports.hasher().hash_one(remote);
            return sharing.map(|(.., key)| key).nth((hash % count) as usize);
        }
        equal.map(|(.., key)| key).next_back()
    }
}
