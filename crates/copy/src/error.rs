//! The errors of this crate. Its functions return the error of `core`, as movers must.
//! [`Error::Other`](inlane_core::Error::Other) contains an error of this type.

use crate::endpoint::Endpoint;
use crate::field::{FROM, LIST, TO, WITHOUT};
use crate::path::Path;
use inlane_core::error::Class;
use inlane_result::Reason;
use std::collections::BTreeMap;

/// An error of this crate. Each names the object that failed and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path cannot be opened.
    #[error("path {path} from {from} to {to}: {why}{}", why.advice(from, to))]
    Path {
        /// The path.
        path: Path,
        /// The source.
        from: Endpoint,
        /// The destination.
        to: Endpoint,
        /// Why the path cannot be opened.
        why: Unavailable,
    },
    /// No path between two endpoints can be used.
    #[error("{from} to {to}: {}", refusals(refused))]
    NoPath {
        /// The source.
        from: Endpoint,
        /// The destination.
        to: Endpoint,
        /// Why each path cannot be used.
        refused: BTreeMap<Path, Reason>,
        /// The most severe class among the errors of the paths.
        class: Class,
    },
    /// A BAR cannot be opened.
    #[error("{}{error}", if names(error, endpoint) { String::new() } else { format!("{endpoint}: ") })]
    Bar {
        /// The BAR as the user wrote it.
        endpoint: Endpoint,
        /// Why it cannot be opened.
        error: inlane_pci::Error,
    },
    /// A GPU cannot be opened because this machine has none.
    #[error("{0}; without a GPU, use twin:0, a model of an accelerator")]
    NoGpu(inlane_core::Error),
    /// The caller ended the run.
    #[error(
        "the run: it was interrupted before the first measurement was complete, so there is no result; start it again"
    )]
    Interrupted,
}

/// Why a path cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The path cannot exist between the endpoints.
    #[error("{0}")]
    Impossible(&'static str),
    /// The program was built without this cargo feature.
    #[error("this program was built without the cargo feature {0}; build it with --features {0}")]
    NotBuilt(&'static str),
    /// Path `cuda` measures copies without peer access.
    #[error(
        "this process enabled peer access, which CUDA's own copy would use; measure path cuda in a process of its own"
    )]
    PeerAccess,
}

impl Unavailable {
    /// Returns the end of the message: how to find a path that can be opened.
    fn advice(self, from: &Endpoint, to: &Endpoint) -> String {
        match self {
            Unavailable::Impossible(_) => {
                format!("; see the available paths: inlane copy {LIST} {} {}", FROM.with(from), TO.with(to))
            }
            Unavailable::NotBuilt(_) | Unavailable::PeerAccess => String::new(),
        }
    }
}

impl Error {
    /// Returns the class of this error.
    pub fn class(&self) -> Class {
        match self {
            Error::Path { why: Unavailable::NotBuilt(_), .. } => Class::Environment,
            Error::Path { .. } => Class::Usage,
            Error::NoPath { class, .. } => *class,
            Error::Bar { error, .. } => error.class(),
            Error::NoGpu(error) => error.class(),
            Error::Interrupted => Class::Failed,
        }
    }
}

impl From<Error> for inlane_core::Error {
    fn from(error: Error) -> Self {
        let class = error.class();
        inlane_core::Error::other(error, class)
    }
}

/// Returns the reason of `error` without the name of its object, if the object is a path.
pub(crate) fn reason(error: &inlane_core::Error) -> String {
    if let inlane_core::Error::Other { error, .. } = error
        && let Some(Error::Path { why, .. }) = error.downcast_ref()
    {
        return why.to_string();
    }
    error.to_string()
}

/// Returns true if the message of `error` begins with the name of the BAR.
fn names(error: &inlane_pci::Error, endpoint: &Endpoint) -> bool {
    use inlane_pci::Error::{NotPermitted, TooSmall};
    matches!(error, NotPermitted { name, .. } | TooSmall { name, .. } if *name == endpoint.to_string())
}

/// Joins the reasons against all paths. Paths with the same reason share it.
fn refusals(refused: &BTreeMap<Path, Reason>) -> String {
    let names = |of: &Reason| {
        let paths = refused.iter().filter(|(_, why)| *why == of);
        paths.map(|(path, _)| path.to_string()).collect::<Vec<_>>().join(", ")
    };
    let is_excluded = |why: &&Reason| matches!(why, Reason::Excluded { .. });
    if let Some(excluded) = refused.values().next()
        && refused.values().all(|why| is_excluded(&why))
    {
        return format!("{WITHOUT} excludes every path: {}; allow one of them", names(excluded));
    }
    let mut reasons: Vec<String> = Vec::new();
    for reason in refused.values().map(|why| format!("{}: {why}", names(why))) {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    format!("no path is available: {}; remove one of these causes", reasons.join("; "))
}
