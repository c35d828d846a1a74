//! What can go wrong with DPDK, and what to do about it.

use inlane_core::error::Class;

/// An error of the DPDK layer. Each names the object that failed and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// DPDK's environment did not start; nothing of DPDK works in this process.
    #[error("DPDK did not start: {why}")]
    Environment {
        /// The reason, DPDK's own last messages, the remedy.
        why: String,
    },
    /// A port specification that means nothing.
    #[error("port {spec}: {why}")]
    Spec {
        /// As it was written.
        spec: String,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// The interface or device named is not there.
    #[error("port {port}: {what} does not exist; {remedy}")]
    Missing {
        /// The port as it was written.
        port: String,
        /// The interface, device or file.
        what: String,
        /// How to find what is there.
        remedy: String,
    },
    /// Someone else has it.
    #[error("port {port}: {what} is in use; {remedy}")]
    Busy {
        /// The port as it was written.
        port: String,
        /// What is taken.
        what: String,
        /// How to free it.
        remedy: String,
    },
    /// This user may not.
    #[error(
        "port {port}: no permission to {doing}; run as root, or give the program {capabilities}: {command}"
    )]
    Permission {
        /// The port as it was written.
        port: String,
        /// What was refused.
        doing: String,
        /// Which capabilities would do.
        capabilities: &'static str,
        /// The command that gives them.
        command: String,
    },
    /// A pool that cannot be made.
    #[error("a pool of {count} mbufs of {room} bytes: {why}")]
    Pool {
        /// Buffers asked for.
        count: usize,
        /// Bytes a buffer.
        room: usize,
        /// The reason and the remedy.
        why: String,
    },
    /// A port was used against its order or its limits.
    #[error("port {port}: {why}")]
    Usage {
        /// The port as it was written.
        port: String,
        /// What was wrong.
        why: String,
    },
    /// DPDK or its driver refused something.
    #[error("port {port}: {doing} failed: {why}")]
    Device {
        /// The port as it was written.
        port: String,
        /// What was tried.
        doing: String,
        /// The error, and the driver's own messages.
        why: String,
    },
    /// The other end of a memif port did not come.
    #[error("port {port}: no peer came to the socket within {seconds} s; {remedy}")]
    NoPeer {
        /// The port as it was written.
        port: String,
        /// How long was waited.
        seconds: f64,
        /// What to start at the other end.
        remedy: String,
    },
    /// The port was there, and is no more.
    #[error("port {port}: {what} disappeared while in use")]
    Gone {
        /// The port as it was written.
        port: String,
        /// The interface, device or peer.
        what: String,
    },
    /// Privileges could not be given up.
    #[error("cannot give up privileges ({doing}): {source}")]
    Privileges {
        /// The step that failed.
        doing: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// The DPDK layer's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Who can mend it.
    pub fn class(&self) -> Class {
        match self {
            Error::Spec { .. } | Error::Usage { .. } => Class::Usage,
            Error::Gone { .. } => Class::Failed,
            _ => Class::Environment,
        }
    }
}

impl From<Error> for inlane_core::Error {
    fn from(error: Error) -> Self {
        use inlane_core::Error as Core;
        let class = error.class();
        let text = error.to_string();
        match error {
            Error::Spec { spec: port, .. }
            | Error::Missing { port, .. }
            | Error::Busy { port, .. }
            | Error::Permission { port, .. }
            | Error::Usage { port, .. }
            | Error::Device { port, .. }
            | Error::NoPeer { port, .. }
            | Error::Gone { port, .. } => {
                // The core error writes the same words in front.
                let why = text.strip_prefix(&format!("port {port}: ")).unwrap_or(&text).to_owned();
                Core::Port { port, why, class }
            }
            Error::Pool { count, room, why } => Core::Memory {
                bytes: count.saturating_mul(room),
                what: format!("a pool of {count} mbufs of {room} bytes"),
                why,
            },
            Error::Environment { why } => Core::Port { port: "DPDK".into(), why, class },
            Error::Privileges { doing, source } => {
                Core::Os { what: format!("cannot give up privileges ({doing})"), source }
            }
        }
    }
}
