//! Measurements over runs: ceiling and baseline of one, the highest rate without loss, latency against load.

use crate::config::{Config, On, Route};
use crate::control::{Control, Reading};
use crate::error::{Error, Result};
use crate::gpu::{self, Memory};
use crate::run::{Outcome, run};
use inlane_core::result::{Baseline, Ceiling, Document, PacketResult};
use inlane_core::ring::layout::Outcome as Verdict;
use inlane_core::units::Rate;
use inlane_core::{HeapPool, Packet, Pool};
use inlane_function::Function;
use std::time::{Duration, Instant};

/// How long a baseline runs.
const BASELINE: Duration = Duration::from_millis(300);
/// How long the function's own speed is measured.
const CALIBRATION: Duration = Duration::from_millis(30);

/// The same run for a moment, nothing captured or disturbed.
pub(crate) fn shortened(config: &Config, duration: Duration) -> Config {
    let mut short = config.clone();
    short.drive.stages = false;
    short.drive.packets = u64::MAX;
    short.rate = None;
    short.capture = None;
    short.faults = None;
    short.duration = Some(duration);
    short
}

/// The same ports (or the same source, into nothing) with function `io` and no forced work, for a moment; `None` where
/// the source cannot be asked twice.
pub fn baseline(config: &Config, control: &Control) -> Option<Baseline> {
    let Route::OneWay { rx, tx } = &config.route else { return None };
    let kind = |name: &str| name.split([':', ',']).next().unwrap_or_default().to_string();
    if !["null", "gen", "pcap"].contains(&kind(rx).as_str()) || rx.contains(":-") || control.stopping() {
        return None;
    }
    let mut plain = config.clone();
    let same_sink = tx.len() == 1 && kind(&tx[0]) == "null";
    if !same_sink {
        plain.route = Route::OneWay { rx: rx.clone(), tx: vec!["null".into()] };
    }
    plain.function = "io".into();
    plain.drive.work = Duration::ZERO;
    plain.drive.stages = false;
    plain.rate = None;
    plain.capture = None;
    plain.faults = None;
    plain.duration = Some(BASELINE);
    let own = Control::default();
    let outcome = run(&plain, &own, &mut |_, _| ()).ok().filter(|outcome| outcome.errors.is_empty())?;
    let tx = &outcome.result.tx;
    let what = match same_sink {
        true => "the same ports and method, function io, no forced work".to_string(),
        false => format!("{rx} into null, the same method, function io, no forced work"),
    };
    Some(Baseline {
        what,
        bytes_per_second: Some(tx.bits_per_second / 8.0),
        packets_per_second: Some(tx.packets_per_second),
    })
}

/// What the resources of the path allow: the slowest link where there is one, and one core's time in the packet
/// function alone, measured now on 64 packets that stay in its cache.
///
/// On a GPU: a bare kernel that moves the same bytes of `result`'s packets, without ring, threads and ports.
pub fn ceiling(config: &Config, link_bits_per_second: Option<f64>, result: &PacketResult) -> Option<Ceiling> {
    if let On::Gpu(index) = config.on {
        return gpu_ceiling(config, index, result).ok();
    }
    let function = function_rate(config).ok()?;
    let executors = config.pipelines as f64 * config.workers.max(1) as f64;
    let each = config.drive.work.as_nanos() as f64 + 1e9 / function;
    let core_time = executors * 1e9 / each;
    Some(match link_bits_per_second {
        Some(bits) => Ceiling {
            what: format!(
                "the slowest link; {} of core time in the function alone allow {}",
                if executors == 1.0 {
                    "one core's second".into()
                } else {
                    format!("{executors} cores' seconds")
                },
                inlane_core::units::packets_per_second(core_time)
            ),
            bytes_per_second: Some(bits / 8.0),
            packets_per_second: None,
        },
        None => Ceiling {
            what: format!("core time of {executors} executor(s) in the function alone, packets in cache"),
            bytes_per_second: None,
            packets_per_second: Some(core_time),
        },
    })
}

fn gpu_ceiling(config: &Config, index: u32, result: &PacketResult) -> Result<Ceiling> {
    let size = result.rx.bytes.checked_div(result.rx.packets).unwrap_or(64).max(1) as u32;
    let gpu = inlane_cuda::Gpu::open(index)?;
    let program = gpu::Program::new(&gpu, &Function::parse(&config.function)?)?;
    let info = program.info();
    let (moved, what) = match config.gpu.memory {
        Memory::Gpu => (size, "pulls whole packets into GPU memory and writes 16 B of each back"),
        Memory::Split(bytes) => {
            (size.min(bytes), "pulls their front into GPU memory and writes 16 B of each back")
        }
        _ => (
            size.min(info.reads).max(1),
            "reads what the function reads of them and writes 16 B of each back",
        ),
    };
    let found = gpu::ceilings(&gpu, size, moved, &[config.drive.burst as u32])?;
    let pull = &found.pull[0];
    Ok(Ceiling {
        what: format!(
            "a bare kernel on {} that {what}; the copy engine moves {}",
            config.on,
            inlane_core::units::bytes_per_second(found.copy_engine_bytes_per_second)
        ),
        bytes_per_second: Some(pull.packets_per_second * size as f64),
        packets_per_second: Some(pull.packets_per_second),
    })
}

/// For runs on a GPU whose stages are timed: what the same dependent reads and fence take in a bare kernel.
pub fn round_trip_note(config: &Config) -> Option<String> {
    let On::Gpu(index) = config.on else { return None };
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

/// Packets a second that the function alone manages on this core.
fn function_rate(config: &Config) -> Result<f64> {
    let pool = HeapPool::new(64, 256)?;
    let mut packets = [Packet::EMPTY; 64];
    let got = pool.take(&mut packets);
    for packet in &mut packets {
        packet.length = 64;
        // SAFETY: just taken, host memory.
        let bytes = unsafe { packet.bytes_mut() };
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    }
    let mut outcomes = [Verdict::default(); 64];
    let mut instance = Function::parse(&config.function)?.instance()?;
    let start = Instant::now();
    let mut done = 0u64;
    while start.elapsed() < CALIBRATION {
        for _ in 0..64 {
            // SAFETY: the packets are held here, in host memory.
            unsafe { instance.run_packets(&packets[..got], &mut outcomes, 0) };
        }
        done += 64 * got as u64;
    }
    let rate = done as f64 / start.elapsed().as_secs_f64();
    pool.give(&packets[..got]);
    Ok(rate)
}

/// True when nothing was lost, missed or altered, and what was offered went through: a generator that is asked late does not
/// lose packets but sends them late, so that the rate achieved falls short of the rate offered.
fn lossless(outcome: &Outcome, offered: f64) -> bool {
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
        && outcome.verification.as_ref().is_none_or(|v| v.passed())
}

/// The highest rate without loss by bisection (RFC 2544 section 26.1), to within half a per cent, and the latency at each of
/// `loads` per cent of it; each trial lasts as long as the run was to last.
///
/// # Errors
/// When a trial cannot start, or nothing passes without loss at any rate.
pub fn against_load(
    config: &Config,
    loads: &[f64],
    control: &Control,
    watch: &mut dyn FnMut(Duration, Reading),
) -> Result<(Document<PacketResult>, Option<Error>)> {
    if !matches!(&config.route, Route::OneWay { rx, .. } if rx.starts_with("gen:") || rx.starts_with("null"))
    {
        return Err(Error::config(
            "--zero-loss",
            "needs a source that can be paced: --rx gen:SIZE or null:SIZE",
        ));
    }
    let mut trial = |rate: Option<f64>| -> Result<Outcome> {
        let mut paced = config.clone();
        paced.rate = rate.map(Rate::Packets);
        paced.duration = Some(config.duration.unwrap_or(Duration::from_secs(2)));
        let own = Control::default();
        // A signal ends the trial that runs, and through it the search.
        let mut relay = |elapsed, reading| {
            if control.stopping() {
                own.stop();
            }
            watch(elapsed, reading);
        };
        run(&paced, &own, &mut relay)
    };
    let flat_out = trial(None)?;
    let mut document = Document::new("forward", flat_out.path);
    document.twin = flat_out.twin;
    document.ceiling = ceiling(config, flat_out.link_bits_per_second, &flat_out.result);
    let fastest = flat_out.result.tx.packets_per_second;
    let (mut low, mut high) = (0.0, fastest);
    let mut best: Option<PacketResult> = None;
    let mut last_lossy: Option<String> = None;
    while high - low > fastest * 0.005 && !control.stopping() {
        let rate = if best.is_none() && low == 0.0 && high == fastest { fastest } else { (low + high) / 2.0 };
        let mut outcome = trial(Some(rate))?;
        let offered = format!("{rate:.0}");
        outcome.result.parameters.insert("offered_packets_per_second".into(), offered.clone());
        if lossless(&outcome, rate) {
            low = rate;
            best = Some(outcome.result);
            if rate >= fastest {
                break;
            }
        } else {
            last_lossy = Some(format!(
                "at {offered} packets/s offered {:.0} went through, {} lost",
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
        let why = last_lossy.unwrap_or_else(|| "the search was ended before a trial passed".into());
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
        let mut outcome = trial(Some(low * load / 100.0))?;
        outcome.result.parameters.insert("load_percent".into(), format!("{load}"));
        document.results.push(outcome.result);
    }
    Ok((document, None))
}
