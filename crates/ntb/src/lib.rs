//! Non-transparent bridges (NTB): windows, doorbells, scratchpads, link and handshake. A bridge connects
//! systems that share nothing but a PCIe link.
//!
//! [`device`] describes the bridge as Linux's NTB API does. Two back-ends implement it: [`twin`] connects
//! processes of one machine, and [`ivshmem`] connects virtual machines. [`fault`] injects faults of a real
//! link. [`window`] stores to a peer's memory. [`discover`] finds a machine's bridges.

pub mod device;
pub mod discover;
pub mod error;
pub mod fault;
pub mod field;
pub mod handshake;
pub mod ivshmem;
mod registers;
pub mod twin;
pub mod window;
