//! NVIDIA GPUs through the CUDA driver API: memory, streams, events, graphs, kernels and copy engines.
//!
//! The driver (`libcuda.so.1`) and the run-time compiler (`libnvrtc.so`) are loaded when they are first
//! needed. Without a GPU, [`devices`] returns an [`Error`].
//!
//! * [`Gpu`]: an open device: its primary context, properties, and memory as core
//!   [`Region`](inlane_core::Region)s.
//! * [`Stream`], [`Event`], [`Graph`]: the order of work.
//! * [`compile`], [`Module`], [`Kernel`]: kernels, compiled from source for the installed GPU and cached on
//!   disk.
//! * [`LinkMeter`]: the traffic on a GPU's PCIe link, from NVML's counters.
//! * [`CopyEngine`], [`GpuStagedCopy`]: core [`Mover`](inlane_core::mover::Mover)s that use a GPU's DMA
//!   engines. [`PendingCopies`] keeps track of copies in flight on streams.
//!
//! Allocating and freeing memory, registering host memory and loading a module wait for all running kernels.
//! Do all this before a persistent kernel starts.

mod copy_engine;
mod device;
mod driver;
mod error;
mod event_waiter;
mod gpu_staged_copy;
mod graph;
mod kernel;
mod link_meter;
mod memory;
mod nvrtc;
mod peer;
mod pending;
mod stream;
#[cfg(test)]
mod tests;

pub use copy_engine::CopyEngine;
pub use device::{
    DeviceInfo, Gpu, GpuDirect, Link, abandon_all, any_abandoned, device_count, devices, driver_version,
};
pub use error::{Error, Result};
pub use gpu_staged_copy::GpuStagedCopy;
pub use graph::{Graph, GraphExec, Node};
pub use kernel::{Arguments, Kernel, KernelArguments, LaunchConfig, Module, argument};
pub use link_meter::{LinkMeter, LinkSamples};
pub use nvrtc::{CompiledProgram, Source, compile, compiler_version, locate_compiler};
pub use peer::{PeerInfo, enable_peer_access, peer_info};
pub use pending::{PendingCopies, drain, finish};
pub use stream::{Event, EventKind, MemoryOperation, Stream, WaitUntil};

/// The settings that messages of this crate name. The caller of this crate has them.
pub mod field {
    use inlane_core::setting::Field;

    /// Measure the traffic on the GPU's PCIe link.
    pub const MEASURE_PCIE: Field = Field::new("measure-pcie");
    /// All fields of this module.
    pub const ALL: &[Field] = &[MEASURE_PCIE];
}

/// The name and the text of a header for device code. The header declares the words that GPUs and the CPU
/// share, and loads that bypass the L1 cache.
pub const SYSTEM_HEADER: (&str, &str) = ("system.cuh", include_str!("system.cuh"));
