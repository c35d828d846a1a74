//! A device that VFIO has given us.

use super::dma::DmaMapping;
use super::group::Group;
use super::interrupts::{Interrupts, Kind};
use super::regions::{self, BarRegion};
use super::sys;
use crate::address::Address;
use crate::error::{Error, Result};
use crate::permission::VFIO_DRIVER;
use crate::sysfs::Sysfs;
use inlane_core::region::Region;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A PCI function under vfio-pci, opened. Cloning shares it.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    // The device goes before its group.
    file: OwnedFd,
    group: Arc<Group>,
    address: Address,
    sysfs: Sysfs,
}

/// The command register's place in the configuration space, and its bits (PCI Local Bus Specification 3.0, 6.2.2).
const COMMAND: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;

impl Device {
    /// Opens the device, with its group and a container of its own, or those that this process has open.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; [`Error::Held`] and [`Error::NotAllowed`] when it is not bound to vfio-pci; [`Error::NoIommu`],
    /// [`Error::NotViable`], [`Error::Busy`], [`Error::Denied`], [`Error::NotReady`] for what the group lacks.
    pub fn open(sysfs: &Sysfs, address: Address) -> Result<Self> {
        if !sysfs.device(address).is_dir() {
            return Err(Error::NoDevice { address });
        }
        match sysfs.driver(address) {
            Some(driver) if driver == VFIO_DRIVER => {}
            Some(driver) => return Err(Error::Held { address, driver }),
            None => return Err(Error::NotAllowed { address }),
        }
        let group = Group::of(sysfs, address)?;
        let file = group.device(address)?;
        let device = Self { inner: Arc::new(Inner { file, group, address, sysfs: sysfs.clone() }) };
        // BARs answer once memory is decoded; the kernel restores what was when the device is closed.
        device.command(COMMAND_MEMORY)?;
        Ok(device)
    }

    /// Where it is.
    pub fn address(&self) -> Address {
        self.inner.address
    }

    pub(crate) fn sysfs(&self) -> &Sysfs {
        &self.inner.sysfs
    }

    pub(super) fn container(&self) -> BorrowedFd<'_> {
        self.inner.group.container()
    }

    /// Where BAR `index` lies in the descriptor, how long it is, what of it may be mapped.
    ///
    /// # Errors
    /// [`Error::NoBar`] when there is none of it.
    pub fn bar(&self, index: u8) -> Result<BarRegion> {
        let address = self.address();
        let no_bar = |why: &str| Error::NoBar { address, bar: index, why: why.into() };
        if index > 5 {
            return Err(no_bar("BARs are 0 to 5"));
        }
        let place = regions::ask(self.as_fd(), index.into())
            .map_err(|error| Error::os(format!("asking for BAR {index} of {address}"), error))?;
        if place.size_bytes == 0 { Err(no_bar("the device has none there")) } else { Ok(place) }
    }

    /// Lets the device read and write memory and raise message-signalled interrupts, which are writes too.
    ///
    /// # Errors
    /// [`Error::Os`] when its configuration space cannot be written.
    pub fn enable_bus_master(&self) -> Result<()> {
        self.command(COMMAND_BUS_MASTER)
    }

    /// Sets bits of the command register.
    fn command(&self, bits: u16) -> Result<()> {
        let failed = |error| Error::os(format!("setting the command register of {}", self.address()), error);
        let config = regions::ask(self.as_fd(), sys::CONFIG_REGION).map_err(failed)?;
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

    /// Puts the device into the state it has after power-on, by a function-level reset.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when it knows none.
    pub fn reset(&self) -> Result<()> {
        // SAFETY: takes no argument.
        unsafe { sys::ioctl(self.as_fd(), sys::DEVICE_RESET, 0) }.map_err(|_| Error::Unsupported {
            what: format!("resetting {}", self.address()),
            why: "it has no function-level reset".into(),
        })?;
        self.command(COMMAND_MEMORY)
    }

    /// How many interrupts of this kind it has.
    ///
    /// # Errors
    /// [`Error::Os`] when the kernel does not say.
    pub fn interrupt_vectors(&self, kind: Kind) -> Result<u32> {
        let argsz = size_of::<sys::IrqInfo>() as u32;
        let mut info = sys::IrqInfo { argsz, index: kind.index(), ..Default::default() };
        // SAFETY: the structure of this request.
        unsafe { sys::ioctl_with(self.as_fd(), sys::DEVICE_GET_IRQ_INFO, &mut info) }.map_err(|error| {
            Error::os(format!("asking for the {kind} vectors of {}", self.address()), error)
        })?;
        Ok(info.count)
    }

    /// Delivers the first `vectors` interrupts of this kind to eventfds, until the value returned is dropped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the device has fewer, [`Error::Busy`]-like [`Error::Os`] when some are on already.
    pub fn interrupts(&self, kind: Kind, vectors: u32) -> Result<Interrupts> {
        Interrupts::new(self, kind, vectors)
    }

    /// Lets the device reach `memory` at `iova`, until the value returned is dropped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for memory that is not the CPU's or not whole pages, [`Error::NotReady`] when no more may be
    /// locked, [`Error::Os`] when `iova` is taken or the IOMMU does not reach it.
    pub fn map_dma(&self, memory: &Region, iova: u64) -> Result<DmaMapping> {
        DmaMapping::new(self, memory, iova)
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
