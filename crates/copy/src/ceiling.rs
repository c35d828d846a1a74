//! The most that the links of a pair allow: their DMA engines alone, large transfers, nothing staged.
//!
//! ```text
//!  one way      each link alone, in several shapes (bytes of a piece, streams, memory that rotates); its best; the slower of the two
//!  both ways    all links at once, in each shape; what a way's links carry on average, and never more than the slower of them alone
//! ```
//!
//! On average, because the links of a way carry the same bytes: where they take from each other (through the host's memory), one
//! that runs free gets what the other lacks, which a path through both shares out.

use crate::device::{Device, Kind};
use crate::endpoint::Endpoint;
use crate::measure::{Buffers, Plan, together};
use crate::open_path::stage;
use crate::path::Path;
use crate::path_options::PathOptions;
use inlane_core::Result;
use inlane_core::mover::Mover;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

/// How links are driven. No shape is the best on every machine: large pieces cost least, small memory stays in the processor's
/// caches, two streams fill each other's gaps.
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

/// A ceiling of each direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Which link direction, and how it was learnt.
    pub what: String,
}

/// A link, in one direction: its device, and whether out of it.
type Link<'a> = (&'a Arc<Device>, bool);

/// What links were measured to carry alone: once each, however many pairs they are of.
#[derive(Debug, Default)]
pub struct Ceilings {
    alone: BTreeMap<(String, bool), f64>,
}

/// Why a path between two has no ceiling: it does not go over what [`Ceilings::measure`] drives.
pub fn none_for(path: Path, from: &Endpoint, to: &Endpoint) -> Option<&'static str> {
    match (path, from, to) {
        (Path::P2p, ..) => Some("it goes between the GPUs, and what that way can carry is not known"),
        (Path::Dma, Endpoint::Gpu(a), Endpoint::Gpu(b)) if a == b => {
            Some("it stays in the GPU's memory, and crosses no link")
        }
        _ => None,
    }
}

impl Ceilings {
    /// The slower of the links that a transfer through the host crosses, out of `from` and into `to`, and of those back; with `both`,
    /// while the other direction runs as well. `None` where nothing crosses a link that a DMA engine drives. `host` is the host's
    /// memory.
    ///
    /// # Errors
    /// When a device fails.
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
            window: None,
            ..plan.clone()
        };
        let ways = [[(from, true), (to, false)], [(to, true), (from, false)]].map(|way| {
            let gpus = way.into_iter().filter(|(device, _)| matches!(device.kind(), Kind::Gpu(_)));
            gpus.collect::<Vec<Link>>()
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
        let alone = |way: &Vec<Link>| -> Vec<f64> {
            let known = |(device, out): &Link| self.alone[&(device.endpoint().to_string(), *out)];
            way.iter().map(known).collect()
        };
        let name = |way: &Vec<Link>| {
            let link = |(device, out): &Link| {
                format!("{} {}", if *out { "out of" } else { "into" }, device.endpoint())
            };
            way.iter().map(link).collect::<Vec<_>>().join(" and ")
        };
        if !both {
            let rates = alone(&ways[0]);
            let slowest = (0..rates.len()).min_by(|a, b| rates[*a].total_cmp(&rates[*b])).unwrap_or(0);
            let ceiling = Ceiling {
                bytes_per_second: rates[slowest],
                what: format!("{} by copy engine, measured in this run", name(&vec![ways[0][slowest]])),
            };
            return Ok(Some([ceiling.clone(), ceiling]));
        }
        let all: Vec<Link> = ways.iter().flatten().copied().collect();
        let mut at_once = Vec::new();
        for shape in &SHAPES {
            let rates = rates(&all, host, shape, plan)?;
            let (forth, back) = rates.split_at(ways[0].len());
            at_once.push([forth.to_vec(), back.to_vec()]);
        }
        let ceiling = |way: usize| {
            let shapes: Vec<&[f64]> = at_once.iter().map(|rates| &rates[way][..]).collect();
            Ceiling {
                bytes_per_second: of_way(&alone(&ways[way]), &shapes),
                what: format!(
                    "{} by copy engine, measured in this run, both directions of all links at once",
                    name(&ways[way])
                ),
            }
        };
        Ok(Some([ceiling(0), ceiling(1)]))
    }
}

/// What a way can carry whose links carry `alone` by themselves, and `at_once` while the other way runs, in each shape.
fn of_way(alone: &[f64], at_once: &[&[f64]]) -> f64 {
    let means = at_once.iter().map(|rates| rates.iter().sum::<f64>() / rates.len() as f64);
    alone.iter().copied().fold(means.fold(0.0, f64::max), f64::min)
}

/// Bytes a second of each link, all of them driven at once in one shape.
fn rates(links: &[Link], host: &Arc<Device>, shape: &Shape, plan: &Plan) -> Result<Vec<f64>> {
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
    let sum = |streams: &[crate::measure::Measurement]| {
        streams.iter().map(|stream| stream.bytes_per_second.median).sum()
    };
    Ok(measured.chunks(shape.streams).map(sum).collect())
}

/// A model's links have the rates that it says.
fn of_models(from: &Device, to: &Device) -> Option<[Ceiling; 2]> {
    let rate = |device: &Device| match device.kind() {
        Kind::Twin(twin) => Some((twin.costs().link, device.endpoint().clone())),
        _ => None,
    };
    let (link, endpoint) = rate(from).into_iter().chain(rate(to)).min_by(|a, b| a.0.total_cmp(&b.0))?;
    let ceiling = Ceiling {
        bytes_per_second: link,
        what: format!("the link of {endpoint}, a model's, after encoding"),
    };
    Some([ceiling.clone(), ceiling])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_carries_what_its_links_share_and_no_more_than_the_slower() {
        // Links that take from each other: 55 out and 45 in are 50 through both, whichever shape shows it.
        assert_eq!(of_way(&[55.0, 56.0], &[&[55.0, 45.0], &[48.0, 46.0]]), 50.0);
        // Links that do not: the slower alone, though the other has room.
        assert_eq!(of_way(&[55.0, 27.0], &[&[55.0, 27.0]]), 27.0);
        // One link: what it carried at its best while the other way ran.
        assert_eq!(of_way(&[55.0], &[&[50.0], &[51.0]]), 51.0);
    }

    #[test]
    fn paths_that_cross_no_link_to_the_host_have_none() {
        let end = |text: &str| text.parse::<Endpoint>().unwrap();
        let (a, b, host) = (end("gpu:0"), end("gpu:1"), end("host"));
        assert!(none_for(Path::P2p, &a, &b).is_some());
        assert!(none_for(Path::Dma, &a, &a).is_some());
        for (path, from, to) in [
            (Path::Dma, &host, &a),
            (Path::Sm, &a, &host),
            (Path::Staged, &a, &b),
            (Path::Staged, &a, &a),
            (Path::StagedSm, &a, &b),
            (Path::Cuda, &a, &b),
        ] {
            assert_eq!(none_for(path, from, to), None, "{path}");
        }
    }

    #[test]
    fn models_have_the_rate_that_they_say() {
        let open = |ends: [&str; 3]| {
            crate::open(&ends.map(|end| end.parse().unwrap()), &inlane_pci::Permission::default()).unwrap()
        };
        let ends = open(["twin:0", "twin:1", "host"]);
        let mut ceilings = Ceilings::default();
        let found = ceilings.measure(&ends[0], &ends[1], &ends[2], true, &Plan::default()).unwrap().unwrap();
        assert_eq!(found.map(|ceiling| ceiling.bytes_per_second), [3.94e9; 2]);
        assert_eq!(ceilings.measure(&ends[2], &ends[2], &ends[2], false, &Plan::default()).unwrap(), None);
    }
}
