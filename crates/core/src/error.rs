//! The errors of `core`, and the classes of errors. The class of an error decides the exit status.

use crate::secret::without_secret;
use crate::setting::Subject;
use crate::units::ParseError;

/// A class of errors. The command line maps each class to an exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The run started and failed: verification, a threshold, a lost device. Exit status 1.
    Failed,
    /// The user asked for something that does not exist or is impossible. Exit status 2.
    Usage,
    /// The machine is not ready: a driver, a permission, memory. Exit status 3.
    Environment,
}

/// The error that caused another one. Programs may downcast it.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The errors of `core`. Each names the object that failed and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A quantity that cannot be parsed or is out of range.
    #[error(transparent)]
    Quantity(#[from] ParseError),
    /// A setting or object that cannot be used.
    #[error("{what}: {why}")]
    Invalid {
        /// The setting, with the refused value, or another object.
        what: Subject,
        /// What is wrong and what to give instead.
        why: String,
    },
    /// A port could not be opened, or failed while open.
    #[error("port {port}: {why}")]
    Port {
        /// The port's name, as the user wrote it.
        port: String,
        /// What failed, what was found and what to do.
        why: String,
        /// The class of the error.
        class: Class,
        /// The error that caused this one, if there was one. `why` has its text.
        source: Option<Cause>,
    },
    /// A device could not be opened, or failed while open: a GPU, DMA engine, BAR or twin.
    #[error("{device}: {why}")]
    Device {
        /// The device's name, either as the user wrote it or as results show it.
        device: String,
        /// What failed, what was found and what to do.
        why: String,
        /// The class of the error.
        class: Class,
        /// The error that caused this one, if there was one. `why` has its text.
        source: Option<Cause>,
    },
    /// A verification found bytes that differ from the bytes that were sent.
    #[error(
        "{what}: verification failed: {wrong} of {bytes} bytes differ from what was sent; do not use the figures of this run"
    )]
    Altered {
        /// The transfer.
        what: String,
        /// The number of wrong bytes.
        wrong: u64,
        /// The number of bytes compared.
        bytes: u64,
    },
    /// Memory could not be allocated.
    #[error("cannot allocate {} of {what}: {why}", crate::units::bytes(*bytes as u64))]
    Memory {
        /// The requested number of bytes.
        bytes: usize,
        /// The kind of memory.
        what: String,
        /// Why the memory could not be allocated, and what to do.
        why: String,
    },
    /// An error of another crate, for interfaces of `core` that the crate implements. Its message is shown
    /// unchanged.
    #[error("{error}")]
    Other {
        /// The other crate's error. Programs may downcast it.
        error: Cause,
        /// The class of the error.
        class: Class,
    },
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Os {
        /// The operation that was refused, and its object.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// A thread or a process could not be started because a limit is reached. The system reports this as EAGAIN, which has
/// other meanings elsewhere.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NotStarted(std::io::Error);

impl NotStarted {
    /// Wraps `error`, which starting a thread or a process returned, if it is EAGAIN. Returns other errors unchanged.
    /// Use the result in place of `error`: its text is the same.
    pub fn of(error: std::io::Error) -> std::io::Error {
        match error.kind() {
            std::io::ErrorKind::WouldBlock => std::io::Error::new(error.kind(), Self(error)),
            _ => error,
        }
    }
}

/// Returns an error and its causes in one line, the outermost error first. Shows each text only once: an error often
/// contains the text of its cause, or a cause begins with the text of its error.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let texts = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
    let whole = texts.reduce(|text, cause| match text.contains(&cause) {
        true => text,
        false if cause.starts_with(&format!("{text}: ")) => cause,
        false => format!("{text}: {cause}"),
    });
    whole.unwrap_or_default()
}

/// The result type of `core`.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the class of this error.
    pub fn class(&self) -> Class {
        match self {
            Error::Quantity(_) | Error::Invalid { .. } => Class::Usage,
            Error::Port { class, .. } | Error::Device { class, .. } | Error::Other { class, .. } => *class,
            Error::Memory { .. } => Class::Environment,
            Error::Altered { .. } | Error::Os { .. } => Class::Failed,
        }
    }

    /// Returns the name of the port, if the error is about one.
    pub fn port(&self) -> Option<&str> {
        match self {
            Error::Port { port, .. } => Some(port),
            _ => None,
        }
    }

    /// Adds the error that caused this one, if it is about a port or a device. The message must contain its text.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Into<Cause>) -> Self {
        if let Error::Port { source, .. } | Error::Device { source, .. } = &mut self {
            *source = Some(cause.into());
        }
        self
    }

    /// Creates an [`Error::Invalid`].
    pub fn invalid(what: impl Into<Subject>, why: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), why: why.into() }
    }

    /// Creates an [`Error::Other`].
    pub fn other(error: impl std::error::Error + Send + Sync + 'static, class: Class) -> Self {
        Error::Other { error: Box::new(error), class }
    }

    /// Creates an [`Error::Device`] of class [`Class::Environment`]: the machine is not ready.
    pub fn device_environment(device: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Device { device: device.into(), why: why.into(), class: Class::Environment, source: None }
    }

    /// Creates an [`Error::Device`] of class [`Class::Failed`]: the device failed while in use.
    pub fn device_failed(device: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Device { device: device.into(), why: why.into(), class: Class::Failed, source: None }
    }

    /// Creates an [`Error::Device`] of class [`Class::Usage`]: the device cannot do what was requested.
    pub fn device_usage(device: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Device { device: device.into(), why: why.into(), class: Class::Usage, source: None }
    }

    /// Creates an [`Error::Port`] of class [`Class::Environment`]: for example, a driver, a permission or
    /// memory is missing.
    pub fn port_environment(port: impl Into<String>, why: impl Into<String>) -> Self {
        Self::of_port(port, why, Class::Environment)
    }

    /// Creates an [`Error::Port`] of class [`Class::Failed`]: the port failed while in use.
    pub fn port_failed(port: impl Into<String>, why: impl Into<String>) -> Self {
        Self::of_port(port, why, Class::Failed)
    }

    /// Creates an [`Error::Port`] of class [`Class::Usage`]: the port or its options are wrong.
    pub fn port_usage(port: impl Into<String>, why: impl Into<String>) -> Self {
        Self::of_port(port, why, Class::Usage)
    }

    fn of_port(port: impl Into<String>, why: impl Into<String>, class: Class) -> Self {
        Error::Port { port: without_secret(&port.into()).into(), why: why.into(), class, source: None }
    }
}
