//! The folder in which UCX creates its files of shared memory. UCX removes each file as soon as it has mapped it. If
//! the process is killed before that, the file stays and occupies memory. Each process therefore has a folder of its
//! own, and removes the folders of processes that have ended.
//!
//! A process locks its folder. A folder without a lock belongs to an ended process, because the system releases the
//! lock however the process ends. Locks also work between containers, unlike process IDs.
//!
//! UCX also makes segments of System V's shared memory, and marks them for removal once it has attached them. The name of
//! a folder has the process ID, by which the segments of a process that was killed before that are found.

use crate::error::{Error, Result};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, fstat, open, unlinkat};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The file system in memory.
const PARENT: &str = "/dev/shm";
/// The start of the names of the folders.
const NAME: &str = "inlane-ucx-";
/// How often this process tries to remove a folder.
const REMOVALS: u32 = 100;
/// UCX's setting of the folder.
const VARIABLE: &str = "UCX_POSIX_DIR";

/// The folders of this process, which no other process removes while this one runs.
static OWN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn own() -> MutexGuard<'static, Vec<PathBuf>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder for UCX's files of one transport. Dropping the value removes the folder, unless UCX has left a file there
/// that it still needs.
pub(super) struct Folder {
    path: PathBuf,
    /// Locked as long as this process may need the folder. `None` if the folder is not this process's own.
    lock: Option<OwnedFd>,
}

impl Folder {
    /// Creates the folder. If the user has chosen a folder, uses that one. If none can be created, uses UCX's usual one.
    pub(super) fn new() -> Self {
        if let Some(given) = std::env::var_os(VARIABLE) {
            return Self { path: given.into(), lock: None };
        }
        sweep();
        let mut own = own();
        // Another process that sweeps may hold the lock of a new folder for a moment. Then try another folder.
        let made =
            (1..16).find_map(|_| make(Path::new(PARENT)).ok()).map_or_else(|| make(Path::new(PARENT)), Ok);
        match made {
            Ok((path, lock)) => {
                own.push(path.clone());
                Self { path, lock: Some(lock) }
            }
            Err(error) => {
                tracing::debug!("UCX puts its files into {PARENT}: {error}");
                Self { path: PARENT.into(), lock: None }
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `start`, which starts UCX, while an environment variable tells UCX to use this folder.
    pub(super) fn used_by<T>(&self, start: impl FnOnce() -> T) -> T {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lock.is_none() {
            return start();
        }
        // Only an environment variable can set UCX's folder. Remove it afterwards, because programs that this process
        // starts must not use the folder.
        // SAFETY: OpenSHMEM programs do not use the environment in other threads during shmem_init.
        unsafe { std::env::set_var(VARIABLE, &self.path) };
        let started = start();
        // SAFETY: as above.
        unsafe { std::env::remove_var(VARIABLE) };
        started
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let Some(lock) = self.lock.take() else { return };
        own().retain(|path| *path != self.path);
        if std::fs::remove_dir(&self.path).is_err() {
            // UCX keeps its files if it shares them by their names. Hold the lock until this process ends.
            std::mem::forget(lock);
        }
    }
}

/// Removes the folders of ended processes, with UCX's files in them.
pub(crate) fn sweep() {
    sweep_in(Path::new(PARENT));
}

/// Removes the folders of this process, with UCX's files in them. Call it right before this process ends without dropping
/// its transports: afterwards, other threads that make or drop a folder block.
pub(crate) fn remove_own() {
    let mut own = own();
    for path in own.drain(..) {
        // Another thread may be creating a file there. If so, the folder is not empty, and is removed again.
        let removed = |_: &u32| std::fs::remove_dir_all(&path).is_ok() || !path.exists();
        let _ = (0..REMOVALS).find(removed);
    }
    std::mem::forget(own);
}

/// Makes a folder in `parent` and locks it.
fn make(parent: &Path) -> Result<(PathBuf, OwnedFd)> {
    let os = |error: std::io::Error| Error::os(format!("making a folder in {}", parent.display()), error);
    let mut random = [0u8; 8];
    // SAFETY: the call writes at most the array's bytes.
    let got = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    if got != random.len() as isize {
        return Err(os(std::io::Error::last_os_error()));
    }
    let name = format!("{NAME}{}-{:016x}", std::process::id(), u64::from_ne_bytes(random));
    let path = parent.join(name);
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&path).map_err(os)?;
    let lock = lock(&path).map_err(|error| os(error.into()))?;
    // Another process may have removed the folder before it was locked. It cannot do so afterwards.
    path.symlink_metadata().map_err(os)?;
    Ok((path, lock))
}

/// Locks a folder. Fails if another process holds the lock.
fn lock(folder: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = open(folder, flags, Mode::empty())?;
    flock(&opened, FlockOperation::NonBlockingLockExclusive)?;
    Ok(opened)
}

fn sweep_in(parent: &Path) {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(NAME)) {
        // A folder without a lock is that of an ended process, or its owner has just made it. That owner notices
        // the removal.
        let Ok(folder) = lock(&entry.path()) else { continue };
        // Another user may replace the name of its folder by a link. So remove the files by the locked descriptor, and leave
        // the folders of other users alone.
        if fstat(&folder).map_or(true, |found| found.st_uid != rustix::process::geteuid().as_raw()) {
            continue;
        }
        let Ok(files) = rustix::fs::Dir::read_from(&folder) else { continue };
        for file in files.flatten() {
            let _ = unlinkat(&folder, file.file_name(), AtFlags::empty());
        }
        let _ = std::fs::remove_dir(entry.path());
        if let Some(process) = process_of(&entry.file_name().to_string_lossy()) {
            remove_segments(process);
        }
    }
}

/// Returns the ID of the process that made the folder `name`.
fn process_of(name: &str) -> Option<u32> {
    name.strip_prefix(NAME)?.split_once('-')?.0.parse().ok()
}

/// Removes the segments of System V's shared memory that the ended process `process` made, and to which nobody is attached.
/// Only segments without a key are removed, because another program could find the
/// others by their keys.
fn remove_segments(process: u32) {
    if Path::new("/proc").join(process.to_string()).exists() {
        return;
    }
    let user = rustix::process::geteuid().as_raw();
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    for line in segments.lines() {
        let fields = line.split_whitespace().map(|field| field.parse::<i64>().ok());
        let Some(fields) = fields.collect::<Option<Vec<_>>>() else { continue };
        let [0, id, _, _, creator, _, 0, owner, ..] = fields[..] else { continue };
        if creator == i64::from(process) && owner == i64::from(user) {
            // SAFETY: the call passes no pointer. Nobody is attached to the segment.
            unsafe { libc::shmctl(id as i32, libc::IPC_RMID, std::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_an_ended_process_are_removed() {
        let make = || {
            // SAFETY: the child only makes system calls.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::shmget(libc::IPC_PRIVATE, 4096, 0o600);
                    libc::_exit(0);
                }
                assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
                child as u32
            }
        };
        let exists = |process: u32| {
            let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
            let process = process.to_string();
            segments.lines().any(|line| line.split_whitespace().nth(4) == Some(&process))
        };
        let (first, second) = (make(), make());
        if !exists(first) {
            return eprintln!(
                "SKIPPED segments_of_an_ended_process_are_removed: no System V shared memory here"
            );
        }
        assert_eq!(process_of(&format!("{NAME}{first}-00ff")), Some(first));
        remove_segments(first);
        assert!(!exists(first) && exists(second));
        remove_segments(second);
        assert!(!exists(second));
    }

    #[test]
    fn only_folders_of_ended_processes_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let (kept, _lock) = make(parent.path()).unwrap();
        let (ended, lock) = make(parent.path()).unwrap();
        for folder in [&kept, &ended] {
            std::fs::write(folder.join("ucx_shm_posix_1"), "bytes").unwrap();
        }
        let other = parent.path().join("other");
        std::fs::create_dir(&other).unwrap();
        sweep_in(parent.path());
        assert!(ended.exists(), "its process runs");
        drop(lock);
        sweep_in(parent.path());
        assert!(!ended.exists() && kept.join("ucx_shm_posix_1").exists() && other.exists());
    }
}
