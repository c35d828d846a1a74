//! A connection of a worker, with its socket and the connection's requests in flight.

use crate::target::connection::TargetConnection;
use crate::target::inbox::Ticket;
use std::os::fd::OwnedFd;

/// Whether a connection is being closed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// The connection is open and not being closed.
    No,
    /// A termination request was sent. The value is the host's deadline for closing the connection, in
    /// milliseconds since the target started.
    Lingers(u64),
    /// The target has shut the socket down. It removes the connection once none of the connection's requests
    /// to the kernel is in flight.
    Yes,
}

/// A timer for a host that must send requested data or read responses. The host is late if it is slower than the least
/// rate for too long. A timer that restarts at each byte would not suffice: a host that sends one byte a second would
/// hold its buffers for hours.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wait {
    /// The start of the timer in milliseconds. Each received or sent byte moves it forward, at most to the current
    /// time. The host is late once the timeout has passed since then. `None` while the target does not wait.
    since_ms: Option<u64>,
}

impl Wait {
    /// Records whether the target waits now.
    pub(super) fn update(&mut self, waits: bool, now_ms: u64) {
        self.since_ms = waits.then(|| self.since_ms.unwrap_or(now_ms));
    }

    /// Extends the host's time by the time that `bytes` bytes take at the least rate.
    pub(super) fn progress(&mut self, bytes: u64, least_rate: u64, now_ms: u64) {
        if let Some(since) = &mut self.since_ms {
            *since = (*since + bytes.saturating_mul(1000) / least_rate.max(1)).min(now_ms);
        }
    }

    /// Returns true if the host is late.
    pub(super) fn is_late(&self, timeout_ms: u64, now_ms: u64) -> bool {
        self.since_ms.is_some_and(|since| now_ms.saturating_sub(since) > timeout_ms)
    }
}

/// A connection with its socket and its requests in flight.
pub(super) struct Link {
    pub(super) connection: TargetConnection,
    pub(super) socket: OwnedFd,
    pub(super) receiving: bool,
    /// True while the connection waits until its socket is writable.
    pub(super) blocked: bool,
    /// The number of file operations in flight.
    pub(super) operations: u32,
    pub(super) closing: Closing,
    /// True if the last receive left data in the socket.
    pub(super) more_to_receive: bool,
    /// The memory of a receive into two parts, and its message header.
    pub(super) receive_vectors: [libc::iovec; 2],
    pub(super) receive_message: libc::msghdr,
    pub(super) accepted_ms: u64,
    /// The wait for data that the target has asked for.
    pub(super) data_wait: Wait,
    /// The wait for the host to read its responses.
    pub(super) response_wait: Wait,
    /// True if the connection carries an admin queue and is counted in [`WorkerLoad::admin_queues`]. False if it
    /// carries an I/O queue or no queue yet.
    pub(super) admin: bool,
    /// The connection's place among the half-open ones. `None` if the host was once allowed to use the queue.
    pub(super) half_open: Option<Ticket>,
    /// True if the connection is in the list of connections to serve in this round.
    pub(super) due: bool,
    /// True if the connection is in the list of connections that wait for buffers.
    pub(super) starved: bool,
    /// A buffer for bytes that are received while the connection lingers. They are ignored.
    pub(super) discard: Box<[u8]>,
}
