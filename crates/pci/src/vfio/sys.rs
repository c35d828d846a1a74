//! Requests and structures of the kernel's VFIO interface, `linux/vfio.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const fn request(n: u32) -> u32 {
    // _IO(';', 100 + n) of linux/ioctl.h: no direction, no size.
    (b';' as u32) << 8 | (100 + n)
}

pub const GET_API_VERSION: u32 = request(0);
pub const CHECK_EXTENSION: u32 = request(1);
pub const SET_IOMMU: u32 = request(2);
pub const GROUP_GET_STATUS: u32 = request(3);
pub const GROUP_SET_CONTAINER: u32 = request(4);
pub const GROUP_GET_DEVICE_FD: u32 = request(6);
pub const DEVICE_GET_REGION_INFO: u32 = request(8);
pub const DEVICE_GET_IRQ_INFO: u32 = request(9);
pub const DEVICE_SET_IRQS: u32 = request(10);
pub const DEVICE_RESET: u32 = request(11);
pub const IOMMU_MAP_DMA: u32 = request(13);
pub const IOMMU_UNMAP_DMA: u32 = request(14);

pub const API_VERSION: i32 = 0;
pub const TYPE1V2_IOMMU: usize = 3;
pub const GROUP_FLAGS_VIABLE: u32 = 1;
pub const REGION_FLAG_MMAP: u32 = 1 << 2;
pub const REGION_FLAG_CAPS: u32 = 1 << 3;
pub const REGION_CAP_SPARSE_MMAP: u16 = 1;
pub const CONFIG_REGION: u32 = 7;
pub const IRQ_SET_DATA_NONE: u32 = 1 << 0;
pub const IRQ_SET_DATA_EVENTFD: u32 = 1 << 2;
pub const IRQ_SET_ACTION_TRIGGER: u32 = 1 << 5;
pub const DMA_MAP_FLAG_READ: u32 = 1 << 0;
pub const DMA_MAP_FLAG_WRITE: u32 = 1 << 1;

#[repr(C)]
#[derive(Default)]
pub struct GroupStatus {
    pub argsz: u32,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RegionInfo {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub cap_offset: u32,
    pub size: u64,
    pub offset: u64,
}

#[repr(C)]
#[derive(Default)]
pub struct IrqInfo {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub count: u32,
}

/// C's `struct vfio_irq_set`. In memory, `count` eventfds follow it.
#[repr(C)]
#[derive(Default)]
pub struct IrqSet {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub start: u32,
    pub count: u32,
}

#[repr(C)]
#[derive(Default)]
pub struct DmaMap {
    pub argsz: u32,
    pub flags: u32,
    pub vaddr: u64,
    pub iova: u64,
    pub size: u64,
}

#[repr(C)]
#[derive(Default)]
pub struct DmaUnmap {
    pub argsz: u32,
    pub flags: u32,
    pub iova: u64,
    pub size: u64,
}

/// Sends a VFIO request to the kernel by ioctl. The request's argument is a pointer or a number.
///
/// # Safety
/// `argument` must be what `request` takes. If `argument` is a pointer, the kernel reads and writes the
/// memory there.
pub unsafe fn ioctl(file: BorrowedFd<'_>, request: u32, argument: usize) -> io::Result<i32> {
    // SAFETY: the caller promises that `argument` is what `request` takes.
    match unsafe { libc::ioctl(file.as_raw_fd(), request as _, argument) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// Sends a VFIO request to the kernel by ioctl. The request's argument is the structure `argument`.
///
/// # Safety
/// `T` must be the structure that `request` takes.
pub unsafe fn ioctl_with<T>(file: BorrowedFd<'_>, request: u32, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the caller promises that `T` is the structure that `request` takes.
    unsafe { ioctl(file, request, std::ptr::from_mut(argument) as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_structures_match_the_kernel() {
        assert_eq!(GET_API_VERSION, 0x3b64);
        assert_eq!(IOMMU_UNMAP_DMA, 0x3b72);
        assert_eq!(size_of::<RegionInfo>(), 32);
        assert_eq!(size_of::<IrqInfo>(), 16);
        assert_eq!(size_of::<IrqSet>(), 20);
        assert_eq!(size_of::<DmaMap>(), 32);
        assert_eq!(size_of::<DmaUnmap>(), 24);
    }
}
