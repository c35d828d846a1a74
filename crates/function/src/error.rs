//! The errors of packet functions.

use inlane_core::error::{Cause, Class};
use inlane_core::names::did_you_mean;
use inlane_core::setting::Field;
use std::path::PathBuf;

/// The setting that names a packet function.
pub const FUNCTION: Field = Field::new("function");

/// An error of a packet function. It names the function or the file, and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No built-in function has the requested name.
    #[error(
        "{}: there is no such packet function; {}choose one of {}, or name your own as FILE.cu:NAME",
        FUNCTION.with(name), did_you_mean(nearest), known.join(", ")
    )]
    Unknown {
        /// The name that was requested.
        name: String,
        /// The most similar names of built-in functions.
        nearest: Vec<String>,
        /// The names of the built-in functions.
        known: Vec<String>,
    },
    /// A function has no such settings, or their text is invalid.
    #[error("packet function {name}: {why}")]
    Settings {
        /// The function's name.
        name: String,
        /// The wrong setting, what is wrong with it, and what to write instead.
        why: String,
    },
    /// The source file of a user's packet function cannot be used.
    #[error("packet function {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A user's file does not compile.
    #[error("{} does not compile:\n{messages}", path.display())]
    Compile {
        /// The file.
        path: PathBuf,
        /// The compiler's messages. They refer to lines of the user's file.
        messages: String,
    },
    /// Something is missing on this machine.
    #[error("{what}: {why}")]
    Environment {
        /// The operation that failed.
        what: String,
        /// What is missing, and how to get it.
        why: String,
        /// The error that caused this one, if there was one. `why` has its text.
        source: Option<Cause>,
    },
    /// An error from inlane-core: there is no memory for the function's state or output region.
    #[error(transparent)]
    Core(#[from] inlane_core::Error),
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the class of this error. The class decides the exit status of the command.
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
