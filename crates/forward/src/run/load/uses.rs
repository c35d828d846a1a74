//! What a run takes from the machine's resources, as far as its configuration tells.
//!
//! Counts every access as if no cache held the bytes. Therefore the use of memory is an upper limit.

use super::ForwardLoad;
use crate::config::Executor;
use crate::gpu::Memory;
use inlane_core::load::{Resource, Use, UseSource};
use inlane_function::FunctionInfo;
use inlane_ports::spec::{Kind, PortSpec, Properties, Role, Source};
use std::collections::BTreeMap;

/// The bytes of a descriptor, which a GPU reads for each packet.
const DESCRIPTOR: f64 = 16.0;
/// The bytes that the CPU and a GPU write for each item of the burst ring.
const SUBMISSION: f64 = 32.0;
const COMPLETION: f64 = 8.0;
/// The CPU accesses memory in lines, and a GPU reads host memory in sectors.
const CACHE_LINE: u32 = 64;
const SECTOR: u32 = 32;

/// The uses for each byte. `None` stands for an amount that only a measurement can tell.
#[derive(Default)]
struct Uses(BTreeMap<Resource, Option<f64>>);

impl Uses {
    fn add(&mut self, resource: Resource, per_byte: Option<f64>) {
        if per_byte == Some(0.0) {
            return;
        }
        let known = self.0.entry(resource).or_insert(Some(0.0));
        *known = known.zip(per_byte).map(|(sum, more)| sum + more);
    }
}

/// Returns the uses of a load. A byte of the load is a byte of a packet. If packets flow in both directions, the uses are
/// the mean of the directions.
pub(super) fn uses(load: &ForwardLoad) -> Vec<Use> {
    let mut found = Uses::default();
    for direction in &load.directions {
        let source = &load.specs[direction.rx];
        of_direction(load, source, direction.tx.iter().map(|&tx| &load.specs[tx]), &mut found);
    }
    let directions = load.directions.len() as f64;
    found.0.values_mut().flatten().for_each(|per_byte| *per_byte /= directions);
    match &load.cores[..] {
        [] => found.add(Resource::Processors, None),
        cores => cores.iter().for_each(|core| found.add(Resource::Core(*core), None)),
    }
    let computed = |(resource, per_byte)| Use { resource, per_byte, source: UseSource::Computed };
    found.0.into_iter().map(computed).collect()
}

fn of_direction<'a>(
    load: &ForwardLoad,
    source: &PortSpec,
    sinks: impl Iterator<Item = &'a PortSpec>,
    found: &mut Uses,
) {
    let size = source.packet_size().map(|size| size as f64);
    // Functions of users are compiled later, after privileges were dropped.
    let info = if load.function.is_user_code() { None } else { load.function.info().ok() };
    let (gpu, memory) = match (&load.config.executor, load.config.executor.gpu_memory()) {
        (Executor::Gpu { index, .. }, Some(memory)) => (Some(format!("gpu:{index}")), memory),
        _ => (None, Memory::Pinned),
    };
    let buffers = match &gpu {
        Some(gpu) if memory == Memory::Pool => Resource::DeviceMemory(gpu.clone()),
        _ => Resource::HostMemory,
    };
    // If packets can go to several ports, only a measurement shows how many go to each.
    let sinks: Vec<_> = sinks.collect();
    let share = (sinks.len() == 1).then_some(1.0);
    for (port, receives) in std::iter::once((source, true)).chain(sinks.into_iter().map(|sink| (sink, false)))
    {
        let per_byte = if receives { Some(1.0) } else { share };
        if !is_inside(port) {
            found.add(Resource::Port(port.text().into()), per_byte);
        }
        if port.properties().moves_payload {
            found.add(buffers.clone(), per_byte);
        }
        if let Some(card) = port.card().map(str::to_owned) {
            let links = [Resource::LinkToDevice, Resource::LinkFromDevice];
            found.add(links[usize::from(receives)](card), per_byte);
            if let (Some(gpu), Memory::Pool) = (&gpu, memory) {
                found.add(links[usize::from(!receives)](gpu.clone()), per_byte);
            }
        }
    }
    match gpu {
        None => {
            let touched = |bytes: fn(&FunctionInfo) -> u32| part(info.as_ref().map(bytes), size, CACHE_LINE);
            found.add(Resource::HostMemory, touched(|info| info.reads));
            found.add(Resource::HostMemory, touched(|info| info.writes));
        }
        Some(gpu) => on_gpu(load, gpu, memory, info.as_ref(), size, found),
    }
}

/// Adds what the packet function takes on a GPU.
fn on_gpu(
    load: &ForwardLoad,
    gpu: String,
    memory: Memory,
    info: Option<&FunctionInfo>,
    size: Option<f64>,
    found: &mut Uses,
) {
    let reads = part(info.map(|info| info.reads), size, SECTOR);
    let writes = part(info.map(|info| info.writes), size, 1);
    let device_memory = Resource::DeviceMemory(gpu.clone());
    let (to_device, from_device) = match memory {
        Memory::Pool => {
            found.add(device_memory, reads.zip(writes).map(|(reads, writes)| reads + writes));
            (Some(0.0), Some(0.0))
        }
        Memory::Pinned => (reads, writes),
        Memory::Gpu | Memory::Split(_) => {
            let bytes = if let Memory::Split(bytes) = memory { bytes } else { u32::MAX };
            let pulled = part(Some(bytes), size, SECTOR);
            // The pulled bytes are written once, and the function reads what it needs.
            found.add(device_memory, pulled.zip(reads).map(|(pulled, reads)| pulled + reads));
            (pulled, writes)
        }
    };
    let burst = load.config.per_pipeline.burst as f64;
    let per_packet = |bytes: f64| size.map(|size| bytes / size);
    let sum = |one: Option<f64>, more: Option<f64>| one.zip(more).map(|(one, more)| one + more);
    let to_device = sum(to_device, per_packet(DESCRIPTOR + SUBMISSION / burst));
    let from_device = sum(from_device, per_packet(COMPLETION / burst));
    found.add(Resource::HostMemory, sum(to_device, from_device));
    found.add(Resource::LinkToDevice(gpu.clone()), to_device);
    found.add(Resource::LinkFromDevice(gpu), from_device);
}

/// Returns the part of a packet of `size` bytes that an access to its first `bytes` bytes takes, in whole units of memory.
/// `None` if that depends on an unknown.
fn part(bytes: Option<u32>, size: Option<f64>, unit: u32) -> Option<f64> {
    match (bytes?, size) {
        (0, _) => Some(0.0),
        (u32::MAX, _) => Some(1.0),
        (bytes, size) => Some((f64::from(bytes.next_multiple_of(unit)) / size?).min(1.0)),
    }
}

/// Returns true for a port that connects to nothing. All that it does takes time of the pipeline's thread.
fn is_inside(port: &PortSpec) -> bool {
    let Properties { source, role, .. } = port.properties();
    port.kind() != Kind::Own && (*source == Source::Made || *role == Role::Send)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Route};
    use inlane_core::load::Load;

    fn of(rx: &str, tx: &[&str], function: &str) -> BTreeMap<Resource, Option<f64>> {
        let mut config = Config::new(Route::one_way(rx, tx.iter().copied()).unwrap());
        config.function = function.into();
        config.cores = Some(Vec::new());
        let load = ForwardLoad::open(&config, None).unwrap();
        load.uses().into_iter().map(|used| (used.resource, used.per_byte)).collect()
    }

    #[test]
    fn ports_and_functions_take_memory() {
        let port = |name: &str| Resource::Port(name.into());
        let null = of("null:1024", &["null"], "io");
        assert_eq!(null.get(&port("null")), None, "it connects to nothing");
        assert_eq!(null.get(&Resource::HostMemory), None, "nothing touches the bytes");
        assert_eq!(null.get(&Resource::Processors), Some(&None), "only a measurement can tell");
        let checked = of("gen:1024", &["check"], "io");
        assert_eq!(checked[&Resource::HostMemory], Some(2.0), "one write, one read");
        // It reads and writes a cache line of each packet of 16 lines.
        let swapped = of("null:1024", &["null"], "macswap");
        assert_eq!(swapped[&Resource::HostMemory], Some(2.0 / 16.0));
        assert_eq!(of("gen:imix", &["check"], "macswap")[&Resource::HostMemory], None, "sizes are mixed");
        let folder = tempfile::tempdir().unwrap();
        let pcap = format!("pcap:{}", folder.path().join("sent").display());
        assert_eq!(of("gen:64", &[&pcap], "io")[&port(&pcap)], Some(1.0));
        let spread = of("gen:64", &[&pcap, "null"], "io");
        assert_eq!(spread[&port(&pcap)], None, "the function decides which port gets a packet");
    }

    #[test]
    fn a_part_of_a_packet_is_at_most_the_packet() {
        assert_eq!(part(Some(12), Some(64.0), SECTOR), Some(0.5));
        assert_eq!(part(Some(100), Some(64.0), SECTOR), Some(1.0));
        assert_eq!(part(Some(u32::MAX), None, SECTOR), Some(1.0));
        assert_eq!(part(Some(12), None, SECTOR), None);
        assert_eq!((part(Some(0), None, SECTOR), part(None, Some(64.0), SECTOR)), (Some(0.0), None));
    }
}
