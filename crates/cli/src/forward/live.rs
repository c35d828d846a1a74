//! Shows the current rates on standard error while `inlane forward` runs.

use inlane_core::load::Counts;
use inlane_core::units;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// The progress display of a run. On a terminal, it updates one line with the current rates. With
/// `--interval`, it prints a new line at each interval.
pub(super) struct Live {
    terminal: bool,
    interval: Option<Duration>,
    /// The time and the counters of the last display.
    last: (Duration, Counts),
}

impl Live {
    /// Creates the display. With an interval, it prints lines even if standard error is not a terminal.
    pub(super) fn new(interval: Option<Duration>) -> Self {
        Self { terminal: std::io::stderr().is_terminal(), interval, last: Default::default() }
    }

    /// Shows the rates since the last display, if a new display is due. The run calls this about once per
    /// second.
    pub(super) fn show(&mut self, elapsed: Duration, reading: Counts) {
        let since = elapsed.saturating_sub(self.last.0);
        // Display up to 100 ms early, because the run calls `show` only about once per second. Otherwise, a
        // call just before the end of the interval would delay the display by a second.
        let due = self.interval.map(|interval| since + Duration::from_millis(100) >= interval);
        let text = match due {
            Some(false) => return,
            Some(true) => format!("{}\n", self.line(elapsed, reading)),
            None if self.terminal => format!("\r{}   \x1b[K", self.line(elapsed, reading)),
            None => return,
        };
        let _ = write!(std::io::stderr(), "{text}");
        self.last = (elapsed, reading);
    }

    fn line(&self, elapsed: Duration, reading: Counts) -> String {
        let (then, before) = self.last;
        let seconds = elapsed.saturating_sub(then).as_secs_f64().max(1e-9);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        format!(
            "{:>5.0} s  rx {}  tx {}  {}  dropped {}",
            elapsed.as_secs_f64(),
            units::packets_per_second(rate(reading.begun, before.begun)),
            units::packets_per_second(rate(reading.operations, before.operations)),
            units::bits_per_second(rate(reading.bytes, before.bytes) * 8.0),
            reading.dropped,
        )
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

    #[test]
    fn a_line_has_the_rates_since_the_last_one() {
        let mut live =
            Live { terminal: false, interval: Some(Duration::from_secs(2)), last: Default::default() };
        let reading = |packets| Counts {
            begun: packets,
            operations: packets,
            bytes: packets * 64,
            ..Default::default()
        };
        live.show(Duration::from_secs(1), reading(1000));
        assert_eq!(live.last.0, Duration::ZERO, "the interval is not over yet");
        live.show(Duration::from_secs(2), reading(4000));
        assert_eq!(live.last.0, Duration::from_secs(2));
        let line = live.line(Duration::from_secs(4), reading(10_000));
        assert_eq!(line, "    4 s  rx 3.00 kpps  tx 3.00 kpps  1.54 Mb/s  dropped 0");
    }
}
