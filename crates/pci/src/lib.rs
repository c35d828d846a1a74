//! PCI devices: which there are and how they are linked ([`topology`], [`numa`]), their BARs as memory ([`Bar`]), and VFIO's
//! DMA and interrupts ([`vfio`]).
//!
//! A BAR is not ordinary memory. What this crate holds to:
//!
//! * it is touched only when its device is bound to vfio-pci, or has no driver and is named in an allow list; never while a
//!   kernel driver holds it; reads need a flag, writes a flag and an explicit range ([`permission`]);
//! * it is accessed by naturally aligned volatile instructions, never through a slice: here by registers; bytes are copied from
//!   and to its [`Bar::region`] by a mover, which lets a width be chosen, and knows what is issued and what delivered
//!   ([`inlane_core::mover::CpuMover`]).
//!
//! Not here: hot-plug, configuration of bridges, SR-IOV, and what any particular device does with its registers.
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
pub mod link;
mod mapping;
pub mod names;
pub mod numa;
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
