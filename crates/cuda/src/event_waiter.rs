//! Sleeps until an event completes, with a timeout.
//!
//! One function of the driver sleeps until an interrupt. It has no timeout, and never returns if the GPU
//! hangs. So a separate thread calls it, and the waiting thread waits for that thread with a timeout. This
//! costs one more wake-up per wait.

use crate::error::Result;
use crate::stream::Event;
use inlane_core::Error;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A thread that sleeps until a requested event completes. It serves one event after another. If this value
/// is dropped while the thread sleeps in a call of the driver, the thread ends when the call returns.
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
        // Ignore the error, because sending fails only if the thread panicked. `outcome` then returns `None`,
        // and the caller treats `None` as a timeout.
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
