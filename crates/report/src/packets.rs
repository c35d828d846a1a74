//! Packet results as text.

use crate::table::{Rows, grid};
use inlane_core::result::{Document, Flow, PacketResult};
use inlane_core::stats::Percentiles;
use inlane_core::units;

/// The text of a document of packet results: one result as rows, several as a table.
pub fn packets(document: &Document<PacketResult>) -> String {
    let mut rows = Rows::default();
    rows.row("path", document.path.hops.join(" -> "));
    if !document.path.reason.is_empty() {
        rows.row("because", document.path.reason.clone());
    }
    for other in &document.path.not_taken {
        rows.row("not taken", format!("{}: {}", other.path, other.why));
    }
    if document.twin {
        rows.row("twin", "a software stand-in took part: these figures are a model's");
    }
    let mut table = String::new();
    match document.results.as_slice() {
        [one] => single(&mut rows, one),
        many => table = several(many),
    }
    if let Some(ceiling) = &document.ceiling {
        rows.row("ceiling", rates(ceiling.packets_per_second, ceiling.bytes_per_second, &ceiling.what));
    }
    if let Some(baseline) = &document.baseline {
        rows.row("baseline", rates(baseline.packets_per_second, baseline.bytes_per_second, &baseline.what));
    }
    if let Some(verification) = &document.verification {
        let verdict = if verification.passed() { "ok" } else { "FAILED" };
        rows.row(
            "verified",
            format!(
                "{verdict}: {} packets, {} lost, {} duplicated, {} reordered, {} altered ({})",
                verification.checked,
                verification.lost,
                verification.duplicated,
                verification.reordered,
                verification.altered,
                verification.method
            ),
        );
    }
    for note in &document.notes {
        rows.row("note", note.clone());
    }
    format!("{}{table}", rows.render())
}

fn rates(packets: Option<f64>, bytes: Option<f64>, what: &str) -> String {
    let mut parts: Vec<String> = packets.map(units::packets_per_second).into_iter().collect();
    parts.extend(bytes.map(|bytes| units::bits_per_second(bytes * 8.0)));
    if parts.is_empty() { what.into() } else { format!("{}: {what}", parts.join(", ")) }
}

fn flow(flow: &Flow) -> String {
    let mut text = format!(
        "{} packets, {}, {}",
        flow.packets,
        units::packets_per_second(flow.packets_per_second),
        units::bits_per_second(flow.bits_per_second)
    );
    for (count, name) in [(flow.missed, "missed"), (flow.errors, "errors")] {
        if count > 0 {
            text.push_str(&format!(", {count} {name}"));
        }
    }
    text
}

fn percentiles(p: &Percentiles) -> String {
    let ns = units::nanoseconds;
    format!("p50 {}, p99 {}, p99.9 {}, max {}", ns(p.p50_ns), ns(p.p99_ns), ns(p.p999_ns), ns(p.max_ns))
}

fn single(rows: &mut Rows, result: &PacketResult) {
    for (name, value) in &result.parameters {
        rows.row(name, value.clone());
    }
    rows.row("time", units::nanoseconds(result.duration_ns as f64));
    rows.row("rx", flow(&result.rx));
    rows.row("tx", flow(&result.tx));
    let dropped = [
        (result.dropped_verdict, "by verdict"),
        (result.dropped_overload, "for overload"),
        (result.dropped_invalid, "for a senseless verdict"),
        (result.dropped_unsent, "unsent"),
    ];
    let dropped: Vec<_> =
        dropped.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}")).collect();
    if !dropped.is_empty() {
        rows.row("dropped", dropped.join(", "));
    }
    if result.leaked_buffers > 0 {
        rows.row("LEAKED", format!("{} buffers: a defect, please report it", result.leaked_buffers));
    }
    rows.row_if("latency", result.latency.as_ref().map(percentiles));
    if let Some(stages) = &result.stages {
        for (name, stage) in [
            ("  queue", &stages.queue),
            ("  process", &stages.process),
            ("  send", &stages.send),
            ("  in all", &stages.total),
        ] {
            rows.row_if(name, stage.as_ref().map(percentiles));
        }
    }
    if result.tx.bytes > 0 {
        let seconds_per_gigabyte = result.cpu_ns as f64 / result.tx.bytes as f64;
        rows.row(
            "cpu",
            format!("{} ({seconds_per_gigabyte:.3} s/GB)", units::nanoseconds(result.cpu_ns as f64)),
        );
    }
    rows.row_if("flags", result.flags.clone());
    rows.row_if("memory", result.memory.clone());
    rows.row_if("pcie", result.pcie_bytes.map(|bytes| format!("{bytes} bytes")));
    rows.row_if("limit", result.limit.clone());
    if let Some(function) = &result.function {
        for (name, value) in counters(function) {
            rows.row(&name, value);
        }
    }
}

/// A function's counters (`{"counters": [{"name": ..., "value": ...}]}`); its tables are in the JSON alone.
fn counters(function: &serde_json::Value) -> Vec<(String, String)> {
    let list = function["counters"].as_array().map(Vec::as_slice).unwrap_or(&[]);
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    list.iter().map(|counter| (text(&counter["name"]), text(&counter["value"]))).collect()
}

fn several(results: &[PacketResult]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for result in results {
        for name in result.parameters.keys() {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
    }
    let mut header = names.clone();
    header.extend(["Mpps", "Gb/s", "lost", "p50 us", "p99 us", "max us"]);
    let rows: Vec<_> = results
        .iter()
        .map(|result| {
            let mut row: Vec<_> =
                names.iter().map(|name| result.parameters.get(*name).cloned().unwrap_or_default()).collect();
            let lost =
                result.rx.missed + result.dropped_overload + result.dropped_invalid + result.dropped_unsent;
            let us = |pick: fn(&Percentiles) -> f64| {
                let stage = result.stages.as_ref().and_then(|stages| stages.total.as_ref());
                result.latency.as_ref().or(stage).map_or(String::new(), |p| format!("{:.1}", pick(p) / 1e3))
            };
            row.push(format!("{:.3}", result.tx.packets_per_second / 1e6));
            row.push(format!("{:.3}", result.tx.bits_per_second / 1e9));
            row.push(lost.to_string());
            row.extend([us(|p| p.p50_ns), us(|p| p.p99_ns), us(|p| p.max_ns)]);
            row
        })
        .collect();
    grid(&header, &rows)
}
