//! The subsystem: a target's namespaces, the hosts that may use them, and the controllers of connected hosts.
//!
//! All threads of a target share one [`Subsystem`]. The target also serves a discovery subsystem at the same
//! addresses. It tells hosts where to reach the subsystem.

use super::controller::{Controller, Host};
use super::flush::FlushGroup;
use super::half_open::HalfOpen;
use super::network::network;
use crate::authentication::{Credentials, Group, Hash};
use crate::namespace::{Memory, Namespace, Storage, stable_uuid};
use crate::wire::nqn;
use crate::{Result, lock};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Limits of the resources that hosts can take. Each number is the most that is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most entries that a host may request for a queue. The limit itself is at most 1024.
    pub queue_entries: u16,
    /// The most I/O queues of a controller.
    pub io_queues: u16,
    /// The most controllers, of all hosts together. At most a quarter of them belong to strangers: hosts that are not
    /// yet authenticated, and hosts that may use the discovery service only.
    pub controllers: usize,
    /// MDTS: the most data of one command. A command can have 4096 * 2^n bytes of data, where n is this
    /// number.
    pub transfer_shift: u8,
    /// The most data within a command capsule, in bytes. A multiple of 16, at most 32 KiB.
    pub capsule_data_bytes: u32,
    /// The most memory for data buffers in one thread, in bytes. All connections of the thread share it. A host that
    /// is alone can use almost half of it, which must be at least `connection_bytes`.
    pub buffer_bytes: usize,
    /// The most memory for the data buffers of one connection, in bytes. Twice the data of the largest command must
    /// fit into it, because a Compare on a file needs that.
    pub connection_bytes: usize,
    /// The most connections, of all threads together.
    pub connections: usize,
    /// The most time from opening a connection until the host may use its queue. This is after Connect, or
    /// after authentication if the host must prove its identity. Also the most time for a repeated
    /// authentication.
    pub handshake_timeout: Duration,
    /// How long a host may send requested data, or read responses, more slowly than `least_rate`. Then its connection
    /// is closed.
    pub stall_timeout: Duration,
    /// The least rate of requested data and of responses while the target waits for them, in bytes per second.
    pub least_rate: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_entries: 1024,
            io_queues: 128,
            controllers: 1024,
            transfer_shift: 8,
            capsule_data_bytes: 8192,
            buffer_bytes: 256 << 20,
            connection_bytes: 32 << 20,
            connections: 4096,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            least_rate: 64 << 10,
        }
    }
}

impl Limits {
    /// Returns the most data of a command, in bytes.
    pub fn transfer_bytes(&self) -> u32 {
        4096 << self.transfer_shift
    }
}

/// How a host must authenticate itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// The secrets.
    pub credentials: Arc<Credentials>,
    /// The hash function.
    pub hash: Hash,
    /// The Diffie-Hellman group.
    pub group: Group,
}

/// The hosts that may connect, by NQN. A host without [`Authentication`] (`None`) need not prove its
/// identity.
pub type AllowedHosts = BTreeMap<String, Option<Authentication>>;

/// The settings from which a [`Subsystem`] is created.
#[derive(Debug)]
pub struct Definition {
    /// The NQN by which hosts connect.
    pub nqn: String,
    /// The namespaces. Their identifiers are 1, 2 and so on.
    pub namespaces: Vec<Namespace>,
    /// The hosts that may connect. `None` lets every host connect without authentication.
    pub hosts: Option<AllowedHosts>,
    /// The addresses on which the target listens.
    pub listeners: Vec<SocketAddr>,
    /// The limits.
    pub limits: Limits,
}

/// Counters of connections, refusals and errors since the target started.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were accepted.
    pub connections: AtomicU64,
    /// The sum of refused connections, refused Connect commands, failed authentications, and connections
    /// closed because of a limit or a timeout.
    pub refused: AtomicU64,
    /// The number of half-open connections that were closed because there were too many. Includes controllers
    /// of strangers that were ended for this reason. They are also counted as refused.
    pub displaced: AtomicU64,
    /// Connections that were ended because the host violated the protocol.
    pub violations: AtomicU64,
    /// PDUs whose data digest was wrong.
    pub digest_errors: AtomicU64,
    /// Controllers that were created.
    pub controllers: AtomicU64,
    /// Controllers that ended because their keep-alive timer expired.
    pub expired: AtomicU64,
}

/// How many warnings about hosts are logged each second. A hostile host could otherwise fill the log, and block the
/// threads that write to it.
const WARNINGS_PER_SECOND: u64 = 20;

/// The namespaces, the hosts and the controllers of a target.
#[derive(Debug)]
pub struct Subsystem {
    /// The NQN by which hosts connect.
    pub nqn: String,
    /// The serial number, derived from the NQN.
    pub serial: String,
    /// The namespaces. The namespace with identifier n is at index n - 1.
    pub namespaces: Vec<Namespace>,
    /// The flushes of each namespace.
    pub flushes: Vec<FlushGroup>,
    /// The limits.
    pub limits: Limits,
    /// The counters.
    pub counters: Counters,
    /// The connections whose hosts may not use a queue yet.
    pub half_open: HalfOpen,
    /// The addresses at which hosts reach the target.
    pub listeners: Vec<SocketAddr>,
    hosts: RwLock<Option<AllowedHosts>>,
    controllers: Mutex<Controllers>,
    generation: AtomicU64,
    /// The number of warnings about hosts since the last call of [`Subsystem::end_of_second`].
    warnings: AtomicU64,
    started: Instant,
}

#[derive(Debug, Default)]
struct Controllers {
    alive: BTreeMap<u16, Arc<Controller>>,
    /// The ended controllers that may still have commands in progress. When a controller is created, the others are
    /// removed.
    ended: Vec<Arc<Controller>>,
    last: u16,
    /// The controllers that were untrusted when they were created, oldest first. When a controller is
    /// created, entries that have ended or have become trusted are removed.
    untrusted: VecDeque<Arc<Controller>>,
}

impl Controllers {
    fn end(&mut self, controller: &Controller) {
        controller.end();
        if let Some(ended) = self.alive.remove(&controller.id)
            && ended.has_open_queues()
        {
            self.ended.push(ended);
        }
    }

    /// Finds the addresses with the most untrusted controllers. Removes the oldest untrusted controller of
    /// these addresses and returns it. Counts one controller more for the address `newcomer`. Returns `None`
    /// if all controllers are trusted.
    fn remove_stranger(&mut self, newcomer: Option<IpAddr>) -> Option<Arc<Controller>> {
        let mut counts = HashMap::new();
        for source in self.untrusted.iter().map(|it| it.source).chain(newcomer) {
            *counts.entry(source).or_insert(0) += 1;
        }
        let order = |(index, it): &(usize, &Arc<Controller>)| (counts[&it.source], Reverse(*index));
        let (index, _) = self.untrusted.iter().enumerate().max_by_key(order)?;
        self.untrusted.remove(index)
    }
}

/// The highest identifier that a controller can have. NVMe reserves the higher values.
const MAX_CONTROLLER: u16 = 0xFFEF;

impl Subsystem {
    /// Creates a subsystem.
    ///
    /// # Errors
    /// If the NQN of the subsystem or of an allowed host is invalid.
    pub fn new(definition: Definition) -> Result<Self> {
        let Definition { nqn, namespaces, hosts, listeners, limits } = definition;
        nqn::check(&nqn)?;
        for host in hosts.iter().flat_map(AllowedHosts::keys) {
            nqn::check(host)?;
        }
        let hash = stable_uuid(&[nqn.as_bytes()]);
        let serial = hash[..10].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            nqn,
            serial,
            flushes: namespaces.iter().map(|_| FlushGroup::default()).collect(),
            namespaces,
            half_open: HalfOpen::new((limits.connections / 4).max(1)),
            limits,
            counters: Counters::default(),
            listeners,
            hosts: RwLock::new(hosts),
            controllers: Mutex::default(),
            generation: AtomicU64::new(1),
            warnings: AtomicU64::new(0),
            started: Instant::now(),
        })
    }

    /// Returns the milliseconds since the target started.
    pub fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Logs a warning about a host, unless there were too many in this second.
    #[cold]
    pub fn warn(&self, text: fmt::Arguments<'_>) {
        if self.warnings.fetch_add(1, Relaxed) < WARNINGS_PER_SECOND {
            tracing::warn!("{text}");
        }
    }

    /// Allows further warnings. Says how many were left out since the last call.
    pub fn end_of_second(&self) {
        let left_out = self.warnings.swap(0, Relaxed).saturating_sub(WARNINGS_PER_SECOND);
        if left_out > 0 {
            tracing::warn!("{left_out} more warnings about hosts were left out within a second");
        }
    }

    /// Returns the namespace with this identifier.
    #[inline]
    pub fn namespace(&self, id: u32) -> Option<&Namespace> {
        self.namespaces.get((id as usize).checked_sub(1)?)
    }

    /// Returns the memory of the namespace with this identifier. `None` if it does not exist or does not lie in memory.
    #[inline]
    pub fn memory(&self, id: u32) -> Option<&Memory> {
        match &self.namespace(id)?.storage {
            Storage::Memory(memory) => Some(memory),
            Storage::File(_) => None,
        }
    }

    /// Returns true if a host may connect to the subsystem.
    pub fn allows(&self, host_nqn: &str) -> bool {
        self.admission(host_nqn).is_some()
    }

    /// Returns how a host must authenticate itself: `Some(None)` if it need not, and `None` if it may not
    /// connect.
    pub fn admission(&self, host_nqn: &str) -> Option<Option<Authentication>> {
        let hosts = self.hosts.read().unwrap_or_else(PoisonError::into_inner);
        match &*hosts {
            None => Some(None),
            Some(hosts) => hosts.get(host_nqn).cloned(),
        }
    }

    /// Replaces the list of hosts that may connect. `None` allows all hosts. Returns true if the list
    /// changed.
    ///
    /// Ends the controllers of removed hosts. Notifies the discovery controllers of added and removed hosts
    /// that their discovery log has changed. New secrets of a host apply from its next authentication on.
    ///
    /// # Errors
    /// If an NQN is invalid. The list then stays unchanged.
    pub fn set_hosts(&self, hosts: Option<AllowedHosts>) -> Result<bool> {
        for host in hosts.iter().flat_map(AllowedHosts::keys) {
            nqn::check(host)?;
        }
        let concerned: Vec<_> = {
            let mut current = self.hosts.write().unwrap_or_else(PoisonError::into_inner);
            let allowed = |list: &Option<AllowedHosts>, nqn: &str| {
                list.as_ref().is_none_or(|hosts| hosts.contains_key(nqn))
            };
            let before = std::mem::replace(&mut *current, hosts);
            if before == *current {
                return Ok(false);
            }
            let differs = |nqn: &str| allowed(&before, nqn) != allowed(&current, nqn);
            lock(&self.controllers).alive.values().filter(|it| differs(&it.host.nqn)).cloned().collect()
        };
        self.generation.fetch_add(1, Relaxed);
        for controller in concerned {
            if controller.discovery {
                controller.changed(&[]);
            } else if !self.allows(&controller.host.nqn) {
                self.end(&controller);
            }
        }
        Ok(true)
    }

    /// Returns the generation counter of the discovery log.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Creates a controller for `host`. Set `trusted` if the host need not authenticate itself. Returns
    /// `None` if the target has as many controllers as its limit allows.
    ///
    /// Untrusted controllers have a smaller limit, because otherwise strangers could use up all controllers.
    /// If a limit is reached, an untrusted controller ends to make room: the oldest one of the address with
    /// the most untrusted controllers. So a flood from one address does not end controllers of other
    /// addresses.
    pub fn create_controller(
        &self,
        host: Host,
        address: IpAddr,
        discovery: bool,
        trusted: bool,
        keep_alive_ms: u64,
    ) -> Option<Arc<Controller>> {
        let (now, source) = (self.now_ms(), network(address));
        let mut controllers = lock(&self.controllers);
        controllers.untrusted.retain(|it| it.is_alive() && !it.trusted.load(Relaxed));
        let is_full = controllers.alive.len() >= self.limits.controllers.min(MAX_CONTROLLER.into());
        let strangers = controllers.untrusted.len() + usize::from(!trusted);
        if is_full || strangers > (self.limits.controllers / 4).max(1) {
            let ended = controllers.remove_stranger((!trusted).then_some(source))?;
            controllers.end(&ended);
            self.counters.refused.fetch_add(1, Relaxed);
            self.counters.displaced.fetch_add(1, Relaxed);
            tracing::debug!(
                "the controller of {} at {} ends, because too many hosts have not authenticated themselves",
                ended.host.nqn,
                if ended.discovery { nqn::DISCOVERY } else { &self.nqn }
            );
        }
        // Assign identifiers in turn, without reusing one soon. A late command for an ended controller then
        // does not reach a new controller.
        let mut id = controllers.last;
        loop {
            id = if id >= MAX_CONTROLLER { 1 } else { id + 1 };
            if !controllers.alive.contains_key(&id) {
                break;
            }
        }
        controllers.last = id;
        let io_queues = if discovery { 0 } else { self.limits.io_queues };
        let controller = Arc::new(Controller::new(id, host, source, io_queues, trusted, keep_alive_ms, now));
        controllers.ended.retain(|it| it.has_open_queues());
        let precedes = |it: &&Arc<Controller>| !discovery && it.host.nqn == controller.host.nqn;
        let predecessors = controllers.ended.iter().filter(precedes);
        predecessors.for_each(|it| controller.wait_for(it.clone()));
        controllers.alive.insert(id, controller.clone());
        if !trusted {
            controllers.untrusted.push_back(controller.clone());
        }
        self.counters.controllers.fetch_add(1, Relaxed);
        Some(controller)
    }

    /// Returns the controller with this identifier.
    pub fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        lock(&self.controllers).alive.get(&id).cloned()
    }

    /// Returns the number of controllers.
    pub fn controller_count(&self) -> usize {
        lock(&self.controllers).alive.len()
    }

    /// Ends a controller and closes its connections.
    pub fn end(&self, controller: &Controller) {
        lock(&self.controllers).end(controller);
    }

    /// Ends the controllers whose keep-alive timer has expired. Returns their number.
    pub fn end_expired(&self) -> usize {
        let now = self.now_ms();
        let expired: Vec<_> =
            lock(&self.controllers).alive.values().filter(|it| it.is_expired(now)).cloned().collect();
        for controller in &expired {
            self.counters.expired.fetch_add(1, Relaxed);
            self.end(controller);
            let host = &controller.host.nqn;
            self.warn(format_args!("{host}: the keep-alive timer expired; its controller ends"));
        }
        expired.len()
    }

    /// Reads the sizes of the namespaces again, and tells the hosts which ones have changed.
    ///
    /// # Errors
    /// The first namespace whose size cannot be read. The others are up to date.
    pub fn refresh(&self) -> Result<()> {
        let (mut changed, mut result) = (Vec::new(), Ok(()));
        for namespace in &self.namespaces {
            match namespace.refresh() {
                Ok(true) => {
                    let (id, name, bytes) = (namespace.id, &namespace.name, namespace.bytes());
                    tracing::info!("namespace {id}: {name} now has {bytes} bytes");
                    changed.push(id);
                }
                Ok(false) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        if !changed.is_empty() {
            let controllers: Vec<_> = lock(&self.controllers).alive.values().cloned().collect();
            controllers.iter().filter(|it| !it.discovery).for_each(|it| it.changed(&changed));
        }
        result
    }
}
