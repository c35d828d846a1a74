//! The memory of a pool: reserved hugepages if available, otherwise transparent hugepages, otherwise ordinary
//! pages.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a hugepage on x86-64, and on arm64 with pages of 4 KiB.
pub(super) const HUGE: usize = 2 << 20;

/// The preferred range of addresses for memory. Devices use the memory's virtual addresses. The range ends at
/// 39 bits, because the IOMMUs of smaller machines translate only 39 bits of an address. It begins well above
/// DPDK's own memory, which begins at 4 GiB.
const LOW: Range<usize> = 1 << 36..1 << 39;

/// The address that the next mapping tries first.
static NEXT: AtomicUsize = AtomicUsize::new(LOW.start);

/// An anonymous mapping. Dropping it unmaps the memory.
pub(super) struct Mapping {
    mapping: inlane_core::mapping::Mapping,
    page: usize,
}

impl Mapping {
    /// Maps at least `length` bytes, aligned to a hugepage. If `hugepages` is set, tries reserved hugepages
    /// first.
    pub(super) fn new(length: usize, hugepages: bool) -> io::Result<Self> {
        let length = length.next_multiple_of(HUGE);
        let own = |address, page| {
            // SAFETY: this function has mapped the memory, and leaves it to the value that it returns.
            Self { mapping: unsafe { inlane_core::mapping::Mapping::from_raw(address, length) }, page }
        };
        const RESERVED: i32 = libc::MAP_HUGETLB | libc::MAP_POPULATE;
        if hugepages
            && let Some(base) =
                map_low(length, RESERVED).or_else(|| map(std::ptr::null_mut(), length, RESERVED).ok())
        {
            return Ok(own(base as usize, HUGE));
        }
        if let Some(base) = map_low(length, 0) {
            // SAFETY: the memory was just mapped. If the kernel refuses the advice, small pages stay.
            unsafe { libc::madvise(base, length, libc::MADV_HUGEPAGE) };
            return Ok(own(base as usize, 4096));
        }
        // The kernel aligns only to small pages. Map one hugepage more, and unmap the edges.
        let base = map(std::ptr::null_mut(), length + HUGE, 0)?;
        let aligned = (base as usize).next_multiple_of(HUGE);
        let before = aligned - base as usize;
        let behind = HUGE - before;
        // SAFETY: unmaps the unused edges of the mapping just made. The middle stays.
        unsafe {
            if before > 0 {
                libc::munmap(base, before);
            }
            if behind > 0 {
                libc::munmap((aligned + length) as *mut _, behind);
            }
            libc::madvise(aligned as *mut _, length, libc::MADV_HUGEPAGE);
        }
        Ok(own(aligned, 4096))
    }

    pub(super) fn address(&self) -> u64 {
        self.mapping.address() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.length()
    }

    /// Returns true if the mapping lies in reserved hugepages.
    pub(super) fn in_hugepages(&self) -> bool {
        self.page == HUGE
    }

    /// Returns the size of a page in bytes. Each page is contiguous in physical memory.
    pub(super) fn page(&self) -> usize {
        self.page
    }
}

/// Maps `length` bytes at an address in [`LOW`] that is aligned to a hugepage. `length` is a whole number of
/// hugepages. Returns `None` if no address in [`LOW`] is free, or if the kernel refuses the mapping.
fn map_low(length: usize, flags: i32) -> Option<*mut libc::c_void> {
    // If an address is in use, the next attempt skips this many bytes.
    const STEP: usize = 1 << 30;
    loop {
        let at = NEXT.fetch_add(length, Ordering::Relaxed);
        if at.checked_add(length).is_none_or(|end| end > LOW.end) {
            return None;
        }
        match map(at as *mut _, length, flags | libc::MAP_FIXED_NOREPLACE) {
            Ok(base) if base as usize == at => return Some(base),
            // A kernel without MAP_FIXED_NOREPLACE (before Linux 4.17) may choose another address. That
            // mapping is undone here.
            Ok(elsewhere) => {
                // SAFETY: the memory was just mapped, and nothing uses it.
                unsafe { libc::munmap(elsewhere, length) };
                return None;
            }
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                NEXT.fetch_add(STEP, Ordering::Relaxed);
            }
            Err(_) => return None,
        }
    }
}

/// Makes an anonymous mapping. `at` is null, or `flags` contain MAP_FIXED_NOREPLACE.
fn map(at: *mut libc::c_void, length: usize, flags: i32) -> io::Result<*mut libc::c_void> {
    // SAFETY: the mapping replaces no other: the kernel chooses the address, or refuses one in use.
    let base = unsafe {
        libc::mmap(
            at,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base) }
}
