//! A region: a span of memory, and where it is.
//!
//! A region says nothing about who may touch it when; that is for the ring, the mover or the window that uses it.
//! It owns its memory through whatever handle was given with it (a mapping, an allocation of a device).

use crate::error::{Error, Result};
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Where a region's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// Ordinary memory of this host.
    Host,
    /// Host memory that devices may reach by DMA at any time (page-locked, registered).
    Pinned,
    /// Memory of GPU n.
    Gpu(u32),
    /// A base address register of a PCI device, mapped.
    Bar {
        /// Domain, bus, device, function as the kernel writes them (`0000:b5:00.0`).
        device: String,
        /// Which BAR, 0 to 5.
        bar: u8,
        /// Mapped write-combining.
        write_combining: bool,
    },
    /// A window onto another machine's memory, through an NTB or what stands for one.
    Window {
        /// The peer's port number.
        peer: u32,
    },
    /// Memory of a software stand-in for an accelerator.
    Twin(u32),
}

impl Location {
    /// The CPU may load and store there with ordinary instructions.
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

/// A span of memory: address as the CPU maps it (or the device's virtual address for [`Location::Gpu`]), length in
/// bytes, place. Cloning shares the memory.
#[derive(Clone)]
pub struct Region {
    address: u64,
    length: usize,
    location: Location,
    _keeper: Arc<dyn Send + Sync>,
}

impl Region {
    /// Describes memory that `keeper` keeps valid.
    ///
    /// # Safety
    /// `length` bytes from `address` stay valid, at the place named, for as long as `keeper` lives.
    pub unsafe fn from_raw(
        address: u64,
        length: usize,
        location: Location,
        keeper: Arc<dyn Send + Sync>,
    ) -> Self {
        Self { address, length, location, _keeper: keeper }
    }

    /// Zeroed host memory, aligned to a page.
    ///
    /// # Errors
    /// [`Error::Memory`] when the system has none, [`Error::Invalid`] for no bytes at all.
    pub fn host(length: usize) -> Result<Self> {
        let memory = HostMemory::new(length)?;
        let address = memory.pointer.as_ptr() as u64;
        // SAFETY: the allocation lives in the keeper.
        Ok(unsafe { Self::from_raw(address, length, Location::Host, Arc::new(memory)) })
    }

    /// The address: the CPU's, or the device's own for memory that the CPU has not mapped.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The address as a pointer; only to be followed where [`Location::is_cpu_memory`] or by volatile accesses to a BAR.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address as *mut u8
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True for a region of no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// `length` bytes from `offset` of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when that is not inside.
    pub fn slice(&self, offset: usize, length: usize) -> Result<Self> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => {
                Ok(Self { address: self.address + offset as u64, length, ..self.clone() })
            }
            _ => Err(Error::Invalid {
                what: format!("{length} bytes at offset {offset}"),
                why: format!("{self:?} ends before; ask for less"),
            }),
        }
    }

    /// True when the two share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        // Host, pinned and twin memory share one address space; other places have their own.
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

// SAFETY: plain memory, owned by this value alone; who touches it when is the business of its users.
unsafe impl Send for HostMemory {}
// SAFETY: as above; no method reads or writes it.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    fn new(length: usize) -> Result<Self> {
        let layout = Layout::from_size_align(length, 4096)
            .ok()
            .filter(|layout| layout.size() > 0)
            .ok_or_else(|| Error::Invalid {
                what: format!("a region of {length} bytes"),
                why: "give between 1 byte and half the address space".into(),
            })?;
        // SAFETY: the layout has a size above zero.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        let pointer = NonNull::new(pointer).ok_or_else(|| Error::Memory {
            bytes: length,
            what: "host memory".into(),
            why: "the system has none left; ask for less".into(),
        })?;
        Ok(Self { pointer, layout })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
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
