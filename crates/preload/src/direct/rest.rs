//! The part of a call's buffers that is not sent or received yet.

use super::are_possible;
use libc::iovec;

/// The buffers of a call, without the bytes that were sent or received.
#[derive(Clone, Copy)]
pub struct Rest<'a> {
    parts: &'a [iovec],
    /// The number of bytes of the first part that are sent or received.
    skipped: usize,
    /// The number of bytes that are not sent or received.
    pub len: usize,
}

impl<'a> Rest<'a> {
    /// Begins with all bytes of `parts`. Returns `None` if there are none, or if the kernel certainly refuses one of the buffers.
    #[inline]
    pub fn new(parts: &'a [iovec]) -> Option<Self> {
        let len = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))?;
        let mut rest = Self { parts, skipped: 0, len };
        rest.advance(0);
        (len > 0 && are_possible(parts)).then_some(rest)
    }

    /// Returns the rest of the first part.
    #[inline]
    pub fn first(&self) -> Option<iovec> {
        let part = self.parts.first()?;
        Some(iovec {
            iov_base: part.iov_base.wrapping_byte_add(self.skipped),
            iov_len: part.iov_len - self.skipped,
        })
    }

    /// Returns the buffers that have room. Call this while no byte is sent or received.
    pub fn parts(&self) -> &'a [iovec] {
        self.parts
    }

    /// Counts `len` bytes as sent or received.
    #[inline]
    pub fn advance(&mut self, len: usize) {
        self.skipped += len;
        self.len -= len;
        while let [part, parts @ ..] = self.parts
            && self.skipped >= part.iov_len
        {
            (self.parts, self.skipped) = (parts, self.skipped - part.iov_len);
        }
    }
}
