//! The bytes that a connection sends. Large data is not copied.
//!
//! Headers and small data are collected in one vector. Large data is sent from its buffer. There are two
//! batches: responses are added to one batch while the kernel sends the other. So the bytes of a batch in
//! flight never move.
//!
//! ```text
//! building: [ headers, small data ... ] [ buffer ] [ headers ... ]      <- responses
//! sending:  [ headers ... ] [ buffer ] [ headers ... ]                  -> kernel, from `part` and `sent` on
//! ```

use crate::target::buffer::Buffer;

/// The most parts (buffers) that one call of sendmsg may have.
const MAX_PARTS: usize = 1024;
/// When one call of sendmsg has at least this many bytes to send, no further part is added to it.
const ENOUGH_BYTES: usize = 1 << 20;

/// The space for headers and small data grows in units of this many bytes. This is also the least size of the
/// space.
const LEAST_BYTES: usize = 4 << 10;
/// The limit of the space for headers and small data, in bytes. A larger space is freed once its contents are
/// sent.
const KEPT_BYTES: usize = 256 << 10;

#[derive(Debug)]
enum Part {
    /// A range of the batch's own bytes.
    Bytes { start: usize, end: usize },
    /// The first `length` bytes of a buffer. The buffer is given back when they are sent.
    Buffer { buffer: Buffer, length: usize },
}

impl Part {
    fn length(&self) -> usize {
        match self {
            Part::Bytes { start, end } => end - start,
            Part::Buffer { length, .. } => *length,
        }
    }
}

#[derive(Debug, Default)]
struct Batch {
    /// Space for headers and small data. Its length is kept when a batch is sent, because extending the
    /// vector would zero the bytes again.
    bytes: Vec<u8>,
    /// The number of used bytes at the start of `bytes`.
    used: usize,
    parts: Vec<Option<Part>>,
    total: usize,
}

impl Batch {
    fn clear(&mut self) {
        if self.bytes.len() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
        self.used = 0;
        self.parts.clear();
        self.total = 0;
    }
}

/// A connection's unsent bytes: one batch being built, one being sent.
#[derive(Debug, Default)]
pub struct Output {
    building: Batch,
    sending: Batch,
    /// The index in `sending` of the first part that has not been sent completely.
    part: usize,
    /// The number of bytes already sent of the part with index `part`.
    sent: usize,
}

impl Output {
    /// Returns the number of bytes that are not sent yet.
    pub fn pending_bytes(&self) -> usize {
        self.building.total + self.sending.total
    }

    /// Returns true if `bytes` more bytes of headers and small data fit. The space for them must not grow
    /// beyond the size above which it is freed.
    pub fn keeps(&self, bytes: usize) -> bool {
        // The buffer doubles its size when it grows. Therefore compare with half of [`KEPT_BYTES`].
        self.building.used + bytes <= KEPT_BYTES / 2
    }

    /// Appends space for up to `most` bytes. `fill` writes to the space and returns the number of bytes that
    /// it has written.
    #[inline]
    pub fn append(&mut self, most: usize, fill: impl FnOnce(&mut [u8]) -> usize) {
        let Batch { bytes, used, parts, total } = &mut self.building;
        let start = *used;
        if bytes.len() < start + most {
            bytes.resize((start + most).next_multiple_of(LEAST_BYTES).max(2 * bytes.len()), 0);
        }
        let written = fill(&mut bytes[start..start + most]);
        *used += written;
        *total += written;
        match parts.last_mut() {
            Some(Some(Part::Bytes { end, .. })) => *end = start + written,
            _ => parts.push(Some(Part::Bytes { start, end: start + written })),
        }
    }

    /// Appends the first `length` bytes of a buffer without copying them.
    pub fn append_buffer(&mut self, buffer: Buffer, length: usize) {
        assert!(length <= buffer.capacity(), "data within its buffer");
        self.building.total += length;
        self.building.parts.push(Some(Part::Buffer { buffer, length }));
    }

    /// Writes the next memory ranges to send into `vectors`. Returns their number of bytes, or 0 if there is
    /// nothing to send.
    ///
    /// The memory stays in place until [`Output::advance`] is called. Call this only if no send is in flight.
    pub fn next(&mut self, vectors: &mut Vec<libc::iovec>) -> usize {
        vectors.clear();
        if self.sending.total == 0 {
            self.sending.clear();
            std::mem::swap(&mut self.building, &mut self.sending);
            (self.part, self.sent) = (0, 0);
        }
        let Batch { bytes, parts, .. } = &self.sending;
        let (mut total, mut skip) = (0, self.sent);
        for part in parts[self.part..].iter().flatten() {
            if vectors.len() == MAX_PARTS || total >= ENOUGH_BYTES {
                break;
            }
            let address = match part {
                Part::Bytes { start, .. } => bytes[*start..].as_ptr(),
                Part::Buffer { buffer, .. } => buffer.address().cast_const(),
            };
            let length = part.length() - skip;
            vectors.push(libc::iovec {
                iov_base: address.wrapping_add(skip).cast_mut().cast(),
                iov_len: length,
            });
            total += length;
            skip = 0;
        }
        total
    }

    /// Records that the kernel has sent the next `bytes` bytes. Frees buffers that are sent completely.
    ///
    /// # Panics
    /// If `bytes` exceeds what [`Output::next`] described.
    pub fn advance(&mut self, mut bytes: usize) {
        self.sending.total -= bytes;
        while bytes > 0 {
            let part = self.sending.parts[self.part].as_ref().expect("a part that is not sent");
            let left = part.length() - self.sent;
            if bytes < left {
                self.sent += bytes;
                return;
            }
            bytes -= left;
            self.sending.parts[self.part] = None;
            self.part += 1;
            self.sent = 0;
        }
    }

    /// Copies all unsent bytes to `to`, and counts them as sent. Used by tests that have no socket.
    pub fn take(&mut self, to: &mut Vec<u8>) {
        let mut vectors = Vec::new();
        loop {
            let bytes = self.next(&mut vectors);
            if bytes == 0 {
                return;
            }
            for vector in &vectors {
                // SAFETY: `next` describes readable memory. This memory does not change until `advance` is
                // called.
                to.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), vector.iov_len)
                });
            }
            self.advance(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::buffer::{Pool, Share};
    use proptest::prelude::*;

    fn put(output: &mut Output, pool: &Share, expected: &mut Vec<u8>, length: usize, byte: u8) {
        expected.extend(std::iter::repeat_n(byte, length));
        if length < 50 {
            output.append(64, |space| {
                space[..length].fill(byte);
                length
            });
        } else {
            let mut buffer = pool.allocate(length).unwrap();
            buffer[..length].fill(byte);
            output.append_buffer(buffer, length);
        }
    }

    proptest! {
        #[test]
        fn bytes_leave_in_order_whatever_the_kernel_takes(
            steps in prop::collection::vec((1_usize..100, any::<u8>(), 0_usize..150), 1..60)
        ) {
            let pool = Pool::new(64 << 20).share([127, 0, 0, 1].into(), 16 << 20);
            let (mut output, mut expected, mut found) = (Output::default(), Vec::new(), Vec::new());
            let mut vectors = Vec::new();
            for (length, byte, sent) in steps {
                put(&mut output, &pool, &mut expected, length, byte);
                let total = output.next(&mut vectors);
                let sent = sent.min(total);
                let bytes: Vec<u8> = vectors.iter().flat_map(|vector| {
                    // SAFETY: `next` describes readable memory.
                    unsafe { std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), vector.iov_len) }.to_vec()
                }).collect();
                prop_assert_eq!(bytes.len(), total);
                found.extend_from_slice(&bytes[..sent]);
                output.advance(sent);
            }
            output.take(&mut found);
            prop_assert_eq!(found, expected);
            prop_assert_eq!(output.pending_bytes(), 0);
        }
    }
}
