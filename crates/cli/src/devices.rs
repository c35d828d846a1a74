//! The functions of CUDA and DPDK that subcommands use. A build without the cargo feature `cuda` or `dpdk`
//! has stand-ins: no GPU is found, and DPDK has no version.

#[cfg(not(feature = "cuda"))]
pub use absent::*;
#[cfg(feature = "cuda")]
pub use cuda::*;

/// Returns the version of DPDK that is linked into this program. Returns `None` in a build without DPDK.
pub fn dpdk_version() -> Option<String> {
    #[cfg(feature = "dpdk")]
    return Some(inlane_dpdk::eal::version());
    #[cfg(not(feature = "dpdk"))]
    None
}

/// Makes DPDK's ports stop waiting for a peer to connect or a link to come up.
pub fn stop_waiting() {
    #[cfg(feature = "dpdk")]
    inlane_dpdk::stop_waiting();
}

#[cfg(feature = "cuda")]
mod cuda {
    use inlane_cuda::{DeviceInfo, Error, Gpu};
    use std::any::Any;
    use std::path::PathBuf;

    pub use inlane_cuda::any_abandoned;

    /// Opens a GPU, and keeps its CUDA context until the returned value is dropped. Returns `None` if the GPU
    /// cannot be opened.
    pub fn hold_gpu(index: u32) -> Option<Box<dyn Any>> {
        Some(Box::new(Gpu::open(index).ok()?))
    }

    /// Returns the number of GPUs. A machine without the driver has none.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn gpu_count() -> Result<u32, inlane_core::Error> {
        // The error code CUDA_ERROR_NO_DEVICE. It counts as 0 GPUs, because the driver works but finds no
        // GPU.
        const NO_DEVICE: u32 = 100;
        match inlane_cuda::device_count() {
            Ok(count) => Ok(count),
            Err(Error::NoDriver | Error::Call { code: NO_DEVICE, .. }) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Describes the GPUs that the CUDA driver reports.
    ///
    /// # Errors
    /// If the driver cannot be used: the reason.
    pub fn describe_gpus() -> Result<Vec<String>, String> {
        let devices = inlane_cuda::devices().map_err(|error| error.cause())?;
        let describe = |gpu: &DeviceInfo| format!("gpu:{} {} ({})", gpu.index, gpu.name, gpu.pci_address);
        Ok(devices.iter().map(describe).collect())
    }

    /// Returns the version and the file of NVRTC. Searches the same places as a run that compiles packet
    /// functions.
    ///
    /// # Errors
    /// The reason why NVRTC cannot be used.
    pub fn nvrtc() -> Result<(String, PathBuf), String> {
        inlane_cuda::compiler_version().map_err(|error| error.cause())
    }
}

/// Replaces the module `cuda` in a build without GPU support.
#[cfg(not(feature = "cuda"))]
mod absent {
    use std::any::Any;
    use std::path::PathBuf;

    /// The error text in a build without GPU support. All requests to describe GPUs or NVRTC fail with it.
    const WHY: &str = "this program was built without the cargo feature cuda";

    pub fn any_abandoned() -> bool {
        false
    }

    pub fn hold_gpu(_: u32) -> Option<Box<dyn Any>> {
        None
    }

    pub fn gpu_count() -> Result<u32, inlane_core::Error> {
        Ok(0)
    }

    pub fn describe_gpus() -> Result<Vec<String>, String> {
        Err(WHY.into())
    }

    pub fn nvrtc() -> Result<(String, PathBuf), String> {
        Err(WHY.into())
    }
}
