//! A barrier for the threads of a measurement: each waits until all have arrived. If a thread panics, the
//! others do not wait for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A reusable barrier for a fixed group of threads. If a thread leaves the group, even by a panic, the other
/// threads no longer wait for it, so they cannot block forever. [`std::sync::Barrier`] lacks this.
pub(super) struct Barrier {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    members: usize,
    waiting: usize,
    /// The number of times that all members have arrived.
    generation: u64,
}

impl Barrier {
    pub(super) fn new(members: usize) -> Self {
        let state = State { members, waiting: 0, generation: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Changes the state by `change` and releases the waiting threads if all members have arrived.
    fn change(&self, change: impl FnOnce(&mut State)) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        if state.waiting > 0 && state.waiting >= state.members {
            state.waiting = 0;
            state.generation += 1;
            self.changed.notify_all();
        }
        state
    }

    /// Blocks until all members wait here.
    pub(super) fn wait(&self) {
        let mut before = 0;
        let mut state = self.change(|state| {
            before = state.generation;
            state.waiting += 1;
        });
        while state.generation == before {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A thread's membership in a barrier. Dropping this value ends the membership.
pub(super) struct Member<'a>(pub(super) &'a Barrier);

impl Drop for Member<'_> {
    fn drop(&mut self) {
        drop(self.0.change(|state| state.members -= 1));
    }
}
