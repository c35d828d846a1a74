//! The kernel's files (`/proc`, `/sys`, `/dev`) under a root that tests choose. Whatever cannot be read is absent; whatever
//! is no text, too long or no number is read as far as it makes sense: a strange file never ends a check.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// No file of interest is longer; `/proc/cpuinfo` of hundreds of cores is, but its first processor says enough.
const MOST: u64 = 256 * 1024;

/// The file tree that the checks read.
pub struct Files {
    root: PathBuf,
}

impl Files {
    /// Reads below `root`: `/` for this machine.
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file, trimmed.
    pub fn text(&self, path: &str) -> Option<String> {
        let path = self.at(path);
        // Opening a pipe or a device waits, or does something.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        fs::File::open(path).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(plain(String::from_utf8_lossy(&bytes).trim()))
    }

    /// A file that holds one number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The value behind `name` and a colon in a file of such lines.
    pub fn field(&self, path: &str, name: &str) -> Option<String> {
        self.text(path)?.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_string())
        })
    }

    /// The names in a directory, sorted.
    pub fn list(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.at(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().map(|entry| plain(&entry.file_name().to_string_lossy())).collect();
        names.sort();
        names
    }

    /// True when something is there.
    pub fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.at(path)).is_ok()
    }
}

/// Without control characters, which could move a terminal's cursor.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '?' } else { c }).collect()
}

/// Reads a list of processors as the kernel writes them (`0-3,8`); what makes no sense is left out.
pub fn processors(list: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) else {
            continue;
        };
        // Linux has at most 8192 processors on any architecture.
        found.extend(first..=last.min(8191));
    }
    found
}
