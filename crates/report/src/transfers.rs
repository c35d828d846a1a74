//! Transfer results as text.

use crate::table::{Rows, grid};
use inlane_core::result::{Document, TransferResult};
use inlane_core::stats::Summary;
use inlane_core::units;

/// The text of a document of transfer results: a table, a line a result.
pub fn transfers(document: &Document<TransferResult>) -> String {
    let mut rows = Rows::of(document, " -> ");
    if let Some(ceiling) = &document.ceiling {
        let rate = ceiling.bytes_per_second.map(units::bytes_per_second).unwrap_or_default();
        rows.row("ceiling", format!("{rate}: {}", ceiling.what));
    }
    if let Some(baseline) = &document.baseline {
        let rate = baseline.bytes_per_second.map(units::bytes_per_second).unwrap_or_default();
        rows.row("baseline", format!("{rate}: {}", baseline.what));
    }
    for note in &document.notes {
        rows.row("note", note.clone());
    }
    let mut names: Vec<&str> = Vec::new();
    for result in &document.results {
        for name in result.parameters.keys() {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    let mut header = vec!["from -> to", "path", "completion"];
    header.extend(&names);
    header.extend(["size", "latency us", "GB/s", "spread", "of ceiling", "ops/s", "CPU s/GB", "verified"]);
    let failed = document.results.iter().any(|result| result.error.is_some());
    header.extend(failed.then_some("error"));
    let lines: Vec<_> = document.results.iter().map(|result| line(result, &names, failed)).collect();
    format!("{}{}", rows.render(), grid(&header, &lines))
}

fn line(result: &TransferResult, names: &[&str], failed: bool) -> Vec<String> {
    let or_empty = |value: Option<String>| value.unwrap_or_default();
    let median = |summary: &Option<Summary>, scale: f64, digits: usize| {
        or_empty(summary.map(|summary| format!("{:.digits$}", summary.median / scale)))
    };
    let mut row =
        vec![format!("{} -> {}", result.from, result.to), result.path.clone(), result.completion.to_string()];
    row.extend(names.iter().map(|name| result.parameters.get(*name).cloned().unwrap_or_default()));
    row.push(units::bytes(result.size_bytes));
    row.push(median(&result.latency_ns, 1e3, 2));
    row.push(median(&result.bytes_per_second, 1e9, 3));
    row.push(or_empty(result.bytes_per_second.map(|summary| format!("{:.0}%", summary.spread() * 100.0))));
    row.push(or_empty(result.share_of_ceiling.map(|share| format!("{:.1}%", share * 100.0))));
    row.push(median(&result.operations_per_second, 1.0, 0));
    row.push(or_empty(result.cpu_seconds_per_gigabyte.map(|seconds| format!("{seconds:.3}"))));
    row.push(units::bytes(result.verified_bytes));
    row.extend(failed.then(|| result.error.clone().unwrap_or_default()));
    row
}
