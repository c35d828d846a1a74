//! CompiledProgram kernels on disk: a file each, under the user's cache directory.
//!
//! ```text
//! file = "inlane kernel 1\n" | key length (8, little-endian) | key | machine code length (8) | machine code
//! ```
//!
//! The key is all that the result depends on, whole: it is compared, so that a clash of file names cannot give
//! wrong code. A file is written under another name and renamed. A directory that others can write is not used: machine code
//! is run with the user's rights.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"inlane kernel 1\n";

/// The directory: `INLANE_CACHE`, or `inlane` in `XDG_CACHE_HOME` or `~/.cache`.
pub(crate) fn directory() -> Option<PathBuf> {
    if let Some(set) = std::env::var_os("INLANE_CACHE") {
        return (!set.is_empty()).then(|| PathBuf::from(set).join("kernels"));
    }
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(set) if Path::new(&set).is_absolute() => PathBuf::from(set),
        _ => PathBuf::from(std::env::var_os("HOME")?).join(".cache"),
    };
    Some(base.join("inlane").join("kernels"))
}

fn file(directory: &Path, key: &[u8]) -> PathBuf {
    // FNV-1a with two starting values: 128 bits for a name; what decides is the key inside.
    let hash = |start: u64| {
        key.iter().fold(start, |hash, &byte| (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3))
    };
    directory.join(format!("{:016x}{:016x}.cubin", hash(0xcbf2_9ce4_8422_2325), hash(0x9ae1_6a3b_2f90_404f)))
}

/// Only ours to write.
fn trusted(directory: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    std::fs::metadata(directory).is_ok_and(|found| found.uid() == own && found.mode() & 0o022 == 0)
}

/// What was stored under `key`, if it is whole.
pub(crate) fn find(directory: &Path, key: &[u8]) -> Option<Vec<u8>> {
    if !trusted(directory) {
        return None;
    }
    let bytes = std::fs::read(file(directory, key)).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?;
    let (found, rest) = sized(rest)?;
    let (code, rest) = sized(rest)?;
    (found == key && rest.is_empty() && !code.is_empty()).then(|| code.to_vec())
}

fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

/// Stores `code` under `key`. A cache that cannot be written costs time only, so this says so in the log and goes on.
pub(crate) fn store(directory: &Path, key: &[u8], code: &[u8]) {
    let written = (|| -> std::io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        if !trusted(directory) {
            return Err(std::io::Error::other("others can write it; remove it or set INLANE_CACHE"));
        }
        let target = file(directory, key);
        let temporary = target.with_extension(format!("{}", std::process::id()));
        let mut out = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        for part in [MAGIC, &(key.len() as u64).to_le_bytes(), key, &(code.len() as u64).to_le_bytes(), code]
        {
            out.write_all(part)?;
        }
        drop(out);
        std::fs::rename(&temporary, &target)
    })();
    if let Err(error) = written {
        tracing::warn!("kernel cache {} not written: {error}", directory.display());
    }
}
