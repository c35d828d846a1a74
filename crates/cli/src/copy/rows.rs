//! Rows of what `inlane copy` writes.

use inlane_copy::Endpoint;
use inlane_copy::measure::Measurement;
use inlane_core::CompletionMode;
use inlane_core::result::{Document, TransferResult};
use std::collections::BTreeMap;

/// What `inlane copy` writes.
pub type Report = Document<TransferResult>;

/// A row of a table, without figures.
pub fn row(
    from: &Endpoint,
    to: &Endpoint,
    size: usize,
    path: &str,
    completion: CompletionMode,
) -> TransferResult {
    TransferResult {
        from: from.to_string(),
        to: to.to_string(),
        parameters: BTreeMap::new(),
        size_bytes: size as u64,
        path: path.into(),
        completion,
        latency_ns: None,
        bytes_per_second: None,
        operations_per_second: None,
        share_of_ceiling: None,
        cpu_seconds_per_gigabyte: None,
        mover_cpu_seconds_per_gigabyte: None,
        verified_bytes: 0,
        error: None,
    }
}

/// The row with the figures of a measurement.
pub fn with(mut row: TransferResult, measured: &Measurement) -> TransferResult {
    row.parameters.insert("window".into(), measured.window.to_string());
    row.parameters.insert("CPU".into(), format!("{:.1}%", measured.cpu_share * 100.0));
    row.latency_ns = measured.latency_ns;
    row.bytes_per_second = Some(measured.bytes_per_second);
    row.cpu_seconds_per_gigabyte = Some(measured.cpu_seconds_per_gigabyte);
    row.verified_bytes = measured.verified_bytes;
    row
}
