//! Where threads that measure together begin and end together.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Where threads wait for each other, again and again. A thread that ends for whatever reason, a panic too, is not waited for
/// any more, so none waits for ever.
pub(super) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

struct GateState {
    threads: usize,
    waiting: usize,
    opened: u64,
}

impl Gate {
    pub(super) fn new(threads: usize) -> Self {
        let state = GateState { threads, waiting: 0, opened: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn change(&self, change: impl FnOnce(&mut GateState)) -> MutexGuard<'_, GateState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        if state.waiting > 0 && state.waiting >= state.threads {
            state.waiting = 0;
            state.opened += 1;
            self.changed.notify_all();
        }
        state
    }

    pub(super) fn wait(&self) {
        let mut before = 0;
        let mut state = self.change(|state| {
            before = state.opened;
            state.waiting += 1;
        });
        while state.opened == before {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A thread's part in a gate, until it is dropped.
pub(super) struct Part<'a>(pub(super) &'a Gate);

impl Drop for Part<'_> {
    fn drop(&mut self) {
        drop(self.0.change(|state| state.threads -= 1));
    }
}
