//! Opens the ports of a run, and creates the pools that fill them.

use crate::config::{Config, Route};
use crate::error::Result;
use crate::gpu::Memory;
use inlane_core::clock::Clock;
use inlane_core::{Error, HeapPool, Pool};
use inlane_cuda::Gpu;
use inlane_dpdk::MbufPool;
pub use inlane_ports::open::{Opened, is_shared, kind, takes_privileges};
use inlane_ports::open::{Opening, is_dpdk};
use std::sync::Arc;

/// Opens every port of a run.
///
/// # Errors
/// When one of them cannot be opened, or is of no kind that there is.
pub fn ports(names: &[String], config: &Config, clock: &Clock) -> Result<Opened> {
    let received = match &config.route {
        Route::OneWay { rx, .. } => Some(rx.as_str()),
        Route::Between(..) => None,
    };
    let opening = Opening {
        names,
        received,
        function: &config.function,
        rate: config.rate,
        playback: config.playback,
        queues: config.pipelines,
        room: config.room,
    };
    Ok(inlane_ports::open::ports(&opening, clock)?)
}

/// A pool for each pipeline of each direction: of mbufs as soon as one port is DPDK's, which can send nothing else.
///
/// # Errors
/// When there is no memory for them.
pub fn pools(
    names: &[String],
    config: &Config,
    room: usize,
    directions: usize,
    gpu: Option<&Arc<Gpu>>,
) -> Result<Vec<Vec<Arc<dyn Pool>>>> {
    let mbufs = names.iter().any(|name| is_dpdk(name));
    let one = || -> Result<Arc<dyn Pool>> {
        let buffers = config.buffers();
        if let Some(gpu) = gpu {
            let heap = || {
                HeapPool::bytes(buffers, room).ok_or_else(|| Error::Invalid {
                    what: format!("a pool of {buffers} buffers of {room} bytes"),
                    why: "ask for fewer with --buffers".into(),
                })
            };
            match (config.gpu.memory, mbufs) {
                (Memory::Pool, true) => {
                    return Ok(MbufPool::over(gpu.allocate(MbufPool::bytes(buffers, room))?, room)?);
                }
                (Memory::Pool, false) => return Ok(Arc::new(HeapPool::over(gpu.allocate(heap()?)?, room)?)),
                // The driver's own pinned memory is in larger pages than what is registered with it.
                (_, false) => {
                    let region = gpu.pinned(heap()?)?;
                    return Ok(Arc::new(HeapPool::over(region, room)?));
                }
                // Mbufs and their data are one: DPDK's memory is registered as it is.
                (_, true) => {}
            }
        }
        Ok(match mbufs {
            true => MbufPool::new(buffers, room)?,
            false => Arc::new(HeapPool::new(buffers, room)?),
        })
    };
    (0..directions).map(|_| (0..config.pipelines).map(|_| one()).collect()).collect()
}
