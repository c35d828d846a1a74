//! The errors of the initiator and the target.

use crate::wire::command::Status;
use crate::wire::nqn::InvalidNqn;
use crate::wire::pdu::{Fault, Termination};
use inlane_core::error::Class;
use inlane_core::setting::Subject;
use std::io::ErrorKind;

/// An error of a connection, a command or a namespace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error from inlane-core about a region, an address or a quantity.
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
    /// An error of the operating system whose cause the user can remove.
    #[error("{what}: {source}; {remedy}")]
    Remediable {
        /// The operation that failed, and its object.
        what: String,
        /// The system's error.
        source: std::io::Error,
        /// What the user can do.
        remedy: String,
    },
    /// An invalid setting or argument.
    #[error("{what}: {why}")]
    Invalid {
        /// The setting or argument.
        what: Subject,
        /// Why the setting or argument is invalid, and what to give instead.
        why: String,
    },
    /// The machine is not ready: a kernel feature or a permission is missing.
    #[error("{what}: {why}")]
    Environment {
        /// What is missing.
        what: String,
        /// Why the kernel feature or permission is missing, and what to do.
        why: String,
    },
    /// The peer sent a PDU that violates the protocol. The connection is closed.
    #[error("{peer} violates the NVMe/TCP protocol: {fault}; the connection is closed")]
    Protocol {
        /// The peer's address.
        peer: String,
        /// The bad field, and why it is bad.
        fault: Fault,
    },
    /// The peer ended the connection because it found an error in the data that this side sent.
    #[error("{peer} ended the connection: {termination}")]
    Terminated {
        /// The peer's address.
        peer: String,
        /// The reason that the peer gave.
        termination: Termination,
    },
    /// A command completed with an error status.
    #[error("{what}: {status}")]
    Status {
        /// The failed operation and its object, as text.
        what: String,
        /// The status.
        status: Status,
    },
    /// The target cannot be reached: its name cannot be resolved, or nothing accepts a connection or answers on it.
    #[error("{peer}: {why}")]
    Unreachable {
        /// The target's address.
        peer: String,
        /// Why the target cannot be reached, and what to do.
        why: String,
        /// The system's error, if there was one. `why` has its text.
        source: Option<std::io::Error>,
    },
    /// A transfer ended before all bytes were copied.
    #[error("{what}: {why}")]
    Incomplete {
        /// What failed: the transfer, or reading its input.
        what: String,
        /// Why the transfer ended early, and how many bytes were copied.
        why: String,
    },
    /// Several paths to a subsystem failed, and the target of at least one path answered.
    #[error("{answered}; {others}")]
    Paths {
        /// The error of the first path whose target answered.
        answered: Box<Error>,
        /// The errors of the other failed paths, as one text.
        others: String,
    },
    /// This host or the target could not prove its identity. Further attempts fail, too, until the secrets or
    /// the settings are changed.
    #[error("{peer}: {why}")]
    Unauthenticated {
        /// The target's address.
        peer: String,
        /// Why the authentication failed, and what to do.
        why: String,
    },
    /// The target answered, but does not let this host use it: it refused the host or ended the connection before
    /// the first use, or the controller is unusable.
    #[error("{peer}: {why}")]
    Refused {
        /// The target's address.
        peer: String,
        /// Why the target cannot be used, and what to do.
        why: String,
        /// The system's error, if there was one. `why` has its text.
        source: Option<std::io::Error>,
    },
    /// A connection in use ended, or the namespace or discovery log that it reads changed.
    #[error("{peer}: {why}")]
    Disconnected {
        /// The peer's address.
        peer: String,
        /// Why the connection ended, and what to do.
        why: String,
        /// The system's error, if there was one. `why` has its text.
        source: Option<std::io::Error>,
    },
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<InvalidNqn> for Error {
    fn from(InvalidNqn { nqn, why }: InvalidNqn) -> Self {
        Error::invalid(format!("NQN '{nqn}'"), why)
    }
}

impl Error {
    /// Creates an [`Error::Invalid`].
    pub fn invalid(what: impl Into<Subject>, why: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), why: why.into() }
    }

    /// Returns [`Error::invalid`] unless `ok`.
    pub(crate) fn require(ok: bool, what: impl Into<Subject>, why: impl Into<String>) -> Result<()> {
        if ok { Ok(()) } else { Err(Self::invalid(what, why)) }
    }

    /// Creates an [`Error::Environment`].
    pub(crate) fn environment(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Environment { what: what.into(), why: why.into() }
    }

    /// Creates an [`Error::Incomplete`].
    pub(crate) fn incomplete(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Incomplete { what: what.into(), why: why.into() }
    }

    /// Creates an [`Error::Unreachable`] without a system's error.
    pub(crate) fn unreachable(peer: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Unreachable { peer: peer.into(), why: why.into(), source: None }
    }

    /// Creates an [`Error::Disconnected`] without a system's error.
    pub fn disconnected(peer: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Disconnected { peer: peer.into(), why: why.into(), source: None }
    }

    /// Creates the error for a thread that the system did not start.
    pub(crate) fn no_thread(source: std::io::Error) -> Self {
        let source = inlane_core::error::NotStarted::of(source);
        Error::Os { what: "cannot start a thread".into(), source }
    }

    /// Adds the error of one more path, `second`, to `first`, the error of the paths tried before. The result
    /// names the errors of all paths. The error of the first path whose target answered is named first, and
    /// determines the class.
    pub fn of_paths(first: Option<Self>, second: Self) -> Self {
        match (first, second) {
            (None, error) => error,
            (Some(Error::Unreachable { peer, why, source }), other @ Error::Unreachable { .. }) => {
                Error::Unreachable { peer, why: format!("{why}; {other}"), source }
            }
            (Some(Error::Paths { answered, others }), second) => {
                Error::Paths { answered, others: format!("{others}; {second}") }
            }
            (Some(first @ Error::Unreachable { .. }), second) => {
                Error::Paths { answered: second.into(), others: first.to_string() }
            }
            (Some(first), second) => Error::Paths { answered: first.into(), others: second.to_string() },
        }
    }

    /// Returns the error for a connection that was not in use yet: it is refused instead of disconnected.
    pub(crate) fn before_use(self) -> Self {
        match self {
            Error::Disconnected { peer, why, source } => Error::Refused { peer, why, source },
            error => error,
        }
    }

    /// Returns the error for a listener that cannot be bound to a TCP address, or to the path of a Unix socket.
    pub fn cannot_listen(address: &dyn std::fmt::Display, is_path: bool, source: std::io::Error) -> Self {
        let remedy = match (source.kind(), is_path) {
            (ErrorKind::AddrInUse, true) => "another program listens there; choose another path",
            (ErrorKind::AddrInUse, false) => "another program listens there; choose another port",
            (ErrorKind::NotFound, true) => "its directory does not exist; create it",
            (ErrorKind::AddrNotAvailable, _) => {
                "no interface of this machine has this address; list them: ip address"
            }
            (ErrorKind::PermissionDenied, false) => "ports below 1024 need privileges; choose a higher port",
            _ => "",
        };
        Self::with_remedy(format!("cannot listen on {address}"), source, remedy)
    }

    /// Returns an error of the operating system. Its message ends with `remedy`, unless that is empty.
    pub fn with_remedy(what: String, source: std::io::Error, remedy: &str) -> Self {
        match remedy {
            "" => Error::Os { what, source },
            _ => Error::Remediable { what, source, remedy: remedy.into() },
        }
    }

    /// Returns the class of the error, which decides the command's exit status.
    pub fn class(&self) -> Class {
        match self {
            Error::Core(error) => error.class(),
            Error::Paths { answered, .. } => answered.class(),
            Error::Invalid { .. } => Class::Usage,
            Error::Environment { .. }
            | Error::Unreachable { .. }
            | Error::Refused { .. }
            | Error::Unauthenticated { .. } => Class::Environment,
            // The machine is not ready: a file, a device or a right is missing, or an address or device is in
            // use.
            Error::Os { source, .. } | Error::Remediable { source, .. }
                if matches!(
                    source.kind(),
                    ErrorKind::NotFound
                        | ErrorKind::NotADirectory
                        | ErrorKind::PermissionDenied
                        | ErrorKind::ReadOnlyFilesystem
                        | ErrorKind::ResourceBusy
                        | ErrorKind::AddrInUse
                        | ErrorKind::AddrNotAvailable
                ) =>
            {
                Class::Environment
            }
            _ => Class::Failed,
        }
    }
}
