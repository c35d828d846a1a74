//! Local ports: gives a port to each socket, checks for conflicts, and finds a port's listener.

use super::Stack;
use super::arena::Key;
use super::network::Route;
use super::options::SocketOptions;
use super::socket::{Listening, Role, Socket};
use inlane_tcp::{Flow, Header, Listener, Offer};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The ports that the engine chooses from, as Linux does by default.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;
/// How many ports a connect examines before it reuses one whose flow is in TIME-WAIT. Examining all of them would take
/// milliseconds when most are in TIME-WAIT.
const MOST_EXAMINED: usize = 64;

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

impl<A> Stack<A> {
    /// Returns the port for a bind: the wanted one, or a free one for port 0. Returns `None` if it is in use.
    pub fn choose_port(
        &mut self,
        wanted: SocketAddr,
        datagrams: bool,
        options: &SocketOptions,
    ) -> Option<u16> {
        if wanted.port() != 0 {
            return (!self.conflicts(wanted, datagrams, options, None)).then_some(wanted.port());
        }
        let mut ports = self.ephemeral_ports();
        let table = self.ports_of(datagrams);
        ports.find(|port| !table.contains_key(port))
    }

    /// Returns the table of local ports and the sockets that hold them: UDP sockets if `datagrams` is set,
    /// otherwise TCP sockets.
    pub fn ports_of(&self, datagrams: bool) -> &HashMap<u16, Vec<Key>> {
        if datagrams { &self.datagram_ports } else { &self.ports }
    }

    fn ports_of_mut(&mut self, datagrams: bool) -> &mut HashMap<u16, Vec<Key>> {
        if datagrams { &mut self.datagram_ports } else { &mut self.ports }
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

    /// Returns true if a connection of this thread, also one in TIME-WAIT, has a local address that overlaps `wanted`.
    pub fn has_connection_at(&self, wanted: SocketAddr, v6_only: bool) -> bool {
        self.flows.iter().chain(self.time_waits.iter().map(|(flow, _)| flow)).any(|flow| {
            flow.local.port() == wanted.port() && overlap(wanted.ip(), v6_only, flow.local.ip(), false)
        })
    }

    /// Returns true if a socket may listen. It may not if another socket listens on the same port and their addresses
    /// overlap, unless both have SO_REUSEPORT.
    pub fn may_listen(&self, key: Key) -> bool {
        self.sockets
            .get(key)
            .is_some_and(|socket| !self.conflicts(socket.local, false, &socket.options, Some(key)))
    }

    /// Gives a local port to a socket.
    pub fn hold_port(&mut self, key: Key, port: u16) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        socket.holds_port = true;
        let datagrams = matches!(socket.role, Role::Datagram(_));
        self.ports_of_mut(datagrams).entry(port).or_default().push(key);
    }

    /// Ends a socket's hold on a local port: a UDP port if `datagrams` is true, otherwise a TCP port. The
    /// port is free again when no other socket holds it.
    pub fn release_port(&mut self, key: Key, port: u16, datagrams: bool) {
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
    fn ephemeral_ports(&mut self) -> impl Iterator<Item = u16> + use<A> {
        let first = self.random();
        let count = EPHEMERAL.len() as u64;
        let (thread, owners) = (self.thread, self.owners.clone());
        let ports = (0..count).map(move |offset| EPHEMERAL.start() + ((first + offset) % count) as u16);
        ports.filter(move |&port| owners.as_ref().is_none_or(|owners| owners.thread_of_port(port) == thread))
    }

    /// Returns the local address, with an unused port, for a connection to `remote`.
    pub fn ephemeral(&mut self, source: IpAddr, remote: SocketAddr) -> Option<SocketAddr> {
        let mut waiting = None;
        for (examined, port) in self.ephemeral_ports().enumerate() {
            if waiting.is_some() && examined >= MOST_EXAMINED {
                break;
            }
            let local = SocketAddr::new(source, port);
            let flow = Flow { local, remote };
            if self.ports.contains_key(&port) || self.is_connected(&flow) {
                continue;
            }
            if !self.is_waiting(&flow) {
                return Some(local);
            }
            // Only this thread's entry tells above which number the new connection must begin.
            if self.time_waits.contains(&flow) {
                waiting = waiting.or(Some(local));
            }
        }
        waiting
    }

    /// Returns the listener for a connection to `local`. Prefers a socket bound to this address over one
    /// bound to all addresses. `hash` chooses among sockets that share the port.
    pub(super) fn listener(&self, local: SocketAddr, hash: u64) -> Option<Key> {
        let holders = self.ports.get(&local.port())?;
        let rank = |socket: &Socket<A>| {
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

    /// Returns the state of a socket that begins to listen at `local`.
    ///
    /// # Errors
    /// If an option of the socket is out of TCP's range.
    pub fn new_listening(
        &self,
        local: SocketAddr,
        options: &SocketOptions,
        backlog: usize,
    ) -> inlane_tcp::Result<Listening> {
        // A listener announces the same MSS in all its SYN,ACKs. If its address is a loopback address, this
        // is loopback's MSS, or else the port's. Each connection then sends with the MSS of its own route.
        let route = if local.ip().is_loopback() { Route::Own } else { Route::Port(local.ip()) };
        let offer = self.queue_pairs.is_some().then(Offer::default);
        let config = options.config(self.buffer, self.network.mss(route, local.is_ipv6()));
        let config = inlane_tcp::Config { offer, ..config };
        let mut listener = Listener::new(&config, self.secrets.clone(), backlog)?;
        listener.set_defer(options.defer_accept());
        Ok(Listening { listener, backlog, waiting: Arc::default() })
    }

    /// Retransmits unanswered SYN,ACKs of a listener.
    pub(super) fn on_listener_timer(&mut self, now: u64, key: Key) {
        let Some(Socket { role: Role::Listening(listening), .. }) = self.sockets.get_mut(key) else { return };
        let mut replies: Vec<(Flow, Header)> = Vec::new();
        listening.listener.on_timer(now, |flow, header| replies.push((*flow, header)));
        let deadline = listening.listener.next_deadline();
        for (flow, header) in replies {
            self.send_header(now, &flow, &header);
        }
        if let Some(deadline) = deadline {
            self.arm(key, deadline);
        }
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
