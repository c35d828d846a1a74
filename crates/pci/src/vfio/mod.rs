//! VFIO: gives this process a device, its BARs, its interrupts as eventfds, and DMA through an IOMMU.
//!
//! ```text
//! container (an IOMMU address space) -- group (devices that the IOMMU cannot tell apart) -- device
//! ```
//!
//! A process has one container per group, which the group's devices share. The kernel undoes everything when
//! the last descriptor is closed.

mod device;
mod dma;
mod group;
mod interrupts;
mod regions;
mod sys;

pub use device::Device;
pub use dma::DmaMapping;
pub use interrupts::{InterruptKind, Interrupts};
pub use regions::BarRegion;
