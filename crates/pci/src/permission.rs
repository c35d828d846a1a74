//! Who may touch a BAR: the rule, in one place.
//!
//! | the device | reading | writing |
//! | --- | --- | --- |
//! | held by a kernel driver | never | never |
//! | bound to vfio-pci | with the flag | with the flag, in an explicit range |
//! | without a driver, in the allow list | with the flag | with the flag, in an explicit range |
//! | without a driver otherwise | never | never |
//!
//! Reads need a flag because reading a register may change it.

use crate::address::Address;
use crate::error::{Error, Result};
use crate::spec::BarSpec;
use crate::sysfs::Sysfs;
use std::collections::BTreeSet;

/// The driver that makes a device ours.
pub const VFIO_DRIVER: &str = "vfio-pci";

/// What the user has permitted. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    read: bool,
    write: bool,
    devices: BTreeSet<Address>,
}

impl Permission {
    /// Reads as well (`--allow-bar-read`).
    #[must_use]
    pub fn read(mut self) -> Self {
        self.read = true;
        self
    }

    /// Writes as well (`--allow-bar-write`), in ranges that are explicit.
    #[must_use]
    pub fn write(mut self) -> Self {
        self.write = true;
        self
    }

    /// This device as well, though it is not bound to vfio-pci (`--allow-device`).
    #[must_use]
    pub fn device(mut self, address: Address) -> Self {
        self.devices.insert(address);
        self
    }

    /// Reads are permitted.
    pub fn may_read(&self) -> bool {
        self.read
    }

    /// Writes are permitted where the range is explicit.
    pub fn may_write(&self) -> bool {
        self.write
    }

    pub(crate) fn check_read(&self, name: &str) -> Result<()> {
        if self.read { Ok(()) } else { Err(not_permitted(name, "read", "give --allow-bar-read")) }
    }

    pub(crate) fn check_write(&self, name: &str) -> Result<()> {
        if self.write { Ok(()) } else { Err(not_permitted(name, "written", "give --allow-bar-write")) }
    }
}

fn not_permitted(name: &str, what: &'static str, remedy: &str) -> Error {
    Error::NotPermitted { name: name.into(), what, remedy: remedy.into() }
}

/// By which door a BAR is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMethod {
    /// VFIO, which holds the device for us.
    Vfio,
    /// `resourceN` in sysfs; nothing holds the device.
    Sysfs,
}

/// Decides whether the BAR may be mapped, and how.
///
/// # Errors
/// [`Error::NoDevice`], [`Error::Held`], [`Error::NotAllowed`], and [`Error::NotPermitted`] for neither reading nor
/// writing or for writing without a range.
pub fn check(sysfs: &Sysfs, spec: &BarSpec, permission: &Permission) -> Result<AccessMethod> {
    let name = spec.to_string();
    if !permission.read && !permission.write {
        return Err(not_permitted(
            &name,
            "read or written",
            "give --allow-bar-read, --allow-bar-write or both",
        ));
    }
    if permission.write && spec.range.is_none() {
        let remedy = format!("name the range, as in pci:{}/bar{}@0+4K", spec.address, spec.bar);
        return Err(not_permitted(&name, "written", &remedy));
    }
    access_method(sysfs, spec.address, permission)
}

/// The part of the rule that depends on who holds the device; asked again once it is mapped.
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
        Some(driver) => Err(Error::Held { address, driver }),
        // A link that cannot be read is still a driver's.
        None if sysfs.device(address).join("driver").symlink_metadata().is_ok() => {
            Err(Error::Held { address, driver: "that cannot be named".into() })
        }
        None if permission.devices.contains(&address) => Ok(AccessMethod::Sysfs),
        None => Err(Error::NotAllowed { address }),
    }
}
