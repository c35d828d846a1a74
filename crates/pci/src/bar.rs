//! A BAR, or a range of one, mapped under the rule: registers to read and write, and a region for who copies.
//!
//! ```text
//! the device's BAR    |........[ range )........|        offsets of every method count from the range's start
//! what is mapped      |....[=============]......|        whole pages; readable, writable only as permitted
//! ```

use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::permission::{self, AccessMethod, Permission};
use crate::spec::BarSpec;
use crate::sysfs::Sysfs;
use crate::topology::{BarInfo, Device};
use crate::vfio;
use inlane_core::region::{Location, Region};
use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// What keeps the memory of a BAR valid: the mapping, and the device where VFIO holds it.
struct Keeper {
    _mapping: Mapping,
    _device: Option<vfio::Device>,
}

/// A range of a BAR. Cloning shares the mapping.
#[derive(Clone)]
pub struct Bar {
    start: NonNull<u8>,
    length: usize,
    spec: BarSpec,
    name: String,
    permission: Permission,
    keeper: Arc<Keeper>,
}

// SAFETY: the memory is a device's and shared with it at any rate; every access is a single volatile instruction.
unsafe impl Send for Bar {}
// SAFETY: as above; two threads that store to the same bytes race at the device, not in this process.
unsafe impl Sync for Bar {}

impl Bar {
    /// Maps the BAR that `spec` names as far as `permission` goes: by VFIO when its device is bound to vfio-pci, else
    /// through sysfs when the device has no driver and is in the allow list.
    ///
    /// # Errors
    /// As [`permission::check`]; [`Error::NoBar`], [`Error::TooSmall`], [`Error::NotReady`] when the device does not answer
    /// there, [`Error::Unsupported`] for write-combining where it is not to be had, and what VFIO and the system say.
    pub fn open(sysfs: &Sysfs, spec: &BarSpec, permission: &Permission) -> Result<Self> {
        match permission::check(sysfs, spec, permission)? {
            AccessMethod::Vfio => {
                Self::of_device(&vfio::Device::open(sysfs, spec.address)?, spec, permission)
            }
            AccessMethod::Sysfs => Self::through_sysfs(sysfs, spec, permission),
        }
    }

    /// Maps a BAR of a device that VFIO has opened for us. Reading and writing need permission here as well.
    ///
    /// # Errors
    /// As [`Bar::open`].
    pub fn of_device(device: &vfio::Device, spec: &BarSpec, permission: &Permission) -> Result<Self> {
        if spec.address != device.address() {
            return Err(Error::NoDevice { address: spec.address });
        }
        permission::check(device.sysfs(), spec, permission)?;
        if spec.write_combining {
            return Err(Error::Unsupported {
                what: format!("write-combining for {spec}"),
                why: format!(
                    "VFIO maps BARs uncached; leave ':wc' out, or unbind the device from vfio-pci and give --allow-device {}",
                    spec.address
                ),
            });
        }
        let place = device.bar(spec.bar)?;
        let range = inside(spec, place.size_bytes)?;
        if !place.mappable(&range) {
            return Err(Error::Unsupported {
                what: format!("mapping {spec}"),
                why: format!(
                    "VFIO lets {} be mapped (the rest holds the interrupt table)",
                    place.mappable_text()
                ),
            });
        }
        Self::map(device.as_fd(), place.offset, range, spec, permission, Some(device.clone()))
    }

    fn through_sysfs(sysfs: &Sysfs, spec: &BarSpec, permission: &Permission) -> Result<Self> {
        let address = spec.address;
        let device = Device::read(sysfs, address)?;
        let info = memory_bar(&device, spec.bar)?;
        let range = inside(spec, info.size_bytes)?;
        answers(sysfs, spec)?;
        let suffix = if spec.write_combining { "_wc" } else { "" };
        let path = sysfs.device(address).join(format!("resource{}{suffix}", spec.bar));
        if spec.write_combining && !path.exists() {
            return Err(Error::Unsupported {
                what: format!("write-combining for {spec}"),
                why: "the BAR is not prefetchable, or this processor cannot combine writes; leave ':wc' out"
                    .into(),
            });
        }
        let file =
            OpenOptions::new().read(true).write(permission.may_write()).open(&path).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::PermissionDenied => Error::Denied {
                        path: path.clone(),
                        why: "run as root, or bind the device to vfio-pci".into(),
                    },
                    _ => Error::os(format!("opening {}", path.display()), error),
                }
            })?;
        // The file is as long as the BAR that the kernel would map.
        let length = file
            .metadata()
            .map_err(|error| Error::os(format!("looking at {}", path.display()), error))?
            .len();
        inside(spec, length.min(info.size_bytes))?;
        let bar = Self::map(file.as_fd(), 0, range, spec, permission, None).map_err(|error| match error {
            Error::Os { source, .. } if source.raw_os_error() == Some(libc::EINVAL) => Error::Unsupported {
                what: format!("mapping {}", path.display()),
                why: "the kernel keeps it to itself (a driver has claimed it, or iomem=strict); bind it to vfio-pci".into(),
            },
            Error::Os { source, .. } if source.raw_os_error() == Some(libc::EPERM) => Error::Unsupported {
                what: format!("mapping {}", path.display()),
                why: "the kernel is locked down (secure boot); bind the device to vfio-pci".into(),
            },
            other => other,
        })?;
        // A driver may have come between the first look and the mapping.
        permission::access_method(sysfs, address, permission)?;
        Ok(bar)
    }

    fn map(
        file: BorrowedFd<'_>,
        base: u64,
        range: Range<u64>,
        spec: &BarSpec,
        permission: &Permission,
        device: Option<vfio::Device>,
    ) -> Result<Self> {
        let name = spec.to_string();
        let (mapping, start) =
            Mapping::new(file, base, &range, permission.may_read(), permission.may_write(), &name)?;
        Ok(Self {
            start,
            length: (range.end - range.start) as usize,
            spec: spec.clone(),
            name,
            permission: permission.clone(),
            keeper: Arc::new(Keeper { _mapping: mapping, _device: device }),
        })
    }

    /// As it was asked for: `pci:0000:00:01.0/bar2@0+1048576`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the range.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never: a range has bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The range as a region, which keeps the mapping. What is not permitted is not mapped so either: a store to a range
    /// that may only be read ends the process with SIGSEGV.
    pub fn region(&self) -> Region {
        let location = Location::Bar {
            device: self.spec.address.to_string(),
            bar: self.spec.bar,
            write_combining: self.spec.write_combining,
        };
        // SAFETY: the keeper holds the mapping.
        unsafe { Region::from_raw(self.start.as_ptr() as u64, self.length, location, self.keeper.clone()) }
    }

    /// Reads a 32-bit register.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::TooSmall`] beyond the range, [`Error::Unsupported`] at an offset that is not a
    /// multiple of 4.
    pub fn read_u32(&self, offset: usize) -> Result<u32> {
        self.permission.check_read(&self.name)?;
        let register = self.register::<u32>(offset)?;
        // SAFETY: aligned, inside the mapping, which is readable.
        Ok(u32::from_le(unsafe { register.read_volatile() }))
    }

    /// Writes a 32-bit register.
    ///
    /// # Errors
    /// As [`Bar::read_u32`].
    pub fn write_u32(&self, offset: usize, value: u32) -> Result<()> {
        self.permission.check_write(&self.name)?;
        let register = self.register::<u32>(offset)?;
        // SAFETY: aligned, inside the mapping, which is writable.
        unsafe { register.write_volatile(value.to_le()) };
        Ok(())
    }

    /// Writes a 64-bit register.
    ///
    /// # Errors
    /// As [`Bar::read_u32`], for 8 bytes.
    pub fn write_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.permission.check_write(&self.name)?;
        let register = self.register::<u64>(offset)?;
        // SAFETY: aligned, inside the mapping, which is writable.
        unsafe { register.write_volatile(value.to_le()) };
        Ok(())
    }

    /// Where a register is: aligned, inside the range.
    fn register<T>(&self, offset: usize) -> Result<*mut T> {
        let bytes = size_of::<T>();
        if !(self.start.as_ptr() as usize).wrapping_add(offset).is_multiple_of(bytes) {
            return Err(Error::Unsupported {
                what: format!("a register of {bytes} bytes at offset {offset:#x} of {}", self.name),
                why: format!("it is not aligned; give a multiple of {bytes}"),
            });
        }
        match offset.checked_add(bytes) {
            // SAFETY: inside the range, so inside the mapping.
            Some(end) if end <= self.length => Ok(unsafe { self.start.as_ptr().add(offset) }.cast()),
            _ => Err(Error::TooSmall {
                name: self.name.clone(),
                size: self.length as u64,
                asked: format!("{bytes} bytes at offset {offset} were asked for"),
            }),
        }
    }
}

impl std::fmt::Debug for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of {}", self.length, self.name)
    }
}

fn memory_bar(device: &Device, index: u8) -> Result<&BarInfo> {
    let address = device.address;
    let bars: Vec<String> =
        device.bars.iter().filter(|bar| bar.memory).map(|bar| format!("bar{}", bar.index)).collect();
    let why = match device.bar(index) {
        Some(bar) if bar.memory && bar.start != 0 => return Ok(bar),
        Some(bar) if bar.memory => "the firmware gave it no address".into(),
        Some(_) => "it is I/O ports".into(),
        None if bars.is_empty() => "it has none".into(),
        None => format!("it has {}", bars.join(", ")),
    };
    Err(Error::NoBar { address, bar: index, why })
}

/// The range asked for, if the BAR has it.
fn inside(spec: &BarSpec, size: u64) -> Result<Range<u64>> {
    let range = spec.range.clone().unwrap_or(0..size);
    if range.start < range.end && range.end <= size {
        return Ok(range);
    }
    Err(Error::TooSmall {
        name: format!("pci:{}/bar{}", spec.address, spec.bar),
        size,
        asked: format!(
            "{} bytes at offset {} were asked for",
            range.end.saturating_sub(range.start),
            range.start
        ),
    })
}

/// A device without a driver may be asleep, or not decode its addresses: reads would give ones, writes be lost.
fn answers(sysfs: &Sysfs, spec: &BarSpec) -> Result<()> {
    let address = spec.address;
    let not_ready = |why: String| Err(Error::NotReady { address, why });
    let enable = format!("sudo sh -c 'echo 1 >/sys/bus/pci/devices/{address}/enable'");
    if let Some(state @ ("D3hot" | "D3cold")) = sysfs.text(address, "power_state").as_deref() {
        return not_ready(format!("it sleeps ({state}): wake it with {enable}"));
    }
    match sysfs.config::<6>(address) {
        Some(config) if config[..2] == [0xff, 0xff] => {
            not_ready("it no longer answers; it may be unplugged".into())
        }
        Some(config) if config[4] & 2 == 0 => {
            not_ready(format!("it does not decode memory: switch it on with {enable}"))
        }
        Some(_) => Ok(()),
        None => not_ready("its configuration space cannot be read".into()),
    }
}

#[cfg(test)]
#[path = "bar_tests.rs"]
mod tests;
