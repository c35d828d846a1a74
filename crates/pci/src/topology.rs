//! The PCI functions of the machine and the tree that their links form.

use crate::address::Address;
use crate::error::{Error, Result};
use crate::link::{Link, LinkRate, Shortfall};
use crate::sysfs::Sysfs;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// The kind of a PCI function. Its class code decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FunctionKind {
    /// A display controller or a processing accelerator.
    Gpu,
    /// A network controller.
    Nic,
    /// An NVMe drive.
    Nvme,
    /// A bridge to another PCI bus.
    Bridge,
    /// Anything else.
    Other,
}

/// A base address register (BAR): a range of a device's memory or I/O ports that the CPU can access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BarInfo {
    /// The index, 0 to 5.
    pub index: u8,
    /// The physical address at which the range begins; 0 if none is assigned.
    pub start: u64,
    /// The length of the range.
    pub size_bytes: u64,
    /// True for a range of memory, false for I/O ports.
    pub memory: bool,
    /// True if reads have no side effects, so the BAR can be mapped write-combining.
    pub prefetchable: bool,
    /// True for a 64-bit BAR, which can lie above 4 GiB.
    pub wide: bool,
}

/// A PCI function.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Device {
    /// The address of the function.
    pub address: Address,
    /// The address of the bridge above the function. Null directly below a root complex.
    pub parent: Option<Address>,
    /// The vendor ID.
    pub vendor: u16,
    /// The device ID.
    pub device: u16,
    /// Class, subclass and programming interface, such as `0x010802`.
    pub class: u32,
    /// The kind of device that the class stands for.
    pub kind: FunctionKind,
    /// The NUMA node that the function is attached to. Null if the firmware does not report it.
    pub numa_node: Option<u32>,
    /// The CPUs closest to the PCI function, in the kernel's list format, such as `0-15,32-47`.
    pub local_cpus: Option<String>,
    /// The kernel driver that is bound to the function. Null if there is none.
    pub driver: Option<String>,
    /// The number of the function's IOMMU group. Null without an IOMMU.
    pub iommu_group: Option<u32>,
    /// The function's link to the bridge above. Null inside a root complex and for conventional PCI.
    pub link: Option<Link>,
    /// The implemented BARs.
    pub bars: Vec<BarInfo>,
    /// The names of the function's network interfaces, NVMe controllers and RDMA devices.
    pub names: Vec<String>,
}

impl Device {
    /// Reads one function. An attribute without a valid value becomes `None`, 0 or empty.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if no function has this address.
    pub fn read(sysfs: &Sysfs, address: Address) -> Result<Self> {
        let number = |attribute| sysfs.number(address, attribute);
        if !sysfs.device(address).is_dir() {
            return Err(Error::NoDevice { address });
        }
        let class = number("class").unwrap_or(0) as u32 & 0xff_ffff;
        let rate = |speed, width| LinkRate::parse(&sysfs.text(address, speed)?, &sysfs.text(address, width)?);
        let link = rate("current_link_speed", "current_link_width").map(|current| {
            // A maximum below the current rate is invalid. Use the current rate instead.
            let max = rate("max_link_speed", "max_link_width").filter(|max| max.min(current) == current);
            Link { current, max: max.unwrap_or(current) }
        });
        Ok(Self {
            address,
            parent: parent(sysfs, address),
            vendor: number("vendor").unwrap_or(0) as u16,
            device: number("device").unwrap_or(0) as u16,
            class,
            kind: kind(class),
            // If the device has no NUMA node, the kernel reports -1. `number` does not parse -1.
            numa_node: number("numa_node").and_then(|node| node.try_into().ok()),
            local_cpus: sysfs.text(address, "local_cpulist").filter(|list| !list.is_empty()),
            driver: sysfs.driver(address),
            iommu_group: sysfs.link(address, "iommu_group").and_then(|group| group.parse().ok()),
            link,
            bars: sysfs.text(address, "resource").map(|text| bars(&text)).unwrap_or_default(),
            names: ["net", "nvme", "infiniband"].iter().flat_map(|kind| sysfs.names(address, kind)).collect(),
        })
    }

    /// Returns BAR `index` if it is implemented.
    pub fn bar(&self, index: u8) -> Option<&BarInfo> {
        self.bars.iter().find(|bar| bar.index == index)
    }
}

fn parent(sysfs: &Sysfs, address: Address) -> Option<Address> {
    let path = sysfs.device(address).canonicalize().ok()?;
    let above: Address = path.parent()?.file_name()?.to_str()?.parse().ok()?;
    (above != address).then_some(above)
}

fn kind(class: u32) -> FunctionKind {
    match (class >> 16, class >> 8 & 0xff, class & 0xff) {
        (0x03 | 0x12, ..) => FunctionKind::Gpu,
        (0x02, ..) => FunctionKind::Nic,
        (0x01, 0x08, 0x02) => FunctionKind::Nvme,
        (0x06, 0x04, _) => FunctionKind::Bridge,
        _ => FunctionKind::Other,
    }
}

/// Parses the first six lines of `resource`: start, end and flags of each BAR, or zeros.
fn bars(resource: &str) -> Vec<BarInfo> {
    const MEMORY: u64 = 0x200;
    const PREFETCHABLE: u64 = 0x2000;
    const WIDE: u64 = 0x10_0000;
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let bar = |(index, line): (usize, &str)| {
        let mut fields = line.split_whitespace().map(hex);
        let (start, end, flags) = (fields.next()??, fields.next()??, fields.next()??);
        let size_bytes = end.checked_sub(start)?.checked_add(1)?;
        (end != 0).then_some(BarInfo {
            index: index as u8,
            start,
            size_bytes,
            memory: flags & MEMORY != 0,
            prefetchable: flags & PREFETCHABLE != 0,
            wide: flags & WIDE != 0,
        })
    };
    resource.lines().take(6).enumerate().filter_map(bar).collect()
}

/// All PCI functions of the machine.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    devices: BTreeMap<Address, Device>,
}

impl Topology {
    /// Reads all functions. Functions that vanish meanwhile are left out.
    pub fn read(sysfs: &Sysfs) -> Self {
        let devices = sysfs.addresses().into_iter().filter_map(|a| Some((a, Device::read(sysfs, a).ok()?)));
        Self { devices: devices.collect() }
    }

    /// Returns all functions in bus order.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.values()
    }

    /// Returns the function at an address.
    pub fn get(&self, address: Address) -> Option<&Device> {
        self.devices.get(&address)
    }

    /// Returns the functions directly below a root complex.
    pub fn roots(&self) -> impl Iterator<Item = &Device> {
        self.devices().filter(|device| device.parent.is_none_or(|parent| self.get(parent).is_none()))
    }

    /// Returns the functions directly below a bridge.
    pub fn children(&self, bridge: Address) -> impl Iterator<Item = &Device> {
        self.devices().filter(move |device| device.parent == Some(bridge))
    }

    /// Returns all functions with their depth in the tree, each bridge before its children.
    pub fn walk(&self) -> Vec<(usize, &Device)> {
        let mut walked = Vec::new();
        let mut ahead: Vec<(usize, &Device)> = self.roots().map(|root| (0, root)).collect();
        ahead.reverse();
        while let Some((depth, device)) = ahead.pop() {
            walked.push((depth, device));
            let start = ahead.len();
            ahead.extend(self.children(device.address).map(|child| (depth + 1, child)));
            ahead[start..].reverse();
        }
        walked
    }

    /// Returns the bridges from a device up to the root, nearest first.
    pub fn path(&self, address: Address) -> Vec<&Device> {
        let above = |device: &&Device| device.parent.and_then(|parent| self.get(parent));
        // Limit the length of the path to the number of devices, because a malformed sysfs could contain a
        // cycle.
        let path = std::iter::successors(self.get(address).as_ref().and_then(above), above);
        path.take(self.devices.len()).collect()
    }

    /// Returns how far a device's link runs below the rate that the device supports. `None` for bridges,
    /// because a slot may be wider than its card.
    pub fn shortfall(&self, device: &Device) -> Option<Shortfall> {
        if device.kind == FunctionKind::Bridge {
            return None;
        }
        let slot =
            device.parent.and_then(|parent| self.get(parent)).and_then(|slot| slot.link).map(|link| link.max);
        Shortfall::of(device.link?, slot)
    }

    /// Returns the slowest link between a device and the root complex: the device below the link, and the
    /// link's rate. This link limits the rate of the whole path.
    pub fn narrowest(&self, address: Address) -> Option<(&Device, LinkRate)> {
        let device = self.get(address)?;
        std::iter::once(device)
            .chain(self.path(address))
            .filter_map(|device| Some((device, device.link?.current)))
            .min_by(|(_, a), (_, b)| a.bits_per_second().total_cmp(&b.bits_per_second()))
    }
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
