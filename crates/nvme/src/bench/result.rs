//! The rows of a bench's result document.

use super::job::{JobResult, Tally};
use super::workload::{Pattern, Workload};
use crate::initiator::NamespaceInfo;
use inlane_core::setting::Choice;
use inlane_core::stats::{Percentiles, Summary};
use inlane_result::{ByteVerification, Cell, PathExplanation, Quantity, Row, RowError, Value, phrase};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Display;
use std::time::Duration;

/// The percentiles that fio shows.
const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// The reads or the writes of a workload.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct IoResult {
    /// The workload: fio's `rw`.
    pub rw: Pattern,
    /// The operation of this row: `read` or `write`.
    pub operation: String,
    /// The number of bytes of each operation.
    pub block_bytes: u64,
    /// The most operations that each job keeps in flight.
    pub iodepth: u32,
    /// The number of jobs: threads with connections of their own.
    pub jobs: u32,
    /// The number of I/O queues of each job. If the target granted some jobs fewer than others, the smallest
    /// number.
    pub io_queues: u32,
    /// The share of reads in a mixed workload, in percent. Null for other workloads.
    pub read_percent: Option<u32>,
    /// The identifier of the namespace.
    pub namespace_id: u32,
    /// The size of the namespace in bytes.
    pub namespace_bytes: u64,
    /// The path of the data: the target's addresses and the transport.
    pub path: PathExplanation,
    /// The time that the operations took. With several jobs, the time of the job that took longest.
    pub run_ns: u64,
    /// The number of operations that all jobs completed.
    pub operations: u64,
    /// The operations per second of all jobs together.
    pub operations_per_second: f64,
    /// The bytes per second of all jobs together.
    pub bytes_per_second: f64,
    /// The time from the submission of an operation to its completion.
    pub latency: Option<Percentiles>,
    /// The latency at the percentiles that fio prints.
    pub latency_percentiles: Vec<LatencyPercentile>,
    /// The processor time of all jobs divided by their elapsed time. 1 means that no job ever slept.
    pub cpu_share: f64,
    /// How often a job switched to another path, or reconnected on the same path.
    pub failovers: u64,
    /// The bytes that were checked. Null unless bytes were to be checked.
    pub verification: Option<ByteVerification>,
    /// Median and range over the repeats. The row's other figures are those of the run with the median rate. Null if the row was
    /// measured once.
    pub repeats: Option<Repeats>,
    /// Why the run failed. Null if it succeeded.
    pub error: Option<RowError>,
}

/// Median and range over the repeats of a row.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Repeats {
    /// The operations per second.
    pub operations_per_second: Summary,
    /// The median latency.
    pub p50_ns: Option<Summary>,
    /// The 99th percentile of the latency.
    pub p99_ns: Option<Summary>,
}

/// A latency at a percentile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct LatencyPercentile {
    /// The percentile, in percent.
    pub percent: f64,
    /// The latency at the percentile: `percent` of the operations took at most this long.
    pub latency_ns: f64,
}

/// Adds up the jobs' results. Returns a row for the workload's reads, a row for its writes, or both.
pub(super) fn rows(
    workload: &Workload,
    namespace: &NamespaceInfo,
    outcomes: &[JobResult],
    path: &PathExplanation,
) -> Vec<IoResult> {
    let (mut reads, mut writes) = (Tally::default(), Tally::default());
    for outcome in outcomes {
        reads.add(&outcome.reads);
        writes.add(&outcome.writes);
    }
    let run = outcomes.iter().map(|outcome| outcome.duration).max().unwrap_or_default();
    let run_total: Duration = outcomes.iter().map(|outcome| outcome.duration).sum();
    let cpu: Duration = outcomes.iter().map(|outcome| outcome.cpu).sum();
    let io_queues = outcomes.iter().map(|outcome| outcome.io_queues).min().unwrap_or_default();
    let failovers = outcomes.iter().map(|outcome| outcome.failovers).sum();
    let error = outcomes.iter().find_map(|outcome| outcome.error.clone());
    let seconds = run.as_secs_f64().max(1e-9);
    let pattern = workload.pattern;
    let row = |operation: &str, tally: Tally| IoResult {
        rw: pattern,
        operation: operation.into(),
        block_bytes: workload.block_bytes,
        iodepth: workload.depth,
        jobs: workload.jobs,
        io_queues,
        read_percent: (pattern.reads() && pattern.writes()).then_some(workload.read_percent),
        namespace_id: namespace.nsid,
        namespace_bytes: namespace.bytes(),
        path: path.clone(),
        run_ns: run.as_nanos() as u64,
        operations: tally.operations,
        operations_per_second: tally.operations as f64 / seconds,
        bytes_per_second: tally.operations as f64 * workload.block_bytes as f64 / seconds,
        latency: tally.latency.percentiles(),
        latency_percentiles: PERCENTILES
            .into_iter()
            .filter_map(|percent| {
                let latency_ns = tally.latency.at(percent / 100.0)?;
                Some(LatencyPercentile { percent, latency_ns })
            })
            .collect(),
        cpu_share: cpu.as_secs_f64() / run_total.as_secs_f64().max(1e-9),
        failovers,
        verification: workload.verify.then(|| ByteVerification {
            method: "offset, write number and CRC-32C of each block".into(),
            ..tally.verification
        }),
        repeats: None,
        error: error.clone(),
    };
    let operations = [(pattern.reads(), "read", reads), (pattern.writes(), "write", writes)];
    operations.into_iter().filter(|(runs, ..)| *runs).map(|(_, name, tally)| row(name, tally)).collect()
}

/// Merges the repeats of a row. Returns the one with the median rate, with the spread of all, and with the sum of what all have checked.
/// If one failed, the row has its error.
///
/// # Panics
/// If there are no rows.
pub(super) fn merge(mut repeats: Vec<IoResult>) -> IoResult {
    let summary = |value: fn(&IoResult) -> Option<f64>| {
        let values: Option<Vec<f64>> = repeats.iter().map(value).collect();
        Summary::of(&values?)
    };
    let rates = summary(|row| Some(row.operations_per_second)).filter(|rates| rates.repeats > 1);
    let spread = rates.map(|operations_per_second| Repeats {
        operations_per_second,
        p50_ns: summary(|row| Some(row.latency.as_ref()?.p50_ns)),
        p99_ns: summary(|row| Some(row.latency.as_ref()?.p99_ns)),
    });
    let error = repeats.iter().find_map(|row| row.error.clone());
    let verification =
        repeats.iter().filter_map(|row| row.verification.clone()).reduce(|sum, one| ByteVerification {
            transferred_bytes: sum.transferred_bytes + one.transferred_bytes,
            verified_bytes: sum.verified_bytes + one.verified_bytes,
            altered_bytes: sum.altered_bytes + one.altered_bytes,
            ..sum
        });
    repeats.sort_by(|a, b| a.operations_per_second.total_cmp(&b.operations_per_second));
    let median = repeats.swap_remove(repeats.len() / 2);
    IoResult { repeats: spread, error, verification, ..median }
}

impl Row for IoResult {
    fn parameters(&self) -> Vec<Cell> {
        vec![
            Cell::new("rw", self.rw.name()),
            Cell::new("operation", &self.operation),
            Cell::new("bs", Quantity::Bytes(self.block_bytes)),
            Cell::new("iodepth", self.iodepth),
            Cell::new("jobs", self.jobs),
            Cell::new("queues", self.io_queues),
        ]
    }

    fn figures(&self) -> Vec<Cell> {
        let us = |value: fn(&Percentiles) -> f64| {
            self.latency.as_ref().map(|latency| Quantity::Time(value(latency)).fixed(1e3, 1))
        };
        let checked = self.verification.as_ref();
        let altered = checked.map(|checked| checked.altered_bytes).filter(|bytes| *bytes > 0);
        let spread = self.repeats.as_ref().map(|repeats| &repeats.operations_per_second);
        let rate = |rate: f64| Quantity::PerSecond(rate).fixed(1.0, 0);
        vec![
            Cell::new("IOPS", rate(self.operations_per_second)),
            Cell::new("min IOPS", spread.map(|spread| rate(spread.min))),
            Cell::new("max IOPS", spread.map(|spread| rate(spread.max))),
            Cell::new("rate", Quantity::ByteRate(self.bytes_per_second)),
            Cell::new("mean us", us(|latency| latency.mean_ns)),
            Cell::new("p50 us", us(|latency| latency.p50_ns)),
            Cell::new("p99 us", us(|latency| latency.p99_ns)),
            Cell::new("p99.9 us", us(|latency| latency.p999_ns)),
            Cell::new("max us", us(|latency| latency.max_ns)),
            Cell::new("CPU", Value::percent(self.cpu_share, 0)),
            Cell::new("failovers", (self.failovers > 0).then_some(self.failovers)),
            Cell::new("verified", checked.map(|checked| Quantity::Bytes(checked.verified_bytes))),
            Cell::new("altered", altered.map(Quantity::Bytes)),
        ]
    }

    fn context(&self) -> Vec<Cell> {
        let namespace = phrase![self.namespace_id, " of ", Quantity::Bytes(self.namespace_bytes)];
        let mut cells = vec![Cell::new("namespace", namespace)];
        cells.extend(self.path.cells());
        cells
    }

    fn error(&self) -> Option<&dyn Display> {
        self.error.as_ref().map(|error| error as &dyn Display)
    }
}
