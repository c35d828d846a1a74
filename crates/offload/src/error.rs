//! The errors of an engine and of the programs that connect to its control socket.

use crate::field::{SOCKET, SOCKET_MODE};
use inlane_core::error::Class;
use inlane_core::setting::Subject;
use inlane_process::privileges::user_name;
use rustix::net::SocketAddrUnix;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// How long a client waits for the engine's answer, in seconds.
pub(crate) const ANSWER_SECONDS: u64 = 10;

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
        /// The setting, or the place in a file.
        what: Subject,
        /// What is wrong, and what to write instead.
        why: String,
    },
    /// Another engine uses the control socket.
    #[error("an engine already listens on {0}; stop it, or choose another path with {SOCKET}")]
    Busy(String),
    /// No engine listens on the control socket.
    #[error(
        "no engine listens on {path}: {why}; start one with 'inlane offload serve', or give its {SOCKET}"
    )]
    NoEngine {
        /// The control socket's path.
        path: String,
        /// What was found at the path.
        why: String,
    },
    /// This user may not connect to the control socket.
    #[error("control socket {path}: {why}")]
    NotAllowed {
        /// The control socket's path.
        path: String,
        /// Who may connect, and what to do.
        why: String,
    },
    /// The process that listens on the control socket does not answer.
    #[error(
        "the engine on {0} has not answered for {ANSWER_SECONDS} s; check that its process runs, or start it again"
    )]
    Silent(String),
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
    /// The engine and this program use different versions of the control socket's protocol.
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
    /// Returns the name of the port, if the error is about one.
    pub fn port(&self) -> Option<&str> {
        match self {
            Self::Core(error) => error.port(),
            Self::Ports(error) => error.port(),
            #[cfg(feature = "dpdk")]
            Self::Dpdk(error) => error.port(),
            _ => None,
        }
    }

    /// Returns the class of this error.
    pub fn class(&self) -> Class {
        match self {
            Self::Core(error) => error.class(),
            Self::Ports(error) => error.class(),
            #[cfg(feature = "dpdk")]
            Self::Dpdk(error) => error.class(),
            Self::Tcp(_) | Self::Setting { .. } => Class::Usage,
            Self::Busy(_)
            | Self::NoEngine { .. }
            | Self::NotAllowed { .. }
            | Self::Silent(_)
            | Self::Version { .. } => Class::Environment,
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

/// Returns why a client could not connect to the control socket at `path`, and what to do.
pub(crate) fn not_connected(path: &Path, error: io::Error) -> Error {
    let shown = path.display().to_string();
    let why = match error.raw_os_error() {
        Some(libc::EACCES) => return Error::NotAllowed { path: shown, why: why_not_allowed(path) },
        Some(libc::EPROTOTYPE) => {
            let why = "it belongs to another program; give the control socket of an engine";
            return Error::Setting { what: SOCKET.with(shown).into(), why: why.into() };
        }
        Some(libc::ENOENT) => "there is no such socket".into(),
        Some(libc::ECONNREFUSED | libc::ECONNRESET | libc::EPIPE) => {
            "the engine of this socket has ended".into()
        }
        _ => error.to_string(),
    };
    Error::NoEngine { path: shown, why }
}

/// Returns why this user may not connect to the control socket at `path`, and what to do.
fn why_not_allowed(path: &Path) -> String {
    let own = user_name(rustix::process::geteuid().as_raw());
    match path.metadata() {
        Ok(socket) => {
            let owner = user_name(socket.uid());
            let mode = socket.mode() & 0o777;
            format!(
                "it belongs to user {owner} and has mode {mode:03o}, so user {own} may not use it; run the command as {owner}, \
                 or start the engine with {}",
                SOCKET_MODE.with("666")
            )
        }
        Err(_) => format!(
            "user {own} may not enter its directory; run the command as the engine's user, or start the engine with {SOCKET} \
             in another directory"
        ),
    }
}

/// Checks that a control socket can have the path, which the kernel limits.
///
/// # Errors
/// [`Error::Setting`] if the path is too long.
pub(crate) fn address_of(path: &Path) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|_| Error::Setting {
        what: SOCKET.with(path.display()).into(),
        why: format!("the path has {} bytes; give at most 107", path.as_os_str().len()),
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_refused_user_learns_whose_socket_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let own = user_name(rustix::process::geteuid().as_raw());
        let refused = |path: &Path| {
            let error = not_connected(path, io::Error::from_raw_os_error(libc::EACCES));
            assert_eq!(error.class(), Class::Environment);
            error.to_string()
        };
        let shown = path.display();
        assert_eq!(
            refused(&path),
            format!(
                "control socket {shown}: it belongs to user {own} and has mode 600, so user {own} may not use it; run the \
                 command as {own}, or start the engine with socket-mode=666"
            )
        );
        let hidden = refused(&folder.path().join("no/socket"));
        assert!(hidden.contains(&format!("user {own} may not enter its directory; run the command as")));
    }
}
