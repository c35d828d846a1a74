//! What paths cost: times of single transfers by size, measured once a machine and kept.
//!
//! A path's curve is measured end to end. Beside it the legs are measured alone, and say what a path that is made of them
//! should take: `hybrid` the sum, `staged` the slower leg and the first chunk of the other.

use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::measure::{Buffers, Plan, together};
use crate::path::Path;
use crate::route::{Options, host_buffer, leg, open_path};
use inlane_core::mover::{CpuMover, Mover};
use inlane_core::stats::Summary;
use inlane_core::{Completion, Region, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sizes that are measured; between them time is taken to be linear in bytes.
const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
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

    /// Measures single transfers by `mover`, from the start of one region to that of the other.
    ///
    /// # Errors
    /// What the mover says.
    pub fn measure(mover: &mut dyn Mover, source: &Region, destination: &Region) -> Result<Self> {
        let mut curve = Self::default();
        for size in SIZES.into_iter().filter(|size| *size <= source.len().min(destination.len())) {
            let (source, destination) = (source.slice(0, size)?, destination.slice(0, size)?);
            let mut times = Vec::new();
            for round in 0..10 {
                let began = Instant::now();
                let ticket = mover.submit(&source, &destination)?;
                mover.wait(ticket, Completion::Poll)?;
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

    /// Measures transfers by a path while as many go the other way: the time that each takes of the slower direction's.
    ///
    /// # Errors
    /// When the path cannot be had both ways, or what its movers say.
    fn measure_both_ways(
        path: Path,
        from: &Arc<Device>,
        to: &Arc<Device>,
        options: &Options,
        largest: usize,
    ) -> Result<Self> {
        let largest = largest.min(16 << 20);
        let mut buffers =
            [Buffers::new(from, to, largest, largest)?, Buffers::new(to, from, largest, largest)?];
        let mut ways = [open_path(path, from, to, options)?, open_path(path, to, from, options)?];
        let plan = Plan {
            repeats: 2,
            time: Duration::from_millis(5),
            warm_up: Duration::from_millis(2),
            ..Plan::default()
        };
        let mut curve = Self::default();
        for size in SIZES.into_iter().filter(|size| *size <= largest) {
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
    /// host to host DPDK's software DMA device.
    ///
    /// # Errors
    /// When there is no memory to measure with.
    pub fn calibrate(from: &Arc<Device>, to: &Arc<Device>, options: &Options) -> Result<Self> {
        let bytes = SIZES[SIZES.len() - 1].min(options.largest.next_power_of_two().max(SIZES[0]));
        let bytes = bytes.min(from.capacity()).min(to.capacity());
        let (source, destination) = (from.allocate(bytes)?, to.allocate(bytes)?);
        let mut costs = Self::default();
        for path in Path::candidates(from.endpoint(), to.endpoint()) {
            let software =
                path == Path::Dma && *from.endpoint() == Endpoint::Host && *to.endpoint() == Endpoint::Host;
            if path == Path::Cuda || software {
                continue;
            }
            if options.without.contains(&path) {
                costs.refused.insert(path, "left out, as asked".into());
                continue;
            }
            let measured = match options.both_ways {
                true => Curve::measure_both_ways(path, from, to, options, bytes),
                false => open_path(path, from, to, options)
                    .and_then(|mut mover| Curve::measure(&mut *mover, &source, &destination)),
            };
            match measured {
                Ok(curve) => drop(costs.paths.insert(path, curve)),
                Err(error) => drop(costs.refused.insert(path, error.to_string())),
            }
        }
        let staged = costs.paths.contains_key(&Path::Staged) || costs.paths.contains_key(&Path::Hybrid);
        if staged {
            let host = [host_buffer(from, to, bytes)?, host_buffer(from, to, bytes)?];
            let out = Curve::measure(&mut *leg(from, true, options)?, &source, &host[0])?;
            let cpu = Curve::measure(&mut CpuMover::widest(), &host[0], &host[1])?;
            let into = Curve::measure(&mut *leg(to, false, options)?, &host[1], &destination)?;
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

/// Costs of all pairs measured on this machine, kept in a file between runs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Cache {
    machine: String,
    pairs: BTreeMap<String, Costs>,
}

impl Cache {
    /// What is known of this machine; nothing when the file is absent, unreadable, or another machine's.
    pub fn load(devices: &[Arc<Device>]) -> Self {
        let machine = identity(devices);
        let kept = file().and_then(|file| std::fs::read(file).ok());
        match kept.and_then(|bytes| serde_json::from_slice::<Cache>(&bytes).ok()) {
            Some(cache) if cache.machine == machine => cache,
            _ => Self { machine, pairs: BTreeMap::new() },
        }
    }

    fn key(from: &Endpoint, to: &Endpoint, options: &Options) -> String {
        let load = if options.both_ways { " both ways" } else { "" };
        let Options { engines, sms, resident, without, .. } = options;
        format!("{from} -> {to}{load} {engines:?} {sms:?} {resident} without {without:?}")
    }

    /// The costs of a pair.
    pub fn get(&self, from: &Endpoint, to: &Endpoint, options: &Options) -> Option<&Costs> {
        self.pairs.get(&Self::key(from, to, options))
    }

    /// Notes the costs of a pair, and writes the file; that it cannot be written is only said.
    pub fn put(&mut self, from: &Endpoint, to: &Endpoint, options: &Options, costs: Costs) {
        self.pairs.insert(Self::key(from, to, options), costs);
        let Some(file) = file() else { return };
        let written = (|| {
            if let Some(folder) = file.parent() {
                std::fs::create_dir_all(folder)?;
            }
            let part = file.with_extension(format!("{}.part", std::process::id()));
            std::fs::write(&part, serde_json::to_vec_pretty(self)?)?;
            std::fs::rename(&part, &file)
        })();
        if let Err(error) = written {
            tracing::warn!("calibration is not kept: {}: {error}", file.display());
        }
    }
}

fn file() -> Option<std::path::PathBuf> {
    let root = std::env::var_os("XDG_CACHE_HOME")
        .map(std::path::PathBuf::from)
        .or_else(|| Some(std::path::PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(root.join("inlane").join("copy-costs.json"))
}

/// What must be the same for old costs to hold.
fn identity(devices: &[Arc<Device>]) -> String {
    let host = inlane_core::result::Host::this();
    let mut parts =
        vec![env!("CARGO_PKG_VERSION").to_string(), host.cpu, host.cores.to_string(), host.kernel];
    if let Ok(version) = inlane_cuda::driver_version() {
        parts.push(format!("CUDA {version}"));
    }
    parts.extend(devices.iter().map(|device| device.describe()));
    parts.join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u64, f64)]) -> Curve {
        Curve { points: points.to_vec() }
    }

    #[test]
    fn curves_are_lines_between_points_and_go_on_at_the_last_rate() {
        let curve = curve(&[(1000, 10.0), (2000, 20.0), (4000, 30.0)]);
        assert_eq!(curve.time(1), Some(10.0));
        assert_eq!(curve.time(1500), Some(15.0));
        assert_eq!(curve.time(3000), Some(25.0));
        assert_eq!(curve.time(8000), Some(50.0));
        assert_eq!(Curve::default().time(1), None);
    }

    #[test]
    fn winners_are_those_that_win_somewhere() {
        let costs = Costs {
            paths: [
                (Path::StagedSm, curve(&[(4096, 8e3), (16 << 20, 400e3)])),
                (Path::Staged, curve(&[(4096, 20e3), (16 << 20, 330e3)])),
                (Path::Hybrid, curve(&[(4096, 25e3), (16 << 20, 2e6)])),
            ]
            .into(),
            ..Costs::default()
        };
        assert_eq!(costs.winners(), [Path::StagedSm, Path::Staged]);
    }

    #[test]
    fn hybrid_is_the_sum_of_its_legs_and_staging_the_slower_one() {
        let legs = [("out", 2.0), ("cpu", 3.0), ("in", 1.0)];
        let legs = legs
            .map(|(name, slope)| (name.into(), curve(&[(1 << 20, slope * 1e5), (16 << 20, slope * 16e5)])));
        let costs = Costs { legs: legs.into(), ..Costs::default() };
        assert_eq!(costs.predict(Path::Hybrid, 16 << 20), Some(96e5));
        assert_eq!(costs.predict(Path::Staged, 16 << 20), Some(32e5 + 1e5));
        assert_eq!(costs.predict(Path::P2p, 16 << 20), None);
    }
}
