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
mod area;
mod bind;
mod closer;
mod control;
mod copies;
mod datagram;
mod datagram_request;
mod direct;
mod input;
pub mod interface;
mod kept;
pub mod link;
pub mod memory;
mod open;
mod option_request;
mod options;
pub mod pair;
mod pass;
mod peer;
mod permits;
mod reply;
mod report;
mod request;
mod run;
mod shared;
mod slots;
mod socket;
pub mod step;
mod stream;
mod stream_request;
#[cfg(test)]
mod tests;
mod threads;

use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::stack::arena::Key;
use crate::stack::budget::Budget;
use crate::stack::socket::Role;
use closer::Closer;
use control::Control;
use inlane_core::clock::Clock;
use interface::{InterfaceState, WatchedInterface};
use link::Link;
use rustix::event::epoll;
use shared::{Inbox, Shared};
use socket::{Attachment, Pair, Socket, Stack};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use threads::Threads;
pub(crate) use threads::pin;

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
    epoll: Arc<OwnedFd>,
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
    slots: slots::Slots,
}

/// Removes a descriptor from an epoll instance of the calling thread. Call this before another thread closes the descriptor.
/// Otherwise epoll_wait may hold the last reference to its file, and a close that blocks would then block the calling
/// thread.
fn stop_watching(epoll: &OwnedFd, fd: impl AsFd) {
    // The descriptor may be unwatched already.
    let _ = epoll::delete(epoll, fd);
}

/// Returns random bytes of the system.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the bytes outlive the call. Fewer than 256 bytes are never cut short.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) } {
        len if len == N as isize => Ok(bytes),
        _ => Err(Error::os("reading random bytes")(std::io::Error::last_os_error())),
    }
}

impl Engine {
    /// Opens an engine with one thread on a port of any kind.
    #[cfg(test)]
    fn open_on(settings: Settings, buffers: usize) -> Result<Self> {
        Threads::open_on(settings, buffers, None).map(Threads::into_first)
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
            .map(Arc::new)
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
            slots: slots::Slots::default(),
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

    /// Begins to watch the kernel's interface of the port, if the port has one.
    fn watch_interface(&mut self) -> Result<()> {
        let Some(interface) = WatchedInterface::of(&self.settings.port)? else { return Ok(()) };
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
        let state = interface.present_state()?;
        self.down_interface = (state == InterfaceState::Down).then(|| interface.name().to_owned());
        Ok(())
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
        // Close a duplicate of the program's end before the program learns that the connection has failed. The program's epoll instances would
        // otherwise report events of its closed descriptor, as if they were those of the next one with its number.
        if let Pair::Stream(pair) = &mut attachment.pair {
            pair.filled = None;
        }
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
                self.refuse_handed_over(key);
                // Close the program's ends of the socket pairs of connections that were not accepted. The
                // engine then resets these connections.
                while let Some(pending) = pair.queue.pop_front() {
                    self.drop_pending(pending);
                }
            }
            Pair::Datagram(pair) => self.totals.datagrams.add(&pair.counters),
            Pair::Stream(_) | Pair::Bound => {}
        }
    }
}
