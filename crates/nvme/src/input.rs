//! The input buffer of a connection of either side: bytes that were received but not yet processed.
//!
//! ```text
//!   +-----------+---------------------+----------------------+
//!   | processed | received: `bytes()` | free: `lend()`       |
//!   +-----------+---------------------+----------------------+
//!   0         start                  end                  CAPACITY
//! ```

/// The size of the buffer in bytes. Many small commands fit into it, so one call can receive all of them. Of 32 reads of
/// 4 KiB in flight, it holds the data of half. While the host processes that half and sends new commands, the controller
/// works on the other half. If one call received everything, the controller would have no commands to work on.
pub const CAPACITY: usize = 64 << 10;

/// When less space than this is free, the received bytes are moved to the start of the buffer.
const LEAST_SPACE: usize = 16 << 10;

/// A buffer of received bytes.
#[derive(Debug)]
pub struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// True while the kernel may write to the free part. The received bytes must then stay in place.
    lent: bool,
}

impl Default for Input {
    fn default() -> Self {
        Self { bytes: vec![0; CAPACITY].into_boxed_slice(), start: 0, end: 0, lent: false }
    }
}

impl Input {
    /// Returns the received bytes that are not yet processed.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Counts the next `count` bytes as processed.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "bytes that were received");
        self.start += count;
    }

    /// Returns up to `most` bytes of the free part, to receive further bytes. The free part is never empty, and
    /// stays in place until [`Input::received`] is called.
    pub fn lend(&mut self, most: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.bytes.len() - self.end < LEAST_SPACE {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.lent = true;
        let length = most.min(self.bytes.len() - self.end);
        &mut self.bytes[self.end..][..length]
    }

    /// Counts `count` bytes as received. The caller has written them to the start of the slice that
    /// [`Input::lend`] returned.
    pub fn received(&mut self, count: usize) {
        assert!(self.lent && count <= self.bytes.len() - self.end, "bytes within the lent part");
        self.lent = false;
        self.end += count;
    }

    /// Discards all received bytes.
    pub fn clear(&mut self) {
        self.start = self.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_are_processed_in_order(
            steps in prop::collection::vec((0_usize..40_000, 0_usize..40_000, 1_usize..80_000), 1..60)
        ) {
            let mut input = Input::default();
            let (mut next_in, mut next_out) = (0_u8, 0_u8);
            for (received, processed, most) in steps {
                let space = input.lend(most);
                let count = received.min(space.len());
                for byte in &mut space[..count] {
                    *byte = next_in;
                    next_in = next_in.wrapping_add(1);
                }
                input.received(count);
                let count = processed.min(input.bytes().len());
                for byte in &input.bytes()[..count] {
                    prop_assert_eq!(*byte, next_out);
                    next_out = next_out.wrapping_add(1);
                }
                input.consume(count);
            }
        }
    }
}
