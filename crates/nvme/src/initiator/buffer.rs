//! Memory that a command reads into or writes from.

use inlane_core::error::{Error, Result};
use inlane_core::region::Region;

/// Host memory with one owner. A request moves the buffer into the connection. The connection returns it when
/// the command has completed.
#[derive(Debug)]
pub struct Buffer {
    region: Region,
    /// The number of bytes in use, from the start of the region.
    len: usize,
}

impl Buffer {
    /// Allocates zeroed memory, aligned to 4096 bytes.
    ///
    /// # Errors
    /// If the system has too little memory, or `bytes` is 0.
    pub fn new(bytes: usize) -> Result<Self> {
        Ok(Self { region: Region::host(bytes)?, len: bytes })
    }

    /// Creates a buffer that uses the memory of `region`, such as pinned memory.
    ///
    /// # Safety
    /// Nothing else accesses the region's memory until the buffer is dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the CPU cannot access the region's memory with ordinary loads and stores.
    pub unsafe fn from_region(region: Region) -> Result<Self> {
        if !region.location().is_cpu_memory() {
            let why = "commands transfer host memory; copy through a host region";
            return Err(Error::invalid(region.location().to_string(), why));
        }
        let len = region.len();
        Ok(Self { region, len })
    }

    /// Consumes the buffer and returns its whole region.
    pub fn into_region(self) -> Region {
        self.region
    }

    /// Returns the length in bytes. A command transfers the whole buffer.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the largest length that [`Buffer::set_len`] accepts, in bytes.
    pub fn capacity(&self) -> usize {
        self.region.len()
    }

    /// Sets the length in bytes. The memory keeps its size, so the length can grow again.
    ///
    /// # Panics
    /// If `bytes` is 0 or exceeds the memory.
    pub fn set_len(&mut self, bytes: usize) {
        assert!((1..=self.region.len()).contains(&bytes), "{bytes} bytes of {}", self.region.len());
        self.len = bytes;
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the region keeps the memory valid and initialised. This value is its only owner.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr(), self.len) }
    }

    /// Returns the buffer's bytes as a mutable slice.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.region.as_ptr(), self.len) }
    }
}
