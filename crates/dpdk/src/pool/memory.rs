//! The memory of a pool: hugepages, transparent hugepages, or ordinary pages, in that order.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A hugepage of x86-64 and of arm64 with pages of 4 KiB.
pub(super) const HUGE: usize = 2 << 20;

/// Where memory is placed if it can be: devices are given its virtual addresses, and the IOMMUs of smaller machines translate
/// 39 bits of them. DPDK's own memory begins at 4 GiB.
const LOW: Range<usize> = 1 << 36..1 << 39;

/// Where the next mapping is tried.
static NEXT: AtomicUsize = AtomicUsize::new(LOW.start);

/// An anonymous mapping, given back on drop.
pub(super) struct Mapping {
    base: *mut libc::c_void,
    length: usize,
    page: usize,
}

// SAFETY: a span of addresses; who touches it when is the business of its users.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `length` bytes, aligned to a hugepage.
    pub(super) fn new(length: usize, hugepages: bool) -> io::Result<Self> {
        let length = length.next_multiple_of(HUGE);
        const RESERVED: i32 = libc::MAP_HUGETLB | libc::MAP_POPULATE;
        if hugepages
            && let Some(base) =
                map_low(length, RESERVED).or_else(|| map(std::ptr::null_mut(), length, RESERVED).ok())
        {
            return Ok(Self { base, length, page: HUGE });
        }
        if let Some(base) = map_low(length, 0) {
            // SAFETY: the mapping just made. A wish: without it the pool works with small pages.
            unsafe { libc::madvise(base, length, libc::MADV_HUGEPAGE) };
            return Ok(Self { base, length, page: 4096 });
        }
        // Room to align by hand, since the system may place ordinary mappings at any page.
        let base = map(std::ptr::null_mut(), length + HUGE, 0)?;
        let aligned = (base as usize).next_multiple_of(HUGE);
        let before = aligned - base as usize;
        let behind = HUGE - before;
        // SAFETY: the edges of the mapping just made, which nobody uses; the middle stays.
        unsafe {
            if before > 0 {
                libc::munmap(base, before);
            }
            if behind > 0 {
                libc::munmap((aligned + length) as *mut _, behind);
            }
            libc::madvise(aligned as *mut _, length, libc::MADV_HUGEPAGE);
        }
        Ok(Self { base: aligned as *mut _, length, page: 4096 })
    }

    pub(super) fn address(&self) -> u64 {
        self.base as u64
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// It lies in hugepages that were reserved.
    pub(super) fn in_hugepages(&self) -> bool {
        self.page == HUGE
    }

    /// Bytes that are surely contiguous in physical memory.
    pub(super) fn page(&self) -> usize {
        self.page
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, unmapped once.
        unsafe { libc::munmap(self.base, self.length) };
    }
}

/// A mapping of whole hugepages in [`LOW`], where there is room.
fn map_low(length: usize, flags: i32) -> Option<*mut libc::c_void> {
    // Further on each time that something is there already.
    const STEP: usize = 1 << 30;
    loop {
        let at = NEXT.fetch_add(length, Ordering::Relaxed);
        if at.checked_add(length).is_none_or(|end| end > LOW.end) {
            return None;
        }
        match map(at as *mut _, length, flags | libc::MAP_FIXED_NOREPLACE) {
            Ok(base) if base as usize == at => return Some(base),
            // A kernel that does not know the flag takes the address for a hint.
            Ok(elsewhere) => {
                // SAFETY: just mapped, used by nobody.
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

/// An anonymous mapping; `at` is null, or a free place with the flag that says so.
fn map(at: *mut libc::c_void, length: usize, flags: i32) -> io::Result<*mut libc::c_void> {
    // SAFETY: an anonymous mapping that replaces no other: at an address of the system's choice, or refused.
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
