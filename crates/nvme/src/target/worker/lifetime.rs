//! Accepts connections and ends them: when the host disconnects, after protocol violations, and at timeouts.

use super::link::Wait;
use super::{Closing, Link, Worker};
use crate::target::connection::{End, Setup, TargetConnection};
use crate::target::controller::Reach;
use crate::target::inbox::ConnectionId;
use crate::target::inbox::Ticket;
use crate::target::network::network;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, Release};

/// How long a host may take to read a termination request.
const LINGER_MS: u64 = 1000;
/// How long commands in progress may take when the target ends.
const DRAIN_MS: u64 = 5000;

/// Shuts a socket down by the C library's function. rustix makes the system call itself, and `inlane offload run` replaces the
/// C library's functions.
pub(super) fn shutdown(socket: &OwnedFd, how: i32) {
    // SAFETY: the descriptor is open.
    unsafe { libc::shutdown(socket.as_raw_fd(), how) };
}

impl Worker {
    pub(super) fn accept(&mut self, socket: OwnedFd, peer: SocketAddr, local: SocketAddr, ticket: Ticket) {
        if self.draining_since.is_some() {
            self.subsystem.half_open.remove(&ticket);
            self.load.connections.fetch_sub(1, Relaxed);
            self.load.half_open.fetch_sub(1, Release);
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        self.next_id += 1;
        let id = ConnectionId(self.next_id << 24 | index as u64);
        let reach = Reach { inbox: self.inbox.clone(), connection: id };
        let setup = Setup {
            subsystem: self.subsystem.clone(),
            share: self.pool.share(network(peer.ip()), self.subsystem.limits.connection_bytes),
            reach: reach.clone(),
            peer,
            local,
        };
        let link = Link {
            connection: TargetConnection::new(setup),
            socket,
            receiving: false,
            blocked: false,
            operations: 0,
            closing: Closing::No,
            more_to_receive: true,
            receive_vectors: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2],
            // SAFETY: a message header of zeros is valid.
            receive_message: unsafe { std::mem::zeroed() },
            accepted_ms: self.now_ms,
            data_wait: Wait::default(),
            response_wait: Wait::default(),
            admin: false,
            half_open: Some(ticket),
            due: false,
            starved: false,
            discard: Box::default(),
        };
        self.links[index] = Some(Box::new(link));
        self.mark(index);
        if !self.subsystem.half_open.taken(&ticket, reach) {
            self.displace(index);
        }
    }

    /// Closes a half-open connection to make room for other connections. Does nothing if its host may already
    /// use its queue.
    pub(super) fn displace(&mut self, index: usize) {
        let link = self.link(index);
        if link.closing != Closing::Yes && !link.connection.is_connected() {
            self.subsystem.counters.refused.fetch_add(1, Relaxed);
            self.subsystem.counters.displaced.fetch_add(1, Relaxed);
            self.close(index);
        }
    }

    /// Records how far a half-open connection has come.
    pub(super) fn follow_half_open(&mut self, index: usize) {
        let Self { links, subsystem, load, .. } = self;
        let link = links[index].as_mut().expect("a link");
        let Some(ticket) = &link.half_open else { return };
        match link.connection.half_open_step() {
            Some(step) => subsystem.half_open.advance(ticket, step),
            None => {
                subsystem.half_open.remove(ticket);
                load.half_open.fetch_sub(1, Release);
                link.half_open = None;
            }
        }
    }

    /// Shuts down the sending direction of an ending connection after its last output, so that the host can
    /// read this output. If the host has terminated the connection, closes the connection at once.
    pub(super) fn linger(&mut self, index: usize) {
        let now = self.now_ms;
        let link = self.link(index);
        let terminated = match link.connection.end() {
            Some(end) => matches!(end, End::Terminated(_)),
            None => return,
        };
        if link.closing != Closing::No || link.connection.pending_bytes() > 0 {
            return;
        }
        if terminated {
            return self.close(index);
        }
        // Shut down only the sending direction, because closing the socket with unread input would reset the
        // connection, and the host might lose the termination request.
        shutdown(&link.socket, libc::SHUT_WR);
        link.closing = Closing::Lingers(now + LINGER_MS);
        link.discard = vec![0; 16 << 10].into_boxed_slice();
    }

    /// Shuts down a connection's socket at once. The requests in flight on this socket then end soon.
    pub(super) fn close(&mut self, index: usize) {
        self.cancel_job(index);
        let Self { links, subsystem, .. } = self;
        let link = links[index].as_mut().expect("a link");
        if link.closing != Closing::Yes {
            link.closing = Closing::Yes;
            if let Some(ticket) = &link.half_open {
                subsystem.half_open.remove(ticket);
            }
            link.connection.disconnected();
            shutdown(&link.socket, libc::SHUT_RDWR);
        }
        self.mark(index);
    }

    pub(super) fn remove_if_idle(&mut self, index: usize) {
        let link = self.link(index);
        if link.receiving || link.blocked || link.operations > 0 {
            return;
        }
        tracing::debug!("{}: connection closed", link.connection.setup.peer);
        let never_usable = link.half_open.is_some();
        if link.admin {
            self.load.admin_queues.fetch_sub(1, Relaxed);
        }
        self.links[index] = None;
        self.starved.retain(|other| *other != index);
        self.free.push(index);
        self.load.connections.fetch_sub(1, Relaxed);
        if never_usable {
            self.load.half_open.fetch_sub(1, Release);
        }
    }

    /// Ends connections whose hosts take too long.
    pub(super) fn tick(&mut self) {
        let limits = &self.subsystem.limits;
        let (handshake_ms, stall_ms) =
            (limits.handshake_timeout.as_millis() as u64, limits.stall_timeout.as_millis() as u64);
        let now = self.now_ms;
        let drained_by = self.draining_since.map(|since| since + DRAIN_MS);
        for index in 0..self.links.len() {
            let Some(link) = self.links[index].as_mut() else { continue };
            link.data_wait.update(link.connection.awaits_data(), now);
            link.response_wait.update(link.connection.pending_bytes() > 0, now);
            let authenticating = link.connection.authenticating_since_ms();
            let late = |since: u64, limit: u64| now.saturating_sub(since) > limit;
            let why = match link.closing {
                Closing::Yes => continue,
                Closing::Lingers(until) if now > until => "the host did not close it",
                Closing::Lingers(_) => continue,
                Closing::No if drained_by.is_some_and(|until| now > until) => "the target ends",
                Closing::No if !link.connection.is_connected() && late(link.accepted_ms, handshake_ms) => {
                    "the host did not connect a queue, or authenticate itself, in time"
                }
                Closing::No if authenticating.is_some_and(|since| late(since, handshake_ms)) => {
                    "the host did not complete an authentication in time"
                }
                Closing::No if link.data_wait.is_late(stall_ms, now) => {
                    "the host sends requested data too slowly"
                }
                Closing::No if link.response_wait.is_late(stall_ms, now) => {
                    "the host reads responses too slowly"
                }
                Closing::No => continue,
            };
            if link.closing == Closing::No && drained_by.is_none() {
                self.subsystem.counters.refused.fetch_add(1, Relaxed);
                let peer = link.connection.setup.peer;
                self.subsystem.warn(format_args!("{peer}: connection closed: {why}"));
                link.connection.end_controller();
            }
            self.close(index);
        }
    }
}
