//! Regions: spans of memory with their location. A region holds a handle, such as a mapping, which keeps its
//! memory valid. The ring, mover or window that uses a region controls the access to the memory.

use crate::error::{Error, Result};
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// The kind of memory that a region lies in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// Ordinary memory of this host.
    Host,
    /// Host memory that devices can access by DMA at any time: page-locked or registered.
    Pinned,
    /// Memory of GPU n.
    Gpu(u32),
    /// The mapped range of a PCI device's base address register.
    Bar {
        /// The device's PCI address, as the kernel prints it: `0000:b5:00.0`.
        device: String,
        /// The BAR's number, 0 to 5.
        bar: u8,
        /// True if the BAR is mapped as write-combining.
        write_combining: bool,
    },
    /// A window to a peer's memory, through an NTB or its twin.
    Window {
        /// The peer's port number.
        peer: u32,
    },
    /// Memory of the accelerator twin with this number.
    Twin(u32),
}

impl Location {
    /// Returns true if the CPU can access this memory with ordinary loads and stores.
    pub fn is_cpu_memory(&self) -> bool {
        matches!(self, Location::Host | Location::Pinned | Location::Twin(_))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Host => write!(f, "host"),
            Location::Pinned => write!(f, "pinned"),
            Location::Gpu(n) => write!(f, "gpu:{n}"),
            Location::Bar { device, bar, write_combining } => {
                write!(f, "pci:{device}/bar{bar}{}", if *write_combining { ":wc" } else { "" })
            }
            Location::Window { peer } => write!(f, "window:{peer}"),
            Location::Twin(n) => write!(f, "twin:{n}"),
        }
    }
}

/// A span of memory: address, length in bytes and location. The address is the CPU's, or the device's virtual
/// address for [`Location::Gpu`]. Clones share the memory.
#[derive(Clone)]
pub struct Region {
    address: u64,
    length: usize,
    location: Location,
    _keeper: Arc<dyn Send + Sync>,
}

impl Region {
    /// Creates a region of `length` bytes from `address`. `keeper` keeps this memory valid.
    ///
    /// # Safety
    /// While `keeper` lives, the `length` bytes from `address` are valid memory of `location`.
    pub unsafe fn from_raw(
        address: u64,
        length: usize,
        location: Location,
        keeper: Arc<dyn Send + Sync>,
    ) -> Self {
        Self { address, length, location, _keeper: keeper }
    }

    /// Allocates zeroed host memory, aligned to 4096 bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system has too little memory, [`Error::Invalid`] for 0 bytes or more than
    /// half the address space.
    pub fn host(length: usize) -> Result<Self> {
        let memory = HostMemory::new(length)?;
        let address = memory.pointer.as_ptr() as u64;
        // SAFETY: the region keeps `memory`, which owns the allocation, alive.
        Ok(unsafe { Self::from_raw(address, length, Location::Host, Arc::new(memory)) })
    }

    /// Returns the address: the CPU's, or the device's if the CPU does not map the memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the address as a pointer. Dereference it only if [`Location::is_cpu_memory`] returns true. In
    /// a mapped BAR or window, use only volatile accesses.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address as *mut u8
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the location.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the part of the region that has `length` bytes and starts at `offset`. It shares the region's
    /// memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the part is not inside the region.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Self> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => {
                Ok(Self { address: self.address + offset as u64, length, ..self.clone() })
            }
            _ => Err(Error::Invalid {
                what: format!("{length} bytes at offset {offset}").into(),
                why: format!("{self:?} ends before that; ask for less"),
            }),
        }
    }

    /// Returns true if the two regions share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        // Host, pinned and twin memory share one address space. Each other location has its own address
        // space.
        let same_space = self.location == other.location
            || (self.location.is_cpu_memory() && other.location.is_cpu_memory());
        same_space
            && self.address < other.address + other.length as u64
            && other.address < self.address + self.length as u64
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} in {}", self.length, self.address, self.location)
    }
}

struct HostMemory {
    pointer: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory that this value owns; no method accesses it.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    fn new(length: usize) -> Result<Self> {
        let layout = Layout::from_size_align(length, 4096)
            .ok()
            .filter(|layout| layout.size() > 0)
            .ok_or_else(|| Error::Invalid {
                what: format!("a region of {length} bytes").into(),
                why: "give between 1 byte and half the address space".into(),
            })?;
        // SAFETY: the layout has a size above zero.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        let pointer = NonNull::new(pointer).ok_or_else(|| Error::Memory {
            bytes: length,
            what: "host memory".into(),
            why: "the system has too little left; end other programs, or give smaller sizes".into(),
        })?;
        Ok(Self { pointer, layout })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and is freed once.
        unsafe { std::alloc::dealloc(self.pointer.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_inside() {
        let region = Region::host(8192).unwrap();
        let slice = region.slice(4096, 4096).unwrap();
        assert_eq!(slice.address(), region.address() + 4096);
        assert!(region.slice(4096, 4097).is_err());
        assert!(region.slice(usize::MAX, 2).is_err());
        assert!(region.overlaps(&slice));
        assert!(!region.slice(0, 4096).unwrap().overlaps(&slice));
        assert!(Region::host(0).is_err());
        assert!(Region::host(usize::MAX).is_err());
    }
}
