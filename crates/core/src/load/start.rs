//! The line at which the threads of all loads wait before they start together.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A line at which threads wait until all have arrived. A thread that fails before it arrives leaves, so the others do
/// not wait for it.
#[derive(Debug)]
pub struct StartLine {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The threads that have neither arrived nor left.
    missing: usize,
    cancelled: bool,
    started: Option<Instant>,
}

impl StartLine {
    /// Creates a line for `threads` threads.
    pub fn new(threads: usize) -> Self {
        let started = (threads == 0).then(Instant::now);
        Self {
            state: Mutex::new(State { missing: threads, cancelled: false, started }),
            changed: Condvar::new(),
        }
    }

    /// Creates the membership of one thread, before it is known whether the thread becomes ready.
    pub fn member(&self) -> Member<'_> {
        Member { line: self, arrived: false }
    }

    /// Creates the memberships of `threads` threads. A load takes all of them before anything can fail, because dropping
    /// a membership tells the others not to wait.
    pub fn members(&self, threads: usize) -> Vec<Member<'_>> {
        (0..threads).map(|_| self.member()).collect()
    }

    /// Wakes all threads that wait. They learn that nothing starts.
    pub fn cancel(&self) {
        self.state().cancelled = true;
        self.changed.notify_all();
    }

    /// Returns the instant of the start, or `None` before it.
    pub fn started(&self) -> Option<Instant> {
        self.state().started
    }

    /// Blocks until all threads have arrived or left. Returns the instant of the start, or `None` if the start was
    /// cancelled. For a thread that is no member, such as one that samples.
    pub fn wait(&self) -> Option<Instant> {
        let mut state = self.state();
        loop {
            if state.started.is_some() {
                return state.started;
            }
            if state.cancelled {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn count_one(&self) {
        let mut state = self.state();
        state.missing = state.missing.saturating_sub(1);
        if state.missing == 0 && state.started.is_none() && !state.cancelled {
            state.started = Some(Instant::now());
            self.changed.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread's membership in a start line. If the membership is dropped before the thread has arrived, the thread leaves.
#[derive(Debug)]
pub struct Member<'a> {
    line: &'a StartLine,
    arrived: bool,
}

impl Member<'_> {
    /// Blocks until all other threads have arrived, too. Returns the instant of the start, or `None` if the start was
    /// cancelled: then the thread ends.
    pub fn ready(mut self) -> Option<Instant> {
        self.arrived = true;
        self.line.count_one();
        self.line.wait()
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if !self.arrived {
            self.line.count_one();
        }
    }
}
