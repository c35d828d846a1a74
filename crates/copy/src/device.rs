//! Opened endpoints of transfers. An endpoint allocates memory, fills it with patterns, poisons it, and
//! checks it.

use crate::endpoint::Endpoint;
use crate::error::Unavailable;
use crate::field::{ALLOW_BAR_WRITE, SIZES};
use crate::gpu::{self, Gpu, GpuMemory};
use crate::path::Path;
use crate::pattern;
use crate::suballocator::Suballocator;
use inlane_core::mover::{Access, CpuMover, Mover};
use inlane_core::{Error, Region, Result};
use inlane_pci::{Bar, Permission, Sysfs};
use inlane_twin::{Accelerator, Costs};
use std::fmt;
use std::sync::Arc;

/// The byte with which destinations are filled before a measurement. It reveals bytes that never arrived.
pub const POISON: u8 = 0xDB;

/// An opened endpoint. It allocates memory for transfers, and fills and checks that memory.
pub struct Device {
    endpoint: Endpoint,
    kind: Kind,
}

pub(crate) enum Kind {
    /// Host memory, pinned through a GPU if one is among the endpoints.
    Host(Option<Arc<Gpu>>),
    Gpu(Box<GpuMemory>),
    Twin(Accelerator),
    /// A BAR, or a range of a BAR, and the permitted accesses.
    Bar {
        memory: Suballocator,
        permission: Permission,
    },
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.endpoint)
    }
}

/// Opens the endpoints of one operation. Returns one device for each endpoint, in order. Equal endpoints
/// share a device. Host memory is pinned if a GPU is among them. `permission` applies to BARs.
///
/// # Errors
/// [`Error::Device`] if an endpoint does not exist or must not be used; [`Error::Invalid`] if two ranges of a
/// BAR overlap.
pub fn open(endpoints: &[Endpoint], permission: &Permission) -> Result<Vec<Arc<Device>>> {
    let mut opened: Vec<Arc<Device>> = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        if let Some(other) = endpoints[..index].iter().find(|other| overlap(endpoint, other)) {
            return Err(Error::invalid(
                format!("{other} and {endpoint}"),
                "the ranges of the BAR overlap; give ranges that do not",
            ));
        }
    }
    // Open the GPUs first, because host memory is pinned through a GPU.
    let mut order: Vec<&Endpoint> = endpoints.iter().collect();
    order.sort_by_key(|endpoint| !matches!(endpoint, Endpoint::Gpu(_)));
    for endpoint in order {
        if opened.iter().any(|device| device.endpoint == *endpoint) {
            continue;
        }
        let kind = match endpoint {
            Endpoint::Host => Kind::Host(opened.iter().find_map(|device| device.gpu().cloned())),
            Endpoint::Gpu(index) => Kind::Gpu(Box::new(GpuMemory::open(*index)?)),
            Endpoint::Twin(index) => Kind::Twin(Accelerator::new(*index, Costs::published(*index))),
            Endpoint::Bar(spec) => {
                let bar = Bar::open(&Sysfs::system(), spec, permission)
                    .map_err(|error| crate::Error::Bar { endpoint: endpoint.clone(), error })?;
                Kind::Bar { memory: Suballocator::new(bar.region()), permission: permission.clone() }
            }
        };
        opened.push(Arc::new(Device { endpoint: endpoint.clone(), kind }));
    }
    let find = |endpoint: &Endpoint| opened.iter().find(|device| device.endpoint == *endpoint).cloned();
    Ok(endpoints.iter().filter_map(find).collect())
}

/// Returns true if two different endpoints are overlapping ranges of one BAR. Each range is mapped at its own
/// address, so this compares the ranges instead of the mapped addresses.
fn overlap(a: &Endpoint, b: &Endpoint) -> bool {
    let (Endpoint::Bar(a), Endpoint::Bar(b)) = (a, b) else { return false };
    let all = 0..u64::MAX;
    let (x, y) = (a.range.as_ref().unwrap_or(&all), b.range.as_ref().unwrap_or(&all));
    a != b && a.address == b.address && a.bar == b.bar && x.start < y.end && y.start < x.end
}

impl Device {
    /// Opens a twin with given costs, for tests and models.
    pub fn twin(accelerator: Accelerator) -> Arc<Self> {
        Arc::new(Self { endpoint: Endpoint::Twin(accelerator.index()), kind: Kind::Twin(accelerator) })
    }

    /// Returns a stand-in for a BAR, for tests. Its memory is ordinary host memory.
    #[cfg(test)]
    pub(crate) fn bar(text: &str, memory: Region, permission: Permission) -> Arc<Self> {
        let place = inlane_core::Location::Bar { device: text.into(), bar: 2, write_combining: false };
        let (address, bytes) = (memory.address(), memory.len());
        // SAFETY: the bytes belong to `memory`, and the new region keeps `memory` alive.
        let region = unsafe { Region::from_raw(address, bytes, place, Arc::new(memory)) };
        let kind = Kind::Bar { memory: Suballocator::new(region), permission };
        Arc::new(Self { endpoint: text.parse().expect("an endpoint"), kind })
    }

    /// Returns the endpoint as the user wrote it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// If this device is a GPU, returns it. If it is pinned host memory, returns the GPU that pins it.
    /// Otherwise returns `None`.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.kind {
            Kind::Gpu(memory) => Some(memory.gpu()),
            Kind::Host(gpu) => gpu.as_ref(),
            _ => None,
        }
    }

    /// Returns true if the CPU reaches the device's memory by ordinary loads and stores.
    pub(crate) fn is_cpu_memory(&self) -> bool {
        matches!(self.kind, Kind::Host(_) | Kind::Twin(_))
    }

    /// Returns true for a GPU.
    pub(crate) fn is_gpu(&self) -> bool {
        matches!(self.kind, Kind::Gpu(_))
    }

    /// Returns a name that identifies the device in the calibration cache. The name contains nothing that
    /// changes between runs.
    pub(crate) fn stable_name(&self) -> String {
        match &self.kind {
            Kind::Host(None) => "host".into(),
            Kind::Host(Some(gpu)) => format!("host, pinned by {}", gpu::pci_address(gpu)),
            Kind::Gpu(memory) => memory.name(),
            Kind::Twin(twin) => format!("twin:{} {:?}", twin.index(), twin.costs()),
            Kind::Bar { memory, .. } => format!("{}, {} bytes", self.endpoint, memory.whole().len()),
        }
    }

    /// Describes the device for results.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Host(None) => "host memory".into(),
            Kind::Host(Some(gpu)) => format!("host memory, pinned by gpu:{}", gpu.index()),
            Kind::Gpu(memory) => {
                let link = self.link().map(|(link, _)| format!(", {link}")).unwrap_or_default();
                format!("{} {}{link}", self.endpoint, memory.name())
            }
            Kind::Twin(twin) => format!("{} a model of the {}", self.endpoint, twin.costs().name),
            Kind::Bar { memory, .. } => format!("{} {} bytes", self.endpoint, memory.whole().len()),
        }
    }

    /// Returns the state of the device's link as text, and the highest bit rate of all lanes together. The
    /// text shows the current rate, which an idle GPU lowers. Returns `None` if the device has no link or
    /// does not report it.
    pub fn link(&self) -> Option<(String, f64)> {
        match &self.kind {
            Kind::Gpu(memory) => memory.link(),
            Kind::Twin(twin) => {
                let rate = twin.costs().link;
                Some((inlane_core::units::bytes_per_second(rate), rate * 8.0))
            }
            Kind::Host(_) | Kind::Bar { .. } => None,
        }
    }

    /// Returns the most bytes of one allocation. For host memory, this is half of the available memory,
    /// because the rest of the machine needs memory too.
    pub fn capacity(&self) -> usize {
        match &self.kind {
            Kind::Host(_) => {
                usize::try_from(inlane_process::limits::memory("MemAvailable").unwrap_or(u64::MAX) / 2)
                    .unwrap_or(usize::MAX)
            }
            Kind::Gpu(memory) => memory.capacity(),
            Kind::Twin(twin) => twin.costs().memory,
            Kind::Bar { memory, .. } => memory.whole().len(),
        }
    }

    /// Allocates `bytes` bytes of the device's memory. The memory is freed when the region and all its slices
    /// are dropped.
    ///
    /// # Errors
    /// [`Error::Memory`] or [`Error::Device`] if too little is free; [`Error::Invalid`] for 0 bytes.
    pub fn allocate(&self, bytes: usize) -> Result<Region> {
        match &self.kind {
            Kind::Host(gpu) => {
                let available = inlane_process::limits::memory("MemAvailable").unwrap_or(u64::MAX);
                if bytes as u64 > available {
                    return Err(Error::Memory {
                        bytes,
                        what: "host memory".into(),
                        why: format!(
                            "{} are available; give smaller {SIZES}",
                            inlane_core::units::bytes(available)
                        ),
                    });
                }
                match gpu {
                    Some(gpu) => Ok(gpu.pinned(bytes)?),
                    None => Region::host(bytes),
                }
            }
            Kind::Gpu(memory) => memory.allocate(bytes),
            Kind::Twin(twin) => twin.allocate(bytes),
            Kind::Bar { memory, .. } => memory.allocate(bytes, &|| self.endpoint.to_string()),
        }
    }

    /// Returns true if bytes that arrive at the device can be checked. False only for a BAR without read
    /// permission.
    pub fn is_verifiable(&self) -> bool {
        match &self.kind {
            Kind::Bar { permission, .. } => permission.may_read(),
            _ => true,
        }
    }

    /// Fills a region of this device with the pattern of `seed`. No transfer from or to the region may be in
    /// flight.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails.
    pub fn fill(&self, region: &Region, seed: u64) -> Result<()> {
        match &self.kind {
            Kind::Gpu(memory) => memory.fill(region, seed),
            Kind::Bar { .. } => self.write_bar(region, |bytes| pattern::fill(bytes, seed)),
            _ => {
                // SAFETY: no transfer from or to the region is in flight, as the documentation demands.
                pattern::fill(unsafe { pattern::bytes_of(region) }, seed);
                Ok(())
            }
        }
    }

    /// Overwrites a region of this device with [`POISON`]. A later check then finds bytes that never arrived.
    /// No transfer from or to the region may be in flight.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails.
    pub fn poison(&self, region: &Region) -> Result<()> {
        match &self.kind {
            Kind::Gpu(memory) => memory.poison(region, POISON),
            Kind::Bar { .. } => self.write_bar(region, |bytes| bytes.fill(POISON)),
            _ => {
                // SAFETY: no transfer from or to the region is in flight, as the documentation demands.
                unsafe { pattern::bytes_of(region) }.fill(POISON);
                Ok(())
            }
        }
    }

    /// Returns how many bytes of a region of this device differ from the pattern of `seed`. No transfer from
    /// or to the region may be in flight.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails or must not be read.
    pub fn count_wrong(&self, region: &Region, seed: u64) -> Result<u64> {
        match &self.kind {
            Kind::Gpu(memory) => memory.count_wrong(region, seed),
            Kind::Bar { permission, .. } => {
                let host = Region::host(region.len())?;
                CpuMover::new(Access::Bytes4)?.reading_bars(permission.may_read()).submit(region, &host)?;
                // SAFETY: `host` was allocated above, and nothing else refers to it.
                Ok(pattern::count_wrong(unsafe { pattern::bytes_of(&host) }, seed))
            }
            // SAFETY: no transfer from or to the region is in flight, as this function's documentation
            // demands.
            _ => Ok(pattern::count_wrong(unsafe { pattern::bytes_of(region) }, seed)),
        }
    }

    /// Checks that the device may be written.
    pub(crate) fn require_writable(&self) -> Result<()> {
        match &self.kind {
            Kind::Bar { permission, .. } if !permission.may_write() => {
                let why = format!(
                    "it may not be written; add {ALLOW_BAR_WRITE}, and name a range @START+LENGTH whose content may be lost"
                );
                Err(Error::device_usage(self.endpoint.to_string(), why))
            }
            _ => Ok(()),
        }
    }

    /// Writes a region of a BAR. `make` fills the bytes in host memory first.
    fn write_bar(&self, region: &Region, make: impl FnOnce(&mut [u8])) -> Result<()> {
        self.require_writable()?;
        let host = Region::host(region.len())?;
        // SAFETY: `host` was allocated above, and nothing else refers to it.
        make(unsafe { pattern::bytes_of(&host) });
        CpuMover::new(Access::Bytes4)?.submit(&host, region).map(drop)
    }
}

/// Returns the error of a path that cannot be opened between two devices.
pub(crate) fn unavailable(path: Path, from: &Device, to: &Device, why: Unavailable) -> Error {
    let (from, to) = (from.endpoint().clone(), to.endpoint().clone());
    crate::Error::Path { path, from, to, why }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Result<Arc<Device>> {
        Ok(open(&[text.parse().unwrap()], &Permission::default())?.remove(0))
    }

    #[test]
    fn memory_is_filled_poisoned_and_checked() {
        for text in ["host", "twin:0"] {
            let device = one(text).unwrap();
            let region = device.allocate(10_001).unwrap();
            device.fill(&region, 5).unwrap();
            assert_eq!(device.count_wrong(&region, 5).unwrap(), 0);
            device.poison(&region).unwrap();
            assert!(device.count_wrong(&region, 5).unwrap() > 9_000);
        }
    }

    #[test]
    fn too_large_an_allocation_is_refused_with_what_is_free() {
        for text in ["host", "twin:0"] {
            let device = one(text).unwrap();
            let error = device.allocate(1 << 50).unwrap_err();
            assert_eq!(error.class(), inlane_core::error::Class::Environment);
            assert!(error.to_string().contains("; give "), "{error}");
            assert!(device.allocate(0).is_err());
        }
    }

    #[test]
    fn a_bar_that_cannot_be_opened_is_named_once() {
        let name = "pci:0000:00:01.0/bar0";
        let error = inlane_pci::Error::NotPermitted {
            name: name.into(),
            what: "read only if you allow it",
            remedy: "give a range".into(),
        };
        let text = crate::Error::Bar { endpoint: name.parse().unwrap(), error }.to_string();
        assert_eq!(text, format!("{name}: a BAR is read only if you allow it; give a range"));
        let error = inlane_pci::Error::NotReady { address: "0000:00:01.0".parse().unwrap(), why: "x".into() };
        let text = crate::Error::Bar { endpoint: name.parse().unwrap(), error }.to_string();
        assert_eq!(text, format!("{name}: 0000:00:01.0 is not ready: x"));
    }

    #[test]
    fn overlapping_ranges_of_a_bar_are_refused() {
        let both = |a: &str, b: &str| {
            let ends = [a, b].map(|range| format!("pci:ffff:ff:1f.7/{range}").parse().unwrap());
            open(&ends, &Permission::default()).unwrap_err()
        };
        for (a, b) in [
            ("bar2@0+1M", "bar2@512K+1M"),
            ("bar2@512K+1M", "bar2@0+1M"),
            ("bar2", "bar2@1M+4K"),
            ("bar2@0+1M", "bar2@0+1M:wc"),
        ] {
            let error = both(a, b);
            assert_eq!(error.class(), inlane_core::error::Class::Usage);
            assert!(error.to_string().contains("overlap"), "{error}");
        }
        for (a, b) in [("bar2@0+1M", "bar2@1M+1M"), ("bar2@0+1M", "bar0@0+1M"), ("bar2@0+1M", "bar2@0+1M")] {
            assert!(
                both(a, b).to_string().contains("pci:ffff:ff:1f.7")
                    && !both(a, b).to_string().contains("overlap")
            );
        }
    }

    #[test]
    fn missing_devices_are_errors() {
        #[cfg(feature = "cuda")]
        if inlane_cuda::device_count().is_err() {
            let error = one("gpu:0").unwrap_err();
            assert_eq!(error.class(), inlane_core::error::Class::Environment, "{error}");
        }
        assert!(one("pci:ffff:ff:1f.7/bar0").is_err());
    }
}
