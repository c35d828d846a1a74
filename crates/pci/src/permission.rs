//! The rule for access to BARs.
//!
//! | the device | reading | writing |
//! | --- | --- | --- |
//! | held by a kernel driver | never | never |
//! | bound to vfio-pci | with `allow-bar-read` | with `allow-bar-write`, within an explicit range |
//! | without a driver, named by `allow-device` | as for vfio-pci | as for vfio-pci |
//! | without a driver, not named by `allow-device` | never | never |
//!
//! Reads need a flag because a register may change when it is read.

use crate::address::Address;
use crate::error::{Error, Result};
use crate::field::{ALLOW_BAR_READ, ALLOW_BAR_WRITE, ALLOW_DEVICE};
use crate::spec::BarSpec;
use crate::sysfs::Sysfs;
use std::collections::BTreeSet;

/// The kernel driver through which VFIO gives a device to a process.
pub const VFIO_DRIVER: &str = "vfio-pci";

/// The condition of reads.
const READ: &str = "read only if you allow it";
/// The condition of writes.
const WRITTEN: &str = "written only if you allow it";

/// The access that the user permitted. None by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    read: bool,
    write: bool,
    devices: BTreeSet<Address>,
}

impl Permission {
    /// Permits reads (`allow-bar-read`).
    #[must_use]
    pub fn read(mut self) -> Self {
        self.read = true;
        self
    }

    /// Permits writes to a range of a BAR if the user names the range (`allow-bar-write`).
    #[must_use]
    pub fn write(mut self) -> Self {
        self.write = true;
        self
    }

    /// Adds a device to the allow list (`allow-device`). A device without a driver may be accessed only if
    /// it is on this list.
    #[must_use]
    pub fn device(mut self, address: Address) -> Self {
        self.devices.insert(address);
        self
    }

    /// Returns true if the user permitted reads of BARs (`allow-bar-read`).
    pub fn may_read(&self) -> bool {
        self.read
    }

    /// Returns true if the user permitted writes (`allow-bar-write`). They still need a range that the user
    /// names.
    pub fn may_write(&self) -> bool {
        self.write
    }

    pub(crate) fn check_read(&self, name: &str) -> Result<()> {
        if self.read { Ok(()) } else { Err(not_permitted(name, READ, &format!("add {ALLOW_BAR_READ}"))) }
    }

    pub(crate) fn check_write(&self, name: &str) -> Result<()> {
        if self.write { Ok(()) } else { Err(not_permitted(name, WRITTEN, &format!("add {ALLOW_BAR_WRITE}"))) }
    }
}

fn not_permitted(name: &str, what: &'static str, remedy: &str) -> Error {
    Error::NotPermitted { name: name.into(), what, remedy: remedy.into() }
}

/// How a BAR is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMethod {
    /// The BAR is mapped through VFIO, which reserves the device for this process.
    Vfio,
    /// The BAR is mapped through the file `resourceN` in sysfs. No driver holds the device.
    Sysfs,
}

/// Checks whether a BAR may be mapped, and returns how.
///
/// # Errors
/// - [`Error::NoDevice`]; [`Error::Held`]; [`Error::NotAllowed`].
/// - [`Error::NotPermitted`] if no access is permitted, or writes are permitted without an explicit range.
pub fn check(sysfs: &Sysfs, spec: &BarSpec, permission: &Permission) -> Result<AccessMethod> {
    if !sysfs.device(spec.address).is_dir() {
        return Err(Error::NoDevice { address: spec.address });
    }
    let name = spec.to_string();
    let example = format!("pci:{}/bar{}@0+4K", spec.address, spec.bar);
    if !permission.read && !permission.write {
        let remedy = format!(
            "to read, add {ALLOW_BAR_READ}; to write, add {ALLOW_BAR_WRITE} and a range, such as {example}"
        );
        return Err(not_permitted(&name, "read or written only if you allow it", &remedy));
    }
    if permission.write && spec.range.is_none() {
        let remedy = format!("give a range, such as {example}");
        return Err(not_permitted(&name, "written only within a range that you name", &remedy));
    }
    access_method(sysfs, spec.address, permission)
}

/// Checks whether the device's driver permits access to its BARs, and returns how to map them. Called again
/// after mapping, in case a driver was bound meanwhile.
pub(crate) fn access_method(
    sysfs: &Sysfs,
    address: Address,
    permission: &Permission,
) -> Result<AccessMethod> {
    if !sysfs.device(address).is_dir() {
        return Err(Error::NoDevice { address });
    }
    match sysfs.driver(address) {
        Some(driver) if driver == VFIO_DRIVER => Ok(AccessMethod::Vfio),
        Some(driver) => {
            let note = match permission.devices.contains(&address) {
                true => format!(" ({ALLOW_DEVICE} applies only to devices without a driver)"),
                false => String::new(),
            };
            Err(Error::Held { address, driver, note })
        }
        // A link `driver` that exists but cannot be read shows that a driver is bound.
        None if sysfs.device(address).join("driver").symlink_metadata().is_ok() => {
            Err(Error::Held { address, driver: "(unknown)".into(), note: String::new() })
        }
        None if permission.devices.contains(&address) => Ok(AccessMethod::Sysfs),
        None => Err(Error::NotAllowed { address }),
    }
}
