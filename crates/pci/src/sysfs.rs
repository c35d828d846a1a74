//! Reads attributes and links in `/sys/bus/pci`. Does not trust them, because a device may vanish and a
//! virtual machine may present any contents. So every value is optional, and reads take at most [`LONGEST`]
//! bytes of an attribute.

use crate::address::Address;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most bytes that are read of an attribute. The kernel's text attributes have at most one page.
pub const LONGEST: u64 = 16 * 1024;

/// A sysfs and its `/dev`: the system's, or one that a test made.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
    dev: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::system()
    }
}

impl Sysfs {
    /// Returns the system's sysfs.
    pub fn system() -> Self {
        Self { root: "/sys".into(), dev: "/dev".into() }
    }

    /// Creates a `Sysfs` that reads `root` in place of `/sys`, for tests. `root` contains `bus/pci/devices`
    /// and, for VFIO, `dev/vfio`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { dev: root.join("dev"), root }
    }

    /// Returns the path of `name` below `/dev`.
    pub fn dev(&self, name: &str) -> PathBuf {
        self.dev.join(name)
    }

    /// Returns the directory of all devices.
    pub fn devices(&self) -> PathBuf {
        self.root.join("bus/pci/devices")
    }

    /// Returns the directory of the NUMA nodes.
    pub(crate) fn system_nodes(&self) -> PathBuf {
        self.root.join("devices/system/node")
    }

    /// Returns the directory of the device at `address`.
    pub fn device(&self, address: Address) -> PathBuf {
        self.devices().join(address.to_string())
    }

    /// Returns the addresses of all functions in bus order. Empty on a machine without PCI.
    pub fn addresses(&self) -> Vec<Address> {
        let mut addresses: Vec<Address> =
            names(&self.devices()).iter().filter_map(|n| n.parse().ok()).collect();
        addresses.sort_unstable();
        addresses
    }

    /// Reads an attribute as trimmed text. Returns `None` if it is missing, not readable or not UTF-8.
    pub fn text(&self, address: Address, attribute: &str) -> Option<String> {
        read_text(&self.device(address).join(attribute))
    }

    /// Reads an attribute as a decimal or `0x` hexadecimal number.
    pub fn number(&self, address: Address, attribute: &str) -> Option<u64> {
        let text = self.text(address, attribute)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// Returns the last part of the target of the symbolic link `name` in a device's directory. This is, for
    /// example, the driver's name.
    pub fn link(&self, address: Address, name: &str) -> Option<String> {
        let target = fs::read_link(self.device(address).join(name)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Returns the name of the kernel driver that is bound to the device.
    pub fn driver(&self, address: Address) -> Option<String> {
        self.link(address, "driver")
    }

    /// Returns the names in a subdirectory of the device's sysfs directory, sorted. Example: the network
    /// interfaces in `net`.
    pub fn names(&self, address: Address, directory: &str) -> Vec<String> {
        names(&self.device(address).join(directory))
    }

    /// Reads the first `N` bytes of the configuration space. Returns `None` if fewer are readable.
    pub fn config<const N: usize>(&self, address: Address) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        File::open(self.device(address).join("config")).ok()?.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }
}

pub(crate) fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8(bytes).ok()?.trim().to_owned())
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}
