//! BARs of PCI devices as endpoints.

use crate::device::BarAccess;
use inlane_core::{Error, Region, Result};

/// Maps a BAR that may be written: its device is bound to vfio-pci, or to nothing and named in the allow list.
///
/// # Errors
/// [`Error::Device`] that says what stands in the way.
pub fn open(device: &str, bar: u8, _write_combining: bool, _access: &BarAccess) -> Result<Region> {
    Err(Error::device_environment(format!("pci:{device}/bar{bar}"), "BARs are not supported yet"))
}
