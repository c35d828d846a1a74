//! PCI devices: which there are and how they are linked ([`topology`], [`numa`]), their BARs as memory ([`Bar`]), and VFIO's
//! DMA and interrupts ([`vfio`]).
//!
//! A BAR is not ordinary memory. What this crate holds to:
//!
//! * it is touched only when its device is bound to vfio-pci, or has no driver and is named in an allow list; never while a
//!   kernel driver holds it; reads need a flag, writes a flag and an explicit range ([`rule`]);
//! * it is accessed by naturally aligned instructions of a chosen width, never through a slice ([`access`]);
//! * a store is *issued* once it has left the processor, *delivered* once a read from the same device came back
//!   ([`Bar::issued`], [`Bar::delivered`]).
//!
//! Not here: hot-plug, configuration of bridges, SR-IOV, and what any particular device does with its registers.
//!
//! ```no_run
//! use inlane_pci::{Bar, Permission, Sysfs, Width};
//!
//! let spec = "pci:0000:00:01.0/bar2@0+1M".parse()?;
//! let bar = Bar::open(&Sysfs::system(), &spec, &Permission::default().read().write())?;
//! bar.store(0, b"sixteen bytes...", Width::B16)?;
//! bar.delivered()?;
//! # Ok::<(), inlane_pci::Error>(())
//! ```

pub mod access;
pub mod address;
pub mod bar;
pub mod error;
#[cfg(test)]
mod fake;
pub mod link;
mod mapping;
pub mod names;
pub mod numa;
pub mod rule;
pub mod spec;
pub mod sysfs;
pub mod topology;
pub mod vfio;

pub use access::Width;
pub use address::Address;
pub use bar::Bar;
pub use error::{Error, Result};
pub use names::Names;
pub use rule::Permission;
pub use spec::BarSpec;
pub use sysfs::Sysfs;
pub use topology::{Device, Topology};
