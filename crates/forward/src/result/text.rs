//! Formats a packet result: as the columns of a table, or as lines of text if it is the only result.

use super::{Competitor, PacketResult, PacketTotals, Pcie, Repeats};
use inlane_core::stats::{Percentiles, Summary};
use inlane_core::units;
use inlane_result::{Baseline, Ceiling, Cell, Row};

impl Row for PacketResult {
    fn parameters(&self) -> Vec<Cell> {
        self.parameters.iter().map(|(name, value)| Cell::new(name, value.to_string())).collect()
    }

    fn figures(&self) -> Vec<Cell> {
        let repeats = self.repeats.map(|repeats| repeats.packets_per_second);
        let gigabits = self.rate() * self.tx.bits_per_packet().unwrap_or(0.0) / 1e9;
        let dropped = self.dropped_overload + self.dropped_invalid + self.dropped_unsent;
        let ceiling = self.ceiling.as_ref().and_then(|ceiling| ceiling.packets_per_second);
        let pcie = self.pcie.as_ref().map(|pcie| self.pcie_bytes_per_second(pcie) / 1e9);
        let measured = self.pcie.as_ref().and_then(|pcie| pcie.measured.as_ref()).map(|measured| {
            let rate = |summary: &Summary| summary.median / 1e9;
            let (into, out) = (rate(&measured.in_bytes_per_second), rate(&measured.out_bytes_per_second));
            format!("{into:.2} + {out:.2}")
        });
        vec![
            Cell::optional("shape", self.shape.as_ref().map(ToString::to_string)),
            Cell::new("Mpps", format!("{:.3}", self.rate() / 1e6)),
            Cell::optional("spread", repeats.map(|rate| format!("{:.0}%", rate.spread() * 100.0))),
            Cell::new("Gb/s", format!("{gigabits:.3}")),
            Cell::new("lost", (self.rx.missed + dropped).to_string()),
            Cell::new("p50 us", microseconds(self.p50_ns())),
            Cell::new("p99 us", microseconds(self.p99_ns())),
            Cell::new("max us", microseconds(self.total_latency().map(|p| p.max_ns))),
            Cell::optional("ceiling Mpps", ceiling.map(|rate| format!("{:.1}", rate / 1e6))),
            Cell::optional("PCIe GB/s, modelled", pcie.map(|rate| format!("{rate:.2}"))),
            Cell::optional("PCIe GB/s, measured in + out", measured),
            Cell::optional(
                "competing job keeps",
                self.competitor.as_ref().map(|other| format!("{:.1}%", other.kept * 100.0)),
            ),
            Cell::optional("verified", self.verification.as_ref().map(|found| found.verdict())),
            Cell::optional("limit", self.limit.as_ref().map(|limit| limit.resource.to_string())),
        ]
    }

    fn lines(&self) -> Vec<Cell> {
        let mut lines = vec![Cell::new("rx", flow(&self.rx)), Cell::new("tx", flow(&self.tx))];
        let dropped = [
            (self.dropped_verdict, "by verdict"),
            (self.dropped_overload, "by overload"),
            (self.dropped_invalid, "by a verdict that names no port"),
            (self.dropped_unsent, "not accepted by the transmit port"),
        ];
        let dropped: Vec<_> = dropped.iter().filter(|(n, _)| *n > 0).collect();
        if !dropped.is_empty() {
            let dropped: Vec<_> = dropped.iter().map(|(n, why)| format!("{n} {why}")).collect();
            lines.push(Cell::new("dropped", dropped.join(", ")));
        }
        if self.leaked_buffers > 0 {
            let leaked = format!("{} buffers: a defect of inlane, please report it", self.leaked_buffers);
            lines.push(Cell::new("LEAKED", leaked));
        }
        let stages = self.stages.as_ref();
        let stage = |pick: fn(&super::Stages) -> &Option<Percentiles>| stages.and_then(|s| pick(s).as_ref());
        let latencies = [
            ("latency", self.latency.as_ref()),
            ("  queue", stage(|stages| &stages.queue)),
            ("  process", stage(|stages| &stages.process)),
            ("  send", stage(|stages| &stages.send)),
            ("  total", stage(|stages| &stages.total)),
        ];
        lines.extend(latencies.into_iter().filter_map(|(name, p)| Some(Cell::new(name, percentiles(p?)))));
        lines.extend(
            self.verification.as_ref().map(|verification| Cell::new("verified", verification.text())),
        );
        lines.extend(self.repeats.as_ref().map(|of| Cell::new("repeats", repeats(of))));
        lines.extend(self.limit.as_ref().map(|limit| Cell::new("limit", limit.to_string())));
        lines
            .extend(self.competitor.as_ref().map(|other| Cell::new("competing job", competitor_text(other))));
        if self.tx.bytes > 0 {
            let seconds_per_gigabyte = self.cpu_ns as f64 / self.tx.bytes as f64;
            let cpu = units::nanoseconds(self.cpu_ns as f64);
            lines.push(Cell::new("cpu time", format!("{cpu} ({seconds_per_gigabyte:.3} s/GB)")));
        }
        if let Some(pcie) = &self.pcie {
            let rate = units::bytes_per_second(self.pcie_bytes_per_second(pcie));
            let text = format!("{rate}, {} bytes, modelled: {}", pcie.modelled_bytes, pcie.model);
            lines.push(Cell::new("pcie", text));
            lines.extend(pcie.measured.as_ref().map(|measured| {
                let rate = |summary: &Summary| units::bytes_per_second(summary.median);
                let (into, out) = (rate(&measured.in_bytes_per_second), rate(&measured.out_bytes_per_second));
                Cell::new("", format!("{into} into the GPU and {out} out of it, measured: {}", measured.how))
            }));
        }
        lines.extend(self.function.as_ref().map(counters).into_iter().flatten());
        lines.push(Cell::new("duration", units::nanoseconds(self.duration_ns as f64)));
        lines
    }

    fn context(&self) -> Vec<Cell> {
        let mut context = Vec::new();
        if !self.ports.is_empty() {
            context.push(Cell::new("ports", ports(&self.ports)));
        }
        context.extend(self.flags.as_ref().map(|flags| Cell::new("words", flags)));
        context.extend(self.memory.as_ref().map(|memory| Cell::new("buffers", memory)));
        context
    }

    fn details(&self) -> Vec<Cell> {
        let mut details = self.path.cells();
        details.extend(self.ceiling.as_ref().map(Ceiling::cell));
        details.extend(self.baseline.as_ref().map(Baseline::cell));
        details
    }

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

impl PacketResult {
    fn pcie_bytes_per_second(&self, pcie: &Pcie) -> f64 {
        pcie.modelled_bytes as f64 / self.duration_ns.max(1) as f64 * 1e9
    }
}

fn flow(flow: &PacketTotals) -> String {
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

fn microseconds(nanoseconds: Option<f64>) -> String {
    nanoseconds.map_or(String::new(), |ns| format!("{:.1}", ns / 1e3))
}

/// Returns the counters that a function reports: `{"counters": [{"name": ..., "value": ...}]}`.
fn counters(function: &serde_json::Value) -> Vec<Cell> {
    let list = function["counters"].as_array().map(Vec::as_slice).unwrap_or(&[]);
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    list.iter().map(|counter| Cell::new(text(&counter["name"]), text(&counter["value"]))).collect()
}

fn competitor_text(competitor: &Competitor) -> String {
    let Competitor { what, alone_per_second, beside_per_second, kept } = competitor;
    format!(
        "keeps {:.1} % of its speed: {beside_per_second:.0} of {alone_per_second:.0} rounds per second ({what})",
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

/// Formats the ports: the receive port, an arrow, the transmit ports.
fn ports(ports: &[String]) -> String {
    match ports.split_first() {
        Some((from, to)) if !to.is_empty() => format!("{from} -> {}", to.join(" | ")),
        _ => ports.concat(),
    }
}
