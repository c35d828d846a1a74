//! The network stack of the engine: frames, ARP and neighbour discovery, IP, TCP, UDP, and their timers.
//!
//! The stack has no descriptors and makes no system calls. Its caller hands it frames, bytes of sockets and the time. So tests
//! drive it without an operating system, and nothing here depends on the module `host`.
//!
//! ```text
//! frames ----> on_frame --------> flows, listeners, UDP sockets ----> Outcome: what the caller must do
//!                                     |
//! the time --> expire ----------------+---> changed: the sockets that the caller must serve
//!                                     |
//! bytes <----> Stream::send, receive -+---> transmit ----> Network ----> frames
//! ```
//!
//! A socket is identified by its [`arena::Key`]. The caller keeps what belongs to the socket outside the stack as its
//! [`socket::Socket::attachment`]. Each thread of an engine has a stack of its own. They share only the table
//! of the flows' threads ([`owners`]).

pub mod arena;
pub mod budget;
pub mod card;
pub mod datagram;
pub mod flows;
pub mod icmp;
pub mod input;
pub mod network;
pub mod options;
pub mod outcome;
pub mod owners;
pub mod packet;
mod ports;
pub mod posted;
pub mod rdma;
pub mod receive_window;
pub mod ring;
pub mod segment;
pub mod socket;
pub mod stream;
pub mod time_wait;
pub mod wheel;

#[cfg(test)]
pub(crate) mod tests;

use arena::{Arena, Key};
use budget::Budget;
use card::CardLink;
use flows::Flows;
use inlane_tcp::{EndReason, Flow, Secrets, State};
use network::{Network, Route};
use owners::{Claim, Owner, Owners};
use rdma::QueuePairs;
use ring::Rings;
use socket::{Role, Socket};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use time_wait::TimeWaits;
use wheel::Wheel;

/// What a stack is created from.
pub struct StackConfig {
    /// The number of the stack's thread, from 0.
    pub thread: usize,
    /// The threads of the flows. `None` if the engine has one thread.
    pub owners: Option<Arc<Owners>>,
    /// The size in bytes of each ring of a connection. A power of two.
    pub buffer: usize,
    /// Allocates the memory of rings.
    pub allocate: ring::Allocate,
    /// The secrets for initial sequence numbers and SYN cookies. All threads have the same.
    pub secrets: Secrets,
    /// The start of the pseudo-random numbers for local ports.
    pub seed: u64,
    /// True if connections offer RDMA.
    pub rdma: bool,
}

/// What a stack has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct StackCounters {
    /// Connections that programs have opened and that were established.
    pub connected: u64,
    /// Resets sent in answer to segments without a connection.
    pub resets_sent: u64,
}

/// The network stack of one thread. `A` is what its caller attaches to each socket.
pub struct Stack<A> {
    /// The number of the stack's thread.
    pub thread: usize,
    /// The threads of the flows. `None` if the engine has one thread.
    pub owners: Option<Arc<Owners>>,
    /// The frames to send, and the neighbours.
    pub network: Network,
    /// The sockets.
    pub sockets: Arena<Socket<A>>,
    /// The connections by their flows.
    pub flows: Flows,
    /// The TCP sockets that programs have bound to each local port. Does not contain accepted connections.
    pub ports: HashMap<u16, Vec<Key>>,
    /// The UDP sockets of each local port.
    pub datagram_ports: HashMap<u16, Vec<Key>>,
    /// The flows in TIME-WAIT.
    pub time_waits: TimeWaits,
    /// The sockets that have changed since [`Stack::take_changed`]. The caller serves them next.
    pub changed: Vec<Key>,
    /// The connections that hold an acknowledgment back for some microseconds. The ticks of the timer wheel are too long for
    /// them, so each call of [`Stack::expire`] looks at them.
    held: Vec<Key>,
    /// What the stack has counted.
    pub counters: StackCounters,
    /// The queue pairs. `None` if the engine does not use RDMA.
    pub queue_pairs: Option<QueuePairs>,
    /// The card that runs the connections. `None` if the stack itself does.
    pub card: Option<Box<CardLink>>,
    /// How many ICMP errors the stack may send now.
    icmp_budget: Budget,
    secrets: Secrets,
    wheel: Wheel,
    rings: Rings,
    buffer: usize,
    /// The state of the pseudo-random generator for local ports.
    random: u64,
}

impl<A> Stack<A> {
    /// Creates a stack that sends through `network`. Its timers start at the time `now`.
    pub fn new(now: u64, config: StackConfig, network: Network) -> Self {
        Self {
            thread: config.thread,
            owners: config.owners,
            network,
            sockets: Arena::default(),
            flows: Flows::default(),
            ports: HashMap::new(),
            datagram_ports: HashMap::new(),
            time_waits: TimeWaits::default(),
            changed: Vec::new(),
            held: Vec::new(),
            counters: StackCounters::default(),
            queue_pairs: config.rdma.then(QueuePairs::default),
            card: None,
            icmp_budget: Budget::default(),
            secrets: config.secrets,
            wheel: Wheel::new(now),
            rings: Rings::new(config.buffer, config.allocate),
            buffer: config.buffer,
            random: config.seed,
        }
    }

    /// Returns the number of threads of the engine.
    pub fn threads(&self) -> usize {
        self.owners.as_ref().map_or(1, |owners| owners.threads())
    }

    /// Changes the size of each ring of later connections.
    pub fn set_buffer(&mut self, buffer: usize) {
        self.buffer = buffer;
        self.rings.set_capacity(buffer);
    }

    /// Adds a socket. Returns its key.
    pub fn insert(&mut self, socket: Socket<A>) -> Key {
        self.sockets.insert_with(|_| socket)
    }

    /// Adds a socket to the list of changed sockets.
    #[inline]
    pub fn touch(&mut self, key: Key) {
        if let Some(socket) = self.sockets.get_mut(key)
            && !socket.dirty
        {
            socket.dirty = true;
            self.changed.push(key);
        }
    }

    /// Takes the list of changed sockets. Call [`Stack::begin_service`] for each of them, and then give the list back to
    /// [`Stack::reuse_changed`].
    pub fn take_changed(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.changed)
    }

    /// Removes the mark of a changed socket. Returns false if the socket was removed.
    #[inline]
    pub fn begin_service(&mut self, key: Key) -> bool {
        self.sockets.get_mut(key).map(|socket| socket.dirty = false).is_some()
    }

    /// Takes an empty list whose memory later changes can use.
    pub fn reuse_changed(&mut self, keys: Vec<Key>) {
        debug_assert!(keys.is_empty());
        // Sockets may have changed again meanwhile.
        if self.changed.is_empty() {
            self.changed = keys;
        }
    }

    /// Sets the timer of a socket to `deadline`. Does nothing if the socket's timer is due earlier. When that
    /// timer expires, the stack sets the later deadline.
    #[inline]
    pub fn arm(&mut self, key: Key, deadline: u64) {
        if let Some(socket) = self.sockets.get_mut(key)
            && deadline < socket.armed
        {
            socket.armed = deadline;
            self.wheel.set(deadline, key);
        }
    }

    /// Lets the next calls of [`Stack::expire`] send the acknowledgment that a connection holds back, if it holds one. If there
    /// are no such calls, the socket's timer sends it.
    #[inline]
    pub fn watch_acknowledgment(&mut self, key: Key) {
        if let Some(socket) = self.sockets.get_mut(key)
            && !socket.held
            && let Role::Stream(stream) = &socket.role
            && stream.holds_acknowledgment()
        {
            socket.held = true;
            self.held.push(key);
        }
    }

    /// Lets all connections send the acknowledgments that they hold back. Call it before the thread sleeps, because no further
    /// segments arrive now. Returns true if there were any: serve the changed sockets.
    pub fn release_all_acknowledgments(&mut self) -> bool {
        let held = std::mem::take(&mut self.held);
        for &key in &held {
            if let Some(socket) = self.sockets.get_mut(key) {
                socket.held = false;
                if let Role::Stream(stream) = &mut socket.role {
                    stream.release_acknowledgment();
                }
                self.touch(key);
            }
        }
        !held.is_empty()
    }

    /// Sends the acknowledgments that were held back for long enough.
    fn release_acknowledgments(&mut self, now: u64) {
        let mut index = 0;
        while let Some(&key) = self.held.get(index) {
            let Some(socket) = self.sockets.get_mut(key) else {
                self.held.swap_remove(index);
                continue;
            };
            let waits = socket.stream().is_some_and(|stream| {
                stream.holds_acknowledgment() && stream.next_deadline().is_some_and(|at| now < at)
            });
            if waits {
                index += 1;
                continue;
            }
            socket.held = false;
            self.held.swap_remove(index);
            self.on_stream_timer(now, key);
        }
    }

    /// Runs the timers that are due. Appends the sockets whose timers were due to `due`.
    pub fn expire(&mut self, now: u64, due: &mut Vec<Key>) {
        if !self.held.is_empty() {
            self.release_acknowledgments(now);
        }
        if self.card.is_some() {
            self.on_card_timer(now);
        }
        let first = due.len();
        self.wheel.expire(now, due);
        for &key in &due[first..] {
            self.on_timer(now, key);
        }
        while let Some(flow) = self.time_waits.expire(now) {
            self.release_flow(&flow);
        }
        if self.network.has_timer() {
            let silent = self.network.on_timer(now);
            if !silent.is_empty() {
                self.on_silent_neighbours(&silent);
            }
        }
    }

    /// Returns the time of the next timer of a socket or of a flow in TIME-WAIT, in nanoseconds. It may be earlier than the
    /// socket needs it. Does not count the timers of neighbours.
    pub fn next_timer(&self) -> Option<u64> {
        let timers = self.wheel.next().into_iter().chain(self.time_waits.next_timer());
        timers.chain(self.card_timer()).min()
    }

    fn on_timer(&mut self, now: u64, key: Key) {
        let Some(socket) = self.sockets.get_mut(key) else { return };
        socket.armed = u64::MAX;
        match &mut socket.role {
            Role::Stream(_) => self.on_stream_timer(now, key),
            Role::Listening(_) => self.on_listener_timer(now, key),
            Role::Bound | Role::Datagram(_) => {}
        }
    }

    /// Ends connections that are being established through neighbours that do not answer.
    fn on_silent_neighbours(&mut self, silent: &[IpAddr]) {
        let silent: HashSet<_> = silent.iter().map(|&address| Route::Port(address)).collect();
        let affected = self.sockets.iter().filter(|(_, socket)| {
            socket.stream().is_some_and(|stream| {
                stream.connection.state() == State::SynSent && silent.contains(&stream.route)
            })
        });
        let keys: Vec<Key> = affected.map(|(key, _)| key).collect();
        for key in keys {
            if let Some(Socket { role: Role::Stream(stream), .. }) = self.sockets.get_mut(key) {
                stream.connection.fail(EndReason::Unreachable);
            }
            self.touch(key);
        }
    }

    /// Removes a socket: frees its port, its flow and its memory. Returns its attachment.
    pub fn remove(&mut self, key: Key) -> Option<A> {
        let socket = self.sockets.remove(key)?;
        self.wheel.remove(key);
        if socket.holds_port {
            self.release_port(key, socket.local.port(), matches!(socket.role, Role::Datagram(_)));
        }
        if matches!(socket.role, Role::Listening(_)) {
            self.forget_listener(key);
        }
        if let Role::Stream(stream) = socket.role {
            self.forget_card_stream(&stream);
            if self.flows.find(&stream.flow) == Some(key) {
                self.flows.remove(&stream.flow);
                if !self.time_waits.contains(&stream.flow) {
                    self.release_flow(&stream.flow);
                }
            }
            self.drop_stream(*stream);
        }
        Some(socket.attachment)
    }

    /// Takes a connection out of this stack, so that another thread can run it. Its flow still belongs to this thread.
    pub fn take_out(&mut self, key: Key) -> Option<Socket<A>> {
        let mut socket = self.sockets.remove(key)?;
        self.wheel.remove(key);
        (socket.armed, socket.dirty, socket.held) = (u64::MAX, false, false);
        if let Some(stream) = socket.stream() {
            self.flows.remove(&stream.flow);
        }
        Some(socket)
    }

    /// Adds a connection that another thread has taken out of its stack.
    pub fn put_in(&mut self, socket: Socket<A>) -> Key {
        let flow = socket.stream().map(|stream| stream.flow);
        let key = self.insert(socket);
        if let Some(flow) = flow {
            self.flows.insert(flow, key);
        }
        key
    }

    /// Makes this thread the owner of a flow, and removes the flow's TIME-WAIT entry. If another thread has the flow in
    /// TIME-WAIT, the caller must tell that thread to forget it.
    #[must_use]
    pub fn claim_flow(&mut self, flow: Flow, key: Key) -> Claim {
        let claim = self.owners.as_ref().map_or(Claim::Free, |owners| owners.claim(flow, self.thread));
        if claim != Claim::Refused {
            self.time_waits.remove(&flow);
            self.flows.insert(flow, key);
            self.list_queue_pair(key);
            self.list_card_stream(key);
        }
        claim
    }

    /// Allows other threads to run a flow again. Call it after this thread has removed the flow.
    pub fn release_flow(&self, flow: &Flow) {
        if let Some(owners) = &self.owners
            && !self.flows.contains(flow)
        {
            owners.release(flow, self.thread);
        }
    }

    /// Returns the thread that runs a flow, if the engine has several threads.
    fn owner(&self, flow: &Flow) -> Option<Owner> {
        self.owners.as_ref()?.get(flow)
    }

    /// Returns true if a thread runs a connection of this flow.
    pub fn is_connected(&self, flow: &Flow) -> bool {
        self.flows.contains(flow) || self.owner(flow).is_some_and(|owner| !owner.waits)
    }

    /// Returns true if the flow is in TIME-WAIT.
    pub fn is_waiting(&self, flow: &Flow) -> bool {
        self.time_waits.contains(flow) || self.owner(flow).is_some_and(|owner| owner.waits)
    }

    /// Keeps the TIME-WAIT entry of a connection that is in this state.
    pub fn enter_time_wait(&mut self, key: Key) {
        let Some(stream) = self.sockets.get(key).and_then(Socket::stream) else { return };
        if let Some(entry) = stream.connection.time_wait() {
            let flow = stream.flow;
            self.time_waits.insert(flow, entry);
            self.note_time_wait(flow);
        }
    }

    /// Tells the other threads that a flow is in TIME-WAIT.
    pub fn note_time_wait(&self, flow: Flow) {
        if let Some(owners) = &self.owners {
            owners.note_time_wait(flow, self.thread);
        }
    }

    /// Removes the TIME-WAIT entry of a flow, because a new connection of the flow has begun or the attempt has failed.
    pub fn end_time_wait(&mut self, flow: &Flow) {
        self.time_waits.remove(flow);
        self.release_flow(flow);
    }

    /// Returns a pseudo-random number.
    pub fn random(&mut self) -> u64 {
        // Compute the next number by splitmix64 (Steele, Lea and Flood 2014).
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.random;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }
}
