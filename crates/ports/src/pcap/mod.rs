//! `pcap:FILE`: captures as ports. [`CaptureSource`] receives the packets of a capture, and [`CaptureSink`]
//! writes a capture.
//!
//! Each packet carries its capture time and its length on the wire as
//! [`PacketMeta`](inlane_core::packet::PacketMeta). A source reads its input from front to back, so the input
//! may be a pipe (`pcap:-`). If the input is a file, the source scans it beforehand for its longest packet
//! and its resolution.
//!
//! Neither port blocks on a pipe. While the other end pauses, a source returns no packets, and a sink accepts
//! none.

mod file;
mod output;
mod pcapng;
pub mod reader;
mod sink;
mod source;
pub mod writer;

#[cfg(test)]
mod tests;

pub use file::{FileId, same_file};
use inlane_core::{Error, PortInfo, Result};
pub(crate) use sink::QueueWriter;
pub use sink::{CaptureSink, TimestampSource};
pub use source::CaptureSource;
use std::path::Path;
pub use writer::is_closed_by_reader;

/// How fast a capture is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Timestamps are ignored: each packet is ready as soon as the run receives again.
    #[default]
    Full,
    /// Packets are played with the same time intervals as in the capture.
    Original,
}

/// How a capture is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Playback {
    /// The speed: as fast as packets are received, or at the times that the capture records.
    pub pace: Pace,
    /// If true, plays the capture again whenever it ends. Timestamps continue from lap to lap. They start
    /// over if a lap would exceed the last time of the classic format (year 2106).
    pub repeat: bool,
}

/// The result of scanning a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureSummary {
    /// Number of packets before the end, or before the first damage.
    pub packets: u64,
    /// Length of the longest packet, in bytes.
    pub longest: usize,
    /// The latest timestamp, in nanoseconds since the epoch.
    pub latest_ns: u64,
    /// The finest resolution of the capture's timestamps.
    pub resolution: reader::Resolution,
}

fn info(text: &str, max_queues: u16) -> PortInfo {
    PortInfo {
        name: text.into(),
        path: "capture file".into(),
        touches_payload: true,
        max_queues,
        spreads_flows: false,
        link_bits_per_second: None,
        twin: false,
    }
}

/// Returns the path in the `pcap` specification `text`. The path may contain commas.
fn path_of(text: &str) -> Result<&str> {
    match text.split_once(':') {
        Some((_, path)) if !path.is_empty() => Ok(path),
        _ => Err(Error::port_usage(text, "name the file: pcap:FILE, or pcap:- for standard input or output")),
    }
}

/// Returns the file of the port `text`. Returns `None` for other kinds of ports, and for standard input and
/// output.
pub fn file_of(text: &str) -> Option<&Path> {
    text.strip_prefix("pcap:").filter(|path| !matches!(*path, "" | "-")).map(Path::new)
}
