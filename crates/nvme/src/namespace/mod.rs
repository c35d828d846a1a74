//! Namespaces: the drives that a target serves. A namespace is in memory, in a file or on a block device.
//!
//! A [`Namespace`] checks ranges. It reads and writes memory directly, but does no I/O on files. The target's
//! worker threads do that I/O.
//!
//! | storage | volatile cache | a flush | deallocated blocks read as |
//! | --- | --- | --- | --- |
//! | memory | none: all contents are lost when the target ends | does nothing | zero |
//! | file | the page cache or the drive's cache | `fdatasync` | zero |
//! | block device | the page cache or the drive's cache | `fdatasync` | zero |
//!
//! A file or block device can change its size while hosts are connected. [`Namespace::refresh`] detects that.

mod counters;
mod file;
mod memory;
mod page_locks;
mod specification;
#[cfg(test)]
mod tests;

pub use counters::{Counted, Counters, Counts};
pub use file::FileStorage;
pub use memory::{Memory, PAGE};
pub use specification::{Specification, StorageKind};

use crate::{Error, Result, random};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The most namespaces of a target. A list of active namespaces has room for this number.
pub const MAX_NAMESPACES: usize = 1024;

/// Where the bytes of a namespace lie.
#[derive(Debug)]
pub enum Storage {
    /// The namespace lies in memory of this process.
    Memory(Memory),
    /// The namespace lies in a file or on a block device.
    File(FileStorage),
}

/// A drive that a target serves.
#[derive(Debug)]
pub struct Namespace {
    /// The text that the user gave to open the namespace, such as `file:/srv/disk`.
    pub name: String,
    /// The namespace identifier (NSID), 1 or higher.
    pub id: u32,
    /// Where the bytes lie.
    pub storage: Storage,
    /// True if hosts may not write.
    pub read_only: bool,
    /// The binary logarithm of the block size: a block has 2^`block_shift` bytes.
    pub block_shift: u8,
    /// The UUID by which hosts recognise the namespace.
    pub uuid: [u8; 16],
    /// The operations since the target started.
    pub counters: Counters,
    blocks: AtomicU64,
    /// The number of blocks that [`Namespace::refresh`] last found.
    reported_blocks: AtomicU64,
    /// When [`Namespace::can_write`] last read the size.
    size_read_at_ms: AtomicU64,
    flush_failed: AtomicBool,
}

impl Namespace {
    /// Opens the storage that `specification` names. `subsystem` is the subsystem's NQN. `readers` is the number of
    /// threads that send memory of the namespace.
    ///
    /// A file or block device keeps its UUID when the target restarts. A namespace in memory gets a new UUID,
    /// because its contents are lost. The new UUID makes hosts that use the namespace report errors instead
    /// of reading zeros.
    ///
    /// # Errors
    /// If the storage cannot be opened or locked, or is smaller than one block.
    pub fn open(specification: &Specification, id: u32, subsystem: &str, readers: usize) -> Result<Self> {
        let created = file::create(specification)?;
        Self::open_existing(specification, id, subsystem, readers).inspect_err(|_| {
            // Leave no file behind that serves nothing.
            if let Some(path) = created {
                let _ = std::fs::remove_file(path);
            }
        })
    }

    fn open_existing(
        specification: &Specification,
        id: u32,
        subsystem: &str,
        readers: usize,
    ) -> Result<Self> {
        let name = specification.text.clone();
        let (storage, uuid, bytes) = match &specification.kind {
            StorageKind::Memory { bytes } => {
                (Storage::Memory(Memory::new(*bytes, readers)?), random_uuid(), *bytes)
            }
            StorageKind::File { .. } | StorageKind::Block { .. } => {
                let storage = FileStorage::open(specification)?;
                let uuid = stable_uuid(&[subsystem.as_bytes(), &id.to_le_bytes(), storage.identity()]);
                let bytes = storage.bytes()?;
                (Storage::File(storage), uuid, bytes)
            }
        };
        let block_bytes = match &storage {
            Storage::File(file) => specification.block_bytes.unwrap_or(512).max(file.alignment()),
            Storage::Memory(_) => specification.block_bytes.unwrap_or(512),
        };
        if let (Some(requested), Storage::File(file)) = (specification.block_bytes, &storage) {
            let alignment = file.alignment();
            let why =
                format!("lba={requested} is impossible: it accepts multiples of {alignment} bytes only");
            Error::require(requested >= block_bytes, name.clone(), why)?;
        }
        let block_shift = block_bytes.trailing_zeros() as u8;
        let blocks = bytes >> block_shift;
        let rest = bytes % u64::from(block_bytes);
        if blocks > 0 && rest > 0 {
            tracing::warn!(
                "{name}: the last {rest} bytes are no whole block of {block_bytes} bytes and are not served"
            );
        }
        let why = format!(
            "it has {bytes} bytes, less than one block of {block_bytes} bytes; enlarge it or name another"
        );
        Error::require(blocks > 0, name.clone(), why)?;
        Ok(Self {
            name,
            id,
            storage,
            read_only: specification.read_only,
            block_shift,
            uuid,
            counters: Counters::default(),
            blocks: AtomicU64::new(blocks),
            reported_blocks: AtomicU64::new(blocks),
            size_read_at_ms: AtomicU64::new(0),
            flush_failed: AtomicBool::new(false),
        })
    }

    /// Returns the number of blocks.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Relaxed)
    }

    /// Returns the size of a block in bytes.
    #[inline]
    pub fn block_bytes(&self) -> u32 {
        1 << self.block_shift
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks() << self.block_shift
    }

    /// Returns the offset and length in bytes of `count` blocks from block `start`. `None` if a block lies
    /// beyond the end.
    #[inline]
    pub fn range(&self, start: u64, count: u32) -> Option<(u64, u64)> {
        let end = start.checked_add(count.into())?;
        (end <= self.blocks()).then(|| (start << self.block_shift, u64::from(count) << self.block_shift))
    }

    /// Reads the size of the storage again. Returns true if the number of blocks has changed since the last call.
    ///
    /// # Errors
    /// If the size cannot be read. The number of blocks then stays unchanged.
    pub fn refresh(&self) -> Result<bool> {
        let Storage::File(file) = &self.storage else { return Ok(false) };
        let blocks = file.bytes()? >> self.block_shift;
        self.blocks.store(blocks, Relaxed);
        Ok(self.reported_blocks.swap(blocks, Relaxed) != blocks)
    }

    /// Returns false if the file was truncated and now ends before byte `end`, because a write would extend it again.
    /// Reads the size at most once in a millisecond.
    pub fn can_write(&self, end: u64, now_ms: u64) -> bool {
        if let Storage::File(file) = &self.storage
            && self.size_read_at_ms.load(Relaxed) != now_ms
            && let Ok(bytes) = file.bytes()
        {
            self.size_read_at_ms.store(now_ms, Relaxed);
            self.blocks.store(bytes >> self.block_shift, Relaxed);
        }
        end <= self.bytes()
    }

    /// Returns true if a volatile cache holds written data until a flush.
    pub fn has_volatile_cache(&self) -> bool {
        matches!(self.storage, Storage::File(_))
    }

    /// Records that a flush failed. Later flushes and writes must fail, too. Returns true if it is the first one.
    ///
    /// The kernel reports a failed write-back only once and then drops the data. A later `fdatasync` would
    /// succeed although acknowledged writes are lost.
    pub fn record_failed_flush(&self) -> bool {
        !self.flush_failed.swap(true, Relaxed)
    }

    /// Makes all data durable. Blocks.
    ///
    /// # Errors
    /// If this flush fails, or an earlier one has failed: the kernel reports lost data only once.
    pub fn flush(&self) -> Result<()> {
        let Storage::File(file) = &self.storage else { return Ok(()) };
        file.flush()?;
        if self.flush_failed() {
            let why = "an earlier flush failed, so written data may be lost; check the drive";
            return Err(Error::incomplete(self.name.clone(), why));
        }
        Ok(())
    }

    /// Returns true if a flush has failed since the target started.
    pub fn flush_failed(&self) -> bool {
        self.flush_failed.load(Relaxed)
    }
}

/// Returns a random UUID (version 4).
fn random_uuid() -> [u8; 16] {
    let mut bytes = [0; 16];
    random::fill(&mut bytes);
    as_uuid(bytes, 4)
}

/// Returns a version 8 (custom) UUID: the 128-bit FNV-1a hash of `parts`. In the hashed bytes, each part is
/// preceded by its length.
pub(crate) fn stable_uuid(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    let lengths = parts.iter().map(|part| (part.len() as u64).to_le_bytes());
    for (length, part) in lengths.zip(parts) {
        for byte in length.iter().chain(*part) {
            hash = (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
    as_uuid(hash.to_be_bytes(), 8)
}

/// Sets the version and the variant of a UUID (RFC 9562 section 4).
fn as_uuid(mut bytes: [u8; 16], version: u8) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0F | version << 4;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    bytes
}
