//! The most that the links of a pair allow: each link's DMA engines alone, large transfers, nothing staged.

use crate::device::{Device, Kind};
use crate::measure::{Buffers, Plan, together};
use crate::opening::leg;
use crate::route::Options;
use inlane_core::Result;
use inlane_core::mover::Mover;
use std::sync::Arc;

/// Bytes of a transfer: large enough that its fixed cost does not show.
const SIZE: usize = 32 << 20;

/// A ceiling of each direction.
#[derive(Clone, Debug)]
pub struct Ceiling {
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Which link direction, and how it was learnt.
    pub what: String,
}

/// The slower of the links that a transfer crosses, out of `from` and into `to`; with `both`, while the other direction runs
/// as well. `None` where nothing crosses a link that a DMA engine drives. `host` is the host's memory.
///
/// # Errors
/// When a device fails.
pub fn measure(
    from: &Arc<Device>,
    to: &Arc<Device>,
    host: &Arc<Device>,
    both: bool,
    plan: &Plan,
) -> Result<Option<[Ceiling; 2]>> {
    if let Some(model) = of_models(from, to) {
        return Ok(Some(model));
    }
    // Each: the device, whether out of it, and whether it belongs to the way back.
    let mut links = vec![(from, true, false), (to, false, false)];
    if both {
        links.extend([(to, true, true), (from, false, true)]);
    }
    links.retain(|(device, ..)| matches!(device.kind(), Kind::Gpu(_)));
    if links.is_empty() {
        return Ok(None);
    }
    let options = Options::default();
    let mut runs: Vec<(Box<dyn Mover>, Buffers)> = Vec::new();
    for (device, out, _) in &links {
        let ends = if *out { (*device, host) } else { (host, *device) };
        runs.push((leg(device, *out, &options)?, Buffers::new(ends.0, ends.1, SIZE, 2 * SIZE)?));
    }
    // One way: each link alone. Both ways: all at once, as they will be.
    let groups: Vec<Vec<usize>> = if both {
        vec![(0..runs.len()).collect()]
    } else {
        (0..runs.len()).map(|index| vec![index]).collect()
    };
    let mut rates = vec![0.0; runs.len()];
    for group in groups {
        let chosen = runs.iter_mut().enumerate().filter(|(index, _)| group.contains(index));
        let chosen =
            chosen.map(|(_, (mover, buffers))| (mover.as_mut() as &mut dyn Mover, buffers)).collect();
        for (index, measured) in group.iter().zip(together(chosen, SIZE, plan)?) {
            rates[*index] = measured.bytes_per_second.median;
        }
    }
    let slowest = |back: bool| {
        let way = links.iter().zip(&rates).filter(|((_, _, of), _)| *of == back || !both);
        let slowest = way.min_by(|a, b| a.1.total_cmp(b.1));
        slowest.map_or(
            Ceiling { bytes_per_second: f64::NAN, what: String::new() },
            |((device, out, _), rate)| Ceiling {
                bytes_per_second: *rate,
                what: format!(
                    "{} {} by copy engine, measured in this run{}",
                    if *out { "out of" } else { "into" },
                    device.endpoint(),
                    if both { ", both directions of all links at once" } else { "" }
                ),
            },
        )
    };
    Ok(Some([slowest(false), slowest(both)]))
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
