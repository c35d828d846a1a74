//! What the threads of an engine share: which thread runs each flow and each socket, and an inbox for each
//! thread.
//!
//! ```text
//!   queue 0 --> thread 0 --- own sockets, own timers          inbox 0 <--+
//!                  |                                                     |-- packets, requests, sockets,
//!   queue 1 --> thread 1 --- own sockets, own timers          inbox 1 <--+   listeners, reports
//!                  |
//!                  +-- without a socket for a packet: look up the flow's thread, and put the packet into its inbox
//! ```
//!
//! An engine with one thread has no such state.

use super::control::{Client, PassedRequest};
use super::copies::Announcement;
use super::report::Report;
use super::socket::Socket;
use crate::error::{Error, Result};
use crate::lock;
use crate::stack::owners::{Owner, Owners, Shards};
use inlane_tcp::Flow;
use inlane_wire::ethernet::Mac;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};

/// The most packets that wait in an inbox. Further packets are dropped, as on a full link.
const MOST_PACKETS: usize = 4096;

/// An IP packet that one thread received and another processes.
pub(super) struct PassedPacket {
    pub bytes: Vec<u8>,
    /// True if the engine sent the packet to itself, without checksums.
    pub trusted: bool,
    /// The thread that received the packet.
    pub from: usize,
    /// The number of threads that have passed the packet on.
    pub hops: usize,
}

/// What one thread asks another to do.
pub(super) enum Task {
    /// Serve a client of the control socket.
    Client(Client),
    /// Process a request about a socket of this thread.
    Request(Box<PassedRequest>),
    /// Add or change this thread's copy of a listener.
    Listen(Arc<Announcement>),
    /// Add this thread's part to a report.
    Report(Arc<Report>),
    /// Forget a flow in TIME-WAIT, because another thread reuses it.
    Forget(Flow),
    /// Learn a neighbour's MAC address.
    Learn { address: IpAddr, mac: Mac, add: bool },
}

/// A socket that moves to another thread, because its packets arrive there. Also the packet that caused the
/// move.
pub(super) struct MovedSocket {
    pub socket: Box<Socket>,
    pub packet: PassedPacket,
}

#[derive(Default)]
struct Letters {
    packets: Vec<PassedPacket>,
    tasks: Vec<Task>,
    sockets: Vec<MovedSocket>,
}

/// The inbox of one engine thread: packets, tasks and sockets that other threads pass to it.
pub(super) struct Inbox {
    letters: Mutex<Letters>,
    /// True after another thread has added to `letters`. The owning thread reads this flag to look for work
    /// without taking the lock.
    filled: AtomicBool,
    /// True while the thread sleeps or is about to. Only then is `wake` written.
    asleep: AtomicBool,
    /// An eventfd that wakes the thread.
    wake: OwnedFd,
}

impl Inbox {
    fn new() -> Result<Self> {
        // SAFETY: has no preconditions.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::os("creating an eventfd")(std::io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just created, and no other code owns it.
        let wake = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            letters: Mutex::default(),
            filled: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wake,
        })
    }

    /// Returns the eventfd by which the thread is woken.
    pub fn wake_descriptor(&self) -> &OwnedFd {
        &self.wake
    }

    /// Changes the inbox's content by `add`, then wakes the thread if it sleeps.
    fn put<T>(&self, add: impl FnOnce(&mut Letters) -> T) -> T {
        let outcome = {
            let mut letters = lock(&self.letters);
            let outcome = add(&mut letters);
            self.filled.store(true, Ordering::Relaxed);
            outcome
        };
        // This fence and the fence in `falls_asleep` ensure one of two things: this thread sees `asleep`, or
        // the thread of the inbox sees `filled`.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
        outcome
    }

    /// Wakes the thread if it sleeps.
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the bytes live through the call. A full counter also wakes the thread.
        let _ = unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Records that the thread is about to sleep. Returns false if the inbox is not empty: the thread must
    /// then not sleep. In both cases, the thread calls [`Inbox::wakes_up`] afterwards.
    pub fn falls_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.filled.load(Ordering::Relaxed)
    }

    /// Notes that the thread does not sleep any more.
    pub fn wakes_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Returns the number of tasks in the inbox.
    #[cfg(test)]
    pub fn tasks(&self) -> usize {
        lock(&self.letters).tasks.len()
    }

    /// Resets the eventfd, after epoll has reported it.
    pub fn clear_wake(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the bytes live through the call.
        let _ = unsafe { libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// Returns true if the inbox may contain something.
    #[inline]
    pub fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Relaxed)
    }

    /// Takes the packets and the tasks.
    pub fn take(&self) -> (Vec<PassedPacket>, Vec<Task>) {
        let mut letters = lock(&self.letters);
        self.filled.store(!letters.sockets.is_empty(), Ordering::Relaxed);
        (std::mem::take(&mut letters.packets), std::mem::take(&mut letters.tasks))
    }

    /// Takes the sockets that have moved to this thread.
    pub fn take_sockets(&self) -> Vec<MovedSocket> {
        std::mem::take(&mut lock(&self.letters).sockets)
    }
}

/// What the threads of an engine share.
pub(super) struct Shared {
    /// The inboxes of the threads, by number.
    pub inboxes: Vec<Inbox>,
    /// The thread of each flow. The stacks share this table.
    pub owners: Arc<Owners>,
    /// The thread that runs each socket. The key is the cookie of the program's end of the socket pair.
    pub by_cookie: Shards<u64, usize>,
    /// The number of control socket clients that each thread serves. The index is the thread's number.
    pub clients: Vec<AtomicUsize>,
}

impl Shared {
    /// Creates the state that `threads` threads share.
    ///
    /// # Errors
    /// If the system has no descriptor left.
    pub fn new(threads: usize) -> Result<Self> {
        let inboxes = (0..threads).map(|_| Inbox::new()).collect::<Result<_>>()?;
        let clients = (0..threads).map(|_| AtomicUsize::new(0)).collect();
        let owners = Arc::new(Owners::new(threads));
        Ok(Self { inboxes, owners, by_cookie: Shards::default(), clients })
    }

    /// Returns the thread with the fewest clients, and counts one more for it.
    pub fn choose_for_client(&self) -> usize {
        let fewest = self.clients.iter().enumerate().min_by_key(|(_, count)| count.load(Ordering::Relaxed));
        let (thread, count) = fewest.expect("an engine has a thread");
        count.fetch_add(1, Ordering::Relaxed);
        thread
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.inboxes.len()
    }

    /// Gives a task to a thread.
    pub fn give(&self, thread: usize, task: Task) {
        self.inboxes[thread].put(|letters| letters.tasks.push(task));
    }

    /// Gives a task to all threads but `from`.
    pub fn give_others(&self, from: usize, task: impl Fn() -> Task) {
        for thread in (0..self.threads()).filter(|&thread| thread != from) {
            self.give(thread, task());
        }
    }

    /// Passes a packet to a thread. Returns false if too many packets wait there, so this packet was dropped.
    pub fn pass(&self, thread: usize, packet: PassedPacket) -> bool {
        self.inboxes[thread].put(|letters| {
            let room = letters.packets.len() < MOST_PACKETS;
            if room {
                letters.packets.push(packet);
            }
            room
        })
    }

    /// Moves a socket to the thread `to`, with its flow.
    pub fn move_socket(&self, to: usize, flow: Flow, moved: MovedSocket) {
        let cookie = moved.socket.attachment.cookie;
        // Hold the locks of both tables until the socket is in the inbox of thread `to`. If another thread
        // finds `to` in one of these tables, it can then rely on the inbox: the socket is in it or was taken
        // from it.
        let mut flows = self.owners.flows.part(&flow);
        let mut by_cookie = self.by_cookie.part(&cookie);
        self.inboxes[to].put(|letters| letters.sockets.push(moved));
        flows.insert(flow, Owner { thread: to, waits: false });
        by_cookie.insert(cookie, to);
    }
}
