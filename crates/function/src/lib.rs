//! Packet functions: what is done to packets, written once, run by every executor.
//!
//! A function is a few lines of C++ against `include/inlane.h`: a struct whose members are the pipeline's state and whose
//! `packet` (or `burst`) is called with the packets. The same source is compiled here for the CPU, by the C++ compiler when
//! inlane is built, and by GPU executors with NVRTC for the GPU that is there.
//!
//! * [`builtins`]: the functions that inlane brings; [`PacketFunction::parse`] finds one by name and reads its settings.
//! * [`Instance`]: a function at work on the CPU, one a pipeline, with its state and output.
//! * [`HEADERS`] and [`PacketFunction::gpu_source`]: what a GPU executor compiles.

pub mod abi;
mod builtins;
mod error;
mod gpu_source;
mod headers;
mod instance;
mod packet_function;
pub mod report;
mod user;

pub use abi::{CallKind, FunctionInfo};
pub use builtins::{Builtin, Flow, OranSlot, Reason, builtins, flows, oran_slot};
pub use error::{Error, Result};
pub use headers::HEADERS;
pub use instance::Instance;
pub use packet_function::PacketFunction;
pub use report::FunctionReport;
