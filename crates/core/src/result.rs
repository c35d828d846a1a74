//! What a run reports: one JSON document, the same frame for every command.
//!
//! Base units stand in key names (`_ns`, `_bytes`, `_per_second`); what is not known is `null`, never NaN. The schema is
//! [`schema`]; a change that readers can trip over raises [`SCHEMA_VERSION`].

use crate::port::Counters;
use crate::stats::{Percentiles, Summary};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of the document's shape.
pub const SCHEMA_VERSION: u32 = 2;

/// The document: `T` is the kind of result (packets, transfers, ...).
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Document<T> {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What was run.
    pub command: Command,
    /// Where.
    pub host: Host,
    /// The devices that took part (`gpu:0 NVIDIA H100 ...`), empty for the CPU alone.
    pub devices: Vec<String>,
    /// A software stand-in took part: the figures are a model's.
    pub twin: bool,
    /// The chain that bytes took, and why not a faster one.
    pub path: Path,
    /// The most that the path's resources allow, where it was calibrated.
    pub ceiling: Option<Ceiling>,
    /// The same run with the work left out.
    pub baseline: Option<Baseline>,
    /// What was checked of the bytes.
    pub verification: Option<Verification>,
    /// The figures.
    pub results: Vec<T>,
    /// What a reader should know before comparing.
    pub notes: Vec<String>,
}

impl<T> Document<T> {
    /// A document for the command line that runs, on this host, with nothing measured yet.
    pub fn new(name: &str, path: Path) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            command: Command::of_this_process(name),
            host: Host::this(),
            devices: Vec::new(),
            twin: false,
            path,
            ceiling: None,
            baseline: None,
            verification: None,
            results: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// The JSON schema of a document of `T`.
pub fn schema<T: JsonSchema>() -> serde_json::Value {
    schemars::schema_for!(Document<T>).to_value()
}

/// What was run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Command {
    /// The subcommand.
    pub name: String,
    /// Its arguments as given.
    pub arguments: Vec<String>,
    /// inlane's version.
    pub version: String,
}

impl Command {
    fn of_this_process(name: &str) -> Self {
        Self {
            name: name.into(),
            arguments: std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect(),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

/// The machine.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Host {
    /// The processor's name as the kernel gives it.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Memory in all.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
}

impl Host {
    /// The machine this runs on; what cannot be read is empty or zero.
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.split_once(':'))
                .map(|(_, value)| value.trim().to_string())
                .unwrap_or_default()
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            memory_bytes: memory.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
        }
    }
}

/// The chain of movers that was chosen.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Path {
    /// Each hop, from source to destination.
    pub hops: Vec<String>,
    /// Why this one.
    pub reason: String,
    /// Faster ones that could not be taken, and why.
    pub not_taken: Vec<NotTaken>,
}

/// A path that was not taken.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NotTaken {
    /// Which.
    pub path: String,
    /// What stood in its way.
    pub why: String,
}

/// The most that the resources of a path allow.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Ceiling {
    /// Which resource, and how its capacity was learnt.
    pub what: String,
    /// In bytes a second, where bytes are what it limits.
    pub bytes_per_second: Option<f64>,
    /// In packets a second, where packets are.
    pub packets_per_second: Option<f64>,
}

/// The same run with the work left out.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Baseline {
    /// What was left out.
    pub what: String,
    /// Its rate in bytes a second.
    pub bytes_per_second: Option<f64>,
    /// Its rate in packets a second.
    pub packets_per_second: Option<f64>,
}

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Verification {
    /// How (`every packet against a reference macswap`).
    pub method: String,
    /// Packets or bytes checked.
    pub checked: u64,
    /// Sent and never seen.
    pub lost: u64,
    /// Seen more than once.
    pub duplicated: u64,
    /// Out of order within their flow.
    pub reordered: u64,
    /// Not what they had to be.
    pub altered: u64,
}

impl Verification {
    /// Something was checked and nothing was wrong.
    pub fn passed(&self) -> bool {
        self.checked > 0 && self.lost + self.duplicated + self.reordered + self.altered == 0
    }
}

/// One direction of a packet result.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct Flow {
    /// Packets that crossed.
    pub packets: u64,
    /// Bytes of their frames, without FCS.
    pub bytes: u64,
    /// Packets a second over the run.
    pub packets_per_second: f64,
    /// Bits of frames a second over the run.
    pub bits_per_second: f64,
    /// Lost in the port for want of a buffer or a reader.
    pub missed: u64,
    /// Refused, malformed, or lost with the port.
    pub errors: u64,
}

impl Flow {
    /// From a port's counters over `seconds`.
    pub fn over(counters: &Counters, seconds: f64) -> Self {
        let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        Self {
            packets: counters.packets,
            bytes: counters.bytes,
            packets_per_second: rate(counters.packets as f64),
            bits_per_second: rate(counters.bytes as f64 * 8.0),
            missed: counters.missed,
            errors: counters.errors,
        }
    }

    /// Bits of a frame, on average; `None` where there was none.
    pub fn bits_per_packet(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.bytes as f64 * 8.0 / self.packets as f64)
    }
}

/// A result of forwarding.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct PacketResult {
    /// What distinguishes this run from its neighbours (burst, method, size, ...).
    pub parameters: BTreeMap<String, String>,
    /// What went wrong; the figures are then zero, or those up to there.
    pub error: Option<String>,
    /// The ports, as named: the one received from, then those sent to.
    pub ports: Vec<String>,
    /// The chain that packets took, for each direction.
    pub path: Vec<String>,
    /// Blocks, threads and streams on a GPU.
    pub shape: Option<String>,
    /// The most that the path's resources allow, where it was calibrated.
    pub ceiling: Option<Ceiling>,
    /// How long packets flowed.
    pub duration_ns: u64,
    /// What came in.
    pub rx: Flow,
    /// What went out.
    pub tx: Flow,
    /// Dropped because the pipeline was full (`--overload drop`).
    pub dropped_overload: u64,
    /// Dropped by the packet function's verdict.
    pub dropped_verdict: u64,
    /// Dropped because a verdict or length made no sense.
    pub dropped_invalid: u64,
    /// Dropped because the sending port took no more at the end, or failed.
    pub dropped_unsent: u64,
    /// Buffers that did not come back to their pool: always 0, or it is a defect.
    pub leaked_buffers: u64,
    /// Latency against when each packet was due.
    pub latency: Option<Percentiles>,
    /// Latency by stage, where it was asked for.
    pub stages: Option<Stages>,
    /// Processor time of all pipeline threads.
    pub cpu_ns: u64,
    /// Where the ring's flags lie.
    pub flags: Option<String>,
    /// Where packets lie and what of them crosses PCIe.
    pub memory: Option<String>,
    /// What crossed PCIe because of packets; `null` without a GPU.
    pub pcie: Option<Pcie>,
    /// The job that ran beside, where one was asked for.
    pub competitor: Option<Competitor>,
    /// Over repeats, of which the figures above are those of the run with the median rate.
    pub repeats: Option<Repeats>,
    /// What limited this run: a word or a few, a colon, and how that was seen. `null` for what was too short to tell.
    pub limit: Option<String>,
    /// What the packet function reports of its state.
    pub function: Option<serde_json::Value>,
}

/// What crossed PCIe.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Pcie {
    /// Computed, each way summed.
    pub modelled_bytes: u64,
    /// How.
    pub model: String,
    /// As the device counted, where that was asked for and can be read.
    pub measured: Option<PcieMeasured>,
}

/// What the device's own counter says of its link.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PcieMeasured {
    /// Into the device, everything that shares the link included.
    pub in_bytes_per_second: Summary,
    /// Out of it.
    pub out_bytes_per_second: Summary,
    /// Which counter.
    pub how: String,
}

/// A job that ran on the same processor or GPU.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Competitor {
    /// What it does.
    pub what: String,
    /// Its rounds of work a second before packets flowed.
    pub alone_per_second: f64,
    /// The same while they did.
    pub beside_per_second: f64,
    /// What it kept of its speed: `beside_per_second / alone_per_second`.
    pub kept: f64,
}

/// Medians and spread over repeats of one run.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Repeats {
    /// Packets a second sent.
    pub packets_per_second: Summary,
    /// Latency, median.
    pub p50_ns: Option<Summary>,
    /// Latency, 99 % of packets.
    pub p99_ns: Option<Summary>,
}

impl PacketResult {
    /// Packets sent a second: the median where the run was repeated.
    pub fn rate(&self) -> f64 {
        self.repeats.map_or(self.tx.packets_per_second, |repeats| repeats.packets_per_second.median)
    }

    /// Half of the packets took at most this: the median where the run was repeated.
    pub fn p50_ns(&self) -> Option<f64> {
        let median = self.repeats.and_then(|repeats| repeats.p50_ns).map(|summary| summary.median);
        median.or(self.total_latency().map(|p| p.p50_ns))
    }

    /// 99 % of the packets took at most this: the median where the run was repeated.
    pub fn p99_ns(&self) -> Option<f64> {
        let median = self.repeats.and_then(|repeats| repeats.p99_ns).map(|summary| summary.median);
        median.or(self.total_latency().map(|p| p.p99_ns))
    }

    /// Latency against when packets were due, or where that is not known from received to sent, where stages were timed.
    pub fn total_latency(&self) -> Option<&Percentiles> {
        self.latency.as_ref().or(self.stages.as_ref().and_then(|stages| stages.total.as_ref()))
    }
}

/// Time that packets spent in each stage.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Stages {
    /// From received to queued in the ring.
    pub queue: Option<Percentiles>,
    /// From queued to processed.
    pub process: Option<Percentiles>,
    /// From processed to handed to the sending port.
    pub send: Option<Percentiles>,
    /// From received to handed to the sending port.
    pub total: Option<Percentiles>,
}

/// A result of moving bytes between two memories.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TransferResult {
    /// Where from.
    pub from: String,
    /// Where to.
    pub to: String,
    /// What distinguishes this run from its neighbours (direction, operation, chunk, ...).
    pub parameters: BTreeMap<String, String>,
    /// Bytes of one transfer.
    pub size_bytes: u64,
    /// The path.
    pub path: String,
    /// How the end was learnt.
    pub completion: crate::completion::Completion,
    /// One transfer at a time, start to known end, medians over repeats.
    pub latency_ns: Option<Summary>,
    /// Bytes a second, transfers one behind the other.
    pub bytes_per_second: Option<Summary>,
    /// Operations a second, where operations are what is measured.
    pub operations_per_second: Option<Summary>,
    /// Of the ceiling.
    pub share_of_ceiling: Option<f64>,
    /// Processor seconds of the waiting thread for each 10^9 bytes.
    pub cpu_seconds_per_gigabyte: Option<f64>,
    /// Processor seconds of the mover itself, where it is a thread, for each 10^9 bytes.
    pub mover_cpu_seconds_per_gigabyte: Option<f64>,
    /// Bytes compared with what they had to be.
    pub verified_bytes: u64,
    /// What went wrong; there are no figures then.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_have_base_units_and_no_nan() {
        let mut document = Document::<PacketResult>::new("forward", Path::default());
        document.ceiling =
            Some(Ceiling { what: "x".into(), bytes_per_second: Some(f64::NAN), packets_per_second: None });
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["schema_version"], SCHEMA_VERSION);
        assert!(json["ceiling"]["bytes_per_second"].is_null(), "NaN becomes null");
        assert!(json["host"]["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn rates_of_no_time_are_zero() {
        let flow = Flow::over(&Counters { packets: 5, bytes: 320, ..Default::default() }, 0.0);
        assert_eq!((flow.packets, flow.packets_per_second), (5, 0.0));
        assert_eq!(
            Flow::over(&Counters { packets: 5, bytes: 100, ..Default::default() }, 2.0).bits_per_second,
            400.0
        );
    }

    #[test]
    fn verification_of_nothing_is_no_pass() {
        assert!(!Verification::default().passed());
        assert!(Verification { checked: 1, ..Default::default() }.passed());
        assert!(!Verification { checked: 1, lost: 1, ..Default::default() }.passed());
    }

    #[test]
    fn the_schema_is_made() {
        let schema = schema::<PacketResult>();
        assert!(schema["properties"]["results"].is_object());
        assert!(super::schema::<TransferResult>()["properties"]["twin"].is_object());
    }
}
