//! GPU memory, and host memory that GPUs can access, as regions.

use crate::device::Gpu;
use crate::driver::call;
use crate::error::{Error, Result};
use cudarc::driver::sys;
use inlane_core::{Location, Region};
use std::sync::Arc;

/// Frees GPU memory when dropped.
struct Device {
    gpu: Arc<Gpu>,
    address: u64,
}

impl Drop for Device {
    fn drop(&mut self) {
        self.gpu.release("GPU memory", || {
            // SAFETY: the memory is allocated once and freed once.
            unsafe { call!(self.gpu, cuMemFree_v2(self.address)) }
        });
    }
}

/// Frees pinned memory when dropped.
struct Pinned {
    gpu: Arc<Gpu>,
    address: u64,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.gpu.release("pinned memory", || {
            // SAFETY: the memory is allocated once and freed once.
            unsafe { call!(self.gpu, cuMemFreeHost(self.address as *mut _)) }
        });
    }
}

/// Unregisters host memory when dropped.
struct Registered {
    gpu: Arc<Gpu>,
    memory: Region,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.gpu.release("a registration of host memory", || {
            // SAFETY: the memory was registered once. The region keeps it alive until after this call.
            unsafe { call!(self.gpu, cuMemHostUnregister(self.memory.as_ptr().cast())) }
        });
    }
}

impl Gpu {
    /// Allocates zeroed GPU memory, aligned to 256 bytes.
    ///
    /// # Errors
    /// If there is not enough memory. The message says how much is free.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Region> {
        self.make_current()?;
        let mut address = 0;
        // SAFETY: the pointer is valid, and the driver refuses 0 bytes.
        unsafe { call!(self.with_memory(bytes, "GPU memory"), cuMemAlloc_v2(&mut address, bytes))? };
        let keeper = Device { gpu: self.clone(), address };
        let stream = self.stream()?;
        // SAFETY: the allocation has this length. It lives until the wait below has returned.
        unsafe { call!(self, cuMemsetD8Async(address, 0, bytes, stream.raw()))? };
        stream.synchronize()?;
        // SAFETY: the region holds `keeper`, which frees the allocation when dropped.
        Ok(unsafe { Region::from_raw(address, bytes, Location::Gpu(self.index()), Arc::new(keeper)) })
    }

    /// Allocates zeroed pinned host memory. Every GPU can access it, at the same address as the CPU.
    ///
    /// # Errors
    /// If the system cannot pin that much.
    pub fn pinned(self: &Arc<Self>, bytes: usize) -> Result<Region> {
        self.make_current()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the pointer is valid, and the driver refuses 0 bytes.
        unsafe {
            call!(self.with_memory(bytes, "pinned memory"), cuMemHostAlloc(&mut pointer, bytes, flags))?
        };
        let keeper = Pinned { gpu: self.clone(), address: pointer as u64 };
        self.same_address(pointer as u64)?;
        // SAFETY: the allocation above has this length.
        unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0, bytes) };
        // SAFETY: the keeper holds the allocation as long as the region exists.
        Ok(unsafe { Region::from_raw(pointer as u64, bytes, Location::Pinned, Arc::new(keeper)) })
    }

    /// Registers host memory that was allocated elsewhere, such as a packet pool in hugepages. Every GPU can
    /// then access it. The returned region keeps `memory` alive.
    ///
    /// # Errors
    /// If `memory` is not ordinary host memory, is already registered, or cannot be locked.
    pub fn register(self: &Arc<Self>, memory: &Region) -> Result<Region> {
        if *memory.location() != Location::Host {
            return Err(Error::invalid(
                format!("registering {memory:?}"),
                "only ordinary host memory can be registered; pinned memory needs no registration",
            ));
        }
        self.make_current()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the region is valid host memory, which the keeper keeps alive.
        unsafe {
            call!(
                self.with_memory(memory.len(), "host memory to register"),
                cuMemHostRegister_v2(memory.as_ptr().cast(), memory.len(), flags)
            )?
        };
        let keeper = Registered { gpu: self.clone(), memory: memory.clone() };
        self.same_address(memory.address())?;
        // SAFETY: the keeper holds the registration and the memory.
        Ok(unsafe { Region::from_raw(memory.address(), memory.len(), Location::Pinned, Arc::new(keeper)) })
    }

    /// Copies a region of this GPU's memory to the host and waits for the copy.
    ///
    /// # Errors
    /// If the region is not in this GPU's memory, or the driver call fails.
    pub fn read(self: &Arc<Self>, region: &Region) -> Result<Vec<u8>> {
        self.must_own(region)?;
        let mut bytes = vec![0u8; region.len()];
        let stream = self.stream()?;
        // SAFETY: both memories have `bytes.len()` bytes. They live until `synchronize` below has returned.
        unsafe {
            call!(
                self,
                cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), region.address(), bytes.len(), stream.raw())
            )?
        };
        stream.synchronize()?;
        Ok(bytes)
    }

    /// Copies `bytes` to the beginning of a region of this GPU's memory and waits for the copy.
    ///
    /// # Errors
    /// If the region is not in this GPU's memory or is too small, or the driver call fails.
    pub fn write(self: &Arc<Self>, region: &Region, bytes: &[u8]) -> Result<()> {
        self.must_own(region)?;
        if bytes.len() > region.len() {
            return Err(Error::invalid(
                format!("{} bytes for {region:?}", bytes.len()),
                "the region is smaller",
            ));
        }
        let stream = self.stream()?;
        // SAFETY: both memories have `bytes.len()` bytes. They live until `synchronize` below has returned.
        unsafe {
            call!(
                self,
                cuMemcpyHtoDAsync_v2(region.address(), bytes.as_ptr().cast(), bytes.len(), stream.raw())
            )?
        };
        stream.synchronize()
    }

    fn must_own(&self, region: &Region) -> Result<()> {
        if *region.location() == Location::Gpu(self.index()) {
            return Ok(());
        }
        Err(Error::invalid(format!("{region:?}"), format!("the region is not in the memory of {self}")))
    }

    /// Checks that the GPU and the CPU use the same address for the host memory at `host`. A region has only
    /// one address. On 64-bit systems, CUDA's unified addressing guarantees the same address.
    fn same_address(&self, host: u64) -> Result<()> {
        let mut device = 0;
        // SAFETY: the driver has just mapped this memory.
        unsafe { call!(self, cuMemHostGetDevicePointer_v2(&mut device, host as *mut _, 0))? };
        if device != host {
            return Err(Error::invalid(
                format!("{self}"),
                "it maps host memory at other addresses than the CPU does; inlane does not support such systems",
            ));
        }
        Ok(())
    }

    /// Describes an allocation for an error message, and adds how much GPU memory is free.
    fn with_memory(&self, bytes: usize, what: &str) -> String {
        match self.memory() {
            Ok((free, total)) => {
                format!("{self}, {bytes} bytes of {what}, {free} of {total} bytes free on the GPU")
            }
            Err(_) => format!("{self}, {bytes} bytes of {what}"),
        }
    }
}
