//! The experiment of Oh, Kwon and Lee ("PCIe-Based Multi-NPU Data Transmission Optimization"), run on models
//! of its accelerator. It covers BAR and DMA in each direction at two link speeds. It also covers transfers
//! from device to device by BAR and by the hybrid path.
//!
//! The models have the published rates of single stages. So transfers between the host and a device measure
//! nothing new. Transfers between two devices show what these rates predict. The published device-to-device
//! rates differ from these predictions.

use crate::cost::PathCosts;
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::open_path::open_path;
use crate::path::Path;
use crate::path_options::PathOptions;
use crate::timing::{Buffers, Plan, Timing, latency};
use inlane_core::Result;
use std::sync::Arc;

/// One line of the experiment's result: one path between two endpoints.
pub struct PublishedLine {
    /// The source.
    pub from: Endpoint,
    /// The destination.
    pub to: Endpoint,
    /// The path.
    pub path: Path,
    /// The movers that were measured, and the memory between them.
    pub hops: Vec<String>,
    /// The length of each transfer, in bytes.
    pub size: usize,
    /// The rate that the publication gives, in MiB (2^20 bytes) per second. `None` if it gives none.
    pub published_mib: Option<f64>,
    /// The predicted rate in bytes per second. It is computed from the rates of the single stages.
    pub predicted: Option<f64>,
    /// The measurement on this machine. Twins replace the devices of the publication.
    pub measured: Timing,
}

/// One row for each published result: source, destination, path and MiB/s. The publication does not name the
/// PCIe slots of its device-to-device transfers. We assume slot 0 (`twin:0`) to slot 1 (`twin:1`).
const PUBLISHED: [(&str, &str, Path, Option<f64>); 12] = [
    ("host", "twin:0", Path::Cpu, Some(6.76)),
    ("twin:0", "host", Path::Cpu, Some(28.11)),
    ("host", "twin:0", Path::Dma, Some(8014.24)),
    ("twin:0", "host", Path::Dma, Some(9558.77)),
    ("host", "twin:1", Path::Cpu, Some(3.22)),
    ("twin:1", "host", Path::Cpu, Some(28.12)),
    ("host", "twin:1", Path::Dma, Some(2452.07)),
    ("twin:1", "host", Path::Dma, Some(3023.30)),
    ("twin:0", "twin:1", Path::Cpu, Some(24.33)),
    ("twin:0", "twin:1", Path::Hybrid, Some(1988.28)),
    ("twin:0", "twin:1", Path::Staged, None),
    ("twin:1", "twin:0", Path::Staged, None),
];

/// Runs the experiment, one transfer at a time. Transfers by DMA have `large` bytes, transfers by BAR 64 KiB.
/// Calls `keep` with each line of the result.
///
/// # Errors
/// The error of the first transfer that fails, which ends the experiment.
pub fn run(large: usize, plan: &Plan, mut keep: impl FnMut(PublishedLine)) -> Result<()> {
    let options = PathOptions { largest: large, stop: plan.stop.clone(), ..PathOptions::default() };
    let mut costs: Vec<(String, PathCosts)> = Vec::new();
    for (from, to, path, published_mib) in PUBLISHED {
        let devices = crate::open(&[from.parse()?, to.parse()?], &inlane_pci::Permission::default())?;
        let (from, to) = (&devices[0], &devices[1]);
        let size = if path == Path::Cpu { 64 << 10 } else { large };
        let mut mover = open_path(path, from, to, &options)?;
        let mut buffers = Buffers::new(from, to, size, size)?;
        let measured = latency(&mut *mover, &mut buffers, size, plan)?;
        keep(PublishedLine {
            from: from.endpoint().clone(),
            to: to.endpoint().clone(),
            path,
            hops: mover.hops(),
            size,
            published_mib,
            predicted: predict(path, from, to, size, &options, &mut costs)?,
            measured,
        });
    }
    Ok(())
}

/// Predicts the bytes per second of transfers of `size` bytes over a path. Uses the times of the path's
/// stages. For paths `cpu` and `dma`, the times come from the twin's model. For other paths, they come from
/// calibration.
fn predict(
    path: Path,
    from: &Arc<Device>,
    to: &Arc<Device>,
    size: usize,
    options: &PathOptions,
    kept: &mut Vec<(String, PathCosts)>,
) -> Result<Option<f64>> {
    let twin = |device: &Device| match device.kind() {
        crate::device::Kind::Twin(twin) => Some(twin.costs().clone()),
        _ => None,
    };
    let (source, destination) = (twin(from), twin(to));
    let time = match path {
        Path::Cpu => {
            let read = source.map_or(0.0, |costs| 1.0 / costs.bar.read);
            size as f64 * (read + destination.map_or(0.0, |costs| 1.0 / costs.bar.write))
        }
        Path::Dma => {
            let (costs, to_device) = match (source, destination) {
                (Some(costs), _) => (costs, false),
                (None, Some(costs)) => (costs, true),
                (None, None) => return Ok(None),
            };
            costs.dma.time(size, to_device).as_secs_f64()
        }
        _ => {
            let key = format!("{} {}", from.endpoint(), to.endpoint());
            if !kept.iter().any(|(pair, _)| *pair == key) {
                kept.push((key.clone(), PathCosts::calibrate(from, to, options)?));
            }
            let costs = kept.iter().find(|(pair, _)| *pair == key).map(|(_, costs)| costs);
            match costs.and_then(|costs| costs.predict(path, size as u64)) {
                Some(nanoseconds) => nanoseconds / 1e9,
                None => return Ok(None),
            }
        }
    };
    Ok(Some(size as f64 / time))
}
