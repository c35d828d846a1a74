//! Packet results as text.

use crate::table::{Rows, grid};
use inlane_core::result::{Competitor, Document, Flow, PacketResult, Repeats};
use inlane_core::stats::{Percentiles, Summary};
use inlane_core::units;

/// The text of a document of packet results: one result as rows, several as a table.
pub fn packets(document: &Document<PacketResult>) -> String {
    let mut rows = Rows::of(document, "; ");
    let mut table = String::new();
    match document.results.as_slice() {
        [one] => single(&mut rows, one),
        many => table = several(&mut rows, many),
    }
    // Those of several stand with their results.
    if let Some(ceiling) = document.ceiling.as_ref().filter(|_| document.results.len() < 2) {
        rows.row("ceiling", rates(ceiling.packets_per_second, ceiling.bytes_per_second, &ceiling.what));
    }
    if let Some(baseline) = &document.baseline {
        rows.row("baseline", rates(baseline.packets_per_second, baseline.bytes_per_second, &baseline.what));
    }
    if let Some(verification) = &document.verification {
        let verdict = match (verification.passed(), verification.failed()) {
            (true, _) => "ok",
            (_, true) => "FAILED",
            _ => "nothing, for nothing came",
        };
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
        (result.dropped_invalid, "whose verdict names no port of this run"),
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
    rows.row_if("ports", (!result.ports.is_empty()).then(|| ports(result)));
    rows.row_if("shape", result.shape.clone());
    rows.row_if("flags", result.flags.clone());
    rows.row_if("memory", result.memory.clone());
    if let Some(pcie) = &result.pcie {
        let rate = pcie.modelled_bytes as f64 / result.duration_ns.max(1) as f64 * 1e9;
        let text = units::bytes_per_second(rate);
        rows.row("pcie", format!("{text}, {} bytes, modelled: {}", pcie.modelled_bytes, pcie.model));
        rows.row_if(
            "",
            pcie.measured.as_ref().map(|measured| {
                let rate = |summary: &Summary| units::bytes_per_second(summary.median);
                let (into, out) = (rate(&measured.in_bytes_per_second), rate(&measured.out_bytes_per_second));
                format!("{into} into the GPU and {out} out of it, measured: {}", measured.how)
            }),
        );
    }
    rows.row_if("other job", result.competitor.as_ref().map(beside));
    rows.row_if("repeats", result.repeats.as_ref().map(repeats));
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

fn beside(competitor: &Competitor) -> String {
    let Competitor { what, alone_per_second, beside_per_second, kept } = competitor;
    format!(
        "keeps {:.1} % of its speed: {beside_per_second:.0} of {alone_per_second:.0} rounds a second ({what})",
        kept * 100.0
    )
}

fn repeats(repeats: &Repeats) -> String {
    let rate = repeats.packets_per_second;
    format!(
        "{}, median {} ({} to {})",
        rate.repeats,
        units::packets_per_second(rate.median),
        units::packets_per_second(rate.min),
        units::packets_per_second(rate.max)
    )
}

/// Where packets come from, and to which ports they go.
fn ports(result: &PacketResult) -> String {
    match result.ports.split_first() {
        Some((from, to)) if !to.is_empty() => format!("{from} -> {}", to.join(" | ")),
        _ => result.ports.concat(),
    }
}

/// What a column of the table of several results shows; empty where a result does not have it.
type Column = (&'static str, fn(&PacketResult) -> String);

const COLUMNS: [Column; 14] = [
    ("shape", |result| result.shape.clone().unwrap_or_default()),
    ("Mpps", |result| format!("{:.3}", result.rate() / 1e6)),
    ("spread", |result| {
        result
            .repeats
            .map_or(String::new(), |repeats| format!("{:.0}%", repeats.packets_per_second.spread() * 100.0))
    }),
    ("Gb/s", |result| format!("{:.3}", result.rate() * result.tx.bits_per_packet().unwrap_or(0.0) / 1e9)),
    ("lost", |result| {
        let dropped = result.dropped_overload + result.dropped_invalid + result.dropped_unsent;
        (result.rx.missed + dropped).to_string()
    }),
    ("p50 us", |result| microseconds(result.p50_ns())),
    ("p99 us", |result| microseconds(result.p99_ns())),
    ("max us", |result| microseconds(result.total_latency().map(|p| p.max_ns))),
    ("ceiling Mpps", |result| {
        let rate = result.ceiling.as_ref().and_then(|ceiling| ceiling.packets_per_second);
        rate.map_or(String::new(), |rate| format!("{:.1}", rate / 1e6))
    }),
    ("PCIe GB/s, modelled", |result| {
        let bytes = result.pcie.as_ref().map(|pcie| pcie.modelled_bytes as f64);
        bytes.map_or(String::new(), |bytes| format!("{:.2}", bytes / result.duration_ns.max(1) as f64))
    }),
    ("in + out, measured", |result| {
        let measured = result.pcie.as_ref().and_then(|pcie| pcie.measured.as_ref());
        measured.map_or(String::new(), |measured| {
            let rate = |summary: &Summary| summary.median / 1e9;
            let (into, out) = (rate(&measured.in_bytes_per_second), rate(&measured.out_bytes_per_second));
            format!("{into:.2} + {out:.2}")
        })
    }),
    ("other job keeps", |result| {
        result.competitor.as_ref().map_or(String::new(), |other| format!("{:.1}%", other.kept * 100.0))
    }),
    // How it was seen is in the document.
    ("limit", |result| {
        result
            .limit
            .as_ref()
            .map_or(String::new(), |limit| limit.split(':').next().unwrap_or_default().into())
    }),
    ("error", |result| result.error.clone().unwrap_or_default()),
];

fn microseconds(nanoseconds: Option<f64>) -> String {
    nanoseconds.map_or(String::new(), |ns| format!("{:.1}", ns / 1e3))
}

/// What all results share in rows, what differs in a table; columns that are empty throughout are left out.
fn several(rows: &mut Rows, results: &[PacketResult]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in results.iter().flat_map(|result| result.parameters.keys()) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let value = |result: &PacketResult, name: &str| result.parameters.get(name).cloned().unwrap_or_default();
    let ran = || results.iter().filter(|result| result.error.is_none());
    names.retain(|name| {
        // A result that failed early knows little of itself.
        let knows = |result: &&PacketResult| result.error.is_none() || result.parameters.contains_key(*name);
        let mut values: Vec<_> = results.iter().filter(knows).map(|result| value(result, name)).collect();
        values.dedup();
        if values.len() == 1 {
            rows.row(name, values.remove(0));
        }
        values.len() > 1 || results.len() == 1
    });
    for (name, text) in [
        ("ports", (|result| Some(ports(result))) as fn(&PacketResult) -> Option<String>),
        ("flags", |result| result.flags.clone()),
        ("memory", |result| result.memory.clone()),
        // What stands behind a semicolon was measured beside it, anew for each.
        ("ceiling", |result| result.ceiling.as_ref()?.what.split(';').next().map(String::from)),
        ("pcie", |result| result.pcie.as_ref().map(|pcie| format!("modelled: {}", pcie.model))),
        ("", |result| Some(format!("measured: {}", result.pcie.as_ref()?.measured.as_ref()?.how))),
        ("other job", |result| result.competitor.as_ref().map(|other| other.what.clone())),
    ] {
        let mut seen: Vec<String> = Vec::new();
        for text in ran().filter_map(text) {
            if !seen.contains(&text) {
                rows.row(name, text.clone());
                seen.push(text);
            }
        }
    }
    if results.is_empty() {
        return String::new();
    }
    let lines: Vec<Vec<String>> =
        results.iter().map(|result| COLUMNS.map(|(_, show)| show(result)).into()).collect();
    let used: Vec<usize> =
        (0..COLUMNS.len()).filter(|&column| lines.iter().any(|line| !line[column].is_empty())).collect();
    let mut header = names.clone();
    header.extend(used.iter().map(|&column| COLUMNS[column].0));
    let lines: Vec<Vec<String>> = results
        .iter()
        .zip(lines)
        .map(|(result, line)| {
            let own = names.iter().map(|name| value(result, name));
            own.chain(used.iter().map(|&column| line[column].clone())).collect()
        })
        .collect();
    grid(&header, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::result::{Path, Verification};

    #[test]
    fn what_was_verified_is_nothing_ok_or_failed() {
        let verdict = |checked, lost| {
            let mut document = Document::new("forward", Path::default());
            document.verification = Some(Verification { checked, lost, ..Verification::default() });
            packets(&document)
        };
        assert!(
            verdict(0, 0).contains("verified  nothing, for nothing came: 0 packets"),
            "{}",
            verdict(0, 0)
        );
        assert!(verdict(1, 0).contains("verified  ok: 1 packets"));
        assert!(verdict(0, 1).contains("verified  FAILED: 0 packets, 1 lost"));
        assert!(!verdict(0, 0).contains('|'), "there is no table of no results");
    }

    #[test]
    fn several_results_share_rows_and_differ_in_columns() {
        let result = |burst: &str, error: Option<&str>| PacketResult {
            parameters: [("burst", burst), ("on", "cpu")]
                .map(|(key, value)| (key.into(), value.into()))
                .into(),
            error: error.map(String::from),
            ..PacketResult::default()
        };
        let mut document = Document::new("forward", Path::default());
        document.results = vec![result("16", None), result("32", None), result("64", Some("no memory"))];
        let text = packets(&document);
        assert!(text.lines().any(|line| line.starts_with("on ") && line.ends_with("cpu")), "{text}");
        let header = text.lines().find(|line| line.starts_with("| burst")).unwrap();
        assert!(!header.contains("p50") && !header.contains("| on "), "{header}");
        assert!(text.lines().any(|line| line.starts_with("| 64") && line.contains("no memory")), "{text}");

        document.results.remove(1);
        let text = packets(&document);
        assert!(
            text.lines().any(|line| line.starts_with("| 64")),
            "what failed is told from what ran: {text}"
        );
    }
}
