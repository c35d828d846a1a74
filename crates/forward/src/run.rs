//! Runs of pipelines between ports. A [`ForwardLoad`] is the run as a load; [`run`] opens one, and stops it when its time
//! is over.

mod load;
mod open;
#[cfg(test)]
mod own_tests;
mod stuck;
#[cfg(test)]
mod stuck_tests;
#[cfg(test)]
mod tests;
mod wiring;
mod wrappers;

use crate::config::Config;
use crate::control::Control;
use crate::counters::PortCounters;
use crate::error::{Error, Result};
use inlane_core::load::{Counts, Load, LoadError, Running, prepare, run_together};
use std::time::Duration;
use stuck::StuckCalls;

pub use load::{ForwardLoad, RunOutcome};

/// The counters of a run up to a moment.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The sum of the meters.
    pub counts: Counts,
    /// The counters of each port.
    pub ports: Vec<PortCounters>,
}

/// The time between two calls of `watch` in [`run`].
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// The longest time until the run notices a signal.
const NOTICE_WITHIN: Duration = Duration::from_millis(100);

/// Executes a run. The run ends when the source is exhausted, or when the requested time or number of packets
/// is reached. The caller can stop or abort it through `control`.
///
/// Calls `watch` about once a second with the time since the start and the counters.
///
/// # Errors
/// When the run cannot start because of its settings, a port, a device or memory. Later errors are in
/// [`RunOutcome::errors`].
pub fn run(
    config: &Config,
    control: &Control,
    watch: &mut dyn FnMut(Duration, &Reading),
) -> Result<RunOutcome> {
    let mut load = ForwardLoad::open(config, None)?;
    let drop_privileges = || inlane_process::privileges::drop_privileges().map(drop);
    prepare(&mut [&mut load], drop_privileges)?.into_iter().collect::<Result<(), _>>().map_err(own)?;
    let (run, meters, flags) = (Running::new(load.threads()), load.meters(), load.control());
    let counters = load.counters.clone();
    let mut stuck =
        StuckCalls::new(config.function.name().into(), config.per_pipeline.watchdog, load.calls());
    let mut next_watch = WATCH_EVERY;
    let outcomes = run_together(&mut [&mut load], &run, |_| {
        let flowed = run.start.started().map_or(Duration::ZERO, |started| started.elapsed());
        control.follow_parent();
        if control.aborting() {
            flags.abort();
        }
        if control.stopping() || config.duration.is_some_and(|duration| flowed >= duration) {
            run.stop();
        }
        if let Some(error) = stuck.check(run.stopping()) {
            control.stuck(error);
        }
        if flowed >= next_watch {
            let counts = meters.iter().map(|meter| meter.read()).sum();
            watch(flowed, &Reading { counts, ports: counters.read() });
            next_watch += WATCH_EVERY;
        }
        let mut wait = next_watch - flowed.min(next_watch);
        if let Some(duration) = config.duration.filter(|_| !run.stopping()) {
            wait = wait.min(duration - flowed);
        }
        wait.clamp(Duration::from_micros(100), NOTICE_WITHIN)
    });
    if flags.stopping() {
        control.stop();
    }
    let failed = outcomes.into_iter().find_map(|outcome| outcome.err().map(own));
    match (load.into_outcome(), failed) {
        (Some(mut outcome), failed) => {
            outcome.errors.splice(0..0, failed.filter(|error| !matches!(error, Error::Verification(_))));
            Ok(outcome)
        }
        (None, Some(error)) => Err(error),
        (None, None) => unreachable!("a load that ran without an error has an outcome"),
    }
}

/// Returns the error of a [`ForwardLoad`] in its own type.
fn own(error: LoadError) -> Error {
    error.downcast().map_or_else(
        |other| Error::Panicked { pipeline: 0, thread: "load", message: other.to_string() },
        |own| *own,
    )
}
