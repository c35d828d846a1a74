//! Opens the ports of a run, and creates the pools that provide the ports' packet buffers.

use crate::config::{Config, Executor, Route};
use crate::error::Result;
use crate::field;
use crate::gpu::{Gpu, Memory};
use inlane_core::clock::Clock;
use inlane_core::{Error, HeapPool, Pool};
#[cfg(feature = "dpdk")]
use inlane_dpdk::MbufPool;
use inlane_ports::check::reference::ReferenceFunction;
pub(super) use inlane_ports::open::OpenPorts;
use inlane_ports::open::{self, OpenRequest};
use inlane_ports::spec::PortSpec;
use std::sync::Arc;

/// Opens every port of a run.
///
/// # Errors
/// When a port cannot be opened.
pub(super) fn ports(
    specs: &[PortSpec],
    config: &Config,
    reference: Option<&Arc<dyn ReferenceFunction>>,
    clock: &Clock,
) -> Result<OpenPorts> {
    let (rx, tx) = match &config.route {
        Route::OneWay { rx, tx } => (Some(rx), tx.as_slice()),
        Route::Between(..) => (None, [].as_slice()),
    };
    let request = OpenRequest {
        ports: specs,
        rx,
        tx,
        reference,
        rate: config.rate,
        playback: config.playback,
        queues: config.pipelines,
        room: config.room,
    };
    Ok(open::ports(&request, clock)?)
}

/// Creates a pool for each pipeline of each direction. If any port is DPDK's, all pools consist of mbufs,
/// because DPDK sends only mbufs.
///
/// # Errors
/// When memory is short, or the buffers are larger than the pool supports.
pub(super) fn pools(
    specs: &[PortSpec],
    config: &Config,
    room: usize,
    directions: usize,
    gpu: Option<&Arc<Gpu>>,
) -> Result<Vec<Vec<Arc<dyn Pool>>>> {
    let needs_mbufs = open::needs_mbufs(specs);
    if let Some(port) = needs_mbufs {
        open::check_mbuf_room(port, room)?;
    }
    let buffers = config.buffers();
    let one = || -> Result<Arc<dyn Pool>> {
        if let (Some(gpu), Executor::Gpu { settings, .. }) = (gpu, &config.executor) {
            let bytes = || {
                HeapPool::bytes(buffers, room).ok_or_else(|| {
                    let what = format!("a pool of {buffers} buffers of {room} bytes");
                    Error::invalid(what, format!("is too large; ask for fewer with {}", field::BUFFERS))
                })
            };
            match (settings.memory, needs_mbufs.is_some()) {
                (Memory::Pool, true) => {
                    return mbufs_on_gpu(gpu, buffers, room);
                }
                (Memory::Pool, false) => {
                    return Ok(Arc::new(HeapPool::over(gpu.allocate(bytes()?)?, room)?));
                }
                // Let the GPU's driver allocate the memory. Its pages are then larger than those of memory
                // that is only registered with the driver.
                (_, false) => return Ok(Arc::new(HeapPool::over(gpu.pinned(bytes()?)?, room)?)),
                // For mbufs in host memory, use the code below, which also serves runs on the CPU. DPDK
                // allocates their memory. Later, `Lane::new` registers it with the GPU's driver.
                (_, true) => {}
            }
        }
        Ok(open::pool(specs, buffers, room)?)
    };
    (0..directions).map(|_| (0..config.pipelines).map(|_| one()).collect()).collect()
}

/// Creates a pool of mbufs whose data lies in GPU memory.
#[cfg(feature = "dpdk")]
fn mbufs_on_gpu(gpu: &Arc<Gpu>, buffers: usize, room: usize) -> Result<Arc<dyn Pool>> {
    Ok(MbufPool::over(gpu.allocate(MbufPool::bytes(buffers, room))?, room)?)
}

#[cfg(not(feature = "dpdk"))]
fn mbufs_on_gpu(_: &Arc<Gpu>, _: usize, _: usize) -> Result<Arc<dyn Pool>> {
    unreachable!("check_mbuf_room refuses ports that need mbufs in a program without DPDK")
}
