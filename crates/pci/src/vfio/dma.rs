//! Host memory mapped for DMA by a device, at an I/O virtual address.

use super::device::Device;
use super::sys;
use crate::error::{Error, Result};
use inlane_core::region::Region;
use std::io;

const PAGE: u64 = 4096;

impl Device {
    /// Maps `memory` at the I/O virtual address `iova`, where the device can access it by DMA. The mapping
    /// exists until the result is dropped.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] for memory other than whole pages of host memory.
    /// - [`Error::NotReady`] if the limit of locked memory is reached.
    /// - [`Error::Os`] if `iova` is in use or out of the IOMMU's reach.
    pub fn map_dma(&self, memory: &Region, iova: u64) -> Result<DmaMapping> {
        DmaMapping::new(self, memory, iova)
    }
}

/// A mapping of memory for a device's DMA. The mapping keeps the memory alive. Dropping the mapping ends the
/// device's access.
#[derive(Debug)]
pub struct DmaMapping {
    device: Device,
    memory: Region,
    iova: u64,
}

impl DmaMapping {
    fn new(device: &Device, memory: &Region, iova: u64) -> Result<Self> {
        let name = device.address();
        if !memory.location().is_cpu_memory() {
            return Err(Error::Unsupported {
                what: format!("DMA of {name} to {memory:?}"),
                why: "VFIO maps only host memory".into(),
            });
        }
        if !(memory.address() | memory.len() as u64 | iova).is_multiple_of(PAGE) || memory.is_empty() {
            return Err(Error::Unsupported {
                what: format!("DMA of {name} to {memory:?} at {iova:#x}"),
                why: format!("address, IOVA and length must be multiples of {PAGE}"),
            });
        }
        let mut map = sys::DmaMap {
            argsz: size_of::<sys::DmaMap>() as u32,
            flags: sys::DMA_MAP_FLAG_READ | sys::DMA_MAP_FLAG_WRITE,
            vaddr: memory.address(),
            iova,
            size: memory.len() as u64,
        };
        // SAFETY: `map` is the structure that IOMMU_MAP_DMA takes. The memory region is valid until it is
        // unmapped.
        unsafe { sys::ioctl_with(device.container(), sys::IOMMU_MAP_DMA, &mut map) }.map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOMEM) => Error::NotReady {
                    address: name,
                    why: format!(
                        "{} more bytes cannot be locked for its DMA; run ulimit -l unlimited, or run as root",
                        memory.len()
                    ),
                },
                Some(libc::EEXIST) => Error::os(
                    format!("mapping memory for DMA of {name} at {iova:#x}: the address is in use"),
                    io::Error::from(io::ErrorKind::AlreadyExists),
                ),
                _ => Error::os(format!("mapping {memory:?} for DMA of {name} at {iova:#x}"), error),
            }
        })?;
        Ok(Self { device: device.clone(), memory: memory.clone(), iova })
    }

    /// Returns the I/O virtual address of the memory.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Region {
        &self.memory
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        let mut unmap = sys::DmaUnmap {
            argsz: size_of::<sys::DmaUnmap>() as u32,
            flags: 0,
            iova: self.iova,
            size: self.memory.len() as u64,
        };
        // SAFETY: this is the structure that the request takes.
        let unmapped = unsafe { sys::ioctl_with(self.device.container(), sys::IOMMU_UNMAP_DMA, &mut unmap) };
        if unmapped.is_err() {
            // The device may still access the memory, so never free it.
            std::mem::forget(self.memory.clone());
        }
    }
}
