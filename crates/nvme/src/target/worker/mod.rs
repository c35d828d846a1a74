//! A worker thread: uses its io_uring to move bytes between sockets, connections and files.
//!
//! ```text
//!   one round:  wait for completions (submits all requests of the last round)
//!               -> process received bytes and messages, then some results of file operations
//!               -> for each connection concerned: start file operations, send the output, receive
//!               -> if results are left: submit, take new completions, and repeat
//! ```
//!
//! At queue depth 1, a round costs two system calls: one sends the response, the other receives the next command and
//! waits. With more commands in flight, one send carries several responses. A send carries a limited number of bytes. The
//! connection sends the rest once its socket is writable, after the other connections. If a disk completes many
//! operations at once, the worker sends responses and starts new commands within the round. Otherwise, the
//! host and the disk would wait for the end of the round.
//!
//! **Memory.** The kernel uses memory of a [`Link`] while one of the link's requests is in flight. A link is
//! therefore removed only when none of its requests is in flight. The worker first shuts down the link's
//! socket, so that the requests end.

mod jobs;
mod lifetime;
mod link;
mod load;
mod requests;

pub use jobs::{Jobs, start_jobs};
pub use load::WorkerLoad;

use super::buffer::Pool;
use super::flush::FlushGroup;
use super::inbox::{ConnectionId, Inbox, Message, Note};
use super::ring::{Completed, Ring};
use super::subsystem::Subsystem;
use crate::Result;
use io_uring::types::Timespec;
use link::{Closing, Link};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How often timeouts are checked.
static TICK: Timespec = Timespec::new().nsec(250_000_000);

/// The number of completions after which responses are sent. Hosts then work on the first responses of a
/// round while the worker processes more completions.
const BATCH: usize = 8;
/// After file operations of this many bytes in total, responses are sent even if there are fewer than
/// [`BATCH`]. A shorter read or write is submitted at once, because the disk can then start early.
const BATCH_BYTES: u64 = 64 << 10;

/// The kinds of requests, in the upper byte of their tags. Bits 55:32 hold the connection's index, bits 15:0
/// the command's number.
mod kind {
    pub const RECEIVE: u8 = 1;
    pub const WRITABLE: u8 = 2;
    pub const FILE: u8 = 3;
    pub const INBOX: u8 = 4;
    pub const TICK: u8 = 5;
}

fn tag(kind: u8, index: usize, slot: u16) -> u64 {
    u64::from(kind) << 56 | (index as u64) << 32 | u64::from(slot)
}

/// A worker thread.
pub struct Worker {
    /// The number of the worker among those of the target.
    index: usize,
    ring: Ring,
    inbox: Arc<Inbox>,
    subsystem: Arc<Subsystem>,
    pool: Pool,
    // The links of the worker's connections, by index. The links are boxed because the kernel uses the
    // message header of a link, so it must not move.
    #[allow(clippy::vec_box)]
    links: Vec<Option<Box<Link>>>,
    /// The indices of `links` without a connection.
    free: Vec<usize>,
    /// The number of connections of this worker, and how many of them have an admin queue.
    load: Arc<WorkerLoad>,
    /// The indices of the connections to serve in this round.
    due: Vec<usize>,
    /// The indices of the connections that wait for buffers.
    starved: VecDeque<usize>,
    returned_buffers: u64,
    /// Space for the memory ranges of a send.
    vectors: Vec<libc::iovec>,
    next_id: u64,
    now_ms: u64,
    draining_since: Option<u64>,
    /// How long the thread polls for completions before it sleeps. If zero, it sleeps at once.
    spin: Duration,
    /// Runs the slow parts of authentications. `None` if this thread runs them.
    jobs: Option<Arc<Jobs>>,
}

impl Drop for Worker {
    /// After a panic or a failure of the ring, requests may still be in flight. The kernel then goes on using the memory
    /// of their links, so this memory is never freed.
    fn drop(&mut self) {
        if std::thread::panicking() || self.links.iter().any(Option::is_some) {
            self.subsystem.flushes.iter().for_each(FlushGroup::abandon);
        }
        for link in self.links.iter_mut().filter_map(Option::take) {
            lifetime::shutdown(&link.socket, libc::SHUT_RDWR);
            if link.receiving || link.operations > 0 {
                std::mem::forget(link);
            }
        }
    }
}

impl Worker {
    /// Creates the worker that the calling thread runs. `load` counts its connections. `jobs` runs the slow
    /// parts of authentications.
    ///
    /// # Errors
    /// If no io_uring can be created.
    pub fn new(
        index: usize,
        subsystem: Arc<Subsystem>,
        inbox: Arc<Inbox>,
        load: Arc<WorkerLoad>,
        spin: Duration,
        jobs: Option<Arc<Jobs>>,
    ) -> Result<Self> {
        Ok(Self {
            index,
            ring: Ring::new()?,
            inbox,
            pool: Pool::new(subsystem.limits.buffer_bytes),
            subsystem,
            links: Vec::new(),
            free: Vec::new(),
            load,
            due: Vec::new(),
            starved: VecDeque::new(),
            returned_buffers: 0,
            vectors: Vec::new(),
            next_id: 0,
            now_ms: 0,
            draining_since: None,
            spin,
            jobs,
        })
    }

    /// Serves connections until the message [`Message::Drain`] arrives and all have ended.
    ///
    /// # Errors
    /// Errors of the io_uring.
    pub fn run(mut self) -> std::io::Result<()> {
        self.ring.poll(self.inbox.event(), libc::POLLIN, tag(kind::INBOX, 0, 0));
        self.ring.timeout(&TICK, tag(kind::TICK, 0, 0));
        let (mut completed, mut files) = (Vec::new(), VecDeque::new());
        while self.draining_since.is_none() || self.load.connections.load(Relaxed) > 0 {
            self.ring.wait(&mut completed, self.spin)?;
            loop {
                self.now_ms = self.subsystem.now_ms();
                self.process(&mut completed, &mut files);
                if files.is_empty() {
                    break;
                }
                // Before processing the next batch of results, send the responses of this batch and fetch the
                // commands that have arrived. Otherwise the disk could run out of work.
                self.ring.submit();
                self.ring.take(&mut completed);
            }
        }
        Ok(())
    }

    /// Processes all completions except results of file operations. Moves those results to `files`, and then
    /// processes a batch of `files`. Received commands come first, even before older results. Otherwise, the
    /// disk could run out of work.
    fn process(&mut self, completed: &mut Vec<Completed>, files: &mut VecDeque<Completed>) {
        for part in completed.chunks(BATCH) {
            if !self.due.is_empty() {
                self.serve_due();
                self.ring.submit();
            }
            for item in part {
                match item.tag.to_be_bytes()[0] {
                    kind::FILE => files.push_back(*item),
                    _ => self.completed(*item),
                }
            }
        }
        completed.clear();
        self.serve_due();
        let (mut operations, mut bytes) = (0, 0);
        while operations < BATCH
            && bytes < BATCH_BYTES
            && let Some(item) = files.pop_front()
        {
            self.completed(item);
            operations += 1;
            bytes += u64::try_from(item.result).unwrap_or(0);
        }
        self.serve_due();
    }

    /// Serves the connections that are due because an operation of theirs has completed. If buffers became
    /// free, also serves the connections that wait for buffers.
    fn serve_due(&mut self) {
        loop {
            self.feed_starved();
            if self.due.is_empty() {
                return;
            }
            while let Some(index) = self.due.pop() {
                self.serve(index);
            }
        }
    }

    fn completed(&mut self, item: Completed) {
        let index = (item.tag >> 32 & 0xFF_FFFF) as usize;
        match item.tag.to_be_bytes()[0] {
            kind::INBOX => {
                for message in self.inbox.take() {
                    self.message(message);
                }
                self.ring.poll(self.inbox.event(), libc::POLLIN, tag(kind::INBOX, 0, 0));
            }
            kind::TICK => {
                self.tick();
                self.ring.timeout(&TICK, tag(kind::TICK, 0, 0));
            }
            kind::RECEIVE => self.received(index, item),
            kind::WRITABLE => self.writable(index),
            _ => self.file_returned(index, item.tag as u16, item.result),
        }
    }

    /// Returns the link with this index. The link must exist. A link exists at least as long as it has
    /// requests in flight.
    fn link(&mut self, index: usize) -> &mut Link {
        self.links[index].as_mut().expect("a link stays while its requests are in flight")
    }

    /// Adds a connection to `due`, the list of connections to serve in this round. Does nothing if the
    /// connection is already in the list.
    fn mark(&mut self, index: usize) {
        let link = self.link(index);
        if !std::mem::replace(&mut link.due, true) {
            self.due.push(index);
        }
    }

    fn find(&self, id: ConnectionId) -> Option<usize> {
        let index = (id.0 & 0xFF_FFFF) as usize;
        let link = self.links.get(index)?.as_ref()?;
        (link.connection.setup.reach.connection == id).then_some(index)
    }

    fn note(&mut self, index: usize, note: Note) {
        let now = self.now_ms;
        match note {
            Note::Close => self.close(index),
            Note::Displace => self.displace(index),
            Note::Event => self.link(index).connection.report_events(),
            Note::Authentication(side) => self.link(index).connection.authentication_computed(side, now),
            Note::Flush(slot, Some(result)) => self.file_returned(index, slot, result),
            Note::Flush(slot, None) => self.submit_call(index, slot),
        }
        self.mark(index);
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Accept { socket, peer, local, ticket } => self.accept(socket, peer, local, ticket),
            Message::To(id, note) => {
                if let Some(index) = self.find(id) {
                    self.note(index, note);
                }
            }
            #[cfg(test)]
            Message::Panic => panic!("a panic of a test"),
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

    /// If buffers were given back since the last call, resumes the connections that wait for buffers.
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

    /// Starts all operations that a connection is ready for. If the connection has ended, removes its
    /// [`Link`].
    fn serve(&mut self, index: usize) {
        // `close` puts a connection on the list `due` again. After that, `serve` may remove its link at once.
        // So the list may contain a connection without a link.
        let Some(link) = self.links[index].as_mut() else { return };
        link.due = false;
        while let Some(slot) = self.link(index).connection.next_operation() {
            self.start_call(index, slot);
        }
        if let Some(job) = self.link(index).connection.take_job() {
            self.start_job(index, job);
        }
        if self.link(index).half_open.is_some() {
            self.follow_half_open(index);
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
        let link = self.link(index);
        if link.closing == Closing::No && link.connection.is_drained() && link.connection.pending_bytes() == 0
        {
            self.close(index);
        }
        self.linger(index);
        self.receive(index);
    }
}
