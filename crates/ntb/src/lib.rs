//! Communication between systems that share nothing but PCIe windows, doorbells and scratchpads.
//!
//! From below: [`device`] is the bridge as Linux's NTB API has it, with the [`twin`] (and [`fault`]s to inject) and
//! [`ivshmem`] as its back-ends; [`window`] is where stores leave.

pub mod bell;
pub mod bench;
pub mod check;
pub mod device;
pub mod error;
pub mod fault;
pub mod handshake;
pub mod ivshmem;
pub mod launch;
pub mod record;
mod registers;
pub mod shmem;
pub mod store;
pub mod transport;
pub mod twin;
pub mod window;
