//! The errors of the NTB devices.

use inlane_core::error::Class;
use inlane_core::setting::Subject;

/// An error of a port, a window or a handshake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error from inlane-core, for example about a region or a mover.
    #[error(transparent)]
    Core(#[from] inlane_core::error::Error),
    /// An error of the operating system.
    #[error("{what}: {source}")]
    Os {
        /// The operation that failed, and its object.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// An invalid setting or argument.
    #[error("{what}: {why}")]
    Invalid {
        /// The setting, with the refused value, or another object.
        what: Subject,
        /// Why the setting or argument is invalid, and what to give instead.
        why: String,
    },
    /// An error of a memory window: a bad translation, size or offset.
    #[error("memory window towards port {peer}: {why}")]
    Window {
        /// The NTB port on the other side of the window.
        peer: u32,
        /// What was requested of the window, what the window allows, and what to change.
        why: String,
    },
    /// The peer uses another version of the protocol.
    #[error(
        "port {peer} uses version {theirs} of the window protocol, but this side uses version {ours}; run the same release of inlane on both sides"
    )]
    Version {
        /// The peer's port.
        peer: u32,
        /// This side's version.
        ours: u16,
        /// The peer's version.
        theirs: u16,
    },
    /// The handshake did not complete.
    #[error("handshake with port {peer}: {why}")]
    Handshake {
        /// The peer's port.
        peer: u32,
        /// What was found in the peer's scratchpads, and what to do.
        why: String,
    },
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the class of the error. The class determines the exit status of the command.
    pub fn class(&self) -> Class {
        match self {
            Error::Core(error) => error.class(),
            Error::Invalid { .. } => Class::Usage,
            Error::Window { .. } | Error::Version { .. } => Class::Environment,
            _ => Class::Failed,
        }
    }

    pub(crate) fn os(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Error::Os { what: what.into(), source: source.into() }
    }

    pub(crate) fn invalid(what: impl Into<Subject>, why: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), why: why.into() }
    }
}
