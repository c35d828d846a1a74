//! Writing documents to files and standard output.

use inlane_core::error::Class;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// A result that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file or stream failed.
    #[error("cannot write {path}: {source}; choose another file, or free space")]
    Io {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The document cannot be expressed.
    #[error("cannot express the result as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// It ran, and its result was lost: [`Class::Failed`].
    pub fn class(&self) -> Class {
        Class::Failed
    }
}

fn put(target: &str, bytes: &[u8]) -> Result<(), Error> {
    let outcome = match target {
        "-" => {
            let mut out = std::io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        path => std::fs::write(path, bytes),
    };
    outcome.map_err(|source| Error::Io { path: target.into(), source })
}

/// Writes a document as JSON to a file, or to standard output for `-`.
///
/// # Errors
/// When the file cannot be written.
pub fn json<T: Serialize>(target: &str, document: &T) -> Result<(), Error> {
    let mut bytes = serde_json::to_vec_pretty(document)?;
    bytes.push(b'\n');
    put(target, &bytes)
}

/// Writes rows as CSV (RFC 4180) to a file, or to standard output for `-`.
///
/// # Errors
/// When the file cannot be written.
pub fn csv(target: &str, header: &[&str], rows: &[Vec<String>]) -> Result<(), Error> {
    let quote = |field: &str| match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_string(),
    };
    let line = |fields: Vec<String>| fields.join(",") + "\r\n";
    let mut text = line(header.iter().map(|field| quote(field)).collect());
    for row in rows {
        text += &line(row.iter().map(|field| quote(field)).collect());
    }
    put(target, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes() {
        let path = std::env::temp_dir().join(format!("inlane-csv-{}", std::process::id()));
        csv(path.to_str().unwrap(), &["a", "b"], &[vec!["1,2".into(), "say \"x\"".into()]]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a,b\r\n\"1,2\",\"say \"\"x\"\"\"\r\n");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let error = json("/dev/full", &vec![0u64; 100]).unwrap_err();
        assert!(error.to_string().contains("/dev/full"));
    }
}
