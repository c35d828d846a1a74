//! Errors of the DPDK layer.

use inlane_core::error::Class;
use std::fmt;

/// An error of the DPDK layer. Each error names the object that failed and says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// DPDK's environment did not start. This process then cannot use any part of DPDK.
    Environment {
        /// The reason, DPDK's last messages, and what to do.
        why: String,
    },
    /// A port specification is invalid.
    Spec {
        /// The specification, as the user wrote it.
        spec: String,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// The interface, device or directory that the port names does not exist.
    Missing {
        /// The port's name, as the user wrote it.
        port: String,
        /// The missing object.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// A queue, interface or device that the port needs is in use by another port or program.
    Busy {
        /// The port's name, as the user wrote it.
        port: String,
        /// The object in use.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The interface or device exists, but its present state prevents its use.
    Unavailable {
        /// The port's name, as the user wrote it.
        port: String,
        /// The state that was found.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// This process lacks the privilege to open the port.
    Permission {
        /// The port's name, as the user wrote it.
        port: String,
        /// The action that was refused.
        doing: String,
        /// The shell command (`setcap`) that gives the capabilities that ports need to the program's file.
        command: String,
    },
    /// A pool of packet buffers could not be created.
    Pool {
        /// Requested number of buffers.
        count: usize,
        /// Requested data room of each buffer, in bytes.
        room: usize,
        /// The reason, and what to do.
        why: String,
        /// The system's error, if there was one. `why` has its text.
        source: Option<std::io::Error>,
    },
    /// A call on a port came at the wrong time or with values outside the port's limits.
    Usage {
        /// The port's name, as the user wrote it.
        port: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// DPDK or its driver refused a step of opening, configuring or starting the port.
    Device {
        /// The port's name, as the user wrote it.
        port: String,
        /// The step that was refused.
        doing: String,
        /// The error, and the driver's own messages.
        why: String,
    },
    /// No process connected to a memif port.
    NoPeer {
        /// The port's name, as the user wrote it.
        port: String,
        /// How long the port waited, in seconds.
        seconds: f64,
        /// What to do.
        remedy: String,
    },
    /// The interface, device or peer of an open port disappeared.
    Gone {
        /// The port's name, as the user wrote it.
        port: String,
        /// The object that disappeared.
        what: String,
    },
}

/// The result of a call of the DPDK layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the class of this error. The class determines the exit status of the command.
    pub fn class(&self) -> Class {
        match self {
            Error::Spec { .. } | Error::Usage { .. } => Class::Usage,
            Error::Gone { .. } => Class::Failed,
            _ => Class::Environment,
        }
    }

    /// Returns the name of the port, if the error is about one.
    pub fn port(&self) -> Option<&str> {
        match self {
            Error::Spec { spec: port, .. }
            | Error::Missing { port, .. }
            | Error::Busy { port, .. }
            | Error::Unavailable { port, .. }
            | Error::Permission { port, .. }
            | Error::Usage { port, .. }
            | Error::Device { port, .. }
            | Error::NoPeer { port, .. }
            | Error::Gone { port, .. } => Some(port),
            Error::Pool { .. } | Error::Environment { .. } => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(port) = self.port() {
            write!(f, "port {port}: ")?;
        }
        WithoutPort(self).fmt(f)
    }
}

/// Shows an error without the name of its port.
struct WithoutPort<'a>(&'a Error);

impl fmt::Display for WithoutPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Error::Environment { why } => write!(f, "DPDK did not start: {why}"),
            Error::Spec { why, .. } | Error::Usage { why, .. } => f.write_str(why),
            Error::Missing { what, remedy, .. } => write!(f, "{what} does not exist; {remedy}"),
            Error::Busy { what, remedy, .. } => write!(f, "{what} is in use; {remedy}"),
            Error::Unavailable { why, remedy, .. } => write!(f, "{why}; {remedy}"),
            Error::Permission { doing, command, .. } => write!(
                f,
                "no permission to {doing}; run as root, or give the program the capabilities that ports need: {command}"
            ),
            Error::Pool { count, room, why, .. } => {
                write!(f, "a pool of {count} mbufs of {room} bytes: {why}")
            }
            Error::Device { doing, why, .. } => write!(f, "{doing} failed: {why}"),
            Error::NoPeer { seconds, remedy, .. } => {
                write!(f, "no peer connected to the socket within {seconds} s; {remedy}")
            }
            Error::Gone { what, .. } => {
                write!(f, "{what} disappeared while in use; when it is back, start the command again")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Pool { source, .. } => source.as_ref().map(|source| source as _),
            _ => None,
        }
    }
}

impl From<Error> for inlane_core::Error {
    fn from(error: Error) -> Self {
        use inlane_core::Error as Core;
        let class = error.class();
        match error {
            Error::Pool { count, room, why, .. } => Core::Memory {
                bytes: count.saturating_mul(room),
                what: format!("a pool of {count} mbufs of {room} bytes"),
                why,
            },
            Error::Environment { why } => Core::Port { port: "DPDK".into(), why, class, source: None },
            other => {
                let port = other.port().unwrap_or("DPDK").to_owned();
                let why = WithoutPort(&other).to_string();
                Core::Port { port, why, class, source: Some(other.into()) }
            }
        }
    }
}
