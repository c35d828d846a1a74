//! Opening one path between two devices.

use crate::device::{Device, Kind};
use crate::gpu::sm_copy::SmCopy;
use crate::gpu::{staged as engines, staged_sm as sms};
use crate::hybrid::Hybrid;
use crate::path::Path;
use crate::route::Options;
use crate::staged::Staged;
use crate::stop::{Pieces, check_stop};
use inlane_core::error::Class;
use inlane_core::mover::{Access, CpuMover, Mover};
use inlane_core::{CompletionMode, Error, Region, Result};
use inlane_cuda::{CopyEngine, enable_peer_access};
use inlane_twin::{Accelerator, BarMover};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Peer access cannot be taken back within a process, and CUDA's own copy then uses it.
static PEER_ACCESS: AtomicBool = AtomicBool::new(false);

/// Opens one path.
///
/// # Errors
/// [`Error::Device`] that says why it cannot be had.
pub fn open_path(
    path: Path,
    from: &Arc<Device>,
    to: &Arc<Device>,
    options: &Options,
) -> Result<Box<dyn Mover>> {
    if !Path::candidates(from.endpoint(), to.endpoint()).contains(&path) {
        return Err(unavailable(path, from, to, path.why_not(from.endpoint(), to.endpoint())));
    }
    to.require_writable()?;
    // Rings and buffers take their time to allocate.
    check_stop(&options.stop)?;
    Ok(match (path, from.kind(), to.kind()) {
        (Path::Bar, Kind::Twin(source), Kind::Twin(destination)) => {
            twin_bars(Some(source), Some(destination), options)?
        }
        (Path::Bar, Kind::Twin(source), _) => twin_bars(Some(source), None, options)?,
        (Path::Bar, _, Kind::Twin(destination)) => twin_bars(None, Some(destination), options)?,
        (Path::Bar, ..) => cpu(Some(from), Some(to), options)?,
        (Path::Dma, Kind::Twin(twin), _) => Box::new(twin.dma(false)?),
        (Path::Dma, _, Kind::Twin(twin)) => Box::new(twin.dma(true)?),
        (Path::Dma, Kind::Gpu(gpu), _) | (Path::Dma, _, Kind::Gpu(gpu)) => {
            Box::new(CopyEngine::new(gpu.gpu())?)
        }
        // DPDK's software device: no hardware engine copies from host to host here.
        (Path::Dma, Kind::Host(_), Kind::Host(_)) => {
            Box::new(inlane_dpdk::DmaDev::skeleton().map_err(Error::from)?)
        }
        (Path::Sm, Kind::Gpu(gpu), _) | (Path::Sm, _, Kind::Gpu(gpu)) => {
            Box::new(SmCopy::new(gpu.gpu(), gpu.kernels(), options.blocks)?)
        }
        (Path::P2p, Kind::Gpu(source), Kind::Gpu(destination)) => {
            enable_peer_access(source.gpu(), destination.gpu())?;
            PEER_ACCESS.store(true, Ordering::Relaxed);
            Box::new(CopyEngine::new(source.gpu())?)
        }
        (Path::Cuda, Kind::Gpu(source), Kind::Gpu(_)) => {
            if PEER_ACCESS.load(Ordering::Relaxed) {
                let why = "peer access is on in this process, and CUDA would use it; measure it in a process of its own";
                return Err(unavailable(path, from, to, why));
            }
            Box::new(CopyEngine::new(source.gpu())?)
        }
        (Path::Staged, Kind::Gpu(source), Kind::Gpu(destination)) => {
            let tuning = options.engines.unwrap_or_else(|| engines::Tuning::suited(options.both_ways));
            Box::new(engines::Staged::new(source.gpu(), destination.gpu(), tuning)?)
        }
        (Path::StagedSm, Kind::Gpu(source), Kind::Gpu(destination)) => Box::new(sms::StagedSm::new(
            (source.gpu(), source.kernels()),
            (destination.gpu(), destination.kernels()),
            options.sms,
            options.resident,
        )?),
        (Path::Staged, ..) => {
            let ring = host_buffer(from, to, 8 << 20)?;
            Box::new(
                Staged::new(leg(from, true, options)?, leg(to, false, options)?, &ring, 8, options.legs)?
                    .until(&options.stop),
            )
        }
        (Path::Hybrid, ..) => {
            let bytes = options.largest.clamp(4096, 256 << 20);
            let buffers = [host_buffer(from, to, bytes)?, host_buffer(from, to, bytes)?];
            let (out, into) = (leg(from, true, options)?, leg(to, false, options)?);
            Box::new(Hybrid::new(out, into, buffers, options.legs)?.until(&options.stop))
        }
        _ => return Err(unavailable(path, from, to, "not between these two")),
    })
}

fn unavailable(path: Path, from: &Device, to: &Device, why: &str) -> Error {
    Error::device_usage(format!("path {path} from {} to {}", from.endpoint(), to.endpoint()), why)
}

/// What is wrong where no path is left: the one thing that is, or all of them, of the gravest class; it is a matter of usage where
/// all were left out.
pub(crate) fn none_left(
    [from, to]: [&Device; 2],
    refused: &BTreeMap<Path, String>,
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
            let why: Vec<_> = refused.iter().map(|(path, why)| format!("{path}: {why}")).collect();
            Error::Device {
                device: format!("{} to {}", from.endpoint(), to.endpoint()),
                why: format!("no path is left: {}", why.join("; ")),
                class,
            }
        }
    }
}

/// The CPU through the BARs of models.
fn twin_bars(
    from: Option<&Accelerator>,
    to: Option<&Accelerator>,
    options: &Options,
) -> Result<Box<dyn Mover>> {
    Ok(Box::new(Pieces::new(Box::new(BarMover::new(from, to)?), None, &options.stop)))
}

/// The CPU as a mover out of one device and into another, `None` being the host, with the access that suits them unless one
/// was asked for.
fn cpu(from: Option<&Device>, to: Option<&Device>, options: &Options) -> Result<Box<dyn Mover>> {
    let mut reads = true;
    let mut suits = Access::widest();
    for device in [from, to].into_iter().flatten() {
        if let Kind::Bar { memory, permission } = device.kind() {
            reads &= permission.may_read();
            let combining =
                matches!(memory.whole().location(), inlane_core::Location::Bar { write_combining: true, .. });
            // Uncached: the widest access that devices take without exception of the known ones.
            suits = if combining { Access::widest() } else { Access::Bytes8 };
        }
    }
    let is_bar =
        |device: Option<&Device>| device.is_some_and(|device| matches!(device.kind(), Kind::Bar { .. }));
    let mover = || -> Result<CpuMover> {
        let mover = CpuMover::new(options.access.unwrap_or(suits))?;
        Ok(mover.named_by(is_bar(from), is_bar(to)).reading_bars(reads))
    };
    let flush = options.delivered.then(mover).transpose()?;
    Ok(Box::new(Pieces::new(Box::new(mover()?), flush, &options.stop)))
}

/// What moves between a device and host memory: out of the device, or into it.
pub(crate) fn leg(device: &Arc<Device>, out: bool, options: &Options) -> Result<Box<dyn Mover>> {
    Ok(match device.kind() {
        Kind::Gpu(gpu) => Box::new(CopyEngine::new(gpu.gpu())?),
        Kind::Twin(twin) => Box::new(twin.dma(!out)?),
        Kind::Bar { .. } | Kind::Host(_) if out => cpu(Some(device), None, options)?,
        Kind::Bar { .. } | Kind::Host(_) => cpu(None, Some(device), options)?,
    })
}

/// Has both legs of a path awaited by `completion`; how it is then really awaited.
pub(crate) fn set_stage_completion_modes(
    legs: [&mut dyn Mover; 2],
    completion: CompletionMode,
) -> CompletionMode {
    // A leg that the CPU copies is busy whatever is asked for; the other may sleep.
    let heard = legs.map(|leg| leg.set_completion_mode(completion));
    if heard.contains(&completion) { completion } else { CompletionMode::Poll }
}

/// Host memory that both devices reach.
pub(crate) fn host_buffer(from: &Device, to: &Device, bytes: usize) -> Result<Region> {
    match from.gpu().or(to.gpu()) {
        Some(gpu) => Ok(gpu.pinned(bytes)?),
        None => Region::host(bytes),
    }
}
