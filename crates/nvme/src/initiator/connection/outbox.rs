//! The bytes to send. Headers are stored here; data stays in the buffers of its commands.

use crate::wire::pdu::{Digests, MAX_HEADER, Pdu, digest, encode};
use std::collections::VecDeque;
use std::io::IoSlice;
use zerocopy::{Immutable, IntoBytes, Unaligned};

#[derive(Clone, Copy, Debug)]
enum Segment {
    /// A number of bytes in `Outbox::bytes`. They follow the bytes of the inline segments before this one.
    Inline(usize),
    /// Data of the command in a slot: `len` bytes of the command's buffer, from offset `at` on.
    Data { slot: u16, at: usize, len: usize },
}

/// Bytes of a data segment that were sent.
pub(super) struct SentData {
    pub(super) slot: u16,
    pub(super) bytes: usize,
    /// True if the segment has no further bytes.
    pub(super) ended: bool,
}

/// The bytes of a connection that are not sent yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    segments: VecDeque<Segment>,
    /// The bytes of all inline segments. Those before `start` have been sent.
    bytes: Vec<u8>,
    start: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    fn push_inline(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        match self.segments.back_mut() {
            Some(Segment::Inline(len)) => *len += bytes.len(),
            _ => self.segments.push_back(Segment::Inline(bytes.len())),
        }
    }

    /// Adds the header of a PDU whose data has `data` bytes.
    pub(super) fn push<T: IntoBytes + Immutable + Unaligned>(
        &mut self,
        header: &Pdu<T>,
        data: u32,
        digests: Digests,
        alignment: u8,
    ) {
        let mut encoded = [0; MAX_HEADER];
        let written = encode(header, data, digests, alignment, &mut encoded);
        self.push_inline(&encoded[..written]);
    }

    /// Adds data to the output. The data lies at offset `at` in the buffer of the command in `slot`. If
    /// `with_digest`, also adds its digest.
    pub(super) fn push_data(&mut self, slot: u16, at: u32, data: &[u8], with_digest: bool) {
        self.segments.push_back(Segment::Data { slot, at: at as usize, len: data.len() });
        if with_digest {
            self.push_inline(&digest(data));
        }
    }

    /// Fills `slices` with the next bytes to send. Returns the number of filled slices. `buffer` returns the
    /// data buffer of a command slot.
    pub(super) fn slices<'a>(
        &'a self,
        slices: &mut [IoSlice<'a>],
        buffer: impl Fn(u16) -> &'a [u8],
    ) -> usize {
        let mut inline = self.start;
        let mut filled = 0;
        for (slice, segment) in slices.iter_mut().zip(&self.segments) {
            *slice = IoSlice::new(match *segment {
                Segment::Inline(len) => {
                    inline += len;
                    &self.bytes[inline - len..inline]
                }
                Segment::Data { slot, at, len } => &buffer(slot)[at..at + len],
            });
            filled += 1;
        }
        filled
    }

    /// Removes up to `bytes` sent bytes from the front, and subtracts the removed number from `bytes`. Stops
    /// after bytes of a data segment and returns them. Call it again until `bytes` is 0.
    pub(super) fn sent(&mut self, bytes: &mut usize) -> Option<SentData> {
        while *bytes > 0 {
            let segment = self.segments.front_mut().expect("bytes to send");
            let (Segment::Inline(len) | Segment::Data { len, .. }) = segment;
            let part = (*bytes).min(*len);
            *len -= part;
            *bytes -= part;
            let ended = *len == 0;
            let data = match segment {
                Segment::Inline(_) => {
                    self.start += part;
                    None
                }
                Segment::Data { slot, at, .. } => {
                    *at += part;
                    Some(SentData { slot: *slot, bytes: part, ended })
                }
            };
            if ended {
                self.segments.pop_front();
                if self.start == self.bytes.len() {
                    self.bytes.clear();
                    self.start = 0;
                }
            }
            if data.is_some() {
                return data;
            }
        }
        None
    }
}
