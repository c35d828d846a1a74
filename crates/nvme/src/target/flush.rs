//! Groups the flushes of a namespace.
//!
//! Linux reports lost data to only one `fdatasync` of an open file. If several run at a time, one of them fails and the
//! others succeed, although none of the data that they flush is safe. So one runs at a time. Flushes that arrive
//! meanwhile wait, and the next `fdatasync` serves all of them.

use super::controller::Reach;
use super::inbox::Note;
use crate::lock;
use std::sync::Mutex;

/// The flush of a command: how to reach its connection, and the command's slot.
pub type Waiting = (Reach, u16);

/// The flushes of one namespace.
#[derive(Debug, Default)]
pub struct FlushGroup {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// The flushes that the running `fdatasync` serves, except for the one whose connection has started it.
    served: Vec<Waiting>,
    /// The flushes that wait for the next `fdatasync`.
    waiting: Vec<Waiting>,
    /// True after a thread has failed, perhaps while it ran the `fdatasync`.
    abandoned: bool,
}

impl FlushGroup {
    /// Returns true if the caller must call `fdatasync` now, and then [`FlushGroup::end`]. Returns false if another
    /// flush is running. The connection then gets the message [`Note::Flush`] with what to do.
    pub fn begin(&self, flush: impl FnOnce() -> Waiting) -> bool {
        let mut state = lock(&self.state);
        if state.running && !state.abandoned {
            state.waiting.push(flush());
            return false;
        }
        state.running = true;
        true
    }

    /// Passes the result of `fdatasync` to the flushes that it served, and starts the next group.
    pub fn end(&self, result: i32) {
        let mut state = lock(&self.state);
        state.served.drain(..).for_each(|(reach, slot)| reach.send(Note::Flush(slot, Some(result))));
        let mut next = std::mem::take(&mut state.waiting).into_iter();
        state.running = false;
        if let Some((reach, slot)) = next.next() {
            (state.running, state.served) = (true, next.collect());
            reach.send(Note::Flush(slot, None));
        }
    }

    /// Fails all waiting flushes, because the thread that they wait for may have failed.
    pub fn abandon(&self) {
        let mut state = lock(&self.state);
        let State { served, waiting, abandoned, .. } = &mut *state;
        *abandoned = true;
        served
            .drain(..)
            .chain(waiting.drain(..))
            .for_each(|(reach, slot)| reach.send(Note::Flush(slot, Some(-libc::EIO))));
    }
}
