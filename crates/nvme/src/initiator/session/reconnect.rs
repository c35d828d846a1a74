//! Replaces a failed path of a session.

use super::{Live, Session, SessionOptions, TICK, again};
use crate::initiator::{Address, NamespaceInfo};
use crate::wire::command::Status;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

/// The least time from the end of an attempt to reconnect to the start of the next attempt.
const PAUSE: Duration = Duration::from_millis(200);
/// How long an attempt to reconnect waits for one path before it also tries the next path.
const HEAD_START: Duration = Duration::from_millis(500);

/// The result of an attempt to reconnect.
pub(super) struct Reconnected {
    /// The first path that works: its index, the connection over it, and its namespace. `None` if no path
    /// works.
    works: Option<(usize, Live, NamespaceInfo)>,
    /// The paths that failed. Each entry has the index of a path and its error.
    failures: Vec<(usize, Error)>,
}

impl Session {
    /// Gives up the path in use. Takes back the path's unfinished commands, to send them over the next path.
    /// Returns `error` if the session must give up, too.
    pub(super) fn lost(&mut self, error: Error) -> Result<()> {
        let Some(mut live) = self.live.take() else { return Err(error) };
        live.queues.fail();
        while let Some(done) = live.queues.next_done() {
            if done.status() == Status::HOST_PATH_ERROR {
                self.pending.push_back(again(done));
            } else if let Some(done) = self.settled(done) {
                self.done.push_back(done);
            }
        }
        if self.path_error.take().is_some() {
            self.inaccessible.insert(self.path);
            if self.inaccessible.len() == self.options.paths.len() {
                // All paths have reported a path error. Paths in `inaccessible` are tried last. Remove all
                // paths but the current one, so that each other path is tried again before the current one.
                self.inaccessible.retain(|path| *path == self.path);
            }
        }
        // A faulty target must not pass unnoticed because the commands succeed later.
        if matches!(error, Error::Protocol { .. } | Error::Terminated { .. }) {
            tracing::warn!("{error}; reconnecting");
        }
        self.errors.insert(self.path, error.to_string());
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        // Return the error if no command was answered for too long. A path may connect and then fail each
        // time, and must not be tried forever.
        if since.elapsed() >= self.options.reconnect {
            return Err(if self.errors.len() > 1 { self.not_restored(None) } else { error });
        }
        self.path = (self.path + 1) % self.options.paths.len();
        Ok(())
    }

    /// Forgets the failures of paths, because the path in use works.
    pub(super) fn recovered(&mut self) {
        self.lost_since = None;
        self.inaccessible.clear();
        self.errors.clear();
    }

    /// Returns the time until the next attempt to reconnect may start. Without this pause, a path that
    /// connects and then fails would cause one connection after the other.
    pub(super) fn pause(&self) -> Duration {
        self.attempt_ended.map_or(Duration::ZERO, |ended| PAUSE.saturating_sub(ended.elapsed()))
    }

    /// Advances the reconnection by one step: waits between attempts, starts a thread that tries each path
    /// once, or takes that thread's result. With `wait`, blocks for up to 50 ms. Returns an error if the
    /// connection was not restored within [`SessionOptions::reconnect`].
    pub(super) fn reconnect(&mut self, wait: bool) -> Result<()> {
        self.lost_since.get_or_insert_with(Instant::now);
        let pause = self.pause();
        if self.attempt.is_none() && !pause.is_zero() {
            if wait {
                std::thread::sleep(pause.min(TICK));
            }
            return Ok(());
        }
        if self.attempt.is_none() {
            self.attempt = Some(self.start_attempt()?);
        }
        let attempt = self.attempt.as_ref().expect("an attempt was started");
        let result = match attempt.recv_timeout(if wait { TICK } else { Duration::ZERO }) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) if self.is_too_late() => {
                let why = "the last attempt got no answer; check the target and the network";
                return Err(self.not_restored(Some(why)));
            }
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                unreachable!("the thread sends its result before it ends")
            }
        };
        self.attempt = None;
        self.attempt_ended = Some(Instant::now());
        self.reconnected(result)
    }

    /// Returns true if a path failed, and no command was answered for [`SessionOptions::reconnect`] since
    /// then.
    fn is_too_late(&self) -> bool {
        self.lost_since.is_some_and(|since| since.elapsed() >= self.options.reconnect)
    }

    /// Returns the error that ends the session: `why`, and the last error of each path.
    fn not_restored(&self, why: Option<&str>) -> Error {
        let seconds = self.options.reconnect.as_secs_f64();
        let why: Vec<_> = why.into_iter().chain(self.errors.values().map(String::as_str)).collect();
        let why = why.join("; ");
        let why = format!("the connection was lost and not restored within {seconds} s: {why}");
        Error::disconnected(&self.options.connect.subsystem, why)
    }

    /// Starts a thread that tries each path once, in turn from `path` on. Paths that last reported a path
    /// error (`inaccessible`) come last.
    fn start_attempt(&self) -> Result<Receiver<Reconnected>> {
        let (send, receive) = sync_channel(1);
        let count = self.options.paths.len();
        let order = (self.path..count).chain(0..self.path);
        let (last, first) = order.partition(|path| self.inaccessible.contains(path));
        let (options, nsid) = (self.options.clone(), self.namespace.nsid);
        let attempt = move || {
            // The send fails if the session was dropped meanwhile. Dropping the result closes the new
            // connection.
            let _ = send.send(Attempt::new(options, nsid).run(first, last));
        };
        spawn(attempt)?;
        Ok(receive)
    }

    fn reconnected(&mut self, mut result: Reconnected) -> Result<()> {
        // Give up if the authentication failed on every path, because it would fail each time.
        let is_final = |(_, error): &(usize, Error)| matches!(error, Error::Unauthenticated { .. });
        if result.works.is_none()
            && result.failures.len() == self.options.paths.len()
            && result.failures.iter().all(is_final)
        {
            let errors = result.failures.drain(..).map(|(_, error)| error);
            return Err(errors
                .fold(None, |first, error| Some(Error::of_paths(first, error)))
                .expect("a path"));
        }
        let failures = result.failures.into_iter().map(|(path, error)| (path, error.to_string()));
        self.errors.extend(failures);
        match result.works {
            Some((path, live, namespace)) => {
                self.path = path;
                check_is_same(self.path(), &self.namespace, &namespace)?;
                self.namespace = namespace;
                self.live = Some(live);
                self.failovers += 1;
                if self.pending.is_empty() {
                    // Record the recovery now, because without pending commands no response will show it.
                    self.recovered();
                }
                Ok(())
            }
            None if self.is_too_late() => Err(self.not_restored(None)),
            None => Ok(()),
        }
    }
}

type Connected = Result<(Live, NamespaceInfo)>;

/// An attempt to reconnect, which tries each path once. Each path has a thread, because connecting blocks.
struct Attempt {
    options: Arc<SessionOptions>,
    nsid: u32,
    send: Sender<(usize, Connected)>,
    results: Receiver<(usize, Connected)>,
    /// The number of paths that are still being tried: they have neither connected nor failed.
    running: usize,
    failures: Vec<(usize, Error)>,
}

impl Attempt {
    fn new(options: SessionOptions, nsid: u32) -> Self {
        let (send, results) = channel();
        Self { options: Arc::new(options), nsid, send, results, running: 0, failures: Vec::new() }
    }

    /// Tries the paths in `first`. If they fail, or do not answer within half of
    /// [`SessionOptions::reconnect`], also tries the paths in `last`. The paths in `last` have reported that
    /// they cannot access the namespace. They must not be chosen only because they connect fast.
    fn run(mut self, first: Vec<usize>, last: Vec<usize>) -> Reconnected {
        let half = self.options.reconnect / 2;
        for (paths, patience) in [(first, half), (last, Duration::MAX)] {
            for path in paths {
                self.start(path);
                if let Some(works) = self.next_result(HEAD_START) {
                    return Reconnected { works: Some(works), failures: self.failures };
                }
            }
            let start = Instant::now();
            while self.running > 0 && start.elapsed() < patience {
                if let Some(works) = self.next_result(patience.saturating_sub(start.elapsed())) {
                    return Reconnected { works: Some(works), failures: self.failures };
                }
            }
        }
        Reconnected { works: None, failures: self.failures }
    }

    /// Starts to connect to a path.
    fn start(&mut self, path: usize) {
        let (options, nsid, send) = (self.options.clone(), self.nsid, self.send.clone());
        let connect = move || {
            // Ignore a failed send, because nobody needs the result after another path has connected or the
            // attempt was given up.
            let _ = send.send((path, Session::connect(&options, path, Some(nsid))));
        };
        match spawn(connect) {
            Ok(()) => self.running += 1,
            Err(error) => self.failures.push((path, error)),
        }
    }

    /// Waits for up to `time` until a path has connected or failed. Returns the path if it has connected.
    fn next_result(&mut self, time: Duration) -> Option<(usize, Live, NamespaceInfo)> {
        if self.running == 0 {
            return None;
        }
        let (path, result) = self.results.recv_timeout(time).ok()?;
        self.running -= 1;
        match result {
            Ok((live, namespace)) => Some((path, live, namespace)),
            Err(error) => {
                self.failures.push((path, error));
                None
            }
        }
    }
}

/// Starts a thread of an attempt to reconnect. The thread ends by itself.
fn spawn(run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name("inlane-reconnect".into()).spawn(run);
    thread.map(drop).map_err(Error::no_thread)
}

/// Describes a path error that a controller reported.
pub(super) fn no_access(status: Status) -> String {
    format!("the controller cannot access the namespace: {status}; give another path to the subsystem")
}

/// Returns an error if the target at `path` has another namespace now (`now`) than before (`before`).
fn check_is_same(path: &Address, before: &NamespaceInfo, now: &NamespaceInfo) -> Result<()> {
    before.check_is_same(now).map_err(|why| Error::disconnected(path.to_string(), why))
}
