//! The ceiling of a path through the host: the highest rate that copy engines reach on the links of the path.
//!
//! A *shape* is a way to drive a link: the size of a transfer, the number of streams, and the memory used. A
//! *way* is one direction of the path. A way crosses one link for each of its ends that is a GPU.
//!
//! ```text
//!  one way alone    drives each link alone, in every shape.
//!                   Ceiling: the best rate of the slower link.
//!  both ways        drives all links at once, in every shape.
//!                   Ceiling: in the best shape, the mean rate of the way's links,
//!                   but at most the best rate of the slower link alone.
//! ```
//!
//! Links that run at once compete for host memory, so their measured rates differ. A path, however, has the
//! same rate on each of its links. Therefore the mean is taken.
//!
//! [`of_cpu`] measures the ceiling between host memory and BARs, where the CPU copies.

mod cpu;
mod resource;

pub use cpu::{is_by_cpu, of_cpu};
pub use resource::{CeilingOf, Link};

use crate::device::{Device, Kind};
use crate::endpoint::Endpoint;
use crate::open_path::stage;
use crate::path::Path;
use crate::path_options::PathOptions;
use crate::timing::{Buffers, Plan, together};
use inlane_core::Result;
use inlane_core::mover::Mover;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

/// The highest rate of a transfer.
pub type Ceiling = inlane_result::Ceiling<CeilingOf>;

/// How a measurement drives a link: the size of each transfer in bytes (`piece`), the number of streams, and
/// the bytes of memory that transfers rotate over (`rotate`). All shapes are tried, because no shape is the
/// fastest on every machine. Large pieces have the least overhead, and a small memory fits the CPU's caches.
/// With two streams, one uses the link while the other pauses.
struct Shape {
    piece: usize,
    streams: usize,
    rotate: usize,
}

const SHAPES: [Shape; 3] = [
    Shape { piece: 32 << 20, streams: 1, rotate: 64 << 20 },
    Shape { piece: 8 << 20, streams: 1, rotate: 16 << 20 },
    Shape { piece: 4 << 20, streams: 2, rotate: 8 << 20 },
];

/// One direction of a link: the device at the link's end, and the direction of the transfers. True means out
/// of this device, false means into it.
type Driven<'a> = (&'a Arc<Device>, bool);

/// Keeps the measured rate of each link in each direction, driven alone. Use one value for all pairs of
/// endpoints in a run. If several pairs share a link, the link is then measured only once.
#[derive(Debug, Default)]
pub struct LinkCeilings {
    alone: BTreeMap<(String, bool), f64>,
}

/// Returns why the ceiling of a path is not measured: the path leads directly from GPU to GPU, or stays
/// in one GPU's memory. Returns `None` for all other paths.
pub fn none_for(path: Path, from: &Endpoint, to: &Endpoint) -> Option<&'static str> {
    match (path, from, to) {
        (Path::P2p, ..) => {
            Some("it connects the GPUs directly, and the rate of that connection is not measured")
        }
        (Path::Dma, Endpoint::Gpu(a), Endpoint::Gpu(b)) if a == b => {
            Some("it stays in the GPU's memory and crosses no link")
        }
        _ => None,
    }
}

impl LinkCeilings {
    /// Measures two ceilings: from `from` to `to`, and from `to` to `from`. The transfers go through `host`
    /// memory.
    ///
    /// If `both` is set, both directions run at the same time. Otherwise, this measures only `from` to `to`,
    /// and returns its result twice. The ceiling of a twin is the link rate of its model. Returns `None` if
    /// neither end is a GPU or a twin.
    ///
    /// # Errors
    /// [`Error::Device`](inlane_core::Error::Device) if a device fails or the run was interrupted.
    pub fn measure(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        host: &Arc<Device>,
        both: bool,
        plan: &Plan,
    ) -> Result<Option<[Ceiling; 2]>> {
        if let Some(model) = of_models(from, to) {
            return Ok(Some(model));
        }
        let plan = &Plan {
            repeats: 3,
            time: plan.time.min(Duration::from_millis(50)),
            in_flight: None,
            ..plan.clone()
        };
        let ways = [[(from, true), (to, false)], [(to, true), (from, false)]].map(|way| {
            let gpus = way.into_iter().filter(|(device, _)| matches!(device.kind(), Kind::Gpu(_)));
            gpus.collect::<Vec<Driven>>()
        });
        let count = if both { 2 } else { 1 };
        if ways[0].is_empty() {
            return Ok(None);
        }
        for link in ways[..count].iter().flatten() {
            if let Entry::Vacant(unknown) = self.alone.entry((link.0.endpoint().to_string(), link.1)) {
                let mut best: f64 = 0.0;
                for shape in &SHAPES {
                    best = best.max(rates(&[*link], host, shape, plan)?[0]);
                }
                unknown.insert(best);
            }
        }
        let alone = |way: &Vec<Driven>| -> Vec<f64> {
            let known = |(device, out): &Driven| self.alone[&(device.endpoint().to_string(), *out)];
            way.iter().map(known).collect()
        };
        let resource = |way: &[Driven], both_directions| {
            let link = |(device, out): &Driven| Link { endpoint: device.endpoint().clone(), out: *out };
            CeilingOf::CopyEngine { links: way.iter().map(link).collect(), both_directions }
        };
        if !both {
            let rates = alone(&ways[0]);
            let slowest = (0..rates.len()).min_by(|a, b| rates[*a].total_cmp(&rates[*b])).unwrap_or(0);
            let ceiling = Ceiling::of_bytes(rates[slowest], resource(&ways[0][slowest..=slowest], false));
            return Ok(Some([ceiling.clone(), ceiling]));
        }
        let all: Vec<Driven> = ways.iter().flatten().copied().collect();
        let mut at_once = Vec::new();
        for shape in &SHAPES {
            let rates = rates(&all, host, shape, plan)?;
            let (forth, back) = rates.split_at(ways[0].len());
            at_once.push([forth.to_vec(), back.to_vec()]);
        }
        let ceiling = |way: usize| {
            let shapes: Vec<&[f64]> = at_once.iter().map(|rates| &rates[way][..]).collect();
            Ceiling::of_bytes(of_direction(&alone(&ways[way]), &shapes), resource(&ways[way], true))
        };
        Ok(Some([ceiling(0), ceiling(1)]))
    }
}

/// Returns the ceiling of one direction in bytes per second, the lower of two rates. One is the rate of the
/// direction's slowest link alone. `alone` has these rates. The other is the links' mean rate with both
/// directions at once. `at_once` has the rates for each way of driving the links; the way with the highest
/// mean counts.
fn of_direction(alone: &[f64], at_once: &[&[f64]]) -> f64 {
    let means = at_once.iter().map(|rates| rates.iter().sum::<f64>() / rates.len() as f64);
    alone.iter().copied().fold(means.fold(0.0, f64::max), f64::min)
}

/// Runs all `links` at the same time, and returns the bytes per second of each. `shape` says how each link is
/// driven.
fn rates(links: &[Driven], host: &Arc<Device>, shape: &Shape, plan: &Plan) -> Result<Vec<f64>> {
    let options = PathOptions { stop: plan.stop.clone(), ..PathOptions::default() };
    let mut runs: Vec<(Box<dyn Mover>, Buffers)> = Vec::new();
    for (device, out) in links {
        let (from, to) = if *out { (*device, host) } else { (host, *device) };
        for _ in 0..shape.streams {
            let buffers = Buffers::new(from, to, shape.piece, shape.rotate)?;
            runs.push((stage(device, *out, &options)?, buffers));
        }
    }
    let driven =
        runs.iter_mut().map(|(mover, buffers)| (mover.as_mut() as &mut dyn Mover, buffers)).collect();
    let measured = together(driven, shape.piece, plan)?;
    let sum =
        |streams: &[crate::timing::Timing]| streams.iter().map(|stream| stream.bytes_per_second.median).sum();
    Ok(measured.chunks(shape.streams).map(sum).collect())
}

/// Returns the ceilings of both directions if a device is a twin. Both are the link rate of the twin's model.
/// With two twins, the slower model counts. Returns `None` if neither device is a twin.
fn of_models(from: &Device, to: &Device) -> Option<[Ceiling; 2]> {
    let rate = |device: &Device| match device.kind() {
        Kind::Twin(twin) => Some((twin.costs().link, device.endpoint().clone())),
        _ => None,
    };
    let (link, endpoint) = rate(from).into_iter().chain(rate(to)).min_by(|a, b| a.0.total_cmp(&b.0))?;
    let ceiling = Ceiling::of_bytes(link, CeilingOf::Model { endpoint });
    Some([ceiling.clone(), ceiling])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direction_reaches_the_mean_of_its_links_but_at_most_the_slower_one() {
        // Two links that compete. While both run, the first shape of load reaches rates of 55 and 45, so the
        // mean is 50. The second shape reaches 48 and 46, so the mean is 47. The ceiling is the higher mean.
        assert_eq!(of_direction(&[55.0, 56.0], &[&[55.0, 45.0], &[48.0, 46.0]]), 50.0);
        // Independent links: their mean is 41, but the slower link reaches only 27 alone. So the ceiling is
        // 27.
        assert_eq!(of_direction(&[55.0, 27.0], &[&[55.0, 27.0]]), 27.0);
        // One link, which reaches a rate of 55 in one direction alone. With both directions at once, it
        // reaches 50 with the first shape of load and 51 with the second shape. The ceiling is 51, the higher
        // of these two.
        assert_eq!(of_direction(&[55.0], &[&[50.0], &[51.0]]), 51.0);
    }

    #[test]
    fn only_paths_within_and_directly_between_gpus_have_no_ceiling() {
        let end = |text: &str| text.parse::<Endpoint>().unwrap();
        let (a, b, host) = (end("gpu:0"), end("gpu:1"), end("host"));
        assert!(none_for(Path::P2p, &a, &b).is_some());
        assert!(none_for(Path::Dma, &a, &a).is_some());
        let bar = end("pci:0000:b5:00.0/bar2");
        for (path, from, to) in [
            (Path::Dma, &host, &a),
            (Path::Sm, &a, &host),
            (Path::Staged, &a, &b),
            (Path::Staged, &a, &a),
            (Path::StagedSm, &a, &b),
            (Path::Cuda, &a, &b),
            (Path::Cpu, &host, &end("twin:0")),
            (Path::Cpu, &host, &host),
            (Path::Cpu, &host, &bar),
        ] {
            assert_eq!(none_for(path, from, to), None, "{path}");
        }
    }

    #[test]
    fn the_ceiling_of_a_twin_is_its_models_link_rate() {
        let open = |ends: [&str; 3]| {
            crate::open(&ends.map(|end| end.parse().unwrap()), &inlane_pci::Permission::default()).unwrap()
        };
        let ends = open(["twin:0", "twin:1", "host"]);
        let mut ceilings = LinkCeilings::default();
        let found = ceilings.measure(&ends[0], &ends[1], &ends[2], true, &Plan::default()).unwrap().unwrap();
        assert_eq!(found.map(|ceiling| ceiling.bytes_per_second), [Some(3.94e9); 2]);
        assert!(ceilings.measure(&ends[2], &ends[2], &ends[2], false, &Plan::default()).unwrap().is_none());
    }
}
