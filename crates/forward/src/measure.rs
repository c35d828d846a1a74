//! Measurements over runs: ceiling and baseline of one, the highest rate without loss, latency against load.

use crate::config::{Compete, Config, Device, Route};
use crate::control::{Control, ProgressSnapshot};
use crate::error::{Error, Result};
use crate::gpu::{self, Memory};
use crate::limit::limit;
use crate::open;
use crate::result::{PacketResult, Quantity};
use crate::run::{RunOutcome, run};
use inlane_core::clock::Clock;
use inlane_core::result::{Baseline, Ceiling, Document, Path};
use inlane_core::ring::layout::PacketVerdict;
use inlane_core::units::Rate;
use inlane_core::{HeapPool, Packet, Pool};
use inlane_function::PacketFunction;
use inlane_ports::pcap::{Pace, Playback};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name of the parameter with the offered rate: the rate at which packets were due.
pub const OFFERED: &str = "offered";

/// How long a baseline runs.
const BASELINE: Duration = Duration::from_millis(300);
/// How long the function's own speed is measured.
const CALIBRATION: Duration = Duration::from_millis(30);
/// Packets that it is measured on, and how many times they go through before they are as they were at first.
const SAMPLE: usize = 64;
const ROUNDS: u64 = 32;

/// The same run for a moment, nothing captured or disturbed.
pub(crate) fn shortened(config: &Config, duration: Duration) -> Config {
    let mut short = config.clone();
    short.drive.stages = false;
    short.drive.packets = u64::MAX;
    short.rate = None;
    short.capture = None;
    short.faults = None;
    short.compete = Compete::None;
    short.measure_pcie = false;
    short.duration = Some(duration);
    short
}

/// The same ports (or the same source, into nothing) with function `io` and no forced work, for a moment; `None` where
/// the source cannot be asked twice.
pub fn baseline(config: &Config, control: &Control) -> Option<Baseline> {
    let Route::OneWay { rx, tx } = &config.route else { return None };
    let kind = open::kind;
    if !is_repeatable(rx) || control.stopping() {
        return None;
    }
    let mut plain = shortened(config, BASELINE);
    let same_sink = tx.len() == 1 && kind(&tx[0]) == "null";
    if !same_sink {
        plain.route = Route::OneWay { rx: rx.clone(), tx: vec!["null".into()] };
    }
    plain.function = "io".into();
    plain.drive.work = Duration::ZERO;
    // A short capture is over before its rate means anything.
    plain.playback = Playback { pace: Pace::Full, repeat: true };
    let own = Control::default();
    let outcome = run(&plain, &own, &mut |_, _| ()).ok().filter(|outcome| outcome.errors.is_empty())?;
    let tx = &outcome.result.tx;
    let what = match same_sink {
        true => "the same ports and method, function io, no forced work".to_string(),
        false if kind(rx) == "pcap" => {
            format!("{rx} over and over into null, the same method, function io, no forced work")
        }
        false => format!("{rx} into null, the same method, function io, no forced work"),
    };
    Some(Baseline {
        what,
        bytes_per_second: Some(tx.bits_per_second / 8.0),
        packets_per_second: Some(tx.packets_per_second),
    })
}

/// What the resources of the path allow: the slowest link where there is one, and one core's time in the packet
/// function alone, measured now on 64 packets of the source (of a port that cannot be asked twice, on UDP of the mean size)
/// that stay in its cache. A function that does nothing a packet has no such ceiling, which is said.
///
/// On a GPU: a bare kernel that moves the same bytes of `result`'s packets, without ring, threads and ports.
fn ceiling(config: &Config, link_bits_per_second: Option<f64>, result: &PacketResult) -> Option<Ceiling> {
    if let Device::Gpu(index) = config.on {
        return gpu_ceiling(config, index, result).ok();
    }
    // What is measured of a function that does nothing is the call.
    let nothing = config.function == "io";
    let function_ns = if nothing { 0.0 } else { function_ns(config, result).ok()? };
    let executors = config.pipelines as f64 * config.workers.max(1) as f64;
    let each = config.drive.work.as_nanos() as f64 + function_ns;
    let core_time = (each > 0.0).then_some(executors * 1e9 / each);
    let in_function = match core_time {
        Some(_) => format!("core time of {executors} executor(s) in the function alone, packets in cache"),
        None => "none by core time: function io does nothing a packet".into(),
    };
    Some(match (link_bits_per_second, core_time) {
        (Some(bits), Some(rate)) => Ceiling {
            what: format!(
                "the slowest link; {in_function}: {}",
                inlane_core::units::packets_per_second(rate)
            ),
            bytes_per_second: Some(bits / 8.0),
            packets_per_second: None,
        },
        (Some(bits), None) => Ceiling {
            what: format!("the slowest link; {in_function}"),
            bytes_per_second: Some(bits / 8.0),
            packets_per_second: None,
        },
        (None, rate) => Ceiling { what: in_function, bytes_per_second: None, packets_per_second: rate },
    })
}

fn gpu_ceiling(config: &Config, index: u32, result: &PacketResult) -> Result<Ceiling> {
    let size = result.rx.bytes.checked_div(result.rx.packets).unwrap_or(64).max(1) as u32;
    let gpu = inlane_cuda::Gpu::open(index)?;
    let program =
        gpu::LoadedFunction::new(&gpu, &PacketFunction::parse(&config.function)?, config.gpu.memory)?;
    let info = program.info();
    let (moved, what) = match config.gpu.memory {
        Memory::Gpu => (size, "pulls whole packets into GPU memory and writes 16 B of each back"),
        Memory::Split(bytes) => {
            (size.min(bytes), "pulls their front into GPU memory and writes 16 B of each back")
        }
        Memory::Pinned => (
            size.min(info.reads).max(1),
            "reads what the function reads of them and writes 16 B of each back",
        ),
        Memory::Pool => (
            size.min(info.reads).max(1),
            "reads what the function reads of them in GPU memory and writes 16 B of each back there",
        ),
    };
    let found = gpu::ceilings(&gpu, config.gpu.memory, size, moved, &[config.drive.burst as u32])?;
    let pull = &found.pull[0];
    let copy_engine = found.copy_engine_bytes_per_second.map_or(String::new(), |rate| {
        format!("; the copy engine moves {}", inlane_core::units::bytes_per_second(rate))
    });
    Ok(Ceiling {
        what: format!("a bare kernel on {} that {what}{copy_engine}", config.on),
        bytes_per_second: Some(pull.packets_per_second * size as f64),
        packets_per_second: Some(pull.packets_per_second),
    })
}

/// For runs on a GPU whose stages are timed: what the same dependent reads and fence take in a bare kernel.
fn round_trip_note(config: &Config) -> Option<String> {
    let Device::Gpu(index) = config.on else { return None };
    if !config.drive.stages {
        return None;
    }
    let gpu = inlane_cuda::Gpu::open(index).ok()?;
    let bare = gpu::round_trip(&gpu, 200_000).ok()?.nanoseconds?;
    let text = inlane_core::units::nanoseconds;
    Some(format!(
        "a bare kernel with the same dependent reads, one packet and one fence an item: p50 {}, p99 {}",
        text(bare.p50_ns),
        text(bare.p99_ns)
    ))
}

/// Nanoseconds that the function alone takes for a packet like those of `result`, on this core.
fn function_ns(config: &Config, result: &PacketResult) -> Result<f64> {
    let (pool, packets) = sample(config, result)?;
    let contents: Vec<Vec<u8>> = packets
        .iter()
        // SAFETY: held here, in host memory.
        .map(|packet| unsafe { packet.bytes() }.to_vec())
        .collect();
    let mut outcomes = vec![PacketVerdict::default(); packets.len()];
    let mut instance = PacketFunction::parse(&config.function)?.instance()?;
    instance.set_room(pool.room() as u32);
    let begun = Instant::now();
    let (mut spent, mut done) = (Duration::ZERO, 0u64);
    while begun.elapsed() < CALIBRATION {
        // As they came: a function that counts hops down meets the same packets again.
        for (packet, content) in packets.iter().zip(&contents) {
            // SAFETY: as above, and as long as its content was.
            unsafe { std::slice::from_raw_parts_mut(packet.address as *mut u8, content.len()) }
                .copy_from_slice(content);
        }
        let start = Instant::now();
        for _ in 0..ROUNDS {
            // SAFETY: the packets are held here, in host memory with the room that was set.
            unsafe { instance.run_packets(&packets, &mut outcomes, 0) };
        }
        spent += start.elapsed();
        done += ROUNDS * packets.len() as u64;
    }
    // SAFETY: these packets are held here, are of this pool, and are not used again.
    unsafe { pool.free(&packets) };
    Ok(spent.as_secs_f64() * 1e9 / done as f64)
}

/// Up to 64 packets such as the run received, in a pool of their own.
fn sample(config: &Config, result: &PacketResult) -> Result<(Arc<dyn Pool>, Vec<Packet>)> {
    let mean = result.rx.bytes.checked_div(result.rx.packets).unwrap_or(64).clamp(64, 9216);
    let source = match &config.route {
        Route::OneWay { rx, .. } if is_repeatable(rx) => rx.clone(),
        _ => format!("gen:{mean}"),
    };
    let mut alone = config.clone();
    alone.route = Route::OneWay { rx: source.clone(), tx: vec!["null".into()] };
    alone.playback = Playback { pace: Pace::Full, repeat: true };
    alone.rate = None;
    let open::Opened { mut ports, room } = open::ports(&[source], &alone, &Clock::new())?;
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(2 * SAMPLE, room)?);
    let port = &mut ports[0];
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
        return Err(Error::config("ceiling", "the source gave no packet to measure the function on"));
    }
    packets.truncate(got);
    Ok((pool, packets))
}

/// Sources that can be asked a second time and give the same.
fn is_repeatable(rx: &str) -> bool {
    ["null", "gen", "pcap"].contains(&open::kind(rx)) && !rx.starts_with("pcap:-")
}

/// Ceilings measured so far in this process: runs that differ only in what does not matter to a ceiling share it.
#[derive(Default)]
pub struct Ceilings {
    known: HashMap<String, Option<Ceiling>>,
    round_trip: Option<Option<String>>,
}

impl Ceilings {
    /// What the resources of this run's path allow: the slowest link, core time in the function alone, on a GPU a bare kernel that
    /// moves the same bytes of `result`'s packets.
    pub fn of(
        &mut self,
        config: &Config,
        link_bits_per_second: Option<f64>,
        result: &PacketResult,
    ) -> Option<Ceiling> {
        let size = result.rx.bytes.checked_div(result.rx.packets);
        let executors = (config.on, config.pipelines, config.workers, config.drive.work);
        let bytes = (&config.function, config.gpu.memory, config.drive.burst, size);
        let key = format!("{executors:?} {bytes:?} {:?} {link_bits_per_second:?}", config.route);
        self.known.entry(key).or_insert_with(|| ceiling(config, link_bits_per_second, result)).clone()
    }

    /// For runs on a GPU whose stages are timed: what the same dependent reads and fence take in a bare kernel.
    pub fn round_trip_note(&mut self, config: &Config) -> Option<String> {
        if config.on == Device::Cpu || !config.drive.stages {
            return None;
        }
        self.round_trip.get_or_insert_with(|| round_trip_note(config)).clone()
    }
}

/// True when nothing was lost, missed or altered, and what was offered went through: a generator that is asked late does not
/// lose packets but sends them late, so that the rate achieved falls short of the rate offered.
fn lossless(outcome: &RunOutcome, offered: f64) -> bool {
    let result = &outcome.result;
    let counted = result.rx.missed
        + result.rx.errors
        + result.tx.errors
        + result.dropped_overload
        + result.dropped_invalid
        + result.dropped_unsent;
    let achieved = result.tx.packets_per_second >= offered * 0.998;
    achieved
        && counted == 0
        && outcome.errors.is_empty()
        && outcome.result.verification.as_ref().is_none_or(|v| v.passed())
}

/// The highest rate without loss by bisection (RFC 2544 section 26.1), to within half a per cent, and the latency at each of
/// `loads` per cent of it; each trial lasts as long as the run was to last.
///
/// # Errors
/// When a trial cannot start, or nothing passes without loss at any rate.
pub fn against_load(
    config: &Config,
    loads: &[f64],
    control: &Arc<Control>,
    ceilings: &mut Ceilings,
    watch: &mut dyn FnMut(Duration, ProgressSnapshot),
) -> Result<(Document<PacketResult>, Option<Error>)> {
    if !matches!(&config.route, Route::OneWay { rx, .. } if rx.starts_with("gen:") || rx.starts_with("null"))
    {
        return Err(Error::config(
            "--zero-loss",
            "needs a source that can be paced: --rx gen:SIZE or null:SIZE",
        ));
    }
    let mut trial = |rate: Option<f64>| -> Result<(Config, RunOutcome)> {
        let mut paced = config.clone();
        paced.rate = rate.map(Rate::Packets);
        paced.duration = Some(config.duration.unwrap_or(Duration::from_secs(2)));
        let mut outcome = run(&paced, &Control::under(control), watch)?;
        if let Some(rate) = rate {
            outcome.result.parameters.set(OFFERED, Quantity::Rate(Rate::Packets(rate)));
        }
        Ok((paced, outcome))
    };
    let (_, flat_out) = trial(None)?;
    let ceiling = ceilings.of(config, flat_out.link_bits_per_second, &flat_out.result);
    let explained = |(paced, mut outcome): (Config, RunOutcome)| -> PacketResult {
        outcome.result.ceiling = ceiling.clone();
        outcome.result.limit = limit(&paced, &outcome);
        outcome.result
    };
    let mut document = Document::new("forward", Path::default());
    document.twin = flat_out.twin;
    document.devices = flat_out.devices.clone();
    let fastest = flat_out.result.tx.packets_per_second;
    let (mut low, mut high) = (0.0, fastest);
    let mut best: Option<PacketResult> = None;
    let mut last_lossy: Option<String> = None;
    while high - low > fastest * 0.005 && !control.stopping() {
        let rate = if best.is_none() && low == 0.0 && high == fastest { fastest } else { (low + high) / 2.0 };
        let (paced, outcome) = trial(Some(rate))?;
        if lossless(&outcome, rate) {
            low = rate;
            best = Some(explained((paced, outcome)));
            if rate >= fastest {
                break;
            }
        } else {
            last_lossy = Some(format!(
                "at {rate:.0} packets/s offered {:.0} went through, {} lost",
                outcome.result.tx.packets_per_second,
                outcome.result.rx.missed + outcome.result.dropped_overload,
            ));
            high = rate * if rate >= fastest { 0.999 } else { 1.0 };
        }
        if high < fastest * 0.01 {
            break;
        }
    }
    let Some(best) = best else {
        if control.stopping() {
            document.notes.push("the search was ended before a rate passed: this is the run flat out".into());
            document.results.push(explained((config.clone(), flat_out)));
            return Ok((document, None));
        }
        let why = last_lossy.unwrap_or_default();
        let failure = Error::Verification(format!("no rate passed without loss: {why}"));
        return Ok((document, Some(failure)));
    };
    document.notes.push(format!(
        "highest rate without loss: {} ({} flat out, lossy rates above: {})",
        inlane_core::units::packets_per_second(low),
        inlane_core::units::packets_per_second(fastest),
        last_lossy.unwrap_or_else(|| "none".into())
    ));
    if loads.is_empty() {
        document.results.push(best);
    }
    for load in loads {
        if control.stopping() {
            break;
        }
        let mut result = explained(trial(Some(low * load / 100.0))?);
        result.parameters.set("load", Quantity::Percent(*load));
        document.results.push(result);
    }
    Ok((document, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ceiling of a short run that does this.
    fn ceiling_of(rx: &str, function: &str, work: Duration) -> Ceiling {
        let mut config = Config::new(Route::OneWay { rx: rx.into(), tx: vec!["null".into()] });
        config.function = function.into();
        config.drive.work = work;
        config.drive.packets = 1000;
        config.cores = Some(Vec::new());
        let outcome = run(&config, &Control::default(), &mut |_, _| ()).unwrap();
        ceiling(&config, None, &outcome.result).unwrap()
    }

    #[test]
    fn ceilings_are_of_the_packets_that_the_run_has() {
        let rate = |rx, function| ceiling_of(rx, function, Duration::ZERO).packets_per_second.unwrap();
        // Each byte is summed: what is long takes longer. The machine may be busy with something else.
        let (short, long) = (rate("gen:64", "checksum"), rate("gen:1500", "checksum"));
        assert!(short > 2.0 * long, "{short} {long}");
        // Hops are counted down to none within a few rounds, if packets are not made anew.
        assert!(rate("gen:64", "l3-decrement") > 1e5);
    }

    #[test]
    fn a_function_that_does_nothing_sets_no_ceiling_but_forced_work_does() {
        let nothing = ceiling_of("null", "io", Duration::ZERO);
        assert_eq!(nothing.packets_per_second, None);
        assert!(nothing.what.contains("does nothing"), "{}", nothing.what);
        let worked = ceiling_of("null", "io", Duration::from_nanos(200));
        assert_eq!(worked.packets_per_second, Some(5e6));
    }
}
