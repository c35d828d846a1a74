//! A cache of compiled code on disk: packet functions for the CPU and kernels for the GPU. Each entry is a
//! file.
//!
//! ```text
//! $INLANE_CACHE/NAME, or $XDG_CACHE_HOME/inlane/NAME, or ~/.cache/inlane/NAME
//! file = code | key | key length (8 bytes, little-endian) | "inlane code 1\n"
//! ```
//!
//! The code comes first, because the dynamic loader ignores what follows a shared object. The key holds
//! everything that the code depends on. Keys are compared completely, so two keys with the same file name are
//! not confused.
//!
//! Cached code runs with the rights of the process. So the cache refuses directories and files that another
//! user can write. An entry is written under a temporary name and renamed once it is complete.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const MAGIC: &[u8] = b"inlane code 1\n";

/// Counts the temporary names of this process, so that each name is unique.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A directory of compiled code. Only the current user can write to it.
#[derive(Debug)]
pub struct CodeCache {
    directory: PathBuf,
    temporary: bool,
}

impl CodeCache {
    /// Opens the current user's cache `name`, and creates its directory if needed. Returns `None` if
    /// `INLANE_CACHE` is empty, which disables caching. Also returns `None` if the user has no home
    /// directory.
    ///
    /// # Errors
    /// If the directory cannot be created, or if another user owns it or can write it.
    pub fn open(name: &str) -> io::Result<Option<Self>> {
        user_directory().map(|directory| Self::at(directory.join(name))).transpose()
    }

    /// Opens a cache in `directory` and creates the directory if needed.
    ///
    /// # Errors
    /// As for [`CodeCache::open`].
    pub fn at(directory: PathBuf) -> io::Result<Self> {
        let named = |source: io::Error| {
            let (kind, what) = (source.kind(), directory.display().to_string());
            io::Error::new(kind, inlane_core::Error::Os { what, source })
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(named)?;
        if !only_this_user_writes(&directory) {
            let why = "another user owns or can write it; remove it or set INLANE_CACHE";
            return Err(io::Error::other(format!("{}: {why}", directory.display())));
        }
        Ok(Self { directory, temporary: false })
    }

    /// Creates a cache in a new temporary directory, which lives as long as this value. Use it if
    /// [`CodeCache::open`] fails.
    ///
    /// # Errors
    /// If no directory can be created in the system's temporary directory.
    pub fn temporary() -> io::Result<Self> {
        for _ in 0..1000 {
            let name = format!("inlane.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let directory = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&directory) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => return created.map(|()| Self { directory, temporary: true }),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Returns the directory that holds the entries.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the file that holds the code for `key`. `None` if it does not exist, is incomplete, or can be
    /// written by another user.
    pub fn find(&self, key: &[u8]) -> Option<PathBuf> {
        let path = self.directory.join(file_name(key));
        let expected = trailer(key);
        let found = || -> io::Result<Vec<u8>> {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::End(-(expected.len() as i64)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        (only_this_user_writes(&path) && found().is_ok_and(|bytes| bytes == expected)).then_some(path)
    }

    /// Returns the code for `key`. `None` if [`CodeCache::find`] returns `None`, or if the code is empty or
    /// cannot be read.
    pub fn read(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut code = fs::read(self.find(key)?).ok()?;
        code.truncate(code.len().checked_sub(trailer(key).len()).filter(|&length| length > 0)?);
        Some(code)
    }

    /// Starts a new entry for `key`. Write the code to [`NewEntry::path`], then call [`NewEntry::commit`].
    pub fn insert(&self, key: &[u8]) -> NewEntry {
        let name = file_name(key);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        NewEntry {
            path: self.directory.join(format!("{name}.{}.{count}", std::process::id())),
            target: self.directory.join(name),
            trailer: trailer(key),
        }
    }
}

impl Drop for CodeCache {
    fn drop(&mut self) {
        if self.temporary {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// An entry that is being written. Dropping it without [`NewEntry::commit`] discards it.
#[derive(Debug)]
pub struct NewEntry {
    path: PathBuf,
    target: PathBuf,
    trailer: Vec<u8>,
}

impl NewEntry {
    /// Returns the temporary file to write the code to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends the key to the file, renames the file to its final name, and returns this name. Replaces an
    /// existing entry.
    ///
    /// # Errors
    /// If the file does not exist or cannot be written or renamed.
    pub fn commit(self) -> io::Result<PathBuf> {
        let mut file = File::options().append(true).open(&self.path)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(&self.trailer)?;
        drop(file);
        fs::rename(&self.path, &self.target)?;
        Ok(self.target.clone())
    }
}

impl Drop for NewEntry {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Builds a cache key from the texts that the code depends on. The key contains the length of each part
/// before the part, so different lists of parts have different keys.
pub fn key<'a>(parts: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let mut key = Vec::new();
    for part in parts {
        key.extend((part.len() as u64).to_le_bytes());
        key.extend(part.as_bytes());
    }
    key
}

/// Returns the directory of the current user's caches: INLANE_CACHE, or `inlane` in an absolute
/// XDG_CACHE_HOME, or `.cache/inlane` in HOME. `None` if INLANE_CACHE is empty or none is usable.
fn user_directory() -> Option<PathBuf> {
    if let Some(set) = std::env::var_os("INLANE_CACHE") {
        return (!set.is_empty()).then(|| PathBuf::from(set));
    }
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(set) if Path::new(&set).is_absolute() => PathBuf::from(set),
        _ => PathBuf::from(std::env::var_os("HOME")?).join(".cache"),
    };
    Some(base.join("inlane"))
}

fn only_this_user_writes(path: &Path) -> bool {
    // SAFETY: geteuid reads a number and cannot fail.
    let user = unsafe { libc::geteuid() };
    fs::metadata(path).is_ok_and(|found| found.uid() == user && found.mode() & 0o022 == 0)
}

/// Returns the name of the file for `key`: two FNV-1a hashes of the key. Names need not be unique, because
/// the key in the file is compared.
fn file_name(key: &[u8]) -> String {
    let hash = |start: u64| {
        key.iter().fold(start, |hash, &byte| (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3))
    };
    format!("{:016x}{:016x}", hash(0xcbf2_9ce4_8422_2325), hash(0x9ae1_6a3b_2f90_404f))
}

fn trailer(key: &[u8]) -> Vec<u8> {
    [key, &(key.len() as u64).to_le_bytes(), MAGIC].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(cache: &CodeCache, key: &[u8], code: &[u8]) -> PathBuf {
        let entry = cache.insert(key);
        fs::write(entry.path(), code).unwrap();
        entry.commit().unwrap()
    }

    #[test]
    fn a_refused_directory_keeps_the_error_of_the_system() {
        let error = CodeCache::at("/proc/inlane".into()).unwrap_err();
        assert!(error.to_string().starts_with("/proc/inlane: "), "{error}");
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(source.unwrap().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn entries_are_found_by_their_whole_key() {
        let cache = CodeCache::temporary().unwrap();
        assert_eq!(cache.read(b"key"), None);
        let path = store(&cache, b"key", b"code");
        assert_eq!(cache.find(b"key"), Some(path));
        assert_eq!(cache.read(b"key").as_deref(), Some(&b"code"[..]));
        assert_eq!(cache.read(b"another"), None);
        store(&cache, b"key", b"newer");
        assert_eq!(cache.read(b"key").as_deref(), Some(&b"newer"[..]));
        assert_eq!(fs::read_dir(cache.directory()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn incomplete_entries_are_not_found() {
        let cache = CodeCache::temporary().unwrap();
        let path = store(&cache, b"key", b"code");
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(cache.read(b"key"), None, "cut at {cut}");
        }
        store(&cache, b"key", b"");
        assert_eq!(cache.read(b"key"), None, "an entry without code");
        drop(cache.insert(b"discarded"));
        assert_eq!(cache.find(b"discarded"), None);
    }

    #[test]
    fn what_other_users_can_write_is_refused() {
        let parent = CodeCache::temporary().unwrap();
        let directory = parent.directory().join("kernels");
        let cache = CodeCache::at(directory.clone()).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        let path = store(&cache, b"key", b"code");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        assert_eq!(cache.find(b"key"), None, "the group can write the file");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        let error = CodeCache::at(directory).unwrap_err().to_string();
        assert!(error.contains("kernels") && error.contains("INLANE_CACHE"), "{error}");
    }

    #[test]
    fn keys_of_different_parts_differ() {
        assert_ne!(key(["ab", "c"]), key(["a", "bc"]));
        assert_ne!(key(["ab"]), key(["ab", ""]));
    }
}
