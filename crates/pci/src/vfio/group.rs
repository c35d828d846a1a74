//! A VFIO group and its container. A group is a set of devices that the IOMMU cannot tell apart.

use super::sys;
use crate::address::Address;
use crate::error::{Error, Result};
use crate::permission::VFIO_DRIVER;
use crate::sysfs::Sysfs;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An open VFIO group, attached to its own container.
pub(super) struct Group {
    // Declared before `container`, because fields are dropped in order and this file must be closed first.
    file: File,
    container: File,
}

/// The VFIO groups that this process has open. The kernel refuses to open a group twice, so all devices of a
/// group share one [`Group`].
static OPEN: Mutex<BTreeMap<PathBuf, Weak<Group>>> = Mutex::new(BTreeMap::new());

impl Group {
    /// Returns the group of the device at `address`. Opens the group if this process does not have it open.
    pub fn of(sysfs: &Sysfs, address: Address) -> Result<Arc<Self>> {
        let number = sysfs.link(address, "iommu_group").and_then(|number| number.parse().ok());
        let number: u32 = number.ok_or(Error::NoIommu { address })?;
        let path = sysfs.dev(&format!("vfio/{number}"));
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, group| group.strong_count() > 0);
        if let Some(group) = open.get(&path).and_then(Weak::upgrade) {
            return Ok(group);
        }
        let group = Arc::new(Self::open(sysfs, address, number, &path)?);
        open.insert(path, Arc::downgrade(&group));
        Ok(group)
    }

    fn open(sysfs: &Sysfs, address: Address, number: u32, path: &Path) -> Result<Self> {
        let container = open(&sysfs.dev("vfio/vfio"), address, number)?;
        // SAFETY: the request takes no argument.
        let version = unsafe { sys::ioctl(container.as_fd(), sys::GET_API_VERSION, 0) };
        // SAFETY: the request takes a number.
        let type1 = unsafe { sys::ioctl(container.as_fd(), sys::CHECK_EXTENSION, sys::TYPE1V2_IOMMU) };
        if !matches!((version, type1), (Ok(sys::API_VERSION), Ok(1..))) {
            let why = "VFIO has no type 1 IOMMU; run sudo modprobe vfio_iommu_type1".into();
            return Err(Error::NotReady { address, why });
        }
        let file = open(path, address, number)?;
        let mut status = sys::GroupStatus { argsz: size_of::<sys::GroupStatus>() as u32, flags: 0 };
        // SAFETY: this is the structure that the request takes.
        unsafe { sys::ioctl_with(file.as_fd(), sys::GROUP_GET_STATUS, &mut status) }
            .map_err(|error| Error::os(format!("reading the state of IOMMU group {number}"), error))?;
        if status.flags & sys::GROUP_FLAGS_VIABLE == 0 {
            return Err(Error::NotViable { address, group: number, holders: holders(sysfs, address) });
        }
        let mut descriptor = container.as_raw_fd();
        // SAFETY: the request takes a pointer to the container's descriptor.
        unsafe { sys::ioctl_with(file.as_fd(), sys::GROUP_SET_CONTAINER, &mut descriptor) }
            .map_err(|error| Error::os(format!("attaching IOMMU group {number} to a container"), error))?;
        // SAFETY: the request takes a number.
        unsafe { sys::ioctl(container.as_fd(), sys::SET_IOMMU, sys::TYPE1V2_IOMMU) }.map_err(|error| {
            match error.raw_os_error() {
                // The kernel returns EPERM if the IOMMU does not remap interrupts.
                Some(libc::EPERM) => Error::NotReady {
                    address,
                    why: "its IOMMU does not remap interrupts, so VFIO cannot isolate it; enable interrupt remapping \
                          in the firmware"
                        .into(),
                },
                _ => Error::os(format!("setting the IOMMU type of group {number}"), error),
            }
        })?;
        Ok(Self { file, container })
    }

    /// Opens one of the group's devices.
    pub fn device(&self, address: Address) -> Result<OwnedFd> {
        let name = std::ffi::CString::new(address.to_string()).expect("an address has no NUL byte");
        // SAFETY: the request takes a NUL-terminated name, which outlives the call.
        let descriptor =
            unsafe { sys::ioctl(self.file.as_fd(), sys::GROUP_GET_DEVICE_FD, name.as_ptr() as usize) };
        let descriptor =
            descriptor.map_err(|error| Error::os(format!("opening {address} in its IOMMU group"), error))?;
        // SAFETY: the kernel just created this descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    pub fn container(&self) -> BorrowedFd<'_> {
        self.container.as_fd()
    }
}

fn open(path: &Path, address: Address, group: u32) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NotReady {
            address,
            why: format!("there is no {}; run sudo modprobe -a vfio-pci vfio_iommu_type1", path.display()),
        },
        io::ErrorKind::PermissionDenied => Error::Denied {
            path: path.into(),
            why: format!("run as root, or run sudo chown $USER {} once", path.display()),
        },
        io::ErrorKind::ResourceBusy => Error::Busy { address, group },
        _ => Error::os(format!("opening {}", path.display()), error),
    })
}

/// Returns a text for an error message. It lists the devices in the IOMMU group of `address` that kernel
/// drivers hold.
fn holders(sysfs: &Sysfs, address: Address) -> String {
    let group = sysfs.link(address, "iommu_group");
    let held: Vec<String> = sysfs
        .addresses()
        .into_iter()
        .filter(|&other| sysfs.link(other, "iommu_group") == group)
        .filter_map(|other| Some((other, sysfs.driver(other).filter(|driver| driver != VFIO_DRIVER)?)))
        .map(|(other, driver)| format!("{other} is in use by {driver}"))
        .collect();
    if held.is_empty() { "the kernel gives no reason".into() } else { held.join(", ") }
}
