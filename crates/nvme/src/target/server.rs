//! Starts and ends a target: sockets, threads and timers.

use super::TargetResult;
use super::inbox::{Inbox, Message};
use super::subsystem::{Definition, Limits, Subsystem};
use super::worker::{Load, Worker};
use crate::namespace::{MAX_NAMESPACES, Namespace, Specification, Storage};
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often keep-alive timers are checked.
const TIMER: Duration = Duration::from_millis(250);
/// How often the target reads the sizes of its namespaces and the file that lists the allowed hosts.
const REFRESH: Duration = Duration::from_secs(1);
/// How long no connection is accepted after the process ran out of file descriptors.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Which hosts may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Every host.
    Any,
    /// Only the hosts with these NQNs may connect.
    Listed(BTreeSet<String>),
    /// The hosts whose NQNs are the lines of a file, and the listed ones. The file is read again when it
    /// changes.
    File(PathBuf, BTreeSet<String>),
}

/// The settings with which a target starts: its addresses, namespaces, allowed hosts, worker threads and
/// limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses to listen on. Port 0 chooses a free port.
    pub listen: Vec<SocketAddr>,
    /// The namespaces.
    pub namespaces: Vec<Specification>,
    /// The NQN of the subsystem. With `None`, it is made of the host name and the port.
    pub nqn: Option<String>,
    /// The hosts that may connect.
    pub hosts: Hosts,
    /// The cores to which worker threads are bound, one thread each. If no cores are given, the target starts
    /// `threads` threads that are not bound.
    pub cores: Vec<usize>,
    /// The number of worker threads if `cores` is empty.
    pub threads: usize,
    /// How long a worker thread polls for work before it sleeps. Zero: it sleeps at once.
    pub spin: Duration,
    /// The limits.
    pub limits: Limits,
}

/// A running target.
#[derive(Debug)]
pub struct Target {
    subsystem: Arc<Subsystem>,
    workers: Vec<WorkerHandle>,
    acceptor: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
}

#[derive(Debug)]
struct WorkerHandle {
    inbox: Arc<Inbox>,
    load: Arc<Load>,
    thread: Option<JoinHandle<()>>,
}

impl Target {
    /// Opens the namespaces, listens and starts the threads.
    ///
    /// # Errors
    /// If a namespace cannot be opened, an address cannot be listened on, or io_uring is not available.
    pub fn start(config: Config) -> Result<Self> {
        if config.namespaces.is_empty() || config.namespaces.len() > MAX_NAMESPACES {
            let why = format!("{} namespaces; serve 1 to {MAX_NAMESPACES}", config.namespaces.len());
            return Err(Error::Invalid { what: "target".into(), why });
        }
        let listeners: Vec<_> = config.listen.iter().map(listen).collect::<Result<_>>()?;
        let addresses: Vec<_> = listeners
            .iter()
            .map(|listener| {
                listener.local_addr().map_err(|source| Error::Os {
                    what: "cannot read the address of a listening socket".into(),
                    source,
                })
            })
            .collect::<Result<_>>()?;
        let Some(first) = addresses.first() else {
            return Err(Error::Invalid { what: "target".into(), why: "no address to listen on".into() });
        };
        let nqn = config.nqn.clone().unwrap_or_else(|| default_nqn(first.port()));
        super::subsystem::check_nqn(&nqn)?;
        let namespaces = config.namespaces.iter().zip(1..);
        let namespaces =
            namespaces.map(|(it, id)| Namespace::open(it, id, &nqn)).collect::<Result<Vec<_>>>()?;
        let mut limits = config.limits.clone();
        limits.connections = limits.connections.min(raise_descriptor_limit().saturating_sub(64)).max(1);
        let hosts = config.hosts.read()?;
        let subsystem =
            Arc::new(Subsystem::new(Definition { nqn, namespaces, hosts, listeners: addresses, limits })?);
        let threads = if config.cores.is_empty() { config.threads.max(1) } else { config.cores.len() };
        let failed = Arc::new(AtomicBool::new(false));
        let mut target =
            Self { subsystem, workers: Vec::new(), acceptor: None, stop: Arc::default(), failed };
        for index in 0..threads {
            let core = config.cores.get(index).copied();
            target.start_worker(index, core, threads, config.spin)?;
        }
        target.start_acceptor(listeners, config.hosts)?;
        Ok(target)
    }

    fn start_worker(
        &mut self,
        index: usize,
        core: Option<usize>,
        threads: usize,
        spin: Duration,
    ) -> Result<()> {
        let os = |source| Error::Os { what: "cannot start a worker thread".into(), source };
        let inbox = Arc::new(Inbox::new().map_err(os)?);
        let load = Arc::new(Load::default());
        let (result, started) = mpsc::channel();
        let (subsystem, failed) = (self.subsystem.clone(), self.failed.clone());
        let max_half_open = (self.subsystem.limits.connections / 4 / threads).max(1);
        let (its_inbox, its_load) = (inbox.clone(), load.clone());
        let thread = std::thread::Builder::new().name(format!("inlane-nvme-{index}")).spawn(move || {
            let worker =
                bind(core).and_then(|()| Worker::new(subsystem, its_inbox, its_load, max_half_open, spin));
            let worker = match worker {
                Ok(worker) => worker,
                Err(error) => return drop(result.send(Err(error))),
            };
            let _ = result.send(Ok(()));
            if let Err(error) = worker.run() {
                tracing::error!("a worker thread of the target failed: {error}");
                failed.store(true, Relaxed);
            }
        });
        let thread = thread.map_err(os)?;
        self.workers.push(WorkerHandle { inbox, load, thread: Some(thread) });
        started.recv().unwrap_or_else(|_| {
            Err(Error::Invalid { what: "worker thread".into(), why: "it ended while it started".into() })
        })
    }

    fn start_acceptor(&mut self, listeners: Vec<TcpListener>, hosts: Hosts) -> Result<()> {
        let acceptor = Acceptor {
            listeners,
            hosts,
            subsystem: self.subsystem.clone(),
            workers: self.workers.iter().map(|worker| (worker.inbox.clone(), worker.load.clone())).collect(),
            stop: self.stop.clone(),
        };
        let thread = std::thread::Builder::new().name("inlane-nvme-acc".into()).spawn(move || acceptor.run());
        self.acceptor =
            Some(thread.map_err(|source| Error::Os { what: "cannot start a thread".into(), source })?);
        Ok(())
    }

    /// Returns what the target serves, with its counters.
    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// Returns the number of worker threads.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.workers.iter().map(|worker| worker.load.connections.load(Relaxed)).sum()
    }

    /// Returns, for each worker thread, the number of its connections without an admin queue. These carry an
    /// I/O queue, or may still get one.
    #[cfg(test)]
    pub(super) fn io_queues(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.load.rank().0).collect()
    }

    /// Returns true if a worker thread failed. The target should be ended then.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Ends the target: accepts no more connections and commands, completes the commands in progress, closes
    /// all connections, and makes all data durable. Returns what it served.
    ///
    /// # Errors
    /// If the data of a namespace cannot be made durable. All other steps are still taken.
    pub fn stop(mut self) -> Result<TargetResult> {
        self.end_threads();
        let mut outcome = Ok(());
        for namespace in self.subsystem.namespaces.iter().filter(|it| !it.read_only) {
            if let Storage::File(file) = &namespace.storage {
                outcome = outcome.and(file.flush());
            }
        }
        outcome.map(|()| TargetResult::of(&self))
    }

    fn end_threads(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for worker in &self.workers {
            worker.inbox.send(Message::Drain);
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end_threads();
    }
}

impl Hosts {
    /// Returns the NQNs of the hosts that may connect, or `None` if every host may.
    fn read(&self) -> Result<Option<BTreeSet<String>>> {
        match self {
            Hosts::Any => Ok(None),
            Hosts::Listed(hosts) => Ok(Some(hosts.clone())),
            Hosts::File(path, others) => {
                let text = std::fs::read_to_string(path).map_err(|source| {
                    if source.kind() == std::io::ErrorKind::IsADirectory {
                        let why = "it is a directory; name a file in it".into();
                        return Error::Invalid { what: format!("--hosts-file {}", path.display()), why };
                    }
                    let what = format!("--hosts-file {}: it cannot be read", path.display());
                    Error::with_remedy(what, source, "name a text file that you may read")
                })?;
                let mut named = others.clone();
                for (line, number) in text.lines().zip(1..) {
                    let nqn = line.split('#').next().unwrap_or_default().trim();
                    if nqn.is_empty() {
                        continue;
                    }
                    super::subsystem::check_nqn(nqn).map_err(|error| Error::Invalid {
                        what: format!("--hosts-file {}, line {number}", path.display()),
                        why: error.to_string(),
                    })?;
                    named.insert(nqn.into());
                }
                Ok(Some(named))
            }
        }
    }
}

/// The thread that accepts connections and checks timers.
struct Acceptor {
    listeners: Vec<TcpListener>,
    hosts: Hosts,
    subsystem: Arc<Subsystem>,
    workers: Vec<(Arc<Inbox>, Arc<Load>)>,
    stop: Arc<AtomicBool>,
}

impl Acceptor {
    fn run(self) {
        let mut polled: Vec<_> = self
            .listeners
            .iter()
            .map(|listener| libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        let (mut timers_at, mut refresh_at) = (Instant::now(), Instant::now() + REFRESH);
        let mut last_failure = String::new();
        while !self.stop.load(Relaxed) {
            // SAFETY: the pointer and the length describe the array `polled`.
            let ready =
                unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as _, TIMER.as_millis() as i32) };
            if ready > 0 {
                for (entry, listener) in polled.iter().zip(&self.listeners) {
                    if entry.revents != 0 {
                        self.accept(listener);
                    }
                }
            }
            let now = Instant::now();
            if now >= timers_at {
                timers_at = now + TIMER;
                for controller in self.subsystem.end_expired() {
                    tracing::warn!(
                        "{}: the keep-alive timer expired; its controller ends",
                        controller.host.nqn
                    );
                }
            }
            if now >= refresh_at {
                refresh_at = now + REFRESH;
                let failure = self.refresh().err().map(|error| error.to_string()).unwrap_or_default();
                // Report a failure only if it differs from the last one, because the check runs every second.
                if failure != last_failure && !failure.is_empty() {
                    tracing::warn!("{failure}");
                }
                last_failure = failure;
            }
        }
    }

    /// Reads the sizes of the namespaces and the file of hosts again, and applies the changes.
    fn refresh(&self) -> Result<()> {
        let (changed, failure) = self.subsystem.refresh();
        for namespace in changed.iter().filter_map(|id| self.subsystem.namespace(*id)) {
            tracing::info!(
                "namespace {}: {} now has {} bytes",
                namespace.id,
                namespace.name,
                namespace.bytes()
            );
        }
        if matches!(self.hosts, Hosts::File(..)) {
            self.subsystem.set_hosts(self.hosts.read()?)?;
        }
        failure.map_or(Ok(()), Err)
    }

    /// Accepts all connections that are pending at a listening socket. Hands each to the worker thread with
    /// the fewest I/O queues.
    fn accept(&self, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((stream, peer)) => self.hand_over(stream, peer),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The process may be out of file descriptors. Wait for connections to end and release
                    // some.
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
                    ) {
                        std::thread::sleep(EXHAUSTED_PAUSE);
                    }
                    return;
                }
            }
        }
    }

    fn hand_over(&self, stream: TcpStream, peer: SocketAddr) {
        let counters = &self.subsystem.counters;
        counters.connections.fetch_add(1, Relaxed);
        let total: usize = self.workers.iter().map(|(_, load)| load.connections.load(Relaxed)).sum();
        let Ok(local) = stream.local_addr() else { return };
        if total >= self.subsystem.limits.connections {
            counters.refused.fetch_add(1, Relaxed);
            return;
        }
        set_options(&stream);
        let least = self.workers.iter().min_by_key(|(_, load)| load.rank());
        let Some((inbox, load)) = least else { return };
        load.connections.fetch_add(1, Relaxed);
        inbox.send(Message::Accept { socket: stream.into(), peer, local });
    }
}

/// Sets the options of an accepted socket: sends small responses at once, and detects vanished hosts.
fn set_options(stream: &TcpStream) {
    let set = |level: i32, name: i32, value: i32| {
        // SAFETY: the value is an int, as these options want.
        unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<i32>() as u32,
            )
        };
    };
    set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
}

/// Opens a socket that listens on an address and does not block.
fn listen(address: &SocketAddr) -> Result<TcpListener> {
    let os = |source: std::io::Error| {
        let remedy = match source.raw_os_error() {
            Some(libc::EADDRINUSE) => "another program listens there; choose another port",
            Some(libc::EADDRNOTAVAIL) => {
                "no interface of this machine has this address; list them: ip address"
            }
            Some(libc::EACCES) => "ports below 1024 need privileges; choose a higher port",
            _ => "",
        };
        Error::with_remedy(format!("cannot listen on {address}"), source, remedy)
    };
    let listener = TcpListener::bind(address).map_err(os)?;
    listener.set_nonblocking(true).map_err(os)?;
    // Raise the most connections that may wait for acceptance, because the standard library sets only 128.
    // SAFETY: the call only takes a listening socket.
    if unsafe { libc::listen(listener.as_raw_fd(), 4096) } != 0 {
        return Err(os(std::io::Error::last_os_error()));
    }
    Ok(listener)
}

/// Binds the calling thread to a core.
fn bind(core: Option<usize>) -> Result<()> {
    let Some(core) = core else { return Ok(()) };
    // SAFETY: the set is a local variable that the call only reads. `core` lies within it.
    let outcome = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if core >= 8 * size_of::<libc::cpu_set_t>() {
            -1
        } else {
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
        }
    };
    if outcome == 0 {
        return Ok(());
    }
    let allowed = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let why = match allowed {
        Some(list) => format!("this process may use only the cores {}; choose among them", list.trim()),
        None => "this process may not use it; choose another".into(),
    };
    Err(Error::Invalid { what: format!("--cores: core {core}"), why })
}

/// Raises the limit of open files as far as allowed. Returns the limit.
fn raise_descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the calls read and write the structure only.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
                limit = raised;
            }
        }
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Returns an NQN made of the machine's host name and the port.
fn default_nqn(port: u16) -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c)).collect();
    let name = if name.is_empty() { "localhost" } else { &name };
    format!("nqn.2026-11.inlane:{name}:{port}")
}
