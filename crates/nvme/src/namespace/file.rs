//! A namespace in a file or on a block device.

use super::{Specification, StorageKind};
use crate::{Error, Result};
use rustix::fs::{FlockOperation, SeekFrom, flock, ioctl_blksszget};
use std::fs::{File, Metadata, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// How long to wait for a lock or a device that an ended target still holds.
const RELEASE_WAIT: Duration = Duration::from_secs(1);

/// An open file or block device. It is locked, so no second target can write to it.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    /// The same file, opened a second time, for durable writes that bypass the page cache. Linux reports lost data once
    /// for each open file, so such a write cannot take the report away from a flush.
    durable: Option<File>,
    path: PathBuf,
    identity: Vec<u8>,
    direct: bool,
    alignment: u32,
}

impl FileStorage {
    /// Opens and locks the file or block device that `specification` names. Warns if a read-only block device is in use.
    ///
    /// Reads and writes bypass the page cache (`O_DIRECT`) if the file system supports it and `direct` is not
    /// `Some(false)`. A block device with a mounted file system can only be opened read-only.
    ///
    /// # Errors
    /// If the file cannot be opened or locked, is not of the kind that `specification` names, or has blocks
    /// of an unsupported size.
    pub fn open(specification: &Specification) -> Result<Self> {
        let (path, direct, block_device) = match &specification.kind {
            StorageKind::File { path, direct, .. } => (path, *direct, false),
            StorageKind::Block { path, direct } => (path, *direct, true),
            StorageKind::Memory { .. } => unreachable!("memory has no file"),
        };
        let writable = !specification.read_only;
        let exclusive = if block_device && writable { libc::O_EXCL } else { 0 };
        let open = |flags: i32| {
            let mut options = OpenOptions::new();
            options.read(true).write(writable).custom_flags(flags | exclusive | libc::O_CLOEXEC);
            once_released(libc::EBUSY, || options.open(path))
        };
        let (file, direct) = match open(if direct == Some(false) { 0 } else { libc::O_DIRECT }) {
            // A file system without O_DIRECT refuses the flag with EINVAL. Open the file without the flag.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && direct.is_none() => (open(0), false),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && direct == Some(true) => {
                let why = "the file system does not support direct=on; leave it out";
                return Err(Error::invalid(path.display().to_string(), why));
            }
            file => (file, direct != Some(false)),
        };
        let file = file.map_err(|source| cannot_open(path, writable, block_device, source))?;
        let metadata = file.metadata().map_err(|source| os(path, "cannot read the size of", source))?;
        let invalid = |why: &str| Err(Error::invalid(path.display().to_string(), why));
        match (metadata.file_type().is_block_device(), metadata.is_file()) {
            (true, _) if !block_device => return invalid("it is a block device; give block:PATH"),
            (_, true) if block_device => return invalid("it is a regular file; give file:PATH"),
            (false, false) => {
                return invalid(
                    "it must be a regular file or a block device; name one of these, or serve memory:SIZE",
                );
            }
            _ => {}
        }
        lock(&file, path, writable)?;
        if block_device && !writable && is_in_use(path) {
            tracing::warn!(
                "{}: it is mounted or in use, so hosts may read half-changed data; unmount it, or serve a snapshot",
                path.display()
            );
        }
        let identity = match block_device {
            true => device_identity(path, metadata.rdev(), Path::new("/")),
            false => file_identity(path, &metadata),
        };
        let alignment = match (block_device, direct) {
            (true, _) => ioctl_blksszget(&file)
                .map_err(|error| os(path, "cannot read the block size of", error.into()))?,
            (false, true) => direct_alignment(&file),
            (false, false) => 512,
        };
        if !alignment.is_power_of_two() || !(512..=4096).contains(&alignment) {
            return invalid(&format!("its blocks have {alignment} bytes; 512 to 4096 are supported"));
        }
        let durable = (direct && writable).then(|| open_again(path, &metadata)).transpose()?;
        Ok(Self { file, durable, path: path.clone(), identity, direct, alignment })
    }

    /// Returns the size in bytes.
    ///
    /// # Errors
    /// If the kernel does not return it, for example because the device was removed.
    pub fn bytes(&self) -> Result<u64> {
        // The end is the size of a block device, too. The file's position is not used otherwise.
        let end = rustix::fs::seek(&self.file, SeekFrom::End(0));
        end.map_err(|error| os(&self.path, "cannot read the size of", error.into()))
    }

    /// Returns the descriptor, for requests to an io_uring.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns the descriptor for writes with `RWF_DSYNC`.
    pub fn durable_descriptor(&self) -> RawFd {
        self.durable.as_ref().unwrap_or(&self.file).as_raw_fd()
    }

    /// Returns the alignment of requests in bytes. The offset and the length of a request must be multiples
    /// of it.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Returns true if requests bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns the bytes that identify the file or device across restarts.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Writes all data to the drive. Blocks.
    ///
    /// # Errors
    /// Errors of `fdatasync`.
    pub fn flush(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| os(&self.path, "cannot flush", source))
    }
}

/// Opens the file with this metadata a second time, for reads and writes that bypass the page cache.
fn open_again(path: &Path, metadata: &Metadata) -> Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC).open(path);
    let file = file.map_err(|source| os(path, "cannot reopen", source))?;
    let found = file.metadata().map_err(|source| os(path, "cannot identify", source))?;
    match (found.dev(), found.ino()) == (metadata.dev(), metadata.ino()) {
        true => Ok(file),
        false => {
            let why = "another file has taken its place while it was opened; try again";
            Err(Error::environment(path.display().to_string(), why))
        }
    }
}

/// Returns true if a block device is mounted, or another program has claimed it.
fn is_in_use(path: &Path) -> bool {
    let claimed = OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(path);
    claimed.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

fn os(path: &Path, what: &str, source: std::io::Error) -> Error {
    Error::Os { what: format!("{what} {}", path.display()), source }
}

/// Creates the file of a namespace, if `specification` gives a size and the file does not exist. Accepts an existing file
/// of this size. An existing file of another size is an error. Returns the path of a created file.
pub(super) fn create(specification: &Specification) -> Result<Option<&Path>> {
    let StorageKind::File { path, create_bytes: Some(bytes), .. } = &specification.kind else {
        return Ok(None);
    };
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => match file.set_len(*bytes) {
            Ok(()) => Ok(Some(path)),
            Err(source) => {
                let _ = std::fs::remove_file(path);
                Err(os(path, "cannot set the size of", source))
            }
        },
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let found =
                std::fs::metadata(path).map_err(|source| os(path, "cannot read the size of", source))?.len();
            if found != *bytes {
                let why = format!(
                    "it exists and has {found} bytes, not {bytes}; leave out size= to serve it as it is"
                );
                return Err(Error::invalid(path.display().to_string(), why));
            }
            Ok(None)
        }
        Err(source) => {
            let what = format!("cannot create {}", path.display());
            Err(Error::with_remedy(what, source, "name a file in a directory that you may write to"))
        }
    }
}

fn cannot_open(path: &Path, writable: bool, block_device: bool, source: std::io::Error) -> Error {
    let remedy = match source.raw_os_error() {
        Some(libc::ENOENT) if block_device => "list the block devices: lsblk",
        Some(libc::ENOENT) => "add ,size=SIZE to create it",
        Some(libc::EISDIR) => {
            let why = "it is a directory; name a file in it";
            return Error::invalid(path.display().to_string(), why);
        }
        Some(libc::EACCES | libc::EPERM | libc::EROFS) if writable && File::open(path).is_ok() => {
            "add ,ro to serve it read-only"
        }
        Some(libc::EACCES | libc::EPERM) => "run as a user who may read it, or name another file",
        Some(libc::EBUSY) => "it is mounted or in use; unmount it",
        _ => "",
    };
    Error::with_remedy(format!("cannot open {}", path.display()), source, remedy)
}

/// Repeats `attempt` for a second while it fails with the error `held`, because the kernel keeps the lock and the claim of
/// an ended target until its last request to the disk has ended.
fn once_released<T>(held: i32, attempt: impl Fn() -> std::io::Result<T>) -> std::io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(held) && start.elapsed() < RELEASE_WAIT => {
                std::thread::sleep(RELEASE_WAIT / 50);
            }
            result => return result,
        }
    }
}

/// Locks a namespace's file: exclusively if `writable` is set, else shared.
///
/// # Errors
/// If a conflicting lock is held, by another process or for another namespace of this target.
fn lock(file: &File, path: &Path, writable: bool) -> Result<()> {
    let kind = match writable {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    once_released(libc::EWOULDBLOCK, || Ok(flock(file, kind)?)).map_err(|source| match source.raw_os_error() {
        Some(libc::EWOULDBLOCK) => {
            let why = "it is locked, by another process such as a target, or because it is served twice here; stop that \
                       process, or serve it with ,ro in both";
            Error::environment(path.display().to_string(), why)
        }
        _ => os(path, "cannot lock", source),
    })
}

/// Returns the bytes that identify a file: its absolute path, its inode and its time of creation. So a file that takes the
/// place of another one is another drive. The kernel may reuse the inode, so the inode alone does not distinguish the two.
fn file_identity(path: &Path, metadata: &Metadata) -> Vec<u8> {
    let path = path.canonicalize().unwrap_or_else(|_| path.into()).into_os_string().into_encoded_bytes();
    // Some file systems do not record the time of creation.
    let created = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let created = created.unwrap_or_default().as_nanos();
    [&path[..], &metadata.ino().to_le_bytes(), &created.to_le_bytes()].concat()
}

/// Returns the bytes that identify a block device. `root` is the root directory.
///
/// The name of a device, such as `/dev/sdb`, may belong to another disk after the next boot. A host that continues
/// would then write to the wrong disk. So the identity is the first of:
///
/// * the identifier that the drive or its driver reports in sysfs, with the number of the partition;
/// * the path in `/dev/disk` that the user gave, because udev derives these names from the disk's contents or place;
/// * the name, valid for this boot and for as long as the device stays attached.
fn device_identity(path: &Path, device: libc::dev_t, root: &Path) -> Vec<u8> {
    let sysfs = root.join(format!("sys/dev/block/{}:{}", libc::major(device), libc::minor(device)));
    let read = |file: PathBuf| std::fs::read(file).ok().filter(|text| !text.trim_ascii().is_empty());
    let partition = read(sysfs.join("partition"));
    // The link of a partition leads to a directory within that of the whole disk.
    let disk = match &partition {
        Some(_) => sysfs.canonicalize().ok().and_then(|path| path.parent().map(PathBuf::from)),
        None => Some(sysfs),
    };
    let disk = disk.unwrap_or_default();
    let reported = ["wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid"]
        .into_iter()
        .find_map(|name| Some([name.as_bytes(), b"=", read(disk.join(name))?.trim_ascii()].concat()));
    let identity = match reported {
        Some(reported) => reported,
        None if path.starts_with("/dev/disk") => return path.as_os_str().as_encoded_bytes().to_vec(),
        None => {
            tracing::warn!(
                "{}: the device has no identifier, so hosts that stay connected report errors after a reboot; name it \
                 by a path in /dev/disk to let them continue",
                path.display()
            );
            // The sequence number distinguishes a device from an earlier one with the same name.
            let boot = read(root.join("proc/sys/kernel/random/boot_id"));
            let sequence = read(disk.join("diskseq"));
            let name = path.canonicalize().unwrap_or_else(|_| path.into());
            let parts = [boot.unwrap_or_default(), sequence.unwrap_or_default()];
            [parts.concat(), name.into_os_string().into_encoded_bytes()].concat()
        }
    };
    [identity, partition.unwrap_or_default()].concat()
}

/// Returns the alignment of direct requests in bytes: 512 if a trial read of 512 bytes succeeds, else 4096.
/// Does not ask the kernel, because kernels before 6.1 do not report the alignment.
fn direct_alignment(file: &File) -> u32 {
    #[repr(C, align(4096))]
    struct Block([u8; 512]);
    let mut block = Block([0; 512]);
    if rustix::io::pread(file, &mut block.0, 0).is_err() { 4096 } else { 512 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds the parts of `/sys` that describe disk 8:16 with partition 8:17.
    fn root(wwid: Option<&str>, boot: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("sys/devices/sdb/sdb1/partition", "1\n");
        write("proc/sys/kernel/random/boot_id", boot);
        if let Some(wwid) = wwid {
            write("sys/devices/sdb/device/wwid", wwid);
        }
        std::fs::create_dir_all(root.path().join("sys/dev/block")).unwrap();
        for (number, target) in [("8:16", "../../devices/sdb"), ("8:17", "../../devices/sdb/sdb1")] {
            std::os::unix::fs::symlink(target, root.path().join("sys/dev/block").join(number)).unwrap();
        }
        root
    }

    #[test]
    fn the_identity_of_a_device_does_not_follow_its_name() {
        let (disk, partition) = (libc::makedev(8, 16), libc::makedev(8, 17));
        let identity = |wwid, boot, path: &str, device| {
            device_identity(Path::new(path), device, root(wwid, boot).path())
        };
        let first = identity(Some("naa.5000c500\n"), "boot 1", "/dev/sdb", disk);
        assert_eq!(first, b"device/wwid=naa.5000c500");
        assert_eq!(first, identity(Some("naa.5000c500\n"), "boot 2", "/dev/sdc", disk));
        assert_ne!(first, identity(Some("naa.5000c501\n"), "boot 2", "/dev/sdb", disk));
        assert_ne!(first, identity(Some("naa.5000c500\n"), "boot 1", "/dev/sdb1", partition));
        let named = |path| identity(None, "boot 1", path, disk);
        assert_eq!(named("/dev/sdb"), named("/dev/sdb"));
        assert_ne!(named("/dev/sdb"), identity(None, "boot 2", "/dev/sdb", disk));
        assert_ne!(named("/dev/sdb"), identity(None, "boot 1", "/dev/sdb1", partition));
        let by_id = "/dev/disk/by-id/usb-disk";
        assert_eq!(named(by_id), identity(None, "boot 2", by_id, disk));
    }
}
