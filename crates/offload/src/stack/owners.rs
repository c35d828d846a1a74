//! Which thread of an engine runs each flow. The threads share this table.

use inlane_tcp::Flow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of parts of a [`Shards`]. Each part has its own lock.
const SHARDS: usize = 64;

/// A map that is divided into parts. Each part has its own lock, so threads seldom wait for each other.
pub struct Shards<K, V> {
    hasher: RandomState,
    parts: Vec<Mutex<HashMap<K, V>>>,
}

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        Self { hasher: RandomState::new(), parts: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl<K: Hash + Eq, V: Copy> Shards<K, V> {
    /// Locks and returns the part of the map to which `key` belongs.
    pub fn part(&self, key: &K) -> MutexGuard<'_, HashMap<K, V>> {
        let part = &self.parts[self.hasher.hash_one(key) as usize % SHARDS];
        // The engine ends after a panic anyway.
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<V> {
        self.part(key).get(key).copied()
    }

    /// Returns the number of keys.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().unwrap().len()).sum()
    }
}

/// The thread that runs a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The thread's number.
    pub thread: usize,
    /// True if the flow is in TIME-WAIT. Another thread may then reuse it for a new connection.
    pub waits: bool,
}

/// The result of [`Owners::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The flow belongs to the thread now.
    Free,
    /// The flow belongs to the thread now. The thread with this number had it in TIME-WAIT and must forget it.
    TakenFrom(usize),
    /// Another thread has a connection of this flow.
    Refused,
}

/// The thread of each TCP connection, and of each flow in TIME-WAIT.
pub struct Owners {
    /// The threads by flows.
    pub flows: Shards<Flow, Owner>,
    /// The threads of RDMA's queue pairs, by their numbers.
    queue_pairs: Shards<u32, usize>,
    threads: usize,
}

impl Owners {
    /// Creates the table of an engine with `threads` threads.
    pub fn new(threads: usize) -> Self {
        Self { flows: Shards::default(), queue_pairs: Shards::default(), threads }
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns the thread that runs a flow.
    pub fn get(&self, flow: &Flow) -> Option<Owner> {
        self.flows.get(flow)
    }

    /// Returns the thread that binds sockets to `port`. Only this thread decides whether two sockets conflict
    /// on `port`.
    pub fn thread_of_port(&self, port: u16) -> usize {
        usize::from(port) % self.threads
    }

    /// Returns the thread that reassembles the fragments of packets from `source` to `destination`.
    pub fn thread_of_fragments(&self, source: IpAddr, destination: IpAddr) -> usize {
        self.flows.hasher.hash_one((source, destination)) as usize % self.threads
    }

    /// Returns the thread of a queue pair.
    pub fn queue_pair_thread(&self, number: u32) -> Option<usize> {
        self.queue_pairs.get(&number)
    }

    /// Makes `thread` the owner of a queue pair. Returns false if the queue pair has an owner.
    pub fn claim_queue_pair(&self, number: u32, thread: usize) -> bool {
        let mut part = self.queue_pairs.part(&number);
        let free = !part.contains_key(&number);
        part.entry(number).or_insert(thread);
        free
    }

    /// Removes a queue pair of `thread`.
    pub fn release_queue_pair(&self, number: u32, thread: usize) {
        let mut part = self.queue_pairs.part(&number);
        if part.get(&number) == Some(&thread) {
            part.remove(&number);
        }
    }

    /// Makes `thread` the owner of a flow, unless another thread has a connection of this flow.
    pub fn claim(&self, flow: Flow, thread: usize) -> Claim {
        let mut part = self.flows.part(&flow);
        let before = part.get(&flow).copied().filter(|owner| owner.thread != thread);
        if before.is_some_and(|owner| !owner.waits) {
            return Claim::Refused;
        }
        part.insert(flow, Owner { thread, waits: false });
        before.map_or(Claim::Free, |owner| Claim::TakenFrom(owner.thread))
    }

    /// Records that a flow of `thread` is in TIME-WAIT.
    pub fn note_time_wait(&self, flow: Flow, thread: usize) {
        self.flows.part(&flow).insert(flow, Owner { thread, waits: true });
    }

    /// Removes a flow of `thread`.
    pub fn release(&self, flow: &Flow, thread: usize) {
        let mut part = self.flows.part(flow);
        if part.get(flow).is_some_and(|owner| owner.thread == thread) {
            part.remove(flow);
        }
    }
}
