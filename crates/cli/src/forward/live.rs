//! Shows the current rates on standard error while `inlane forward` runs.

use inlane_core::port::Counters;
use inlane_core::units;
use inlane_forward::PortCounters;
use inlane_forward::run::Reading;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// The progress display of a run. On a terminal, it updates one line with the current rates. With
/// `--interval`, it prints a new line at each interval.
pub(super) struct Live {
    terminal: bool,
    interval: Option<Duration>,
    /// True to print lines as JSON objects.
    json: bool,
    /// The time and the counters of the last display.
    last: (Duration, Reading),
}

/// A line of `--interval` with `--json`.
#[derive(Serialize)]
struct Line<'a> {
    /// The time since packets began to flow.
    elapsed_ns: u64,
    /// The time since the last line, over which rates are taken.
    interval_ns: u64,
    /// Packets dropped by the packet function, or because a ring or port was full, since the start.
    dropped_packets: u64,
    /// Packets that ports missed, since the start.
    missed_packets: u64,
    ports: Vec<PortLine<'a>>,
}

/// What a run received from a port and sent to it. `null` if it does not.
#[derive(Serialize)]
struct PortLine<'a> {
    port: &'a str,
    rx: Option<DirectionLine>,
    tx: Option<DirectionLine>,
}

/// Counters since the start, and rates since the last line.
#[derive(Serialize)]
struct DirectionLine {
    packets: u64,
    bytes: u64,
    missed: u64,
    errors: u64,
    packets_per_second: f64,
    bits_per_second: f64,
}

impl DirectionLine {
    fn new(now: Counters, before: Counters, seconds: f64) -> Self {
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Self {
            packets: now.packets,
            bytes: now.bytes,
            missed: now.missed,
            errors: now.errors,
            packets_per_second: rate(now.packets, before.packets),
            bits_per_second: rate(now.bytes, before.bytes) * 8.0,
        }
    }
}

/// Returns how many packets all ports missed.
fn missed(ports: &[PortCounters]) -> u64 {
    ports.iter().flat_map(|port| [port.rx, port.tx]).flatten().map(|counters| counters.missed).sum()
}

impl Live {
    /// Creates the display. With an interval, it prints lines even if standard error is not a terminal, as JSON objects if
    /// `json` is set.
    pub(super) fn new(interval: Option<Duration>, json: bool) -> Self {
        Self { terminal: std::io::stderr().is_terminal(), interval, json, last: Default::default() }
    }

    /// Shows the rates since the last display, if a new display is due. The run calls this about once per
    /// second.
    pub(super) fn show(&mut self, elapsed: Duration, reading: &Reading) {
        let since = elapsed.saturating_sub(self.last.0);
        // Display up to 100 ms early, because the run calls `show` only about once per second. Otherwise, a
        // call just before the end of the interval would delay the display by a second.
        let due = self.interval.map(|interval| since + Duration::from_millis(100) >= interval);
        let text = match due {
            Some(false) => return,
            Some(true) if self.json => format!("{}\n", self.json_line(elapsed, reading)),
            Some(true) => format!("{}\n", self.line(elapsed, reading)),
            None if self.terminal => format!("\r{}   \x1b[K", self.line(elapsed, reading)),
            None => return,
        };
        let _ = write!(std::io::stderr(), "{text}");
        self.last = (elapsed, reading.clone());
    }

    fn line(&self, elapsed: Duration, reading: &Reading) -> String {
        let (then, before) = (self.last.0, &self.last.1.counts);
        let (counts, missed) = (&reading.counts, missed(&reading.ports));
        let seconds = elapsed.saturating_sub(then).as_secs_f64().max(1e-9);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        format!(
            "{:>5.0} s  rx {}  tx {}  {}  dropped {}  missed {missed}",
            elapsed.as_secs_f64(),
            units::packets_per_second(rate(counts.begun, before.begun)),
            units::packets_per_second(rate(counts.operations, before.operations)),
            units::bits_per_second(rate(counts.bytes, before.bytes) * 8.0),
            counts.dropped,
        )
    }

    fn json_line(&self, elapsed: Duration, reading: &Reading) -> String {
        let interval = elapsed.saturating_sub(self.last.0);
        let seconds = interval.as_secs_f64().max(1e-9);
        let before = |index: usize| self.last.1.ports.get(index);
        let ports = reading.ports.iter().enumerate().map(|(index, port)| {
            let line = |now: Option<Counters>, before: Option<Counters>| {
                now.map(|now| DirectionLine::new(now, before.unwrap_or_default(), seconds))
            };
            PortLine {
                port: &port.port,
                rx: line(port.rx, before(index).and_then(|port| port.rx)),
                tx: line(port.tx, before(index).and_then(|port| port.tx)),
            }
        });
        let line = Line {
            elapsed_ns: elapsed.as_nanos() as u64,
            interval_ns: interval.as_nanos() as u64,
            dropped_packets: reading.counts.dropped,
            missed_packets: missed(&reading.ports),
            ports: ports.collect(),
        };
        serde_json::to_string(&line).expect("numbers and texts become JSON")
    }

    /// Clears the progress line on the terminal.
    pub(super) fn end(&self) {
        if self.terminal && self.interval.is_none() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::load::Counts;

    fn live(json: bool) -> Live {
        Live { terminal: false, interval: Some(Duration::from_secs(2)), json, last: Default::default() }
    }

    fn reading(packets: u64) -> Reading {
        let counts =
            Counts { begun: packets, operations: packets, bytes: packets * 64, ..Default::default() };
        let counters = Counters { packets, bytes: packets * 64, missed: packets / 1000, errors: 0 };
        let port = |port: &str, rx, tx| PortCounters { port: port.into(), rx, tx };
        let ports =
            vec![port("a", Some(counters), None), port("b", None, Some(Counters { missed: 0, ..counters }))];
        Reading { counts, ports }
    }

    #[test]
    fn a_line_has_the_rates_since_the_last_one() {
        let mut live = live(false);
        live.show(Duration::from_secs(1), &reading(1000));
        assert_eq!(live.last.0, Duration::ZERO, "the interval is not over yet");
        live.show(Duration::from_secs(2), &reading(4000));
        assert_eq!(live.last.0, Duration::from_secs(2));
        let line = live.line(Duration::from_secs(4), &reading(10_000));
        assert_eq!(line, "    4 s  rx 3.00 kpps  tx 3.00 kpps  1.54 Mb/s  dropped 0  missed 10");
    }

    #[test]
    fn a_json_line_has_each_port_and_direction() {
        let mut live = live(true);
        live.show(Duration::from_secs(2), &reading(4000));
        let line: serde_json::Value =
            serde_json::from_str(&live.json_line(Duration::from_secs(4), &reading(10_000))).unwrap();
        assert_eq!(
            (&line["elapsed_ns"], &line["interval_ns"]),
            (&4_000_000_000u64.into(), &2_000_000_000u64.into())
        );
        assert_eq!((&line["missed_packets"], &line["dropped_packets"]), (&10.into(), &0.into()));
        let [a, b] = [0, 1].map(|index| &line["ports"][index]);
        assert_eq!(
            (&a["port"], &a["rx"]["packets"], &a["rx"]["missed"]),
            (&"a".into(), &10_000.into(), &10.into())
        );
        assert_eq!(
            (&a["rx"]["packets_per_second"], &b["tx"]["bits_per_second"]),
            (&3000.0.into(), &1_536_000.0.into())
        );
        assert!(a["tx"].is_null() && b["rx"].is_null());
    }
}
