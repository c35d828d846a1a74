//! Result documents: one JSON document per command. This crate defines the fields that all documents share.
//! Each kind of document has its own type of row, which implements [`Row`].
//!
//! Keys name their base unit (`_ns`, `_bytes`, `_per_second`). An unknown value is `null`, never NaN.
//! [`schema`] returns the JSON schema, which is published in `docs/schema`. Some changes affect programs that
//! read the JSON. Each of these raises [`SCHEMA_VERSION`].

mod build;
mod ceiling;
mod explanation;
mod row;
mod row_error;
pub mod stored;
mod value;
mod verification;

use inlane_core::secret::without_secret;
use inlane_core::units::counted;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::{Instant, SystemTime};

pub use build::Build;
pub use ceiling::{Ceiling, rates};
pub use explanation::{NotTaken, PathExplanation, Reason};
pub use row::{Cell, Row};
pub use row_error::RowError;
pub use value::{Quantity, Value};
pub use verification::ByteVerification;

/// The version of the JSON schema of result documents.
pub const SCHEMA_VERSION: u32 = 5;

/// The frame of a result document. `T` is the type of the rows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Document<T> {
    /// The version of the document's format. A change that can break readers raises it.
    pub schema_version: u32,
    /// The command that made this document.
    pub command: Command,
    /// When the command started, in UTC (RFC 3339).
    pub started_at: String,
    /// The time from the start of the command until this document was written, in nanoseconds.
    pub duration_ns: u64,
    /// The machine on which the command ran.
    pub host: Host,
    /// The devices that took part (`gpu:0 NVIDIA H100 ...`). Empty if only the CPU did.
    pub devices: Vec<String>,
    /// True if a software stand-in took part. The figures are then those of a model.
    pub twin: bool,
    /// One row for each measurement or object.
    pub results: Vec<T>,
    /// What a reader must know before comparing these figures with others.
    pub notes: Vec<String>,
}

impl<T> Document<T> {
    /// Creates a document without rows. It describes this process and this host. Call [`Document::finish`]
    /// before writing the document.
    pub fn new(name: &str) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            command: Command::of_this_process(name),
            started_at: String::new(),
            duration_ns: 0,
            host: Host::this(),
            devices: Vec::new(),
            twin: false,
            results: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns one line with machine, devices, version and date. A plot shows this line as its source.
    pub fn source(&self) -> String {
        let Host { cpu, cores, kernel, .. } = &self.host;
        let cpu = if cpu.is_empty() { "unknown processor" } else { cpu };
        let mut parts = vec![format!("{cpu}, {}", counted(*cores as u64, "core"))];
        parts.extend(self.devices.iter().cloned());
        parts.push(format!("Linux {kernel}"));
        parts.push(format!("inlane {}", self.command.version));
        parts.push(self.started_at.split('T').next().unwrap_or_default().to_string());
        if self.twin {
            parts.push("figures of a model, not of a device".into());
        }
        parts.join("; ")
    }

    /// Sets the document's start time and duration. Call it after the last row was added.
    pub fn finish(&mut self, start: Start) {
        self.started_at = humantime::format_rfc3339_millis(start.wall).to_string();
        self.duration_ns = start.instant.elapsed().as_nanos() as u64;
    }
}

/// The time at which a command started.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    wall: SystemTime,
    instant: Instant,
}

impl Start {
    /// Returns the current time. Call it before the process drops privileges, because it also reads what a document says
    /// of the program's build.
    pub fn now() -> Self {
        Build::this();
        Self { wall: SystemTime::now(), instant: Instant::now() }
    }
}

/// Returns the JSON schema of a document with rows of type `T`.
pub fn schema<T: JsonSchema>() -> serde_json::Value {
    schemars::schema_for!(Document<T>).to_value()
}

/// The command that made a document.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Command {
    /// The name of the subcommand.
    pub name: String,
    /// The command-line arguments, as given.
    pub arguments: Vec<String>,
    /// The version of inlane.
    pub version: String,
    /// The build of inlane.
    pub build: Build,
}

impl Command {
    fn of_this_process(name: &str) -> Self {
        let shown = |argument: std::ffi::OsString| without_secret(&argument.to_string_lossy()).into_owned();
        Self {
            name: name.into(),
            arguments: std::env::args_os().skip(1).map(shown).collect(),
            version: env!("CARGO_PKG_VERSION").into(),
            build: Build::this(),
        }
    }
}

/// The machine that a document was made on.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Host {
    /// The processor's model name, as the kernel gives it.
    pub cpu: String,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The size of the main memory.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
}

impl Host {
    /// Reads the description of this machine. If a field cannot be read, it is empty or zero.
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
            // `available_parallelism` would divide by a quota of processor time, which `doctor` reports by itself.
            cores: inlane_core::cores::allowed().len(),
            memory_bytes: memory.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_have_base_units_and_no_nan() {
        let mut document = Document::new("copy");
        document.results = vec![Ceiling::of_bytes(f64::NAN, "x".to_string())];
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["schema_version"], SCHEMA_VERSION);
        assert!(json["results"][0]["bytes_per_second"].is_null(), "NaN becomes null");
        assert_eq!(json["results"][0]["what"], "x");
        assert!(json["host"]["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn a_document_has_its_start_and_its_duration() {
        let mut document = Document::<Ceiling<String>>::new("copy");
        document.finish(Start::now());
        assert!(document.duration_ns > 0);
        humantime::parse_rfc3339(&document.started_at).unwrap();
    }

    #[test]
    fn the_schema_is_made() {
        let schema = schema::<Ceiling<String>>();
        assert!(schema["properties"]["results"].is_object());
        assert!(schema["properties"]["twin"].is_object());
    }
}
