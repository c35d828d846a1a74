//! Accepts connections, and checks timers, sizes of namespaces and the file of hosts.

use super::WorkerHandle;
use super::hosts::HostsFile;
use crate::target::inbox::Message;
use crate::target::subsystem::Subsystem;
use crate::target::worker::WorkerLoad;
use crate::{Error, Result};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

/// How often keep-alive timers are checked.
const TIMER: Duration = Duration::from_millis(250);
/// The interval at which the target reads the sizes of its namespaces and the file with the allowed hosts.
const REFRESH: Duration = Duration::from_secs(1);
/// How long no connection is accepted after the process ran out of file descriptors.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// The most connections that are accepted at a listening socket in a row. Then the other sockets and the timers
/// follow.
const IN_A_ROW: usize = 64;
/// The longest time that a new connection waits for room. The worker threads must close a half-open
/// connection within this time.
const ROOM_WAIT: Duration = Duration::from_secs(2);
/// How long the wait for room pauses between two checks.
const ROOM_PAUSE: Duration = Duration::from_micros(50);

/// The thread that accepts connections and checks timers.
pub(super) struct Acceptor {
    pub(super) listeners: Vec<TcpListener>,
    /// The file that lists the hosts. `None` if there is no such file.
    pub(super) hosts: Option<HostsFile>,
    pub(super) subsystem: Arc<Subsystem>,
    pub(super) workers: Vec<WorkerHandle>,
    pub(super) stop: Arc<AtomicBool>,
    /// True if a worker has failed.
    pub(super) failed: Arc<AtomicBool>,
    /// The number of displaced connections at the last report.
    pub(super) displaced: u64,
}

impl Acceptor {
    pub(super) fn run(mut self) {
        let mut polled: Vec<_> = self
            .listeners
            .iter()
            .map(|listener| libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        let (mut timers_at, mut refresh_at) = (Instant::now(), Instant::now() + REFRESH);
        let mut last_failure = String::new();
        while !self.stop.load(Relaxed) && !self.failed.load(Relaxed) {
            // SAFETY: the pointer and the length describe the array `polled`.
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as _, TIMER.as_millis() as i32) };
            self.listeners.iter().for_each(|listener| self.accept(listener));
            let now = Instant::now();
            if now >= timers_at {
                timers_at = now + TIMER;
                self.subsystem.end_expired();
            }
            if now >= refresh_at {
                refresh_at = now + REFRESH;
                self.report_displaced();
                self.subsystem.end_of_second();
                let failure = self.refresh().err().map(|error| error.to_string()).unwrap_or_default();
                // Report a failure only if it differs from the last reported one, because the check runs
                // every second.
                if failure != last_failure && !failure.is_empty() {
                    tracing::warn!("{failure}");
                }
                last_failure = failure;
            }
        }
    }

    /// Reads the sizes of the namespaces and the file of hosts again, and applies the changes.
    fn refresh(&mut self) -> Result<()> {
        let refreshed = self.subsystem.refresh();
        if let Some(file) = &mut self.hosts
            && let Some(hosts) = file.read_settled()?
            && self.subsystem.set_hosts(Some(hosts.clone()))?
        {
            file.hosts.warn_if_none(Some(&hosts));
        }
        refreshed
    }

    /// Reports how many connections were displaced since the last call.
    fn report_displaced(&mut self) {
        let displaced = self.subsystem.counters.displaced.load(Relaxed);
        let newly = displaced - std::mem::replace(&mut self.displaced, displaced);
        if newly > 0 {
            let last = self.subsystem.half_open.last_source();
            tracing::warn!(
                "{newly} connections were closed within a second, because too many hosts had not connected a queue, or \
                 authenticated themselves{}",
                last.map_or_else(String::new, |last| format!("; the last one came from {last}"))
            );
        }
    }

    /// Accepts connections that are pending at a listening socket. Hands each to the worker thread with the
    /// fewest I/O queues.
    fn accept(&self, listener: &TcpListener) {
        for _ in 0..IN_A_ROW {
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
        let Ok(local) = stream.local_addr() else { return };
        if !self.has_room() {
            counters.refused.fetch_add(1, Relaxed);
            return;
        }
        set_options(&stream);
        let least = self.workers.iter().min_by_key(|worker| worker.load.rank());
        let Some(WorkerHandle { inbox, load }) = least else { return };
        load.connections.fetch_add(1, Relaxed);
        load.half_open.fetch_add(1, Relaxed);
        let ticket = self.subsystem.half_open.add(peer.ip());
        inbox.send(Message::Accept { socket: stream.into(), peer, local, ticket });
    }

    /// Returns true if the target may accept one more connection. At the limit of connections, this displaces
    /// a half-open connection and waits until a connection has ended.
    fn has_room(&self) -> bool {
        let sum = |count: fn(&WorkerLoad) -> usize| {
            self.workers.iter().map(|worker| count(&worker.load)).sum::<usize>()
        };
        let start = Instant::now();
        loop {
            // Read `half_open` before `connections`. When a half-open connection ends, its worker updates
            // `half_open` last. If no half-open connection is ending now, the number of connections is
            // therefore up to date.
            let half_open = sum(|load| load.half_open.load(Acquire));
            if sum(|load| load.connections.load(Relaxed)) < self.subsystem.limits.connections {
                return true;
            }
            if half_open == 0 || start.elapsed() > ROOM_WAIT || self.stop.load(Relaxed) {
                return false;
            }
            // If displaced connections are still being closed, they make the room.
            if half_open == self.subsystem.half_open.count() {
                self.subsystem.half_open.displace();
            }
            std::thread::sleep(ROOM_PAUSE);
        }
    }
}

/// Sets the options of an accepted socket. TCP_NODELAY makes the kernel send small responses at once.
/// Keepalive probes detect vanished hosts.
fn set_options(stream: &TcpStream) {
    let set = |level: i32, name: i32, value: i32| {
        let (address, size) = ((&raw const value).cast(), size_of::<i32>() as u32);
        // SAFETY: the value is an int, as these options want.
        unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, address, size) };
    };
    set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10);
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3);
}

/// Opens a socket that listens on an address and does not block. Returns also the address with the socket's port.
pub(super) fn listen(address: &SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let os = |source| Error::cannot_listen(address, false, source);
    let listener = TcpListener::bind(address).map_err(os)?;
    listener.set_nonblocking(true).map_err(os)?;
    // Raise the most connections that may wait for acceptance, because the standard library sets only 128. This file calls
    // the C library, because rustix makes system calls itself, and `inlane offload run` replaces the C library's functions.
    // SAFETY: the call only takes a listening socket.
    if unsafe { libc::listen(listener.as_raw_fd(), 4096) } != 0 {
        return Err(os(std::io::Error::last_os_error()));
    }
    let address = listener.local_addr().map_err(os)?;
    Ok((listener, address))
}
