//! Replaces a failed path of a session.

use super::{Live, Session, SessionOptions, TICK, again};
use crate::initiator::{Address, NamespaceInfo};
use crate::wire::command::Status;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
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

    /// Advances the reconnection by one step: waits between attempts, or starts an attempt and advances it. With `wait`, blocks for up to 50 ms. Returns an error if the
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
        let attempt = match self.attempt.take() {
            Some(attempt) => attempt,
            None => Attempt::new(self),
        };
        let attempt = self.attempt.insert(attempt);
        match attempt.proceed(if wait { TICK } else { Duration::ZERO }) {
            Some(result) => {
                self.attempt = None;
                self.attempt_ended = Some(Instant::now());
                self.reconnected(result)
            }
            None if self.is_too_late() => {
                let why = "the last attempt got no answer; check the target and the network";
                Err(self.not_restored(Some(why)))
            }
            None => Ok(()),
        }
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
#[derive(Debug)]
pub(super) struct Attempt {
    options: Arc<SessionOptions>,
    nsid: u32,
    start: Instant,
    /// The paths that are not tried yet, in order. Each is tried when its time since `start` has passed, or before that if
    /// no other path is being tried.
    untried: VecDeque<(usize, Duration)>,
    send: Sender<(usize, Connected)>,
    results: Receiver<(usize, Connected)>,
    /// The number of paths that are still being tried: they have neither connected nor failed.
    running: usize,
    failures: Vec<(usize, Error)>,
}

impl Attempt {
    /// Tries the paths in turn from the session's next path on. Paths that have last reported that they cannot access
    /// the namespace come last and late, because they must not be chosen only because they connect fast.
    fn new(session: &Session) -> Self {
        let late = session.options.reconnect / 2;
        let count = session.options.paths.len();
        let order = (session.path..count).chain(0..session.path);
        let (last, first): (Vec<_>, Vec<_>) = order.partition(|path| session.inaccessible.contains(path));
        let first = first.into_iter().zip(0..).map(|(path, place)| (path, HEAD_START * place));
        let last = last.into_iter().zip(0..).map(|(path, place)| (path, late + HEAD_START * place));
        let (send, results) = channel();
        Self {
            options: Arc::new(session.options.clone()),
            nsid: session.namespace.nsid,
            start: Instant::now(),
            untried: first.chain(last).collect(),
            send,
            results,
            running: 0,
            failures: Vec::new(),
        }
    }

    /// Starts to connect to the next path if it is time, and waits for up to `time` for the result of a path. Returns
    /// the result of the attempt when a path has connected or all have failed.
    fn proceed(&mut self, time: Duration) -> Option<Reconnected> {
        while let Some((path, delay)) = self.untried.front().copied()
            && (self.running == 0 || delay <= self.start.elapsed())
        {
            self.untried.pop_front();
            self.start(path);
        }
        let works = match self.results.recv_timeout(time) {
            Ok((path, Ok((live, namespace)))) => Some((path, live, namespace)),
            Ok((path, Err(error))) => {
                self.running -= 1;
                self.failures.push((path, error));
                None
            }
            Err(_) => None,
        };
        let ended = works.is_some() || self.running == 0 && self.untried.is_empty();
        ended.then(|| Reconnected { works, failures: std::mem::take(&mut self.failures) })
    }

    /// Starts to connect to a path.
    fn start(&mut self, path: usize) {
        let (options, nsid, send) = (self.options.clone(), self.nsid, self.send.clone());
        let connect = move || {
            // Ignore a failed send, because nobody needs the result after another path has connected or the
            // attempt was given up. Dropping the result closes the new connection.
            let _ = send.send((path, Session::connect(&options, path, Some(nsid))));
        };
        match std::thread::Builder::new().name("inlane-reconnect".into()).spawn(connect) {
            Ok(_) => self.running += 1,
            Err(error) => self.failures.push((path, Error::no_thread(error))),
        }
    }
}

/// Describes a path error that a controller reported.
pub(super) fn no_access(status: Status) -> String {
    format!("the controller cannot access the namespace: {status}; give another path to the subsystem")
}

/// Returns an error if the target at `path` has another namespace now (`now`) than before (`before`).
fn check_is_same(path: &Address, before: &NamespaceInfo, now: &NamespaceInfo) -> Result<()> {
    before.check_is_same(now).map_err(|why| Error::disconnected(path.to_string(), why))
}
