//! Counts each worker's connections. A new connection goes to the worker with the fewest.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How many connections a worker thread serves. A new connection goes to the worker with the lowest
/// [`WorkerLoad::rank`].
#[derive(Debug, Default)]
pub struct WorkerLoad {
    /// The number of all connections.
    pub connections: AtomicUsize,
    /// The number of connections that carry an admin queue. An admin queue causes little work.
    pub admin_queues: AtomicUsize,
    /// The number of half-open connections, on which the host was never allowed to use a queue. Some of them
    /// may be closing.
    pub half_open: AtomicUsize,
}

impl WorkerLoad {
    /// Returns the rank of the worker. The worker with the lowest rank gets the next connection. The first
    /// number counts connections without an admin queue: they carry an I/O queue, or may still get one. The
    /// second number counts all connections. It decides if the first numbers are equal.
    pub fn rank(&self) -> (usize, usize) {
        let connections = self.connections.load(Relaxed);
        (connections.saturating_sub(self.admin_queues.load(Relaxed)), connections)
    }
}
