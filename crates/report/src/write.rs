//! Writing documents to files and standard output.

use inlane_core::error::Class;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A result that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There can be no such file.
    #[error("cannot write {path}: {source}; name a file in a directory that you may write")]
    Open {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
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
    /// [`Class::Environment`] before the run; behind it, its result was lost: [`Class::Failed`].
    pub fn class(&self) -> Class {
        match self {
            Error::Open { .. } => Class::Environment,
            _ => Class::Failed,
        }
    }
}

/// A file for a result, opened before the run that makes it: a run may give up the privileges that opening takes, and one
/// that cannot write its result need not begin. A file that was made for it goes again where nothing is written.
pub struct Target {
    path: PathBuf,
    /// None is standard output.
    file: Option<File>,
}

/// Files that targets made, to which nothing was written yet.
static FRESH: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn fresh<T>(act: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
    act(&mut FRESH.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Removes the files that were made for results, and to which nothing was written: for a process that ends without dropping its targets.
pub fn remove_fresh() {
    fresh(|paths| paths.drain(..).for_each(|path| drop(std::fs::remove_file(path))));
}

impl Target {
    /// Opens a file, or standard output for `-`. What the file holds stays until something is written.
    ///
    /// # Errors
    /// When the file cannot be opened for writing.
    pub fn open(path: &str) -> Result<Self, Error> {
        match path {
            "-" => Ok(Self { path: path.into(), file: None }),
            path => Self::file(Path::new(path)),
        }
    }

    /// Opens a file, whatever its name.
    ///
    /// # Errors
    /// As [`Target::open`].
    pub fn file(path: &Path) -> Result<Self, Error> {
        let made = OpenOptions::new().write(true).create_new(true).open(path);
        if made.is_ok() {
            fresh(|paths| paths.push(path.into()));
        }
        let file = match made {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).create(true).truncate(false).open(path)
            }
            outcome => outcome,
        };
        let file = file.map_err(|source| Error::Open { path: path.into(), source })?;
        Ok(Self { path: path.into(), file: Some(file) })
    }

    /// Writes a document as JSON in place of what the file held.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn json<T: Serialize>(self, document: &T) -> Result<(), Error> {
        let mut bytes = serde_json::to_vec_pretty(document)?;
        bytes.push(b'\n');
        self.bytes(&bytes)
    }

    /// Writes a text in place of what the file held.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn text(self, text: &str) -> Result<(), Error> {
        self.bytes(text.as_bytes())
    }

    fn bytes(mut self, bytes: &[u8]) -> Result<(), Error> {
        self.is_fresh_no_more();
        let Some(file) = &mut self.file else { return stdout(bytes) };
        // Devices and pipes have no length to set.
        let is_file = file.metadata().is_ok_and(|kind| kind.is_file());
        let emptied = if is_file { file.set_len(0) } else { Ok(()) };
        emptied
            .and_then(|()| file.write_all(bytes))
            .map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// Whether it was.
    fn is_fresh_no_more(&self) -> bool {
        fresh(|paths| {
            let found = paths.iter().position(|path| *path == self.path);
            found.map(|index| paths.swap_remove(index)).is_some()
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.is_fresh_no_more() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Writes to standard output. A reader that has seen enough (`| head`) is no error.
///
/// # Errors
/// When it cannot be written.
pub fn stdout(bytes: &[u8]) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(source) if source.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Io { path: "standard output".into(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_keeps_its_content_until_it_is_written() {
        let path = std::env::temp_dir().join(format!("inlane-target-{}", std::process::id()));
        std::fs::write(&path, "something longer than the document").unwrap();
        let target = Target::open(path.to_str().unwrap()).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("something"));
        target.json(&1).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n");
        std::fs::remove_file(path).unwrap();
        assert!(Target::open("/no/such/folder/x.json").is_err());
    }

    #[test]
    fn a_target_that_nothing_was_written_to_leaves_no_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        std::fs::write(&old, "kept").unwrap();
        drop((Target::file(&new).unwrap(), Target::file(&old).unwrap()));
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "kept");
        // Empty beforehand: not ours to remove.
        std::fs::write(&old, "").unwrap();
        drop(Target::file(&old).unwrap());
        assert!(old.exists());
        let (written, unwritten) = (Target::file(&new).unwrap(), folder.path().join("unwritten"));
        written.text("figure").unwrap();
        let open = Target::file(&unwritten).unwrap();
        remove_fresh();
        assert!(!unwritten.exists());
        drop(open);
        assert_eq!(std::fs::read_to_string(&new).unwrap(), "figure");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let error = Target::open("/dev/full").unwrap().json(&vec![0u64; 100]).unwrap_err();
        assert!(error.to_string().contains("/dev/full"));
    }
}
