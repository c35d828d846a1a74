//! How busy the workers are. The acceptor chooses the worker of a new connection by it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many connections a worker thread serves.
#[derive(Debug, Default)]
pub struct Load {
    /// The number of all connections.
    pub connections: AtomicUsize,
    /// The number of connections that carry an admin queue. An admin queue causes little work.
    pub admin_queues: AtomicUsize,
}

impl Load {
    /// Returns the number of connections without an admin queue, then of all. The worker with the lowest
    /// pair gets the next connection.
    pub fn rank(&self) -> (usize, usize) {
        let connections = self.connections.load(Relaxed);
        (connections.saturating_sub(self.admin_queues.load(Relaxed)), connections)
    }
}
