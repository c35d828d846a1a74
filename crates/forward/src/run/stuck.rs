//! Finds packet functions on the CPU that never return.

use crate::error::Error;
use inlane_function::Calls;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After the user has stopped the run, a function may take at most this long, even if the watchdog allows more.
const AFTER_STOP: Duration = Duration::from_secs(1);
/// A call counts as stuck only after as many checks, because a process that was stopped cannot have made progress.
const CHECKS: u32 = 5;

/// The calls of a run's packet functions, and how long each has been running.
pub(super) struct StuckCalls {
    function: String,
    limit: Duration,
    calls: Vec<(Arc<Calls>, Option<Running>)>,
    reported: bool,
}

/// A call that has been running since an earlier check.
#[derive(Clone, Copy)]
struct Running {
    call: u64,
    since: Instant,
    checks: u32,
}

impl StuckCalls {
    /// Watches `calls` of `function`, which may take at most `limit`.
    pub fn new(function: String, limit: Duration, calls: Vec<Arc<Calls>>) -> Self {
        Self {
            function,
            limit,
            calls: calls.into_iter().map(|calls| (calls, None)).collect(),
            reported: false,
        }
    }

    /// Checks all calls. Returns an error for the first that runs for too long, once. `stopping` is true after the user has
    /// stopped the run.
    pub fn check(&mut self, stopping: bool) -> Option<Error> {
        let limit = if stopping { self.limit.min(AFTER_STOP) } else { self.limit };
        let mut longest = None;
        for (calls, running) in &mut self.calls {
            *running = calls.running().map(|call| match *running {
                Some(before) if before.call == call => Running { checks: before.checks + 1, ..before },
                _ => Running { call, since: Instant::now(), checks: 0 },
            });
            let stuck = running.filter(|call| call.checks >= CHECKS && call.since.elapsed() > limit);
            longest = longest.max(stuck.map(|call| call.since.elapsed()));
        }
        let seconds = longest.filter(|_| !std::mem::replace(&mut self.reported, true))?.as_secs_f64();
        Some(Error::NeverReturned { function: self.function.clone(), seconds })
    }
}
