//! The engine: threads that receive and send packets, serve the control socket, and run the sockets. Each
//! thread has a queue of the port, and its own sockets. The module `shared` has the data that the threads
//! share.
//!
//! ```text
//! loop:  receive a burst ---> input: demultiplex, TCP ---+
//!        inbox: what other threads pass -----------------+
//!        epoll: control socket, pairs -------------------+--> list of changed sockets
//!        timer wheel ------------------------------------+            |
//!        for each changed socket: pair <-> rings, segments to send <--+
//!        flush the transmit queue; without work: spin for a while, then sleep in epoll
//! ```

mod accept;
mod bind;
mod closer;
mod control;
mod copies;
mod datagram;
mod datagram_request;
mod direct;
mod input;
mod interface;
mod lease;
pub mod link;
mod memory;
mod open;
mod options;
pub mod pair;
mod pass;
mod permits;
mod report;
mod request;
mod shared;
mod socket;
pub mod step;
mod stream;
#[cfg(test)]
mod tests;
mod threads;

use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::stack::arena::Key;
use crate::stack::budget::Budget;
use crate::stack::packet::Arrival;
use crate::stack::socket::Role;
use closer::Closer;
use control::Control;
use inlane_core::clock::Clock;
use inlane_core::packet::Packet;
use interface::{InterfaceState, WatchedInterface};
use link::Link;
use rustix::event::epoll;
use shared::{Inbox, Shared};
use socket::{Attachment, Pair, Socket, Stack};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use permits::Permit;
pub use threads::Threads;

/// The most packets that one round of the engine's loop receives before it serves sockets.
const BURST: usize = 64;
/// The longest sleep, in nanoseconds. A request to stop is noticed at most this late.
const LONGEST_SLEEP_NS: u64 = 200_000_000;
/// If epoll cannot watch the port, packets do not wake the engine, so its sleeps are short. This is the
/// length of the first sleep in nanoseconds. While there is no work, each further sleep is twice as long.
const FIRST_POLLED_SLEEP_NS: u64 = 10_000;
/// The length of the longest sleep in nanoseconds, if epoll cannot watch the port.
const LONGEST_POLLED_SLEEP_NS: u64 = 1_000_000;
/// The most consecutive rounds with work in which the engine does not ask epoll for events.
const MOST_ROUNDS: u32 = 4;
/// The nanoseconds for which the engine polls shared memory without asking epoll for events. Applies if the
/// engine has leases but no work. The system call for epoll takes longer than a poll, so it would delay bytes
/// that arrive in shared memory during the call.
const UNASKED_NS: u64 = 4000;
/// The most events that one call of epoll returns.
const MOST_EVENTS: usize = 256;
/// The token of the control socket's epoll events.
const CONTROL: u64 = u64::MAX;
/// The token of the port's epoll events.
const PORT: u64 = u64::MAX - 1;
/// The token of the epoll events of the inbox.
const INBOX: u64 = u64::MAX - 2;
/// The token of the epoll events of the port's interface.
const INTERFACE: u64 = u64::MAX - 3;
/// The bit that marks the epoll tokens of the control socket's clients.
const CLIENT: u64 = 1 << 63;

/// One thread of an engine. It has one queue of the port, and runs the sockets whose packets arrive there.
pub struct Engine {
    settings: Settings,
    /// The sockets and their protocols.
    stack: Stack,
    /// What the threads share. `None` if the engine has one thread.
    shared: Option<Arc<Shared>>,
    /// A random number in the names of this engine's sockets. It distinguishes them from sockets of earlier
    /// engines.
    number: u64,
    clock: Clock,
    link: Link,
    epoll: OwnedFd,
    /// The kernel's interface of the port. `None` on ports without one, and on all threads but the first.
    interface: Option<WatchedInterface>,
    /// The interface's name, if it is down.
    down_interface: Option<String>,
    control: Control,
    /// Closes descriptors that programs have sent.
    closer: Arc<Closer>,
    /// Memory for the datagram that is being read from a pair.
    datagram_buffer: Vec<u8>,
    /// How many neighbours this thread may pass on to the other threads now. Index 0 is for neighbours that
    /// announced themselves to all hosts. Index 1 is for neighbours that answered a request or asked the
    /// engine.
    neighbour_budgets: [Budget; 2],
    /// The sockets by the cookie of the program's end.
    by_cookie: HashMap<u64, Key>,
    /// Memory for the list of due timers.
    due: Vec<Key>,
    /// The number of the socket that was created last.
    last_id: u64,
    totals: report::Totals,
    leases: lease::Leases,
}

/// Removes a descriptor from an epoll instance of the calling thread. Call this before another thread closes the descriptor.
/// Otherwise epoll_wait may hold the last reference to its file, and a close that blocks would then block the calling
/// thread.
fn stop_watching(epoll: &OwnedFd, fd: impl AsFd) {
    // The descriptor may be unwatched already.
    let _ = epoll::delete(epoll, fd);
}

/// Returns random bytes of the system.
fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the bytes outlive the call. Fewer than 256 bytes are never cut short.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) } {
        len if len == N as isize => Ok(bytes),
        _ => Err(Error::os("reading random bytes")(std::io::Error::last_os_error())),
    }
}

/// Waits at most `sleep` nanoseconds for events of an epoll instance, and stores them in `events`.
///
/// # Errors
/// Errors of the system; `Interrupted` if a signal arrived.
fn wait_for_events(epoll: &OwnedFd, sleep: u64, events: &mut Vec<libc::epoll_event>) -> std::io::Result<()> {
    events.clear();
    let (fd, room) = (epoll.as_raw_fd(), events.capacity().min(MOST_EVENTS) as i32);
    let count = if sleep == 0 {
        // SAFETY: the kernel writes at most `room` events into the vector's memory.
        unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), room, 0) }
    } else {
        let timeout = libc::timespec {
            tv_sec: (sleep / 1_000_000_000) as i64,
            tv_nsec: (sleep % 1_000_000_000) as i64,
        };
        // SAFETY: the kernel writes at most `room` events into the vector's memory. The timeout outlives the
        // call.
        let count = unsafe {
            let mask = std::ptr::null::<libc::sigset_t>();
            let events = events.as_mut_ptr();
            libc::syscall(libc::SYS_epoll_pwait2, fd, events, room, &raw const timeout, mask, 0)
        };
        match std::io::Error::last_os_error().raw_os_error() {
            // Linux before 5.11 lacks `epoll_pwait2`, and some containers forbid it. Use `epoll_wait`
            // instead, which sleeps for whole milliseconds.
            Some(libc::ENOSYS | libc::EPERM) if count < 0 => {
                let milliseconds = sleep.div_ceil(1_000_000) as i32;
                // SAFETY: as above.
                unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), room, milliseconds) }
            }
            _ => count as i32,
        }
    };
    match usize::try_from(count) {
        Ok(count) => {
            // SAFETY: the kernel has written the first `count` events, at most the capacity.
            unsafe { events.set_len(count) };
            Ok(())
        }
        Err(_) => Err(std::io::Error::last_os_error()),
    }
}

impl Engine {
    /// Opens an engine with one thread on a port of any kind.
    #[cfg(test)]
    fn open_on(settings: Settings, buffers: usize) -> Result<Self> {
        Threads::open_on(settings, buffers).map(Threads::into_first)
    }

    /// Creates the engine of one thread.
    fn assemble(
        settings: &Settings,
        clock: &Clock,
        link: Link,
        stack: Stack,
        control: Control,
        closer: Arc<Closer>,
    ) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| Error::os("epoll_create")(error.into()))?;
        let engine = Self {
            settings: settings.clone(),
            stack,
            shared: None,
            number: 0,
            clock: clock.clone(),
            link,
            epoll,
            interface: None,
            down_interface: None,
            control,
            closer,
            datagram_buffer: Vec::new(),
            neighbour_budgets: Default::default(),
            by_cookie: HashMap::new(),
            due: Vec::new(),
            last_id: 0,
            totals: report::Totals::default(),
            leases: lease::Leases::default(),
        };
        if let Some(listener) = engine.control.listener() {
            engine.watch(listener, CONTROL, epoll::EventFlags::IN)?;
        }
        for &descriptor in engine.link.wait_descriptors() {
            // SAFETY: the port keeps the descriptor open while it is started.
            let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
            engine.watch(descriptor, PORT, epoll::EventFlags::IN)?;
        }
        Ok(engine)
    }

    /// Makes this a thread of an engine. `shared` is what the threads share.
    fn join(&mut self, shared: Option<Arc<Shared>>) -> Result<()> {
        self.shared = shared;
        if let Some(inbox) = self.inbox() {
            self.watch(inbox.wake_descriptor(), INBOX, epoll::EventFlags::IN)?;
        }
        Ok(())
    }

    /// Returns the number of threads of the engine.
    fn threads(&self) -> usize {
        self.stack.threads()
    }

    /// Returns this thread's inbox, or `None` if the engine has one thread.
    fn inbox(&self) -> Option<&Inbox> {
        self.shared.as_ref().map(|shared| &shared.inboxes[self.stack.thread])
    }

    fn watch(&self, fd: impl AsFd, token: u64, flags: epoll::EventFlags) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
            .map_err(|error| Error::os("registering a descriptor")(error.into()))
    }

    /// Runs this thread until `stop` is set.
    ///
    /// # Errors
    /// If the port fails.
    fn run(&mut self, stop: &Arc<AtomicBool>) -> Result<()> {
        threads::pin(&self.settings.cores, self.stack.thread)?;
        let pool = self.stack.network.pool.clone();
        let _owner = pool.own();
        let wakes = !self.link.wait_descriptors().is_empty();
        let longest = if wakes { LONGEST_SLEEP_NS } else { LONGEST_POLLED_SLEEP_NS };
        let shortest = if wakes { LONGEST_SLEEP_NS } else { FIRST_POLLED_SLEEP_NS };
        let mut pause = shortest;
        let spin_ns = self.settings.spin.as_nanos() as u64;
        let mut events = Vec::with_capacity(MOST_EVENTS);
        // Reduce the timer slack. The default of 50 us would prolong short sleeps.
        // SAFETY: the call changes only the slack of this thread's timers.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        let mut packets = [Packet::EMPTY; BURST];
        let mut last_work = self.clock.now_ns();
        let (mut rounds, mut asked_at) = (0, 0);
        while !stop.load(Ordering::Relaxed) {
            let mut now = self.clock.now_ns();
            let mut worked = self.receive(now, &mut packets)?;
            worked |= self.receive_own(now);
            worked |= self.empty_inbox(now);
            worked |= self.poll_leases(now, false);
            let idle = !worked && self.stack.changed.is_empty() && !self.owes_reply();
            let may_sleep = idle && now >= last_work + spin_ns && self.stack.network.flush();
            let sleep = if may_sleep && self.end_leases(now) && self.falls_asleep() {
                self.sleep_ns(now, pause)
            } else {
                0
            };
            // Serve up to `MOST_ROUNDS` rounds of received packets before asking epoll for events of socket
            // pairs. Asking is a system call and would delay the packets.
            let asks = match worked {
                true => rounds == MOST_ROUNDS,
                false => may_sleep || !self.has_leases() || now >= asked_at + UNASKED_NS,
            };
            rounds += u32::from(worked);
            if worked && asks {
                // Send the results of this round first, because asking epoll would delay them.
                self.expire(now);
                self.serve_changed(now);
                self.stack.network.flush();
            }
            if asks {
                (rounds, asked_at) = (0, now);
                worked |= self.wait(now, sleep, &mut events)?;
            }
            if may_sleep && let Some(inbox) = self.inbox() {
                inbox.wakes_up();
            }
            now = self.clock.now_ns();
            worked |= self.expire(now);
            worked |= !self.stack.changed.is_empty();
            self.serve_changed(now);
            self.stack.network.flush();
            if worked {
                (last_work, pause) = (now, shortest);
            } else if sleep > 0 {
                pause = longest.min(2 * pause);
            }
        }
        Ok(())
    }

    /// Ends this thread's part of the engine: resets every connection and frees the packets.
    fn close(&mut self) {
        let now = self.clock.now_ns();
        let keys: Vec<Key> = self.stack.sockets.iter().map(|(key, _)| key).collect();
        for key in keys {
            if let Some(Socket { role: Role::Stream(stream), .. }) = self.stack.sockets.get_mut(key) {
                stream.connection.abort();
            }
            self.serve(now, key);
        }
        self.stack.network.flush();
        self.stack.network.free_packets();
    }

    /// Receives packets from the port. Returns true if there were any.
    fn receive(&mut self, now: u64, packets: &mut [Packet]) -> Result<bool> {
        let count = self.link.rx.receive(packets)?;
        for packet in &packets[..count] {
            // SAFETY: the packet was received, is not freed before the loop has ended, and nobody else writes
            // it.
            let bytes = unsafe { packet.bytes() };
            self.on_frame(now, bytes);
        }
        if count > 0 {
            // SAFETY: the packets are from a queue of this pool and not used afterwards.
            unsafe { self.stack.network.pool.free(&packets[..count]) };
        }
        Ok(count > 0)
    }

    /// Processes the packets that the engine sent to itself. Returns true if there were any.
    fn receive_own(&mut self, now: u64) -> bool {
        let count = self.stack.network.own.len().min(BURST);
        for _ in 0..count {
            if let Some(bytes) = self.stack.network.own.pop_front() {
                self.on_ip(now, &bytes, Arrival::OWN);
                self.stack.network.recycle(bytes);
            }
        }
        count > 0
    }

    /// Returns how long the engine may sleep, in nanoseconds: `longest`, or less if a timer is due earlier.
    fn sleep_ns(&self, now: u64, longest: u64) -> u64 {
        let mut sleep = longest;
        if self.stack.network.has_timer() {
            sleep = sleep.min(50_000_000);
        }
        self.stack.next_timer().map_or(sleep, |next| sleep.min(next.saturating_sub(now).max(1)))
    }

    /// Waits at most `sleep` nanoseconds for epoll events and processes them. Returns true if there were any.
    fn wait(&mut self, now: u64, sleep: u64, events: &mut Vec<libc::epoll_event>) -> Result<bool> {
        match wait_for_events(&self.epoll, sleep, events) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                return Err(Error::os("epoll_wait")(error));
            }
            _ => {}
        }
        let now = if sleep > 0 { self.clock.now_ns() } else { now };
        let mut worked = false;
        for event in events.iter() {
            let (token, flags) = (event.u64, epoll::EventFlags::from_bits_retain(event.events));
            match token {
                PORT if flags.contains(epoll::EventFlags::ERR) => self.link.clear_errors(),
                PORT => {}
                INTERFACE => self.check_interface()?,
                INBOX => self.inbox().into_iter().for_each(Inbox::clear_wake),
                CONTROL => self.accept_clients(),
                token if token & CLIENT != 0 => self.serve_client(now, Key::from_u64(token & !CLIENT)),
                token => self.on_pair_event(Key::from_u64(token), flags),
            }
            worked = true;
        }
        self.retry_early(now);
        self.report_next(now);
        Ok(worked || self.owes_reply())
    }

    /// Begins to watch the kernel's interface of the port, if the port has one.
    fn watch_interface(&mut self) -> Result<()> {
        let Some(name) = self.settings.port.interface() else { return Ok(()) };
        let what = format!("watching the interface {name}");
        let interface = WatchedInterface::new(name).map_err(Error::os(what))?;
        self.watch(interface.descriptor(), INTERFACE, epoll::EventFlags::IN)?;
        self.interface = Some(interface);
        self.check_interface()
    }

    /// Asks the kernel for the state of the port's interface.
    ///
    /// # Errors
    /// If the interface was removed.
    fn check_interface(&mut self) -> Result<()> {
        let Some(interface) = &self.interface else { return Ok(()) };
        let state = interface.state();
        self.down_interface = (state == InterfaceState::Down).then(|| interface.name().to_owned());
        if state != InterfaceState::Removed {
            return Ok(());
        }
        let what = format!("interface {}", interface.name());
        let why = "it was removed while the engine used it; create it again, and start the engine again";
        Err(inlane_core::Error::device_environment(what, why).into())
    }

    /// Processes epoll's report that a socket pair is readable or writable. Records it in the socket, and
    /// marks the socket as changed.
    fn on_pair_event(&mut self, key: Key, flags: epoll::EventFlags) {
        use epoll::EventFlags as Flags;
        let Some(socket) = self.stack.sockets.get_mut(key) else { return };
        match &mut socket.attachment.pair {
            Pair::Stream(pair) => {
                // While the connection is being established, the socket pair holds filler bytes. Do not read
                // them as data of the program.
                let data = if pair.filled.is_some() { Flags::empty() } else { Flags::IN };
                pair.readable |= flags.intersects(data | Flags::RDHUP | Flags::HUP | Flags::ERR);
                pair.closed |= flags.contains(Flags::HUP) && !flags.intersects(Flags::ERR | Flags::PRI);
                pair.writable |= flags.intersects(Flags::OUT | Flags::HUP | Flags::ERR);
                pair.more |= flags.intersects(Flags::PRI | Flags::RDHUP | Flags::HUP | Flags::ERR);
                pair.hung_up |= flags.intersects(Flags::HUP | Flags::ERR);
            }
            Pair::Listening(pair) => {
                pair.full &= !flags.contains(Flags::OUT);
                pair.unread |= flags.contains(Flags::IN);
                pair.hung_up |= flags.intersects(Flags::HUP | Flags::ERR);
            }
            Pair::Datagram(pair) => {
                pair.readable |= flags.intersects(Flags::IN | Flags::RDHUP | Flags::HUP | Flags::ERR);
            }
            Pair::Bound => {}
        }
        self.stack.touch(key);
    }

    /// Moves data and sends segments for the sockets on the list of changed ones.
    fn serve_changed(&mut self, now: u64) {
        let mut keys = self.stack.take_changed();
        for key in keys.drain(..) {
            if self.stack.begin_service(key) {
                self.serve(now, key);
            }
        }
        self.stack.reuse_changed(keys);
    }

    fn serve(&mut self, now: u64, key: Key) {
        let Some(Socket { attachment, .. }) = self.stack.sockets.get(key) else { return };
        match attachment.pair {
            Pair::Stream(_) => self.serve_stream(now, key),
            Pair::Listening(_) => self.serve_listener(now, key),
            Pair::Datagram(_) => self.serve_datagrams(now, key),
            Pair::Bound => {
                let Some(fd) = attachment.fd().filter(|&fd| !pair::hung_up(fd)) else {
                    return self.remove(key);
                };
                match pair::discard(fd, &attachment.closer) {
                    Ok(true) => self.stack.touch(key),
                    Ok(false) if !pair::hung_up(fd) => {}
                    _ => self.remove(key),
                }
            }
        }
    }

    /// Runs the timers that are due. Returns true if there were any.
    fn expire(&mut self, now: u64) -> bool {
        let mut due = std::mem::take(&mut self.due);
        self.stack.expire(now, &mut due);
        let worked = !due.is_empty();
        for key in due.drain(..) {
            self.retry_listener(key);
        }
        self.due = due;
        worked
    }

    /// Removes a socket: closes its pair and frees its memory.
    fn remove(&mut self, key: Key) {
        let Some(mut attachment) = self.stack.remove(key) else { return };
        // Other threads have descriptors of the same end if the socket is a listener.
        if let (Pair::Listening(_), Some(end)) = (&attachment.pair, &attachment.end) {
            stop_watching(&self.epoll, end);
        }
        let blocking = attachment.take_blocking();
        if let Some(end) = &blocking {
            stop_watching(&self.epoll, end);
        }
        let Attachment { cookie, pair, closer, copy, permit, .. } = attachment;
        if !copy {
            self.by_cookie.remove(&cookie);
            if let Some(shared) = &self.shared {
                shared.by_cookie.part(&cookie).remove(&cookie);
            }
        }
        // A socket counts until its end of the socket pair is closed.
        match blocking {
            Some(end) => closer.close(vec![end], Some(Box::new(permit))),
            None => drop(permit),
        }
        match pair {
            Pair::Listening(mut pair) => {
                // Close the program's ends of the socket pairs of connections that were not accepted. The
                // engine then resets these connections.
                while let Some(pending) = pair.queue.pop_front() {
                    drop(pending.program);
                    self.stack.touch(pending.key);
                }
            }
            Pair::Datagram(pair) => self.totals.datagrams.add(&pair.counters),
            Pair::Stream(_) | Pair::Bound => {}
        }
    }
}
