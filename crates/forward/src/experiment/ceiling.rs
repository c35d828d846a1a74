//! Ceilings: the most that the resources of a run's path allow, measured on this machine.
//!
//! | executor | ceiling |
//! | --- | --- |
//! | CPU | the slowest link, and the core time that the packet function alone takes |
//! | GPU | a bare kernel that moves the same bytes, without burst ring, threads and ports |

use super::baseline::discard;
use crate::config::{Config, Device, Executor, Route};
use crate::error::{Error, Result};
#[cfg(feature = "cuda")]
use crate::gpu;
use crate::gpu::Memory;
#[cfg(feature = "cuda")]
use crate::result::Moved;
use crate::result::{CeilingOf, CoreTime, Note, PacketResult};
use crate::run::ports;
use inlane_core::clock::Clock;
use inlane_core::ring::layout::PacketVerdict;
use inlane_core::{HeapPool, Packet, Pool};
use inlane_function::PacketFunction;
use inlane_ports::pcap::{Pace, Playback};
use inlane_ports::spec::{PoolKind, PortSpec};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Ceiling = inlane_result::Ceiling<CeilingOf>;

/// The duration for which the packet function is timed.
const CALIBRATION: Duration = Duration::from_millis(30);
/// The number of sample packets on which the packet function is timed. They fit into the L1 cache.
const SAMPLE: usize = 64;
/// How often the packet function processes the sample packets before their original bytes are restored.
const ROUNDS: u64 = 32;

/// Measures the ceilings of runs and keeps the results. If the settings and packet sizes of two runs give the
/// same ceiling, the runs share one measurement.
#[derive(Default)]
pub struct Ceilings {
    known: HashMap<String, Option<Ceiling>>,
    round_trip: Option<Option<Note>>,
}

impl Ceilings {
    /// Returns the ceiling of a run of `config` whose result is `result`. Returns `None` if the measurement
    /// fails. `link_bits_per_second` is the slowest link's rate in one direction.
    ///
    /// On the CPU, the packet function is timed on 64 packets of the source. If the source cannot be read
    /// twice, UDP packets of the mean size are used.
    pub fn of(
        &mut self,
        config: &Config,
        link_bits_per_second: Option<f64>,
        result: &PacketResult,
    ) -> Option<Ceiling> {
        let size = result.rx.bytes.checked_div(result.rx.packets);
        let (executor, settings) = (&config.executor, &config.per_pipeline);
        let cores = (executor.device(), config.pipelines, executor.workers(), settings.work);
        let bytes = (config.function.name(), executor.gpu_memory(), settings.burst, size);
        let ports: Vec<&str> = config.route.ports().into_iter().map(PortSpec::text).collect();
        let key = format!("{cores:?} {bytes:?} {ports:?} {link_bits_per_second:?}");
        self.known.entry(key).or_insert_with(|| ceiling(config, link_bits_per_second, result)).clone()
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

fn ceiling(config: &Config, link_bits_per_second: Option<f64>, result: &PacketResult) -> Option<Ceiling> {
    match &config.executor {
        Executor::Cpu(_) => cpu_ceiling(config, link_bits_per_second, result),
        Executor::Gpu { index, settings } => gpu_ceiling(config, *index, settings.memory, result).ok(),
    }
}

/// Returns the ceiling of a run on the CPU, for all directions together. This is the rate of the slowest
/// link. If no link rate is known, it is the rate at which the workers can run the packet function.
fn cpu_ceiling(config: &Config, link_bits_per_second: Option<f64>, result: &PacketResult) -> Option<Ceiling> {
    let directions = config.route.directions();
    // Do not time function `io`. It does nothing, so a measurement would show only the time of the call.
    let idle = config.function.named() == Some("io");
    let function_ns = if idle { 0.0 } else { function_ns(config, result).ok()? };
    let workers = directions * config.pipelines as usize * config.executor.workers();
    let packet_ns = config.per_pipeline.work.as_nanos() as f64 + function_ns;
    let packets_per_second = (packet_ns > 0.0).then_some(workers as f64 * 1e9 / packet_ns);
    let core_time = CoreTime { threads: workers, packets_per_second };
    let Some(bits) = link_bits_per_second else {
        let resource = CeilingOf::CoreTime(core_time);
        return Some(Ceiling { resource, bytes_per_second: None, packets_per_second });
    };
    let resource = CeilingOf::Link { both_directions: directions == 2, core_time };
    Some(Ceiling::of_bytes(bits / 8.0 * directions as f64, resource))
}

#[cfg(feature = "cuda")]
fn gpu_ceiling(config: &Config, index: u32, memory: Memory, result: &PacketResult) -> Result<Ceiling> {
    let size = mean_size(result).max(1) as u32;
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
fn gpu_ceiling(_: &Config, index: u32, _: Memory, _: &PacketResult) -> Result<Ceiling> {
    Err(crate::gpu::open(index).err().expect("a GPU cannot be opened without feature cuda"))
}

#[cfg(not(feature = "cuda"))]
fn round_trip_note(_: u32) -> Option<Note> {
    None
}

/// Returns the mean size of the result's packets in bytes; 64 if it has none.
fn mean_size(result: &PacketResult) -> u64 {
    result.rx.bytes.checked_div(result.rx.packets).unwrap_or(64)
}

/// Times the packet function on packets like those of `result`. Returns nanoseconds per packet.
fn function_ns(config: &Config, result: &PacketResult) -> Result<f64> {
    let (pool, packets) = sample(config, result)?;
    let contents: Vec<Vec<u8>> = packets
        .iter()
        // SAFETY: this thread owns the packets, which lie in host memory.
        .map(|packet| unsafe { packet.bytes() }.to_vec())
        .collect();
    let mut outcomes = vec![PacketVerdict::default(); packets.len()];
    let mut instance = PacketFunction::new(&config.function)?.instance()?;
    instance.set_room(pool.room() as u32);
    let begun = Instant::now();
    let (mut spent, mut done) = (Duration::ZERO, 0u64);
    while begun.elapsed() < CALIBRATION {
        // Restore the packets' bytes. Otherwise, a function that decrements hop limits would soon drop the
        // packets as expired.
        for (packet, content) in packets.iter().zip(&contents) {
            // SAFETY: this thread owns the packet, and the packet is in host memory. Its buffer held these
            // bytes before, so they fit.
            unsafe { std::slice::from_raw_parts_mut(packet.address as *mut u8, content.len()) }
                .copy_from_slice(content);
        }
        let start = Instant::now();
        for _ in 0..ROUNDS {
            // SAFETY: this thread owns the packets, in host memory with the room that was set.
            unsafe { instance.run_packets(&packets, &mut outcomes, 0) };
        }
        spent += start.elapsed();
        done += ROUNDS * packets.len() as u64;
    }
    // SAFETY: the packets are from this pool. This thread holds them, and does not use them again.
    unsafe { pool.free(&packets) };
    Ok(spent.as_secs_f64() * 1e9 / done as f64)
}

/// Receives up to 64 sample packets of the kind that the run processed. Returns their pool and the packets.
fn sample(config: &Config, result: &PacketResult) -> Result<(Arc<dyn Pool>, Vec<Packet>)> {
    let usable = |rx: &&PortSpec| rx.can_reopen() && rx.properties().pool == PoolKind::Any;
    let source = match config.route.source().filter(usable) {
        Some(rx) => rx.clone(),
        None => PortSpec::generator(mean_size(result).clamp(64, 9216))?,
    };
    let mut alone = config.clone();
    alone.route = Route::OneWay { rx: source.clone(), tx: vec![discard()] };
    alone.playback = Playback { pace: Pace::Full, repeat: true };
    alone.rate = None;
    let mut opened = ports(&[source], &alone, None, &Clock::new())?;
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(2 * SAMPLE, opened.room)?);
    let port = &mut opened.ports[0];
    port.configure(std::slice::from_ref(&pool), 0)?;
    let mut rx = port.take_rx(0)?;
    port.start()?;
    let mut packets = vec![Packet::EMPTY; SAMPLE];
    let mut got = 0;
    while got < SAMPLE {
        match rx.receive(&mut packets[got..])? {
            0 => break,
            more => got += more,
        }
    }
    drop(rx);
    port.stop();
    if got == 0 {
        return Err(Error::config("ceiling", "the source gave no packet to time the function on"));
    }
    packets.truncate(got);
    Ok((pool, packets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;
    use crate::run::run;

    /// Runs 1000 packets from port `rx` through `function`, with `work` of added work per packet. Returns the
    /// ceiling that is measured for this run.
    fn ceiling_of(rx: &str, function: &str, work: Duration) -> Ceiling {
        let mut config = Config::new(Route::one_way(rx, ["null"]).unwrap());
        config.function = function.into();
        config.per_pipeline.work = work;
        config.per_pipeline.packets = 1000;
        config.cores = Some(Vec::new());
        let outcome = run(&config, &Control::default(), &mut |_, _| ()).unwrap();
        ceiling(&config, None, &outcome.result).unwrap()
    }

    #[test]
    fn ceilings_are_measured_on_the_packets_of_the_run() {
        let rate = |rx, function| ceiling_of(rx, function, Duration::ZERO).packets_per_second.unwrap();
        // Summing the longer packets takes over ten times as long. Require a factor of two, because other
        // jobs may run.
        let (short, long) = (rate("gen:64", "checksum"), rate("gen:1500", "checksum"));
        assert!(short > 2.0 * long, "{short} {long}");
    }

    #[test]
    fn io_has_no_ceiling_by_core_time_but_forced_work_has() {
        let nothing = ceiling_of("null", "io", Duration::ZERO);
        assert_eq!(nothing.packets_per_second, None);
        assert!(nothing.resource.to_string().contains("does nothing"), "{}", nothing.resource);
        let worked = ceiling_of("null", "io", Duration::from_nanos(200));
        assert_eq!(worked.packets_per_second, Some(5e6));
    }

    #[test]
    fn both_directions_count() {
        let port = |text| PortSpec::parse(text).unwrap();
        let mut config = Config::new(Route::Between(port("null:64"), port("null:65")));
        config.per_pipeline.work = Duration::from_nanos(200);
        config.pipelines = 2;
        let rate = |config: &Config| {
            ceiling(config, None, &PacketResult::default()).unwrap().packets_per_second.unwrap()
        };
        assert_eq!(rate(&config), 20e6, "two directions of two pipelines, 5 Mpps each");
        let linked = ceiling(&config, Some(8e9), &PacketResult::default()).unwrap();
        assert_eq!(linked.bytes_per_second, Some(2e9), "a link carries 1 GB/s each way");
        config.route = Route::one_way("pcap:a", ["pcap:b"]).unwrap();
        assert_eq!(rate(&config), 10e6);
    }
}
