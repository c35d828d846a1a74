//! Flags that end a run, and how its threads spend their time.

mod idle;

pub use idle::Idle;
pub(crate) use idle::publish_times;

use crate::error::Error;
use inlane_core::load::Counts;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The flags that end a run. The run's threads and the caller of the run share the flags, so each of these
/// threads can stop or abort the run.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    abort: AtomicBool,
    parent: Option<Arc<Control>>,
    on_stuck: OnceLock<fn(Error)>,
}

impl Control {
    /// Creates the control of one run of several. If `parent` is stopped or aborted, this run ends too: see
    /// [`Control::follow_parent`].
    pub fn child_of(parent: &Arc<Control>) -> Self {
        Self { parent: Some(parent.clone()), ..Self::default() }
    }

    /// Stops or aborts this run if the parent was stopped or aborted. The thread that waits for the run's end
    /// calls this function several times a second. This is necessary because the run's other threads read
    /// only the run's own flags.
    pub fn follow_parent(&self) {
        let Some(parent) = &self.parent else { return };
        parent.follow_parent();
        if parent.aborting() {
            self.abort();
        } else if parent.stopping() {
            self.stop();
        }
    }

    /// Sets what happens if a packet function on the CPU never returns. Its thread cannot be ended, and so the run cannot
    /// end either: the command ends the process. Without this call, the run logs the error and goes on waiting.
    pub fn set_on_stuck(&self, act: fn(Error)) {
        let _ = self.on_stuck.set(act);
    }

    /// Reports a packet function that does not return: see [`Control::set_on_stuck`].
    pub(crate) fn stuck(&self, error: Error) {
        match (self.on_stuck.get(), &self.parent) {
            (Some(act), _) => act(error),
            (None, Some(parent)) => parent.stuck(error),
            (None, None) => tracing::error!("{error}"),
        }
    }

    /// Stops receiving. Packets in flight are still sent.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Ends the run without waiting for packets in flight. Call it after an error that may have prevented the
    /// packets from completing.
    pub fn abort(&self) {
        self.abort.store(true, Relaxed);
        self.stop();
    }

    /// Returns true after [`Control::stop`] or [`Control::abort`].
    #[inline]
    pub fn stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Returns true after [`Control::abort`].
    #[inline]
    pub fn aborting(&self) -> bool {
        self.abort.load(Relaxed)
    }
}

/// The shares of a run's duration that a pipeline's threads spent in different ways. In the remaining time,
/// they polled without work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeShares {
    /// The share of the run's duration in which the dispatching thread had work.
    pub busy: f64,
    /// The share of the run's duration in which the dispatching thread waited for a full transmit port.
    pub refused: f64,
    /// The fraction of the time in which the feeder had work. 0 if the method has no feeder.
    pub feeding: f64,
}

impl TimeShares {
    /// Returns the shares of a run of `nanoseconds`. `dispatcher` are the counts of a pipeline's dispatching thread, and
    /// `feeder` those of its feeder if it has one.
    pub(crate) fn of(dispatcher: Counts, feeder: Option<Counts>, nanoseconds: u64) -> Self {
        let share = |spent: u64| (spent as f64 / nanoseconds.max(1) as f64).min(1.0);
        let feeding = feeder.map_or(0.0, |counts| share(counts.busy_ns));
        Self { busy: share(dispatcher.busy_ns), refused: share(dispatcher.blocked_ns), feeding }
    }
}
