//! What copies take from the machine's resources, as far as the path tells.

use super::CopyLoadConfig;
use crate::endpoint::Endpoint;
use crate::path::Path;
use inlane_core::load::{Resource, Use, UseSource};

/// Returns the uses of copies by `path`.
///
/// A byte that leaves or enters a device crosses the device's link once, unless it stays in the device. Staging in host
/// memory writes and reads each byte. The time of cores for a byte can only be measured.
pub(super) fn uses(path: Path, config: &CopyLoadConfig) -> Vec<Use> {
    let (from, to) = (&config.from, &config.to);
    let stays = from == to;
    let mut host_memory = match path {
        Path::Staged | Path::StagedSm => 2.0,
        Path::Hybrid => 4.0,
        _ => 0.0,
    };
    let mut found = Vec::new();
    let mut device_memory: Vec<(String, f64)> = Vec::new();
    for (end, out) in [(from, true), (to, false)] {
        let Some(device) = device(end) else {
            host_memory += 1.0;
            continue;
        };
        let direct = matches!(path, Path::P2p | Path::Cuda);
        if !stays || host_memory > 0.0 {
            let link = if out { Resource::LinkFromDevice } else { Resource::LinkToDevice };
            // Only a measurement shows whether peers use PCIe or NVLink.
            found.push((link(device.clone()), (!direct).then_some(1.0)));
        }
        match device_memory.iter_mut().find(|(known, _)| *known == device) {
            Some((_, per_byte)) => *per_byte += 1.0,
            None => device_memory.push((device, 1.0)),
        }
    }
    if host_memory > 0.0 || path == Path::Cuda {
        found.push((Resource::HostMemory, (path != Path::Cuda).then_some(host_memory)));
    }
    found.extend(
        device_memory.into_iter().map(|(device, times)| (Resource::DeviceMemory(device), Some(times))),
    );
    let engines: &[&Endpoint] = match path {
        Path::Staged | Path::Hybrid => &[from, to],
        Path::Dma | Path::P2p | Path::Cuda if device(from).is_some() => &[from],
        Path::Dma | Path::P2p | Path::Cuda => &[to],
        Path::Cpu | Path::Sm | Path::StagedSm => &[],
    };
    for device in engines.iter().filter_map(|end| device(end)) {
        found.push((Resource::CopyEngine(device), Some(1.0)));
    }
    match &config.cores[..config.threads.min(config.cores.len())] {
        [] => found.push((Resource::Processors, None)),
        cores => found.extend(cores.iter().map(|core| (Resource::Core(*core), None))),
    }
    let computed = |(resource, per_byte)| Use { resource, per_byte, source: UseSource::Computed };
    found.into_iter().map(computed).collect()
}

/// Returns the name of the device of an endpoint. `None` for host memory.
fn device(endpoint: &Endpoint) -> Option<String> {
    match endpoint {
        Endpoint::Host => None,
        Endpoint::Gpu(_) | Endpoint::Twin(_) => Some(endpoint.to_string()),
        Endpoint::Bar(spec) => Some(spec.address.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crossing_of_a_link_and_of_memory_counts() {
        let of = |from: &str, to: &str, path: Path| {
            let config = CopyLoadConfig::new(from.parse().unwrap(), to.parse().unwrap(), 4096);
            uses(path, &config).into_iter().map(|used| (used.resource, used.per_byte)).collect::<Vec<_>>()
        };
        let [a, b] = ["gpu:0", "gpu:1"].map(String::from);
        use Resource::{CopyEngine, DeviceMemory, HostMemory, LinkFromDevice, LinkToDevice, Processors};
        assert_eq!(
            of("host", "gpu:0", Path::Dma),
            [
                (LinkToDevice(a.clone()), Some(1.0)),
                (HostMemory, Some(1.0)),
                (DeviceMemory(a.clone()), Some(1.0)),
                (CopyEngine(a.clone()), Some(1.0)),
                (Processors, None),
            ]
        );
        assert_eq!(of("host", "host", Path::Cpu), [(HostMemory, Some(2.0)), (Processors, None)]);
        let staged = of("gpu:0", "gpu:1", Path::Staged);
        assert!(staged.contains(&(LinkFromDevice(a.clone()), Some(1.0))), "{staged:?}");
        assert!(staged.contains(&(LinkToDevice(b), Some(1.0))) && staged.contains(&(HostMemory, Some(2.0))));
        let within = of("gpu:0", "gpu:0", Path::Dma);
        assert!(within.contains(&(DeviceMemory(a), Some(2.0))), "{within:?}");
        assert!(!within.iter().any(|(used, _)| matches!(used, LinkFromDevice(_) | LinkToDevice(_))));
    }

    #[test]
    fn bound_threads_use_their_cores() {
        let end = || "host".parse().unwrap();
        let config =
            CopyLoadConfig { cores: vec![3, 5, 7], threads: 2, ..CopyLoadConfig::new(end(), end(), 1) };
        let cores: Vec<_> = uses(Path::Cpu, &config).into_iter().map(|used| used.resource).skip(1).collect();
        assert_eq!(cores, [Resource::Core(3), Resource::Core(5)]);
    }
}
