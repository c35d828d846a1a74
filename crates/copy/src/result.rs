//! The rows of `inlane copy`'s result documents: a measured transfer, and a path in a list of paths.

use crate::ceiling::Ceiling;
use crate::endpoint::Endpoint;
use crate::explanation::PathTaken;
use crate::path::Path;
use crate::timing::Timing;
use inlane_core::CompletionMode;
use inlane_core::stats::{Percentiles, Summary};
use inlane_result::{ByteVerification, Cell, Quantity, Reason, Row, RowError, Value};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Display;

/// When a CPU store to a BAR counts as complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoreEnd {
    /// The transfer ends when the last store has left the CPU.
    Issued,
    /// The transfer ends when a read from the same BAR, issued after the stores, has returned.
    Delivered,
}

impl std::fmt::Display for StoreEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StoreEnd::Issued => "issued",
            StoreEnd::Delivered => "delivered",
        })
    }
}

/// The measurement of one path, direction, transfer size and completion mode.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TransferResult {
    /// The source endpoint.
    pub from: Endpoint,
    /// The destination endpoint.
    pub to: Endpoint,
    /// The bytes of one transfer.
    pub size_bytes: u64,
    /// True if transfers in the opposite direction ran at the same time.
    pub both_directions: bool,
    /// The path that the user requested. Null if it is chosen by cost.
    pub requested_path: Option<Path>,
    /// The path that was taken, with the reason why it was chosen and the reasons why the other paths were not.
    /// Null if the measurement failed before a path was open.
    pub path: Option<PathTaken>,
    /// True if a twin took part. The measured values then come from a model.
    pub twin: bool,
    /// How the end of a transfer was detected.
    pub completion: CompletionMode,
    /// When a CPU store to a BAR counted as complete. Null for other transfers.
    pub store_end: Option<StoreEnd>,
    /// The most transfers in flight at the same time while streaming.
    pub in_flight: Option<usize>,
    /// The time of a transfer while no other one is in flight.
    pub latency_ns: Option<Summary>,
    /// The percentiles of the times of single transfers. `latency_ns` is the summary of the same times.
    pub latency_percentiles: Option<Percentiles>,
    /// The median time of each repeat's transfers.
    pub repeated_latency_ns: Option<Summary>,
    /// The time of one transfer that the calibration predicts from the times of the path's stages, in
    /// nanoseconds.
    pub predicted_ns: Option<f64>,
    /// The rate while streaming, over the repeats.
    pub bytes_per_second: Option<Summary>,
    /// The ceiling of the path.
    pub ceiling: Option<Ceiling>,
    /// The median rate as a share of the ceiling.
    pub share_of_ceiling: Option<f64>,
    /// The CPU seconds per 10^9 copied bytes. Counts the thread that submits transfers and waits for them.
    pub cpu_seconds_per_gigabyte: Option<f64>,
    /// The CPU time of the thread that submits transfers and waits for them, as a share of the elapsed time.
    pub cpu_share: Option<f64>,
    /// The rates that the paper published. Null except for the published experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(default)]
    pub published: Option<PublishedRates>,
    /// What was checked of the transferred bytes.
    pub verification: ByteVerification,
    /// Why the measurement failed. A failed row has no figures.
    pub error: Option<RowError>,
}

/// The rates of one transfer in the published experiment ([`crate::published`]).
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PublishedRates {
    /// The rate that the published experiment measured. Null if its paper gives none.
    pub published_bytes_per_second: Option<f64>,
    /// The rate predicted from the published rates of the single stages.
    pub predicted_bytes_per_second: Option<f64>,
    /// The rate of the best repeat on inlane's models of the accelerators.
    pub model_bytes_per_second: Option<f64>,
}

impl TransferResult {
    /// Creates a row for a size and completion mode. It has no path and no measured values.
    pub fn new(from: &Endpoint, to: &Endpoint, size: usize, completion: CompletionMode) -> Self {
        Self {
            from: from.clone(),
            to: to.clone(),
            size_bytes: size as u64,
            both_directions: false,
            requested_path: None,
            path: None,
            twin: from.is_twin() || to.is_twin(),
            completion,
            store_end: None,
            in_flight: None,
            latency_ns: None,
            latency_percentiles: None,
            repeated_latency_ns: None,
            predicted_ns: None,
            bytes_per_second: None,
            ceiling: None,
            share_of_ceiling: None,
            cpu_seconds_per_gigabyte: None,
            cpu_share: None,
            published: None,
            verification: ByteVerification::default(),
            error: None,
        }
    }

    /// Returns the row with the measured times, rates, CPU load and verification of a measurement.
    #[must_use]
    pub fn with(mut self, measured: &Timing) -> Self {
        self.in_flight = Some(measured.in_flight);
        self.latency_ns = measured.latency_ns.clone();
        self.latency_percentiles = measured.latency_percentiles.clone();
        self.repeated_latency_ns = measured.repeated_latency_ns.clone();
        self.bytes_per_second = Some(measured.bytes_per_second.clone());
        self.cpu_seconds_per_gigabyte = Some(measured.cpu_seconds_per_gigabyte);
        self.cpu_share = Some(measured.cpu_share);
        self.verification = measured.verification.clone();
        self
    }

    /// Returns the name of the path. If none was taken, returns the name of the requested path, or `auto`.
    pub fn path_name(&self) -> String {
        let path = self.path.as_ref().map(|path| path.name).or(self.requested_path);
        path.map_or("auto".into(), |path| path.to_string())
    }

    /// Sets the ceiling, and the share of the ceiling that the measured rate reaches.
    pub fn set_ceiling(&mut self, ceiling: Ceiling) {
        let rate = self.bytes_per_second.as_ref().map(|rate| rate.median);
        self.share_of_ceiling = rate.zip(ceiling.bytes_per_second).map(|(rate, most)| rate / most);
        self.ceiling = Some(ceiling);
    }
}

impl Row for TransferResult {
    fn parameters(&self) -> Vec<Cell> {
        let mut cells = vec![
            Cell::new("from -> to", format!("{} -> {}", self.from, self.to)),
            Cell::new("path", self.path_name()),
            Cell::new("completion", self.completion.to_string()),
        ];
        if self.both_directions {
            cells.push(Cell::new("direction", "both at once"));
        }
        if let Some(end) = self.store_end {
            cells.push(Cell::new("stores", end.to_string()));
        }
        cells.extend(self.in_flight.map(|in_flight| Cell::new("in flight", in_flight)));
        cells.push(Cell::new("size", Quantity::Bytes(self.size_bytes)));
        cells
    }

    fn figures(&self) -> Vec<Cell> {
        let us = |nanoseconds: Option<f64>| nanoseconds.map(|time| Quantity::Time(time).fixed(1e3, 2));
        let percentile = |value: fn(&Percentiles) -> f64| us(self.latency_percentiles.as_ref().map(value));
        let percent = |share: Option<f64>| share.map(|share| Value::percent(share, 1));
        let mib = |value: fn(&PublishedRates) -> Option<f64>| {
            self.published.as_ref().and_then(value).map(|rate| Quantity::ByteRate(rate).fixed(1_048_576.0, 2))
        };
        let verified = &self.verification;
        vec![
            Cell::new("p50 us", percentile(|latency| latency.p50_ns)),
            Cell::new("p99 us", percentile(|latency| latency.p99_ns)),
            Cell::new("p99.9 us", percentile(|latency| latency.p999_ns)),
            Cell::new("predicted us", us(self.predicted_ns)),
            Cell::new(
                "GB/s",
                self.bytes_per_second.as_ref().map(|rate| Quantity::ByteRate(rate.median).fixed(1e9, 3)),
            ),
            Cell::new("spread", self.bytes_per_second.as_ref().map(|rate| Value::percent(rate.spread(), 0))),
            Cell::new("of ceiling", percent(self.share_of_ceiling)),
            Cell::new("published MiB/s", mib(|rates| rates.published_bytes_per_second)),
            Cell::new("stages predict MiB/s", mib(|rates| rates.predicted_bytes_per_second)),
            Cell::new("model MiB/s", mib(|rates| rates.model_bytes_per_second)),
            Cell::new("CPU", percent(self.cpu_share)),
            Cell::new(
                "CPU s/GB",
                self.cpu_seconds_per_gigabyte
                    .map(|seconds| Quantity::SecondsPerGigabyte(seconds).fixed(1.0, 3)),
            ),
            Cell::new("transferred", Quantity::Bytes(verified.transferred_bytes)),
            Cell::new("verified", Quantity::Bytes(verified.verified_bytes)),
        ]
    }

    /// Returns cells for the path and its reason, the paths that are not possible, and the ceiling. Paths
    /// that are only slower appear only in the JSON, because their reasons contain values that differ for
    /// each size.
    fn context(&self) -> Vec<Cell> {
        // The hops are called movers, because the table has a column `path` with the path's name.
        let shown = |why: &Reason| !matches!(why, Reason::Slower { .. });
        let mut cells: Vec<Cell> =
            self.path.iter().flat_map(|path| path.cells_with("movers", shown)).collect();
        cells.extend(self.ceiling.as_ref().map(Ceiling::cell));
        cells
    }

    fn error(&self) -> Option<&dyn Display> {
        self.error.as_ref().map(|error| error as &dyn Display)
    }
}

/// One path in a list: whether the path is available between two endpoints, and why.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ListedPath {
    /// The source endpoint.
    pub from: Endpoint,
    /// The destination endpoint.
    pub to: Endpoint,
    /// The path.
    pub path: Path,
    /// True if the path can be taken.
    pub available: bool,
    /// The movers from source to destination. Empty if the path is not available.
    pub hops: Vec<String>,
    /// Why the path is not available. Null if it is.
    pub why_not: Option<Reason>,
    /// The time of a 1 MiB transfer in nanoseconds, from this machine's stored calibration. Null if no
    /// calibration is stored.
    pub calibrated_1_mib_ns: Option<f64>,
}

impl Row for ListedPath {
    fn parameters(&self) -> Vec<Cell> {
        vec![
            Cell::new("path", self.path.to_string()),
            Cell::new("from -> to", format!("{} -> {}", self.from, self.to)),
        ]
    }

    fn figures(&self) -> Vec<Cell> {
        let text = match &self.why_not {
            Some(why) => why.to_string(),
            None => self.hops.join(" -> "),
        };
        vec![
            Cell::new("available", if self.available { "yes" } else { "no" }),
            Cell::new("1 MiB takes", self.calibrated_1_mib_ns.map(Quantity::Time)),
            Cell::new("movers, or why not", text),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceiling::CeilingOf;

    #[test]
    fn values_are_typed_and_the_share_is_of_the_rows_ceiling() {
        let ends = ["twin:0", "host"].map(|end| end.parse::<Endpoint>().unwrap());
        let mut row = TransferResult::new(&ends[0], &ends[1], 4096, CompletionMode::Poll);
        row.bytes_per_second = Summary::of(&[3e9, 1e9, 2e9]);
        row.predicted_ns = Some(63_460.0);
        row.in_flight = Some(8);
        row.set_ceiling(Ceiling::of_bytes(4e9, CeilingOf::Model { endpoint: ends[0].clone() }));
        assert_eq!(row.share_of_ceiling, Some(0.5));
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!((&json["predicted_ns"], &json["in_flight"]), (&63_460.0.into(), &8.into()));
        assert!(json["store_end"].is_null() && json.get("published").is_none(), "{json}");
        assert!(
            row.twin
                && row.context().iter().any(|cell| cell.value.to_string().contains("the link of twin:0"))
        );
    }
}
