//! Measures a mover: one-way latency, streaming bandwidth, and both directions at once.
//!
//! Each repeat fills the sources with patterns, poisons the destinations, runs transfers for a set time, and
//! checks the bytes that arrived. The check covers all bytes of the newest transfer into each slot of the
//! destination. If the CPU reaches the destination, the check also covers a sample of the other transfers.
//!
//! Transfers rotate over buffers larger than a cache, unless the caller asks for less memory.

mod buffers;
mod transfers;

pub use buffers::Buffers;
pub(crate) use buffers::{MOST_SLOTS, Rotation};
pub(crate) use transfers::{Account, Next, Transfers};

use crate::stop::check_stop;
use inlane_core::clock::{Clock, thread_cpu_ns};
use inlane_core::load::StartLine;
use inlane_core::mover::Mover;
use inlane_core::stats::{LatencyHistogram, Percentiles, Summary};
use inlane_core::{CompletionMode, Error, Result};
use inlane_result::ByteVerification;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of repeats.
    pub repeats: usize,
    /// How long each repeat submits transfers. [`latency`] ends a repeat earlier after 100,000 transfers.
    pub time: Duration,
    /// The duration of an unmeasured run before the repeats.
    pub warm_up: Duration,
    /// The most transfers in flight while streaming. `None` selects it by the transfer's size.
    pub in_flight: Option<usize>,
    /// How the end of a transfer is detected.
    pub completion: CompletionMode,
    /// A flag that the caller sets to end the run with an error at the next transfer.
    pub stop: Arc<AtomicBool>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            repeats: 5,
            time: Duration::from_millis(100),
            warm_up: Duration::from_millis(20),
            in_flight: None,
            completion: CompletionMode::Poll,
            stop: Arc::default(),
        }
    }
}

impl Plan {
    /// Returns the number of transfers of `size` bytes to keep in flight: [`Plan::in_flight`] if set.
    /// Otherwise, as many transfers as have 64 MiB in total, but at least 2 and at most 32.
    pub fn in_flight_for(&self, size: usize) -> usize {
        self.in_flight.unwrap_or_else(|| ((64 << 20) / size.max(1)).clamp(2, 32))
    }
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Statistics of the nanoseconds of a transfer. `None` if several transfers were in flight at a time.
    pub latency_ns: Option<Summary>,
    /// Percentiles of the times in `latency_ns`.
    pub latency_percentiles: Option<Percentiles>,
    /// The median time of each repeat. `None` if several transfers were in flight at a time.
    pub repeated_latency_ns: Option<Summary>,
    /// Bytes per second of each repeat.
    pub bytes_per_second: Summary,
    /// CPU seconds of the submitting and waiting thread per 10^9 bytes.
    pub cpu_seconds_per_gigabyte: f64,
    /// The CPU time of the thread that submits and waits, divided by the elapsed time.
    pub cpu_share: f64,
    /// The most transfers that were in flight at the same time; 1 for a synchronous mover.
    pub in_flight: usize,
    /// The outcome of all checks, including those of the warm-up.
    pub verification: ByteVerification,
}

#[derive(Default)]
struct Totals {
    rates: Vec<f64>,
    bytes: f64,
    wall_ns: f64,
    cpu_ns: f64,
    verification: ByteVerification,
}

impl Totals {
    fn new(buffers: &Buffers) -> Self {
        let verification =
            ByteVerification { method: buffers.method().into(), ..ByteVerification::default() };
        Self { verification, ..Self::default() }
    }

    /// Adds a measured repeat.
    fn add(&mut self, bytes: f64, wall_ns: f64, cpu_ns: f64) {
        self.rates.push(bytes / wall_ns * 1e9);
        self.bytes += bytes;
        self.wall_ns += wall_ns;
        self.cpu_ns += cpu_ns;
    }

    fn measurement(self, in_flight: usize) -> Result<Timing> {
        Ok(Timing {
            latency_ns: None,
            latency_percentiles: None,
            repeated_latency_ns: None,
            bytes_per_second: Summary::of(&self.rates)
                .ok_or_else(|| Error::invalid("a measurement of 0 repeats", "ask for at least one"))?,
            cpu_seconds_per_gigabyte: self.cpu_ns / self.bytes,
            cpu_share: self.cpu_ns / self.wall_ns,
            in_flight,
            verification: self.verification,
        })
    }
}

/// Measures one transfer at a time: the time from `submit` until the transfer's end is detected.
///
/// # Errors
/// Errors of the mover; [`Error::Altered`] if bytes arrived wrong; [`Error::Device`] if `plan.stop` was set.
pub fn latency(mover: &mut dyn Mover, buffers: &mut Buffers, size: usize, plan: &Plan) -> Result<Timing> {
    let rotation = buffers.rotation(size, 1);
    let clock = Clock::new();
    let mut totals = Totals::new(buffers);
    let (mut times, mut medians) = (Vec::new(), Vec::new());
    // Repeat 0 is not measured. It warms up the caches and the time estimates of adaptive waiting.
    for repeat in 0..plan.repeats + 1 {
        buffers.prepare(rotation, &plan.stop)?;
        let budget = if repeat == 0 { plan.warm_up } else { plan.time }.as_nanos() as u64;
        let (began, cpu) = (clock.now_ns(), thread_cpu_ns());
        let mut count = 0;
        while count == 0 || (clock.now_ns() - began < budget && count < 100_000) {
            check_stop(&plan.stop)?;
            let (source, destination) = buffers.regions(rotation, count)?;
            let start = clock.raw();
            let ticket = mover.submit(&source, &destination)?;
            mover.wait(ticket, plan.completion)?;
            if repeat > 0 {
                times.push(clock.between_ns(start, clock.raw()) as f64);
            }
            buffers.sample(rotation, count)?;
            count += 1;
        }
        let (wall, cpu) = (clock.now_ns() - began, thread_cpu_ns() - cpu);
        if repeat > 0 {
            totals.add((count * size) as f64, wall as f64, cpu as f64);
            let own = Summary::of_operations(&times[times.len() - count..]);
            medians.extend(own.map(|own| own.median));
        }
        // End resident kernels, because filling and checking a GPU's memory would wait for them.
        mover.quiesce()?;
        totals.verification.transferred_bytes += (count * size) as u64;
        totals.verification.verified_bytes += buffers.verify(rotation, count, &plan.stop)?;
    }
    let mut histogram = LatencyHistogram::default();
    times.iter().for_each(|time| histogram.record(*time as u64, 1));
    Ok(Timing {
        latency_ns: Summary::of_operations(&times),
        latency_percentiles: histogram.percentiles(),
        repeated_latency_ns: Summary::of(&medians),
        ..totals.measurement(1)?
    })
}

/// Submits transfers until `budget` has passed, but at least twice as many transfers as may be in flight.
/// After 20 times `budget`, stops even without this minimum. Returns the number of transfers.
fn stream_once(
    mover: &mut dyn Mover,
    buffers: &Buffers,
    size: usize,
    budget: Duration,
    plan: &Plan,
) -> Result<Streamed> {
    let in_flight = plan.in_flight_for(size);
    let rotation = buffers.rotation(size, in_flight);
    let (clock, cpu) = (Clock::new(), thread_cpu_ns());
    let budget = budget.as_nanos() as u64;
    let mut transfers = 0;
    let stream =
        Transfers { mover, buffers, rotation, in_flight, completion: plan.completion, account: None };
    stream.run(&mut transfers, |submitted| {
        check_stop(&plan.stop)?;
        let goes_on = submitted < 2 * in_flight || clock.now_ns() < budget;
        // With many slow transfers, reaching the minimum would take too long.
        let is_late = submitted >= in_flight && clock.now_ns() > 20 * budget;
        Ok(if goes_on && !is_late { Next::Submit } else { Next::End })
    })?;
    Ok(Streamed { transfers, wall_ns: clock.now_ns() as f64, cpu_ns: (thread_cpu_ns() - cpu) as f64 })
}

/// The transfers of a repeat, the time until the last one ended, and the CPU time of their thread.
struct Streamed {
    transfers: usize,
    wall_ns: f64,
    cpu_ns: f64,
}

/// Measures a stream of transfers, with up to [`Plan::in_flight`] of them in flight.
///
/// # Errors
/// As for [`latency`].
pub fn stream(mover: &mut dyn Mover, buffers: &mut Buffers, size: usize, plan: &Plan) -> Result<Timing> {
    Ok(together(vec![(mover, buffers)], size, plan)?.remove(0))
}

/// Measures several streams of transfers at the same time, each on its own thread. These are both directions,
/// or all links of a path. The results are in the order of `runs`. A single stream runs on the calling thread.
///
/// # Errors
/// The same as [`latency`]. If several streams fail, the error of the first of them in the order of `runs`.
pub fn together(
    mut runs: Vec<(&mut dyn Mover, &mut Buffers)>,
    size: usize,
    plan: &Plan,
) -> Result<Vec<Timing>> {
    let in_flight = plan.in_flight_for(size);
    let mut totals: Vec<_> = runs.iter().map(|(_, buffers)| Totals::new(buffers)).collect();
    for repeat in 0..plan.repeats + 1 {
        let budget = if repeat == 0 { plan.warm_up } else { plan.time };
        on_threads(&mut runs, |_, _, buffers| {
            buffers.prepare(buffers.rotation(size, in_flight), &plan.stop)
        })?;
        let start = StartLine::new(runs.len());
        let streamed = on_threads(&mut runs, |_, mover, buffers| {
            start.member().ready();
            let streamed = stream_once(mover, buffers, size, budget, plan);
            // Quiesce even after a failure, because the other direction continues to use the same GPUs: it fills and
            // checks their memory.
            let quiesced = mover.quiesce();
            streamed.and_then(|streamed| quiesced.map(|()| streamed))
        })?;
        // All streams have quiesced now. Checking a GPU's memory would wait for resident kernels of the other direction.
        let verified = on_threads(&mut runs, |index, _, buffers| {
            buffers.verify(buffers.rotation(size, in_flight), streamed[index].transfers, &plan.stop)
        })?;
        for ((totals, streamed), verified) in totals.iter_mut().zip(streamed).zip(verified) {
            let bytes = streamed.transfers * size;
            if repeat > 0 {
                totals.add(bytes as f64, streamed.wall_ns, streamed.cpu_ns);
            }
            totals.verification.transferred_bytes += bytes as u64;
            totals.verification.verified_bytes += verified;
        }
    }
    // Ask a mover only after the transfers. If the mover is a path selector, its answer depends on the
    // path of its newest transfer.
    let of = |((mover, _), totals): (&(&mut dyn Mover, _), Totals)| {
        totals.measurement(if mover.is_synchronous() { 1 } else { in_flight })
    };
    runs.iter().zip(totals).map(of).collect()
}

/// Calls `act` for each stream with its index, each on its own thread. A single stream stays on the calling thread.
fn on_threads<T: Send>(
    runs: &mut [(&mut dyn Mover, &mut Buffers)],
    act: impl Fn(usize, &mut dyn Mover, &mut Buffers) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if let [(mover, buffers)] = runs {
        return Ok(vec![act(0, &mut **mover, buffers)?]);
    }
    let act = &act;
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = runs
            .iter_mut()
            .enumerate()
            .map(|(index, (mover, buffers))| scope.spawn(move || act(index, &mut **mover, buffers)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<T>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    outcomes.into_iter().collect()
}

#[cfg(test)]
mod tests;
