//! The threads of a pipeline whose function runs on a GPU.
//!
//! ```text
//! single                 [ receive -> submit -> launch -> wait -> send ]      one thread, one item at a time
//! persistent             [ receive -> submit ... take back -> send ]          one thread
//! split, stream, graph   [ receive -> submit ... take back -> send ]   [ launch, or post ahead ]
//! ```
//!
//! The packets, the ring and the streams belong to the thread that starts these threads. So they are not
//! dropped if one of the started threads panics.

use super::feeder::{Feeder, Ticks, wait_until_idle};
use super::lane::Lane;
use super::lane::Stretch;
use super::lane_report::LaneReport;
use super::launch::Launcher;
use super::watchdog::watch_until;
use crate::error::{Error, Result};
use crate::method::Method;
use crate::pipeline::circulate::{Circulation, CirculationHooks, Items};
use crate::pipeline::{AbortOnPanic, Pipeline, PipelineContext, PipelineSettings, Tally, panic_message};
use inlane_core::clock::ThreadTime;
use inlane_cuda::Stream;
use std::sync::mpsc;
use std::time::Instant;

/// Runs `pipeline` on `lane` until the pipeline ends. Then the lane's streams are idle, or the GPU was
/// abandoned. The lane keeps its streams and memory. A lane runs once.
///
/// Returns the pipeline's counts and the lane's report. Returns no report after an error, or if the GPU was
/// abandoned.
///
/// # Panics
/// If the lane was created for another pool.
pub fn run(
    pipeline: Pipeline,
    lane: &mut Lane,
    settings: &PipelineSettings,
    context: &PipelineContext<'_>,
) -> (Tally, Option<LaneReport>) {
    assert_eq!(pipeline.pool.region().address(), lane.packets, "the lane was created for another pool");
    let dispatcher = lane.dispatcher.take().expect("a lane runs once");
    let Pipeline { rx, txs, pool, .. } = pipeline;
    // Dropping the items frees their packets. Keep them until the GPU can no longer write to the packets.
    let mut items = Items::new(&pool, lane.slots(), settings.burst);
    let circulation =
        Circulation::new(rx, txs, pool, dispatcher, lane.settings.limits(settings.burst), settings);
    let mut tally = Tally::default();
    let ended = streams(lane).and_then(|(streams, tick_stream)| {
        let mut graphs = Vec::new();
        let tick = tick_stream.as_ref();
        let ended = on_streams(
            lane,
            (&streams, tick, &mut graphs),
            circulation,
            &mut items,
            &mut tally,
            settings,
            context,
        );
        // Destroying streams and graphs would wait for the kernels of other lanes.
        lane.keep(streams, tick_stream, graphs);
        ended
    });
    if let Err(error) = ended {
        // If a thread has already reported an error, drop this one, because it is usually a consequence of
        // the reported error.
        if tally.errors.is_empty() {
            tally.errors.push(error);
        }
        context.control.stop();
    }

    // Make no report after an error. Also make none if another lane has abandoned the GPU, because reading
    // the state could then block forever.
    let report = match tally.errors.is_empty() && !lane.loaded.gpu().is_abandoned() {
        true => lane
            .report(lane.closed_at().unwrap_or(0), tally.rx.packets, tally.rx.bytes)
            .map_err(|error| tally.errors.push(error))
            .ok(),
        false => None,
    };
    tally.dropped_unsent += items.packets_in_flight();
    (tally, report)
}

/// Creates the streams of a lane: those for its items, and the one for the function's `tick` if there is one.
fn streams(lane: &Lane) -> Result<(Vec<Stream>, Option<Stream>)> {
    let gpu = lane.loaded.gpu();
    let open = || if lane.settings.high_priority { gpu.high_priority_stream() } else { gpu.stream() };
    let streams =
        (0..lane.settings.streams_for()).map(|_| open()).collect::<inlane_cuda::Result<Vec<_>>>()?;
    Ok((streams, lane.loaded.info.ticks().then(open).transpose()?))
}

/// Waits at the start line, runs the pipeline's threads, and waits until the streams are idle. Adds the graphs that were
/// made to the vector.
fn on_streams(
    lane: &Lane,
    (streams, tick_stream, graphs): (&[Stream], Option<&Stream>, &mut Vec<Stretch>),
    circulation: Circulation,
    items: &mut Items,
    tally: &mut Tally,
    settings: &PipelineSettings,
    context: &PipelineContext<'_>,
) -> Result<()> {
    let ticks = tick_stream.map(|stream| Ticks::new(lane, stream));
    let mut feeder = Feeder::prepare(lane, streams, tick_stream)?;
    // All lanes of all loads have allocated their memory when this returns. No kernel that never ends runs before,
    // because allocations would wait for it.
    context.wait_for_start();
    feeder.begin()?;
    let begun = Instant::now();
    let has_feeder = lane.settings.method.has_feeder();
    // The feeder's thread calls the function's `tick`. Without a feeder, the dispatching thread calls it.
    let (dispatcher_ticks, feeder_ticks) = if has_feeder { (None, ticks) } else { (ticks, None) };
    let launcher = (lane.settings.method == Method::Single).then(|| Launcher::new(lane, streams));
    let mut hooks = GpuHooks { launcher, ticks: dispatcher_ticks };
    let moving = || circulation.run(items, &mut hooks, settings, context);
    let feeding = has_feeder.then_some(|| feeder.run(feeder_ticks, context));
    let watching = |ended: &_| watch_until(ended, lane, streams, context.control);
    *tally = on_threads(moving, feeding, watching, context);
    tally.flowed = Some((begun, Instant::now()));
    let clean = !context.control.aborting() && tally.errors.is_empty();
    let stuck = tally.errors.iter().any(|error| matches!(error, Error::Stuck { .. }));
    let ended = feeder.finish(clean, stuck).and_then(|()| match tick_stream {
        // Call `tick` a last time, because a packet function may hold back unfinished output until then.
        Some(stream) if !stuck => {
            Ticks::new(lane, stream).last()?;
            wait_until_idle(lane, std::slice::from_ref(stream))
        }
        _ => Ok(()),
    });
    if ended.is_err() || !clean {
        // This pipeline has failed or was aborted. The other pipelines must then drain and end, too.
        context.control.stop();
    }
    graphs.extend(feeder.into_graphs());
    ended
}

/// Runs three functions until all three have ended:
///
/// - `moving`, on a new thread, moves packets. It may block in a port.
/// - `feeding`, on a new thread, launches or posts kernels.
/// - `watching`, on the calling thread, is the watchdog. When `moving` ends, the channel of `watching` is
///   disconnected. `watching` must then return.
pub(super) fn on_threads(
    moving: impl FnOnce() -> Tally + Send,
    feeding: Option<impl FnOnce() -> Result<()> + Send>,
    watching: impl FnOnce(&mpsc::Receiver<()>) -> Result<()>,
    context: &PipelineContext<'_>,
) -> Tally {
    let panicked = |thread, payload: Box<dyn std::any::Any + Send>| Error::Panicked {
        pipeline: context.index,
        thread,
        message: panic_message(&*payload),
    };
    let unstarted = |source| {
        context.control.abort();
        Error::from(inlane_core::Error::Os { what: "start the threads of a pipeline".into(), source })
    };
    let (moves, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let moving = context.spawn(scope, 0, "-io", move || {
            let _moves = moves;
            // If this thread panics, the guard aborts the run, because the feeder would wait forever for
            // packets.
            let guard = AbortOnPanic(context.control);
            let tally = moving();
            std::mem::forget(guard);
            tally
        });
        let moving = moving.map_err(unstarted);
        let feeding = feeding.filter(|_| moving.is_ok()).map(|feeding| {
            let feeding = context.spawn(scope, 1, "-feed", move || {
                let guard = AbortOnPanic(context.control);
                let outcome = feeding();
                std::mem::forget(guard);
                (outcome.inspect_err(|_| context.control.abort()), ThreadTime::of_this_thread())
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

/// The work of the dispatching thread for a GPU. For method `single`, the thread launches the kernels. If the
/// method has no feeder, the thread also calls the packet function's `tick`.
struct GpuHooks<'a> {
    /// Launches a kernel for each submitted item. `None` unless the method is `single`.
    launcher: Option<Launcher<'a>>,
    /// Calls the function's `tick`. `None` if the method has a feeder, or the function has no `tick`.
    ticks: Option<Ticks<'a>>,
}

impl CirculationHooks for GpuHooks<'_> {
    const ON_DEVICE: bool = true;

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
