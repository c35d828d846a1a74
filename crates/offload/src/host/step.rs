//! Single steps of the engine's loop, for [`crate::stepped::Stepped`].

use super::Engine;
use crate::error::Result;
use crate::stack::network::Network;
use std::os::fd::{AsFd, BorrowedFd};

/// What an engine holds now. All fields but `time_waits` are 0 once every program has closed its sockets and
/// every connection has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldResources {
    /// Sockets of all programs. Does not count the copies of listeners on other threads.
    pub sockets: usize,
    /// TCP flows that have a connection.
    pub flows: usize,
    /// Local TCP and UDP ports that sockets hold.
    pub ports: usize,
    /// The entries of the table by which the engine finds a socket. The key is the cookie of the program's end
    /// of the socket pair.
    pub ends: usize,
    /// Processes that have at least one socket.
    pub processes: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Packets that the engine has sent to itself and not processed yet.
    pub own_packets: usize,
}

impl HeldResources {
    /// Adds the counts of another thread. `processes` is not added, because all threads share one list of
    /// processes.
    pub fn add(&mut self, other: &Self) {
        self.sockets += other.sockets;
        self.flows += other.flows;
        self.ports += other.ports;
        self.ends += other.ends;
        self.processes = other.processes;
        self.time_waits += other.time_waits;
        self.own_packets += other.own_packets;
    }
}

impl Engine {
    /// Returns the engine's network.
    pub(crate) fn network_mut(&mut self) -> &mut Network {
        &mut self.stack.network
    }

    /// Runs one round of the engine's loop at the time `now`. Does not receive from the port and does not
    /// sleep. Returns true if the next round may have work, and false if the engine waits for a timer or an
    /// event.
    pub(crate) fn round(&mut self, now: u64) -> Result<bool> {
        let mut worked = self.receive_own(now);
        worked |= self.empty_inbox(now);
        worked |= self.wait(now, 0, &mut Vec::with_capacity(64))?;
        worked |= self.expire(now);
        worked |= !self.stack.changed.is_empty();
        self.serve_changed(now);
        self.stack.network.flush();
        Ok(worked || !self.stack.changed.is_empty() || !self.stack.network.own.is_empty())
    }

    /// Returns the time of the next timer in nanoseconds: a connection's, a TIME-WAIT entry's, or a
    /// neighbour's. Returns `None` if no timer is set.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.stack.next_timer().into_iter().chain(self.stack.network.next_timer()).min()
    }

    /// Returns the epoll descriptor with which the engine waits for events of its programs.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns what the engine holds now.
    pub(crate) fn held(&self) -> HeldResources {
        HeldResources {
            sockets: self.stack.sockets.iter().filter(|(_, socket)| !socket.attachment.copy).count(),
            flows: self.stack.flows.len(),
            ports: self.stack.ports.len() + self.stack.datagram_ports.len(),
            ends: self.by_cookie.len(),
            processes: self.control.permits.processes(),
            time_waits: self.stack.time_waits.len(),
            own_packets: self.stack.network.own.len(),
        }
    }
}
