//! The threads of a pipeline whose function runs on a GPU.
//!
//! ```text
//! single                 [ receive -> submit -> launch -> wait -> send ]            one thread, one item at a time
//! persistent             [ receive -> submit ... take back -> send ]                one thread
//! split, stream, graph   [ receive -> submit ... take back -> send ]   [ launch, or post ahead ]
//! ```
//!
//! What the threads work with belongs to who started them: when one panics, the ring can still be drained and the GPU let go.

use super::feeder::{Feeder, Ticks, settle};
use super::lane::Lane;
use super::lane_report::LaneReport;
use super::launch::Launcher;
use super::watchdog::watch_until;
use crate::config::Method;
use crate::control::ThreadTime;
use crate::error::{Error, Result};
use crate::pipeline::circulate::{Circulation, CirculationHooks, Items};
use crate::pipeline::{AbortOnPanic, Pipeline, PipelineContext, PipelineSettings, Tally, panic_message, pin};
use std::sync::mpsc;
use std::time::Instant;

/// Runs `pipeline`, whose packets lie where `lane` was made for, until it ends. Afterwards the GPU has let go of the lane, or
/// was given up, and an error says so.
pub fn run(
    pipeline: Pipeline,
    mut lane: Lane,
    drive: &PipelineSettings,
    shared: &PipelineContext<'_>,
) -> (Tally, Option<LaneReport>) {
    let dispatcher = lane.dispatcher.take().expect("a lane runs once");
    let Pipeline { rx, txs, pool, .. } = pipeline;
    // Given back only when the GPU can write them no more.
    let mut items = Items::new(&pool, lane.slots(), drive.burst);
    let circulation = Circulation::new(rx, txs, pool, dispatcher, lane.settings.limits(drive.burst), drive);
    let mut tally = Tally::default();
    if let Err(error) = on_streams(&lane, circulation, &mut items, &mut tally, drive, shared) {
        // What the GPU says at the end is mostly the echo of an error that a thread saw first.
        if tally.errors.is_empty() {
            tally.errors.push(error);
        }
        shared.control.stop();
    }
    lane.leave_together();

    // ProgressSnapshot from a GPU that was given up, for another lane's sake, would wait for ever.
    let report = match tally.errors.is_empty() && !lane.program.gpu().is_abandoned() {
        true => lane
            .report(lane.closed_at().unwrap_or(0), tally.rx.packets, tally.rx.bytes)
            .map_err(|error| tally.errors.push(error))
            .ok(),
        false => None,
    };
    drop(lane);
    tally.dropped_unsent += items.packets_in_flight();
    (tally, report)
}

/// Everything between the first thing given to the GPU and the last it has let go of.
fn on_streams(
    lane: &Lane,
    circulation: Circulation,
    items: &mut Items,
    tally: &mut Tally,
    drive: &PipelineSettings,
    shared: &PipelineContext<'_>,
) -> Result<()> {
    let gpu = lane.program.gpu();
    let open = || if lane.settings.urgent { gpu.high_priority_stream() } else { gpu.stream() };
    let streams =
        (0..lane.settings.streams_for()).map(|_| open()).collect::<inlane_cuda::Result<Vec<_>>>()?;
    let side = lane.program.info.ticks().then(open).transpose()?;
    let ticks = side.as_ref().map(|side| Ticks::new(lane, side));
    let mut feed = Feeder::prepare(lane, &streams, side.as_ref())?;
    lane.start_together();
    feed.begin()?;
    let begun = Instant::now();
    let apart = lane.settings.method.has_feeder();
    let (mine, feeders) = if apart { (None, ticks) } else { (ticks, None) };
    let launcher = (lane.settings.method == Method::Single).then(|| Launcher::new(lane, &streams));
    let mut hooks = GpuHooks { launcher, ticks: mine };
    let moving = || circulation.run(items, &mut hooks, drive, shared);
    let feeding = apart.then_some(|| feed.run(feeders, shared.control));
    let watching = |ended: &_| watch_until(ended, lane, &streams, shared.control);
    *tally = on_threads(moving, feeding, watching, shared);
    tally.flowed = Some((begun, Instant::now()));
    let clean = !shared.control.aborting() && tally.errors.is_empty();
    let stuck = tally.errors.iter().any(|error| matches!(error, Error::Stuck { .. }));
    let ended = feed.finish(clean, stuck).and_then(|()| match &side {
        // What is half assembled is delivered.
        Some(side) if !stuck => {
            Ticks::new(lane, side).last()?;
            settle(lane, std::slice::from_ref(side))
        }
        _ => Ok(()),
    });
    if ended.is_err() || !clean {
        // One that broke ends the others, in order.
        shared.control.stop();
    }
    // Streams and graphs go only then, too.
    lane.leave_together();
    ended
}

/// Runs what moves packets and what feeds the GPU, each on a thread of its own, until they end. This one has nothing else to do meanwhile
/// than `watching`, from which no port that takes nothing keeps it, and no packets that are dropped: until the other end of what it is
/// given is gone, with the thread that moves packets.
pub(super) fn on_threads(
    moving: impl FnOnce() -> Tally + Send,
    feeding: Option<impl FnOnce() -> Result<()> + Send>,
    watching: impl FnOnce(&mpsc::Receiver<()>) -> Result<()>,
    shared: &PipelineContext<'_>,
) -> Tally {
    let named = |role: &str| std::thread::Builder::new().name(format!("inlane-{}-{role}", shared.index));
    let panicked = |thread, payload: Box<dyn std::any::Any + Send>| Error::Panicked {
        pipeline: shared.index,
        thread,
        message: panic_message(&*payload),
    };
    let unstarted = |source| {
        shared.control.abort();
        Error::from(inlane_core::Error::Os { what: "start the threads of a pipeline".into(), source })
    };
    let (moves, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let moving = named("io").spawn_scoped(scope, move || {
            let _moves = moves;
            pin(shared.cores, 0);
            // Who feeds must not wait for packets that will not come.
            let guard = AbortOnPanic(shared.control);
            let tally = moving();
            std::mem::forget(guard);
            tally
        });
        let moving = moving.map_err(unstarted);
        let feeding = feeding.filter(|_| moving.is_ok()).map(|feeding| {
            let feeding = named("feed").spawn_scoped(scope, move || {
                pin(shared.cores, 1);
                let guard = AbortOnPanic(shared.control);
                let outcome = feeding();
                shared.progress.set_feeding();
                std::mem::forget(guard);
                (outcome.inspect_err(|_| shared.control.abort()), ThreadTime::of_this_thread())
            });
            feeding.map_err(unstarted)
        });
        let watched = watching(&ended);
        let mut tally = match moving.map(|thread| thread.join()) {
            Ok(Ok(tally)) => tally,
            Ok(Err(payload)) => Tally { errors: vec![panicked("moving", payload)], ..Tally::default() },
            Err(error) => Tally { errors: vec![error], ..Tally::default() },
        };
        tally.errors.extend(watched.err());
        match feeding.map(|thread| thread.map(|thread| thread.join())) {
            Some(Ok(Ok((outcome, time)))) => {
                tally.time += time;
                tally.errors.extend(outcome.err());
            }
            Some(Ok(Err(payload))) => tally.errors.push(panicked("feeding", payload)),
            Some(Err(error)) => tally.errors.push(error),
            None => {}
        }
        tally
    })
}

/// What the thread that moves packets does for the GPU.
struct GpuHooks<'a> {
    /// Method `single`.
    launcher: Option<Launcher<'a>>,
    ticks: Option<Ticks<'a>>,
}

impl CirculationHooks for GpuHooks<'_> {
    #[inline]
    fn item_submitted(&mut self, count: usize) -> Result<()> {
        match &mut self.launcher {
            Some(launcher) => launcher.launch(count as u32),
            None => Ok(()),
        }
    }

    #[inline]
    fn no_item_completed(&mut self) -> Result<()> {
        match &mut self.ticks {
            Some(ticks) => ticks.due(),
            None => Ok(()),
        }
    }
}
