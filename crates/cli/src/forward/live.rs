//! What stands on the terminal while `inlane forward` runs.

use inlane_core::units;
use inlane_forward::control::ProgressSnapshot;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// The live line: rates of the last second, on a terminal only.
pub(super) struct Live {
    on: bool,
    last: (Duration, ProgressSnapshot),
}

impl Live {
    pub(super) fn new() -> Self {
        Self { on: std::io::stderr().is_terminal(), last: Default::default() }
    }

    pub(super) fn show(&mut self, elapsed: Duration, reading: ProgressSnapshot) {
        if !self.on {
            return;
        }
        let (then, before) = self.last;
        let seconds = (elapsed - then).as_secs_f64();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let _ = write!(
            std::io::stderr(),
            "\r{:>5.0} s  rx {}  tx {}  {}  dropped {}   \x1b[K",
            elapsed.as_secs_f64(),
            units::packets_per_second(rate(reading.rx_packets, before.rx_packets)),
            units::packets_per_second(rate(reading.tx_packets, before.tx_packets)),
            units::bits_per_second(rate(reading.tx_bytes, before.tx_bytes) * 8.0),
            reading.dropped,
        );
        self.last = (elapsed, reading);
    }

    pub(super) fn end(&self) {
        if self.on {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
