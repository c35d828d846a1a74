//! The explanation of a result: the path that was taken, and why.

use crate::Cell;
use inlane_core::setting::Field;
use inlane_core::units;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::{self, Display};

/// The path that packets or bytes took. `P` names paths, and `R` says why a path was chosen: texts, or types of
/// the system that has the paths.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct PathExplanation<P = String, R = String> {
    /// The path's short name, as flags take it (`staged`, `dma`). Empty if the path has none.
    pub name: P,
    /// For each direction, the hops from source to destination.
    pub hops: Vec<Vec<String>>,
    /// Why this path was chosen.
    pub reason: R,
    /// The paths that were not taken.
    pub not_taken: Vec<NotTaken<P>>,
}

impl<P: Display, R: Display> PathExplanation<P, R> {
    /// Returns the hops as text: an arrow between hops, a semicolon between directions.
    pub fn hops_text(&self) -> String {
        self.hops.iter().map(|hops| hops.join(" -> ")).collect::<Vec<_>>().join("; ")
    }

    /// Returns the path as cells. Each cell is shown as one line of text.
    pub fn cells(&self) -> Vec<Cell> {
        self.cells_with("path", |_| true)
    }

    /// Returns the path as cells. `hops` names the cell of the hops. Among the paths that were not taken, only those that
    /// `shown` selects have cells.
    pub fn cells_with(&self, hops: &'static str, shown: impl Fn(&Reason) -> bool) -> Vec<Cell> {
        let mut cells = Vec::new();
        if !self.hops.is_empty() {
            cells.push(Cell::new(hops, self.hops_text()));
        }
        let reason = self.reason.to_string();
        if !reason.is_empty() {
            cells.push(Cell::new("because", reason));
        }
        let others = self.not_taken.iter().filter(|other| shown(&other.why));
        cells.extend(others.map(|other| Cell::new("not taken", format!("{}: {}", other.path, other.why))));
        cells
    }

    /// Returns the explanation with names and reason as texts, for rows of a system that has other paths too.
    pub fn into_text(self) -> PathExplanation {
        let texts = |other: NotTaken<P>| NotTaken { path: other.path.to_string(), why: other.why };
        PathExplanation {
            name: self.name.to_string(),
            hops: self.hops,
            reason: self.reason.to_string(),
            not_taken: self.not_taken.into_iter().map(texts).collect(),
        }
    }
}

/// A path that was not taken.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct NotTaken<P = String> {
    /// The path's short name.
    pub path: P,
    /// Why the path was not taken.
    pub why: Reason,
}

/// Why a path was not taken.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Reason {
    /// The path is available, but the path that was taken is faster.
    Slower {
        /// The size of the transfer.
        size_bytes: u64,
        /// The time of the transfer over this path, from its calibration.
        calibrated_ns: f64,
        /// The time of the transfer over the path that was taken, from its calibration.
        chosen_ns: f64,
    },
    /// A setting excludes the path.
    Excluded {
        /// The setting.
        setting: Field,
    },
    /// The path is taken only if it is requested.
    NotRequested {
        /// Why the path is not taken otherwise.
        because: String,
        /// The setting that requests the path.
        setting: Field,
        /// The setting's value that requests the path.
        value: String,
    },
    /// The path cannot be used.
    Unavailable {
        /// What is missing or failed.
        because: String,
    },
}

impl Reason {
    /// Creates a [`Reason::Unavailable`].
    pub fn unavailable(because: impl Into<String>) -> Self {
        Reason::Unavailable { because: because.into() }
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Slower { size_bytes, calibrated_ns, chosen_ns } => write!(
                f,
                "slower: {} calibrated for {}, against {}",
                units::nanoseconds(*calibrated_ns),
                units::bytes(*size_bytes),
                units::nanoseconds(*chosen_ns)
            ),
            Reason::Excluded { setting } => write!(f, "excluded by {setting}"),
            Reason::NotRequested { because, setting, value } => {
                write!(f, "{because}, taken only if requested: {}", setting.with(value))
            }
            Reason::Unavailable { because } => f.write_str(because),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_were_not_taken_are_data_in_json_and_sentences_in_text() {
        let not_taken = [
            Reason::Slower { size_bytes: 4096, calibrated_ns: 2e3, chosen_ns: 1e3 },
            Reason::Excluded { setting: Field::new("without") },
            Reason::NotRequested {
                because: "a software copy".into(),
                setting: Field::new("require"),
                value: "dma".into(),
            },
            Reason::unavailable("needs two GPUs"),
        ]
        .map(|why| NotTaken { path: "cpu".to_string(), why });
        let path =
            PathExplanation { reason: "x".to_string(), not_taken: not_taken.into(), ..Default::default() };
        let json = serde_json::to_value(&path.not_taken).unwrap();
        let slower = serde_json::json!(
            { "path": "cpu", "why": { "kind": "slower", "size_bytes": 4096, "calibrated_ns": 2e3, "chosen_ns": 1e3 } }
        );
        assert_eq!((&json[0], &json[1]["why"]["setting"]), (&slower, &"without".into()));
        let texts: Vec<_> =
            path.cells_with("movers", |why| !matches!(why, Reason::Slower { .. })).into_iter().collect();
        let texts: Vec<_> = texts.iter().map(|cell| cell.value.to_string()).collect();
        assert_eq!(
            texts,
            [
                "x",
                "cpu: excluded by without",
                "cpu: a software copy, taken only if requested: require=dma",
                "cpu: needs two GPUs"
            ]
        );
        assert_eq!(
            path.cells()[1].value.to_string(),
            "cpu: slower: 2.0 us calibrated for 4 KiB, against 1.0 us"
        );
    }
}
