//! Compares measured times with the calibrated times by which paths are chosen.

use crate::path::Path;
use crate::path_selector::PathSelector;
use crate::timing::Timing;
use inlane_core::units;
use std::fmt;

/// If the measured and the calibrated time differ by more than this factor, they contradict each other.
const TOLERANCE: f64 = 2.0;

/// A measured time that contradicts the calibrated time of the same transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct Contradiction {
    /// The path.
    pub path: Path,
    /// The bytes of a transfer.
    pub size_bytes: u64,
    /// The calibrated time.
    pub calibrated_ns: f64,
    /// The median of the measured times. For both directions at once, the time between the ends of two transfers
    /// of the slower direction.
    pub measured_ns: f64,
}

impl Contradiction {
    /// Compares the measurement of all directions that ran at once with the costs of the first one. Returns `None`
    /// if they agree, or if there is nothing to compare.
    ///
    /// If `others_are_busy` is set, other processes used processors during the measurement. It may then take longer
    /// than calibrated, but not less.
    pub(super) fn find(
        selector: &PathSelector,
        size: usize,
        measured: &[Timing],
        others_are_busy: bool,
    ) -> Option<Self> {
        let (path, size_bytes) = (selector.path_for(size as u64), size as u64);
        let calibrated_ns = selector.costs()?.time(path, size_bytes)?;
        let measured_ns = match measured {
            [one] => one.latency_ns.as_ref()?.median,
            all => {
                let rates = all.iter().map(|way| way.bytes_per_second.median);
                size as f64 * 1e9 / rates.fold(f64::INFINITY, f64::min)
            }
        };
        let too_long = calibrated_ns > TOLERANCE * measured_ns;
        let too_short = measured_ns > TOLERANCE * calibrated_ns && !others_are_busy;
        (too_long || too_short).then_some(Self { path, size_bytes, calibrated_ns, measured_ns })
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, measured) = (units::bytes(self.size_bytes), units::nanoseconds(self.measured_ns));
        let calibrated = units::nanoseconds(self.calibrated_ns);
        write!(f, "{} took {measured} for {size}, against {calibrated} calibrated", self.path)
    }
}
