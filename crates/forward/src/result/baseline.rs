//! The baseline of a run.

use inlane_result::{Cell, rates};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// The rate of a short run with the same method, function `io` and no forced work. The difference to the measured
/// run's rate is the cost of the packet function.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Baseline {
    /// The ports of the short run.
    pub ports: BaselinePorts,
    /// The rate in bytes per second.
    pub bytes_per_second: f64,
    /// The rate in packets per second.
    pub packets_per_second: f64,
}

/// The ports of the short run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum BaselinePorts {
    /// Those of the measured run.
    Same,
    /// The receive port of the measured run, and a transmit port that discards packets.
    Discarding {
        /// The receive port.
        source: String,
        /// True if the receive port repeats its packets, although it ends in the measured run.
        repeats: bool,
    },
}

impl Baseline {
    /// Returns the baseline as a cell: its rates and what was run.
    pub fn cell(&self) -> Cell {
        let run = format!("{}, the same method, function io, no forced work", self.ports);
        Cell::new("baseline", rates(Some(self.packets_per_second), Some(self.bytes_per_second), run))
    }
}

impl fmt::Display for BaselinePorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BaselinePorts::Same => f.write_str("the same ports"),
            BaselinePorts::Discarding { source, repeats: true } => write!(f, "{source} in a loop to null"),
            BaselinePorts::Discarding { source, repeats: false } => write!(f, "{source} to null"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_is_data_in_json_and_a_sentence_in_text() {
        let ports = BaselinePorts::Discarding { source: "pcap:a".into(), repeats: true };
        let baseline = Baseline { ports, bytes_per_second: 64e6, packets_per_second: 1e6 };
        let text =
            "1.00 Mpps, 512.00 Mb/s: pcap:a in a loop to null, the same method, function io, no forced work";
        assert_eq!(baseline.cell().value.to_string(), text);
        let json = serde_json::json!({ "kind": "discarding", "source": "pcap:a", "repeats": true });
        assert_eq!(serde_json::to_value(&baseline).unwrap()["ports"], json);
    }
}
