//! What a run came to: the figures of its pipelines added up, with what carried the packets.

use crate::config::{Compete, Config, Device};
use crate::control::TimeShares;
use crate::error::Error;
use crate::gpu;
use crate::pipeline::{StageHistograms, Tally};
use crate::result::{Flow, PacketResult, Parameters, Pcie, PcieMeasured, Quantity, Stages};
use crate::run::Direction;
use inlane_core::Port;
use inlane_core::port::Counters;
use inlane_core::result::Path;
use inlane_core::stats::{LatencyHistogram, Summary};
use inlane_cuda::LinkSamples;
use inlane_function::{FunctionReport, PacketFunction};
use std::time::Duration;

/// What a run came to.
pub struct RunOutcome {
    /// The figures.
    pub result: PacketResult,
    /// The devices that took part.
    pub devices: Vec<String>,
    /// A software stand-in took part.
    pub twin: bool,
    /// The slowest link's rate, where a port has one.
    pub link_bits_per_second: Option<f64>,
    /// How each pipeline's threads spent their time.
    pub spent: Vec<TimeShares>,
    /// What a reader of the figures should know.
    pub notes: Vec<String>,
    /// What went wrong while it ran; the figures hold all the same.
    pub errors: Vec<Error>,
}

/// What is left of a run when its threads have ended.
pub(crate) struct Ended<'a> {
    /// What each pipeline counted, and what it did on a GPU.
    pub(crate) tallies: Vec<(Tally, Option<gpu::LaneReport>)>,
    pub(crate) function: &'a PacketFunction,
    pub(crate) ports: &'a [Box<dyn Port>],
    pub(crate) directions: &'a [Direction],
    /// How long packets flowed.
    pub(crate) elapsed: Duration,
    /// How each pipeline's threads spent it.
    pub(crate) spent: Vec<TimeShares>,
    /// What devices counted beside their queues.
    pub(crate) device: Counters,
    pub(crate) leaked_buffers: u64,
}

/// The figures of a run of `config`.
pub(crate) fn outcome(config: &Config, ended: Ended<'_>) -> RunOutcome {
    let Ended { tallies, function, ports, directions, elapsed, spent, device, leaked_buffers } = ended;
    let mut sum = Tally::default();
    let mut said = FunctionReport::default();
    let mut on_gpu: Option<gpu::LaneReport> = None;
    let each: Vec<String> = tallies.iter().map(|(tally, _)| tally.rx.packets.to_string()).collect();
    for (tally, report) in tallies {
        tally.functions.iter().for_each(|instance| said.merge(instance.report()));
        if let Some(report) = report {
            said.merge(function.report(&report.state));
            let pcie_bytes = on_gpu.as_ref().map_or(0, |sum| sum.pcie_bytes) + report.pcie_bytes;
            on_gpu = Some(gpu::LaneReport { pcie_bytes, ..report });
        }
        sum.rx += tally.rx;
        sum.tx += tally.tx;
        sum.dropped_overload += tally.dropped_overload;
        sum.dropped_verdict += tally.dropped_verdict;
        sum.dropped_invalid += tally.dropped_invalid;
        sum.dropped_unsent += tally.dropped_unsent;
        sum.cpu_ns += tally.cpu_ns;
        sum.stages.add(&tally.stages);
        sum.errors.extend(tally.errors);
    }
    sum.rx.missed += device.missed;
    sum.rx.errors += device.errors;
    let seconds = elapsed.as_secs_f64();
    let latency = ports.iter().filter_map(|port| port.latency()).reduce(|mut all, one| {
        all.add(&one);
        all
    });
    let hop = |index: usize| ports[index].info().path.clone();
    let hops: Vec<String> = directions
        .iter()
        .map(|direction| {
            let to: Vec<_> = direction.tx.iter().map(|&tx| hop(tx)).collect();
            format!(
                "{} -> {} on {} ({}{}) -> {}",
                hop(direction.rx),
                config.function,
                config.on,
                config.method,
                on_gpu.as_ref().map_or(String::new(), |report| format!(", {}", report.shape)),
                to.join(" | ")
            )
        })
        .collect();
    let result = PacketResult {
        parameters: parameters(config),
        error: None,
        ports: Vec::new(),
        path: Path { hops, ..Path::default() },
        shape: on_gpu.as_ref().map(|report| report.shape.clone()),
        ceiling: None,
        baseline: None,
        verification: ports.iter().find_map(|port| port.verification()),
        duration_ns: elapsed.as_nanos() as u64,
        rx: Flow::over(&sum.rx, seconds),
        tx: Flow::over(&sum.tx, seconds),
        dropped_overload: sum.dropped_overload,
        dropped_verdict: sum.dropped_verdict,
        dropped_invalid: sum.dropped_invalid,
        dropped_unsent: sum.dropped_unsent,
        leaked_buffers,
        latency: latency.as_ref().and_then(LatencyHistogram::percentiles),
        stages: config.drive.stages.then(|| stages(&sum.stages)),
        cpu_ns: sum.cpu_ns,
        flags: on_gpu.as_ref().map(|report| report.flags.clone()),
        memory: on_gpu.as_ref().map(|report| report.memory.clone()),
        pcie: on_gpu.as_ref().map(|report| Pcie {
            modelled_bytes: report.pcie_bytes,
            model: gpu::PCIE_MODEL.into(),
            measured: None,
        }),
        competitor: None,
        repeats: None,
        limit: None,
        function: if said == FunctionReport::default() { None } else { serde_json::to_value(said).ok() },
    };
    RunOutcome {
        result,
        devices: Vec::new(),
        twin: ports.iter().any(|port| port.info().twin),
        link_bits_per_second: ports
            .iter()
            .filter_map(|port| port.info().link_bits_per_second)
            .min_by(f64::total_cmp),
        spent,
        notes: match config.pipelines {
            1 => Vec::new(),
            _ => vec![format!("packets received by each pipeline: {}", each.join(", "))],
        },
        errors: sum.errors,
    }
}

/// What the GPU counted of its link.
pub(crate) fn measured(samples: &LinkSamples) -> Option<PcieMeasured> {
    Some(PcieMeasured {
        in_bytes_per_second: Summary::of(&samples.received)?,
        out_bytes_per_second: Summary::of(&samples.sent)?,
        how: "NVML's throughput of the GPU's link over windows of 20 ms, one behind the other; everything that crosses it".into(),
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

fn parameters(config: &Config) -> Parameters {
    let nanoseconds = |time: Duration| Quantity::Time(time.as_nanos() as f64);
    let number = |number: usize| Quantity::Number(number as f64);
    let mut parameters = Parameters::default();
    parameters.set("function", config.function.clone());
    parameters.set("on", config.on.to_string());
    parameters.set("method", config.method.to_string());
    parameters.set("burst", number(config.drive.burst));
    if !config.drive.flush.is_zero() {
        parameters.set("flush", nanoseconds(config.drive.flush));
    }
    if config.on != Device::Cpu {
        parameters.set("memory", config.gpu.memory.to_string());
    }
    if config.pipelines > 1 {
        parameters.set("pipelines", number(config.pipelines.into()));
    }
    if config.workers > 0 {
        parameters.set("workers", number(config.workers));
    }
    if config.compete != Compete::None {
        parameters.set("compete", config.compete.to_string());
    }
    if !config.drive.work.is_zero() {
        parameters.set("work", nanoseconds(config.drive.work));
    }
    parameters
}
