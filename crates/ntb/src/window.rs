//! A mapped memory window: the path of stores to a peer. Every access is checked against the window's length,
//! so no value from the peer leads outside the window.
//!
//! A store is *issued* when [`Window::store`] returns, and *delivered* when a later [`Window::flush`] has
//! returned.

use crate::error::{Error, Result};
use crate::fault::Wire;
use inlane_core::access::{copy_coherent, load_device, store_device, store_fence};
use inlane_core::region::Region;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Memory, fence};

/// When a store through a window becomes visible to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ordering {
    /// The window is memory that is coherent with the peer's. A store is delivered once it has left the store
    /// buffer.
    Coherent,
    /// Stores are posted and write-combining. Between two fences, they may arrive in any order. Only a
    /// read-back shows that they are delivered.
    Posted,
}

/// A window onto a peer's inbound memory. Any thread may use it.
pub struct Window {
    peer: u32,
    region: Region,
    base: *mut u8,
    length: usize,
    ordering: Ordering,
    wire: Option<Arc<Wire>>,
}

// SAFETY: the memory is shared with another process anyway. All accesses are bounds-checked raw copies or
// atomics. Callers order accesses from different threads.
unsafe impl Send for Window {}
// SAFETY: as for `Send`.
unsafe impl Sync for Window {}

impl Window {
    /// Creates a window over `region`, which is mapped memory. If `wire` is given, stores pass through this
    /// model of a link. The model can inject faults.
    pub fn new(peer: u32, region: Region, ordering: Ordering, wire: Option<Arc<Wire>>) -> Self {
        if let Some(wire) = &wire {
            wire.keep(region.clone());
        }
        let (base, length) = (region.as_ptr(), region.len());
        Self { peer, region, base, length, ordering, wire }
    }

    /// Returns the port on the other side.
    pub fn peer(&self) -> u32 {
        self.peer
    }

    /// Returns the mapped memory, for movers.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true for a window of no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns when stores through the window become visible.
    pub fn ordering(&self) -> Ordering {
        self.ordering
    }

    /// Returns the mapping's address if the CPU may use the window as ordinary coherent memory.
    pub fn coherent_base(&self) -> Option<*mut u8> {
        (self.ordering == Ordering::Coherent && self.wire.is_none()).then_some(self.base)
    }

    #[cold]
    fn outside(&self, offset: usize, length: usize) -> Error {
        Error::Window {
            peer: self.peer,
            why: format!("{length} bytes at offset {offset:#x} end beyond its {:#x} bytes", self.length),
        }
    }

    #[inline(always)]
    fn at(&self, offset: usize, length: usize) -> Result<*mut u8> {
        match offset.checked_add(length) {
            // SAFETY: the offset is at most the length of the mapping.
            Some(end) if end <= self.length => Ok(unsafe { self.base.add(offset) }),
            _ => Err(self.outside(offset, length)),
        }
    }

    /// Stores `bytes` at `offset`. When this function returns, the stores are issued and the source may be
    /// reused.
    ///
    /// # Errors
    /// [`Error::Window`] if the bytes would end outside the window.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        // SAFETY: the slice is readable for its length.
        unsafe { self.store_from(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Stores `length` bytes at `offset`, like [`Window::store`]. Other threads may write the source
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::Window`] if the bytes would end outside the window.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes and does not overlap the destination in the window's mapping.
    #[inline(always)]
    pub unsafe fn store_from(&self, offset: usize, source: *const u8, length: usize) -> Result<()> {
        let to = self.at(offset, length)?;
        // SAFETY: `at` checked the destination. The caller promises the source.
        unsafe {
            match (&self.wire, self.ordering) {
                (None, Ordering::Coherent) => copy_coherent(to, source, length),
                (None, Ordering::Posted) => store_device(to, source, length),
                (Some(wire), _) => wire.store(to, source, length),
            }
        }
        Ok(())
    }

    /// Stores one aligned word of 8 bytes with a single access. A reader never sees a mix of old and new
    /// bytes.
    ///
    /// # Errors
    /// [`Error::Window`] if the word is misaligned or outside the window.
    #[inline(always)]
    pub fn store_word(&self, offset: usize, value: u64) -> Result<()> {
        let to = self.at(offset, 8)?;
        if !(to as usize).is_multiple_of(8) {
            return Err(self.outside(offset, 8));
        }
        match &self.wire {
            // SAFETY: the word is aligned and inside the mapping, as checked above. All other accesses to the
            // word are atomic.
            None => unsafe { AtomicU64::from_ptr(to.cast()).store(value, Memory::Release) },
            // SAFETY: the word lies inside the mapping, and the source is a local variable.
            Some(wire) => unsafe { wire.store(to, value.to_ne_bytes().as_ptr(), 8) },
        }
        Ok(())
    }

    /// Copies from the peer's memory. On real hardware each load is a round trip.
    ///
    /// # Errors
    /// [`Error::Window`] if the bytes would end outside the window.
    ///
    /// # Safety
    /// `destination` is writable for `length` bytes and does not overlap the source in the window's mapping.
    pub unsafe fn load_into(&self, destination: *mut u8, offset: usize, length: usize) -> Result<()> {
        let from = self.at(offset, length)?;
        if let Some(wire) = &self.wire {
            // Deliver the stores that injected faults have delayed. On hardware, a read does not overtake
            // earlier posted writes.
            wire.drain();
        }
        // SAFETY: `at` checked the source. The caller promises the destination.
        unsafe {
            match self.ordering {
                Ordering::Coherent => copy_coherent(destination, from, length),
                Ordering::Posted => load_device(destination, from, length),
            }
        }
        Ok(())
    }

    /// Orders stores: all stores before this call arrive before all later stores through this window. Without
    /// injected faults, this also orders the calling thread's stores through different windows.
    #[inline(always)]
    pub fn fence(&self) {
        match (&self.wire, self.ordering) {
            // Execute the fence instruction even for coherent windows. Large copies may use non-temporal
            // stores, and only this instruction orders such stores.
            (None, _) => store_fence(),
            (Some(wire), _) => wire.fence(),
        }
    }

    /// Orders stores like [`Window::fence`], but only those made by [`Window::store_word`]. On a coherent
    /// window without injected faults, this needs no instruction on x86.
    #[inline(always)]
    pub fn fence_words(&self) {
        match (&self.wire, self.ordering) {
            (None, Ordering::Coherent) => fence(Memory::Release),
            _ => self.fence(),
        }
    }

    /// Blocks until all stores before this call are in the peer's memory. On posted windows, reads from the
    /// window for this purpose.
    pub fn flush(&self) {
        fence(Memory::SeqCst);
        store_fence();
        if let Some(wire) = &self.wire {
            wire.fence();
            wire.drain();
        }
        if self.ordering == Ordering::Posted && self.length >= 4 {
            // SAFETY: the first 4 bytes are inside the mapping, and aligned because mappings start at a
            // page.
            unsafe { self.base.cast::<u32>().read_volatile() };
        }
        fence(Memory::SeqCst);
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "window of {} bytes towards port {}", self.length, self.peer)
    }
}
