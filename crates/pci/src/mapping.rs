//! A file of a device mapped into this process: pages, protection, nothing about who may.

use crate::error::{Error, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

const PAGE: u64 = 4096;

/// Whole pages of a file, unmapped at the end.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: an address range of the process, owned by this value; who touches it when is its users' business.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method touches what is mapped.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the pages of `file` that hold the bytes `range`, which lies at `base` (a multiple of the page) in it. The
    /// second value is the address of the range's first byte.
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
        // SAFETY: a new mapping, of nothing else in this process.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, base + first) };
        let start = start.map_err(|error| Error::os(format!("mapping {what}"), error))?;
        let start = NonNull::new(start.cast::<u8>()).expect("mmap gives no null");
        let mapping = Self { start, length };
        // SAFETY: the range starts in the first page mapped.
        let address = unsafe { start.add((range.start - first) as usize) };
        Ok((mapping, address))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, unmapped once; those who use it keep this value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
