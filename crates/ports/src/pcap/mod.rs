//! `pcap:FILE`: captures as ports. Received from, a [`Source`] plays a capture; sent to, a [`Sink`] writes one.
//!
//! Timestamps and the lengths of packets that were cut travel with each packet as its [`PacketMeta`](inlane_core::packet::PacketMeta), so that what a source
//! played and a sink wrote is the same capture again, whatever stood between them. A source is read once from front to
//! back, so that it may be a pipe (`pcap:-`); a file is looked through beforehand, for its longest packet and its
//! resolution.

pub mod reader;
mod sink;
mod source;
pub mod writer;

#[cfg(test)]
mod tests;

use inlane_core::{Error, PortInfo, Result};
pub(super) use sink::Tap;
pub use sink::{Sink, Stamps};
pub use source::Source;

/// How fast a capture is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As fast as it is asked for.
    #[default]
    Full,
    /// As its timestamps say.
    Original,
}

/// How a capture is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Playback {
    /// How fast.
    pub pace: Pace,
    /// Again from the front when it ends, without end; timestamps go on.
    pub repeat: bool,
}

/// What was seen of a capture when it was looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Whole packets.
    pub packets: u64,
    /// Bytes of the longest.
    pub longest: usize,
    /// The finest resolution of its timestamps.
    pub resolution: reader::Resolution,
}

fn info(text: &str, path: String, max_queues: u16) -> PortInfo {
    PortInfo {
        name: text.into(),
        path,
        touches_payload: true,
        max_queues,
        spreads_flows: false,
        link_bits_per_second: None,
        twin: false,
    }
}

fn path_of(text: &str) -> Result<&str> {
    match text.split_once(':') {
        Some((_, path)) if !path.is_empty() => Ok(path),
        _ => Err(Error::port_usage(text, "name the file: pcap:FILE, or pcap:- for standard input or output")),
    }
}
