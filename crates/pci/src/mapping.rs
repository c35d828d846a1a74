//! Maps pages of a device's file into this process. The caller checks permission.

use crate::error::{Error, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

const PAGE: u64 = 4096;

/// Mapped pages of a file. Dropping this value unmaps them.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: this value only owns an address range. Its users synchronise access to the memory.
unsafe impl Send for Mapping {}
// SAFETY: this value only owns an address range, and no method accesses the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the pages of `file` that contain `range`. The range counts from offset `base`, a multiple of the
    /// page size. Returns the mapping and the address of the range's first byte.
    pub fn new(
        file: BorrowedFd<'_>,
        base: u64,
        range: &Range<u64>,
        read: bool,
        write: bool,
        what: &str,
    ) -> Result<(Self, NonNull<u8>)> {
        let first = range.start & !(PAGE - 1);
        let length = usize::try_from(range.end - first)
            .map_err(|_| Error::os(format!("mapping {what}"), rustix::io::Errno::NOMEM))?;
        let mut protection = ProtFlags::empty();
        protection.set(ProtFlags::READ, read);
        protection.set(ProtFlags::WRITE, write);
        // SAFETY: a new mapping at an address that the kernel chooses changes no existing memory.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, base + first) };
        let start = start.map_err(|error| Error::os(format!("mapping {what}"), error))?;
        let start = NonNull::new(start.cast::<u8>()).expect("mmap gives no null");
        let mapping = Self { start, length };
        // SAFETY: the range starts in the first mapped page.
        let address = unsafe { start.add((range.start - first) as usize) };
        Ok((mapping, address))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this length. The users of the memory keep this value alive, so none is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
