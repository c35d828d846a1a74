//! A device's BAR, or a range of it, mapped into this process. Its registers can be read and written, and movers can copy
//! data into and out of it. Offsets count from the start of the range. Whole pages are mapped:
//!
//! ```text
//! the device's BAR    |........[ range )........|
//! mapped pages        |....[=============]......|
//! ```

use crate::error::{Error, Result};
use crate::field::ALLOW_DEVICE;
use crate::permission::{self, AccessMethod, Permission};
use crate::spec::BarSpec;
use crate::sysfs::Sysfs;
use crate::topology::{BarInfo, Device};
use crate::vfio;
use inlane_core::mapping::Mapping;
use inlane_core::region::{Location, Region};
use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// Keeps the memory of a BAR valid: the mapping, and the VFIO device if there is one.
struct Keeper {
    _mapping: Mapping,
    _device: Option<vfio::Device>,
}

/// A mapped range of a BAR. Clones share the mapping.
#[derive(Clone)]
pub struct Bar {
    start: NonNull<u8>,
    length: usize,
    spec: BarSpec,
    name: String,
    permission: Permission,
    keeper: Arc<Keeper>,
}

// SAFETY: the memory is shared with the device anyway, and every access is a single volatile instruction.
unsafe impl Send for Bar {}
// SAFETY: every access is a single volatile instruction. If two threads store to one register, they race in
// the device, not in this process.
unsafe impl Sync for Bar {}

impl Bar {
    /// Maps the BAR that `spec` names. `permission` determines whether the mapping is readable and writable.
    /// Maps through VFIO if the device is bound to vfio-pci, else through sysfs.
    ///
    /// # Errors
    /// - Errors of [`permission::check`], of VFIO and of the system.
    /// - [`Error::NoBar`]; [`Error::TooSmall`].
    /// - [`Error::NotReady`] if the device does not respond.
    /// - [`Error::Unsupported`] if write-combining is not available.
    pub fn open(sysfs: &Sysfs, spec: &BarSpec, permission: &Permission) -> Result<Self> {
        match permission::check(sysfs, spec, permission)? {
            AccessMethod::Vfio => {
                Self::of_device(&vfio::Device::open(sysfs, spec.address)?, spec, permission)
            }
            AccessMethod::Sysfs => Self::through_sysfs(sysfs, spec, permission),
        }
    }

    /// Maps a BAR of an opened VFIO device, with the permissions that [`Bar::open`] needs.
    ///
    /// # Errors
    /// As for [`Bar::open`].
    pub fn of_device(device: &vfio::Device, spec: &BarSpec, permission: &Permission) -> Result<Self> {
        if spec.address != device.address() {
            return Err(Error::NoDevice { address: spec.address });
        }
        permission::check(device.sysfs(), spec, permission)?;
        if spec.write_combining {
            return Err(Error::Unsupported {
                what: format!("write-combining for {spec}"),
                why: format!(
                    "VFIO maps BARs uncached; omit ':wc', or unbind the device from vfio-pci and give {}",
                    ALLOW_DEVICE.with(spec.address)
                ),
            });
        }
        let place = device.bar(spec.bar)?;
        let range = inside(spec, place.size_bytes)?;
        if !place.mappable(&range) {
            return Err(Error::Unsupported {
                what: format!("mapping {spec}"),
                why: format!(
                    "VFIO allows mapping {} (the rest holds the interrupt table)",
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
        check_responds(sysfs, spec)?;
        let suffix = if spec.write_combining { "_wc" } else { "" };
        let path = sysfs.device(address).join(format!("resource{}{suffix}", spec.bar));
        if spec.write_combining && !path.exists() {
            return Err(Error::Unsupported {
                what: format!("write-combining for {spec}"),
                why: "the BAR is not prefetchable, or this CPU cannot combine writes; omit ':wc'".into(),
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
        // Check the range against the file's length, because the kernel maps no more than that.
        let length = file
            .metadata()
            .map_err(|error| Error::os(format!("reading the length of {}", path.display()), error))?
            .len();
        inside(spec, length.min(info.size_bytes))?;
        let bar = Self::map(file.as_fd(), 0, range, spec, permission, None).map_err(|error| match error {
            Error::Os { source, .. } if source.raw_os_error() == Some(libc::EINVAL) => Error::Unsupported {
                what: format!("mapping {}", path.display()),
                why: "the kernel reserves it (a driver claimed it, or iomem=strict); bind the device to vfio-pci".into(),
            },
            Error::Os { source, .. } if source.raw_os_error() == Some(libc::EPERM) => Error::Unsupported {
                what: format!("mapping {}", path.display()),
                why: "the kernel is locked down (secure boot); bind the device to vfio-pci".into(),
            },
            other => other,
        })?;
        // Check the device's driver again, because a driver may have been bound since the first check.
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
        let first = range.start & !(PAGE - 1);
        let (read, write) = (permission.may_read(), permission.may_write());
        let mapping = Mapping::shared(file, base + first, (range.end - first) as usize, read, write)
            .map_err(|error| Error::os(format!("mapping {name}"), error))?;
        let start = mapping.address() + (range.start - first) as usize;
        Ok(Self {
            start: NonNull::new(start as *mut u8).expect("a mapping is never at address 0"),
            length: (range.end - range.start) as usize,
            spec: spec.clone(),
            name,
            permission: permission.clone(),
            keeper: Arc::new(Keeper { _mapping: mapping, _device: device }),
        })
    }

    /// Returns the BAR as the user named it: `pci:0000:00:01.0/bar2@0+1M`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the length of the range in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns false: a range is never empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the mapped range as a region. The region keeps the mapping alive. Without write permission, a
    /// store ends the process with SIGSEGV.
    pub fn region(&self) -> Region {
        let location = Location::Bar {
            device: self.spec.address.to_string(),
            bar: self.spec.bar,
            write_combining: self.spec.write_combining,
        };
        // SAFETY: the region holds the keeper. The keeper keeps these bytes mapped.
        unsafe { Region::from_raw(self.start.as_ptr() as u64, self.length, location, self.keeper.clone()) }
    }

    /// Reads the 32-bit register at `offset`.
    ///
    /// # Errors
    /// - [`Error::NotPermitted`] without read permission.
    /// - [`Error::TooSmall`] beyond the range.
    /// - [`Error::Unsupported`] if `offset` is not a multiple of 4.
    pub fn read_u32(&self, offset: usize) -> Result<u32> {
        self.permission.check_read(&self.name)?;
        let register = self.register::<u32>(offset)?;
        // SAFETY: the register is aligned and inside the mapping, which is readable.
        Ok(u32::from_le(unsafe { register.read_volatile() }))
    }

    /// Writes the 32-bit register at `offset`.
    ///
    /// # Errors
    /// As for [`Bar::read_u32`], but [`Error::NotPermitted`] without write permission.
    pub fn write_u32(&self, offset: usize, value: u32) -> Result<()> {
        self.permission.check_write(&self.name)?;
        let register = self.register::<u32>(offset)?;
        // SAFETY: the register is aligned and inside the mapping, which is writable.
        unsafe { register.write_volatile(value.to_le()) };
        Ok(())
    }

    /// Writes the 64-bit register at `offset`.
    ///
    /// # Errors
    /// Like [`Bar::write_u32`], but `offset` must be a multiple of 8.
    pub fn write_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.permission.check_write(&self.name)?;
        let register = self.register::<u64>(offset)?;
        // SAFETY: the register is aligned and inside the mapping, which is writable.
        unsafe { register.write_volatile(value.to_le()) };
        Ok(())
    }

    /// Returns the address of the register at `offset` after checking alignment and bounds.
    fn register<T>(&self, offset: usize) -> Result<*mut T> {
        let bytes = size_of::<T>();
        if !(self.start.as_ptr() as usize).wrapping_add(offset).is_multiple_of(bytes) {
            return Err(Error::Unsupported {
                what: format!("a register of {bytes} bytes at offset {offset:#x} of {}", self.name),
                why: format!("it is not aligned; give a multiple of {bytes}"),
            });
        }
        match offset.checked_add(bytes) {
            // SAFETY: the offset is inside the mapped range, as checked above.
            Some(end) if end <= self.length => Ok(unsafe { self.start.as_ptr().add(offset) }.cast()),
            _ => Err(Error::TooSmall {
                name: self.name.clone(),
                size: self.length as u64,
                asked: format!("{bytes} bytes at offset {offset} were requested"),
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
        Some(bar) if bar.memory => "the firmware assigned no address".into(),
        Some(_) => "it is an I/O port BAR".into(),
        None if bars.is_empty() => {
            format!("the device has none; /sys/bus/pci/devices/{address}/resource lists its BARs")
        }
        None => format!("the device has {}", bars.join(", ")),
    };
    Err(Error::NoBar { address, bar: index, why })
}

/// Returns the requested range if a BAR of `size` bytes contains it.
fn inside(spec: &BarSpec, size: u64) -> Result<Range<u64>> {
    let range = spec.range.clone().unwrap_or(0..size);
    if range.start < range.end && range.end <= size {
        return Ok(range);
    }
    Err(Error::TooSmall {
        name: format!("pci:{}/bar{}", spec.address, spec.bar),
        size,
        asked: format!(
            "{} bytes at offset {} were requested",
            range.end.saturating_sub(range.start),
            range.start
        ),
    })
}

/// Checks that a device without a driver responds. If a device sleeps or does not decode memory, reads from
/// it return all ones.
fn check_responds(sysfs: &Sysfs, spec: &BarSpec) -> Result<()> {
    let address = spec.address;
    let not_ready = |why: String| Err(Error::NotReady { address, why });
    let enable = format!("sudo sh -c 'echo 1 >/sys/bus/pci/devices/{address}/enable'");
    if let Some(state @ ("D3hot" | "D3cold")) = sysfs.text(address, "power_state").as_deref() {
        return not_ready(format!("it is in power state {state}; wake it with {enable}"));
    }
    match sysfs.config::<6>(address) {
        Some(config) if config[..2] == [0xff, 0xff] => {
            not_ready("it does not respond; it may be unplugged".into())
        }
        Some(config) if config[4] & 2 == 0 => {
            not_ready(format!("memory decoding is off; enable it with {enable}"))
        }
        Some(_) => Ok(()),
        None => not_ready("its configuration space is not readable".into()),
    }
}

#[cfg(test)]
#[path = "bar_tests.rs"]
mod tests;
