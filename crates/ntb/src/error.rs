//! The errors of this crate.

use inlane_core::error::Class;

/// What went wrong between two ports. Each names the object that failed, what was seen and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the foundation: a region, a mover, a quantity.
    #[error(transparent)]
    Core(#[from] inlane_core::error::Error),
    /// An error of the operating system.
    #[error("{what}: {source}")]
    Os {
        /// What was tried, on which object.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A setting or an argument that makes no sense.
    #[error("{what}: {why}")]
    Invalid {
        /// The setting or argument.
        what: String,
        /// What is wrong with it, and what to give instead.
        why: String,
    },
    /// A memory window cannot be what was asked of it.
    #[error("memory window towards port {peer}: {why}")]
    Window {
        /// The port on its other side.
        peer: u32,
        /// What was asked, what it can do, what to change.
        why: String,
    },
    /// The peer speaks another version of the protocol.
    #[error(
        "port {peer} speaks version {theirs} of the window protocol, this side version {ours}: run the same release of inlane on both"
    )]
    Version {
        /// The peer's port.
        peer: u32,
        /// Our version.
        ours: u16,
        /// The peer's version.
        theirs: u16,
    },
    /// The peer did not complete the handshake.
    #[error("handshake with port {peer}: {why}")]
    Handshake {
        /// The peer's port.
        peer: u32,
        /// What was seen instead.
        why: String,
    },
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What a caller can do about it; decides the exit status.
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

    pub(crate) fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), why: why.into() }
    }
}
