//! The memory that both ends of a memif connection share: regions, and rings of descriptors in them.
//!
//! The peer may write anything into this memory at any time. So each word is loaded once and then checked, and no
//! reference to bytes of a buffer exists.

use inlane_core::mapping::Mapping;
use inlane_core::region::{Location, Region};
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// The largest ring that either end accepts, as a power of two.
pub(super) const MOST_SLOTS_LOG2: u8 = 14;
/// The bytes of a ring before its descriptors.
pub(super) const RING_HEADER: usize = 128;
/// The bytes of a descriptor.
pub(super) const SLOT: usize = 16;
/// The first word of each ring.
const COOKIE: u32 = 0x3E3_1F20;
/// The flag of a ring whose reader polls, so that the writer need not wake it.
const POLLED: u16 = 1;
/// The flag of a descriptor whose packet continues in the next one.
const NEXT: u64 = 1;

/// The regions that the client shares.
pub(super) struct Memory(pub Vec<Region>);

impl Memory {
    /// Returns the address of `len` bytes of a region, or `None` if the region does not have them.
    #[inline]
    pub(super) fn span(&self, region: u16, offset: u32, len: u32) -> Option<NonNull<u8>> {
        let region = self.0.get(usize::from(region))?;
        let fits = offset as usize + len as usize <= region.len();
        // SAFETY: the offset lies within the region.
        fits.then(|| unsafe { NonNull::new_unchecked(region.as_ptr().add(offset as usize)) })
    }
}

/// A descriptor: where a buffer lies, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// True if the packet continues in the next descriptor.
    pub continues: bool,
    pub region: u16,
    pub offset: u32,
    /// The bytes of the packet in the buffer, or the size of an empty buffer.
    pub length: u32,
}

/// A ring of descriptors.
pub(super) struct Ring {
    start: NonNull<u8>,
    /// The number of slots, a power of two of at most 2^14.
    slots: u16,
    /// Keeps the memory mapped.
    _region: Region,
}

// SAFETY: the ring's memory is shared with a process and accessed by atomics only.
unsafe impl Send for Ring {}

impl Ring {
    /// Returns the ring at an offset of a region. Returns `None` if it is not aligned, too large, or exceeds the region.
    pub(super) fn new(region: &Region, offset: u32, slots_log2: u8) -> Option<Self> {
        if slots_log2 > MOST_SLOTS_LOG2 || !offset.is_multiple_of(64) {
            return None;
        }
        let whole = region.slice(offset as usize, RING_HEADER + (SLOT << slots_log2)).ok()?;
        Some(Self { start: NonNull::new(whole.as_ptr())?, slots: 1 << slots_log2, _region: whole })
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> u16 {
        self.slots
    }

    fn word16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: the header lies in the region, which is aligned to pages, and `at` is even. Both processes access it by
        // atomic operations.
        unsafe { &*self.start.as_ptr().add(at).cast() }
    }

    fn cookie(&self) -> &AtomicU32 {
        // SAFETY: as for `word16`.
        unsafe { &*self.start.as_ptr().cast() }
    }

    /// Writes the header of an empty ring.
    pub(super) fn initialize(&self) {
        self.cookie().store(COOKIE, Ordering::Relaxed);
        self.word16(4).store(POLLED, Ordering::Release);
    }

    /// Returns true if the ring has been initialized.
    pub(super) fn has_cookie(&self) -> bool {
        self.cookie().load(Ordering::Acquire) == COOKIE
    }

    /// Tells the writer that the reader polls.
    pub(super) fn set_polled(&self) {
        self.word16(4).store(POLLED, Ordering::Release);
    }

    /// Tells the writer that the reader sleeps, and must be woken after the ring has changed. Check the ring afterwards.
    pub(super) fn set_asleep(&self) {
        self.word16(4).store(0, Ordering::Relaxed);
        // The writer stores its index, executes a fence, and reads the word. So it sees that the reader sleeps, or the
        // reader sees the index.
        fence(Ordering::SeqCst);
    }

    /// Returns true if the reader sleeps, and must be woken after the ring has changed.
    #[inline]
    pub(super) fn is_asleep(&self) -> bool {
        // See `set_asleep`.
        fence(Ordering::SeqCst);
        self.word16(4).load(Ordering::Relaxed) & POLLED == 0
    }

    /// The position after the last descriptor that the client has given to the server.
    #[inline]
    pub(super) fn head(&self) -> &AtomicU16 {
        self.word16(6)
    }

    /// The position after the last descriptor that the server has given back to the client.
    #[inline]
    pub(super) fn tail(&self) -> &AtomicU16 {
        self.word16(64)
    }

    fn slot(&self, position: u16) -> &[AtomicU64; 2] {
        let at = RING_HEADER + usize::from(position & (self.slots - 1)) * SLOT;
        // SAFETY: the slot lies in the region and is aligned to 16 bytes. Both processes access it word by word.
        unsafe { &*self.start.as_ptr().add(at).cast() }
    }

    #[inline]
    pub(super) fn read(&self, position: u16) -> Descriptor {
        let [first, second] = self.slot(position).each_ref().map(|word| word.load(Ordering::Relaxed));
        Descriptor {
            continues: first & NEXT != 0,
            region: (first >> 16) as u16,
            length: (first >> 32) as u32,
            offset: second as u32,
        }
    }

    #[inline]
    pub(super) fn write(&self, position: u16, descriptor: Descriptor) {
        let Descriptor { continues, region, offset, length } = descriptor;
        let first = u64::from(continues) | u64::from(region) << 16 | u64::from(length) << 32;
        let [words0, words1] = self.slot(position);
        words0.store(first, Ordering::Relaxed);
        words1.store(offset.into(), Ordering::Relaxed);
    }
}

/// Creates shared memory of `bytes` bytes, sealed so that nobody can shrink it.
///
/// # Errors
/// Why the system refuses.
pub(super) fn create(bytes: u64) -> Result<(OwnedFd, Region), String> {
    if bytes > u32::MAX.into() {
        return Err(format!(
            "{bytes} bytes of shared buffers exceed 4 GiB; use fewer queues or a smaller MTU"
        ));
    }
    let failed = |error| format!("shared memory of {bytes} bytes: {error}");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = rustix::fs::memfd_create("inlane-memif", flags).map_err(failed)?;
    rustix::fs::ftruncate(&descriptor, bytes).map_err(failed)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&descriptor, seals).map_err(failed)?;
    let region = map(descriptor.as_fd(), bytes)?;
    Ok((descriptor, region))
}

/// Maps the first `bytes` bytes of shared memory.
///
/// # Errors
/// If the memory is shorter or can be shrunk, because an access beyond its end would kill this process.
pub(super) fn map(descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Region, String> {
    match rustix::fs::fcntl_get_seals(descriptor) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
        _ => return Err("the shared memory is not sealed against shrinking".into()),
    }
    match rustix::fs::fstat(descriptor) {
        Ok(status) if bytes > 0 && status.st_size as u64 >= bytes => {}
        _ => return Err("the shared memory is shorter than announced".into()),
    }
    let mapping = Mapping::shared(descriptor, 0, bytes as usize, true, true)
        .map_err(|error| format!("mapping {bytes} bytes of shared memory: {error}"))?;
    Ok(mapping.into_region(Location::Host))
}
