//! What a run reports: one JSON document, the same frame for every command.
//!
//! Base units stand in key names (`_ns`, `_bytes`, `_per_second`); what is not known is `null`, never NaN. The schema is
//! [`schema`]; a change that readers can trip over raises [`SCHEMA_VERSION`].

mod row;

use crate::stats::Summary;
use crate::units;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

pub use row::{Cell, Row};

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
        self.checked > 0 && !self.failed()
    }

    /// Something was wrong, be it that nothing came of what was sent.
    pub fn failed(&self) -> bool {
        self.lost + self.duplicated + self.reordered + self.altered > 0
    }
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
    pub completion: crate::completion::CompletionMode,
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

impl Row for TransferResult {
    const COUNTS_PACKETS: bool = false;

    fn parameters(&self) -> Vec<Cell> {
        let mut cells = vec![
            Cell::new("from -> to", format!("{} -> {}", self.from, self.to)),
            Cell::new("path", &self.path),
            Cell::new("completion", self.completion.to_string()),
        ];
        cells.extend(self.parameters.iter().map(|(name, value)| Cell::new(name, value)));
        cells.push(Cell::new("size", units::bytes(self.size_bytes)));
        cells
    }

    fn figures(&self) -> Vec<Cell> {
        let median = |summary: Option<Summary>, scale: f64, digits: usize| {
            summary.map(|summary| format!("{:.digits$}", summary.median / scale))
        };
        let spread = self.bytes_per_second.map(|rate| format!("{:.0}%", rate.spread() * 100.0));
        let share = self.share_of_ceiling.map(|share| format!("{:.1}%", share * 100.0));
        let cpu = self.cpu_seconds_per_gigabyte.map(|seconds| format!("{seconds:.3}"));
        vec![
            Cell::optional("latency us", median(self.latency_ns, 1e3, 2)),
            Cell::optional("GB/s", median(self.bytes_per_second, 1e9, 3)),
            Cell::optional("spread", spread),
            Cell::optional("of ceiling", share),
            Cell::optional("ops/s", median(self.operations_per_second, 1.0, 0)),
            Cell::optional("CPU s/GB", cpu),
            Cell::new("verified", units::bytes(self.verified_bytes)),
        ]
    }

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_have_base_units_and_no_nan() {
        let mut document = Document::<TransferResult>::new("forward", Path::default());
        document.ceiling =
            Some(Ceiling { what: "x".into(), bytes_per_second: Some(f64::NAN), packets_per_second: None });
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["schema_version"], SCHEMA_VERSION);
        assert!(json["ceiling"]["bytes_per_second"].is_null(), "NaN becomes null");
        assert!(json["host"]["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn verification_of_nothing_is_no_pass() {
        assert!(!Verification::default().passed() && !Verification::default().failed());
        assert!(Verification { checked: 1, ..Default::default() }.passed());
        assert!(!Verification { checked: 1, lost: 1, ..Default::default() }.passed());
        assert!(Verification { lost: 1, ..Default::default() }.failed());
    }

    #[test]
    fn the_schema_is_made() {
        let schema = schema::<TransferResult>();
        assert!(schema["properties"]["results"].is_object());
        assert!(schema["properties"]["twin"].is_object());
    }
}
