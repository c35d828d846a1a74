//! Opens the paths on which copy engines or SMs of GPUs copy the bytes.

use crate::device::{Device, Kind, unavailable};
use crate::error::Unavailable;
use crate::gpu::copy_engine;
use crate::gpu::engine_staged::EngineStaged;
use crate::gpu::sm_copy::SmCopy;
use crate::gpu::sm_staged::SmStaged;
use crate::path::Path;
use crate::path_options::PathOptions;
use crate::tuning::EngineTuning;
use inlane_core::Result;
use inlane_core::mover::Mover;
use inlane_cuda::enable_peer_access;
use std::sync::atomic::{AtomicBool, Ordering};

/// True once a path has enabled peer access, because the process cannot disable it again. Path `cuda` then
/// refuses to open. It measures CUDA's own copy without peer access.
static PEER_ACCESS: AtomicBool = AtomicBool::new(false);

/// Opens the mover of `path` if copy engines or SMs of GPUs move all its bytes. Returns `None` for all other
/// paths.
pub(crate) fn open(
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
