//! The result document of `inlane nvme read` and `inlane nvme write`.

use inlane_copy::Endpoint;
use inlane_core::units;
use inlane_nvme::initiator::{Session, SessionOptions};
use inlane_result::{ByteVerification, Cell, PathExplanation, Quantity, Row, RowError};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Display;
use std::time::Duration;

/// A transfer between a namespace and a file, or memory of a device.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NvmeTransfer {
    /// `read` or `write`.
    pub operation: String,
    /// The NQN of the subsystem.
    pub subsystem: String,
    /// The identifier of the namespace.
    pub namespace_id: u32,
    /// The start of the range in the namespace.
    pub offset_bytes: u64,
    /// The number of bytes that were copied.
    pub bytes: u64,
    /// The time of the transfer. A write includes the flush.
    pub run_ns: u64,
    /// The rate of the transfer.
    pub bytes_per_second: f64,
    /// The device whose memory was the other end: `gpu:0` or `twin:0`. Null for a file.
    pub device: Option<String>,
    /// True if the device is a twin. The figures are then those of a model.
    pub twin: bool,
    /// The path that the data took between the target and the file or device.
    pub path: PathExplanation,
    /// How often the transfer switched to another path to the target, or reconnected on the same path.
    pub failovers: u64,
    /// How the bytes on the device were checked. Null for a file.
    pub verification: Option<ByteVerification>,
    /// Why the transfer failed. Null if it succeeded.
    pub error: Option<RowError>,
}

/// Bytes on a device differ from those of the namespace.
#[derive(Debug, thiserror::Error)]
#[error("verification failed: {} on {device} are not the bytes of the namespace", units::bytes(*bytes))]
struct Altered {
    bytes: u64,
    device: Endpoint,
}

impl NvmeTransfer {
    /// Creates the row of a transfer with a file. `range` is the offset and the length.
    pub fn new(operation: &str, session: &Session, range: [u64; 2], run: Duration) -> Self {
        let [offset_bytes, bytes] = range;
        let target = session.path().to_string();
        let mut hops = ["file".to_string(), "kernel TCP sockets".to_string(), target];
        if operation == "read" {
            hops.reverse();
        }
        Self {
            operation: operation.into(),
            subsystem: String::new(),
            namespace_id: session.namespace().nsid,
            offset_bytes,
            bytes,
            run_ns: run.as_nanos() as u64,
            bytes_per_second: bytes as f64 / run.as_secs_f64().max(1e-9),
            device: None,
            twin: false,
            path: PathExplanation {
                name: "tcp".into(),
                hops: vec![hops.to_vec()],
                reason: "NVMe over TCP".into(),
                not_taken: Vec::new(),
            },
            failovers: session.failovers(),
            verification: None,
            error: None,
        }
    }

    /// Adds the device, the path through it and the check of the bytes. Sets the error if some bytes were
    /// wrong.
    #[must_use]
    pub fn on_device(
        mut self,
        device: &Endpoint,
        path: PathExplanation,
        twin: bool,
        checked: ByteVerification,
    ) -> Self {
        if checked.altered_bytes > 0 {
            let altered = Altered { bytes: checked.altered_bytes, device: device.clone() };
            self.error = Some(RowError::new(altered));
        }
        Self { device: Some(device.to_string()), path, twin, verification: Some(checked), ..self }
    }

    /// Adds the subsystem.
    #[must_use]
    pub fn of(self, options: &SessionOptions) -> Self {
        Self { subsystem: options.connect.subsystem.clone(), ..self }
    }

    /// Returns the lines that show the transfer to the user.
    pub fn lines(&self) -> Vec<String> {
        let done = if self.operation == "read" { "read" } else { "wrote" };
        let mut lines = vec![format!(
            "{done} {} at offset {} in {:.2} s ({})",
            units::bytes(self.bytes),
            self.offset_bytes,
            self.run_ns as f64 / 1e9,
            units::bytes_per_second(self.bytes_per_second),
        )];
        if let (Some(device), Some(checked)) = (&self.device, &self.verification) {
            let model = if self.twin { ", a model" } else { "" };
            lines.push(format!("path: {} ({device}{model})", self.path.hops_text()));
            lines.push(format!("because: {}", self.path.reason));
            lines.push(format!("verified: {} ({})", units::bytes(checked.verified_bytes), checked.method));
        }
        lines
    }
}

impl Row for NvmeTransfer {
    fn parameters(&self) -> Vec<Cell> {
        vec![
            Cell::new("operation", &self.operation),
            Cell::new("offset", self.offset_bytes),
            Cell::new("bytes", self.bytes),
        ]
    }

    fn figures(&self) -> Vec<Cell> {
        vec![Cell::new("rate", Quantity::ByteRate(self.bytes_per_second))]
    }

    fn context(&self) -> Vec<Cell> {
        self.path.cells()
    }

    fn error(&self) -> Option<&dyn Display> {
        self.error.as_ref().map(|error| error as &dyn Display)
    }
}
