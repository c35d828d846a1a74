//! Non-transparent bridges (NTB): windows, doorbells, scratchpads, link and handshake between systems that share nothing
//! but a PCIe link.
//!
//! [`device`] is the bridge as Linux's NTB API has it. Its back-ends are the [`twin`] (processes of one machine) and
//! [`ivshmem`] (virtual machines); [`fault`] injects what shared memory hides. [`window`] is the path of stores to a peer, [`discover`] finds the bridges of a machine.

pub mod device;
pub mod discover;
pub mod error;
pub mod fault;
pub mod handshake;
pub mod ivshmem;
mod registers;
pub mod twin;
pub mod window;
