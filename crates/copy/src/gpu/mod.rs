//! GPUs: their memory as an endpoint, and the paths on which copy engines or SMs copy the bytes.

mod command_ring;
pub mod engine_staged;
pub(crate) mod kernels;
mod memory;
pub(crate) mod sm_copy;
pub mod sm_staged;
mod staging_words;
mod trace;

pub use inlane_cuda::Gpu;
pub use memory::GpuMemory;

use crate::device::{Device, Kind};
use crate::error::Unavailable;
use crate::open_path::unavailable;
use crate::path::Path;
use crate::path_options::PathOptions;
use crate::tuning::EngineTuning;
use engine_staged::EngineStaged;
use inlane_core::Result;
use inlane_core::mover::Mover;
use inlane_cuda::{CopyEngine, enable_peer_access};
use sm_copy::SmCopy;
use sm_staged::SmStaged;
use std::sync::atomic::{AtomicBool, Ordering};

/// True once a path has enabled peer access, because the process cannot disable it again. Path `cuda` then
/// refuses to open. It measures CUDA's own copy without peer access.
static PEER_ACCESS: AtomicBool = AtomicBool::new(false);

/// Opens the mover of `path` if copy engines or SMs of GPUs move all its bytes. Returns `None` for all other
/// paths.
pub(crate) fn open_path(
    path: Path,
    from: &Device,
    to: &Device,
    options: &PathOptions,
) -> Result<Option<Box<dyn Mover>>> {
    Ok(Some(match (path, from.kind(), to.kind()) {
        (Path::Dma, Kind::Gpu(gpu), _) | (Path::Dma, _, Kind::Gpu(gpu)) => copy_engine(gpu)?,
        (Path::Sm, Kind::Gpu(gpu), _) | (Path::Sm, _, Kind::Gpu(gpu)) => {
            Box::new(SmCopy::new(gpu.gpu(), gpu.kernels(), options.blocks)?)
        }
        (Path::P2p, Kind::Gpu(source), Kind::Gpu(destination)) => {
            enable_peer_access(source.gpu(), destination.gpu())?;
            PEER_ACCESS.store(true, Ordering::Relaxed);
            copy_engine(source)?
        }
        (Path::Cuda, Kind::Gpu(source), Kind::Gpu(_)) => {
            if PEER_ACCESS.load(Ordering::Relaxed) {
                return Err(unavailable(path, from, to, Unavailable::PeerAccess));
            }
            copy_engine(source)?
        }
        (Path::Staged, Kind::Gpu(source), Kind::Gpu(destination)) => {
            let tuning = options.engines.unwrap_or_else(|| EngineTuning::suited(options.both_ways));
            Box::new(EngineStaged::new(source.gpu(), destination.gpu(), tuning)?)
        }
        (Path::StagedSm, Kind::Gpu(source), Kind::Gpu(destination)) => Box::new(SmStaged::new(
            (source.gpu(), source.kernels()),
            (destination.gpu(), destination.kernels()),
            options.sms,
            options.resident,
        )?),
        _ => return Ok(None),
    }))
}

/// Opens a copy engine of a GPU as a mover.
pub(crate) fn copy_engine(gpu: &GpuMemory) -> Result<Box<dyn Mover>> {
    Ok(Box::new(CopyEngine::new(gpu.gpu())?))
}

/// Returns the PCI address of a GPU.
pub(crate) fn pci_address(gpu: &Gpu) -> String {
    gpu.info().pci_address.to_string()
}

/// Returns true if this machine has no GPU, or no driver for one.
pub(crate) fn none_found() -> bool {
    // The code of CUDA_ERROR_NO_DEVICE: the driver works but finds no GPU.
    const NO_DEVICE: u32 = 100;
    use inlane_cuda::Error::{Call, NoDriver};
    matches!(inlane_cuda::device_count(), Ok(0) | Err(NoDriver | Call { code: NO_DEVICE, .. }))
}

/// Returns true once a GPU stopped answering and was given up. Further CUDA calls may then block.
pub(crate) fn any_abandoned() -> bool {
    inlane_cuda::any_abandoned()
}

/// Returns the version of CUDA that the driver supports, or `None` without a driver.
pub(crate) fn driver_version() -> Option<String> {
    inlane_cuda::driver_version().ok().map(|version| version.to_string())
}
