//! Packet functions: operations on packets that are written once and run by every executor.
//!
//! A packet function is a C++ struct that includes `include/inlane.h`. Its members are the state of a
//! pipeline. Executors call its member function `packet` or `burst` with the packets. The same source is
//! compiled for the CPU and for GPUs. For the CPU, built-in functions are compiled when inlane is built.
//! Users' functions are compiled when they first run. GPU executors compile with NVRTC.
//!
//! * [`builtins`] lists the built-in functions. [`PacketFunction::parse`] finds one by name and reads its
//!   settings.
//! * [`Instance`] is one CPU thread's use of a function, with the function's state and output region.
//! * Library users can also write a function in Rust: [`OwnFunction`]. It runs on the CPU only.
//! * A GPU executor compiles [`HEADERS`] and [`FunctionSource::for_gpu`].

pub mod abi;
mod builtins;
mod error;
mod headers;
mod instance;
mod packet_function;
pub mod report;
mod rust_function;
mod source;
mod user;

pub use abi::{CallKind, FunctionInfo};
pub use builtins::{Builtin, DeliveryReason, Flow, OranSlot, builtins, flows, oran_slot};
pub use error::{Error, FUNCTION, Result};
pub use headers::HEADERS;
pub use instance::{Calls, Instance};
pub use packet_function::PacketFunction;
pub use report::FunctionReport;
pub use rust_function::{FunctionPacket, FunctionSpec, OwnFunction, RustFunction, Verdict};
pub use source::FunctionSource;
