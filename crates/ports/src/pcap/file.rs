//! Identifies files, so that a run does not overwrite its own input.

use rustix::fs::{FileType, Stat, fstat, stat};
use std::os::fd::AsFd;
use std::path::Path;

/// The identity of a regular file. Hard links, symbolic links and relative paths to the file have the same
/// identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of the regular file at `path`. Returns `None` if there is none.
    pub fn of_path(path: &Path) -> Option<Self> {
        Self::of_stat(&stat(path).ok()?)
    }

    /// Returns the identity of an open file. Returns `None` if it is not a regular file.
    pub fn of_file(file: impl AsFd) -> Option<Self> {
        Self::of_stat(&fstat(file).ok()?)
    }

    fn of_stat(stat: &Stat) -> Option<Self> {
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then_some(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// Returns true if both paths name the same regular file, possibly through links. Also returns true if
/// neither exists and both would create the same file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    match (FileId::of_path(a), FileId::of_path(b)) {
        (Some(a), Some(b)) => a == b,
        (None, None) if !a.exists() && !b.exists() => to_be_created(a) == to_be_created(b),
        _ => false,
    }
}

/// Returns the path of a file that does not exist yet. Symbolic links in the path of its directory are
/// resolved.
fn to_be_created(path: &Path) -> std::path::PathBuf {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match (folder.canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a"), "x").unwrap();
        std::fs::write(at("other"), "x").unwrap();
        std::fs::hard_link(at("a"), at("hard")).unwrap();
        std::os::unix::fs::symlink(at("a"), at("soft")).unwrap();
        std::os::unix::fs::symlink(folder.path(), at("folder")).unwrap();
        for name in ["a", "hard", "soft", "folder/a"] {
            assert!(same_file(&at("a"), &at(name)), "{name}");
        }
        assert!(!same_file(&at("a"), &at("other")) && !same_file(&at("a"), &at("new")));
        assert!(same_file(&at("new"), &at("folder/new")), "neither exists yet");
        assert!(!same_file(&at("new"), &at("newer")));
        assert!(
            !same_file("/dev/null".as_ref(), "/dev/null".as_ref()),
            "a device stores nothing, so two ports may name it"
        );
    }
}
