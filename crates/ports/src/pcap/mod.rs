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
pub mod reader;
mod sink;
mod source;
pub mod writer;

#[cfg(test)]
mod tests;

pub use file::{FileId, same_file};
use inlane_core::setting::Choice;
use inlane_core::{Error, PortInfo, Result};
pub(crate) use sink::QueueWriter;
pub use sink::{CaptureSink, TimestampSource};
pub use source::CaptureSource;
use std::path::Path;
pub use writer::is_closed_by_reader;

/// The specification of a capture: `pcap:FILE`. `pcap:-` is standard input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSpec {
    /// The specification's text, as the user wrote it.
    pub text: String,
    /// The path as text. `-` is standard input or output.
    pub(crate) path: String,
}

impl CaptureSpec {
    /// Parses the specification. The path may contain commas, because this port has no options.
    ///
    /// # Errors
    /// If the path is missing.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some((_, path)) if !path.is_empty() => Ok(Self { text: text.into(), path: path.into() }),
            _ => Err(Error::port_usage(
                text,
                "name the file: pcap:FILE, or pcap:- for standard input or output",
            )),
        }
    }

    /// Returns true for standard input or output.
    pub fn is_standard(&self) -> bool {
        self.path == "-"
    }

    /// Returns the file. `None` for standard input and output.
    pub fn file(&self) -> Option<&Path> {
        (!self.is_standard()).then(|| Path::new(&self.path))
    }

    /// Returns true if the capture is a regular file at present. Such a capture can be read several times, and
    /// a pipe cannot.
    pub fn is_regular_file(&self) -> bool {
        self.file().is_some_and(Path::is_file)
    }
}

/// How fast a capture is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Timestamps are ignored: each packet is ready as soon as the run receives again.
    #[default]
    Full,
    /// Packets are played with the same time intervals as in the capture.
    Original,
}

impl Choice for Pace {
    const CHOICES: &[(Self, &str, &str)] =
        &[(Pace::Full, "full", "As fast as possible"), (Pace::Original, "original", "As the timestamps say")];
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
