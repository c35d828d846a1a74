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
        // Keep the folder as long as its segments cannot be removed, because only its name leads to them.
        if process_of(&entry.file_name().to_string_lossy()).is_none_or(remove_segments) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Returns the ID of the process that made the folder `name`.
fn process_of(name: &str) -> Option<u32> {
    name.strip_prefix(NAME)?.split_once('-')?.0.parse().ok()
}

/// Removes the segments of System V's shared memory that the ended process `process` made, and to which nobody is attached.
/// Only segments without a key are removed, because another program could find the others by their keys. Returns false if
/// there are such segments but the process has not ended: a process that is ending releases the lock of its folder first.
fn remove_segments(process: u32) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let unattached = segments.lines().filter_map(|line| {
        let fields = line.split_whitespace().map(|field| field.parse::<i64>().ok());
        let [0, id, _, _, creator, _, 0, owner, ..] = fields.collect::<Option<Vec<_>>>()?[..] else {
            return None;
        };
        (creator == i64::from(process) && owner == i64::from(user)).then_some(id as i32)
    });
    let found: Vec<_> = unattached.collect();
    let removable = found.is_empty() || has_ended(process);
    for id in found.iter().filter(|_| removable) {
        // SAFETY: the call passes no pointer. Nobody is attached to the segment.
        unsafe { libc::shmctl(*id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
    removable
}

/// Returns true if the process has ended, even if its parent has not waited for it yet.
fn has_ended(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the program's name, which is in parentheses.
    status.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a process that makes a segment. It then ends, or stays until it is killed. Returns its ID.
    fn segment_maker(stays: bool) -> i32 {
        let mut made = [0; 2];
        // SAFETY: the child only makes system calls. The parent waits until the child has made the segment.
        unsafe {
            assert_eq!(libc::pipe(made.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                libc::shmget(libc::IPC_PRIVATE, 4096, 0o600);
                libc::write(made[1], [0u8].as_ptr().cast(), 1);
                if stays {
                    loop {
                        libc::pause();
                    }
                }
                libc::_exit(0);
            }
            let mut byte = [0u8];
            assert_eq!(libc::read(made[0], byte.as_mut_ptr().cast(), 1), 1);
            for end in made {
                libc::close(end);
            }
            child
        }
    }

    fn wait_for(child: i32) {
        // SAFETY: null stands for no status.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }

    fn has_segment(process: i32) -> bool {
        let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
        let process = process.to_string();
        segments.lines().any(|line| line.split_whitespace().nth(4) == Some(&process))
    }

    #[test]
    fn segments_of_an_ended_process_are_removed() {
        let (first, second) = (segment_maker(false), segment_maker(false));
        wait_for(first);
        wait_for(second);
        if !has_segment(first) {
            return eprintln!(
                "SKIPPED segments_of_an_ended_process_are_removed: no System V shared memory here"
            );
        }
        assert_eq!(process_of(&format!("{NAME}{first}-00ff")), Some(first as u32));
        assert!(remove_segments(first as u32));
        assert!(!has_segment(first) && has_segment(second));
        assert!(remove_segments(second as u32));
        assert!(!has_segment(second));
    }

    #[test]
    fn the_folder_of_a_process_that_is_ending_leads_to_its_segments() {
        let process = segment_maker(true);
        if !has_segment(process) {
            return eprintln!("SKIPPED the folder of an ending process: no System V shared memory here");
        }
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join(format!("{NAME}{process}-00ff"));
        std::fs::create_dir(&folder).unwrap();
        sweep_in(parent.path());
        assert!(folder.exists() && has_segment(process));
        // SAFETY: the process is this one's child. The second call waits for its end and leaves it a zombie.
        unsafe {
            libc::kill(process, libc::SIGKILL);
            let mut info = std::mem::zeroed();
            libc::waitid(libc::P_PID, process as u32, &mut info, libc::WEXITED | libc::WNOWAIT);
        }
        sweep_in(parent.path());
        assert!(!folder.exists() && !has_segment(process));
        wait_for(process);
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
