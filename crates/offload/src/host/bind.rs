//! Local ports: gives a port to each socket, checks for conflicts, and finds a port's listener.

use super::Engine;
use super::request::Refusal;
use crate::host::socket::{Role, Socket, SocketOptions};
use crate::stack::arena::Key;
use inlane_tcp::Flow;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// The ports that the engine chooses from, as Linux does by default.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;
/// Only root may bind ports below this number.
const FIRST_UNPRIVILEGED: u16 = 1024;

/// One check examines at most this many sockets of a port, to find sockets that the program has closed. A
/// program can bind very many sockets to one port, and each examination is a system call.
const MOST_CHECKED: usize = 64;

/// Returns true if a socket bound to `a` receives connections to `b`, or the reverse. A socket bound to `::`
/// also receives IPv4 connections, unless its `v6_only` is set.
fn overlap(a: IpAddr, a_v6_only: bool, b: IpAddr, b_v6_only: bool) -> bool {
    match (a.is_unspecified(), b.is_unspecified()) {
        (false, false) => a == b,
        (true, _) if a.is_ipv4() == b.is_ipv4() => true,
        (_, true) if a.is_ipv4() == b.is_ipv4() => true,
        (true, _) if a.is_ipv6() => !a_v6_only,
        (_, true) if b.is_ipv6() => !b_v6_only,
        _ => false,
    }
}

impl Engine {
    /// Returns the port for a bind: the wanted one, or a free one for port 0.
    pub(super) fn choose_port(
        &mut self,
        user: u32,
        wanted: SocketAddr,
        datagrams: bool,
        options: &SocketOptions,
    ) -> Result<u16, Refusal> {
        if wanted.port() != 0 {
            if wanted.port() < FIRST_UNPRIVILEGED && user != 0 {
                return Err(Refusal::Errno(libc::EACCES));
            }
            self.remove_closed(wanted.port(), datagrams);
            return match self.conflicts(wanted, datagrams, options, None) {
                true => Err(Refusal::Errno(libc::EADDRINUSE)),
                false => Ok(wanted.port()),
            };
        }
        let mut ports = self.ephemeral_ports();
        let table = self.ports_of(datagrams);
        ports.find(|port| !table.contains_key(port)).ok_or(Refusal::Errno(libc::EADDRINUSE))
    }

    /// Returns the table of local ports and the sockets that hold them: UDP sockets if `datagrams` is set,
    /// otherwise TCP sockets.
    fn ports_of(&self, datagrams: bool) -> &HashMap<u16, Vec<Key>> {
        if datagrams { &self.datagram_ports } else { &self.ports }
    }

    fn ports_of_mut(&mut self, datagrams: bool) -> &mut HashMap<u16, Vec<Key>> {
        if datagrams { &mut self.datagram_ports } else { &mut self.ports }
    }

    /// Removes bound and listening sockets on `port` that their programs have closed. The port is then free
    /// at once, even if epoll has not reported the closing yet. If the port has very many sockets, checks
    /// only the newest ones. Epoll has probably reported the closing of the older ones.
    pub(super) fn remove_closed(&mut self, port: u16, datagrams: bool) {
        let Some(holders) = self.ports_of(datagrams).get(&port) else { return };
        let closed = |&&key: &&Key| {
            let socket = self.sockets.get(key);
            socket.is_some_and(|socket| {
                socket.stream().is_none() && socket.fd().is_none_or(crate::host::pair::hung_up)
            })
        };
        let closed: Vec<Key> = holders.iter().rev().take(MOST_CHECKED).filter(closed).copied().collect();
        let now = self.clock.now_ns();
        for key in closed {
            match datagrams {
                // Send the datagrams that the program wrote before it closed the socket. Then remove the
                // socket.
                true => self.drain_datagrams(now, key),
                false => self.remove(key),
            }
        }
    }

    /// Returns true if another socket holds the port for an overlapping address and does not share it.
    /// Sockets share a port if all have SO_REUSEPORT, if all have SO_REUSEADDR and none listens, or if they replace the same
    /// listener of an earlier engine.
    fn conflicts(
        &self,
        wanted: SocketAddr,
        datagrams: bool,
        options: &SocketOptions,
        except: Option<Key>,
    ) -> bool {
        let holders = self.ports_of(datagrams).get(&wanted.port()).into_iter().flatten();
        holders.filter(|&&key| Some(key) != except).filter_map(|&key| self.sockets.get(key)).any(|other| {
            let theirs = &other.options;
            let listens = matches!(other.role, Role::Listening(_));
            overlap(wanted.ip(), options.v6_only, other.local.ip(), theirs.v6_only)
                && !(options.reuse_port && theirs.reuse_port)
                && !(options.predecessor.is_some() && options.predecessor == theirs.predecessor)
                && !(options.reuse_address && theirs.reuse_address && !listens)
        })
    }

    /// Returns EADDRINUSE if another socket listens on the same port and their addresses overlap. Two sockets
    /// that both have SO_REUSEPORT do not conflict.
    pub(super) fn check_listen(&self, key: Key) -> Result<(), Refusal> {
        let socket = self.sockets.get(key).ok_or(libc::EBADF)?;
        match self.conflicts(socket.local, false, &socket.options, Some(key)) {
            true => Err(Refusal::Errno(libc::EADDRINUSE)),
            false => Ok(()),
        }
    }

    /// Gives a local port to a socket.
    pub(super) fn hold_port(&mut self, key: Key, port: u16) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        socket.holds_port = true;
        let datagrams = matches!(socket.role, Role::Datagram(_));
        self.ports_of_mut(datagrams).entry(port).or_default().push(key);
    }

    /// Ends a socket's hold on a local port: a UDP port if `datagrams` is true, otherwise a TCP port. The
    /// port is free again when no other socket holds it.
    pub(super) fn release_port(&mut self, key: Key, port: u16, datagrams: bool) {
        let table = self.ports_of_mut(datagrams);
        if let Some(keys) = table.get_mut(&port) {
            keys.retain(|&other| other != key);
            if keys.is_empty() {
                table.remove(&port);
            }
        }
    }

    /// Returns the ports from which this thread chooses, beginning with a random one. Each thread has its own
    /// ports, so two threads never choose the same port.
    fn ephemeral_ports(&mut self) -> impl Iterator<Item = u16> + use<> {
        let first = self.random();
        let count = EPHEMERAL.len() as u64;
        let (thread, shared) = (self.thread, self.shared.clone());
        let ports = (0..count).map(move |offset| EPHEMERAL.start() + ((first + offset) % count) as u16);
        ports.filter(move |&port| shared.as_ref().is_none_or(|shared| shared.thread_of_port(port) == thread))
    }

    /// Returns the local address, with an unused port, for a connection to `remote`.
    pub(super) fn ephemeral(&mut self, source: IpAddr, remote: SocketAddr) -> Result<SocketAddr, Refusal> {
        let mut waiting = None;
        for port in self.ephemeral_ports() {
            let local = SocketAddr::new(source, port);
            let flow = Flow { local, remote };
            if self.ports.contains_key(&port) || self.is_connected(&flow) {
                continue;
            }
            if !self.is_waiting(&flow) {
                return Ok(local);
            }
            waiting = waiting.or(Some(local));
        }
        // Reuse a port whose flow is in TIME-WAIT if no port is free. This is safe because the new
        // connection's initial sequence number (RFC 6528) is above the old connection's numbers.
        waiting.ok_or(Refusal::Errno(libc::EADDRNOTAVAIL))
    }

    /// Returns the listener for a connection to `local`. Prefers a socket bound to this address over one
    /// bound to all addresses. `hash` chooses among sockets that share the port.
    pub(super) fn listener(&self, local: SocketAddr, hash: u64) -> Option<Key> {
        let holders = self.ports.get(&local.port())?;
        let rank = |socket: &Socket| {
            let ip = socket.local.ip();
            match &socket.role {
                Role::Listening(_) if ip == local.ip() => 3,
                Role::Listening(_) if ip.is_unspecified() && ip.is_ipv4() == local.is_ipv4() => 2,
                Role::Listening(_) if ip.is_unspecified() && ip.is_ipv6() && !socket.options.v6_only => 1,
                _ => 0,
            }
        };
        let ranked = holders.iter().filter_map(|&key| Some((rank(self.sockets.get(key)?), key)));
        let best = ranked.clone().map(|(rank, _)| rank).max().filter(|&rank| rank > 0)?;
        let equal = ranked.filter(|&(rank, _)| rank == best).map(|(_, key)| key);
        let count = equal.clone().count() as u64;
        equal.into_iter().nth((hash % count.max(1)) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn addresses_overlap_as_in_linux() {
        let check = |a: &str, a_only, b: &str, b_only| {
            let (a, b) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(overlap(a, a_only, b, b_only), overlap(b, b_only, a, a_only));
            overlap(a, a_only, b, b_only)
        };
        assert!(check("10.0.0.1", false, "10.0.0.1", false));
        assert!(!check("10.0.0.1", false, "10.0.0.2", false));
        assert!(check("0.0.0.0", false, "10.0.0.2", false));
        assert!(check("::", false, "10.0.0.2", false));
        assert!(!check("::", true, "10.0.0.2", false));
        assert!(check("::", true, "::", true) && check("::", true, "fd00::1", false));
        assert!(check("::", false, "0.0.0.0", false) && !check("::", true, "0.0.0.0", false));
        assert!(!check("fd00::1", false, "0.0.0.0", false));
    }
}
