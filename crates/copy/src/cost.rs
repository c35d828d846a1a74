//! The cost of each path: the time of one transfer, by size. It is measured once per machine and kept in a
//! file ([`Cache`]).
//!
//! Each path is measured from end to end. The stages of `staged` and `hybrid` are also measured alone, to
//! predict the path's time:
//!
//! | path | predicted time |
//! | --- | --- |
//! | `hybrid` | the sum of its stages' times |
//! | `staged` | the time of the slower stage, plus the time of one chunk in the faster stage |

mod cache;
mod samples;

pub use cache::Cache;

use crate::device::Device;
use crate::explanation::not_considered;
use crate::open_path::{host_buffer, no_path_error, open_path, stage};
use crate::path::Path;
use crate::path_options::PathOptions;
use crate::stop::check_stop;
use crate::timing::{Buffers, MOST_SLOTS, Plan, together};
use inlane_core::mover::{CpuMover, Mover};
use inlane_core::{CompletionMode, Error, Region, Result};
use inlane_process::interference::Interference;
use inlane_process::thread_time;
use inlane_result::Reason;
use samples::Samples;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The transfer sizes that are measured, in bytes. For a size between two of them, the time is interpolated
/// linearly.
const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
const LARGEST: usize = SIZES[SIZES.len() - 1];
/// The largest transfer that is measured in both directions at once, in bytes.
const LARGEST_BOTH_WAYS: usize = 16 << 20;
/// Once a transfer takes longer than this, no larger size of the path is measured.
const LONG: Duration = Duration::from_millis(60);
/// If a transfer is expected to take longer than this, its size is not measured in both directions at once.
/// Such a measurement would have many transfers in flight. Its times are extrapolated instead.
const SLOW: Duration = Duration::from_millis(5);
/// The largest chunk, in bytes, that the prediction of a staged path assumes.
const CHUNK: u64 = 1 << 20;

/// The measured times of one path's single transfers, by size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// The size in bytes and the time in nanoseconds of each measured transfer, smallest size first.
    pub points: Vec<(u64, f64)>,
}

impl Curve {
    /// Returns the nanoseconds for `bytes`. Interpolates between two points, and extrapolates beyond the last
    /// point. Below the first point, returns the first point's time. `None` without points.
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
            // Beyond the last point, assume at least half of the last point's time per byte. Otherwise noise
            // in the last two points could predict a time of zero.
            count => {
                let extrapolated = line(&self.points[count - 2], last);
                Some(extrapolated.max(last.1 * 0.5 * bytes as f64 / last.0 as f64))
            }
        }
    }

    /// Measures single transfers by `mover` from `source` to `destination`. They rotate over both regions, as
    /// measured transfers do.
    ///
    /// # Errors
    /// Errors of the mover; [`Error::Interrupted`](crate::Error::Interrupted) if `load.stop` was set.
    fn measure(
        mover: &mut dyn Mover,
        source: &Region,
        destination: &Region,
        load: &mut Load,
    ) -> Result<Self> {
        let mut curve = Self::default();
        let room = source.len().min(destination.len());
        for size in sizes_within(room) {
            let stride = size.next_multiple_of(4096);
            let slots = (room / stride).clamp(1, MOST_SLOTS);
            let mut samples = Samples::default();
            for round in 0.. {
                check_stop(&load.stop)?;
                let (at, waited) = (round % slots * stride, thread_time::queued_so_far());
                let (source, destination) = (source.slice(at, size)?, destination.slice(at, size)?);
                let began = Instant::now();
                let ticket = mover.submit(&source, &destination)?;
                mover.wait(ticket, CompletionMode::Poll)?;
                let took = began.elapsed();
                // The first two rounds warm up and are not recorded. A transfer longer than `LONG` is
                // recorded in any round and ends the rounds.
                if round >= 2 || took > LONG {
                    samples.push(took, thread_time::queued_so_far().saturating_sub(waited));
                }
                if took > LONG || samples.are_enough() {
                    break;
                }
            }
            load.waited |= samples.waited();
            curve.points.push((size as u64, samples.time()));
            if samples.time() > LONG.as_nanos() as f64 {
                break;
            }
        }
        Ok(curve)
    }

    /// Measures a path while transfers run in both directions at once. Returns the slower direction's time
    /// per transfer. `forward` and `backward` each hold the source and the destination of one direction.
    fn measure_both_ways(
        path: Path,
        devices: [&Arc<Device>; 2],
        options: &PathOptions,
        [forward, backward]: [&[Region; 2]; 2],
        load: &mut Load,
    ) -> Result<Self> {
        let [from, to] = devices;
        let mut buffers = [Buffers::over(from, to, forward), Buffers::over(to, from, backward)];
        let mut ways = [open_path(path, from, to, options)?, open_path(path, to, from, options)?];
        let plan = Plan {
            repeats: 2,
            time: Duration::from_millis(5),
            warm_up: Duration::from_millis(2),
            stop: options.stop.clone(),
            ..Plan::default()
        };
        let mut curve = Self::default();
        for size in sizes_within(forward[0].len()) {
            let known = curve.points.last();
            if known
                .is_some_and(|(bytes, took)| took * (size as f64 / *bytes as f64) > SLOW.as_nanos() as f64)
            {
                break;
            }
            let runs: Vec<(&mut dyn Mover, &mut Buffers)> =
                ways.iter_mut().map(|way| &mut **way as &mut dyn Mover).zip(&mut buffers).collect();
            let (began, waited) = (Instant::now(), thread_time::queued_so_far());
            // Take the best repeat, because other load on this machine can only make a repeat slower.
            let rates = together(runs, size, &plan)?.into_iter().map(|way| way.bytes_per_second.max);
            let waited = thread_time::queued_so_far().saturating_sub(waited);
            load.waited |= waited > began.elapsed() / 10;
            curve.points.push((size as u64, size as f64 / rates.fold(f64::INFINITY, f64::min) * 1e9));
        }
        Ok(curve)
    }
}

/// The state of a calibration besides its times.
struct Load {
    stop: Arc<AtomicBool>,
    /// True if threads of this process waited for processors, so that a time may be too long.
    waited: bool,
}

/// Returns the measured sizes that fit into `bytes`, or `bytes` itself if none fits.
fn sizes_within(bytes: usize) -> Vec<usize> {
    let fit: Vec<usize> = SIZES.into_iter().filter(|size| *size <= bytes).collect();
    if fit.is_empty() { vec![bytes] } else { fit }
}

/// Allocates a source and a destination of the same length for transfers from `from` to `to`. If `both_ways`
/// is true, allocates another pair for the opposite direction.
fn memory(from: &Arc<Device>, to: &Arc<Device>, both_ways: bool) -> Result<Vec<[Region; 2]>> {
    let ways = if both_ways { vec![[from, to], [to, from]] } else { vec![[from, to]] };
    // Divide the device's memory between the two directions. If source and destination are the same device,
    // divide it between them, too. All of these allocate from the same memory.
    let shares = ways.len() * if Arc::ptr_eq(from, to) { 2 } else { 1 };
    let room = from.capacity().min(to.capacity()) / shares;
    let whole = [4096, 64, 1].into_iter().find(|whole| room >= *whole).unwrap_or(1);
    let mut bytes = (room / whole * whole).clamp(1, if both_ways { LARGEST_BOTH_WAYS } else { LARGEST });
    loop {
        let allocated: Result<Vec<_>> =
            ways.iter().map(|[a, b]| Ok([a.allocate(bytes)?, b.allocate(bytes)?])).collect();
        match allocated {
            // Try a quarter of the size next, because a device may have less free memory than its capacity.
            Err(Error::Memory { .. }) if bytes > SIZES[0] => bytes = (bytes / 4).max(SIZES[0]),
            outcome => return outcome,
        }
    }
}

/// The costs of all paths between two devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathCosts {
    /// The paths that work, with their times.
    pub paths: BTreeMap<Path, Curve>,
    /// The times of single stages: `out` from the source to the host, `cpu` from host to host by the CPU, and
    /// `in` from the host to the destination.
    pub stages: BTreeMap<String, Curve>,
    /// The paths that do not work, with the error.
    pub refused: BTreeMap<Path, String>,
    /// True if other processes used the processors during the calibration, so that times may be too long.
    #[serde(default)]
    pub disturbed: bool,
}

impl PathCosts {
    /// Measures all paths between two devices, except those that exist for comparison only: CUDA's own copy,
    /// and DPDK's software DMA device.
    ///
    /// # Errors
    /// [`Error::Memory`]; [`Error::Device`] if a device must not be written, no path is available, or
    /// `options.stop` was set; [`Error::Altered`] if bytes arrived wrong.
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
        let interference = Interference::start();
        let mut load = Load { stop: options.stop.clone(), waited: false };
        let not_considered = not_considered(from.endpoint(), to.endpoint(), options);
        for path in Path::candidates(from.endpoint(), to.endpoint()) {
            if path == Path::Cuda || not_considered.contains_key(&path) {
                continue;
            }
            let measured = match &ways[..] {
                [forward, backward] => {
                    Curve::measure_both_ways(path, [from, to], options, [forward, backward], &mut load)
                }
                _ => open_path(path, from, to, options)
                    .and_then(|mut mover| Curve::measure(&mut *mover, source, destination, &mut load)),
            };
            // End here if the user interrupted the run. An interrupted path must not be recorded as refused.
            check_stop(&options.stop)?;
            match measured {
                Ok(curve) => drop(costs.paths.insert(path, curve)),
                // If a path copies wrong bytes, end the calibration, even if other paths work. The user must
                // know that this path alters data.
                Err(Error::Altered { what, wrong, bytes }) => {
                    let what = format!("calibration of {path}, {what}");
                    return Err(Error::Altered { what, wrong, bytes });
                }
                // End the calibration if a GPU was given up, because further CUDA calls may block.
                Err(error) if crate::gpu::any_abandoned() => return Err(error),
                Err(error) => {
                    costs.refused.insert(path, error.to_string());
                    errors.push(error);
                }
            }
        }
        if costs.paths.is_empty() {
            return Err(no_path_error([from, to], &costs.reasons(not_considered), errors));
        }
        let staged = costs.paths.contains_key(&Path::Staged) || costs.paths.contains_key(&Path::Hybrid);
        if staged {
            let bytes = source.len();
            let host = [host_buffer(from, to, bytes)?, host_buffer(from, to, bytes)?];
            let mut measure = |mover: &mut dyn Mover, source: &Region, destination: &Region| {
                Curve::measure(mover, source, destination, &mut load)
            };
            let out = measure(&mut *stage(from, true, options)?, source, &host[0])?;
            let cpu = measure(&mut CpuMover::widest(), &host[0], &host[1])?;
            let into = measure(&mut *stage(to, false, options)?, &host[1], destination)?;
            costs.stages =
                [("out", out), ("cpu", cpu), ("in", into)].map(|(name, curve)| (name.into(), curve)).into();
        }
        costs.disturbed = load.waited && interference.others_are_busy();
        Ok(costs)
    }

    /// Merges two disturbed calibrations: takes the shorter time of each transfer, because a disturbance only makes
    /// times longer. Returns these costs unchanged unless both calibrations were disturbed.
    pub fn improved_by(mut self, other: &Self) -> Self {
        if !(self.disturbed && other.disturbed) {
            return self;
        }
        let curves = self.paths.iter_mut().filter_map(|(path, curve)| Some((curve, other.paths.get(path)?)));
        let stages =
            self.stages.iter_mut().filter_map(|(name, curve)| Some((curve, other.stages.get(name)?)));
        for (curve, other) in curves.chain(stages) {
            for (bytes, time) in &mut curve.points {
                let same_size = other.points.iter().filter(|(other_bytes, _)| other_bytes == bytes);
                *time = same_size.fold(*time, |least, (_, other_time)| least.min(*other_time));
            }
        }
        self
    }

    /// Returns the reasons against paths: those in `others`, and the errors of paths that do not work.
    pub(crate) fn reasons(&self, mut others: BTreeMap<Path, Reason>) -> BTreeMap<Path, Reason> {
        others.extend(self.refused.iter().map(|(path, error)| (*path, Reason::unavailable(error))));
        others
    }

    /// Returns the nanoseconds that a transfer of `bytes` bytes over this path takes, measured from end to
    /// end. Returns `None` if the path was not measured.
    pub fn time(&self, path: Path, bytes: u64) -> Option<f64> {
        self.paths.get(&path)?.time(bytes)
    }

    /// Predicts the time of a path for `bytes` bytes, in nanoseconds. Computes it from the times of the
    /// path's stages. If the path has no stages, returns the measured time.
    pub fn predict(&self, path: Path, bytes: u64) -> Option<f64> {
        let stage = |name: &str, bytes: u64| self.stages.get(name)?.time(bytes);
        match path {
            Path::Hybrid => Some(stage("out", bytes)? + stage("cpu", bytes)? + stage("in", bytes)?),
            Path::Staged | Path::StagedSm => {
                let (out, into) = (stage("out", bytes)?, stage("in", bytes)?);
                let chunk = CHUNK.min(bytes.div_ceil(4)).max(1);
                let first = if out < into { stage("out", chunk)? } else { stage("in", chunk)? };
                Some(out.max(into) + first)
            }
            path => self.time(path, bytes),
        }
    }

    /// Returns the paths that are the cheapest for some size from 1 byte to 1 GiB.
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
