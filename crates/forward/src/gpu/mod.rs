//! GPU executors: they run a pipeline's packet function on a GPU. Five methods work on the same burst ring.
//!
//! | method | what launches kernels | what waits until an item is submitted |
//! | --- | --- | --- |
//! | `single` | the dispatching thread, a kernel per item, one item at a time | nothing: the item is there before the launch |
//! | `split` | the feeder, a kernel per item | nothing: the item is there before the launch |
//! | `persistent` | one launch at the start; block b of n takes items b, b+n, ... | the blocks, which poll the ring |
//! | `stream` | the feeder, a wait and a kernel per item ahead of time; one kernel for all items that are already there | the GPU's front end |
//! | `graph` | the feeder, as `stream`, with a graph for several items | the GPU's front end |
//!
//! ```text
//! receive -> ring, submission half -> kernel: descriptors, packets -> ring, completion half -> send
//!            CPU writes, GPU reads    over PCIe in place,             GPU writes, CPU reads
//!            pinned memory            or pulled into GPU memory       pinned memory
//! ```
//!
//! At the end of a run the dispatcher closes the ring and the kernels drain it. The host satisfies waits for
//! items that never come by words with a packet count of 0. If a packet function never returns, the watchdog
//! reports it, and the GPU is abandoned: its memory is never freed. The process must then end without exit
//! handlers (`inlane_cuda::any_abandoned`).

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod ceilings;
#[cfg(feature = "cuda")]
mod competing_kernel;
#[cfg(all(test, feature = "cuda"))]
mod emulated;
#[cfg(feature = "cuda")]
mod feeder;
#[cfg(feature = "cuda")]
mod lane;
mod lane_report;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod loaded_function;
#[cfg(feature = "cuda")]
mod parameters;
#[cfg(feature = "cuda")]
mod posters;
#[cfg(feature = "cuda")]
mod run;
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "lanes use most of it"))]
mod settings;
#[cfg(all(test, feature = "cuda"))]
mod tests;
#[cfg(feature = "cuda")]
mod watchdog;

#[cfg(not(feature = "cuda"))]
pub(crate) use absent::{CompetingKernel, Gpu, Lane, LinkMeter, LinkSamples, LoadedFunction, open, run};
#[cfg(feature = "cuda")]
pub use ceilings::{GpuCeilings, Pull, RoundTrip, ceilings, round_trip};
#[cfg(feature = "cuda")]
pub(crate) use competing_kernel::CompetingKernel;
#[cfg(feature = "cuda")]
pub(crate) use inlane_cuda::{Gpu, LinkMeter, LinkSamples};
#[cfg(feature = "cuda")]
pub use lane::Lane;
pub use lane_report::{LaneReport, PCIE_MODEL};
#[cfg(feature = "cuda")]
pub use loaded_function::LoadedFunction;
#[cfg(feature = "cuda")]
pub use run::run;
pub use settings::{Memory, Settings};

/// Opens the GPU with this CUDA index. Also locates the run-time compiler (NVRTC) now, while its directory is
/// readable. The compiler is loaded only after privileges are dropped.
///
/// # Errors
/// If the driver or the GPU is missing.
#[cfg(feature = "cuda")]
pub(crate) fn open(index: u32) -> crate::error::Result<std::sync::Arc<Gpu>> {
    let gpu = Gpu::open(index)?;
    inlane_cuda::locate_compiler();
    Ok(gpu)
}

/// Returns true if privileges must be dropped before `function` is loaded, because loading runs code that the
/// user chose. Such code is:
///
/// - a packet function from the user's file
/// - the run-time compiler that `INLANE_NVRTC` names
/// - any run-time compiler, if the process does not run as root: the environment then decides which compiler
///   is found
///
/// If only the installed compiler runs, root keeps its privileges. They are required for root's cache of
/// kernels.
pub(crate) fn runs_user_code(on_gpu: bool, function: &inlane_function::PacketFunction) -> bool {
    // SAFETY: geteuid only reads a number and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let chosen = std::env::var_os("INLANE_NVRTC").is_some();
    function.is_user_code() || on_gpu && (!root || chosen)
}
