//! Measuring a route: one-way latency, streaming bandwidth, both directions at once; every byte verified.
//!
//! A run fills its sources with a pattern, poisons its destinations, transfers, and then compares every byte that a
//! transfer wrote. Buffers rotate, so that no run measures a cache unless it is told to use one buffer.

mod barrier;

use crate::device::Device;
use crate::stop::{PIECE, check_stop};
use barrier::{Barrier, Member};
use inlane_core::clock::{Clock, thread_cpu_ns};
use inlane_core::mover::{Mover, Ticket};
use inlane_core::stats::Summary;
use inlane_core::{CompletionMode, Error, Region, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How a run is made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Repeats of each measurement.
    pub repeats: usize,
    /// How long a repeat streams at least.
    pub time: Duration,
    /// Streams this long beforehand, unmeasured.
    pub warm_up: Duration,
    /// Transfers in flight when streaming; by size when `None`.
    pub window: Option<usize>,
    /// How ends are learnt.
    pub completion: CompletionMode,
    /// Set from outside, it ends the run with an error at the next transfer.
    pub stop: Arc<AtomicBool>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            repeats: 5,
            time: Duration::from_millis(100),
            warm_up: Duration::from_millis(20),
            window: None,
            completion: CompletionMode::Poll,
            stop: Arc::default(),
        }
    }
}

impl Plan {
    /// Transfers in flight for a size: 64 MiB of them, at least 2 and at most 32.
    pub fn window_for(&self, size: usize) -> usize {
        self.window.unwrap_or_else(|| ((64 << 20) / size.max(1)).clamp(2, 32))
    }
}

/// Memory at both ends, cut into slots that transfers rotate over.
pub struct Buffers {
    from: Arc<Device>,
    to: Arc<Device>,
    source: Region,
    destination: Region,
    seed: u64,
}

impl Buffers {
    /// Memory for transfers of up to `largest` bytes: two slots of that size, or `rotate` bytes if that is more, as far as
    /// the devices have it; one slot at least.
    ///
    /// # Errors
    /// When a device has not even that.
    pub fn new(from: &Arc<Device>, to: &Arc<Device>, largest: usize, rotate: usize) -> Result<Self> {
        let wanted = (2 * stride(largest)).max(rotate);
        // Both directions, and calibration, need room beside this.
        let spare = from.capacity().min(to.capacity()) / 3;
        let bytes = wanted.min(spare).max(largest);
        Ok(Self {
            source: from.allocate(bytes)?,
            destination: to.allocate(bytes)?,
            from: from.clone(),
            to: to.clone(),
            seed: 1,
        })
    }

    /// A source and a destination that are there, of the same length.
    pub(crate) fn over(from: &Arc<Device>, to: &Arc<Device>, regions: &[Region; 2]) -> Self {
        let [source, destination] = regions.clone();
        Self { source, destination, from: from.clone(), to: to.clone(), seed: 1 }
    }

    /// Slots of `size` bytes, at most 64.
    fn slots(&self, size: usize) -> usize {
        let fit = if size == self.source.len() { 1 } else { self.source.len() / stride(size) };
        fit.clamp(1, 64)
    }

    fn slot(&self, index: usize, size: usize) -> Result<(Region, Region)> {
        let offset = index % self.slots(size) * stride(size);
        Ok((self.source.slice(offset, size)?, self.destination.slice(offset, size)?))
    }

    /// Fills sources and poisons destinations.
    fn prepare(&mut self, size: usize, slots: usize, stop: &AtomicBool) -> Result<()> {
        self.seed += 1;
        for index in 0..slots {
            let (source, destination) = self.slot(index, size)?;
            let seed = self.seed_of(index);
            in_pieces(&self.from, &source, stop, |piece, word| self.from.fill(piece, seed + word))?;
            in_pieces(&self.to, &destination, stop, |piece, _| self.to.poison(piece))?;
        }
        Ok(())
    }

    fn seed_of(&self, index: usize) -> u64 {
        self.seed << 40 | (index as u64) << 32
    }

    /// Compares what `used` slots hold now; gives bytes compared.
    fn verify(&self, size: usize, used: usize, stop: &AtomicBool) -> Result<u64> {
        if !self.to.is_verifiable() {
            return Ok(0);
        }
        let mut compared = 0;
        for index in 0..used.min(self.slots(size)) {
            let (_, destination) = self.slot(index, size)?;
            let (seed, mut wrong) = (self.seed_of(index), 0);
            in_pieces(&self.to, &destination, stop, |piece, word| {
                wrong += self.to.count_wrong(piece, seed + word)?;
                Ok(())
            })?;
            if wrong > 0 {
                return Err(Error::Altered {
                    what: format!("{} to {}, transfer {index}", self.from.endpoint(), self.to.endpoint()),
                    wrong,
                    bytes: size as u64,
                });
            }
            compared += size as u64;
        }
        Ok(compared)
    }
}

/// Does something to a region and has the run end between two pieces of it: with each piece, and its first word's number in the
/// pattern, which goes on from piece to piece. A GPU's kernels take all of it at once.
fn in_pieces(
    device: &Device,
    region: &Region,
    stop: &AtomicBool,
    mut act: impl FnMut(&Region, u64) -> Result<()>,
) -> Result<()> {
    let most = if device.is_gpu() { region.len() } else { PIECE };
    for offset in (0..region.len()).step_by(most) {
        check_stop(stop)?;
        act(&region.slice(offset, most.min(region.len() - offset))?, offset as u64 / 8)?;
    }
    Ok(())
}

/// Where slots begin: multiples of 4 KiB, for DMA engines like whole pages.
fn stride(size: usize) -> usize {
    size.next_multiple_of(4096)
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Nanoseconds of each transfer, where they went one at a time.
    pub latency_ns: Option<Summary>,
    /// Bytes a second.
    pub bytes_per_second: Summary,
    /// Processor seconds of the submitting and waiting thread for each 10^9 bytes.
    pub cpu_seconds_per_gigabyte: f64,
    /// The same as a share of the time it took.
    pub cpu_share: f64,
    /// Transfers in flight: one by movers that are done when they were called.
    pub window: usize,
    /// Bytes compared.
    pub verified_bytes: u64,
}

#[derive(Default)]
struct Totals {
    rates: Vec<f64>,
    bytes: f64,
    wall_ns: f64,
    cpu_ns: f64,
}

impl Totals {
    fn add(&mut self, bytes: f64, wall_ns: f64, cpu_ns: f64) {
        self.rates.push(bytes / wall_ns * 1e9);
        self.bytes += bytes;
        self.wall_ns += wall_ns;
        self.cpu_ns += cpu_ns;
    }

    fn measured(
        &self,
        latency_ns: Option<Summary>,
        window: usize,
        verified_bytes: u64,
    ) -> Result<Measurement> {
        Ok(Measurement {
            latency_ns,
            bytes_per_second: Summary::of(&self.rates)
                .ok_or_else(|| Error::invalid("a measurement of no repeats", "ask for one at least"))?,
            cpu_seconds_per_gigabyte: self.cpu_ns / self.bytes,
            cpu_share: self.cpu_ns / self.wall_ns,
            window,
            verified_bytes,
        })
    }
}

/// One transfer at a time: from the call to the known end.
///
/// # Errors
/// What the route says; [`Error::Device`] when bytes arrive wrong.
pub fn latency(
    route: &mut dyn Mover,
    buffers: &mut Buffers,
    size: usize,
    plan: &Plan,
) -> Result<Measurement> {
    let slots = buffers.slots(size);
    let clock = Clock::new();
    let mut totals = Totals::default();
    let mut times = Vec::new();
    let mut verified = 0;
    for repeat in 0..plan.repeats + 1 {
        buffers.prepare(size, slots, &plan.stop)?;
        // The first repeat warms up: caches, and what adaptive waiting learns.
        let budget = if repeat == 0 { plan.warm_up } else { plan.time }.as_nanos() as u64;
        let (began, cpu) = (clock.now_ns(), thread_cpu_ns());
        let mut count = 0;
        while count == 0 || (clock.now_ns() - began < budget && count < 100_000) {
            check_stop(&plan.stop)?;
            let (source, destination) = buffers.slot(count, size)?;
            let start = clock.raw();
            let ticket = route.submit(&source, &destination)?;
            route.wait(ticket, plan.completion)?;
            if repeat > 0 {
                times.push(clock.between_ns(start, clock.raw()) as f64);
            }
            count += 1;
        }
        let (wall, cpu) = (clock.now_ns() - began, thread_cpu_ns() - cpu);
        if repeat > 0 {
            totals.add((count * size) as f64, wall as f64, cpu as f64);
        }
        // Filling and checking are work of the devices too, and must not wait for kernels that stay.
        route.quiesce()?;
        verified += buffers.verify(size, count, &plan.stop)?;
    }
    totals.measured(Summary::of(&times), 1, verified)
}

/// Streams for a time; the bytes moved, the nanoseconds taken, and how many transfers.
fn stream_once(
    route: &mut dyn Mover,
    buffers: &Buffers,
    size: usize,
    budget: Duration,
    plan: &Plan,
) -> Result<(f64, f64, usize)> {
    let (window, completion) = (plan.window_for(size), plan.completion);
    let clock = Clock::new();
    let budget = budget.as_nanos() as u64;
    let mut tickets: std::collections::VecDeque<Ticket> = std::collections::VecDeque::with_capacity(window);
    let mut count = 0;
    while count < 2 * window || clock.now_ns() < budget {
        if tickets.len() == window
            && let Some(oldest) = tickets.pop_front()
        {
            route.wait(oldest, completion)?;
            if count >= window && clock.now_ns() > 20 * budget {
                // So slow that twice the window would take for ever: what is in flight is enough.
                break;
            }
        }
        check_stop(&plan.stop)?;
        let (source, destination) = buffers.slot(count, size)?;
        tickets.push_back(route.submit(&source, &destination)?);
        count += 1;
    }
    if let Some(last) = tickets.back() {
        route.wait(*last, completion)?;
    }
    Ok(((count * size) as f64, clock.now_ns() as f64, count))
}

/// Transfers one behind the other.
///
/// # Errors
/// As [`latency`].
pub fn stream(route: &mut dyn Mover, buffers: &mut Buffers, size: usize, plan: &Plan) -> Result<Measurement> {
    stream_with(route, buffers, size, plan, &Barrier::new(1))
}

fn stream_with(
    route: &mut dyn Mover,
    buffers: &mut Buffers,
    size: usize,
    plan: &Plan,
    barrier: &Barrier,
) -> Result<Measurement> {
    let _part = Member(barrier);
    let window = plan.window_for(size);
    let slots = buffers.slots(size);
    let mut totals = Totals::default();
    let mut verified = 0;
    let mut failed = None;
    for repeat in 0..plan.repeats + 1 {
        // A side that failed keeps coming to the gates, or the others would wait there for ever.
        if failed.is_none() {
            failed = buffers.prepare(size, slots, &plan.stop).err();
        }
        barrier.wait();
        let streamed = match failed {
            Some(_) => None,
            None => {
                let budget = if repeat == 0 { plan.warm_up } else { plan.time };
                let cpu = thread_cpu_ns();
                let streamed = stream_once(route, buffers, size, budget, plan);
                let cpu = thread_cpu_ns() - cpu;
                // As in `latency`; also when it failed, for the other side goes on to fill and check.
                let rested = route.quiesce();
                Some((streamed.and_then(|moved| rested.map(|()| moved)), cpu))
            }
        };
        barrier.wait();
        match streamed {
            None => {}
            Some((Err(error), _)) => failed = Some(error),
            Some((Ok((bytes, wall, count)), cpu)) => {
                if repeat > 0 {
                    totals.add(bytes, wall, cpu as f64);
                }
                match buffers.verify(size, count, &plan.stop) {
                    Ok(bytes) => verified += bytes,
                    Err(error) => failed = Some(error),
                }
            }
        }
    }
    // Known of a route once it has taken its path.
    let window = if route.is_synchronous() { 1 } else { window };
    match failed {
        Some(error) => Err(error),
        None => totals.measured(None, window, verified),
    }
}

/// Several streams at once, each by a thread of its own, over the same time: both directions, or all links of a path.
///
/// # Errors
/// As [`latency`], of the first that failed in the order given.
pub fn together(
    runs: Vec<(&mut dyn Mover, &mut Buffers)>,
    size: usize,
    plan: &Plan,
) -> Result<Vec<Measurement>> {
    let barrier = Barrier::new(runs.len());
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let threads: Vec<_> = runs
            .into_iter()
            .map(|(mover, buffers)| scope.spawn(move || stream_with(mover, buffers, size, plan, barrier)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Measurement>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    outcomes.into_iter().collect()
}

#[cfg(test)]
mod tests;
