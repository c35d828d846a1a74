//! Limits what a process and a user have on the engine: sockets, connections to the control socket, and duplicates of
//! their descriptors.
//!
//! Each needs descriptors of the engine, of which the engine has a limited number. So the engine admits a further one only
//! if the user has fewer of them than descriptors are free. A socket needs two descriptors until the program has received
//! its end, so one user alone gets at most two thirds of the descriptors. Any further user gets a share of the rest. Root
//! and the engine's own user may use all.

use crate::lock;
use std::collections::HashMap;
use std::hash::Hash;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

/// The most clients at the same time. Each process keeps one connection open. `inlane offload status` also
/// opens one for its request.
pub(super) const MOST_CLIENTS: usize = 16384;
/// The most clients of one process. Without this limit, one program could exclude others from the engine. If
/// threads of a process send requests at the same time, each of them needs its own client.
const MOST_OF_PROCESS: usize = 1024;

/// The user that stands for all users whom a user namespace does not map.
pub(super) const OVERFLOW_USER: u32 = 65534;

/// Returns true if clients of user `user` may open connections over socket pairs that they created
/// themselves.
pub(super) fn is_trusted(user: u32) -> bool {
    static OWN: OnceLock<u32> = OnceLock::new();
    // SAFETY: has no preconditions.
    let own = *OWN.get_or_init(|| unsafe { libc::geteuid() });
    user == 0 || user == own && own != OVERFLOW_USER
}

/// What needs a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A socket that the engine runs.
    Socket,
    /// A connection to the control socket.
    Client,
    /// A duplicate of a socket's descriptor, which the engine keeps.
    Duplicate,
}

/// The numbers of sockets, clients and duplicates of a process or of a user.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    sockets: usize,
    clients: usize,
    duplicates: usize,
}

impl Usage {
    fn of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Socket => &mut self.sockets,
            Kind::Client => &mut self.clients,
            Kind::Duplicate => &mut self.duplicates,
        }
    }

    /// Returns the sum of all counts.
    fn all(&self) -> usize {
        self.sockets + self.clients + self.duplicates
    }
}

#[derive(Debug, Default)]
struct Counts {
    processes: HashMap<i32, Usage>,
    users: HashMap<u32, Usage>,
    clients: usize,
}

impl Counts {
    fn add(&mut self, kind: Kind, process: i32, user: u32) {
        *self.processes.entry(process).or_default().of(kind) += 1;
        *self.users.entry(user).or_default().of(kind) += 1;
        self.clients += usize::from(kind == Kind::Client);
    }

    fn subtract(&mut self, kind: Kind, process: i32, user: u32) {
        subtract(&mut self.processes, process, kind);
        subtract(&mut self.users, user, kind);
        self.clients -= usize::from(kind == Kind::Client);
    }
}

/// Subtracts one from a count. Removes the key if all its counts are 0.
fn subtract<K: Hash + Eq>(usages: &mut HashMap<K, Usage>, key: K, kind: Kind) {
    if let Some(usage) = usages.get_mut(&key) {
        *usage.of(kind) -= 1;
        if usage.all() == 0 {
            usages.remove(&key);
        }
    }
}

/// A duplicate of a descriptor.
#[derive(Debug)]
pub(crate) struct Duplicate {
    pub descriptor: OwnedFd,
    /// Counts the duplicate. Keep it until the descriptor is closed.
    pub permit: Permit,
}

/// The permits of all processes and users. Clones share the counts.
#[derive(Clone)]
pub(super) struct Permits {
    counts: Arc<Mutex<Counts>>,
    /// The most sockets of one process.
    most_sockets: usize,
}

/// One socket, client or duplicate in the counts. Dropping it subtracts it.
#[derive(Debug)]
pub(crate) struct Permit {
    counts: Arc<Mutex<Counts>>,
    kind: Kind,
    process: i32,
    user: u32,
}

impl Permits {
    /// Creates the table. A process gets at most `most_sockets` sockets.
    pub fn new(most_sockets: usize) -> Self {
        Self { counts: Arc::default(), most_sockets }
    }

    /// Counts a new socket, client or duplicate. `free` is the number of descriptors that the engine may still keep. Returns `None`,
    /// without counting, if the process or its user has as many as allowed.
    pub fn admit(&self, kind: Kind, process: i32, user: u32, free: usize) -> Option<Permit> {
        let mut counts = lock(&self.counts);
        let of_process = *counts.processes.get(&process).copied().unwrap_or_default().of(kind);
        let of_user = counts.users.get(&user).copied().unwrap_or_default();
        let free_clients = MOST_CLIENTS.saturating_sub(counts.clients);
        let (most, fits) = match kind {
            Kind::Socket => (self.most_sockets, true),
            Kind::Client => (MOST_OF_PROCESS, free_clients > of_user.clients || is_trusted(user)),
            Kind::Duplicate => (usize::MAX, true),
        };
        let shares = of_user.all() < free || is_trusted(user) && free > 0;
        (of_process < most && fits && shares).then(|| {
            counts.add(kind, process, user);
            Permit { counts: self.counts.clone(), kind, process, user }
        })
    }

    /// Returns the number of sockets, clients and duplicates of a process.
    #[cfg(test)]
    pub fn of_process(&self, process: i32) -> usize {
        lock(&self.counts).processes.get(&process).map_or(0, Usage::all)
    }

    /// Returns the number of processes that have at least one socket on the engine.
    pub fn processes(&self) -> usize {
        lock(&self.counts).processes.values().filter(|usage| usage.sockets > 0).count()
    }
}

impl Permit {
    /// Counts one more of the same kind for the same process, also beyond the limit.
    pub fn another(&self) -> Self {
        lock(&self.counts).add(self.kind, self.process, self.user);
        Self { counts: self.counts.clone(), ..*self }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        lock(&self.counts).subtract(self.kind, self.process, self.user);
    }
}
