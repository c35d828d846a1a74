//! A device opened through VFIO.

use super::group::Group;
use super::regions::{self, BarRegion};
use super::sys;
use crate::address::Address;
use crate::error::{Error, Result};
use crate::permission::VFIO_DRIVER;
use crate::sysfs::Sysfs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// An opened PCI function that is bound to vfio-pci. Clones share it.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    // Declared before `group`, because fields are dropped in order and this file must be closed first.
    file: OwnedFd,
    group: Arc<Group>,
    address: Address,
    sysfs: Sysfs,
}

/// The offset of the command register in the configuration space (PCI Local Bus Specification 3.0, 6.2.2).
const COMMAND: u64 = 4;
/// Bit of the command register: the device decodes memory accesses.
const COMMAND_MEMORY: u16 = 1 << 1;
/// Bit of the command register: the device may start DMA and send message-signalled interrupts.
const COMMAND_BUS_MASTER: u16 = 1 << 2;

impl Device {
    /// Opens the device and its IOMMU group. Reuses the group and its container if this process has them
    /// open.
    ///
    /// # Errors
    /// - [`Error::NoDevice`].
    /// - [`Error::Held`] or [`Error::NotAllowed`] if it is not bound to vfio-pci.
    /// - [`Error::NoIommu`], [`Error::NotViable`], [`Error::Busy`], [`Error::Denied`] or [`Error::NotReady`]
    ///   if the group cannot be used.
    pub fn open(sysfs: &Sysfs, address: Address) -> Result<Self> {
        if !sysfs.device(address).is_dir() {
            return Err(Error::NoDevice { address });
        }
        match sysfs.driver(address) {
            Some(driver) if driver == VFIO_DRIVER => {}
            Some(driver) => return Err(Error::Held { address, driver, note: String::new() }),
            None => return Err(Error::NotAllowed { address }),
        }
        let group = Group::of(sysfs, address)?;
        let file = group.device(address)?;
        let device = Self { inner: Arc::new(Inner { file, group, address, sysfs: sysfs.clone() }) };
        // Turn on memory decoding, without which BARs do not respond. The kernel restores the register when
        // the device is closed.
        device.command(COMMAND_MEMORY)?;
        Ok(device)
    }

    /// Returns the address of the device.
    pub fn address(&self) -> Address {
        self.inner.address
    }

    pub(crate) fn sysfs(&self) -> &Sysfs {
        &self.inner.sysfs
    }

    pub(super) fn container(&self) -> BorrowedFd<'_> {
        self.inner.group.container()
    }

    /// Returns the offset of BAR `index` in the device's file, the BAR's length, and the parts of the BAR
    /// that can be mapped.
    ///
    /// # Errors
    /// [`Error::NoBar`] if the device does not implement this BAR.
    pub fn bar(&self, index: u8) -> Result<BarRegion> {
        let address = self.address();
        let no_bar = |why: &str| Error::NoBar { address, bar: index, why: why.into() };
        if index > 5 {
            return Err(no_bar("a BAR has an index from 0 to 5"));
        }
        let region = regions::query(self.as_fd(), index.into())
            .map_err(|error| Error::os(format!("reading the region of BAR {index} of {address}"), error))?;
        if region.size_bytes == 0 { Err(no_bar("the device does not implement it")) } else { Ok(region) }
    }

    /// Enables bus mastering, which the device needs for DMA and for message-signalled interrupts.
    ///
    /// # Errors
    /// [`Error::Os`] if the configuration space cannot be written.
    pub fn enable_bus_master(&self) -> Result<()> {
        self.command(COMMAND_BUS_MASTER)
    }

    /// Sets bits in the device's PCI command register. Keeps the other bits.
    fn command(&self, bits: u16) -> Result<()> {
        let failed = |error| Error::os(format!("setting the command register of {}", self.address()), error);
        let config = regions::query(self.as_fd(), sys::CONFIG_REGION).map_err(failed)?;
        let mut bytes = [0; 2];
        let got =
            rustix::io::pread(self, &mut bytes, config.offset + COMMAND).map_err(|e| failed(e.into()))?;
        let value = u16::from_le_bytes(bytes) | bits;
        let put = rustix::io::pwrite(self, &value.to_le_bytes(), config.offset + COMMAND);
        match (got, put.map_err(|error| failed(error.into()))?) {
            (2, 2) => Ok(()),
            _ => Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Resets the device to its power-on state by a function-level reset.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no such reset.
    pub fn reset(&self) -> Result<()> {
        // SAFETY: the request takes no argument.
        unsafe { sys::ioctl(self.as_fd(), sys::DEVICE_RESET, 0) }.map_err(|_| Error::Unsupported {
            what: format!("resetting {}", self.address()),
            why: "the device has no function-level reset".into(),
        })?;
        self.command(COMMAND_MEMORY)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} under VFIO", self.inner.address)
    }
}
