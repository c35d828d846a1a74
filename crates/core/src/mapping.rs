//! Mappings of files and shared memory, which unmap themselves.

use crate::region::{Location, Region};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// A range of this process's addresses. Dropping this value unmaps it.
#[derive(Debug)]
pub struct Mapping {
    address: usize,
    length: usize,
}

impl Mapping {
    /// Maps `length` bytes of `file` from `offset`, a multiple of the page size. Other processes see what is stored there.
    ///
    /// # Errors
    /// The system's error.
    pub fn shared(
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        read: bool,
        write: bool,
    ) -> io::Result<Self> {
        let protection = if read { libc::PROT_READ } else { 0 } | if write { libc::PROT_WRITE } else { 0 };
        let (null, file) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: the kernel chooses an unused address for the new mapping.
        let address =
            unsafe { libc::mmap(null, length, protection, libc::MAP_SHARED, file, offset as libc::off_t) };
        match address {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            address => Ok(Self { address: address as usize, length }),
        }
    }

    /// Takes a mapping over.
    ///
    /// # Safety
    /// The caller has mapped the `length` bytes at `address`, and nothing else unmaps them.
    pub unsafe fn from_raw(address: usize, length: usize) -> Self {
        Self { address, length }
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Makes a region of the mapping, which is unmapped after the region and all its slices are dropped. Asks the kernel for
    /// large pages, because they cause fewer page-table misses.
    pub fn into_region(self, location: Location) -> Region {
        let Self { address, length } = self;
        // SAFETY: the advice changes no memory. If the kernel refuses it, small pages stay.
        unsafe { libc::madvise(address as *mut _, length, libc::MADV_HUGEPAGE) };
        // SAFETY: the region keeps the mapping.
        unsafe { Region::from_raw(address as u64, length, location, Arc::new(self)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the range. The users of the memory keep this value, so none is left.
        unsafe { libc::munmap(self.address as *mut _, self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn two_mappings_show_the_same_bytes_until_the_last_region_is_dropped() {
        let path = std::env::temp_dir().join(format!("inlane-mapping-{}", std::process::id()));
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(8192).unwrap();
        let map = |offset| Mapping::shared(file.as_fd(), offset, 4096, true, true).unwrap();
        let (one, other) = (map(4096).into_region(Location::Host), map(4096));
        let part = one.slice(8, 8).unwrap();
        drop(one);
        // SAFETY: both mappings have 4096 bytes, and only this thread uses them.
        let read = unsafe {
            part.as_ptr().write_volatile(7);
            (other.address() as *const u8).add(8).read_volatile()
        };
        assert_eq!((read, other.length()), (7, 4096));
        let (page, mut resident) = (part.address() & !4095, 0u8);
        // SAFETY: the call reads the state of a page and writes one byte.
        let mut is_mapped = || unsafe { libc::mincore(page as *mut _, 4096, &mut resident) == 0 };
        assert!(is_mapped());
        drop(part);
        assert!(!is_mapped(), "no region is left");
        let error = Mapping::shared(file.as_fd(), 1, 4096, true, false).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "an offset within a page");
    }
}
