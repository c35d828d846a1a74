//! The ceiling of copies by the CPU. This is the lower of two rates: loads alone, and stores alone. A copy
//! loads and stores every byte, so a copy by one thread cannot be faster.
//!
//! ```text
//!  loads alone:    source slots  -->  scratch       the scratch memory stays in the first-level cache
//!  stores alone:   scratch       -->  destination slots
//! ```
//!
//! Both tests use the same buffers and the same transfer size as the measurement that gets this ceiling.

use super::{Ceiling, CeilingOf};
use crate::device::{Device, Kind};
use crate::endpoint::Endpoint;
use crate::open_path::suitable_access;
use crate::stop::check_stop;
use crate::timing::{Buffers, Plan};
use inlane_core::clock::Clock;
use inlane_core::mover::{Access, CpuMover, Mover};
use inlane_core::{Location, Region, Result};
use std::time::Duration;

/// The bytes of the scratch memory: less than every first-level data cache has.
const SCRATCH: usize = 16 << 10;
/// How often each rate is measured. The highest one counts.
const REPEATS: usize = 5;
/// The longest time of one repeat.
const TIME: Duration = Duration::from_millis(10);

/// Returns true if a CPU thread copies between these endpoints, because both are host memory or BARs.
pub fn is_by_cpu(from: &Endpoint, to: &Endpoint) -> bool {
    [from, to].into_iter().all(|end| matches!(end, Endpoint::Host | Endpoint::Bar(_)))
}

/// Measures the ceiling of copies by the CPU, for transfers of `size` bytes over `buffers`. Overwrites the
/// destination. `access` is the access that the user asked for.
///
/// # Errors
/// [`Error::Device`](inlane_core::Error::Device) if the run was interrupted or a BAR must not be read.
pub fn of_cpu(buffers: &Buffers, size: usize, access: Option<Access>, plan: &Plan) -> Result<Ceiling> {
    let [from, to] = buffers.devices();
    let scratch = Region::host(SCRATCH.min(size))?;
    let best = |loads: bool, device: &Device| -> Result<f64> {
        let mut best: f64 = 0.0;
        for access in accesses(device, loads, access) {
            best = best.max(rate(buffers, &scratch, size, loads, access, plan)?);
        }
        Ok(best)
    };
    let (loads, stores) = (best(true, from)?, best(false, to)?);
    Ok(if loads < stores {
        Ceiling::of_bytes(loads, CeilingOf::Loads { from: from.endpoint().clone() })
    } else {
        Ceiling::of_bytes(stores, CeilingOf::Stores { to: to.endpoint().clone() })
    })
}

/// Returns the accesses to try: the one that suits the device and the one that the user requested. For stores
/// to host memory and to write-combining BARs, adds the accesses that bypass the cache.
fn accesses(device: &Device, loads: bool, asked: Option<Access>) -> Vec<Access> {
    let uncached = match device.kind() {
        Kind::Bar { memory, .. } => {
            !matches!(memory.whole().location(), Location::Bar { write_combining: true, .. })
        }
        _ => false,
    };
    let mut accesses = vec![suitable_access(device)];
    if !loads && !uncached {
        accesses.extend([Access::NonTemporal, Access::Direct64]);
    }
    accesses.extend(asked.filter(|access| !loads || !access.is_weakly_ordered()));
    accesses.retain(|access| access.is_available());
    accesses
}

/// Returns the highest rate of the CPU in bytes per second. Measures loads from the source slots if `loads`
/// is true, and stores to the destination slots otherwise.
fn rate(
    buffers: &Buffers,
    scratch: &Region,
    size: usize,
    loads: bool,
    access: Access,
    plan: &Plan,
) -> Result<f64> {
    let mut mover = CpuMover::new(access)?.reading_bars(loads);
    let rotation = buffers.rotation(size, plan.in_flight_for(size));
    // Create the slices of all slots before the timed loops. Creating them takes long, compared with copying
    // a small piece.
    let mut slots = Vec::new();
    for slot in 0..rotation.slots {
        let (source, destination) = buffers.regions(rotation, slot)?;
        let span = if loads { source } else { destination };
        let pieces = (0..size).step_by(scratch.len()).map(|at| {
            let length = scratch.len().min(size - at);
            Ok((span.slice(at, length)?, scratch.slice(0, length)?))
        });
        slots.push(pieces.collect::<Result<Vec<_>>>()?);
    }
    let (clock, budget) = (Clock::new(), plan.time.min(TIME).as_nanos() as u64);
    let mut best: f64 = 0.0;
    for _ in 0..REPEATS {
        let (began, mut bytes) = (clock.now_ns(), 0);
        for slot in slots.iter().cycle() {
            for (piece, scratch) in slot {
                let (from, to) = if loads { (piece, scratch) } else { (scratch, piece) };
                mover.submit(from, to)?;
            }
            bytes += size;
            check_stop(&plan.stop)?;
            if clock.now_ns() - began >= budget {
                break;
            }
        }
        best = best.max(bytes as f64 * 1e9 / (clock.now_ns() - began).max(1) as f64);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_pci::Permission;

    #[test]
    fn the_ceiling_names_the_slower_half_and_leaves_the_source_as_it_is() {
        let devices = crate::device::open(&[Endpoint::Host], &Permission::default()).unwrap();
        let host = &devices[0];
        let plan = Plan { time: Duration::from_millis(1), ..Plan::default() };
        for size in [1, 64, 4100, 100_000] {
            let buffers = Buffers::new(host, host, size, 1 << 20).unwrap();
            let rotation = buffers.rotation(size, 2);
            let (source, destination) = buffers.regions(rotation, 0).unwrap();
            host.fill(&source, 77).unwrap();
            host.poison(&destination).unwrap();
            let found = of_cpu(&buffers, size, None, &plan).unwrap();
            assert!(found.bytes_per_second > Some(0.0), "{size}: {found:?}");
            assert!(matches!(found.resource, CeilingOf::Loads { .. } | CeilingOf::Stores { .. }));
            assert_eq!(host.count_wrong(&source, 77).unwrap(), 0, "{size}");
            let scratch = Region::host(size).unwrap();
            host.poison(&scratch).unwrap();
            // SAFETY: the regions are host memory of `size` bytes, and no other thread uses them.
            let bytes = |region: &Region| unsafe { std::slice::from_raw_parts(region.as_ptr(), size) };
            assert_ne!(bytes(&destination), bytes(&scratch), "{size}: nothing was stored");
        }
    }

    #[test]
    fn an_uncached_bar_is_accessed_by_the_suitable_and_the_requested_width_only() {
        let bar = Device::bar("pci:0000:b5:00.0/bar2", Region::host(4096).unwrap(), Permission::default());
        assert_eq!(accesses(&bar, false, None), [Access::Bytes8]);
        assert_eq!(accesses(&bar, false, Some(Access::Bytes4)), [Access::Bytes8, Access::Bytes4]);
        assert_eq!(accesses(&bar, true, Some(Access::Bytes4)), [Access::Bytes8, Access::Bytes4]);
    }

    #[test]
    fn copies_between_host_memory_and_bars_are_by_the_cpu() {
        let ends = ["host", "pci:0000:b5:00.0/bar2", "gpu:0", "twin:0"].map(|text| text.parse().unwrap());
        let by_cpu = |a: usize, b: usize| is_by_cpu(&ends[a], &ends[b]);
        assert!(by_cpu(0, 0) && by_cpu(0, 1) && by_cpu(1, 0) && by_cpu(1, 1));
        assert!(!by_cpu(0, 2) && !by_cpu(2, 2) && !by_cpu(0, 3) && !by_cpu(3, 1));
    }
}
