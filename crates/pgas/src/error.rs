//! The errors of jobs and their PEs.

use crate::field::HEAP;
use inlane_core::error::Class;
use inlane_core::setting::Subject;
use inlane_core::units::counted;

/// An error of a job or between its PEs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error from inlane-core: a region, a mover or a quantity.
    #[error(transparent)]
    Core(#[from] inlane_core::error::Error),
    /// An error of the bridge: of a window or of a handshake.
    #[error(transparent)]
    Ntb(#[from] inlane_ntb::error::Error),
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
        /// The setting or argument.
        what: Subject,
        /// Why the setting or argument is invalid, and what to give instead.
        why: String,
    },
    /// Another program, such as ucx_perftest or the launcher, did not give the expected result.
    #[error("{what}: {why}")]
    Failed {
        /// What failed.
        what: String,
        /// What was found, and what to do.
        why: String,
    },
    /// A function of UCX failed.
    #[error("UCX: {what}: {why}")]
    Ucx {
        /// The operation that failed, and its object.
        what: String,
        /// UCX's reason.
        why: String,
    },
    /// UCX cannot reach a PE, or an operation on it failed. The PE may have ended.
    #[error(
        "UCX cannot reach PE {peer}: {why}; if PE {peer} runs, check UCX_TLS and UCX_NET_DEVICES, which choose what UCX uses"
    )]
    Unreachable {
        /// The PE.
        peer: u32,
        /// UCX's reason.
        why: String,
    },
    /// The link to a peer went down, or the peer restarted, during an operation.
    #[error("the link to PE {peer} is lost{lost}; look for the cause at PE {peer}")]
    LinkLost {
        /// The peer's PE number.
        peer: u32,
        /// How many bytes sent to the peer are known to be delivered, and how many requests have no answer.
        lost: Lost,
    },
    /// The launcher has ended, or PE 0 if a process manager started the job.
    #[error("an exchange between the PEs: the launcher has ended")]
    LauncherLost,
    /// This PE waits for a call of a PE that leaves the job.
    #[error(
        "PE {peer} has called shmem_finalize or has returned from main, but this PE still waits for it; call the same collectives at all PEs, and clear locks before shmem_finalize"
    )]
    Left {
        /// The number of the PE that leaves.
        peer: u32,
    },
    /// This PE waits for a word, but all PEs that could change it leave the job.
    #[error(
        "this PE waits for a word, but all other PEs have called shmem_finalize or have returned from main, so none changes it; change the word before that"
    )]
    AllLeft,
    /// A peer did not answer in time, although its link is up.
    #[error("PE {peer} did not answer {what} within {:.1} s{lost}; check that its process is not stopped", waited.as_secs_f64())]
    Timeout {
        /// The peer's PE number.
        peer: u32,
        /// The unanswered operation.
        what: &'static str,
        /// How long the wait lasted.
        waited: std::time::Duration,
        /// How many bytes sent to the peer are known to be delivered, and how many requests have no answer.
        lost: Lost,
    },
    /// The PE that owns the accessed memory refused a request with an invalid offset, length or operation.
    #[error(
        "PE {peer} refused {what}: its offset or length lies outside symmetric memory; check the address and length of the call"
    )]
    Refused {
        /// The owner's PE number.
        peer: u32,
        /// The refused operation.
        what: &'static str,
    },
    /// An atomic on a word that is not aligned to its width, or whose width is neither 4 nor 8 bytes.
    #[error(
        "atomic on {width} bytes at {address:#x}: the word must have 4 or 8 bytes and be aligned to its width; pass the address of such a word"
    )]
    Misaligned {
        /// Address of the word.
        address: usize,
        /// Bytes of the word.
        width: usize,
    },
    /// The symmetric heap is full.
    #[error(
        "the symmetric heap of {size} bytes has no free span of {bytes} bytes; give a larger {HEAP}, or set SHMEM_SYMMETRIC_SIZE"
    )]
    Heap {
        /// Requested bytes.
        bytes: usize,
        /// Size of the heap in bytes.
        size: usize,
    },
    /// PEs made different calls of the symmetric heap at the same time. Found only if calls are checked.
    #[error("{own}: PE {peer} calls for {other} at the same time; make the same calls at all PEs")]
    Asymmetric {
        /// This PE's call.
        own: String,
        /// The number of the other PE.
        peer: u32,
        /// The other PE's call.
        other: String,
    },
    /// An address outside symmetric memory.
    #[error(
        "{bytes} bytes at {address:#x} do not lie within the symmetric heap or a static object; allocate them by shmem_malloc"
    )]
    NotSymmetric {
        /// The address.
        address: usize,
        /// Length of the access in bytes.
        bytes: usize,
    },
}

/// The fate of the bytes and requests sent to a peer whose link was lost or that did not answer in time.
/// Shows how many bytes are known to be delivered, and how many requests have no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Bytes stored to the peer since the link came up.
    pub issued_bytes: u64,
    /// The issued bytes that are known to be in the peer's memory: those issued before the last completed
    /// quiet.
    pub delivered_bytes: u64,
    /// Requests (gets, atomics) without an answer. They may have been carried out.
    pub unanswered: u64,
}

impl std::fmt::Display for Lost {
    /// Writes how many put bytes are known to be delivered, and how many requests have no answer. Leaves out
    /// counts of 0.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.issued_bytes > 0 {
            let (delivered, issued) = (self.delivered_bytes, self.issued_bytes);
            write!(f, "; {delivered} of {issued} bytes put are known to be delivered")?;
        }
        if self.unanswered > 0 {
            write!(f, "; {} without an answer", counted(self.unanswered, "request"))?;
        }
        Ok(())
    }
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the class of the error. The class determines the exit status of the command.
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

    /// Returns the error of a program that did not start.
    pub(crate) fn starting(program: &std::ffi::OsStr, source: std::io::Error) -> Self {
        use std::io::ErrorKind::{NotFound, PermissionDenied};
        let what = format!("cannot start '{}'", program.to_string_lossy());
        match source.kind() {
            NotFound | PermissionDenied => {
                let path = std::path::Path::new(program);
                let why = inlane_process::program::why_not_started(path)
                    .unwrap_or_else(|| format!("{source}; name an executable program"));
                inlane_core::Error::device_environment(what, why).into()
            }
            _ => Error::Os { what, source: inlane_core::error::NotStarted::of(source) },
        }
    }

    pub(crate) fn invalid(what: impl Into<Subject>, why: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), why: why.into() }
    }
}
