//! The errors of an engine and of its clients.

use inlane_core::error::Class;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// An error of an engine or of a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of a port or pool.
    #[error(transparent)]
    Core(#[from] inlane_core::Error),
    /// An error of one of inlane's own ports.
    #[error(transparent)]
    Ports(#[from] inlane_ports::Error),
    /// An error of a DPDK port or pool, or of dropping privileges.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Dpdk(#[from] inlane_dpdk::Error),
    /// A TCP setting is out of range.
    #[error(transparent)]
    Tcp(#[from] inlane_tcp::Error),
    /// A setting that is wrong, or contradicts another setting.
    #[error("{what}: {why}")]
    Setting {
        /// The flag or key.
        what: String,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// Another engine uses the control socket.
    #[error("an engine already listens on {0}; stop it, or choose another path with --socket")]
    Busy(String),
    /// No engine listens on the control socket.
    #[error(
        "no engine listens on {path}: {source}; start one with 'inlane offload serve', or give its --socket"
    )]
    NoEngine {
        /// The control socket's path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The engine whose control socket has this path gave an invalid answer.
    #[error("the engine on {0} gave an invalid answer; use the inlane of the same version for both")]
    Answer(String),
    /// A thread of the engine has panicked.
    #[error(
        "thread {thread} of the engine has panicked, so the engine ends; please report the message above"
    )]
    Panicked {
        /// The thread's number.
        thread: usize,
    },
    /// The engine and this program have different versions of the messages on the control socket.
    #[error(
        "the engine on {path} has protocol version {engine}, and this command version {command}; use the inlane of the same version \
         for both"
    )]
    Version {
        /// The control socket's path.
        path: String,
        /// The engine's version.
        engine: u8,
        /// This program's version.
        command: u8,
    },
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Os {
        /// The operation and its object.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the class of this error.
    pub fn class(&self) -> Class {
        match self {
            Self::Core(error) => error.class(),
            Self::Ports(error) => error.class(),
            #[cfg(feature = "dpdk")]
            Self::Dpdk(error) => error.class(),
            Self::Tcp(_) | Self::Setting { .. } => Class::Usage,
            Self::Busy(_) | Self::NoEngine { .. } | Self::Version { .. } => Class::Environment,
            // The machine is not ready: a folder, a device or a permission is missing.
            Self::Os { source, .. }
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
                ) =>
            {
                Class::Environment
            }
            Self::Answer(_) | Self::Panicked { .. } | Self::Os { .. } => Class::Failed,
        }
    }

    /// Returns a function that turns an error of the operating system into an [`Error::Os`]. `what` names the
    /// operation and its object.
    pub fn os(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Os { what, source }
    }
}

/// Returns `a directory` or `a file` if `path` leads to one. Returns `None` for a socket, or if nothing is
/// there.
pub(crate) fn kind_of_no_socket(path: &Path) -> Option<&'static str> {
    let found = path.metadata().ok()?.file_type();
    match found.is_socket() {
        true => None,
        false => Some(if found.is_dir() { "a directory" } else { "a file" }),
    }
}
