//! The rows of a result of `inlane ntb bench`.

use super::MeasuredOperation;
use inlane_core::completion::CompletionMode;
use inlane_core::stats::{Percentiles, Summary};
use inlane_result::{ByteVerification, Ceiling, Cell, PathExplanation, Quantity, Row, RowError, Value};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::{self, Display};

/// How far the bytes of an operation have travelled when its measured time ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// The stores have left the processor. They may still be on their way to the peer's memory.
    Issued,
    /// The bytes are in the receiver's memory.
    Delivered,
}

/// What limits puts and gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum CeilingOf {
    /// The memories: a plain copy of the same size between them has this rate in this run.
    PlainCopy,
}

impl fmt::Display for CeilingOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain copy of the same size between the same memories")
    }
}

/// One case of the bench: an operation, a size and a completion mode.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct WindowResult {
    /// The operation.
    pub operation: MeasuredOperation,
    /// The PE that starts the operation.
    pub from: String,
    /// The other PE.
    pub to: String,
    /// Bytes of one operation; 0 for a doorbell.
    pub size_bytes: u64,
    /// The completion mode of the waits for the peer.
    pub completion: CompletionMode,
    /// What the bytes have reached at the end of the measured time: issued or delivered.
    pub delivery: Delivery,
    /// The path of the bytes. The path's name says how they are copied, such as `stores`.
    pub path: PathExplanation,
    /// The latency of the operation, measured while no other operation is in flight. Summarizes all repeats.
    pub latency_ns: Option<Summary>,
    /// Percentiles of the times of single operations, each of which was timed individually.
    pub latency_percentiles: Option<Percentiles>,
    /// The rate of bytes, over the repeats.
    pub bytes_per_second: Option<Summary>,
    /// The rate of operations, over the repeats.
    pub operations_per_second: Option<Summary>,
    /// The highest rate that this machine allows for this operation at this size.
    pub ceiling: Option<Ceiling<CeilingOf>>,
    /// Bandwidth as a share of the ceiling.
    pub share_of_ceiling: Option<f64>,
    /// The processor seconds per 10^9 bytes of one thread: it starts operations and waits for them.
    pub cpu_seconds_per_gigabyte: Option<f64>,
    /// Processor seconds per 10^9 bytes, of all other threads of the process, such as the thread of a mover.
    pub mover_cpu_seconds_per_gigabyte: Option<f64>,
    /// How many bytes were moved, and how many of them were compared.
    pub verification: ByteVerification,
    /// Why the case failed. A failed row has no figures.
    pub error: Option<RowError>,
}

impl Row for WindowResult {
    fn parameters(&self) -> Vec<Cell> {
        vec![
            Cell::new("operation", self.operation.name()),
            Cell::new("by", &self.path.name),
            Cell::new("completion", self.completion.to_string()),
            Cell::new("size", Quantity::Bytes(self.size_bytes)),
        ]
    }

    fn figures(&self) -> Vec<Cell> {
        let us = |time: f64| Quantity::Time(time).fixed(1e3, 2);
        let median = |summary: &Option<Summary>, unit: fn(f64) -> Quantity, divisor, decimals| {
            summary.as_ref().map(|summary| unit(summary.median).fixed(divisor, decimals))
        };
        let percentile =
            |value: fn(&Percentiles) -> f64| self.latency_percentiles.as_ref().map(|all| us(value(all)));
        let spread = self.bytes_per_second.as_ref().map(|rate| Value::percent(rate.spread(), 0));
        let share = self.share_of_ceiling.map(|share| Value::percent(share, 1));
        let cpu = self.cpu_seconds_per_gigabyte;
        vec![
            Cell::new("latency us", self.latency_ns.as_ref().map(|latency| us(latency.median))),
            Cell::new("p99 us", percentile(|all| all.p99_ns)),
            Cell::new("GB/s", median(&self.bytes_per_second, Quantity::ByteRate, 1e9, 3)),
            Cell::new("spread", spread),
            Cell::new("of ceiling", share),
            Cell::new("ops/s", median(&self.operations_per_second, Quantity::PerSecond, 1.0, 0)),
            Cell::new("CPU s/GB", cpu.map(|seconds| Quantity::SecondsPerGigabyte(seconds).fixed(1.0, 3))),
            Cell::new("verified", Quantity::Bytes(self.verification.verified_bytes)),
        ]
    }

    fn context(&self) -> Vec<Cell> {
        let mut cells = self.path.cells();
        if let Some(ceiling) = &self.ceiling {
            cells.push(Cell::new("ceiling", ceiling.resource.to_string()));
        }
        if !self.verification.method.is_empty() {
            cells.push(Cell::new("verified by", &self.verification.method));
        }
        cells
    }

    fn error(&self) -> Option<&dyn Display> {
        self.error.as_ref().map(|error| error as &dyn Display)
    }
}
