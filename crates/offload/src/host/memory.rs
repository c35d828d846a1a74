//! Memory for the rings of connections.

use inlane_core::region::{Location, Region};
use std::ptr::NonNull;
use std::sync::Arc;

/// Zeroed memory from mmap. The C library's calloc could return memory that was freed, and would then clear
/// all of it. Clearing costs more than a short connection.
struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong to this value alone, which only unmaps them.
unsafe impl Send for Pages {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and the region that used it is gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Maps `len` bytes of zeroed memory for a ring. Pages that were not written take no memory. Returns `None` if the system
/// has no memory left.
pub fn allocate_ring(len: usize) -> Option<Region> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping touches no memory of this process.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = NonNull::new(start.cast())?;
    // SAFETY: the mapping has `len` bytes, and lives as long as the pages, which the region keeps.
    Some(unsafe {
        Region::from_raw(start.as_ptr() as u64, len, Location::Host, Arc::new(Pages { start, len }))
    })
}
