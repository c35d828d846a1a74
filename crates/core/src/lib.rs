//! The parts that all of inlane shares.
//!
//! | module | contents |
//! | --- | --- |
//! | [`region`] | spans of memory with their location |
//! | [`packet`] | packets and the pools of their buffers |
//! | [`port`] | sources and sinks of packets |
//! | [`ring`] | the list by which bursts are handed between threads or to a GPU |
//! | [`mover`], [`access`] | copies between regions; the CPU's loads and stores to device memory |
//! | [`completion`] | how the end of an operation is detected |
//! | [`load`] | operations that run until they are stopped: meters, pace, start line, sampler |
//! | [`code_cache`] | compiled code on disk |
//! | `result` | the fields that all result documents share |
//! | [`stats`], [`verification`] | statistics; the outcome of checking what a run moved |
//! | [`units`], [`clock`], [`error`] | quantities, time, errors |
//! | [`setting`], [`secret`] | the names of settings in messages; secrets that messages leave out |
//! | [`cgroup`] | limits of control groups |
//! | [`cores`], [`privileges`] | the cores that this process may use; the user that it runs as |
//!
//! This crate contains no device code. The module `result` needs the cargo feature `documents`, because programs that
//! only use rings or ports need no JSON schemas.

pub mod access;
mod cache;
pub mod cgroup;
pub mod clock;
pub mod code_cache;
pub mod completion;
pub mod cores;
pub mod error;
pub mod layout;
pub mod load;
pub mod mover;
pub mod packet;
pub mod port;
pub mod privileges;
pub mod region;
#[cfg(feature = "documents")]
pub mod result;
pub mod ring;
pub mod secret;
pub mod setting;
pub mod stats;
pub mod units;
pub mod verification;

pub use completion::CompletionMode;
pub use error::{Error, Result};
pub use packet::{HeapPool, Packet, Pool};
pub use port::{Port, PortInfo, Rx, Tx};
pub use region::{Location, Region};
