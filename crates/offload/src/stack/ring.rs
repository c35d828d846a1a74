//! Rings for the data of connections. Each connection has one ring for received data and one ring for data to
//! send.
//!
//! The index of a byte is its position in the stream, counted from 0.

use super::posted::PostedBuffers;
use inlane_core::region::Region;
use inlane_tcp::ReceiveBuffer;
use inlane_wire::checksum::Sum;
use std::ops::Range;

/// Allocates memory for a ring: a region of the given length, zeroed. Returns `None` if there is none. Pages that are not
/// written should take no memory.
pub type Allocate = fn(usize) -> Option<Region>;

/// A span of a ring's memory. Other processes may write to it at any time if the ring is shared, so no reference to its bytes
/// exists. It is valid as long as the ring.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The first byte.
    pub start: *mut u8,
    /// The number of bytes.
    pub len: usize,
}

/// A ring of bytes. Index i of the stream lies at i modulo the capacity.
pub struct ByteRing {
    /// The memory. Nothing else in this process uses it.
    memory: Region,
    /// The total size, in bytes, of the pages that were ever written. Other pages use no memory.
    /// [`Rings::put`] updates it.
    present: usize,
    /// True if another process uses the memory, too. Such a ring is not kept for other connections.
    shared: bool,
    /// The buffers of the program into which received bytes go in place of the ring.
    pub(super) posted: Option<Box<PostedBuffers>>,
}

impl ByteRing {
    /// Creates a ring over zeroed memory, which nothing else uses.
    ///
    /// # Panics
    /// If the length of the memory is not a power of two, or the CPU cannot access it.
    pub fn new(memory: Region) -> Self {
        assert!(memory.len().is_power_of_two() && memory.location().is_cpu_memory());
        Self { memory, present: 0, shared: false, posted: None }
    }

    /// Creates a ring over memory that another process may read and write at any time.
    ///
    /// # Panics
    /// As [`ByteRing::new`].
    pub fn shared(memory: Region) -> Self {
        Self { shared: true, ..Self::new(memory) }
    }

    /// Returns the number of bytes that the ring can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// Returns the memory of `range` as two spans. If the range wraps around the end of the ring, the second
    /// span holds the rest. Otherwise it is empty.
    ///
    /// # Panics
    /// If the range is longer than the ring.
    #[inline]
    pub fn spans(&self, range: Range<u64>) -> [Span; 2] {
        let capacity = self.memory.len();
        let (start, len) =
            ((range.start & (capacity as u64 - 1)) as usize, (range.end - range.start) as usize);
        assert!(len <= capacity);
        let first = len.min(capacity - start);
        // SAFETY: the offset is within the memory.
        let start = unsafe { self.memory.as_ptr().add(start) };
        [Span { start, len: first }, Span { start: self.memory.as_ptr(), len: len - first }]
    }

    /// Copies the bytes of `range` to `to`, which has the range's length.
    ///
    /// # Panics
    /// If `to` has another length.
    #[inline]
    pub fn read(&self, range: Range<u64>, to: &mut [u8]) {
        let [first, second] = self.spans(range);
        assert_eq!(to.len(), first.len + second.len);
        // SAFETY: the spans lie within the ring, and `to` has as many bytes. A byte that another process writes meanwhile is
        // copied before or after that.
        unsafe {
            to.as_mut_ptr().copy_from_nonoverlapping(first.start, first.len);
            to.as_mut_ptr().add(first.len).copy_from_nonoverlapping(second.start, second.len);
        }
    }

    /// Copies the bytes of `range` to `to`, which has the range's length. Returns `sum` with the copied bytes added.
    ///
    /// # Panics
    /// If `to` has another length.
    #[inline]
    pub fn read_summed(&self, range: Range<u64>, to: &mut [u8], sum: Sum) -> Sum {
        match self.spans(range.clone()) {
            [all, Span { len: 0, .. }] => {
                assert_eq!(to.len(), all.len);
                // SAFETY: the span lies within the ring.
                unsafe { sum.add_copied_from(all.start, to) }
            }
            // The first part may have an odd number of bytes, so add both parts at once.
            _ => {
                self.read(range, to);
                sum.add_bytes(to)
            }
        }
    }

    /// Copies the bytes of `range` from `from` to the same indices.
    ///
    /// # Panics
    /// If the range is longer than one of the rings.
    pub fn copy_from(&mut self, from: &Self, range: Range<u64>) {
        let mut index = range.start;
        for Span { start, len } in from.spans(range) {
            let [first, second] = self.spans(index..index + len as u64);
            // SAFETY: the spans lie within the rings, and both parts together have the bytes of the span. The rings differ.
            unsafe {
                first.start.copy_from_nonoverlapping(start, first.len);
                second.start.copy_from_nonoverlapping(start.add(first.len), second.len);
            }
            index += len as u64;
        }
    }
}

impl ByteRing {
    /// Copies `bytes` into the ring, from index `index` on.
    #[inline]
    pub(super) fn write_ring(&mut self, index: u64, bytes: &[u8]) {
        let [first, second] = self.spans(index..index + bytes.len() as u64);
        // SAFETY: the spans lie within the ring and have as many bytes as `bytes`.
        unsafe {
            first.start.copy_from_nonoverlapping(bytes.as_ptr(), first.len);
            second.start.copy_from_nonoverlapping(bytes.as_ptr().add(first.len), second.len);
        }
    }
}

impl ReceiveBuffer for ByteRing {
    #[inline]
    fn write(&mut self, index: u64, bytes: &[u8]) {
        match &mut self.posted {
            None => self.write_ring(index, bytes),
            Some(posted) => {
                let placed = posted.write(index, bytes);
                self.write_ring(index + placed as u64, &bytes[placed..]);
            }
        }
    }
}

/// Unused rings that are kept for later connections. A reused ring causes no page faults, because its pages
/// are already present.
pub struct Rings {
    free: Vec<ByteRing>,
    /// The memory that the unused rings take, in bytes.
    kept: usize,
    capacity: usize,
    allocate: Allocate,
}

impl Rings {
    /// The most memory that unused rings take, in bytes.
    const MOST_KEPT: usize = 64 << 20;
    /// The most unused rings that are kept for later connections.
    const MOST: usize = 4096;
    /// The size of a page of memory in bytes.
    const PAGE: usize = 4096;

    /// Creates an empty store of unused rings, which have `capacity` bytes each. Further ones are allocated by `allocate`.
    pub fn new(capacity: usize, allocate: Allocate) -> Self {
        Self { free: Vec::new(), kept: 0, capacity, allocate }
    }

    /// Changes the size of the rings, and drops the unused ones.
    pub fn set_capacity(&mut self, capacity: usize) {
        *self = Self::new(capacity, self.allocate);
    }

    /// Returns a ring, or `None` if there is no memory for it. Write each byte before reading it, because the ring may hold
    /// bytes of an earlier connection.
    pub fn take(&mut self) -> Option<ByteRing> {
        match self.free.pop() {
            Some(ring) => {
                self.kept -= ring.present;
                Some(ring)
            }
            None => (self.allocate)(self.capacity).map(ByteRing::new),
        }
    }

    /// Takes back a ring, unless it is shared or of another size. Its connection has written `written` bytes in total. The written pages stay in
    /// memory, so they count against the limit on unused rings. If the ring would exceed that limit, drops
    /// it.
    pub fn put(&mut self, mut ring: ByteRing, written: u64) {
        if ring.shared || ring.capacity() != self.capacity {
            return;
        }
        let written = (written.min(self.capacity as u64) as usize).next_multiple_of(Self::PAGE);
        ring.present = ring.present.max(written);
        if self.free.len() < Self::MOST && self.kept + ring.present <= Self::MOST_KEPT {
            self.kept += ring.present;
            self.free.push(ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring(capacity: usize) -> ByteRing {
        ByteRing::new(Region::host(capacity).unwrap())
    }

    #[test]
    fn a_ring_without_memory_is_refused() {
        let mut rings = Rings::new(4096, |_| None);
        assert!(rings.take().is_none());
        rings.put(ring(4096), 1);
        assert!(rings.take().is_some() && rings.take().is_none());
    }

    #[test]
    fn unused_rings_take_bounded_memory_and_count_their_largest_use() {
        let mut rings = Rings::new(1 << 20, |len| Region::host(len).ok());
        for _ in 0..100 {
            rings.put(ring(1 << 20), u64::MAX);
        }
        assert_eq!((rings.free.len(), rings.kept), (64, Rings::MOST_KEPT));
        // Take a ring that was full before, for a connection that writes one byte. The ring's whole size must
        // still count, because its pages stay in memory until the ring is dropped.
        let taken = rings.take().unwrap();
        assert_eq!(rings.kept, Rings::MOST_KEPT - (1 << 20));
        rings.put(taken, 1);
        assert_eq!(rings.kept, Rings::MOST_KEPT);
        let mut small = Rings::new(1 << 20, |len| Region::host(len).ok());
        for _ in 0..100 {
            small.put(ring(1 << 20), 1);
        }
        assert_eq!((small.free.len(), small.kept), (100, 100 * Rings::PAGE));
    }

    proptest! {
        #[test]
        fn bytes_read_back_as_written(start in 0u64..u64::MAX / 2, bytes in proptest::collection::vec(any::<u8>(), 0..=1024)) {
            let mut ring = ring(1024);
            ring.write(start, &bytes);
            let mut read = vec![0; bytes.len()];
            let range = start..start + bytes.len() as u64;
            ring.read(range.clone(), &mut read);
            prop_assert_eq!(&read, &bytes);
            read.fill(0);
            let sum = ring.read_summed(range, &mut read, Sum::new().add(7));
            prop_assert_eq!(sum.finish(), Sum::new().add(7).add_bytes(&bytes).finish());
            prop_assert_eq!(read, bytes);
        }
    }
}
