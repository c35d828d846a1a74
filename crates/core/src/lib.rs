//! The data plane: the parts with which every system of inlane moves bytes.
//!
//! | module | contents |
//! | --- | --- |
//! | [`region`], [`mapping`] | spans of memory with their location; mapped files |
//! | [`packet`] | packets and the pools of their buffers |
//! | [`port`] | sources and sinks of packets |
//! | [`ring`] | the list by which bursts are handed between threads or to a GPU |
//! | [`mover`], [`access`] | copies between regions; the CPU's loads and stores to device memory |
//! | [`completion`] | how the end of an operation is detected |
//! | [`load`] | operations that run until they are stopped: meters, pace, start line, sampler |
//! | [`stats`], [`verification`] | statistics; the outcome of checking what a run moved |
//! | [`cores`] | the cores that a thread may run on |
//! | [`units`], [`clock`], [`error`] | quantities, time, errors |
//! | [`setting`], [`names`], [`secret`] | the names of settings in messages; suggestions for misspelt names; secrets that messages leave out |
//!
//! This crate contains no device code. The cargo feature `serde` makes the types that result documents contain
//! serializable. Programs that only use rings or ports leave it out and build no JSON schemas.

pub mod access;
mod cache;
pub mod clock;
pub mod completion;
pub mod cores;
pub mod error;
pub mod layout;
pub mod load;
pub mod mapping;
pub mod mover;
pub mod names;
pub mod packet;
pub mod port;
pub mod region;
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
