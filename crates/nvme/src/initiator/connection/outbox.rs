//! The bytes to send. Headers are stored here; data stays in the buffers of its commands.

use crate::wire::pdu::{Digests, MAX_HEADER, Pdu, digest, encode};
use std::collections::VecDeque;
use std::io::IoSlice;
use zerocopy::{Immutable, IntoBytes, Unaligned};

/// Bytes to send, without those that were sent.
#[derive(Clone, Copy, Debug)]
struct Segment {
    len: usize,
    /// The command in this slot has the bytes in its buffer, from this offset on. `None` for bytes in `Outbox::bytes`,
    /// which follow those of the segments before this one.
    data: Option<(u16, usize)>,
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
            Some(Segment { len, data: None }) => *len += bytes.len(),
            _ => self.segments.push_back(Segment { len: bytes.len(), data: None }),
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
        self.segments.push_back(Segment { len: data.len(), data: Some((slot, at as usize)) });
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
        for (slice, Segment { len, data }) in slices.iter_mut().zip(&self.segments) {
            *slice = IoSlice::new(match *data {
                None => {
                    inline += len;
                    &self.bytes[inline - len..inline]
                }
                Some((slot, at)) => &buffer(slot)[at..at + len],
            });
            filled += 1;
        }
        filled
    }

    /// Removes up to `bytes` sent bytes from the front, and subtracts the removed number from `bytes`. Stops
    /// after bytes of a data segment and returns them. Call it again until `bytes` is 0.
    pub(super) fn sent(&mut self, bytes: &mut usize) -> Option<SentData> {
        while *bytes > 0 {
            let Segment { len, data } = self.segments.front_mut().expect("bytes to send");
            let part = (*bytes).min(*len);
            *len -= part;
            *bytes -= part;
            let ended = *len == 0;
            let sent = data.as_mut().map(|(slot, at)| {
                *at += part;
                SentData { slot: *slot, bytes: part, ended }
            });
            if sent.is_none() {
                self.start += part;
            }
            if ended {
                self.segments.pop_front();
                if self.start == self.bytes.len() {
                    self.bytes.clear();
                    self.start = 0;
                }
            }
            if sent.is_some() {
                return sent;
            }
        }
        None
    }
}
