//! What a reader must know besides the figures of a measurement, as data. Documents contain the texts.

use super::{Contradiction, Route};
use crate::endpoint::Endpoint;
use crate::field::ALLOW_BAR_READ;
use crate::path::Path;
use inlane_core::CompletionMode;
use std::fmt;

/// What a reader must know before comparing figures with others.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// A path does not support the requested completion mode.
    NotInMode {
        /// The path.
        path: Path,
        /// The mode in effect.
        mode: CompletionMode,
        /// The requested mode.
        requested: CompletionMode,
    },
    /// A path has no ceiling.
    NoCeiling {
        /// The path.
        path: Path,
        /// The source.
        from: Endpoint,
        /// The destination.
        to: Endpoint,
        /// Why the path has no ceiling.
        why: &'static str,
    },
    /// The links of the two devices have different rates.
    UnequalLinks {
        /// The device with the slower link, and the state of that link.
        slower: (Endpoint, String),
        /// The device with the faster link, and the state of that link.
        faster: (Endpoint, String),
    },
    /// A measured time contradicted the stored calibration. The paths were calibrated and measured again.
    CalibratedAgain {
        /// The source and destination.
        route: Route,
        /// The measured and the calibrated time.
        contradiction: Contradiction,
    },
    /// A measured time contradicts the calibration, and the paths were not calibrated again.
    Contradicted {
        /// The source and destination.
        route: Route,
        /// The measured and the calibrated time.
        contradiction: Contradiction,
        /// True if an earlier run made the calibration.
        is_stored: bool,
    },
    /// Other processes used the processors during a calibration.
    Disturbed {
        /// The source and destination.
        route: Route,
    },
    /// A GPU stopped answering.
    GivenUp,
    /// The caller ended the run.
    Interrupted,
    /// Some destinations must not be read.
    Unverified,
    /// The rates of the published experiment have the published unit.
    PublishedUnit,
    /// The published rates contradict each other.
    PublishedRates,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::NotInMode { path, mode, requested } => write!(
                f,
                "{path} is measured by {mode} instead of {requested}: the CPU copies, and is busy until the end"
            ),
            Note::NoCeiling { path, from, to, why } => {
                write!(f, "no ceiling for {path} from {from} to {to}: {why}")
            }
            Note::UnequalLinks { slower, faster } => write!(
                f,
                "links differ: {} of {}, {} of {}; the slower one bounds every path between them",
                slower.1, slower.0, faster.1, faster.0
            ),
            Note::CalibratedAgain { route, contradiction } => {
                write!(f, "{route}: calibrated again, because {contradiction} by an earlier run")
            }
            Note::Contradicted { route, contradiction, is_stored } => {
                let by = if *is_stored { "an earlier run" } else { "this run" };
                write!(f, "{route}: {contradiction} by {by}")
            }
            Note::Disturbed { route } => write!(
                f,
                "{route}: other processes used the processors during the calibration, so its times may be too long; the next \
                 run calibrates again"
            ),
            Note::GivenUp => {
                write!(f, "a GPU does not answer and was given up; the remaining measurements are left out")
            }
            Note::Interrupted => {
                write!(f, "interrupted; the measurement under way and the remaining ones are left out")
            }
            Note::Unverified => write!(
                f,
                "rows with 0 verified bytes were not checked: the destination must not be read ({ALLOW_BAR_READ})"
            ),
            Note::PublishedUnit => write!(f, "MiB/s is 2^20 bytes per second, as published"),
            Note::PublishedRates => write!(
                f,
                "the published device-to-device rates do not follow from the published rates of their stages: 24.33 MiB/s \
                 exceeds the rate of BAR writes, and 1988 MiB/s that of two DMA transfers and a copy in turn"
            ),
        }
    }
}
