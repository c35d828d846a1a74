//! Ceilings: the most that the resources of a run's path allow, measured on this machine.
//!
//! | executor | ceiling |
//! | --- | --- |
//! | CPU | the slowest link, if its rate is known |
//! | GPU | a bare kernel that moves the same bytes, without burst ring, threads and ports |
//!
//! A path on the CPU without a known link has no ceiling: the packet function alone, with packets in cache, runs up to 170 times as
//! fast as the path. The baseline shows what the ports allow.

use crate::config::{Config, Device, Executor};
use crate::error::Result;
#[cfg(feature = "cuda")]
use crate::gpu;
use crate::gpu::Memory;
#[cfg(feature = "cuda")]
use crate::result::Moved;
use crate::result::{CeilingOf, Note, PacketResult};
#[cfg(feature = "cuda")]
use inlane_function::PacketFunction;
use std::collections::HashMap;

type Ceiling = inlane_result::Ceiling<CeilingOf>;

/// The ceilings of runs. Runs on a GPU whose settings and packet sizes give the same ceiling share one measurement.
#[derive(Default)]
pub struct Ceilings {
    of_gpus: HashMap<String, Option<Ceiling>>,
    round_trip: Option<Option<Note>>,
}

impl Ceilings {
    /// Returns the ceiling of a run of `config` whose result is `result`, for all directions together. Returns `None` if the path has
    /// no ceiling that is known, or if the measurement fails. `link_bits_per_second` is the slowest link's rate in one direction.
    pub fn of(
        &mut self,
        config: &Config,
        link_bits_per_second: Option<f64>,
        result: &PacketResult,
    ) -> Option<Ceiling> {
        let Executor::Gpu { index, settings } = &config.executor else {
            let directions = config.route.directions();
            let resource = CeilingOf::Link { both_directions: directions == 2 };
            let of_link = |bits: f64| Ceiling::of_bytes(bits / 8.0 * directions as f64, resource);
            return link_bits_per_second.map(of_link);
        };
        let size = result.rx.bytes.checked_div(result.rx.packets).unwrap_or(64).max(1) as u32;
        let measured = (index, config.function.name(), settings.memory, config.per_pipeline.burst, size);
        let measure = || gpu_ceiling(config, *index, settings.memory, size).ok();
        self.of_gpus.entry(format!("{measured:?}")).or_insert_with(measure).clone()
    }

    /// Returns a note for the result: the round-trip time of a bare kernel with the same dependent reads
    /// as the executor. Returns `None` unless the run is on a GPU and measures its stages.
    pub fn round_trip_note(&mut self, config: &Config) -> Option<Note> {
        let Device::Gpu(index) = config.executor.device() else { return None };
        if !config.per_pipeline.stages {
            return None;
        }
        self.round_trip.get_or_insert_with(|| round_trip_note(index)).clone()
    }
}

#[cfg(feature = "cuda")]
fn gpu_ceiling(config: &Config, index: u32, memory: Memory, size: u32) -> Result<Ceiling> {
    let gpu = gpu::open(index)?;
    let program = gpu::LoadedFunction::new(&gpu, &PacketFunction::new(&config.function)?, memory)?;
    let read = size.min(program.info().reads).max(1);
    let (bytes, moved) = match memory {
        Memory::Gpu => (size, Moved::Whole),
        Memory::Split(bytes) => (size.min(bytes), Moved::Front),
        Memory::Pinned => (read, Moved::ReadInPinnedMemory),
        Memory::Pool => (read, Moved::ReadInGpuMemory),
    };
    let found = gpu::ceilings(&gpu, memory, size, bytes, &[config.per_pipeline.burst as u32])?;
    let pull = &found.pull[0];
    let copy_engine_bytes_per_second = found.copy_engine_bytes_per_second;
    Ok(Ceiling {
        resource: CeilingOf::BareKernel { gpu: index, moved, copy_engine_bytes_per_second },
        bytes_per_second: Some(pull.packets_per_second * size as f64),
        packets_per_second: Some(pull.packets_per_second),
    })
}

#[cfg(feature = "cuda")]
fn round_trip_note(index: u32) -> Option<Note> {
    let gpu = gpu::open(index).ok()?;
    let bare = gpu::round_trip(&gpu, 200_000).ok()?.nanoseconds?;
    Some(Note::BareRoundTrip { p50_ns: bare.p50_ns, p99_ns: bare.p99_ns })
}

#[cfg(not(feature = "cuda"))]
fn gpu_ceiling(_: &Config, index: u32, _: Memory, _: u32) -> Result<Ceiling> {
    Err(crate::gpu::open(index).err().expect("a GPU cannot be opened without feature cuda"))
}

#[cfg(not(feature = "cuda"))]
fn round_trip_note(_: u32) -> Option<Note> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Route;
    use inlane_ports::spec::PortSpec;

    #[test]
    fn the_ceiling_of_a_cpu_is_the_link_in_both_directions() {
        let port = |text| PortSpec::parse(text).unwrap();
        let mut config = Config::new(Route::Between(port("null:64"), port("null:65")));
        let rate = |config: &Config, link| {
            let found = Ceilings::default().of(config, link, &PacketResult::default());
            found.map(|ceiling| (ceiling.bytes_per_second.unwrap(), ceiling.resource.to_string()))
        };
        assert_eq!(
            rate(&config, Some(8e9)),
            Some((2e9, "the slowest link, both directions".to_owned())),
            "1 GB/s each way"
        );
        config.route = Route::one_way("pcap:a", ["pcap:b"]).unwrap();
        assert_eq!(rate(&config, Some(8e9)), Some((1e9, "the slowest link".to_owned())));
        assert_eq!(rate(&config, None), None, "the function alone is no ceiling of a path");
    }
}
