//! VFIO: a device that its kernel driver has given up, its BARs, its interrupts as eventfds, its DMA behind an IOMMU.
//!
//! ```text
//! container (an IOMMU address space) -- group (what the IOMMU cannot tell apart) -- device
//! ```
//!
//! A process has one container a group, made when the group's first device is opened and shared by its other devices
//! and by later opens. The kernel undoes everything when the last descriptor closes, however the process ends.

mod device;
mod dma;
mod group;
mod interrupts;
mod regions;
mod sys;

pub use device::Device;
pub use dma::DmaMapping;
pub use interrupts::{Interrupts, Kind as InterruptKind};
pub use regions::BarRegion;
