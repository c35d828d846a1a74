//! Starts and ends a target: sockets, threads and timers.

mod acceptor;
mod hosts;
mod limits;

pub use hosts::Hosts;

use super::TargetResult;
use super::inbox::{Inbox, Message};
use super::subsystem::{Definition, Limits, Subsystem};
use super::worker::{Jobs, Worker, WorkerLoad, start_jobs};
use crate::authentication::Group;
use crate::namespace::{MAX_NAMESPACES, Namespace, Specification};
use crate::{Error, Result};
use acceptor::{Acceptor, listen};
use hosts::HostsFile;
use inlane_process::limits::allow_descriptors;
use limits::bind;
use std::net::{SocketAddr, TcpListener};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// The settings with which a target starts: its addresses, namespaces, allowed hosts, worker threads and
/// limits.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses to listen on. Port 0 chooses a free port.
    pub listen: Vec<SocketAddr>,
    /// The namespaces.
    pub namespaces: Vec<Specification>,
    /// The NQN of the subsystem. If `None`, the target forms an NQN from the host name and the port.
    pub nqn: Option<String>,
    /// The hosts that may connect.
    pub hosts: Hosts,
    /// The cores for worker threads. Each core gets one thread, which is bound to it. If the list is empty,
    /// the target starts `threads` threads that are not bound.
    pub cores: Vec<usize>,
    /// The number of worker threads if `cores` is empty.
    pub threads: usize,
    /// How long a worker thread polls for work before it sleeps. If zero, it sleeps at once.
    pub spin: Duration,
    /// The limits.
    pub limits: Limits,
}

/// A running target.
#[derive(Debug)]
pub struct Target {
    subsystem: Arc<Subsystem>,
    workers: Vec<WorkerHandle>,
    threads: Vec<JoinHandle<()>>,
    acceptor: Option<JoinHandle<()>>,
    /// The queue of jobs. A job is a slow part of an authentication. `None`
    /// unless hosts authenticate with a Diffie-Hellman group.
    jobs: Option<Arc<Jobs>>,
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicBool>,
}

/// How other threads reach a worker.
#[derive(Clone, Debug)]
struct WorkerHandle {
    inbox: Arc<Inbox>,
    load: Arc<WorkerLoad>,
}

impl Target {
    /// Opens the namespaces, listens and starts the threads.
    ///
    /// # Errors
    /// If a namespace cannot be opened, an address cannot be listened on, or io_uring is not available.
    pub fn start(config: Config) -> Result<Self> {
        let count = config.namespaces.len();
        let why = format!("{count} namespaces; serve 1 to {MAX_NAMESPACES}");
        Error::require((1..=MAX_NAMESPACES).contains(&count), "target", why)?;
        let listeners = config.listen.iter().map(listen).collect::<Result<Vec<_>>>()?;
        let (listeners, addresses): (Vec<_>, Vec<_>) = listeners.into_iter().unzip();
        let Some(first) = addresses.first() else {
            return Err(Error::invalid("target", "no address to listen on"));
        };
        let nqn = config.nqn.clone().unwrap_or_else(|| default_nqn(first.port()));
        crate::wire::nqn::check(&nqn)?;
        let threads = if config.cores.is_empty() { config.threads.max(1) } else { config.cores.len() };
        let namespaces = config.namespaces.iter().zip(1..);
        let namespaces =
            namespaces.map(|(it, id)| Namespace::open(it, id, &nqn, threads)).collect::<Result<Vec<_>>>()?;
        let mut limits = config.limits.clone();
        let descriptors = usize::try_from(allow_descriptors(u64::MAX)).unwrap_or(usize::MAX);
        limits.connections = limits.connections.min(descriptors.saturating_sub(64)).max(1);
        let hosts = config.hosts.read()?;
        config.hosts.warn_if_none(hosts.as_ref());
        let subsystem =
            Arc::new(Subsystem::new(Definition { nqn, namespaces, hosts, listeners: addresses, limits })?);
        let failed = Arc::new(AtomicBool::new(false));
        let mut target = Self {
            subsystem,
            workers: Vec::new(),
            threads: Vec::new(),
            acceptor: None,
            jobs: None,
            stop: Arc::default(),
            failed,
        };
        if let Hosts::Secrets { group, .. } = config.hosts
            && group != Group::Null
        {
            let (jobs, thread) = start_jobs().map_err(Error::no_thread)?;
            target.threads.push(thread);
            target.jobs = Some(jobs);
        }
        for index in 0..threads {
            let core = config.cores.get(index).copied();
            target.start_worker(index, core, config.spin)?;
        }
        target.start_acceptor(listeners, config.hosts)?;
        Ok(target)
    }

    fn start_worker(&mut self, index: usize, core: Option<usize>, spin: Duration) -> Result<()> {
        let inbox = Arc::new(Inbox::new().map_err(Error::no_thread)?);
        let load = Arc::new(WorkerLoad::default());
        let (result, started) = mpsc::channel();
        let (subsystem, failed, jobs) = (self.subsystem.clone(), self.failed.clone(), self.jobs.clone());
        let (its_inbox, its_load) = (inbox.clone(), load.clone());
        let thread = std::thread::Builder::new().name(format!("inlane-nvme-{index}")).spawn(move || {
            let worker =
                bind(core).and_then(|()| Worker::new(index, subsystem, its_inbox, its_load, spin, jobs));
            let worker = match worker {
                Ok(worker) => worker,
                Err(error) => return drop(result.send(Err(error))),
            };
            let _ = result.send(Ok(()));
            // A panic drops the worker, so none of its half-changed state is used afterwards.
            let ended = std::panic::catch_unwind(AssertUnwindSafe(|| worker.run()));
            match ended {
                Ok(Ok(())) => return,
                Ok(Err(error)) => tracing::error!("a worker thread of the target failed: {error}"),
                Err(_) => tracing::error!("a worker thread of the target panicked"),
            }
            failed.store(true, Relaxed);
        });
        self.threads.push(thread.map_err(Error::no_thread)?);
        self.workers.push(WorkerHandle { inbox, load });
        started.recv().unwrap_or_else(|_| Err(Error::invalid("worker thread", "it ended while it started")))
    }

    fn start_acceptor(&mut self, listeners: Vec<TcpListener>, hosts: Hosts) -> Result<()> {
        let acceptor = Acceptor {
            listeners,
            hosts: HostsFile::new(hosts),
            subsystem: self.subsystem.clone(),
            workers: self.workers.clone(),
            stop: self.stop.clone(),
            failed: self.failed.clone(),
            displaced: 0,
        };
        let thread = std::thread::Builder::new().name("inlane-nvme-acc".into()).spawn(move || acceptor.run());
        self.acceptor = Some(thread.map_err(Error::no_thread)?);
        Ok(())
    }

    /// Returns the subsystem: the namespaces, hosts, controllers and counters of this target.
    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// Returns the number of worker threads.
    pub fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Returns the number of authentications that wait for the authentication thread.
    #[cfg(test)]
    pub(crate) fn waiting_jobs(&self) -> usize {
        self.jobs.as_ref().map_or(0, |jobs| jobs.count())
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.workers.iter().map(|worker| worker.load.connections.load(Relaxed)).sum()
    }

    /// Returns for each worker thread the number of connections that have no admin queue. Such a connection
    /// has an I/O queue or no queue yet.
    #[cfg(test)]
    pub(crate) fn io_queues(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.load.rank().0).collect()
    }

    /// Makes all worker threads panic.
    #[cfg(test)]
    pub(crate) fn panic(&self) {
        self.workers.iter().for_each(|worker| worker.inbox.send(Message::Panic));
    }

    /// Returns true if a worker thread failed. The target accepts no more connections then, and should be ended.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Ends the target. Accepts no more connections and commands, completes the commands in progress, closes
    /// all connections, and makes all data durable. Returns a summary of the target's run.
    ///
    /// # Errors
    /// If the data of a namespace cannot be made durable, now or at an earlier flush, or if a worker thread failed. All
    /// other steps are still taken.
    pub fn stop(mut self) -> Result<TargetResult> {
        self.end_threads();
        let mut outcome = Ok(());
        for namespace in self.subsystem.namespaces.iter().filter(|it| !it.read_only) {
            outcome = outcome.and(namespace.flush());
        }
        if self.has_failed() {
            let why = "a worker thread failed; its error was reported above";
            outcome = outcome.and(Err(Error::incomplete("the target", why)));
        }
        outcome.map(|()| self.result())
    }

    /// Summarises the run so far.
    pub fn result(&self) -> TargetResult {
        TargetResult::of(&self.subsystem, self.threads())
    }

    fn end_threads(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        if let Some(jobs) = &self.jobs {
            jobs.end();
        }
        for worker in &self.workers {
            worker.inbox.send(Message::Drain);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end_threads();
    }
}

/// Returns an NQN made of the machine's host name and the port.
fn default_nqn(port: u16) -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c)).collect();
    let name = if name.is_empty() { "localhost" } else { &name };
    format!("nqn.2026-11.inlane:{name}:{port}")
}
