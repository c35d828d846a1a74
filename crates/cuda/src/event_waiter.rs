//! Sleeps until an event completes, with a timeout.
//!
//! The driver's call that sleeps until an interrupt has no timeout, and it never returns if the GPU hangs. So
//! a separate thread makes the call, and the caller waits for that thread with a timeout. The cost is one
//! more wake-up per wait.

use crate::error::Result;
use crate::stream::Event;
use inlane_core::Error;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A thread that sleeps until a requested event completes. It serves one event after another. If this value
/// is dropped while the thread sleeps, the thread ends when the driver's call returns.
pub(crate) struct EventWaiter {
    events: Sender<Arc<Event>>,
    outcomes: Receiver<Result<()>>,
}

impl EventWaiter {
    /// Starts the thread.
    pub(crate) fn start() -> inlane_core::Result<Self> {
        let (events, requests) = channel::<Arc<Event>>();
        let (completed, outcomes) = channel();
        std::thread::Builder::new()
            .name("gpu-interrupt".into())
            .spawn(move || {
                for event in requests {
                    if completed.send(event.synchronize()).is_err() {
                        return;
                    }
                }
            })
            .map_err(|source| Error::Os { what: "starting a thread that waits for a GPU".into(), source })?;
        Ok(Self { events, outcomes })
    }

    /// Tells the waiter's thread to sleep until `event` completes. Then call `outcome` for the result.
    pub(crate) fn request(&self, event: &Arc<Event>) {
        // Sending fails only if the thread panicked. Then `outcome` returns `None`, which the caller treats
        // as a timeout.
        let _ = self.events.send(event.clone());
    }

    /// Returns the outcome of the requested event. Returns `None` if it has not completed within `time`.
    pub(crate) fn outcome(&self, time: Duration) -> Option<Result<()>> {
        match self.outcomes.recv_timeout(time) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(time);
                None
            }
        }
    }
}
