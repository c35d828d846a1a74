//! The errors of opening ports.

use inlane_core::error::Class;

/// An error of opening ports.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of one of inlane's own ports.
    #[error(transparent)]
    Core(#[from] inlane_core::Error),
    /// An error of one of DPDK's ports.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Dpdk(#[from] inlane_dpdk::Error),
}

/// The result of opening ports.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the class that decides the exit status.
    pub fn class(&self) -> Class {
        match self {
            Error::Core(error) => error.class(),
            #[cfg(feature = "dpdk")]
            Error::Dpdk(error) => error.class(),
        }
    }

    /// Returns the name of the port, if the error is about one.
    pub fn port(&self) -> Option<&str> {
        match self {
            Error::Core(error) => error.port(),
            #[cfg(feature = "dpdk")]
            Error::Dpdk(error) => error.port(),
        }
    }
}
