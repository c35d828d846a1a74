//! Why a trial at a set rate failed.

use inlane_core::units;
use std::fmt;

/// A rate that packets were offered at, and why the trial failed.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedRate {
    /// The offered rate.
    pub packets_per_second: f64,
    /// Why the trial failed.
    pub why: TrialFailure,
}

/// Why a trial at a set rate failed.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialFailure {
    /// The run had an error.
    Error {
        /// The error's text.
        why: String,
    },
    /// Packets were lost.
    Lost {
        /// The number of packets.
        packets: u64,
    },
    /// The checking port found packets that were wrong, or missed some.
    Wrong {
        /// The number of packets.
        packets: u64,
    },
    /// Packets that were due had not been processed at the end.
    Late {
        /// Their share of the due packets.
        share: f64,
    },
}

impl fmt::Display for FailedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}, ", units::packets_per_second(self.packets_per_second))?;
        match &self.why {
            TrialFailure::Error { why } => f.write_str(why),
            TrialFailure::Lost { packets } => write!(f, "{packets} packets were lost"),
            TrialFailure::Wrong { packets } => {
                write!(f, "{packets} packets were wrong or missing at the checking port")
            }
            TrialFailure::Late { share } => {
                write!(f, "{:.1} % of the due packets were late at the end", share * 100.0)
            }
        }
    }
}
