//! A namespace in memory.
//!
//! Hosts may read and write the same memory at the same time, so the code creates no Rust reference to its
//! bytes. The bytes are copied by assembly or by atomic words, page by page under the locks of
//! [`PageLocks`]. So each block that a read returns is whole, from before or after a write.

use super::page_locks::PageLocks;
use crate::field::NAMESPACE;
use crate::{Error, Result};
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use inlane_core::access::Access;
use inlane_core::units;
use std::ops::Range;
use std::ptr::NonNull;

/// The size of a cache line in bytes.
const LINE: usize = 64;
/// The size of a page in bytes. Whole pages are zeroed by giving them back to the kernel.
pub const PAGE: u64 = 4096;

/// A private anonymous mapping. Pages are allocated when they are first written.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    bytes: u64,
    locks: PageLocks,
}

// SAFETY: the memory stays mapped as long as this value. Only atomic operations, assembly and the kernel
// access the memory.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `bytes` bytes of zeros. `readers` is the number of threads that pin memory. Asks the kernel for huge pages, because they make random accesses faster.
    ///
    /// # Errors
    /// If `bytes` is 0 or not a multiple of 512. If the address space is too small.
    pub fn new(bytes: u64, readers: usize) -> Result<Self> {
        let what = format!("memory:{bytes}");
        let whole = bytes > 0 && bytes.is_multiple_of(512);
        Error::require(whole, what.clone(), "the size must be a multiple of 512 and not 0")?;
        let length =
            usize::try_from(bytes).map_err(|_| Error::invalid(what, "it exceeds the address space"))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address of the new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            let why = format!("the system cannot map this much memory ({error}); give less");
            return Err(Error::environment(NAMESPACE.with(format!("memory:{}", units::bytes(bytes))), why));
        }
        // SAFETY: the range is this whole mapping. If the call fails, the mapping keeps small pages.
        unsafe { libc::madvise(start, length, libc::MADV_HUGEPAGE) };
        Ok(Self {
            start: NonNull::new(start.cast()).expect("mmap returns no null"),
            bytes,
            locks: PageLocks::new(bytes.div_ceil(PAGE), readers),
        })
    }

    #[inline]
    fn at(&self, offset: u64, length: u64) -> *mut u8 {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.bytes), "a range beyond the memory");
        // SAFETY: the offset lies within the mapping, as checked above.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }

    /// Fills `to` with the bytes that start at `offset`.
    ///
    /// # Panics
    /// If the range ends beyond the memory, or if the offset or the length is not a multiple of 64.
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        for (at, range) in pieces(offset, to.len()) {
            let to = &mut to[range];
            let source = self.whole_lines(at, to.len());
            // SAFETY: both spans have the length of `to` and do not overlap.
            self.locks.read(at / PAGE, || unsafe { copy(to.as_mut_ptr(), source, to.len()) });
        }
    }

    /// Pins the memory from `offset` on for the reader with this number, up to `most` bytes. Returns the address and
    /// the number of pinned bytes, which end at the end of a page if they are fewer. Their number is 0 if a writer changes
    /// the first page. With `wait`, waits for the writer instead; the reader must then have pinned nothing yet.
    ///
    /// Nothing changes these bytes before [`Memory::unpin`].
    ///
    /// # Panics
    /// If the range ends beyond the memory, or if there is no such reader.
    #[inline]
    pub fn pin(&self, reader: usize, offset: u64, most: usize, wait: bool) -> (*const u8, usize) {
        let (address, end) = (self.at(offset, most as u64), offset + most as u64);
        let pages = offset / PAGE..end.div_ceil(PAGE);
        loop {
            let pinned = self.locks.pin(reader, pages.clone());
            if pinned > pages.start || !wait {
                return (address, (pinned * PAGE).clamp(offset, end) as usize - offset as usize);
            }
            self.locks.wait(pinned);
        }
    }

    /// Fills `to` with the bytes that start at `offset`.
    ///
    /// # Safety
    /// The calling thread has pinned these bytes.
    ///
    /// # Panics
    /// If the range ends beyond the memory.
    pub unsafe fn copy_pinned(&self, offset: u64, to: &mut [u8]) {
        let source = self.at(offset, to.len() as u64);
        // SAFETY: the range lies within the mapping. No thread changes it, because it is pinned.
        unsafe { std::ptr::copy_nonoverlapping(source, to.as_mut_ptr(), to.len()) };
    }

    /// Unpins all memory that a reader has pinned.
    #[inline]
    pub fn unpin(&self, reader: usize) {
        self.locks.unpin(reader);
    }

    /// Starts to load the `length` bytes that start at `offset` into the first-level cache. Returns without
    /// waiting for them.
    ///
    /// # Panics
    /// If the range ends beyond the memory.
    #[inline]
    pub fn prefetch(&self, offset: u64, length: usize) {
        let start = self.at(offset, length as u64).cast_const();
        for line in (0..length).step_by(LINE) {
            prefetch(start.wrapping_add(line));
        }
    }

    /// Returns the address of byte `offset`. Panics if the range ends beyond the memory, or if the offset or
    /// the length is not a multiple of 64.
    #[inline]
    fn whole_lines(&self, offset: u64, length: usize) -> *mut u8 {
        assert!(offset.is_multiple_of(64) && length.is_multiple_of(64), "a range of whole blocks");
        self.at(offset, length as u64)
    }

    /// Stores `from` at `offset`.
    ///
    /// # Panics
    /// As for [`Memory::read`].
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) {
        for (at, range) in pieces(offset, from.len()) {
            let from = &from[range];
            let destination = self.whole_lines(at, from.len());
            let _locked = self.locks.lock(at / PAGE..at / PAGE + 1);
            // SAFETY: both spans have the length of `from` and do not overlap.
            unsafe { copy(destination, from.as_ptr(), from.len()) };
        }
    }

    /// Returns true if the bytes that start at `offset` equal `expected`.
    ///
    /// # Panics
    /// If the range ends beyond the memory, or if the offset or the length is not a multiple of 64.
    pub fn equals(&self, offset: u64, expected: &[u8]) -> bool {
        let mut found = [0; PAGE as usize];
        pieces(offset, expected.len()).all(|(at, range)| {
            let found = &mut found[..range.len()];
            self.read(at, found);
            *found == expected[range]
        })
    }

    /// Zeroes the `length` bytes that start at `offset`. Gives whole pages back to the kernel.
    ///
    /// # Panics
    /// If the range ends beyond the memory, or if the offset or the length is not a multiple of 64.
    pub fn zero(&self, offset: u64, length: u64) {
        let (end, first, last) = (offset + length, offset.div_ceil(PAGE), (offset + length) / PAGE);
        if first >= last {
            return self.clear(offset, end);
        }
        self.clear(offset, first * PAGE);
        let mut pages = first..last;
        while !pages.is_empty() {
            let part = self.locks.part(&pages);
            self.give_back(part.clone());
            pages.start = part.end;
        }
        self.clear(last * PAGE, end);
    }

    /// Stores zeros from `offset` to `end`.
    fn clear(&self, offset: u64, end: u64) {
        for (at, range) in pieces(offset, (end - offset) as usize) {
            self.write(at, &[0; PAGE as usize][..range.len()]);
        }
    }

    /// Gives whole pages back to the kernel. They then contain zeros.
    fn give_back(&self, pages: Range<u64>) {
        let (offset, length) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        let locked = self.locks.lock(pages);
        // SAFETY: the pages lie within the mapping.
        let given_back =
            unsafe { libc::madvise(self.at(offset, length).cast(), length as usize, libc::MADV_DONTNEED) };
        drop(locked);
        if given_back != 0 {
            self.clear(offset, offset + length);
        }
    }
}

/// Divides `length` bytes from `offset` on at the borders of pages. Returns the offset of each piece, and its range
/// within the `length` bytes.
#[inline]
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let at = offset + start as u64;
        let range = start..length.min(start + (PAGE - at % PAGE) as usize);
        start = range.end;
        (!range.is_empty()).then_some((at, range))
    })
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping. No reference into the mapping exists any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes as usize) };
    }
}

/// Copies `bytes` bytes, a multiple of 64, by one instruction, as the kernel does. Processors with fast strings need not
/// load the destination's cache lines before they write them.
///
/// # Safety
/// Both spans are valid for `bytes` bytes and do not overlap. Other threads may change the source meanwhile.
#[inline]
unsafe fn copy(destination: *mut u8, source: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise. The direction flag is clear, as the ABI demands.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") destination => _,
            inout("rsi") source => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller's promise; every CPU has this access.
    unsafe {
        Access::Bytes8.copy(destination, source, bytes / 8);
    }
}

/// Starts to load a cache line into the first-level cache.
#[inline]
fn prefetch(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes no register or memory, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}
