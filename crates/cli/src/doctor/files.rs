//! Reads the kernel's files (`/proc`, `/sys`, `/dev`) below a root directory. Tests use another root
//! directory. A file that cannot be read counts as absent. Text that is too long is cut, and bytes that are
//! not UTF-8 are replaced.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most bytes to read from a file. Only `/proc/cpuinfo` can be longer. The checks need only its entry of
/// the first processor, which is within the limit.
const MOST: u64 = 256 * 1024;

/// Reads files of the kernel below a root directory.
pub struct Files {
    root: PathBuf,
}

impl Files {
    /// Creates a reader of files below the directory `root`: `/` for this machine's files, another directory
    /// for a test's.
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the text of a file without white space at its ends.
    pub fn text(&self, path: &str) -> Option<String> {
        let path = self.at(path);
        // Open only regular files, because opening a pipe may block, and opening a device may change its
        // state.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        fs::File::open(path).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(plain(String::from_utf8_lossy(&bytes).trim()))
    }

    /// Returns the number that a file contains, or `None` if the file cannot be read or contains no number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Returns the value of the line `name: value` in a file.
    pub fn field(&self, path: &str, name: &str) -> Option<String> {
        self.text(path)?.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_string())
        })
    }

    /// Returns the names in a directory, sorted.
    pub fn list(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.at(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().map(|entry| plain(&entry.file_name().to_string_lossy())).collect();
        names.sort();
        names
    }

    /// Returns true if the path exists.
    pub fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.at(path)).is_ok()
    }
}

/// Replaces control characters, which could move a terminal's cursor.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '?' } else { c }).collect()
}

/// Parses a list of processors as the kernel writes it (`0-3,8`). Skips malformed parts.
pub fn processors(list: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) else {
            continue;
        };
        // End the range at processor 8191, the last that Linux supports, because a malformed range could be
        // huge.
        found.extend(first..=last.min(8191));
    }
    found
}
