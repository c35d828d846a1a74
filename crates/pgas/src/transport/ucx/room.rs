//! Checks that this machine has room for symmetric memory, before UCX allocates it.
//!
//! * **System V's shared memory** takes a page only when it is accessed, like private memory. So each PE's memory alone
//!   is compared with all memory of the machine and with the limits of control groups.
//! * **A file in /dev/shm** takes all of its pages at once. UCX writes such a file for each PE if System V's shared
//!   memory is unavailable. Without a check, the files could fill the memory until the kernel kills programs. So the
//!   memory of all PEs of the machine together is compared with the free memory.

use crate::error::{Error, Result};
use crate::field::HEAP;
use crate::transport::bootstrap::Exchange;
use crate::transport::machine::machine;
use inlane_core::units;
use inlane_process::cgroup;
use std::path::{Path, PathBuf};

/// A limit of memory in bytes, and its owner as the subject of a sentence, such as `this machine has`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    bytes: u64,
    owner: String,
}

/// The memory that one PE will write while it allocates symmetric memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Announcement {
    /// The machine, and the file system of UCX's files.
    file_system: String,
    /// The number of bytes. 0 if pages are allocated when they are accessed.
    written: u64,
    /// How many bytes are free there.
    free: Limit,
}

/// Returns an error if this machine has no room for the symmetric memory of its PEs. `bytes` is the size of this PE's
/// memory, `domains` are the names of UCX's memory domains, and `files` is the folder of UCX's files. All PEs must
/// call it.
///
/// # Errors
/// [`Error::Invalid`] if there is no room; errors of the exchange.
pub(super) fn check(exchange: &dyn Exchange, bytes: usize, domains: &[String], files: &Path) -> Result<()> {
    let system = System::of_this_process();
    refuse(bytes, 1, &system.smallest_limit())?;
    let is_written = writes_pages(bytes, domains, std::env::var("UCX_ALLOC_PRIO").ok().as_deref());
    let (device, in_files) = files_of(files);
    let free = std::iter::once(in_files).chain(system.free()).min_by_key(|limit| limit.bytes);
    let own = Announcement {
        file_system: format!("{}/{device}", machine()),
        written: if is_written { bytes as u64 } else { 0 },
        free: free.unwrap_or(Limit { bytes: u64::MAX, owner: String::new() }),
    };
    let all = exchange.gather(own.encode().as_bytes())?;
    let all = all.iter().filter_map(|text| Announcement::decode(std::str::from_utf8(text).ok()?));
    // Compare with what was free before any PE has allocated memory.
    let here: Vec<_> = all.filter(|one| one.file_system == own.file_system).collect();
    let written = here.iter().fold(0u64, |sum, one| sum.saturating_add(one.written));
    match here.iter().map(|one| &one.free).min_by_key(|limit| limit.bytes) {
        Some(least) if is_written => {
            refuse(written as usize, here.iter().filter(|one| one.written > 0).count(), least)
        }
        _ => Ok(()),
    }
}

/// Returns an error if `bytes` exceed the limit. They are the symmetric memory of `pes` PEs.
fn refuse(bytes: usize, pes: usize, limit: &Limit) -> Result<()> {
    if bytes as u64 <= limit.bytes {
        return Ok(());
    }
    let who = if pes > 1 { format!("of the {pes} PEs here") } else { "of a PE".into() };
    Err(Error::invalid(
        format!("{} of symmetric memory {who}", units::bytes(bytes as u64)),
        format!(
            "{} {}; give a smaller {HEAP}, or set SHMEM_SYMMETRIC_SIZE to a smaller size",
            limit.owner,
            units::bytes(limit.bytes)
        ),
    ))
}

/// Returns true if UCX will allocate `bytes` bytes by writing a file. `order` is the user's setting of the order in
/// which UCX tries its methods.
fn writes_pages(bytes: usize, domains: &[String], order: Option<&str>) -> bool {
    let has = |name: &str| domains.iter().any(|domain| domain == name);
    match order {
        Some(order) => match (order.find("posix"), order.find("sysv")) {
            (Some(posix), Some(sysv)) if sysv < posix => !(has("sysv") && has_system_v(bytes)),
            (posix, _) => posix.is_some(),
        },
        None => has("posix") && !(has("sysv") && has_system_v(bytes)),
    }
}

/// Returns true if the system has `bytes` bytes of System V's shared memory.
fn has_system_v(bytes: usize) -> bool {
    // SAFETY: the calls take numbers only. The segment is not attached, so it has no pages, and is removed at once.
    unsafe {
        let segment = libc::shmget(libc::IPC_PRIVATE, bytes, libc::IPC_CREAT | 0o600);
        segment >= 0 && libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut()) == 0
    }
}

/// Returns the device number of the file system of `files`, and how many bytes are free there.
fn files_of(files: &Path) -> (u64, Limit) {
    let device = rustix::fs::stat(files).map_or(0, |found| found.st_dev);
    let free = rustix::fs::statvfs(files).map_or(u64::MAX, |found| found.f_bavail * found.f_frsize);
    (device, Limit { bytes: free, owner: format!("free in {} are", files.display()) })
}

impl Announcement {
    fn encode(&self) -> String {
        format!("{}\n{}\n{}\n{}", self.file_system, self.written, self.free.bytes, self.free.owner)
    }

    fn decode(text: &str) -> Option<Self> {
        let mut lines = text.splitn(4, '\n');
        Some(Self {
            file_system: lines.next()?.into(),
            written: lines.next()?.parse().ok()?,
            free: Limit { bytes: lines.next()?.parse().ok()?, owner: lines.next()?.into() },
        })
    }
}

/// What the system says about the memory of a process, as the texts of files below /proc.
struct System {
    /// /proc/meminfo
    memory: String,
    /// The folders of the process's control groups that can limit memory.
    groups: Vec<Group>,
}

/// A control group that can limit memory.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    folder: PathBuf,
    /// The names of the files with the limit and with the used bytes.
    files: (&'static str, &'static str),
}

impl System {
    fn of_this_process() -> Self {
        let groups = cgroup::of_this_process("memory").into_iter().map(|group| {
            let files = match group.version {
                cgroup::Version::One => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                cgroup::Version::Two => ("memory.max", "memory.current"),
            };
            Group { folder: group.folder, files }
        });
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self { memory, groups: groups.collect() }
    }

    /// Returns a value of /proc/meminfo in bytes.
    fn memory(&self, name: &str) -> Option<u64> {
        let line = self.memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    }

    /// Returns the limits of the process's control groups, each with the used bytes.
    fn group_limits(&self) -> impl Iterator<Item = (&Group, u64, u64)> {
        let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        self.groups.iter().filter_map(move |group| {
            // A group without a limit has the text `max`, which is no number, or a very large number.
            let limit = number(group.folder.join(group.files.0))?;
            Some((group, limit, number(group.folder.join(group.files.1)).unwrap_or(0)))
        })
    }

    /// Returns the largest number of bytes that a process can ever have, swap included.
    fn smallest_limit(&self) -> Limit {
        let swap = self.memory("SwapTotal").unwrap_or(0);
        let machine = self.memory("MemTotal").map_or(u64::MAX, |memory| memory.saturating_add(swap));
        let machine = Limit { bytes: machine, owner: "this machine has".into() };
        let groups = self.group_limits().map(|(group, limit, _)| Limit {
            bytes: limit.saturating_add(swap),
            owner: format!("the control group {} allows", group.folder.display()),
        });
        groups.fold(machine, |least, one| if one.bytes < least.bytes { one } else { least })
    }

    /// Returns how many bytes are free now: of the machine and in each control group with a limit.
    fn free(&self) -> Vec<Limit> {
        let machine = self.memory("MemAvailable").map(|memory| {
            let swap = self.memory("SwapFree").unwrap_or(0);
            Limit { bytes: memory.saturating_add(swap), owner: "available on this machine are".into() }
        });
        let groups = self.group_limits().map(|(group, limit, used)| Limit {
            bytes: limit.saturating_sub(used),
            owner: format!("left in the control group {} are", group.folder.display()),
        });
        machine.into_iter().chain(groups).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_counts() {
        let directory = tempfile::tempdir().unwrap();
        let group = |name: &str, limit: &str| {
            let folder = directory.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("limit"), limit).unwrap();
            std::fs::write(folder.join("used"), "1024\n").unwrap();
            Group { folder, files: ("limit", "used") }
        };
        let groups =
            vec![group("none", "max\n"), group("large", "9223372036854771712\n"), group("small", "4096\n")];
        let memory =
            "MemTotal:  24 kB\nMemFree: 1 kB\nMemAvailable:   2 kB\nSwapTotal: 1 kB\nSwapFree: 0 kB\n";
        let mut system = System { memory: memory.into(), groups };
        assert_eq!(system.smallest_limit().bytes, 4096 + 1024);
        assert!(system.free().iter().any(|limit| limit.bytes == 2 << 10));
        assert!(system.free().iter().any(|limit| limit.bytes == 4096 - 1024));
        system.groups.pop();
        assert_eq!(system.smallest_limit(), Limit { bytes: 25 << 10, owner: "this machine has".into() });
        let error = refuse(100 << 30, 1, &system.smallest_limit()).unwrap_err().to_string();
        assert!(error.starts_with("100 GiB of symmetric memory of a PE: this machine has 25 KiB"), "{error}");
    }

    #[test]
    fn only_files_are_written_at_once() {
        let domains = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert!(!writes_pages(4096, &domains(&["self", "tcp"]), None));
        assert!(writes_pages(4096, &domains(&["posix", "tcp"]), None));
        assert!(writes_pages(usize::MAX / 2, &domains(&["sysv", "posix"]), None), "no such segment");
        assert!(!writes_pages(usize::MAX / 2, &domains(&["sysv"]), None), "no file either");
        assert!(writes_pages(4096, &domains(&["sysv", "posix"]), Some("md:posix,heap")));
    }

    #[test]
    fn announcements_are_read_as_written() {
        let free = Limit { bytes: 7, owner: "free are".into() };
        let one = Announcement { file_system: "a/1".into(), written: 5, free };
        assert_eq!(Announcement::decode(&one.encode()), Some(one));
        assert_eq!(Announcement::decode("a\nb"), None);
    }
}
