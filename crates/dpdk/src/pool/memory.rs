//! The memory of a pool: hugepages, transparent hugepages, or ordinary pages, in that order.

use std::io;

/// A hugepage of x86-64 and of arm64 with pages of 4 KiB.
const HUGE: usize = 2 << 20;

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
        if hugepages && let Ok(base) = map(length, libc::MAP_HUGETLB | libc::MAP_POPULATE) {
            return Ok(Self { base, length, page: HUGE });
        }
        // Room to align by hand, since the system may place ordinary mappings at any page.
        let base = map(length + HUGE, 0)?;
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
            // A wish: without it the pool works with small pages.
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

fn map(length: usize, flags: i32) -> io::Result<*mut libc::c_void> {
    // SAFETY: an anonymous mapping at an address of the system's choice.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base) }
}
