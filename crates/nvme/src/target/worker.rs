//! A worker thread: moves bytes between sockets, connections and files by its io_uring.
//!
//! ```text
//!   one round:  wait for completions (submits all requests of the last round)
//!               -> process received bytes, results of file operations, messages
//!               -> for each connection concerned: start file operations, send the output, receive
//! ```
//!
//! At queue depth 1 a round costs one system call. With more commands in flight, several responses leave in
//! one send. If a disk completes many operations at once, responses are also sent within the round, so that
//! the host can work on them.
//!
//! **Memory.** The kernel uses memory of a [`Link`] while one of its requests is in flight. A link is
//! therefore removed only when none is. The worker first shuts the socket down, so that the requests end.

use super::buffer::Pool;
use super::connection::{Connection, End, Setup};
use super::controller::Reach;
use super::inbox::{ConnectionId, Inbox, Message};
use super::ring::{Completed, Ring};
use super::subsystem::Subsystem;
use crate::Result;
use io_uring::types::Timespec;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// How often timeouts are checked.
static TICK: Timespec = Timespec::new().nsec(250_000_000);
/// How long a host may take to read a termination request.
const LINGER_MS: u64 = 1000;
/// How long commands in progress may take when the target ends.
const DRAIN_MS: u64 = 5000;

/// Responses are sent after this many completions, so that hosts work on them while the round continues.
const BATCH: usize = 8;
/// Responses are also sent after file operations of this many bytes in total. Each smaller operation is
/// submitted at once.
const BATCH_BYTES: u64 = 64 << 10;

/// The kinds of requests, in the upper byte of their tags. Bits 55:32 hold the connection's index, bits 15:0
/// the command's number.
mod kind {
    pub const RECEIVE: u8 = 1;
    pub const SEND: u8 = 2;
    pub const FILE: u8 = 3;
    pub const INBOX: u8 = 4;
    pub const TICK: u8 = 5;
}

fn tag(kind: u8, index: usize, slot: u16) -> u64 {
    u64::from(kind) << 56 | (index as u64) << 32 | u64::from(slot)
}

/// Whether a connection is being closed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// The connection is in use.
    No,
    /// A termination request was sent. The value is the host's deadline for closing the connection, in
    /// milliseconds since the target started.
    Lingers(u64),
    /// The socket is shut down. The connection is removed when it has no request in flight.
    Yes,
}

/// A connection with its socket and its requests in flight.
struct Link {
    id: ConnectionId,
    connection: Connection,
    socket: OwnedFd,
    peer: SocketAddr,
    receiving: bool,
    sending: bool,
    /// The number of file operations in flight.
    operations: u32,
    closing: Closing,
    /// True if the last receive left data in the socket.
    more_to_receive: bool,
    vectors: Vec<libc::iovec>,
    message: libc::msghdr,
    accepted_ms: u64,
    /// When bytes were last received or sent, in milliseconds since the target started.
    progress_ms: u64,
    /// When a timeout check first found that the target waits for the host, in milliseconds. `None` while it
    /// does not wait.
    waiting_ms: Option<u64>,
    /// True if the connection carries an admin queue and is counted in [`Load::admin_queues`].
    admin: bool,
    /// True if the connection is in the list of connections to serve in this round.
    due: bool,
    /// True if the connection is in the list of connections that wait for buffers.
    starved: bool,
    /// A buffer for bytes that are received while the connection lingers. They are ignored.
    discard: Box<[u8]>,
}

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

/// A worker thread.
pub struct Worker {
    ring: Ring,
    inbox: Arc<Inbox>,
    subsystem: Arc<Subsystem>,
    pool: Pool,
    // Each link is boxed, because the kernel uses its message header, which must not move.
    #[allow(clippy::vec_box)]
    links: Vec<Option<Box<Link>>>,
    free: Vec<usize>,
    /// How many connections this worker serves.
    load: Arc<Load>,
    half_open: VecDeque<ConnectionId>,
    max_half_open: usize,
    due: Vec<usize>,
    starved: VecDeque<usize>,
    returned_buffers: u64,
    next_id: u64,
    now_ms: u64,
    draining_since: Option<u64>,
    /// How long the thread polls for completions before it sleeps. If zero, it sleeps at once.
    spin: Duration,
}

impl Worker {
    /// Creates the worker that the calling thread runs. `load` counts its connections. If more than
    /// `max_half_open` of them have no queue, the oldest is closed.
    ///
    /// # Errors
    /// If no io_uring can be created.
    pub fn new(
        subsystem: Arc<Subsystem>,
        inbox: Arc<Inbox>,
        load: Arc<Load>,
        max_half_open: usize,
        spin: Duration,
    ) -> Result<Self> {
        Ok(Self {
            ring: Ring::new()?,
            inbox,
            pool: Pool::new(subsystem.limits.buffer_bytes),
            subsystem,
            links: Vec::new(),
            free: Vec::new(),
            load,
            half_open: VecDeque::new(),
            max_half_open,
            due: Vec::new(),
            starved: VecDeque::new(),
            returned_buffers: 0,
            next_id: 0,
            now_ms: 0,
            draining_since: None,
            spin,
        })
    }

    /// Serves connections until the message [`Message::Drain`] arrives and all have ended.
    ///
    /// # Errors
    /// Errors of the io_uring.
    pub fn run(mut self) -> std::io::Result<()> {
        self.ring.poll(self.inbox.event(), tag(kind::INBOX, 0, 0));
        self.ring.timeout(&TICK, tag(kind::TICK, 0, 0));
        let mut completed = Vec::new();
        while self.draining_since.is_none() || self.load.connections.load(Relaxed) > 0 {
            self.ring.wait(&mut completed, self.spin)?;
            self.now_ms = self.subsystem.now_ms();
            let (mut operations, mut bytes) = (0, 0);
            for item in &completed {
                if operations == BATCH || bytes >= BATCH_BYTES {
                    self.serve_due();
                    self.ring.submit();
                    (operations, bytes) = (0, 0);
                }
                self.completed(*item);
                operations += 1;
                if (item.tag >> 56) as u8 == kind::FILE {
                    bytes += u64::try_from(item.result).unwrap_or(0);
                }
            }
            self.serve_due();
            completed.clear();
        }
        Ok(())
    }

    /// Serves the connections with completions. If buffers became free, also serves those that wait for
    /// buffers.
    fn serve_due(&mut self) {
        self.feed_starved();
        while let Some(index) = self.due.pop() {
            self.serve(index);
        }
    }

    fn completed(&mut self, item: Completed) {
        let index = (item.tag >> 32 & 0xFF_FFFF) as usize;
        match (item.tag >> 56) as u8 {
            kind::INBOX => {
                for message in self.inbox.take() {
                    self.message(message);
                }
                self.ring.poll(self.inbox.event(), tag(kind::INBOX, 0, 0));
            }
            kind::TICK => {
                self.tick();
                self.ring.timeout(&TICK, tag(kind::TICK, 0, 0));
            }
            kind::RECEIVE => self.received(index, item),
            kind::SEND => self.sent(index, item.result),
            _ => self.file_returned(index, item.tag as u16, item.result),
        }
    }

    /// Returns the link of a request in flight.
    fn link(&mut self, index: usize) -> &mut Link {
        self.links[index].as_mut().expect("a link stays while its requests are in flight")
    }

    /// Puts a connection on the list to serve in this round, unless it is there already.
    fn mark(&mut self, index: usize) {
        let link = self.link(index);
        if !std::mem::replace(&mut link.due, true) {
            self.due.push(index);
        }
    }

    fn find(&self, id: ConnectionId) -> Option<usize> {
        let index = (id.0 & 0xFF_FFFF) as usize;
        self.links.get(index)?.as_ref().filter(|link| link.id == id).map(|_| index)
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Accept { socket, peer, local } => self.accept(socket, peer, local),
            Message::Close(id) => {
                if let Some(index) = self.find(id) {
                    self.close(index);
                }
            }
            Message::Event(id) => {
                if let Some(index) = self.find(id) {
                    self.link(index).connection.report_events();
                    self.mark(index);
                }
            }
            Message::Drain => {
                self.draining_since = Some(self.now_ms);
                for index in 0..self.links.len() {
                    if self.links[index].is_some() {
                        self.link(index).connection.drain();
                        self.mark(index);
                    }
                }
            }
        }
    }

    fn accept(&mut self, socket: OwnedFd, peer: SocketAddr, local: SocketAddr) {
        if self.draining_since.is_some() {
            self.load.connections.fetch_sub(1, Relaxed);
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        self.next_id += 1;
        let id = ConnectionId(self.next_id << 24 | index as u64);
        let setup = Setup {
            subsystem: self.subsystem.clone(),
            share: self.pool.share(self.subsystem.limits.connection_bytes),
            reach: Reach { inbox: self.inbox.clone(), connection: id },
            peer,
            local,
        };
        let link = Link {
            id,
            connection: Connection::new(setup),
            socket,
            peer,
            receiving: false,
            sending: false,
            operations: 0,
            closing: Closing::No,
            more_to_receive: true,
            vectors: Vec::new(),
            // SAFETY: a message header of zeros is valid.
            message: unsafe { std::mem::zeroed() },
            accepted_ms: self.now_ms,
            progress_ms: self.now_ms,
            waiting_ms: None,
            admin: false,
            due: false,
            starved: false,
            discard: Box::default(),
        };
        self.links[index] = Some(Box::new(link));
        self.half_open.push_back(id);
        if self.half_open.len() > self.max_half_open {
            self.close_oldest_half_open();
        }
        self.mark(index);
    }

    /// Closes the oldest connection without a queue, because there are too many.
    fn close_oldest_half_open(&mut self) {
        while let Some(id) = self.half_open.pop_front() {
            let Some(index) = self.find(id) else { continue };
            let link = self.link(index);
            if !link.connection.is_connected() && link.closing == Closing::No {
                self.subsystem.counters.refused.fetch_add(1, Relaxed);
                return self.close(index);
            }
        }
    }

    fn received(&mut self, index: usize, item: Completed) {
        let now = self.now_ms;
        let link = self.link(index);
        link.receiving = false;
        link.more_to_receive = item.more_to_receive();
        match item.result {
            _ if link.closing == Closing::Yes => {}
            // The host closed the connection, or the receive failed.
            result if result <= 0 && !is_transient(result) => return self.close(index),
            result if result <= 0 || link.closing != Closing::No => {}
            result => {
                link.progress_ms = now;
                link.connection.received(result as usize, now);
                if !link.admin && link.connection.is_admin() {
                    link.admin = true;
                    self.load.admin_queues.fetch_add(1, Relaxed);
                }
            }
        }
        self.mark(index);
    }

    fn sent(&mut self, index: usize, result: i32) {
        let now = self.now_ms;
        let link = self.link(index);
        link.sending = false;
        if result > 0 {
            link.progress_ms = now;
            link.connection.output().advance(result as usize);
            link.connection.resume(now);
        } else if !is_transient(result) {
            return self.close(index);
        }
        self.mark(index);
    }

    fn file_returned(&mut self, index: usize, slot: u16, result: i32) {
        let now = self.now_ms;
        let link = self.link(index);
        link.operations -= 1;
        if link.connection.returned(slot, result, now) {
            self.start_call(index, slot);
        }
        self.mark(index);
    }

    fn start_call(&mut self, index: usize, slot: u16) {
        let link = self.link(index);
        link.operations += 1;
        let (descriptor, call) = link.connection.call(slot);
        // SAFETY: the memory belongs to a buffer of the command, which the connection keeps until the call
        // has returned.
        unsafe { self.ring.call(descriptor, call, tag(kind::FILE, index, slot)) };
        if call.bytes() < BATCH_BYTES {
            self.ring.submit();
        }
    }

    /// If buffers were given back since the last call, continues with the connections that wait for buffers.
    fn feed_starved(&mut self) {
        let returned = self.pool.returned();
        if returned == self.returned_buffers {
            return;
        }
        self.returned_buffers = returned;
        for _ in 0..self.starved.len() {
            let Some(index) = self.starved.pop_front() else { return };
            let now = self.now_ms;
            let Some(link) = self.links[index].as_mut() else { continue };
            link.starved = false;
            link.connection.resume(now);
            self.mark(index);
        }
    }

    /// Starts everything that a connection is ready for, or removes the link if it has ended.
    fn serve(&mut self, index: usize) {
        // Skip a link that was removed when it was served earlier.
        let Some(link) = self.links[index].as_mut() else { return };
        link.due = false;
        if link.closing == Closing::No
            && link.connection.is_drained()
            && link.connection.output().pending_bytes() == 0
        {
            self.close(index);
        }
        while let Some(slot) = self.link(index).connection.next_operation() {
            self.start_call(index, slot);
        }
        let link = self.link(index);
        if !link.starved && link.connection.is_starved() {
            link.starved = true;
            self.starved.push_back(index);
        }
        if self.link(index).closing == Closing::Yes {
            return self.remove_if_idle(index);
        }
        self.send(index);
        self.linger(index);
        self.receive(index);
    }

    fn send(&mut self, index: usize) {
        let Self { links, ring, .. } = self;
        let link = links[index].as_mut().expect("a link");
        if link.sending || link.connection.output().next(&mut link.vectors) == 0 {
            return;
        }
        link.sending = true;
        link.message.msg_iov = link.vectors.as_mut_ptr();
        link.message.msg_iovlen = link.vectors.len();
        // SAFETY: the link is boxed. Its vectors, and the output that they describe, stay until the send has
        // returned.
        unsafe { ring.send(link.socket.as_raw_fd(), &link.message, tag(kind::SEND, index, 0)) };
    }

    /// Lets the host read the last output of a connection that ends, then closes the connection.
    fn linger(&mut self, index: usize) {
        let now = self.now_ms;
        let link = self.link(index);
        let terminated = match link.connection.end() {
            Some(end) => matches!(end, End::Terminated(_)),
            None => return,
        };
        if link.closing != Closing::No || link.connection.output().pending_bytes() > 0 {
            return;
        }
        if terminated {
            return self.close(index);
        }
        // Shut down only sending: closing with unread input would reset the connection, and the host might
        // lose the termination request.
        // SAFETY: the descriptor is open.
        unsafe { libc::shutdown(link.socket.as_raw_fd(), libc::SHUT_WR) };
        link.closing = Closing::Lingers(now + LINGER_MS);
        link.discard = vec![0; 16 << 10].into_boxed_slice();
    }

    fn receive(&mut self, index: usize) {
        let Self { links, ring, .. } = self;
        let link = links[index].as_mut().expect("a link");
        if link.receiving || link.closing == Closing::Yes {
            return;
        }
        let space = match link.closing {
            Closing::Lingers(_) => Some(&mut link.discard[..]),
            _ => link.connection.space(),
        };
        let Some(space) = space else { return };
        link.receiving = true;
        let (address, length, wait) = (space.as_mut_ptr(), space.len(), !link.more_to_receive);
        // SAFETY: the memory belongs to the boxed link, and nothing else uses it until the receive has
        // returned.
        unsafe { ring.receive(link.socket.as_raw_fd(), address, length, wait, tag(kind::RECEIVE, index, 0)) };
    }

    /// Ends a connection at once. Its requests in flight end soon.
    fn close(&mut self, index: usize) {
        let link = self.link(index);
        if link.closing != Closing::Yes {
            link.closing = Closing::Yes;
            link.connection.disconnected();
            // SAFETY: the descriptor is open.
            unsafe { libc::shutdown(link.socket.as_raw_fd(), libc::SHUT_RDWR) };
        }
        self.mark(index);
    }

    fn remove_if_idle(&mut self, index: usize) {
        let link = self.link(index);
        if link.receiving || link.sending || link.operations > 0 {
            return;
        }
        tracing::debug!("{}: connection closed", link.peer);
        if link.admin {
            self.load.admin_queues.fetch_sub(1, Relaxed);
        }
        self.links[index] = None;
        self.starved.retain(|other| *other != index);
        self.free.push(index);
        self.load.connections.fetch_sub(1, Relaxed);
    }

    /// Ends connections whose hosts take too long.
    fn tick(&mut self) {
        let limits = &self.subsystem.limits;
        let (handshake_ms, stall_ms) =
            (limits.handshake_timeout.as_millis() as u64, limits.stall_timeout.as_millis() as u64);
        let now = self.now_ms;
        let drained_by = self.draining_since.map(|since| since + DRAIN_MS);
        for index in 0..self.links.len() {
            let Some(link) = self.links[index].as_mut() else { continue };
            let waits = link.connection.waits_for_host();
            link.waiting_ms = waits.then(|| link.waiting_ms.unwrap_or(now));
            // Count from the later of two times: when the target began to wait for the host, and the last
            // progress.
            let stalled_since = link.waiting_ms.map(|since| since.max(link.progress_ms));
            let late = |since: u64, limit: u64| now.saturating_sub(since) > limit;
            let why = match link.closing {
                Closing::Yes => continue,
                Closing::Lingers(until) if now > until => "the host did not close it",
                Closing::Lingers(_) => continue,
                Closing::No if drained_by.is_some_and(|until| now > until) => "the target ends",
                Closing::No if !link.connection.is_connected() && late(link.accepted_ms, handshake_ms) => {
                    "the host did not connect a queue in time"
                }
                Closing::No if stalled_since.is_some_and(|since| late(since, stall_ms)) => {
                    "the host neither reads responses nor sends data"
                }
                Closing::No => continue,
            };
            if link.closing == Closing::No && drained_by.is_none() {
                self.subsystem.counters.refused.fetch_add(1, Relaxed);
                tracing::warn!("{}: connection closed: {why}", link.peer);
            }
            self.close(index);
        }
        while let Some(id) = self.half_open.front() {
            match self.find(*id) {
                Some(index) if !self.link(index).connection.is_connected() => break,
                _ => self.half_open.pop_front(),
            };
        }
    }
}

/// Returns true if a request that ended with `result` can be repeated.
fn is_transient(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN)
}
