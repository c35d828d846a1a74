//! How loads cross the links of devices.

use crate::observation::Loaded;
use inlane_core::load::Resource;

/// A load that takes less of a direction for each byte does not count as crossing it: it sends descriptors or flags.
const LEAST: f64 = 0.02;

/// A direction of a device's link, and what moves the bytes. Both matter for the share that a load gets beside another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The device.
    pub device: String,
    /// True for the direction from host memory to the device.
    pub to_device: bool,
    /// True if the device's copy engine moves the bytes, and not its SMs or another device.
    pub by_engine: bool,
}

impl Crossing {
    /// Returns the direction as a resource.
    pub fn resource(&self) -> Resource {
        match self.to_device {
            true => Resource::LinkToDevice(self.device.clone()),
            false => Resource::LinkFromDevice(self.device.clone()),
        }
    }
}

/// Returns the directions of links that a load crosses.
pub fn crossings(loaded: &Loaded) -> Vec<Crossing> {
    let crossing = |of: &inlane_core::load::Use| {
        let (device, to_device) = match &of.resource {
            Resource::LinkToDevice(device) => (device, true),
            Resource::LinkFromDevice(device) => (device, false),
            _ => return None,
        };
        let engine = Resource::CopyEngine(device.clone());
        let by_engine = loaded.uses.iter().any(|of| of.resource == engine);
        let counts = of.per_byte.is_none_or(|per_byte| per_byte >= LEAST);
        counts.then(|| Crossing { device: device.clone(), to_device, by_engine })
    };
    loaded.uses.iter().filter_map(crossing).collect()
}
