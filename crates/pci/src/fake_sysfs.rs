//! A sysfs of ordinary files for tests. BARs are files too.

use crate::address::Address;
use crate::sysfs::Sysfs;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

pub struct FakeSysfs {
    directory: tempfile::TempDir,
}

impl FakeSysfs {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for path in
            ["bus/pci/devices", "bus/pci/drivers", "devices/pci0000:00", "kernel/iommu_groups", "dev/vfio"]
        {
            fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        Self { directory }
    }

    pub fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.directory.path())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Adds a device with these attributes. `below` lists the bridges above the device, from the root down.
    pub fn device(&self, address: &str, below: &[&str], attributes: &[(&str, &str)]) -> Address {
        let home = below
            .iter()
            .fold(self.path("devices/pci0000:00"), |path, bridge| path.join(bridge))
            .join(address);
        fs::create_dir_all(&home).unwrap();
        symlink(&home, self.path("bus/pci/devices").join(address)).unwrap();
        for (name, text) in attributes {
            fs::write(home.join(name), text).unwrap();
        }
        address.parse().unwrap()
    }

    pub fn link(&self, address: Address, name: &str, target: &str) {
        let target = self.path(target);
        fs::create_dir_all(&target).unwrap();
        symlink(target, self.sysfs().device(address).join(name)).unwrap();
    }

    /// Adds a device without a driver. The device is awake and has 1 MiB of prefetchable memory in BAR 2.
    pub fn memory_device(&self, address: &str) -> Address {
        let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        let resource = format!(
            "{none}{none}0x00000000fe000000 0x00000000fe0fffff 0x000000000014220c\n{none}{none}{none}"
        );
        let address = self.device(
            address,
            &[],
            &[("vendor", "0x1af4\n"), ("class", "0x050000"), ("resource", &resource)],
        );
        let home = self.sysfs().device(address);
        fs::write(home.join("config"), [0xf4, 0x1a, 0x10, 0x11, 0x02, 0x00, 0, 0]).unwrap();
        for name in ["resource2", "resource2_wc"] {
            fs::File::create(home.join(name)).unwrap().set_len(1 << 20).unwrap();
        }
        address
    }
}
