//! GPUs: their memory as an endpoint, and the movers by which copy engines or SMs copy the bytes.

mod command_ring;
pub mod engine_staged;
pub(crate) mod kernels;
mod memory;
pub(crate) mod sm_copy;
pub mod sm_staged;
mod staging_words;
mod trace;

pub use inlane_cuda::Gpu;
pub use memory::GpuMemory;

use inlane_core::Result;
use inlane_core::mover::Mover;
use inlane_cuda::CopyEngine;

/// Opens a copy engine of a GPU as a mover.
pub(crate) fn copy_engine(gpu: &GpuMemory) -> Result<Box<dyn Mover>> {
    Ok(Box::new(CopyEngine::new(gpu.gpu())?))
}

/// Returns the PCI address of a GPU.
pub(crate) fn pci_address(gpu: &Gpu) -> String {
    gpu.info().pci_address.to_string()
}

/// Returns true if this machine has no GPU, or no driver for one.
pub(crate) fn none_found() -> bool {
    // The code of CUDA_ERROR_NO_DEVICE: the driver works but finds no GPU.
    const NO_DEVICE: u32 = 100;
    use inlane_cuda::Error::{Call, NoDriver};
    matches!(inlane_cuda::device_count(), Ok(0) | Err(NoDriver | Call { code: NO_DEVICE, .. }))
}

/// Returns true once a GPU stopped answering and was given up. Further CUDA calls may then block.
pub(crate) fn any_abandoned() -> bool {
    inlane_cuda::any_abandoned()
}

/// Returns the version of CUDA that the driver supports, or `None` without a driver.
pub(crate) fn driver_version() -> Option<String> {
    inlane_cuda::driver_version().ok().map(|version| version.to_string())
}
