//! Reads files that the user names, such as models and scenarios.

use inlane_core::Error;
use std::io;

/// The largest file, in bytes. A larger one is a mistake, such as a capture in place of a model.
const LARGEST: u64 = 64 << 20;

/// Returns the text of a file. `what` names its content in messages, such as "model", and `instead` what to name instead
/// of a wrong file, such as "a TOML file".
///
/// # Errors
/// If the file cannot be read, is too large, or is not text.
pub fn read(file: &str, what: &str, instead: &str) -> anyhow::Result<String> {
    let refused = |why: &str| Error::invalid(format!("{what} {file}"), format!("{why}; name {instead}"));
    let missing = |error: io::Error| {
        let why = format!("cannot be read: {error}; name {instead}");
        Error::device_environment(format!("{what} {file}"), why)
    };
    let information = std::fs::metadata(file).map_err(missing)?;
    if information.is_dir() {
        return Err(refused("it is a directory").into());
    }
    if information.len() > LARGEST {
        return Err(refused("it is larger than 64 MiB").into());
    }
    std::fs::read_to_string(file).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => refused("it is not text in UTF-8").into(),
        _ => missing(error).into(),
    })
}
