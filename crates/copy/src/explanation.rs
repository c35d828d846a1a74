//! Why a path was taken, as data. Rows show it as text.

use crate::Endpoint;
use crate::field::{REQUIRE, WITHOUT};
use crate::path::Path;
use crate::path_options::PathOptions;
use inlane_core::units;
use inlane_result::{PathExplanation, Reason};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The path of a transfer: its movers, why it was taken, and why the others were not.
pub type PathTaken = PathExplanation<Path, Because>;

/// Why a path was taken.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Because {
    /// The path has the least calibrated time for transfers of this size.
    LeastTime {
        /// The path.
        #[serde(skip)]
        path: Path,
        /// The size of a transfer.
        size_bytes: u64,
        /// The time of a transfer over the path.
        calibrated_ns: f64,
        /// True if the time is that of transfers in both directions at once.
        both_directions: bool,
    },
    /// The path was requested.
    Requested {
        /// The path.
        #[serde(skip)]
        path: Path,
    },
    /// Another path was requested, which cannot be used. This path has the least calibrated time of the others.
    Fallback {
        /// The path.
        #[serde(skip)]
        path: Path,
        /// The requested path.
        requested: Path,
        /// Why the requested path cannot be used.
        why: String,
    },
    /// The published experiment used this path.
    Published,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::LeastTime { path, size_bytes, calibrated_ns, both_directions } => {
                let (size, time) = (units::bytes(*size_bytes), units::nanoseconds(*calibrated_ns));
                let load = if *both_directions { ", both directions at once" } else { "" };
                write!(f, "{path}: least calibrated time for {size}, {time}{load}")
            }
            Because::Requested { path } => write!(f, "{path}: requested"),
            Because::Fallback { path, requested, why } => {
                write!(f, "{path} instead: {requested} was requested but cannot be used: {why}")
            }
            Because::Published => {
                write!(f, "the published experiment, on models with the published rates of single stages")
            }
        }
    }
}

/// Returns the paths that are not chosen by cost although they may be available, with the reasons.
pub(crate) fn not_considered(
    from: &Endpoint,
    to: &Endpoint,
    options: &PathOptions,
) -> BTreeMap<Path, Reason> {
    let mut reasons = BTreeMap::new();
    for path in Path::candidates(from, to) {
        if path == Path::Dma && [from, to] == [&Endpoint::Host; 2] {
            let because = "a software copy".into();
            let why = Reason::NotRequested { because, setting: REQUIRE, value: path.to_string() };
            reasons.insert(path, why);
        } else if options.without.contains(&path) {
            reasons.insert(path, Reason::Excluded { setting: WITHOUT });
        }
    }
    reasons
}
