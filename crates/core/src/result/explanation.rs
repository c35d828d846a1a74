//! The explanation of a result: the path, the ceiling and the baseline.

use super::Cell;
use crate::units;
use schemars::JsonSchema;
use serde::Serialize;

/// The path that packets or bytes took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PathExplanation {
    /// The path's short name, as flags take it (`staged`, `dma`). Empty if the path has none.
    pub name: String,
    /// For each direction, the hops from source to destination.
    pub hops: Vec<Vec<String>>,
    /// Why this path was chosen.
    pub reason: String,
    /// The paths that were not taken.
    pub not_taken: Vec<NotTaken>,
}

impl PathExplanation {
    /// Returns true if the path has no name, hops, reason or alternatives.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the hops as text: an arrow between hops, a semicolon between directions.
    pub fn hops_text(&self) -> String {
        self.hops.iter().map(|hops| hops.join(" -> ")).collect::<Vec<_>>().join("; ")
    }

    /// Returns the path as cells. Each cell is shown as one line of text.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        if !self.hops.is_empty() {
            cells.push(Cell::new("path", self.hops_text()));
        }
        if !self.reason.is_empty() {
            cells.push(Cell::new("because", &self.reason));
        }
        cells.extend(
            self.not_taken.iter().map(|it| Cell::new("not taken", format!("{}: {}", it.path, it.why))),
        );
        cells
    }
}

/// A path that was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NotTaken {
    /// The path's short name.
    pub path: String,
    /// Why the path was not taken.
    pub why: String,
}

/// The highest rate that the resources of a path can reach. It is measured or computed on this machine.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Ceiling {
    /// The resource that limits the rate, and how its capacity was measured or computed.
    pub what: String,
    /// The ceiling in bytes per second, if the resource limits bytes.
    pub bytes_per_second: Option<f64>,
    /// The ceiling in packets per second, if the resource limits packets.
    pub packets_per_second: Option<f64>,
}

impl Ceiling {
    /// Creates the ceiling of a resource that limits bytes.
    pub fn of_bytes(bytes_per_second: f64, what: String) -> Self {
        Self { what, bytes_per_second: Some(bytes_per_second), packets_per_second: None }
    }

    /// Returns the ceiling as a cell: its rates, and the resource that limits the rates.
    pub fn cell(&self) -> Cell {
        Cell::new("ceiling", rates(self.packets_per_second, self.bytes_per_second, &self.what))
    }
}

/// The rate of a short run with the same source and method, but without the packet function's work. The
/// difference to the measured run's rate is the cost of that work.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Baseline {
    /// The ports, the method and the function of the short run.
    pub what: String,
    /// The rate in bytes per second.
    pub bytes_per_second: Option<f64>,
    /// The rate in packets per second.
    pub packets_per_second: Option<f64>,
}

impl Baseline {
    /// Returns the baseline as a cell: its rates and what was run.
    pub fn cell(&self) -> Cell {
        Cell::new("baseline", rates(self.packets_per_second, self.bytes_per_second, &self.what))
    }
}

/// Formats rates. If there is a packet rate, shows the byte rate in bits per second, as is usual for
/// networks. Otherwise shows it in bytes per second.
fn rates(packets: Option<f64>, bytes: Option<f64>, what: &str) -> String {
    let mut parts: Vec<String> = packets.map(units::packets_per_second).into_iter().collect();
    parts.extend(bytes.map(|bytes| match packets {
        Some(_) => units::bits_per_second(bytes * 8.0),
        None => units::bytes_per_second(bytes),
    }));
    if parts.is_empty() { what.into() } else { format!("{}: {what}", parts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_packets_are_in_bits_and_rates_of_bytes_in_bytes() {
        assert_eq!(rates(Some(1e6), Some(64e6), "x"), "1.00 Mpps, 512.00 Mb/s: x");
        assert_eq!(rates(None, Some(64e6), "x"), "64.00 MB/s: x");
        assert_eq!(rates(None, None, "x"), "x");
    }
}
