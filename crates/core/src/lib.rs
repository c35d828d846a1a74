//! What every part of inlane shares: where memory is ([`region`]), what a packet is ([`packet`]), where packets
//! come from and go to ([`port`]), the communication list between those who receive, process and send
//! ([`ring`]), how the end of something is learnt ([`completion`]), what copies ([`mover`]), what a run reports
//! ([`result`], [`stats`]) and how quantities are written ([`units`]).
//!
//! This crate knows no device. It depends on no other crate of the project.

pub mod access;
pub mod clock;
pub mod code_cache;
pub mod completion;
pub mod error;
pub mod mover;
pub mod packet;
pub mod port;
pub mod region;
pub mod result;
pub mod ring;
pub mod stats;
pub mod units;

pub use completion::CompletionMode;
pub use error::{Error, Result};
pub use packet::{HeapPool, Packet, Pool};
pub use port::{Port, PortInfo, Rx, Tx};
pub use region::{Location, Region};
