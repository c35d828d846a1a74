//! A controller: the target's side of an association with one host.
//!
//! An association has an admin queue and I/O queues, each on its own connection. The threads that serve these
//! connections share the controller: its properties, the keep-alive timer and the events for the host. The
//! controller ends when the connection of the admin queue ends or the keep-alive timer expires. The target
//! then closes all connections of the controller.

use super::error_log::ErrorLog;
use super::inbox::{ConnectionId, Inbox, Message, Note};
use crate::lock;
use crate::wire::command::{async_event, cc, csts, feature};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// The value of SHST in CSTS while a shutdown is in progress.
const SHUTDOWN_IN_PROGRESS: u32 = 1 << 2;

/// The granularity of the keep-alive timer (KAS), in milliseconds.
pub const KEEP_ALIVE_UNIT_MS: u64 = 100;

/// The identity that a host states when it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host's NQN.
    pub nqn: String,
    /// The host identifier.
    pub id: [u8; 16],
}

/// How to reach the thread that serves a connection.
#[derive(Clone, Debug)]
pub struct Reach {
    /// The thread's inbox.
    pub inbox: Arc<Inbox>,
    /// The connection's number.
    pub connection: ConnectionId,
}

impl Reach {
    /// Sends a message to the connection.
    pub fn send(&self, note: Note) {
        self.inbox.send(Message::To(self.connection, note));
    }

    /// Returns true if `other` stands for the same connection.
    pub fn is_same(&self, other: &Self) -> bool {
        // Also compare the inboxes, which identify the threads. Two threads can have connections with the
        // same number.
        self.connection == other.connection && Arc::ptr_eq(&self.inbox, &other.inbox)
    }
}

/// Counts an I/O queue of a controller as open. Drop it when no command of the queue is in progress any more.
#[derive(Debug)]
pub struct OpenQueue(pub Arc<Controller>);

impl Drop for OpenQueue {
    fn drop(&mut self) {
        lock(&self.0.state).open_queues -= 1;
    }
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    /// The controller identifier (CNTLID).
    pub id: u16,
    /// The host.
    pub host: Host,
    /// The network (`network::network`) of the address from which the host connected the admin queue.
    pub source: IpAddr,
    /// The most I/O queues that the target allows.
    most_io_queues: u16,
    /// True for a discovery controller, which has no namespaces and no I/O queues.
    pub discovery: bool,
    /// True if the host has authenticated itself on the admin queue, or need not authenticate itself. For a
    /// discovery controller, true only if its host may use the subsystem without authentication.
    pub trusted: AtomicBool,
    alive: AtomicBool,
    /// When the host last sent a command, on the clock of [`super::subsystem::Subsystem::now_ms`].
    heard_at_ms: AtomicU64,
    keep_alive_ms: AtomicU64,
    /// True if the controller is enabled and ready. This copies bit RDY of CSTS, because every command reads it and must
    /// not take the lock.
    ready: AtomicBool,
    state: Mutex<State>,
    errors: Mutex<ErrorLog>,
}

#[derive(Debug, Default)]
struct State {
    configuration: u32,
    status: u32,
    /// For each queue identifier: the connection that carries the queue, and the inbox of the connection's
    /// thread.
    queues: BTreeMap<u16, Reach>,
    /// The number of I/O queues whose connections may still have commands in progress. Includes those that a reset has
    /// removed from `queues`.
    open_queues: u32,
    /// Earlier controllers of the host that have ended, but may still have commands in progress.
    predecessors: Vec<Arc<Controller>>,
    granted_io_queues: u16,
    /// True if an event waits to be reported.
    event_waits: bool,
    /// True if further events are masked until the host reads the log page.
    events_masked: bool,
    changed_namespaces: BTreeSet<u32>,
    /// The events that the host has selected to be reported (the feature Asynchronous Event Configuration), and the
    /// values of features that have no effect on this target, such as the arbitration burst. A key is the feature and the identifier of a namespace, or 0 for all namespaces.
    features: BTreeMap<(u8, u32), u32>,
}

/// The transition that a write to the property CC asks for: a reset, a shutdown, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transition {
    /// True if the controller was disabled. Its I/O queues end. Asynchronous Event Requests that still wait
    /// for an event end, too.
    pub reset: bool,
    /// The host shuts the controller down: written data must become durable, then [`Controller::shut_down`] is
    /// called.
    pub shutdown: bool,
}

/// Returns the keep-alive timeout in use if the host asks for `asked_ms`: rounded up to the timer's
/// granularity, and at most what the feature's 32 bits hold.
fn keep_alive_of(asked_ms: u64) -> u64 {
    let most = u64::from(u32::MAX) / KEEP_ALIVE_UNIT_MS * KEEP_ALIVE_UNIT_MS;
    asked_ms.min(most).next_multiple_of(KEEP_ALIVE_UNIT_MS)
}

impl Controller {
    /// Creates a controller for a host. It is a discovery controller if it may have no I/O queues. Set `trusted` if the
    /// host need not authenticate itself.
    pub fn new(
        id: u16,
        host: Host,
        source: IpAddr,
        most_io_queues: u16,
        trusted: bool,
        keep_alive_ms: u64,
        now_ms: u64,
    ) -> Self {
        Self {
            id,
            host,
            source,
            most_io_queues,
            discovery: most_io_queues == 0,
            trusted: AtomicBool::new(trusted),
            alive: AtomicBool::new(true),
            heard_at_ms: AtomicU64::new(now_ms),
            keep_alive_ms: AtomicU64::new(keep_alive_of(keep_alive_ms)),
            ready: AtomicBool::new(false),
            state: Mutex::default(),
            errors: Mutex::default(),
        }
    }

    /// Returns the log of the commands that completed with an error.
    pub fn errors(&self) -> MutexGuard<'_, ErrorLog> {
        lock(&self.errors)
    }

    /// Returns false once the controller has ended.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }

    /// Ends the controller and asks the threads of its connections to close them. Returns false if the
    /// controller had already ended.
    pub fn end(&self) -> bool {
        let first = self.alive.swap(false, Relaxed);
        let mut state = lock(&self.state);
        state.predecessors.clear();
        for reach in std::mem::take(&mut state.queues).into_values() {
            reach.send(Note::Close);
        }
        first
    }

    /// Adds a queue. Returns false if the queue exists or the controller has ended.
    pub fn add_queue(&self, id: u16, reach: Reach) -> bool {
        let mut state = lock(&self.state);
        // `end` clears `alive` before it locks the state and takes the queues. So if the controller is still
        // alive here, `end` will find the new queue and close its connection.
        if !self.is_alive() || state.queues.contains_key(&id) {
            return false;
        }
        state.queues.insert(id, reach);
        state.open_queues += u32::from(id != 0);
        true
    }

    /// Returns true if commands of I/O queues may be in progress.
    pub fn has_open_queues(&self) -> bool {
        lock(&self.state).open_queues > 0
    }

    /// Keeps the controller from becoming ready until `predecessor`, an ended controller of the same host, has no open
    /// queues.
    pub fn wait_for(&self, predecessor: Arc<Self>) {
        lock(&self.state).predecessors.push(predecessor);
    }

    /// Returns true if the controller has this queue.
    pub fn has_queue(&self, id: u16) -> bool {
        lock(&self.state).queues.contains_key(&id)
    }

    /// Returns true if the host has enabled the controller and may create the I/O queue `id`.
    pub fn grants_queue(&self, id: u16) -> bool {
        self.is_ready() && id <= self.granted_io_queues()
    }

    /// Removes an I/O queue after its connection has ended. After the last I/O queue, wakes the thread of the
    /// admin queue. When the target shuts down, the admin queue's connection stays open until all I/O queues
    /// are removed.
    pub fn remove_queue(&self, id: u16, connection: &Reach) {
        let mut state = lock(&self.state);
        if state.queues.get(&id).is_some_and(|reach| reach.is_same(connection)) {
            state.queues.remove(&id);
        }
        if state.queues.len() == 1
            && let Some(admin) = state.queues.get(&0)
        {
            admin.send(Note::Event);
        }
    }

    /// Returns the identifiers of the I/O queues that exist.
    pub fn io_queues(&self) -> Vec<u16> {
        lock(&self.state).queues.keys().copied().filter(|id| *id != 0).collect()
    }

    /// Restarts the keep-alive timer: records that the host sent a command at `now_ms`.
    #[inline]
    pub fn heard(&self, now_ms: u64) {
        if self.heard_at_ms.load(Relaxed) != now_ms {
            self.heard_at_ms.store(now_ms, Relaxed);
        }
    }

    /// Returns the keep-alive timeout in milliseconds; 0 means that the timer is off.
    pub fn keep_alive_ms(&self) -> u64 {
        self.keep_alive_ms.load(Relaxed)
    }

    /// Sets the keep-alive timeout, rounded up to a multiple of [`KEEP_ALIVE_UNIT_MS`], and restarts the
    /// timer.
    pub fn set_keep_alive_ms(&self, timeout_ms: u64, now_ms: u64) {
        self.heard(now_ms);
        self.keep_alive_ms.store(keep_alive_of(timeout_ms), Relaxed);
    }

    /// Returns true if the host has sent no command for longer than the keep-alive timeout.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        let timeout = self.keep_alive_ms();
        timeout != 0 && now_ms.saturating_sub(self.heard_at_ms.load(Relaxed)) > timeout
    }

    /// Returns the property CC.
    pub fn configuration(&self) -> u32 {
        lock(&self.state).configuration
    }

    /// Returns the property CSTS.
    pub fn status(&self) -> u32 {
        let mut state = lock(&self.state);
        let (ready, enabled) = (state.status & csts::READY != 0, state.configuration & cc::ENABLE != 0);
        if ready != enabled && state.status & csts::FATAL == 0 {
            self.settle(&mut state);
        }
        state.status
    }

    /// Returns true if the host has enabled the controller and it accepts commands.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }

    /// Returns true if the values that the host chose in CC are supported: the NVM command set, pages of 4 KiB and
    /// round-robin arbitration. CSS 110b (all supported command sets) is accepted, too, because some hosts set it
    /// without reading the capabilities and then use the NVM command set. If the controller has I/O queues, their
    /// entries must have 64 and 16 bytes.
    fn accepts(configuration: u32, discovery: bool) -> bool {
        let field = |shift: u32, bits: u32| configuration >> shift & ((1 << bits) - 1);
        let (command_set, page, arbitration) = (field(4, 3), field(7, 4), field(11, 3));
        let (submission_entry, completion_entry) = (field(16, 4), field(20, 4));
        let entries = discovery || (submission_entry, completion_entry) == (6, 4);
        matches!(command_set, 0 | 6) && (page, arbitration) == (0, 0) && entries
    }

    /// Handles a write of the property CC (controller configuration). Returns a transition that shows whether
    /// the write reset the controller or began a shutdown. The caller must then complete it.
    pub fn configure(&self, configuration: u32) -> Transition {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.configuration, configuration);
        let was_set = |bit: u32| before & bit != 0;
        let is_set = |bit: u32| configuration & bit != 0;
        let mut transition = Transition::default();
        if is_set(cc::ENABLE) && !was_set(cc::ENABLE) {
            state.status &= !csts::SHUTDOWN_MASK;
            self.settle(&mut state);
        }
        if !is_set(cc::ENABLE) && was_set(cc::ENABLE) {
            let State { queues, open_queues, predecessors, .. } = std::mem::take(&mut *state);
            let status = csts::READY;
            *state = State { configuration, status, queues, open_queues, predecessors, ..State::default() };
            let io: Vec<u16> = state.queues.keys().copied().filter(|id| *id != 0).collect();
            for reach in io.iter().filter_map(|id| state.queues.remove(id)) {
                reach.send(Note::Close);
            }
            transition.reset = true;
            self.settle(&mut state);
        }
        if configuration & cc::SHUTDOWN_MASK != 0 && before & cc::SHUTDOWN_MASK == 0 {
            state.status = state.status & !csts::SHUTDOWN_MASK | SHUTDOWN_IN_PROGRESS;
            transition.shutdown = true;
        }
        transition
    }

    /// Copies EN of CC to RDY, unless connections of earlier I/O queues of the host have not ended. Until then, their writes
    /// may be in progress. If RDY changed earlier, such a write could overwrite data that the host writes afterwards.
    fn settle(&self, state: &mut State) {
        state.predecessors.retain(|it| it.has_open_queues());
        let waits = state.open_queues > 0 || !state.predecessors.is_empty();
        let shutdown = state.status & csts::SHUTDOWN_MASK;
        state.status = match state.configuration & cc::ENABLE != 0 {
            // A host that enables the controller too early waits for RDY = 1.
            true if waits => shutdown,
            false if waits => state.status,
            false => shutdown,
            true if Self::accepts(state.configuration, self.discovery) => shutdown | csts::READY,
            true => csts::FATAL,
        };
        let ready = state.configuration & cc::ENABLE != 0 && state.status & csts::READY != 0;
        self.ready.store(ready, Relaxed);
    }

    /// Reports to the host that the controller has failed: data could not be made durable for a shutdown.
    pub fn fail(&self) {
        lock(&self.state).status |= csts::FATAL;
    }

    /// Reports that the shutdown is complete, unless a reset has ended the shutdown or the controller has failed.
    pub fn shut_down(&self) {
        let mut state = lock(&self.state);
        if state.status & (csts::SHUTDOWN_MASK | csts::FATAL) == SHUTDOWN_IN_PROGRESS {
            state.status = state.status & !csts::SHUTDOWN_MASK | csts::SHUTDOWN_COMPLETE;
        }
    }

    /// Returns the number of I/O queues that the host may create. A host that has not asked for a number may create as
    /// many as the target allows, because some hosts do not ask.
    pub fn granted_io_queues(&self) -> u16 {
        match lock(&self.state).granted_io_queues {
            0 => self.most_io_queues,
            granted => granted,
        }
    }

    /// Sets the number of I/O queues that the host may create.
    pub fn grant_io_queues(&self, count: u16) {
        lock(&self.state).granted_io_queues = count;
    }

    /// Returns the value that the host has stored for a feature, or 0 if it has stored none. If `namespace` is `None`,
    /// returns the value that applies to all namespaces.
    pub fn feature(&self, id: u8, namespace: Option<u32>) -> u32 {
        let state = lock(&self.state);
        let value = |namespace| state.features.get(&(id, namespace));
        namespace.and_then(value).or_else(|| value(0)).copied().unwrap_or(0)
    }

    /// Stores the value of a feature. The value applies to one namespace, or to all namespaces if `namespace` is `None`.
    pub fn set_feature(&self, id: u8, namespace: Option<u32>, value: u32) {
        let features = &mut lock(&self.state).features;
        if namespace.is_none() {
            features.retain(|(feature, _), _| *feature != id);
        }
        features.insert((id, namespace.unwrap_or(0)), value);
    }

    /// Returns the kind of events that the controller reports, as a bit of Asynchronous Event Configuration.
    pub fn notices(&self) -> u32 {
        if self.discovery { async_event::DISCOVERY_NOTICES } else { async_event::NAMESPACE_NOTICES }
    }

    /// Records that these namespaces have changed. On a discovery controller, that the discovery log has changed. Reports
    /// the change to the host if the host has asked for such events.
    pub fn changed(&self, namespaces: &[u32]) {
        let mut state = lock(&self.state);
        state.changed_namespaces.extend(namespaces);
        let selected = state.features.get(&(feature::ASYNC_EVENT_CONFIGURATION, 0));
        if selected.is_some_and(|events| events & self.notices() != 0) {
            state.event_waits = true;
            Self::wake_admin(&state);
        }
    }

    fn wake_admin(state: &State) {
        if let Some(reach) = state.queues.get(&0) {
            reach.send(Note::Event);
        }
    }

    /// Returns the event that waits to be reported, as dword 0 of its completion. Masks further events until
    /// [`Controller::unmask`]. Returns `None` if there is no event or events are masked.
    pub fn next_event(&self) -> Option<u32> {
        let mut state = lock(&self.state);
        if !state.event_waits || state.events_masked {
            return None;
        }
        (state.event_waits, state.events_masked) = (false, true);
        Some(if self.discovery { async_event::DISCOVERY_CHANGED } else { async_event::NAMESPACE_CHANGED })
    }

    /// Allows further events, because the host has read the log page. A change that came while events were masked is
    /// reported at once.
    pub fn unmask(&self) {
        let mut state = lock(&self.state);
        state.events_masked = false;
        if state.event_waits {
            Self::wake_admin(&state);
        }
    }

    /// Returns the namespaces that changed since the list was last cleared. Clears the list if `clear` is
    /// set.
    pub fn changed_namespaces(&self, clear: bool) -> Vec<u32> {
        let mut state = lock(&self.state);
        let list = state.changed_namespaces.iter().copied().collect();
        if clear {
            state.changed_namespaces.clear();
        }
        list
    }
}
