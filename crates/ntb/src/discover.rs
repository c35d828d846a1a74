//! Finds the bridges of this machine in sysfs.

use inlane_pci::{Address, Device, Sysfs};

/// The kernel's drivers for NTB hardware. Those of `drivers/ntb/hw` drive the bridge itself. `switchtec`
/// manages the PCIe switch that contains the bridge.
const DRIVERS: [&str; 5] = ["ntb_hw_intel", "ntb_hw_amd", "ntb_hw_idt", "ntb_hw_epf", "switchtec"];
/// Class code of "other bridge". NTBs have this class. Other chipset devices have it too, so the class alone
/// does not identify an NTB.
const OTHER_BRIDGE: u32 = 0x06_8000;
/// The PCI vendor id and device id of QEMU's ivshmem.
pub(crate) const IVSHMEM: (u16, u16) = (0x1af4, 0x1110);

/// The kind of a device that is or may be a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BridgeKind {
    /// An NTB that a driver of the kernel holds. inlane does not support such bridges yet.
    Hardware,
    /// A device of the PCI class of NTBs, without an NTB driver. It may be another kind of chipset device.
    OtherBridge,
    /// An ivshmem device, which [`crate::ivshmem`] can use.
    Ivshmem,
}

/// A device that is or may be a bridge.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Bridge {
    /// PCI address.
    pub address: String,
    /// The kind of the device.
    pub kind: BridgeKind,
    /// The kernel driver that holds the device.
    pub driver: Option<String>,
}

/// Returns the bridges of this machine. A device that cannot be read is left out.
pub fn bridges(sysfs: &Sysfs) -> Vec<Bridge> {
    sysfs.addresses().into_iter().filter_map(|address| bridge(sysfs, address)).collect()
}

fn bridge(sysfs: &Sysfs, address: Address) -> Option<Bridge> {
    let device = Device::read(sysfs, address).ok()?;
    let is_ntb = device.driver.as_deref().is_some_and(|driver| DRIVERS.contains(&driver));
    let kind = match (device.vendor, device.device) {
        IVSHMEM => BridgeKind::Ivshmem,
        _ if is_ntb => BridgeKind::Hardware,
        _ if device.class == OTHER_BRIDGE => BridgeKind::OtherBridge,
        _ => return None,
    };
    Some(Bridge { address: address.to_string(), kind, driver: device.driver })
}

/// Explains why the twin is the back-end: no NTB is among `bridges`, or the NTBs among them are not supported
/// yet.
pub fn why_twin(bridges: &[Bridge]) -> String {
    match bridges.iter().find(|bridge| bridge.kind == BridgeKind::Hardware) {
        Some(Bridge { address, driver, .. }) => format!(
            "the default back-end; the NTB at {address} (driver {}) is not supported yet",
            driver.as_deref().unwrap_or("unknown")
        ),
        None => "the default back-end; no NTB driver holds a PCI device of this machine".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn device(root: &Path, address: &str, files: &[(&str, &str)], driver: Option<&str>) {
        let folder = root.join("bus/pci/devices").join(address);
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
        if let Some(driver) = driver {
            std::os::unix::fs::symlink(format!("../../drivers/{driver}"), folder.join("driver")).unwrap();
        }
    }

    #[test]
    fn bridges_are_found_by_driver_class_and_identifier() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = Sysfs::at(root.path());
        assert_eq!(bridges(&sysfs), []);
        assert!(why_twin(&bridges(&sysfs)).contains("no NTB driver holds"));
        let ids = |vendor, device, class| [("vendor", vendor), ("device", device), ("class", class)];
        device(root.path(), "0000:00:01.3", &ids("0x8086", "0x7113", "0x068000"), None);
        device(root.path(), "0000:00:02.0", &ids("0x8086", "0x1533", "0x020000"), Some("igb"));
        device(root.path(), "0000:00:03.0", &ids("0x1af4", "0x1110", "0x050000"), Some("vfio-pci"));
        let found: Vec<_> = bridges(&sysfs).into_iter().map(|bridge| bridge.kind).collect();
        assert_eq!(found, [BridgeKind::OtherBridge, BridgeKind::Ivshmem]);
        assert!(why_twin(&bridges(&sysfs)).contains("no NTB driver holds"), "the class alone proves nothing");
        device(root.path(), "0000:80:01.0", &ids("0x1022", "0x148b", "0x068000"), Some("ntb_hw_amd"));
        let why = why_twin(&bridges(&sysfs));
        assert!(why.contains("0000:80:01.0 (driver ntb_hw_amd) is not supported yet"), "{why}");
    }
}
