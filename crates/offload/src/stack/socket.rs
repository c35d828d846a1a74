//! The sockets of the stack: their addresses, options, and state as a listener, connection or UDP socket.

use super::options::SocketOptions;
use super::stream::Stream;
use inlane_tcp::Listener;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A socket.
pub struct Socket<A> {
    /// The local address. An IPv4 address is never written as an IPv4-mapped IPv6 address.
    pub local: SocketAddr,
    /// True for family AF_INET6.
    pub v6: bool,
    /// True if the socket got its local port by a bind. The table of local ports then lists the socket.
    pub holds_port: bool,
    /// The options.
    pub options: SocketOptions,
    /// What the socket does.
    pub role: Role,
    /// The deadline of the socket's timer in the timer wheel. `u64::MAX` if the socket has no timer.
    pub(super) armed: u64,
    /// True if the socket is in the list of changed sockets.
    pub(super) dirty: bool,
    /// True if the socket is in the list of connections that hold an acknowledgment back.
    pub(super) held: bool,
    /// What the stack's caller keeps with the socket.
    pub attachment: A,
}

/// What a socket does.
pub enum Role {
    /// The TCP socket is bound to a local address. It does not listen, and is not connected.
    Bound,
    /// The TCP socket listens for connections.
    Listening(Box<Listening>),
    /// The TCP socket is connected, or is connecting.
    Stream(Box<Stream>),
    /// The socket is a UDP socket.
    Datagram(Datagram),
}

impl<A> Socket<A> {
    /// Creates a socket that is not in any table yet.
    pub fn new(local: SocketAddr, v6: bool, options: SocketOptions, role: Role, attachment: A) -> Self {
        let (armed, dirty, held) = (u64::MAX, false, false);
        Self { local, v6, holds_port: false, options, role, armed, dirty, held, attachment }
    }

    /// Returns the connection.
    pub fn stream(&self) -> Option<&Stream> {
        match &self.role {
            Role::Stream(stream) => Some(stream),
            _ => None,
        }
    }
}

/// A UDP socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Datagram {
    /// The address to which the socket is connected.
    pub remote: Option<SocketAddr>,
    /// True if the program chose the local address. Otherwise connect sets the address, and a disconnect
    /// resets it.
    pub address_chosen: bool,
    /// True if the program chose the local port. Otherwise the engine chose the port, and a disconnect frees
    /// it.
    pub port_chosen: bool,
}

/// A listening socket.
pub struct Listening {
    /// The half-open connections. The caller keeps the accept queue.
    pub listener: Listener,
    /// The backlog that the program has set. It limits the connections that wait to be accepted on all threads together, and
    /// the SYN queue of each thread.
    pub backlog: usize,
    /// The connections that wait to be accepted, at the listener and at its copies on other threads.
    pub waiting: Arc<Waiting>,
}

/// The number of established connections of a listener that the program has not accepted.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Those that the caller has queued.
    queued: AtomicUsize,
    /// Those that the caller has handed over to the program, which may have accepted some since they were last counted.
    handed_over: AtomicUsize,
}

impl Waiting {
    /// Counts a connection that the caller queues.
    pub fn queue(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a queued connection as handed over to the program.
    pub fn hand_over(&self) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// Sets how many of the connections that were handed over are not accepted yet.
    pub fn recount(&self, handed_over: usize) {
        self.handed_over.store(handed_over, Ordering::Relaxed);
    }

    /// Returns the number of connections that wait. Some of them may be accepted already.
    pub(super) fn total(&self) -> usize {
        self.queued.load(Ordering::Relaxed) + self.handed_over.load(Ordering::Relaxed)
    }
}

impl Listening {
    /// Changes the backlog.
    pub fn set_backlog(&mut self, backlog: usize) {
        self.backlog = backlog;
        self.listener.set_backlog(backlog);
    }

    /// Tells TCP's listener how many connections wait. Returns true if no further one may.
    pub(super) fn is_full(&mut self) -> bool {
        self.listener.set_waiting(self.waiting.total());
        self.listener.is_full()
    }
}
