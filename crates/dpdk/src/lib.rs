//! DPDK behind a safe interface. [`eal`] is its environment. [`MbufPool`] is a pool of mbufs in host or any
//! other memory. [`open`] returns any ethdev as a [`Port`](inlane_core::Port). [`DmaDev`] is a dmadev as a
//! [`Mover`](inlane_core::mover::Mover).
//!
//! | port | is |
//! | --- | --- |
//! | `net_null[:SIZE]` | generates and discards frames of SIZE bytes (default 64) |
//! | `ring:NAME` | rings in this process: what is sent comes back; `prime=N` puts N packets in |
//! | `af_xdp:IFACE` | a kernel interface through AF_XDP sockets |
//! | `af_packet:IFACE` | a kernel interface through packet sockets |
//! | `tap:NAME` | a new kernel interface |
//! | `memif:SOCKET` | shared memory with another process; `role=server`, `id=N` |
//! | `pci:ADDRESS` | a network card bound to vfio-pci |
//!
//! Options follow after commas, as in `af_xdp:eth0,descriptors=1024`. [`spec`] lists them.
//!
//! The drivers of these ports are linked statically, and so are e1000, ena, gve, i40e, iavf, ice, igc, ixgbe,
//! virtio and vmxnet3. mlx4 and mlx5 are not linked, because they need rdma-core.

mod device;
mod dma;
mod dmadev;
pub mod eal;
mod endpoint;
mod error;
pub mod field;
mod gate;
mod interface;
mod kernel_counters;
mod log;
mod pool;
mod port;
mod refused_frames;
pub mod spec;
mod sys;
mod thread;
mod xdp;

use std::sync::atomic::{AtomicBool, Ordering};

pub use device::memif_socket;
pub use dmadev::DmaDev;
pub use error::{Error, Result};
pub use pool::{MAX_ROOM, MbufPool};
pub use port::{EthPort, open, open_for};
pub use thread::ThreadGuard;

static STOPPING: AtomicBool = AtomicBool::new(false);

/// Ends the waits of starting ports for a peer or a link. Ports that start later do not wait either. Call it
/// when the program is about to end.
pub fn stop_waiting() {
    STOPPING.store(true, Ordering::Relaxed);
}

/// Returns true once [`stop_waiting`] was called.
pub(crate) fn is_stopping() -> bool {
    STOPPING.load(Ordering::Relaxed)
}
