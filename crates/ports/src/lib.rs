//! inlane's own ports, and wrappers around any port.
//!
//! | port | what it does |
//! | --- | --- |
//! | `gen:SIZE` | [`generate::Generator`] sends packets of known flows, by a schedule |
//! | `gen:oran` | [`oran::Radio`] sends the user plane of an O-RAN radio |
//! | `check` | [`check::Checker`] verifies that packets arrive as the packet function must leave them |
//! | `pcap:FILE` | [`pcap::CaptureSource`] and [`pcap::CaptureSink`] read and write captures |
//! | `null[:SIZE]` | [`null::Null`] creates and discards packets without touching their bytes |
//!
//! [`memif`] shares memory with another process, in which frames are written and read in place; network stacks use it instead of
//! DPDK's memif port.
//!
//! [`ntb`] carries frames through the memory windows of a PCIe bridge.
//!
//! [`own`] makes ports of a program's own sources and sinks of frames.
//!
//! [`spec::PortSpec`] describes a port, also of DPDK if the cargo feature `dpdk` is enabled, and [`open::ports`] opens the
//! ports of a run. [`wrap`] captures
//! packets, injects faults and limits rates at any port.

pub mod check;
mod error;
pub mod field;
pub mod generate;
pub mod memif;
pub mod ntb;
pub mod null;
pub mod open;
pub mod oran;
pub mod own;
pub mod pcap;
pub mod spec;
pub mod wrap;

pub use error::{Error, Result};
