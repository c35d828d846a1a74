//! PCI devices: their topology ([`topology`], [`numa`]), their BARs as memory ([`Bar`]), and DMA and
//! interrupts through VFIO ([`vfio`]).
//!
//! A BAR is not ordinary memory, so two rules hold:
//!
//! * A BAR is accessed only if its device is bound to vfio-pci, or has no driver and is in an allow list
//!   ([`permission`]).
//! * A BAR is accessed by naturally aligned volatile instructions, never through a slice: registers by
//!   [`Bar`], bytes of [`Bar::region`] by a [`CpuMover`](inlane_core::mover::CpuMover).
//!
//! Not supported: hot-plug, configuration of bridges, and SR-IOV.
//!
//! ```no_run
//! use inlane_pci::{Bar, Permission, Sysfs};
//!
//! let spec = "pci:0000:00:01.0/bar2@0+1M".parse()?;
//! let bar = Bar::open(&Sysfs::system(), &spec, &Permission::default().read().write())?;
//! bar.write_u32(8, 1)?;
//! # Ok::<(), inlane_pci::Error>(())
//! ```

pub mod address;
pub mod bar;
pub mod error;
#[cfg(test)]
mod fake_sysfs;
pub mod field;
pub mod link;
pub mod names;
pub mod numa;
mod parse;
pub mod permission;
pub mod spec;
pub mod sysfs;
pub mod topology;
pub mod vfio;

pub use address::Address;
pub use bar::Bar;
pub use error::{Error, Result};
pub use names::Names;
pub use permission::Permission;
pub use spec::BarSpec;
pub use sysfs::Sysfs;
pub use topology::{Device, Topology};
