//! The errors of this crate.

use inlane_core::error::Class;

/// What went wrong in a job or between its PEs. Each names the object that failed, what was seen and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the foundation: a region, a mover, a quantity.
    #[error(transparent)]
    Core(#[from] inlane_core::error::Error),
    /// An error of the bridge below: a window, the handshake.
    #[error(transparent)]
    Ntb(#[from] inlane_ntb::error::Error),
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
    /// The link to a peer went down, or the peer restarted, while something was under way.
    #[error("link to port {peer} lost: {lost}; connect again, then repeat what was not delivered")]
    LinkLost {
        /// The peer's port.
        peer: u32,
        /// What is known of the bytes sent to it.
        lost: Lost,
    },
    /// A peer did not answer in time, though its link is up.
    #[error("port {peer} did not answer {what} within {:.1} s; {lost}; check that its process is not stopped", waited.as_secs_f64())]
    Timeout {
        /// The peer's port.
        peer: u32,
        /// What it was asked.
        what: &'static str,
        /// How long the wait lasted.
        waited: std::time::Duration,
        /// What is known of the bytes sent to it.
        lost: Lost,
    },
    /// The owner refused a request: offset, length or operation outside what it offers.
    #[error("port {peer} refused {what}: offset or length outside its symmetric memory")]
    Refused {
        /// The peer's port.
        peer: u32,
        /// What it was asked.
        what: &'static str,
    },
    /// The word of an atomic is not aligned to its width, or has a width other than 4 or 8 bytes.
    #[error(
        "atomic on {width} bytes at {address:#x}: the word must have 4 or 8 bytes and be aligned to its width"
    )]
    Misaligned {
        /// The address.
        address: usize,
        /// Bytes of the word.
        width: usize,
    },
    /// The symmetric heap has no room.
    #[error("symmetric heap: no {bytes} bytes free of {size}; give a larger --heap (INLANE_NTB_HEAP)")]
    Heap {
        /// Bytes asked for.
        bytes: usize,
        /// Size of the heap.
        size: usize,
    },
    /// An address that is not in symmetric memory.
    #[error(
        "{address:#x} with {bytes} bytes is not in the symmetric heap nor in a static object of the program"
    )]
    NotSymmetric {
        /// The address.
        address: usize,
        /// How many bytes from there.
        bytes: usize,
    },
}

/// What is known of the bytes sent over a link that went down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Bytes stored towards the peer since the link came up.
    pub issued_bytes: u64,
    /// Of these, the bytes known to be in the peer's memory (those before the last completed quiet).
    pub delivered_bytes: u64,
    /// Requests (gets, atomics) that had no answer yet; whether they were carried out is not known.
    pub unanswered: u64,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of {} bytes put are known to be delivered, {} requests unanswered",
            self.delivered_bytes, self.issued_bytes, self.unanswered
        )
    }
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What a caller can do about it; decides the exit status.
    pub fn class(&self) -> Class {
        match self {
            Error::Core(error) => error.class(),
            Error::Ntb(error) => error.class(),
            Error::Invalid { .. } | Error::Heap { .. } => Class::Usage,
            _ => Class::Failed,
        }
    }

    pub(crate) fn os(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Error::Os { what: what.into(), source: source.into() }
    }

    /// A program that did not start.
    pub(crate) fn starting(program: &std::ffi::OsStr, source: std::io::Error) -> Self {
        use std::io::ErrorKind::{NotFound, PermissionDenied};
        let what = format!("starting '{}'", program.to_string_lossy());
        match source.kind() {
            NotFound | PermissionDenied => {
                Self::invalid(what, format!("{source}; name a program that is there and may be run"))
            }
            _ => Error::Os { what, source },
        }
    }

    pub(crate) fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), why: why.into() }
    }
}
