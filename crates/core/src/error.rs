//! The errors of `core`, and the classes that decide an exit status.

/// What a caller can do about an error; the command line maps it to its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It ran, and failed: verification, a threshold, a device lost half-way. Exit status 1.
    Failed,
    /// The user asked for something that does not exist or makes no sense. Exit status 2.
    Usage,
    /// The machine is not ready: a driver, a permission, memory. Exit status 3.
    Environment,
}

/// `core`'s errors. Each names the object that failed and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A quantity that cannot be read, or is out of range.
    #[error("'{text}' is not {what}: {why}; write for example {example}")]
    Quantity {
        /// What was given.
        text: String,
        /// What was expected ("a size", "a rate").
        what: &'static str,
        /// Why it was refused.
        why: String,
        /// A value that would be taken.
        example: &'static str,
    },
    /// A setting that is outside what the part can do.
    #[error("{what}: {why}")]
    Invalid {
        /// The setting or object.
        what: String,
        /// What is wrong, and what to give instead.
        why: String,
    },
    /// A port could not be opened, or failed while open.
    #[error("port {port}: {why}")]
    Port {
        /// The port as the user wrote it.
        port: String,
        /// What failed, what was seen, what to do.
        why: String,
        /// Who can mend it.
        class: Class,
    },
    /// A device (GPU, DMA engine, BAR, stand-in) could not be opened, or failed while open.
    #[error("{device}: {why}")]
    Device {
        /// The device as the user wrote it, or as results name it.
        device: String,
        /// What failed, what was seen, what to do.
        why: String,
        /// Who can mend it.
        class: Class,
    },
    /// Bytes did not arrive as they were sent.
    #[error(
        "{what}: verification failed: {wrong} of {bytes} bytes are not what was sent; no figure of this run holds"
    )]
    Altered {
        /// The transfer.
        what: String,
        /// How many are wrong.
        wrong: u64,
        /// Of how many.
        bytes: u64,
    },
    /// Memory could not be had.
    #[error("cannot get {bytes} bytes of {what}: {why}")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// Which kind of memory.
        what: String,
        /// The system's reason and the remedy.
        why: String,
    },
    /// An error of the operating system.
    #[error("{what}: {source}")]
    Os {
        /// What was tried, on which object.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// `core`'s result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The class of this error.
    pub fn class(&self) -> Class {
        match self {
            Error::Quantity { .. } | Error::Invalid { .. } => Class::Usage,
            Error::Port { class, .. } | Error::Device { class, .. } => *class,
            Error::Memory { .. } => Class::Environment,
            Error::Altered { .. } | Error::Os { .. } => Class::Failed,
        }
    }

    /// An [`Error::Invalid`].
    pub fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), why: why.into() }
    }

    /// An [`Error::Device`] of a machine that is not ready.
    pub fn device_environment(device: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Device { device: device.into(), why: why.into(), class: Class::Environment }
    }

    /// An [`Error::Device`] of a device that failed while it was in use.
    pub fn device_failed(device: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Device { device: device.into(), why: why.into(), class: Class::Failed }
    }

    /// An [`Error::Device`] of a device that was written wrongly or cannot do what was asked.
    pub fn device_usage(device: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Device { device: device.into(), why: why.into(), class: Class::Usage }
    }

    /// An [`Error::Port`] of a machine that is not ready.
    pub fn port_environment(port: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Port { port: port.into(), why: why.into(), class: Class::Environment }
    }

    /// An [`Error::Port`] of a port that failed while it was in use.
    pub fn port_failed(port: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Port { port: port.into(), why: why.into(), class: Class::Failed }
    }

    /// An [`Error::Port`] of a port that was written wrongly.
    pub fn port_usage(port: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Port { port: port.into(), why: why.into(), class: Class::Usage }
    }
}
