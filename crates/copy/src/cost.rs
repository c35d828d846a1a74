//! What paths cost: times of single transfers by size, measured once a machine and kept ([`Cache`]).
//!
//! A path's curve is measured end to end. Beside it the legs are measured alone, and say what a path that is made of them
//! should take: `hybrid` the sum, `staged` the slower leg and the first chunk of the other.

mod cache;

pub use cache::Cache;

use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::measure::{Buffers, Plan, together};
use crate::open_path::{host_buffer, no_path_error, open_path, stage};
use crate::path::Path;
use crate::path_options::PathOptions;
use crate::stop::check_stop;
use inlane_core::mover::{CpuMover, Mover};
use inlane_core::stats::Summary;
use inlane_core::{CompletionMode, Error, Region, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Sizes that are measured; between them time is taken to be linear in bytes.
const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
const LARGEST: usize = SIZES[SIZES.len() - 1];
/// The largest that is measured both ways.
const LARGEST_BOTH_WAYS: usize = 16 << 20;
/// A size that takes longer is the last that is measured of its path.
const LONG: Duration = Duration::from_millis(60);
/// A size expected to take longer is not measured both ways, where many are in flight.
const SLOW: Duration = Duration::from_millis(5);
/// What a chunk of the generic staging path holds.
const CHUNK: u64 = 1 << 20;

/// Times of single transfers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Bytes and nanoseconds, ascending.
    pub points: Vec<(u64, f64)>,
}

impl Curve {
    /// Nanoseconds for `bytes`: between two points by line, beyond the last at the last rate, below the first the
    /// first's.
    pub fn time(&self, bytes: u64) -> Option<f64> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        if bytes <= first.0 {
            return Some(first.1);
        }
        let line =
            |a: &(u64, f64), b: &(u64, f64)| a.1 + (b.1 - a.1) * (bytes - a.0) as f64 / (b.0 - a.0) as f64;
        for pair in self.points.windows(2) {
            if bytes <= pair[1].0 {
                return Some(line(&pair[0], &pair[1]));
            }
        }
        match self.points.len() {
            1 => Some(last.1 * bytes as f64 / last.0 as f64),
            // At least the mean rate so far: noise between the last two points must not make large transfers free.
            count => {
                let slope = line(&self.points[count - 2], last);
                Some(slope.max(last.1 * 0.5 * bytes as f64 / last.0 as f64))
            }
        }
    }

    /// Measures single transfers by `mover`, from the start of one region to that of the other, until `stop` is set.
    ///
    /// # Errors
    /// What the mover says, or that it was stopped.
    pub fn measure(
        mover: &mut dyn Mover,
        source: &Region,
        destination: &Region,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let mut curve = Self::default();
        for size in sizes_within(source.len().min(destination.len())) {
            let (source, destination) = (source.slice(0, size)?, destination.slice(0, size)?);
            let mut times = Vec::new();
            for round in 0..10 {
                check_stop(stop)?;
                let began = Instant::now();
                let ticket = mover.submit(&source, &destination)?;
                mover.wait(ticket, CompletionMode::Poll)?;
                let took = began.elapsed();
                // The first two warm up, unless one alone is long.
                if round >= 2 || took > LONG {
                    times.push(took.as_nanos() as f64);
                }
                if took > LONG {
                    break;
                }
            }
            let median = Summary::of(&times).map_or(0.0, |summary| summary.median);
            curve.points.push((size as u64, median));
            if median > LONG.as_nanos() as f64 {
                break;
            }
        }
        Ok(curve)
    }

    /// Measures transfers by a path while as many go the other way, between `forth` and between `back`: the time that each takes
    /// of the slower direction's.
    fn measure_both_ways(
        path: Path,
        devices: [&Arc<Device>; 2],
        options: &PathOptions,
        [forth, back]: [&[Region; 2]; 2],
    ) -> Result<Self> {
        let [from, to] = devices;
        let mut buffers = [Buffers::over(from, to, forth), Buffers::over(to, from, back)];
        let mut ways = [open_path(path, from, to, options)?, open_path(path, to, from, options)?];
        let plan = Plan {
            repeats: 2,
            time: Duration::from_millis(5),
            warm_up: Duration::from_millis(2),
            stop: options.stop.clone(),
            ..Plan::default()
        };
        let mut curve = Self::default();
        for size in sizes_within(forth[0].len()) {
            let known = curve.points.last();
            if known
                .is_some_and(|(bytes, took)| took * (size as f64 / *bytes as f64) > SLOW.as_nanos() as f64)
            {
                break;
            }
            let runs: Vec<(&mut dyn Mover, &mut Buffers)> =
                ways.iter_mut().map(|way| &mut **way as &mut dyn Mover).zip(&mut buffers).collect();
            let rates = together(runs, size, &plan)?.into_iter().map(|way| way.bytes_per_second.median);
            curve.points.push((size as u64, size as f64 / rates.fold(f64::INFINITY, f64::min) * 1e9));
        }
        Ok(curve)
    }
}

/// The sizes of which there is memory; all the memory where it is less than the least of them.
fn sizes_within(bytes: usize) -> Vec<usize> {
    let fit: Vec<usize> = SIZES.into_iter().filter(|size| *size <= bytes).collect();
    if fit.is_empty() { vec![bytes] } else { fit }
}

/// Memory to calibrate with: a source and a destination for each way, of the same length.
fn memory(from: &Arc<Device>, to: &Arc<Device>, both_ways: bool) -> Result<Vec<[Region; 2]>> {
    let ways = if both_ways { vec![[from, to], [to, from]] } else { vec![[from, to]] };
    // Two ways, and two ends in one device, share its memory.
    let shares = ways.len() * if Arc::ptr_eq(from, to) { 2 } else { 1 };
    let room = from.capacity().min(to.capacity()) / shares;
    let whole = [4096, 64, 1].into_iter().find(|whole| room >= *whole).unwrap_or(1);
    let mut bytes = (room / whole * whole).clamp(1, if both_ways { LARGEST_BOTH_WAYS } else { LARGEST });
    loop {
        let allocated: Result<Vec<_>> =
            ways.iter().map(|[a, b]| Ok([a.allocate(bytes)?, b.allocate(bytes)?])).collect();
        match allocated {
            // Of what there is, some is in use.
            Err(Error::Memory { .. }) if bytes > SIZES[0] => bytes = (bytes / 4).max(SIZES[0]),
            outcome => return outcome,
        }
    }
}

/// What the paths between two devices cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Paths that can be had.
    pub paths: BTreeMap<Path, Curve>,
    /// Legs alone: `out` of the source to the host, host to host by the `cpu`, `in`to the destination.
    pub legs: BTreeMap<String, Curve>,
    /// Paths that cannot, and why.
    pub refused: BTreeMap<Path, String>,
}

impl Costs {
    /// Measures all paths between two devices, but for those that are there only to compare with: CUDA's own copy, and from
    /// host to host DPDK's software DMA device. The sizes are the same whatever `options.largest` is, as far as there is memory:
    /// what is measured holds for every later question.
    ///
    /// # Errors
    /// When there is no memory to measure with, a device may not be written, bytes arrive wrong, no path is left, or
    /// `options.stop` was set.
    pub fn calibrate(from: &Arc<Device>, to: &Arc<Device>, options: &PathOptions) -> Result<Self> {
        to.require_writable()?;
        if options.both_ways {
            from.require_writable()?;
        }
        let options = &PathOptions { largest: LARGEST, ..options.clone() };
        let ways = memory(from, to, options.both_ways)?;
        let [source, destination] = &ways[0];
        let mut costs = Self::default();
        let mut errors = Vec::new();
        for path in Path::candidates(from.endpoint(), to.endpoint()) {
            let software =
                path == Path::Dma && *from.endpoint() == Endpoint::Host && *to.endpoint() == Endpoint::Host;
            if path == Path::Cuda || software {
                continue;
            }
            if options.without.contains(&path) {
                costs.refused.insert(path, "excluded by --without".into());
                continue;
            }
            let measured = match &ways[..] {
                [forth, back] => Curve::measure_both_ways(path, [from, to], options, [forth, back]),
                _ => open_path(path, from, to, options)
                    .and_then(|mut mover| Curve::measure(&mut *mover, source, destination, &options.stop)),
            };
            // A path is not refused because the run ends.
            check_stop(&options.stop)?;
            match measured {
                Ok(curve) => drop(costs.paths.insert(path, curve)),
                // Another path may be right, and this one's user would never know.
                Err(Error::Altered { what, wrong, bytes }) => {
                    let what = format!("calibration of {path}, {what}");
                    return Err(Error::Altered { what, wrong, bytes });
                }
                // Nor can any other be tried.
                Err(error) if crate::gpu::any_abandoned() => return Err(error),
                Err(error) => {
                    costs.refused.insert(path, error.to_string());
                    errors.push(error);
                }
            }
        }
        if costs.paths.is_empty() {
            return Err(no_path_error([from, to], &costs.refused, errors));
        }
        let staged = costs.paths.contains_key(&Path::Staged) || costs.paths.contains_key(&Path::Hybrid);
        if staged {
            let bytes = source.len();
            let host = [host_buffer(from, to, bytes)?, host_buffer(from, to, bytes)?];
            let measure = |mover: &mut dyn Mover, source: &Region, destination: &Region| {
                Curve::measure(mover, source, destination, &options.stop)
            };
            let out = measure(&mut *stage(from, true, options)?, source, &host[0])?;
            let cpu = measure(&mut CpuMover::widest(), &host[0], &host[1])?;
            let into = measure(&mut *stage(to, false, options)?, &host[1], destination)?;
            costs.legs =
                [("out", out), ("cpu", cpu), ("in", into)].map(|(name, curve)| (name.into(), curve)).into();
        }
        Ok(costs)
    }

    /// What a path takes for `bytes`, in nanoseconds, as measured end to end.
    pub fn time(&self, path: Path, bytes: u64) -> Option<f64> {
        self.paths.get(&path)?.time(bytes)
    }

    /// What the legs say a path should take for `bytes`; for a path of one leg, what was measured.
    pub fn predict(&self, path: Path, bytes: u64) -> Option<f64> {
        let leg = |name: &str, bytes: u64| self.legs.get(name)?.time(bytes);
        match path {
            Path::Hybrid => Some(leg("out", bytes)? + leg("cpu", bytes)? + leg("in", bytes)?),
            Path::Staged | Path::StagedSm => {
                let (out, into) = (leg("out", bytes)?, leg("in", bytes)?);
                let chunk = CHUNK.min(bytes.div_ceil(4)).max(1);
                let first = if out < into { leg("out", chunk)? } else { leg("in", chunk)? };
                Some(out.max(into) + first)
            }
            path => self.time(path, bytes),
        }
    }

    /// The paths that cost least for some size from 1 byte to 1 GiB.
    pub fn winners(&self) -> Vec<Path> {
        let mut winners: Vec<Path> = Vec::new();
        for power in 0..=30 {
            let best = self.paths.keys().copied().min_by(|a, b| {
                let time = |path: &Path| self.time(*path, 1 << power).unwrap_or(f64::INFINITY);
                time(a).total_cmp(&time(b))
            });
            winners.extend(best.filter(|best| !winners.contains(best)));
        }
        winners
    }
}

#[cfg(test)]
mod tests;
