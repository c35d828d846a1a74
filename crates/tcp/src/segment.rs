//! TCP segments: [`Segment`] is what the state machine receives, and [`Transmit`] is what its caller must
//! send.

use crate::options::{self, Options};
use inlane_wire::tcp::{self, ACK, FIN, SYN};
use std::ops::Range;

/// The congestion field of an IP header: the low two bits of the traffic class (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not use ECN.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, codepoint ECT(1).
    Ect1 = 1,
    /// ECN-capable transport, codepoint ECT(0).
    Ect0 = 2,
    /// A router marked congestion.
    Ce = 3,
}

impl Ecn {
    /// Returns the codepoint in the low two bits of `traffic_class`.
    pub fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// The fields of a TCP header, without ports and checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number; valid if the flag ACK is set.
    pub acknowledgment: u32,
    /// The window field, not scaled.
    pub window: u16,
    /// Flags as [`inlane_wire::tcp`] defines them.
    pub flags: u8,
    /// Options.
    pub options: Options,
}

impl Header {
    /// Returns true if all of `flags` are set.
    #[inline]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Returns the length on the wire with options, in bytes.
    #[inline]
    pub fn wire_len(&self) -> usize {
        tcp::HEADER + self.options.wire_len()
    }

    /// Writes the header to the front of `buffer` and returns its length. The checksum is 0: the caller or
    /// the device fills it.
    ///
    /// # Errors
    /// [`inlane_wire::Error::Truncated`] if `buffer` is shorter than [`Header::wire_len`].
    #[inline]
    pub fn write(
        &self,
        source_port: u16,
        destination_port: u16,
        buffer: &mut [u8],
    ) -> inlane_wire::Result<usize> {
        // The length of the most frequent options is known when this is compiled, so it takes no loop.
        let (mut segment, len) = match self.options.only_timestamps() {
            Some(timestamps) => {
                let option = timestamps.to_bytes();
                (tcp::Segment::init_with_options(buffer, &option)?, option.len())
            }
            None => {
                let mut bytes = [0; options::MAX_LEN];
                let len = self.options.write(&mut bytes);
                (tcp::Segment::init_with_options(buffer, &bytes[..len])?, len)
            }
        };
        segment.set_source_port(source_port);
        segment.set_destination_port(destination_port);
        segment.set_sequence(self.sequence);
        segment.set_acknowledgment(self.acknowledgment);
        segment.set_flags(self.flags);
        segment.set_window(self.window);
        Ok(tcp::HEADER + len)
    }
}

/// A received segment. Its checksum must have been verified.
///
/// If a device or driver has merged segments (GRO, LRO), they are one `Segment` with a long payload.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The header's fields.
    pub header: Header,
    /// The payload.
    pub payload: &'a [u8],
    /// The congestion field of the IP header.
    pub ecn: Ecn,
}

impl<'a> Segment<'a> {
    /// Reads a segment. `bytes` begin with the TCP header and end with the payload.
    ///
    /// # Errors
    /// The errors of [`inlane_wire::tcp::Segment::new`].
    #[inline]
    pub fn parse(bytes: &'a [u8], ecn: Ecn) -> inlane_wire::Result<Self> {
        let view = tcp::Segment::new(bytes)?;
        let header = Header {
            sequence: view.sequence(),
            acknowledgment: view.acknowledgment(),
            window: view.window(),
            flags: view.flags(),
            options: Options::parse(view.options()),
        };
        Ok(Self { header, payload: &bytes[view.header_len()..], ecn })
    }

    /// Returns the segment's length in sequence space: payload, SYN and FIN (RFC 9293, SEG.LEN).
    #[inline]
    pub fn sequence_len(&self) -> u32 {
        self.payload.len() as u32 + self.header.has(SYN) as u32 + self.header.has(FIN) as u32
    }
}

/// A segment to send, or several segments if the payload is longer than `segment_size`.
///
/// The sender divides the payload into segments of `segment_size` bytes. Software or a device does this (GSO,
/// TSO). Each segment gets this header with its own sequence number. Only the last segment gets FIN and PSH.
/// Only the first segment gets CWR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The header's fields.
    pub header: Header,
    /// The payload: a range of positions in the stream of sent data, which is stored in the send ring. Empty
    /// for a segment without data.
    pub payload: Range<u64>,
    /// The greatest payload of one segment, in bytes.
    pub segment_size: u16,
    /// The congestion field for the IP header.
    pub ecn: Ecn,
}

impl Transmit {
    /// Creates a segment without payload.
    pub(crate) fn bare(header: Header) -> Self {
        Self { header, payload: 0..0, segment_size: u16::MAX, ecn: Ecn::NotEct }
    }

    /// Returns the payload's length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        (self.payload.end - self.payload.start) as usize
    }

    /// Returns true if there is no payload.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// Divides the payload into segments of at most `segment_size` payload bytes. Returns their headers and
    /// payload ranges.
    pub fn segments(&self) -> impl Iterator<Item = (Header, Range<u64>)> + use<> {
        let (header, payload, size) = (self.header, self.payload.clone(), self.segment_size.max(1) as u64);
        let count = (payload.end - payload.start).div_ceil(size).max(1);
        (0..count).map(move |n| {
            let start = payload.start + n * size;
            let end = (start + size).min(payload.end);
            let mut header = header;
            header.sequence = header.sequence.wrapping_add((n * size) as u32);
            if n > 0 {
                header.flags &= !tcp::CWR;
            }
            if n + 1 < count {
                header.flags &= !(FIN | tcp::PSH);
            }
            (header, start..end)
        })
    }
}

/// Returns the reset that answers `segment`, which belongs to no connection (RFC 9293, section 3.10.7.1).
/// Returns `None` if `segment` is itself a reset.
pub fn reset_for(segment: &Segment<'_>) -> Option<Header> {
    let header = &segment.header;
    if header.has(tcp::RST) {
        return None;
    }
    Some(if header.has(ACK) {
        Header { sequence: header.acknowledgment, flags: tcp::RST, ..Header::default() }
    } else {
        Header {
            acknowledgment: header.sequence.wrapping_add(segment.sequence_len()),
            flags: tcp::RST | ACK,
            ..Header::default()
        }
    })
}
