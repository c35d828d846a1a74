//! Compiled functions on disk, so that a second run starts at once: a shared object each, in the user's cache directory.
//!
//! ```text
//! file = shared object | key | key length (8, little-endian) | "inlane function\n"      the loader ignores what follows its own
//! ```
//!
//! The key is all that the code depends on; it is compared whole, so a clash of file names cannot give wrong code. A file is
//! written under another name and renamed. A directory or file that others can write is not used: what is in it is run.

use crate::{Error, Result};
use libloading::Library;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const MAGIC: &[u8] = b"inlane function\n";

/// The library stored under `key`; else `make` writes it to the path that it is given, and it is stored.
pub(super) fn library(key: &[u8], make: impl FnOnce(&Path) -> Result<()>) -> Result<Library> {
    let wrong = |path: &Path, why: &dyn std::fmt::Display| Error::Environment {
        what: format!("compiled packet function {}", path.display()),
        why: format!(
            "{why}; name a directory of your own, on a file system that may hold programs, in INLANE_CACHE"
        ),
    };
    let open = |path: &Path| {
        // SAFETY: the user's own function, compiled by this user; its initializers are what the user wrote.
        unsafe { Library::new(path) }.map_err(|error| wrong(path, &error))
    };
    let (folder, kept) = match directory().filter(|folder| prepared(folder)) {
        Some(folder) => (folder, true),
        None => (scratch().map_err(|error| wrong(&std::env::temp_dir(), &error))?, false),
    };
    let path = folder.join(name(key));
    if kept && is_whole(&path, key) {
        return open(&path);
    }
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!("{}.{}.{count}", name(key), std::process::id()));
    let made = make(&temporary)
        .and_then(|()| sign(&temporary, key).map_err(|error| wrong(&temporary, &error)))
        .and_then(|()| fs::rename(&temporary, &path).map_err(|error| wrong(&path, &error)))
        .and_then(|()| open(&path));
    let _ = fs::remove_file(&temporary);
    if !kept {
        // Loaded, it no longer needs its name.
        let _ = fs::remove_dir_all(&folder);
    }
    made
}

/// `INLANE_CACHE`, or `inlane` in `XDG_CACHE_HOME` or `~/.cache`.
fn directory() -> Option<PathBuf> {
    if let Some(set) = std::env::var_os("INLANE_CACHE") {
        return (!set.is_empty()).then(|| PathBuf::from(set).join("functions"));
    }
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(set) if Path::new(&set).is_absolute() => PathBuf::from(set),
        _ => PathBuf::from(std::env::var_os("HOME")?).join(".cache"),
    };
    Some(base.join("inlane").join("functions"))
}

/// Makes the directory, for its owner alone; false when it cannot be used.
fn prepared(folder: &Path) -> bool {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    if made.is_ok() && only_ours(folder) {
        return true;
    }
    tracing::warn!("{} is not a directory that this user alone can write: compiling anew", folder.display());
    false
}

/// A fresh directory that lives for one load.
fn scratch() -> io::Result<PathBuf> {
    for attempt in 0..1000u32 {
        let folder = std::env::temp_dir().join(format!("inlane-function.{}.{attempt}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            made => return made.map(|()| folder),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn only_ours(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::metadata(path).is_ok_and(|found| found.uid() == own && found.mode() & 0o022 == 0)
}

fn name(key: &[u8]) -> String {
    // FNV-1a with two starting values: 128 bits for a name; what decides is the key inside.
    let hash = |start: u64| {
        key.iter().fold(start, |hash, &byte| (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3))
    };
    format!("{:016x}{:016x}.so", hash(0xcbf2_9ce4_8422_2325), hash(0x9ae1_6a3b_2f90_404f))
}

fn trailer(key: &[u8]) -> Vec<u8> {
    [key, &(key.len() as u64).to_le_bytes(), MAGIC].concat()
}

fn sign(path: &Path, key: &[u8]) -> io::Result<()> {
    let mut file = File::options().append(true).open(path)?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    file.write_all(&trailer(key))
}

fn is_whole(path: &Path, key: &[u8]) -> bool {
    let expected = trailer(key);
    let found = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-(expected.len() as i64)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    only_ours(path) && found().is_ok_and(|bytes| bytes == expected)
}
