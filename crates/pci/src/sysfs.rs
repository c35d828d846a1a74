//! Reading `/sys/bus/pci`: small text attributes and links, none of which is trusted.
//!
//! A device may vanish between two reads, and virtual machines present what they like: everything is optional, and
//! nothing is read beyond [`LONGEST`] bytes.

use crate::address::Address;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// What is read of an attribute at most; the kernel's are at most a page, but for `config` and resources.
pub const LONGEST: u64 = 16 * 1024;

/// A sysfs, and the `/dev` that goes with it: the system's, or one that a test made.
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
    /// The system's own.
    pub fn system() -> Self {
        Self { root: "/sys".into(), dev: "/dev".into() }
    }

    /// One below `root`, which holds `bus/pci/devices` and, for VFIO, `dev/vfio`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { dev: root.join("dev"), root }
    }

    /// The file `name` below `/dev`.
    pub fn dev(&self, name: &str) -> PathBuf {
        self.dev.join(name)
    }

    /// The directory of all devices.
    pub fn devices(&self) -> PathBuf {
        self.root.join("bus/pci/devices")
    }

    /// The directory of the memory nodes.
    pub(crate) fn system_nodes(&self) -> PathBuf {
        self.root.join("devices/system/node")
    }

    /// The directory of one device.
    pub fn device(&self, address: Address) -> PathBuf {
        self.devices().join(address.to_string())
    }

    /// All functions there are, in the bus's order; none where there is no PCI at all.
    pub fn addresses(&self) -> Vec<Address> {
        let mut addresses: Vec<Address> =
            names(&self.devices()).iter().filter_map(|n| n.parse().ok()).collect();
        addresses.sort_unstable();
        addresses
    }

    /// An attribute's text without the space around it; `None` when it is not there, not readable, or no text.
    pub fn text(&self, address: Address, attribute: &str) -> Option<String> {
        read_text(&self.device(address).join(attribute))
    }

    /// An attribute that is a number, decimal or `0x` hexadecimal.
    pub fn number(&self, address: Address, attribute: &str) -> Option<u64> {
        let text = self.text(address, attribute)?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The last part of what a link of the device points to: the driver's name, the group's number.
    pub fn link(&self, address: Address, name: &str) -> Option<String> {
        let target = fs::read_link(self.device(address).join(name)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The kernel driver that holds the device.
    pub fn driver(&self, address: Address) -> Option<String> {
        self.link(address, "driver")
    }

    /// The names in a directory of the device (`net`, `nvme`), sorted.
    pub fn names(&self, address: Address, directory: &str) -> Vec<String> {
        names(&self.device(address).join(directory))
    }

    /// The first `N` bytes of the configuration space; `None` when fewer can be had.
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
