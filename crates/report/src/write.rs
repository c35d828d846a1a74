//! Writes documents to files and to standard output.

use inlane_core::error::Class;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// An error of writing a result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path that was given for a file is a directory.
    #[error("cannot write {0}: it is a directory; name a file in it")]
    Directory(PathBuf),
    /// The file cannot be opened or created.
    #[error("cannot write {path}: {source}; name a file in a directory that you may write to")]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Writing to the open file or stream failed.
    #[error("cannot write {path}: {source}; choose another file or free some space")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The document cannot be expressed as JSON.
    #[error("cannot express the result as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// Returns the class of the error. If a file cannot be opened, the run does not start
    /// ([`Class::Environment`]). A later error loses the result of the run ([`Class::Failed`]).
    pub fn class(&self) -> Class {
        match self {
            Error::Directory(_) => Class::Usage,
            Error::Open { .. } => Class::Environment,
            _ => Class::Failed,
        }
    }
}

/// A file or standard output for a result. Open the target before the run. The run may drop privileges that
/// opening needs. It should not start if its result cannot be written.
///
/// An existing file keeps its content until something is written. It also keeps it if the write fails because the disk is full. If
/// the target created the file, and nothing was written, dropping the target removes the file.
pub struct OutputTarget {
    path: PathBuf,
    /// `None` for standard output.
    file: Option<File>,
}

/// Files that targets created but have not written yet. They are removed if the run ends early.
static FRESH: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn fresh<T>(act: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
    act(&mut FRESH.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Removes all files that an [`OutputTarget`] created but has not written to. Call this before a signal or
/// `exit` ends the process, because both skip destructors.
pub fn remove_fresh() {
    fresh(|paths| paths.drain(..).for_each(|path| drop(std::fs::remove_file(path))));
}

impl OutputTarget {
    /// Opens a file, or standard output for `-`.
    ///
    /// # Errors
    /// If the file cannot be opened for writing.
    pub fn open(path: &str) -> Result<Self, Error> {
        match path {
            "-" => Ok(Self { path: path.into(), file: None }),
            path => Self::file(Path::new(path)),
        }
    }

    /// Opens a file. Unlike [`OutputTarget::open`], takes `-` as an ordinary file name.
    ///
    /// # Errors
    /// As for [`OutputTarget::open`].
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
        let file = file.map_err(|source| match source.kind() {
            ErrorKind::IsADirectory => Error::Directory(path.into()),
            _ => Error::Open { path: path.into(), source },
        })?;
        Ok(Self { path: path.into(), file: Some(file) })
    }

    /// Replaces the file's content by the document as JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn json<T: Serialize>(self, document: &T) -> Result<(), Error> {
        let mut bytes = serde_json::to_vec_pretty(document)?;
        bytes.push(b'\n');
        self.bytes(&bytes)
    }

    /// Replaces the file's content by a text.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn text(self, text: &str) -> Result<(), Error> {
        self.bytes(text.as_bytes())
    }

    fn bytes(mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(file) = &mut self.file else { return stdout(bytes) };
        let written = match file.metadata() {
            Ok(of) if of.is_file() => replace(file, of.len(), bytes),
            // Devices and pipes have no length and no offsets.
            _ => file.write_all(bytes),
        };
        written.map_err(|source| Error::Io { path: self.path.clone(), source })?;
        self.unregister();
        Ok(())
    }

    /// Removes the file from the list of files to remove at an early end. Returns true if the file was in the
    /// list.
    fn unregister(&self) -> bool {
        fresh(|paths| {
            let found = paths.iter().position(|path| *path == self.path);
            found.map(|index| paths.swap_remove(index)).is_some()
        })
    }
}

impl Drop for OutputTarget {
    fn drop(&mut self) {
        if self.unregister() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Replaces the content of a regular file that has `length` bytes. First writes what lies behind the earlier content, because only
/// that needs room on the disk. If there is none, the file keeps the earlier content.
fn replace(file: &File, length: u64, bytes: &[u8]) -> std::io::Result<()> {
    let (within, behind) = bytes.split_at(bytes.len().min(length as usize));
    if let Err(error) = file.write_all_at(behind, length) {
        file.set_len(length)?;
        return Err(error);
    }
    file.write_all_at(within, 0)?;
    file.set_len(bytes.len() as u64)
}

/// Writes to standard output. A closed pipe (as with `| head`) counts as success, because the reader needs no
/// more.
///
/// # Errors
/// If standard output cannot be written, for example because the disk is full.
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
        let target = OutputTarget::open(path.to_str().unwrap()).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("something"));
        target.json(&1).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n");
        std::fs::remove_file(path).unwrap();
        assert!(OutputTarget::open("/no/such/folder/x.json").is_err());
    }

    #[test]
    fn an_unwritten_target_removes_only_the_file_that_it_created() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new"), folder.path().join("old"));
        std::fs::write(&old, "kept").unwrap();
        drop((OutputTarget::file(&new).unwrap(), OutputTarget::file(&old).unwrap()));
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "kept");
        std::fs::write(&old, "").unwrap();
        drop(OutputTarget::file(&old).unwrap());
        assert!(old.exists());
        let (written, unwritten) = (OutputTarget::file(&new).unwrap(), folder.path().join("unwritten"));
        written.text("figure").unwrap();
        let open = OutputTarget::file(&unwritten).unwrap();
        remove_fresh();
        assert!(!unwritten.exists());
        drop(open);
        assert_eq!(std::fs::read_to_string(&new).unwrap(), "figure");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let error = OutputTarget::open("/dev/full").unwrap().json(&vec![0u64; 100]).unwrap_err();
        assert!(error.to_string().contains("/dev/full"));
    }
}
