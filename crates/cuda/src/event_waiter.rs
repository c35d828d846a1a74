//! Sleeping until an event has passed, and not for ever.
//!
//! The driver's call that sleeps until an interrupt has no limit, and nothing ends it when a GPU hangs. So a thread of its own makes
//! the call, and who waits for that thread can give up. What this costs a wait is a wake-up more.

use crate::error::Result;
use crate::stream::Event;
use inlane_core::Error;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A thread that sleeps until events have passed, one after another. Dropped while it sleeps, it is left behind: it ends when the
/// driver's call does.
pub(crate) struct EventWaiter {
    events: Sender<Arc<Event>>,
    outcomes: Receiver<Result<()>>,
}

impl EventWaiter {
    /// Starts the thread.
    pub(crate) fn start() -> inlane_core::Result<Self> {
        let (events, asked) = channel::<Arc<Event>>();
        let (tell, outcomes) = channel();
        std::thread::Builder::new()
            .name("gpu-interrupt".into())
            .spawn(move || {
                for event in asked {
                    if tell.send(event.synchronize()).is_err() {
                        return;
                    }
                }
            })
            .map_err(|source| Error::Os { what: "starting a thread that waits for a GPU".into(), source })?;
        Ok(Self { events, outcomes })
    }

    /// Has it sleep until `event` has passed.
    pub(crate) fn ask(&self, event: &Arc<Event>) {
        // It is there until it is dropped: an answer that never comes is noticed by who waits for it.
        let _ = self.events.send(event.clone());
    }

    /// How the event ended; `None` when it has not after `time`.
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
