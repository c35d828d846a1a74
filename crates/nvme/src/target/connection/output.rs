//! The bytes that a connection sends. Large data is not copied.
//!
//! Headers and small data are collected in one vector. Large data is sent from its buffer, or from the memory of a
//! namespace:
//!
//! ```text
//!   [ headers, small data ... ] [ buffer ] [ headers ... ] [ memory ] [ headers ... ]
//!   ^ sent first                                                                    ^ appended here
//! ```
//!
//! The kernel copies the bytes while [`Output::send`] runs. Memory of a namespace is pinned meanwhile, so a host gets each
//! block as it was before or after a write. If the kernel takes only a part of a page, the rest of the page is copied
//! before it is unpinned.

use crate::namespace::{Memory, PAGE};
use crate::target::buffer::Buffer;
use crate::target::subsystem::Subsystem;
use std::collections::VecDeque;

/// The most parts (buffers) that one call of sendmsg may have.
const MAX_PARTS: usize = 1024;
/// When one call of sendmsg has at least this many bytes to send, no further part is added to it. Writers wait for the
/// memory that a call sends, and other connections for the call. Shorter calls would take more processor time.
const ENOUGH_BYTES: usize = 1 << 20;

/// The space for headers and small data grows in units of this many bytes. This is also the least size of the
/// space.
const LEAST_BYTES: usize = 4 << 10;
/// The limit of the space for headers and small data, in bytes. A larger space is freed once its contents are
/// sent.
const KEPT_BYTES: usize = 256 << 10;

/// Bytes to send, without those that were sent.
#[derive(Debug)]
struct Part {
    length: usize,
    data: Data,
}

/// Where the bytes of a part are.
#[derive(Debug)]
enum Data {
    /// They are the next bytes of the vector.
    Bytes,
    /// They are in a buffer, from `start` on. The buffer is given back when they are sent.
    Buffer { buffer: Buffer, start: usize },
    /// They are in a namespace in memory.
    Memory { namespace: u32, offset: u64 },
    /// They are the last bytes of the copied rest of a page.
    Rest,
}

/// A connection's unsent bytes.
#[derive(Debug, Default)]
pub struct Output {
    parts: VecDeque<Part>,
    total: usize,
    /// Space for headers and small data, which lie from `start` to `end`. Its length is kept, because extending the vector
    /// would zero the bytes again.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// The rest of a page of which the kernel has taken a part.
    rest: Vec<u8>,
}

impl Output {
    /// Returns the number of bytes that are not sent yet.
    pub fn pending_bytes(&self) -> usize {
        self.total
    }

    /// Returns true if `bytes` more bytes of headers and small data fit. The space for them must not grow
    /// beyond the size above which it is freed.
    pub fn keeps(&self, bytes: usize) -> bool {
        // The buffer doubles its size when it grows. Therefore compare with half of [`KEPT_BYTES`].
        self.end - self.start + bytes <= KEPT_BYTES / 2
    }

    /// Appends space for up to `most` bytes. `fill` writes to the space and returns the number of bytes that
    /// it has written.
    #[inline]
    pub fn append(&mut self, most: usize, fill: impl FnOnce(&mut [u8]) -> usize) {
        if self.bytes.len() < self.end + most {
            self.make_space(most);
        }
        let written = fill(&mut self.bytes[self.end..self.end + most]);
        self.end += written;
        self.total += written;
        match self.parts.back_mut() {
            Some(Part { length, data: Data::Bytes }) => *length += written,
            _ => self.parts.push_back(Part { length: written, data: Data::Bytes }),
        }
    }

    /// Makes space for `most` bytes at the end of the vector: moves the unsent bytes to the start, or extends it.
    #[cold]
    fn make_space(&mut self, most: usize) {
        if self.start > self.bytes.len() / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let needed = self.end + most;
        if self.bytes.len() < needed {
            self.bytes.resize(needed.next_multiple_of(LEAST_BYTES).max(2 * self.bytes.len()), 0);
        }
    }

    /// Appends the first `length` bytes of a buffer without copying them.
    pub fn append_buffer(&mut self, buffer: Buffer, length: usize) {
        assert!(length <= buffer.capacity(), "data within its buffer");
        self.total += length;
        self.parts.push_back(Part { length, data: Data::Buffer { buffer, start: 0 } });
    }

    /// Appends `length` bytes of a namespace in memory. They are read when they are sent.
    #[inline]
    pub fn append_memory(&mut self, namespace: u32, offset: u64, length: usize) {
        self.total += length;
        self.parts.push_back(Part { length, data: Data::Memory { namespace, offset } });
    }

    /// Passes the next bytes to `call`, which sends some of them and returns their number, or a negative number.
    /// Returns the result of `call`. `reader` is the number of the thread among those that pin memory of `subsystem`.
    /// `vectors` is space for the list of memory ranges.
    ///
    /// # Panics
    /// If `call` returns a larger number than it got bytes.
    pub fn send(
        &mut self,
        subsystem: &Subsystem,
        reader: usize,
        vectors: &mut Vec<libc::iovec>,
        call: impl FnOnce(&mut [libc::iovec]) -> isize,
    ) -> isize {
        let pinned = self.gather(subsystem, reader, vectors);
        let result = call(vectors);
        self.advance(usize::try_from(result).unwrap_or(0), pinned);
        if let Some(memory) = pinned {
            memory.unpin(reader);
        }
        result
    }

    /// Fills `vectors` with the next memory ranges to send. Returns the memory that it has pinned.
    fn gather<'a>(
        &self,
        subsystem: &'a Subsystem,
        reader: usize,
        vectors: &mut Vec<libc::iovec>,
    ) -> Option<&'a Memory> {
        vectors.clear();
        let (mut total, mut at) = (0, self.start);
        let mut pinned: Option<&Memory> = None;
        for Part { length, data } in &self.parts {
            if vectors.len() == MAX_PARTS || total >= ENOUGH_BYTES {
                break;
            }
            let (address, count) = match data {
                Data::Bytes => {
                    at += length;
                    (self.bytes[at - length..].as_ptr(), *length)
                }
                Data::Rest => (self.rest[self.rest.len() - length..].as_ptr(), *length),
                Data::Buffer { buffer, start } => (buffer[*start..].as_ptr(), *length),
                Data::Memory { namespace, offset } => {
                    let memory = subsystem.memory(*namespace).expect("a namespace in memory");
                    if !std::ptr::eq(*pinned.get_or_insert(memory), memory) {
                        break;
                    }
                    // End at the end of a page, because a later call may find the next bytes changed.
                    let most = (*length).min(ENOUGH_BYTES - (offset % PAGE) as usize);
                    memory.pin(reader, *offset, most, vectors.is_empty())
                }
            };
            if count > 0 {
                vectors.push(libc::iovec { iov_base: address.cast_mut().cast(), iov_len: count });
                total += count;
            }
            if count < *length {
                break;
            }
        }
        pinned
    }

    /// Records that the kernel has taken the next `bytes` bytes. Frees buffers that are sent completely. Copies the rest
    /// of a page that is sent in part.
    fn advance(&mut self, mut bytes: usize, pinned: Option<&Memory>) {
        self.total -= bytes;
        while bytes > 0 {
            let part = self.parts.front_mut().expect("a part that is not sent");
            let count = bytes.min(part.length);
            bytes -= count;
            part.length -= count;
            match &mut part.data {
                Data::Bytes => self.start += count,
                Data::Buffer { start, .. } => *start += count,
                Data::Rest => {}
                Data::Memory { offset, .. } => {
                    *offset += count as u64;
                    let rest = part.length.min((offset.next_multiple_of(PAGE) - *offset) as usize);
                    if rest > 0 {
                        self.rest.resize(rest, 0);
                        let memory = pinned.expect("pinned memory");
                        // SAFETY: the whole page is pinned, because the kernel has taken a part of it.
                        unsafe { memory.copy_pinned(*offset, &mut self.rest) };
                        *offset += rest as u64;
                        part.length -= rest;
                        if part.length == 0 {
                            self.parts.pop_front();
                        }
                        self.parts.push_front(Part { length: rest, data: Data::Rest });
                        continue;
                    }
                }
            }
            if part.length == 0 {
                self.parts.pop_front();
            }
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        }
    }

    /// Moves all unsent bytes to `to`, and counts them as sent. Used by tests that have no socket.
    pub fn take(&mut self, subsystem: &Subsystem, to: &mut Vec<u8>) {
        let mut vectors = Vec::new();
        while self.total > 0 {
            self.send(subsystem, 0, &mut vectors, |vectors| copy(vectors, usize::MAX, to) as isize);
        }
    }
}

/// Appends at most `most` bytes of memory ranges to `to`. Returns their number.
pub(super) fn copy(vectors: &[libc::iovec], most: usize, to: &mut Vec<u8>) -> usize {
    let before = to.len();
    for vector in vectors {
        let count = vector.iov_len.min(most - (to.len() - before));
        // SAFETY: `Output::send` describes readable memory that does not change meanwhile.
        to.extend_from_slice(unsafe { std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), count) });
    }
    to.len() - before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::buffer::{Pool, Share};
    use crate::target::connection::tests::subsystem;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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
            let subsystem = subsystem(&["memory:64K"], |_| {});
            let memory = subsystem.memory(1).unwrap();
            let contents: Vec<u8> = (0..64 << 10).map(|n| (n / 5) as u8).collect();
            memory.write(0, &contents);
            let pool = Pool::new(64 << 20).share([127, 0, 0, 1].into(), 16 << 20);
            let (mut output, mut expected, mut found) = (Output::default(), Vec::new(), Vec::new());
            let mut vectors = Vec::new();
            for (length, byte, most) in steps {
                put(&mut output, &pool, &mut expected, length, byte);
                let (offset, bytes) = (usize::from(byte) * 128, 512 * (length % 20));
                if bytes > 0 {
                    output.append_memory(1, offset as u64, bytes);
                    expected.extend_from_slice(&contents[offset..][..bytes]);
                }
                let most = most * (length % 30);
                output.send(&subsystem, 0, &mut vectors, |vectors| copy(vectors, most, &mut found) as isize);
            }
            output.take(&subsystem, &mut found);
            prop_assert!(found == expected);
            prop_assert_eq!(output.pending_bytes(), 0);
        }
    }

    /// Writers fill whole pages with one byte each, so a page with two different bytes is torn.
    #[test]
    fn a_page_leaves_whole_while_it_is_written() {
        let subsystem = subsystem(&["memory:32K"], |_| {});
        let memory = subsystem.memory(1).unwrap();
        let (mut byte, end) = (0, AtomicBool::new(false));
        let torn = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !end.load(Relaxed) {
                    byte = u8::wrapping_add(byte, 1);
                    memory.write(8 << 10, &[byte; 16 << 10]);
                    memory.zero(12 << 10, 4096);
                }
            });
            let (mut output, mut vectors) = (Output::default(), Vec::new());
            let torn = (0..400).find(|round| {
                let mut found = Vec::new();
                output.append_memory(1, 0, 32 << 10);
                while output.pending_bytes() > 0 {
                    // Take the page's bytes slowly, as a kernel with little space does.
                    output.send(&subsystem, 0, &mut vectors, |vectors| {
                        (0..4).for_each(|_| std::thread::yield_now());
                        copy(vectors, 500 + 977 * (round % 17), &mut found) as isize
                    });
                }
                found.chunks(4096).any(|page| page.iter().any(|it| *it != page[0]))
            });
            end.store(true, Relaxed);
            torn
        });
        assert_eq!(torn, None, "the round in which a page was torn");
    }
}
