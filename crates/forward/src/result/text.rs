//! The cells of a packet result: the columns of a table, or lines if it is the only result.

use super::Baseline;
use super::{Competitor, PacketResult, PacketTotals, Pcie, Repeats};
use inlane_core::stats::{Percentiles, Summary};
use inlane_function::FunctionReport;
use inlane_result::{Ceiling, Cell, Quantity, Row, Value, phrase};
use std::fmt::Display;

impl Row for PacketResult {
    fn parameters(&self) -> Vec<Cell> {
        self.parameters.iter().map(|(name, value)| Cell::new(name, value.clone())).collect()
    }

    fn figures(&self) -> Vec<Cell> {
        let us = |ns: Option<f64>| ns.map(|ns| Quantity::Time(ns).fixed(1e3, 1));
        let megapackets = |rate, decimals| Quantity::packets_per_second(rate).fixed(1e6, decimals);
        let gigabytes = |rate| Quantity::ByteRate(rate).fixed(1e9, 2);
        let repeats = self.repeats.as_ref().map(|repeats| &repeats.packets_per_second);
        let bits = self.rate() * self.tx.bits_per_packet().unwrap_or(0.0);
        let dropped = self.dropped_overload + self.dropped_invalid + self.dropped_unsent;
        let ceiling = self.ceiling.as_ref().and_then(|ceiling| ceiling.packets_per_second);
        let measured = self.pcie.as_ref().and_then(|pcie| pcie.measured.as_ref()).map(|measured| {
            let rate = |summary: &Summary| gigabytes(summary.median);
            phrase![rate(&measured.in_bytes_per_second), " + ", rate(&measured.out_bytes_per_second)]
        });
        vec![
            Cell::new("shape", self.shape.as_ref().map(ToString::to_string)),
            Cell::new("Mpps", megapackets(self.rate(), 3)),
            Cell::new("spread", repeats.map(|rate| Value::percent(rate.spread(), 0))),
            Cell::new("Gb/s", Quantity::bits_per_second(bits).fixed(1e9, 3)),
            Cell::new("lost", self.rx.missed + dropped),
            Cell::new("p50 us", us(self.p50_ns())),
            Cell::new("p99 us", us(self.p99_ns())),
            Cell::new("max us", us(self.total_latency().map(|p| p.max_ns))),
            Cell::new("ceiling Mpps", ceiling.map(|rate| megapackets(rate, 1))),
            Cell::new(
                "PCIe GB/s, modelled",
                self.pcie.as_ref().map(|pcie| gigabytes(self.pcie_bytes_per_second(pcie))),
            ),
            Cell::new("PCIe GB/s, measured in + out", measured),
            Cell::new(
                "competing job keeps",
                self.competitor.as_ref().map(|other| Value::percent(other.kept, 1)),
            ),
            Cell::new("verified", self.verification.as_ref().map(|found| found.verdict())),
            Cell::new("limit", self.limit.as_ref().map(|limit| limit.resource.to_string())),
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
            let dropped = dropped.iter().map(|(n, why)| phrase![*n, " ", *why]);
            lines.push(Cell::new("dropped", Value::list(dropped, ", ")));
        }
        if self.leaked_buffers > 0 {
            let what = " buffers: a defect of inlane, please report it";
            lines.push(Cell::new("LEAKED", phrase![self.leaked_buffers, what]));
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
            let cpu = Quantity::Time(self.cpu_ns as f64);
            let each = Quantity::SecondsPerGigabyte(self.cpu_ns as f64 / self.tx.bytes as f64);
            lines.push(Cell::new("cpu time", phrase![cpu, " (", each, ")"]));
        }
        if let Some(pcie) = &self.pcie {
            let rate = Quantity::ByteRate(self.pcie_bytes_per_second(pcie));
            let value = phrase![rate, ", ", pcie.modelled_bytes, " bytes, modelled: ", &pcie.model];
            lines.push(Cell::new("pcie", value));
            lines.extend(pcie.measured.as_ref().map(|measured| {
                let rate = |summary: &Summary| Quantity::ByteRate(summary.median);
                let (into, out) = (rate(&measured.in_bytes_per_second), rate(&measured.out_bytes_per_second));
                let how = &measured.how;
                Cell::new("", phrase![into, " into the GPU and ", out, " out of it, measured: ", how])
            }));
        }
        lines.extend(self.function.as_ref().map(counters).into_iter().flatten());
        lines.push(Cell::new("duration", Quantity::Time(self.duration_ns as f64)));
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

    fn error(&self) -> Option<&dyn Display> {
        self.error.as_ref().map(|error| error as &dyn Display)
    }
}

impl PacketResult {
    fn pcie_bytes_per_second(&self, pcie: &Pcie) -> f64 {
        pcie.modelled_bytes as f64 / self.duration_ns.max(1) as f64 * 1e9
    }
}

fn flow(flow: &PacketTotals) -> Value {
    let mut parts = vec![
        phrase![flow.packets, " packets"],
        Quantity::packets_per_second(flow.packets_per_second).into(),
        Quantity::bits_per_second(flow.bits_per_second).into(),
    ];
    let lost = [(flow.missed, " missed"), (flow.errors, " errors")];
    parts.extend(lost.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| phrase![count, what]));
    Value::list(parts, ", ")
}

fn percentiles(p: &Percentiles) -> Value {
    let ns = Quantity::Time;
    phrase!["p50 ", ns(p.p50_ns), ", p99 ", ns(p.p99_ns), ", p99.9 ", ns(p.p999_ns), ", max ", ns(p.max_ns)]
}

/// Returns the counters that a function reports.
fn counters(function: &FunctionReport) -> Vec<Cell> {
    function.counters.iter().map(|counter| Cell::new(&*counter.name, counter.value.to_string())).collect()
}

fn competitor_text(competitor: &Competitor) -> Value {
    let Competitor { what, alone_per_second, beside_per_second, kept } = competitor;
    let [beside, alone] =
        [*beside_per_second, *alone_per_second].map(|n| Quantity::PerSecond(n).fixed(1.0, 0));
    let kept = Quantity::Percent(kept * 100.0).fixed(1.0, 1);
    phrase!["keeps ", kept, " % of its speed: ", beside, " of ", alone, " rounds per second (", what, ")"]
}

fn repeats(repeats: &Repeats) -> Value {
    let rate = &repeats.packets_per_second;
    let [median, min, max] = [rate.median, rate.min, rate.max].map(Quantity::packets_per_second);
    phrase![rate.repeats, ", median ", median, " (", min, " to ", max, ")"]
}

/// Formats the ports: the receive port, an arrow, the transmit ports.
fn ports(ports: &[String]) -> String {
    match ports.split_first() {
        Some((from, to)) if !to.is_empty() => format!("{from} -> {}", to.join(" | ")),
        _ => ports.concat(),
    }
}
