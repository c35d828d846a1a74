//! One thread's access to a namespace over one or several paths.
//!
//! A path is an address of the subsystem. A session uses one path at a time. If the path fails, the session
//! connects to the next one and sends the commands in flight again. The target may then execute a command
//! twice, and may execute two commands in any order. So:
//!
//! * submit only idempotent commands, such as reads, writes and flushes;
//! * have only one write to a block in flight.
//!
//! Connecting blocks, so other threads connect for the session. If a path does not answer, it does not delay
//! the attempt for the next path.

mod reconnect;

use super::association::SHUTDOWN;
use super::connection::{Done, Submission};
use super::{Address, Association, Buffer, ConnectOptions, NamespaceInfo, Queue, Queues};
use crate::field::NAMESPACE;
use crate::wire::command::{Status, async_event, log};
use crate::{Error, Result};
use reconnect::{Attempt, no_access};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The least time between two rounds on the admin queue. In such a round, a session sends and receives on
/// this queue to keep the controller alive. A wait for a reconnection also blocks for at most this time.
const TICK: Duration = Duration::from_millis(50);
/// How many times a command is sent again after transient errors, at most.
const RETRIES: u32 = 3;

/// How a session is opened.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The addresses of the subsystem, in order of preference.
    pub paths: Vec<Address>,
    /// How to connect to the controller of a path.
    pub connect: ConnectOptions,
    /// The identifier of the namespace. `None`: the first namespace.
    pub nsid: Option<u32>,
    /// The most I/O queues, at least 1. Each is a TCP connection. Commands go to them in turn.
    pub io_queues: u16,
    /// How long the session tries to reconnect after a path has failed. After this time, it gives up, even if
    /// an attempt is still in progress.
    pub reconnect: Duration,
}

#[derive(Debug)]
struct Live {
    association: Association,
    queues: Queues,
}

/// Why a command was sent again, and how often.
#[derive(Debug, Default)]
struct Retries {
    /// How many times the command was sent again because of a transient error.
    transient: u32,
    /// When the command first failed with a path error, and the value of [`Session::answers`] then.
    path_error: Option<(Instant, u64)>,
}

/// Access to a namespace.
#[derive(Debug)]
pub struct Session {
    options: SessionOptions,
    namespace: NamespaceInfo,
    live: Option<Live>,
    /// The index of the path in use. If no path is in use, the index of the next path to try.
    path: usize,
    /// Requests to send again.
    pending: VecDeque<Submission>,
    done: VecDeque<Done>,
    /// The commands that were sent again, by their tokens.
    retries: HashMap<u64, Retries>,
    /// The number of answers without a path error or transient error. If this number grows while one command
    /// keeps getting path errors, the paths work. The session then fails that command.
    answers: u64,
    last_tick: Instant,
    /// The attempt to reconnect that is in progress.
    attempt: Option<Attempt>,
    /// When the last attempt to reconnect ended. The next attempt starts at least `PAUSE` later.
    attempt_ended: Option<Instant>,
    /// When a path first failed after the last answer. `None` if no path has failed since then, or if the
    /// session has reconnected with no command to send again.
    lost_since: Option<Instant>,
    /// The status of a command that failed because of its path. `None` if there was none. Otherwise the next
    /// [`Session::progress`] gives up the path in use.
    path_error: Option<Status>,
    /// The indices of the paths that have reported a path error since the controller last answered a command.
    /// The session tries these paths last.
    inaccessible: BTreeSet<usize>,
    /// The last error of each path that has failed since a command was last answered, by the path's index.
    errors: BTreeMap<usize, String>,
    failovers: u64,
}

impl Session {
    /// Connects to the first path that works and identifies the namespace.
    ///
    /// # Errors
    /// If no path works, or the namespace does not exist.
    ///
    /// # Panics
    /// If there are no paths.
    pub fn open(options: &SessionOptions) -> Result<Self> {
        assert!(!options.paths.is_empty(), "a session needs a path");
        let mut failure = None;
        for path in 0..options.paths.len() {
            match Self::connect(options, path, options.nsid) {
                Ok((live, namespace)) => {
                    return Ok(Self {
                        options: options.clone(),
                        namespace,
                        live: Some(live),
                        path,
                        pending: VecDeque::new(),
                        done: VecDeque::new(),
                        retries: HashMap::new(),
                        answers: 0,
                        last_tick: Instant::now(),
                        attempt: None,
                        attempt_ended: None,
                        lost_since: None,
                        path_error: None,
                        inaccessible: BTreeSet::new(),
                        errors: BTreeMap::new(),
                        failovers: 0,
                    });
                }
                Err(error) => failure = Some(Error::of_paths(failure, error.before_use())),
            }
        }
        Err(failure.expect("at least one path"))
    }

    fn connect(options: &SessionOptions, path: usize, nsid: Option<u32>) -> Result<(Live, NamespaceInfo)> {
        let mut association = Association::connect(&options.paths[path], &options.connect)?;
        let nsid = match nsid {
            Some(nsid) => nsid,
            None => association.namespace_ids()?.first().copied().ok_or_else(|| {
                let why = format!("subsystem {} has no namespace", options.connect.subsystem);
                Error::disconnected(association.peer(), why)
            })?,
        };
        let namespace = match association.namespace(nsid) {
            Ok(namespace) => namespace,
            Err(Error::Status { .. }) if !association.namespace_ids()?.contains(&nsid) => {
                let ids = association.namespace_ids()?;
                let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
                let remedy = match ids.is_empty() {
                    true => "it has no namespace at all".into(),
                    false => format!("choose one of {}", ids.join(", ")),
                };
                let why = format!("the subsystem does not have it; {remedy}");
                return Err(Error::invalid(NAMESPACE.with(nsid), why));
            }
            Err(error) => return Err(error),
        };
        let spin = options.connect.queue.spin;
        let queues = Queues::open(&mut association, options.io_queues, spin)?;
        association.watch_events()?;
        Ok((Live { association, queues }, namespace))
    }

    /// Returns the namespace. Its size changes if the target resizes it.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.namespace
    }

    /// Returns the address in use or, while no path works, the one to try next.
    pub fn path(&self) -> &Address {
        &self.options.paths[self.path]
    }

    /// Returns how often the session has changed or reconnected its path.
    pub fn failovers(&self) -> u64 {
        self.failovers
    }

    /// Returns the number of commands that can be submitted now. It is 0 if no path works, or if commands of
    /// a failed path wait to be sent again.
    pub fn available(&self) -> usize {
        if !self.pending.is_empty() {
            return 0;
        }
        self.live.as_ref().map_or(0, |live| live.queues.available())
    }

    /// Returns the most commands that can be in flight on the path in use; 0 while no path works.
    pub fn depth(&self) -> usize {
        self.live.as_ref().map_or(0, |live| live.queues.depth())
    }

    /// Returns the number of commands that have not completed.
    pub fn in_flight(&self) -> usize {
        self.pending.len() + self.live.as_ref().map_or(0, |live| live.queues.in_flight())
    }

    /// Returns the I/O queues and then the admin queue, to wait for their sockets. Returns none while no path
    /// works.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        let live = self.live.iter();
        live.flat_map(|live| live.queues.all().iter().chain([live.association.admin_queue()]))
    }

    /// Returns the number of I/O queues of the path in use; 0 while no path works. It is smaller than
    /// [`SessionOptions::io_queues`] if the controller granted fewer.
    pub fn io_queues(&self) -> usize {
        self.live.as_ref().map_or(0, |live| live.queues.all().len())
    }

    /// Queues a command. Its token must differ from those of the commands in flight.
    ///
    /// # Errors
    /// Returns the submission if [`Session::available`] is 0.
    pub fn submit(&mut self, submission: Submission) -> Result<(), Submission> {
        match &mut self.live {
            Some(live) if self.pending.is_empty() => live.queues.submit(submission),
            _ => Err(submission),
        }
    }

    /// Removes and returns the next completed command. Returns `None` if there is none.
    pub fn next_done(&mut self) -> Option<Done> {
        if let Some(done) = self.done.pop_front() {
            return Some(done);
        }
        while let Some(done) = self.live.as_mut()?.queues.next_done() {
            if let Some(done) = self.settled(done) {
                return Some(done);
            }
        }
        None
    }

    /// Returns a completed command for the caller. Returns `None` and queues the command to be sent again in
    /// two cases: its path failed, or a transient error occurred and retries are left.
    ///
    /// If a command has path errors for [`SessionOptions::reconnect`] while the controller answers other
    /// commands, returns it, too. Otherwise, this command would make the session reconnect forever.
    fn settled(&mut self, done: Done) -> Option<Done> {
        let status = done.status();
        if status.is_path_error() {
            let retries = self.retries.entry(done.token).or_default();
            let (since, answers) = *retries.path_error.get_or_insert((Instant::now(), self.answers));
            if since.elapsed() < self.options.reconnect || answers == self.answers {
                self.path_error = Some(status);
                self.pending.push_back(again(done));
                return None;
            }
        } else if status.is_retryable() {
            let retries = self.retries.entry(done.token).or_default();
            retries.transient += 1;
            if retries.transient <= RETRIES {
                self.pending.push_back(again(done));
                return None;
            }
        } else {
            self.answers += 1;
            if self.lost_since.is_some() {
                self.recovered();
            }
        }
        if !self.retries.is_empty() {
            self.retries.remove(&done.token);
        }
        Some(done)
    }

    /// Returns true if the next [`Session::progress`] or [`Session::next_done`] has something to do although
    /// no socket is ready. Then do not wait for the sockets of [`Session::queues`].
    pub fn has_work(&self) -> bool {
        let can_proceed = match &self.live {
            Some(live) => !self.pending.is_empty() && live.queues.available() > 0,
            None => self.attempt.is_none() && self.pause().is_zero(),
        };
        can_proceed || self.path_error.is_some() || !self.done.is_empty()
    }

    /// Sends queued bytes, receives what has arrived, and reconnects if the path failed. With `wait`, blocks
    /// for up to 50 ms until something arrives.
    ///
    /// # Errors
    /// The session cannot be used any more after an error. Errors are:
    ///
    /// * a path failed, or its controller cannot access the namespace. Since then, no command was answered
    ///   for [`SessionOptions::reconnect`];
    /// * the authentication failed on each path when the session reconnected;
    /// * the target has another namespace under the same number, or a namespace with another block size.
    pub fn progress(&mut self, wait: bool) -> Result<()> {
        if let Some(status) = self.path_error {
            let error = Error::disconnected(self.path().to_string(), no_access(status));
            self.lost(error)?;
        }
        let Some(live) = &mut self.live else { return self.reconnect(wait) };
        while let Some(submission) = self.pending.pop_front() {
            if let Err(submission) = live.queues.submit(submission) {
                self.pending.push_front(submission);
                break;
            }
        }
        let mut result = live.queues.progress(wait);
        if result.is_ok() && self.last_tick.elapsed() >= TICK {
            self.last_tick = Instant::now();
            result = live.association.tick();
            if result.is_ok() {
                result = self.take_events();
            }
        }
        result.or_else(|error| self.lost(error))
    }

    fn take_events(&mut self) -> Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        while let Some(event) = live.association.next_event() {
            if event & 0xFF_FF07 == async_event::NAMESPACE_CHANGED {
                // Reading the list clears it, so the controller reports the next change.
                live.association.log_page(log::CHANGED_NAMESPACES, 0, Buffer::new(4096)?)?;
                let namespace = live.association.namespace(self.namespace.nsid)?;
                let peer = || self.options.paths[self.path].to_string();
                let unchanged = self.namespace.check_is_unchanged(&namespace);
                unchanged.map_err(|why| Error::disconnected(peer(), why))?;
                self.namespace = namespace;
            }
        }
        Ok(())
    }

    /// Sleeps until a socket is ready, for at most `time`. Call it after a [`Session::progress`] that found nothing.
    pub fn sleep(&self, time: Duration) {
        match &self.live {
            Some(live) => live.queues.sleep(time),
            // No socket shows the end of an attempt to reconnect.
            None => std::thread::sleep(time.min(Duration::from_millis(5))),
        }
    }

    /// Shuts the controller down. Commands in flight are given up.
    pub fn close(self) {
        self.close_within(SHUTDOWN);
    }

    /// Shuts the controller down as [`Session::close`] does, but waits for at most about `time`.
    pub fn close_within(mut self, time: Duration) {
        if let Some(live) = &mut self.live {
            live.association.shut_down(time);
        }
    }
}

/// Returns the request of a command, to send it again.
fn again(done: Done) -> Submission {
    Submission { token: done.token, command: done.command, buffer: done.buffer }
}

#[cfg(test)]
pub(crate) mod tests;
