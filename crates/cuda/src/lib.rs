//! NVIDIA GPUs by the CUDA driver's own interface, as a device layer and no more: what runs on them is the business of the
//! crates above.
//!
//! The driver (`libcuda.so.1`) and the run-time compiler (`libnvrtc.so`) are loaded when first asked for, so one program
//! runs on machines with and without a GPU; without one, [`devices`] says so in an [`Error`].
//!
//! * [`Gpu`]: a device, opened: its primary context, its properties, its memory as core [`Region`](inlane_core::Region)s.
//! * [`Stream`], [`Event`], [`Graph`]: order of work. Streams are non-blocking always: nothing here touches the legacy
//!   default stream, which waits for persistent kernels that never end.
//! * [`compile`], [`Module`], [`Kernel`]: kernels from source, for the GPU that is there, cached on disk.
//! * [`LinkMeter`]: what crosses its PCIe link, by its own counter (NVML, loaded at run time, too).
//! * [`CopyEngine`], [`GpuStagedCopy`]: core [`Mover`](inlane_core::mover::Mover)s over the GPU's DMA engines; [`Pending`] is what movers
//!   have in flight on streams.
//!
//! What synchronizes the whole device (allocating and freeing, registering host memory, loading a module) waits for
//! every kernel that runs, a persistent one included: allocate and load everything first.

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
pub use pending::{Pending, drain, finish};
pub use stream::{Event, EventKind, MemoryOperation, Stream, WaitUntil};

/// A header for device code, by name and text: words handed over between GPUs and the CPU, and loads of what is read once.
pub const SYSTEM_HEADER: (&str, &str) = ("system.cuh", include_str!("system.cuh"));
