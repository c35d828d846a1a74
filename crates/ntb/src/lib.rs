//! Communication between systems that share nothing but PCIe windows, doorbells and scratchpads.
//!
//! From below: [`device`] is the bridge as Linux's NTB API has it, with the [`twin`] as its first back-end and [`fault`]s
//! to inject; [`window`] is where stores leave.

pub mod bell;
pub mod device;
pub mod error;
pub mod fault;
pub mod handshake;
pub mod launch;
pub mod record;
pub mod shmem;
pub mod store;
pub mod transport;
pub mod twin;
pub mod window;
