//! DPDK through one safe layer: the environment ([`eal`]), mbuf pools in host or any other memory ([`MbufPool`]), and
//! every ethdev as a [`Port`](inlane_core::Port) ([`open`]), a dmadev as a [`Mover`](inlane_core::mover::Mover) ([`DmaDev`]).
//!
//! | written | is |
//! | --- | --- |
//! | `net_null[:SIZE]` | makes and swallows packets of SIZE bytes (64) |
//! | `ring:NAME` | what is sent comes back; `prime=N` puts N packets in |
//! | `af_xdp:IFACE` | a kernel interface through AF_XDP sockets |
//! | `af_packet:IFACE` | a kernel interface through packet sockets |
//! | `tap:NAME` | a new kernel interface |
//! | `memif:SOCKET` | shared memory with another process; `role=server`, `id=N` |
//! | `pci:ADDRESS` | a network card bound to vfio-pci |
//!
//! Options follow the argument after commas (`af_xdp:eth0,descriptors=1024`); [`spec`] lists them.
//!
//! Linked statically are the drivers of these ports and the network cards' that need no library of their vendor
//! (e1000, ena, gve, i40e, iavf, ice, igc, ixgbe, virtio, vmxnet3). Not linked: mlx4 and mlx5, which need rdma-core's
//! libraries on the machine.

mod device;
mod dma;
mod dmadev;
mod drops;
pub mod eal;
mod endpoint;
mod error;
mod interface;
mod joined;
mod log;
mod oversize;
mod pool;
mod port;
pub mod privileges;
pub mod spec;
mod sys;
mod thread;
mod xdp_sockets;

use std::sync::atomic::{AtomicBool, Ordering};

pub use dmadev::DmaDev;
pub use error::{Error, Result};
pub use pool::MbufPool;
pub use port::{EthPort, open, open_for};
pub use thread::ThreadGuard;

static HURRIED: AtomicBool = AtomicBool::new(false);

/// The program is about to end: ports that wait for a peer or a link while they start wait no longer, in this process.
pub fn wait_no_more() {
    HURRIED.store(true, Ordering::Relaxed);
}

pub(crate) fn hurried() -> bool {
    HURRIED.load(Ordering::Relaxed)
}
