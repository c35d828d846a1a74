//! What can go wrong with packet functions.

use inlane_core::error::Class;
use std::path::PathBuf;

/// `function`'s errors. Each names the function or file and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No built-in function has that name.
    #[error("there is no packet function '{name}'; built in are {known}; for your own write FILE.cu:NAME")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A function was given settings that it does not have, or that it cannot read.
    #[error("packet function {name}: '{settings}': {why}")]
    Settings {
        /// The function.
        name: String,
        /// What was given.
        settings: String,
        /// What is wrong, and what to write.
        why: String,
    },
    /// A user's file cannot be used.
    #[error("packet function {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A user's file does not compile; the message holds what the compiler said.
    #[error("{} does not compile:\n{messages}", path.display())]
    Compile {
        /// The file.
        path: PathBuf,
        /// The compiler's messages, with the lines of the user's file.
        messages: String,
    },
    /// What this machine lacks.
    #[error("{what}: {why}")]
    Environment {
        /// What was tried.
        what: String,
        /// What is missing, and how to get it.
        why: String,
    },
    /// Memory for state or output.
    #[error(transparent)]
    Core(#[from] inlane_core::Error),
}

/// `function`'s result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The class of this error.
    pub fn class(&self) -> Class {
        match self {
            Error::Unknown { .. } | Error::Settings { .. } | Error::File { .. } | Error::Compile { .. } => {
                Class::Usage
            }
            Error::Environment { .. } => Class::Environment,
            Error::Core(error) => error.class(),
        }
    }
}
