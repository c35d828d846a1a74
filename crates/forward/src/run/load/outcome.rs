//! The outcome of a run: the sums of its pipelines' results, and the path that packets took.

use super::{ForwardLoad, Joined};
use crate::config::{Compete, Config, Executor};
use crate::control::TimeShares;
use crate::error::Error;
use crate::gpu::{self, LinkSamples};
use crate::pipeline::{PipelineSettings, StageHistograms, Tally, WorkShares};
use crate::result::{
    LaunchShape, MethodReason, Note, PacketResult, PacketTotals, Parameters, Pcie, PcieMeasured, Stages,
};
use crate::run::wiring::Direction;
use crate::run::wrappers;
use inlane_core::Port;
use inlane_core::port::Counters;
use inlane_core::stats::{LatencyHistogram, Summary};
use inlane_core::verification::Verification;
use inlane_function::FunctionReport;
use inlane_process::cgroup::CpuQuota;
use inlane_result::{PathExplanation, Quantity};
use std::time::Duration;

/// The outcome of a run.
pub struct RunOutcome {
    /// The row of the result document: rates, drops, latencies and the like.
    pub result: PacketResult,
    /// The devices that the run used.
    pub devices: Vec<String>,
    /// True if the run used a software stand-in for a device.
    pub twin: bool,
    /// The bit rate of the slowest link, counting one direction. `None` if no port has a link.
    pub link_bits_per_second: Option<f64>,
    /// How the threads of each pipeline spent their time.
    pub time_shares: Vec<TimeShares>,
    /// The time in which threads of the pipelines were ready to run while other threads used the processors,
    /// in nanoseconds.
    pub queued_ns: u64,
    /// The quota of processor time, with the periods of this run. `None` if the process has no quota.
    pub quota: Option<CpuQuota>,
    /// How the dispatching threads' work divides. `None` if no bursts were sampled.
    pub work: Option<WorkShares>,
    /// The number of packets that were dropped because a port refused them.
    /// `result.dropped_overload` includes this number.
    pub refused_packets: u64,
    /// Remarks that a reader needs to interpret the result, such as the number of injected faults.
    pub notes: Vec<Note>,
    /// Errors during the run, in order. After an error, the result covers the time up to the failure.
    pub errors: Vec<Error>,
}

#[cfg(test)]
impl RunOutcome {
    /// Creates an outcome from a result. All other fields are empty.
    pub(crate) fn of(result: PacketResult) -> Self {
        Self {
            result,
            devices: Vec::new(),
            twin: false,
            link_bits_per_second: None,
            time_shares: Vec::new(),
            queued_ns: 0,
            quota: None,
            work: None,
            refused_packets: 0,
            notes: Vec::new(),
            errors: Vec::new(),
        }
    }
}

impl RunOutcome {
    /// Adds up the results of a run's pipelines. `device` counts lost and refused packets that are in no
    /// queue's counters.
    pub(super) fn new(load: &ForwardLoad, joined: Joined, device: Counters) -> Self {
        let Joined { tallies, elapsed, competitor, link, quota } = joined;
        let ForwardLoad { config, ports, directions, pools, gpu, faults, .. } = load;
        let threads = config.executor.threads();
        let meters = load.meters.chunks(threads);
        let received_packets = tallies.iter().map(|(tally, _)| tally.rx.packets).collect();
        let mut sum = Tally::default();
        let mut reported = FunctionReport::default();
        let mut lane: Option<gpu::LaneReport> = None;
        for (tally, report) in tallies {
            tally.functions.iter().for_each(|instance| reported.merge(instance.report()));
            if let Some(report) = report {
                match &mut lane {
                    Some(lane) => lane.add(report),
                    None => lane = Some(report),
                }
            }
            sum.add(tally);
        }
        if let Some(lane) = &lane {
            reported.merge(lane.function.clone());
        }
        sum.rx.missed += device.missed;
        sum.rx.errors += device.errors;
        let nanoseconds = elapsed.as_nanos() as u64;
        let latency = ports.iter().filter_map(|port| port.latency()).reduce(|mut all, one| {
            all.add(&one);
            all
        });
        let shape = lane.as_ref().map(|report| report.shape.clone());
        let hops = hops(config, ports, directions, shape.as_ref());
        let method = config.executor.method();
        let mut notes = Vec::new();
        if config.pipelines > 1 {
            notes.push(Note::Pipelines { received_packets });
        }
        let (mut errors, mut measured) = (sum.errors, None);
        let competitor = competitor.and_then(|found| found.map_err(|error| errors.push(error)).ok());
        match link {
            Some(Ok(samples)) => measured = pcie_measured(&samples),
            Some(Err(error)) => notes.push(Note::PcieNotMeasured { why: error.to_string() }),
            None => {}
        }
        notes.extend(wrappers::faults(faults).map(Note::Faults));
        let result = PacketResult {
            parameters: parameters(config),
            error: None,
            ports: load.specs.iter().map(|spec| spec.text().to_string()).collect(),
            path: PathExplanation {
                name: method,
                hops,
                reason: MethodReason::Set { method },
                not_taken: Vec::new(),
            },
            shape,
            ceiling: None,
            baseline: None,
            verification: verification(ports, load.reference.is_some(), sum.dropped_verdict),
            duration_ns: nanoseconds,
            rx: PacketTotals::over(&sum.rx, elapsed.as_secs_f64()),
            tx: PacketTotals::over(&sum.tx, elapsed.as_secs_f64()),
            dropped_overload: sum.dropped_overload,
            dropped_verdict: sum.dropped_verdict,
            dropped_invalid: sum.dropped_invalid,
            dropped_unsent: sum.dropped_unsent,
            leaked_buffers: pools.iter().flatten().map(|pool| pool.outstanding() as u64).sum(),
            latency: latency.as_ref().and_then(LatencyHistogram::percentiles),
            stages: config.per_pipeline.stages.then(|| stages(&sum.stages)),
            cpu_ns: sum.time.cpu_ns,
            flags: lane.as_ref().map(|report| report.flags.clone()),
            memory: lane.as_ref().map(|report| report.memory.clone()),
            pcie: lane.as_ref().map(|report| Pcie {
                modelled_bytes: report.pcie_bytes,
                model: gpu::PCIE_MODEL.into(),
                measured,
            }),
            competitor,
            repeats: None,
            limit: None,
            function: (reported != FunctionReport::default()).then_some(reported),
        };
        let links = ports.iter().filter_map(|port| port.info().link_bits_per_second);
        RunOutcome {
            result,
            devices: gpu.iter().map(|gpu| gpu.to_string()).collect(),
            twin: ports.iter().any(|port| port.info().twin),
            link_bits_per_second: links.min_by(f64::total_cmp),
            time_shares: meters
                .map(|meters| {
                    let feeder = gpu.as_ref().and(meters.get(1)).map(|meter| meter.read());
                    TimeShares::of(meters[0].read(), feeder, nanoseconds)
                })
                .collect(),
            queued_ns: sum.time.queued_ns,
            quota,
            work: sum.work.shares(),
            refused_packets: sum.refused_packets,
            notes,
            errors,
        }
    }
}

/// Adds up what checkers found. Without a reference, each checker expects all packets, and the function's verdicts tell how
/// many it dropped.
fn verification(ports: &[Box<dyn Port>], has_reference: bool, dropped: u64) -> Option<Verification> {
    let mut found = ports.iter().filter_map(|port| port.verification());
    let mut sum = found.next()?;
    let sent = sum.expected;
    found.for_each(|one| sum.add(&one));
    if !has_reference {
        sum.expected = sent.map(|sent| sent.saturating_sub(dropped));
        sum.lost = sum.expected.unwrap_or(0).saturating_sub(sum.checked - sum.duplicated);
    }
    Some(sum)
}

/// Returns the hops of each direction: port, packet function with its executor, ports.
fn hops(
    config: &Config,
    ports: &[Box<dyn Port>],
    directions: &[Direction],
    shape: Option<&LaunchShape>,
) -> Vec<Vec<String>> {
    let path = |index: usize| ports[index].info().path.clone();
    let (device, method) = (config.executor.device(), config.executor.method());
    let shape = shape.map_or(String::new(), |shape| format!(", {shape}"));
    let hop = |direction: &Direction| {
        let to: Vec<_> = direction.tx.iter().map(|&tx| path(tx)).collect();
        let function = format!("{} on {device} ({method}{shape})", config.function);
        vec![path(direction.rx), function, to.join(" | ")]
    };
    directions.iter().map(hop).collect()
}

/// Summarises the GPU's own counters of its PCIe link.
fn pcie_measured(samples: &LinkSamples) -> Option<PcieMeasured> {
    Some(PcieMeasured {
        in_bytes_per_second: Summary::of(&samples.received)?,
        out_bytes_per_second: Summary::of(&samples.sent)?,
        how: "NVML's throughput of the GPU's link, all traffic, in consecutive windows of 20 ms".into(),
    })
}

fn stages(histograms: &StageHistograms) -> Stages {
    Stages {
        queue: histograms.queue.percentiles(),
        process: histograms.process.percentiles(),
        send: histograms.send.percentiles(),
        total: histograms.total.percentiles(),
    }
}

/// Returns the parameters that distinguish this run from other runs. Always includes function, device, method
/// and burst, and for a GPU the memory. Includes another parameter only if it differs from its default.
fn parameters(config: &Config) -> Parameters {
    let executor = &config.executor;
    // Every setting is named, so whether a new one is a parameter must be decided here. Sweeps set the parameters of the others.
    let PipelineSettings { burst, flush, work, slots: _, overload: _, stages: _, packets: _, watchdog: _ } =
        config.per_pipeline;
    let nanoseconds = |time: Duration| Quantity::Time(time.as_nanos() as f64);
    let number = |number: usize| Quantity::Number(number as f64);
    let mut parameters = Parameters::default();
    parameters.set("function", config.function.name());
    parameters.set("on", executor.device().to_string());
    parameters.set("method", executor.method().to_string());
    parameters.set("burst", number(burst));
    if !flush.is_zero() {
        parameters.set("flush", nanoseconds(flush));
    }
    if let Executor::Gpu { settings, .. } = executor {
        parameters.set("memory", settings.memory.to_string());
    }
    if config.pipelines > 1 {
        parameters.set("pipelines", number(config.pipelines.into()));
    }
    if executor.workers() > 1 {
        parameters.set("workers", number(executor.workers()));
    }
    if config.compete != Compete::None {
        parameters.set("compete", config.compete.to_string());
    }
    if !work.is_zero() {
        parameters.set("work", nanoseconds(work));
    }
    parameters
}
