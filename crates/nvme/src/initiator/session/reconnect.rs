//! Replaces a failed path of a session.

use super::{Live, Session, SessionOptions, TICK, again};
use crate::command::Status;
use crate::initiator::{Address, NamespaceInfo};
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::time::{Duration, Instant};

/// The pause after all paths have failed, before they are tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// How long an attempt to reconnect waits for a path before it also tries the next one.
const HEAD_START: Duration = Duration::from_millis(500);
/// The result of trying each path once: the index of the first path that works, the connection over it, and
/// its namespace. If no path works, the error of the last path.
pub(super) type Reconnected = Result<(usize, Live, NamespaceInfo)>;

impl Session {
    /// Gives up the path in use and takes its unfinished commands back, to send them over the next path.
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
        self.path_error = None;
        if self.lost_since.is_some() {
            // Wait before the next attempt, because a path that connects and then fails each time would cause
            // one connection after the other.
            self.failed_at = Some(Instant::now());
        }
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        // Return the error if no command has succeeded for too long, because a path that connects and then
        // fails each time must not be tried forever.
        if since.elapsed() >= self.options.reconnect {
            return Err(error);
        }
        self.path = (self.path + 1) % self.options.paths.len();
        Ok(())
    }

    /// Starts a thread that tries each path once, or takes the thread's result. With `wait`, blocks for up
    /// to 100 ms. Returns an error if the time to reconnect is over.
    pub(super) fn reconnect(&mut self, wait: bool) -> Result<()> {
        self.lost_since.get_or_insert_with(Instant::now);
        let pause = self.failed_at.map_or(Duration::ZERO, |failed| PAUSE.saturating_sub(failed.elapsed()));
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
                return Err(self.not_restored("no path has answered; check the target and the network"));
            }
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                unreachable!("the thread sends its result before it ends")
            }
        };
        self.attempt = None;
        self.reconnected(result)
    }

    /// Returns true if a path failed, and no command has succeeded for [`SessionOptions::reconnect`] since
    /// then.
    fn is_too_late(&self) -> bool {
        self.lost_since.is_some_and(|since| since.elapsed() >= self.options.reconnect)
    }

    fn not_restored(&self, why: &str) -> Error {
        let seconds = self.options.reconnect.as_secs_f64();
        let why = match self.last_path_error {
            Some(status) => no_access(status),
            None => why.into(),
        };
        let why = format!("the connection was lost and not restored within {seconds} s: {why}");
        Error::Disconnected { peer: self.options.connect.subsystem.clone(), why }
    }

    /// Starts a thread that tries each path once, starting with the next one.
    fn start_attempt(&self) -> Result<Receiver<Reconnected>> {
        let (send, receive) = sync_channel(1);
        let (options, first, nsid) = (self.options.clone(), self.path, self.namespace.nsid);
        let attempt = move || {
            // The send fails if the session was dropped meanwhile. Dropping the result closes the new
            // connection.
            let _ = send.send(Self::try_paths(options, first, nsid));
        };
        spawn(attempt)?;
        Ok(receive)
    }

    /// Tries each path once, starting with `first`. If a path neither works nor fails within [`HEAD_START`],
    /// also tries the next one. Returns the first path that works.
    fn try_paths(options: SessionOptions, first: usize, nsid: u32) -> Reconnected {
        let options = Arc::new(options);
        let (send, results) = channel();
        let (mut running, mut failure) = (0, None);
        for path in (first..options.paths.len()).chain(0..first) {
            let (options, send) = (options.clone(), send.clone());
            spawn(move || {
                let result = Self::connect(&options, path, Some(nsid));
                // The send fails if another path was faster.
                let _ = send.send(result.map(|(live, namespace)| (path, live, namespace)));
            })?;
            running += 1;
            match results.recv_timeout(HEAD_START) {
                Ok(Ok(works)) => return Ok(works),
                Ok(Err(error)) => {
                    running -= 1;
                    failure = Some(error);
                }
                Err(_) => {}
            }
        }
        for _ in 0..running {
            match results.recv().expect("this function has a sender, too") {
                Ok(works) => return Ok(works),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.expect("at least one path"))
    }

    fn reconnected(&mut self, result: Reconnected) -> Result<()> {
        match result {
            Ok((path, live, namespace)) => {
                self.path = path;
                check_is_same(self.path(), &self.namespace, &namespace)?;
                self.namespace = namespace;
                self.live = Some(live);
                self.failed_at = None;
                self.failovers += 1;
                Ok(())
            }
            Err(failure) => {
                if self.is_too_late() {
                    return Err(self.not_restored(&failure.to_string()));
                }
                self.failed_at = Some(Instant::now());
                Ok(())
            }
        }
    }
}

/// Starts a thread of an attempt to reconnect. The thread ends by itself.
fn spawn(run: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new()
        .name("inlane-reconnect".into())
        .spawn(run)
        .map(drop)
        .map_err(|source| Error::Os { what: "cannot start a thread to reconnect".into(), source })
}

/// Describes a path error that a controller reported.
pub(super) fn no_access(status: Status) -> String {
    format!("the controller cannot access the namespace: {status}; give another path to the subsystem")
}

/// Returns an error if the target at `path` has another namespace now (`now`) than before (`before`).
pub(super) fn check_is_same(path: &Address, before: &NamespaceInfo, now: &NamespaceInfo) -> Result<()> {
    let id = now.nsid;
    let why = if now.identity != before.identity {
        format!(
            "namespace {id} is another one than before: its UUID has changed. A target with a namespace in memory \
             loses its data when it restarts"
        )
    } else if now.block_bytes != before.block_bytes {
        format!("namespace {id} has another block size than before")
    } else {
        return Ok(());
    };
    Err(Error::Disconnected { peer: path.to_string(), why })
}
