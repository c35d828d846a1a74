//! Opens one path between two devices as a mover.

use crate::device::{Device, Kind, unavailable};
use crate::error::Unavailable;
use crate::gpu;
use crate::path::Path;
use crate::path_options::PathOptions;
use crate::staged::Staged;
use crate::stop::{Interruptible, check_stop};
use inlane_core::error::Class;
use inlane_core::mover::{Access, CpuMover, Mover};
use inlane_core::{Error, Location, Region, Result};
use inlane_result::Reason;
use inlane_twin::{Accelerator, BarMover};
use std::collections::BTreeMap;

/// The length in bytes and the number of slots of the staging ring. Applies to path `staged` if the CPU
/// drives it.
const RING: (usize, usize) = (8 << 20, 8);
/// The least and the greatest length of a host buffer of the hybrid path, in bytes.
const HYBRID_BUFFER: (usize, usize) = (4096, 256 << 20);

/// Opens one path as a mover.
///
/// # Errors
/// [`Error::Device`] if the path cannot exist between these devices, or a device refuses.
pub fn open_path(path: Path, from: &Device, to: &Device, options: &PathOptions) -> Result<Box<dyn Mover>> {
    if !Path::candidates(from.endpoint(), to.endpoint()).contains(&path) {
        return Err(unavailable(
            path,
            from,
            to,
            Unavailable::Impossible(path.why_not(from.endpoint(), to.endpoint())),
        ));
    }
    to.require_writable()?;
    // End an interrupted run here, because allocating rings and buffers can take long.
    check_stop(&options.stop)?;
    #[cfg(feature = "cuda")]
    if let Some(mover) = crate::gpu_paths::open(path, from, to, options)? {
        return Ok(mover);
    }
    Ok(match (path, from.kind(), to.kind()) {
        (Path::Cpu, Kind::Twin(source), Kind::Twin(destination)) => {
            twin_bars(Some(source), Some(destination), options)?
        }
        (Path::Cpu, Kind::Twin(source), _) => twin_bars(Some(source), None, options)?,
        (Path::Cpu, _, Kind::Twin(destination)) => twin_bars(None, Some(destination), options)?,
        (Path::Cpu, ..) => cpu(Some(from), Some(to), options)?,
        (Path::Dma, Kind::Twin(twin), _) => Box::new(twin.dma(false)?),
        (Path::Dma, _, Kind::Twin(twin)) => Box::new(twin.dma(true)?),
        (Path::Dma, Kind::Host(_), Kind::Host(_)) => software_dma(from, to)?,
        (Path::Staged, ..) => {
            let ring = host_buffer(from, to, RING.0)?;
            let (out, into) = (stage(from, true, options)?, stage(to, false, options)?);
            Box::new(Staged::overlapping(out, into, &ring, RING.1, options.stages, &options.stop)?)
        }
        (Path::Hybrid, ..) => {
            let bytes = options.largest.clamp(HYBRID_BUFFER.0, HYBRID_BUFFER.1);
            let buffers = [host_buffer(from, to, bytes)?, host_buffer(from, to, bytes)?];
            let (out, into) = (stage(from, true, options)?, stage(to, false, options)?);
            Box::new(Staged::in_turn(out, into, buffers, options.stages, &options.stop)?)
        }
        _ => {
            return Err(unavailable(
                path,
                from,
                to,
                Unavailable::Impossible("does not exist between these endpoints"),
            ));
        }
    })
}

/// Opens DPDK's software DMA device, for path `dma` from host memory to host memory. inlane drives no
/// hardware engine for such copies.
#[cfg(feature = "dpdk")]
fn software_dma(_: &Device, _: &Device) -> Result<Box<dyn Mover>> {
    Ok(Box::new(inlane_dpdk::DmaDev::skeleton().map_err(Error::from)?))
}

#[cfg(not(feature = "dpdk"))]
fn software_dma(from: &Device, to: &Device) -> Result<Box<dyn Mover>> {
    Err(unavailable(Path::Dma, from, to, Unavailable::NotBuilt("dpdk")))
}

/// Creates the error for a pair of devices without any usable path:
/// - If one path was refused: the error of this path.
/// - If several were refused: one error with all reasons in `refused`. Its class is the gravest class among
///   `errors`: failure, then usage, then environment.
/// - If none was refused: a usage error, because the user has excluded all paths.
pub(crate) fn no_path_error(
    [from, to]: [&Device; 2],
    refused: &BTreeMap<Path, Reason>,
    mut errors: Vec<Error>,
) -> Error {
    let gravity = |class: &Class| match class {
        Class::Environment => 0,
        Class::Usage => 1,
        Class::Failed => 2,
    };
    let class = errors.iter().map(Error::class).max_by_key(gravity).unwrap_or(Class::Usage);
    match errors.pop() {
        Some(only) if refused.len() == 1 => only,
        _ => {
            let (from, to) = (from.endpoint().clone(), to.endpoint().clone());
            crate::Error::NoPath { from, to, refused: refused.clone(), class }.into()
        }
    }
}

/// Opens a mover that copies with CPU loads and stores through the BARs of twins. `from` and `to` are the
/// twins of the two ends. `None` means host memory.
fn twin_bars(
    from: Option<&Accelerator>,
    to: Option<&Accelerator>,
    options: &PathOptions,
) -> Result<Box<dyn Mover>> {
    Ok(Box::new(Interruptible::new(Box::new(BarMover::new(from, to)?), None, &options.stop)))
}

/// Returns the access that suits a device: 8 bytes for an uncached BAR, the widest ordinary access for other
/// memory. All devices that we know accept 8 bytes.
pub(crate) fn suitable_access(device: &Device) -> Access {
    match device.kind() {
        Kind::Bar { memory, .. } => match memory.whole().location() {
            Location::Bar { write_combining: true, .. } => Access::widest(),
            _ => Access::Bytes8,
        },
        _ => Access::widest(),
    }
}

/// Opens a mover that copies with CPU loads and stores between two devices; `None` is host memory. The access
/// width is the requested one, or one that suits the memory.
fn cpu(from: Option<&Device>, to: Option<&Device>, options: &PathOptions) -> Result<Box<dyn Mover>> {
    let mut reads = true;
    let mut suits = Access::widest();
    for device in [from, to].into_iter().flatten() {
        if let Kind::Bar { permission, .. } = device.kind() {
            reads &= permission.may_read();
            suits = suitable_access(device);
        }
    }
    let is_bar =
        |device: Option<&Device>| device.is_some_and(|device| matches!(device.kind(), Kind::Bar { .. }));
    let mover = || -> Result<CpuMover> {
        let mover = CpuMover::new(options.access.unwrap_or(suits))?;
        Ok(mover.named_after(is_bar(from), is_bar(to)).reading_bars(reads))
    };
    let flush = options.delivered.then(mover).transpose()?;
    Ok(Box::new(Interruptible::new(Box::new(mover()?), flush, &options.stop)))
}

/// Opens the mover of one stage: from a device to host memory if `out` is set, otherwise from host memory to
/// the device.
pub(crate) fn stage(device: &Device, out: bool, options: &PathOptions) -> Result<Box<dyn Mover>> {
    Ok(match device.kind() {
        Kind::Gpu(gpu) => gpu::copy_engine(gpu)?,
        Kind::Twin(twin) => Box::new(twin.dma(!out)?),
        Kind::Bar { .. } | Kind::Host(_) if out => cpu(Some(device), None, options)?,
        Kind::Bar { .. } | Kind::Host(_) => cpu(None, Some(device), options)?,
    })
}

/// Allocates host memory that both devices reach: pinned if a GPU is among them.
pub(crate) fn host_buffer(from: &Device, to: &Device, bytes: usize) -> Result<Region> {
    match from.gpu().or(to.gpu()) {
        Some(gpu) => Ok(gpu.pinned(bytes)?),
        None => Region::host(bytes),
    }
}
