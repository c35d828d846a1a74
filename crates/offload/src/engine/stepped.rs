//! Single steps of the engine's loop, for [`crate::stepped::Stepped`].

use super::Engine;
use crate::error::Result;
use crate::network::Network;
use crate::stepped::HeldResources;
use std::os::fd::{AsFd, BorrowedFd};

impl Engine {
    /// Returns the engine's link.
    pub(crate) fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Runs one round of the engine's loop at the time `now`. Does not receive from the port and does not
    /// sleep. Returns true if the next round may have work, and false if the engine waits for a timer or an
    /// event.
    pub(crate) fn round(&mut self, now: u64) -> Result<bool> {
        let mut worked = self.receive_own(now);
        worked |= self.empty_inbox(now);
        worked |= self.wait(now, 0, &mut Vec::with_capacity(64))?;
        worked |= self.expire(now);
        worked |= !self.changed.is_empty();
        self.serve_changed(now);
        self.network.flush();
        Ok(worked || !self.changed.is_empty() || !self.network.own.is_empty())
    }

    /// Returns the time of the next timer in nanoseconds: a connection's, a TIME-WAIT entry's, or a
    /// neighbour's. Returns `None` if no timer is set.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let time_wait = self.time_wait_order.front().map(|entry| entry.0);
        self.wheel.next().into_iter().chain(time_wait).chain(self.network.next_timer()).min()
    }

    /// Returns the epoll descriptor with which the engine waits for events of its programs.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns what the engine holds now.
    pub(crate) fn held(&self) -> HeldResources {
        HeldResources {
            sockets: self.sockets.iter().filter(|(_, socket)| !socket.copy).count(),
            flows: self.flows.len(),
            ports: self.ports.len() + self.datagram_ports.len(),
            ends: self.by_cookie.len(),
            processes: self.control.permits.processes(),
            time_waits: self.time_waits.len(),
            own_packets: self.network.own.len(),
        }
    }
}
