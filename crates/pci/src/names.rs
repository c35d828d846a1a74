//! Names of vendors and devices from the installed list `pci.ids` (<https://pci-ids.ucw.cz>).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The paths at which distributions install the list (packages pci.ids and hwdata).
const LISTS: [&str; 2] = ["/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"];

/// The known names of PCI vendors and devices. Empty if no list is installed.
#[derive(Clone, Debug, Default)]
pub struct Names {
    vendors: BTreeMap<u16, String>,
    devices: BTreeMap<(u16, u16), String>,
}

impl Names {
    /// Reads the system's list.
    pub fn system() -> Self {
        let list = LISTS.iter().find_map(|list| fs::read(Path::new(list)).ok());
        list.map(|bytes| Self::parse(&String::from_utf8_lossy(&bytes))).unwrap_or_default()
    }

    /// Parses the list. A vendor's devices follow after a tab. Subsystems and classes are skipped.
    fn parse(text: &str) -> Self {
        let mut names = Self::default();
        let mut vendor = None;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let entry = line.trim_start_matches('\t');
            let number = entry.get(..4).and_then(|hex| u16::from_str_radix(hex, 16).ok());
            let name = entry.get(4..).and_then(|rest| rest.strip_prefix("  "));
            match (line.len() - entry.len(), number.zip(name)) {
                (0, Some((number, name))) => {
                    vendor = Some(number);
                    names.vendors.insert(number, name.into());
                }
                // A line such as `C 03  Display controller` starts a class. The entries of a class are not
                // devices. So skip all lines until the next vendor.
                (0, None) => vendor = None,
                (1, Some((device, name))) => {
                    vendor.map(|vendor| names.devices.insert((vendor, device), name.into()));
                }
                _ => {}
            }
        }
        names
    }

    /// Returns the name of the device, such as `NVIDIA Corporation GH100 [H100 SXM5 80GB]`. If the device is
    /// unknown, returns the name of its vendor.
    pub fn name(&self, vendor: u16, device: u16) -> Option<String> {
        let maker = self.vendors.get(&vendor)?;
        Some(match self.devices.get(&(vendor, device)) {
            Some(device) => format!("{maker} {device}"),
            None => maker.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_vendors_and_devices_only() {
        let names = Names::parse(
            "# comment\n10de  NVIDIA Corporation\n\t2330  GH100 [H100]\n\t\t10de 16c0  a board\n\tzzzz\n\
             8086  Intel Corporation\n\nC 03  Display controller\n\t00  VGA\n\t2330  not a device\n",
        );
        assert_eq!(names.name(0x10de, 0x2330).unwrap(), "NVIDIA Corporation GH100 [H100]");
        assert_eq!(names.name(0x8086, 0x2330).unwrap(), "Intel Corporation");
        assert_eq!(names.name(0x1234, 0), None);
        Names::parse("é\n\té\n1\n12345\n\t\t\t");
    }
}
