//! VFIO: gives this process access to a device and its BARs, interrupts as eventfds, and DMA through an
//! IOMMU.
//!
//! ```text
//! container (an IOMMU address space) -- group (devices that the IOMMU cannot tell apart) -- device
//! ```
//!
//! A process has one container for each group. All devices of the group share this container. The kernel
//! undoes everything when the last descriptor is closed.

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
