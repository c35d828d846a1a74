//! An array of packets. Dropping the array returns its packets to their pool, even during a panic.

use super::Tally;
use inlane_core::ring::apply_verdicts;
use inlane_core::ring::layout::PacketVerdict;
use inlane_core::{Packet, Pool};
use std::sync::Arc;

/// An array with a fixed number of places for packets. It owns the [`BurstBuffer::len`] packets that it
/// contains, and frees them when it is dropped.
pub struct BurstBuffer {
    packets: Box<[Packet]>,
    start: usize,
    end: usize,
    pool: Arc<dyn Pool>,
}

impl BurstBuffer {
    /// Creates an empty buffer for `capacity` packets of `pool`.
    pub fn new(pool: Arc<dyn Pool>, capacity: usize) -> Self {
        Self { packets: vec![Packet::EMPTY; capacity].into(), start: 0, end: 0, pool }
    }

    /// Returns the number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Returns true if there are no packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the packets.
    #[inline]
    pub fn as_slice(&self) -> &[Packet] {
        &self.packets[self.start..self.end]
    }

    /// Returns the packets as a mutable slice.
    ///
    /// # Safety
    /// The caller may reorder and change the packets. Afterwards every place must hold a packet of the buffer's pool,
    /// and no packet may be in two places.
    #[inline]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [Packet] {
        &mut self.packets[self.start..self.end]
    }

    /// Allocates packets from the buffer's pool: up to `count`, but no more than the free places. Returns their
    /// number.
    pub fn allocate(&mut self, count: usize) -> usize {
        let pool = self.pool.clone();
        let limit = self.len() + count;
        let got = pool.allocate(self.free_places(limit));
        // SAFETY: the pool has written these packets to the first free places, and gives each away once.
        unsafe { self.extend(got) };
        got
    }

    /// Returns the free places, limited so that the buffer holds at most `limit` packets. Write packets from
    /// the front, then call [`BurstBuffer::extend`].
    #[inline]
    pub fn free_places(&mut self, limit: usize) -> &mut [Packet] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let end = (self.start + limit).min(self.packets.len()).max(self.end);
        &mut self.packets[self.end..end]
    }

    /// Adds the `count` packets that the caller has written to the first free places. See
    /// [`BurstBuffer::free_places`].
    ///
    /// # Safety
    /// The caller owns these packets, they are from the buffer's pool, and the caller does not use them again.
    #[inline]
    pub unsafe fn extend(&mut self, count: usize) {
        self.end += count;
        debug_assert!(self.end <= self.packets.len());
    }

    /// Adds a packet.
    ///
    /// # Panics
    /// If the buffer is full.
    ///
    /// # Safety
    /// The caller owns the packet, it is from the buffer's pool, and the caller does not use it again.
    #[inline]
    pub unsafe fn push(&mut self, packet: Packet) {
        self.free_places(self.packets.len())[0] = packet;
        self.end += 1;
    }

    /// Removes the first `count` packets without freeing them. Call it after the packets have got another
    /// owner, such as a port.
    #[inline]
    pub fn release_front(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// Removes all packets without freeing them. Call this when they have another owner, such as a port.
    #[inline]
    pub fn release_all(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Frees all but the first `keep` packets. Returns how many were freed.
    #[inline]
    pub fn free_from(&mut self, keep: usize) -> usize {
        let from = self.start + keep;
        let count = self.end - from;
        if count > 0 {
            // SAFETY: this buffer owns these packets, and they are of this pool. The buffer removes them
            // below.
            unsafe { self.pool.free(&self.packets[from..self.end]) };
            self.end = from;
        }
        count
    }

    /// Frees all packets. Returns how many were freed.
    #[inline]
    pub fn free_all(&mut self) -> usize {
        self.free_from(0)
    }

    /// Applies verdict i to packet i. Forwarded packets stay in the buffer, in order, with the verdict's
    /// length and port. All others are freed and counted as dropped. `room` limits a verdict's length.
    #[inline]
    pub(super) fn apply_verdicts(
        &mut self,
        verdict: impl Fn(usize) -> PacketVerdict,
        room: u32,
        tally: &mut Tally,
    ) {
        // SAFETY: the function reorders the packets, and changes lengths and ports only.
        let done = apply_verdicts(unsafe { self.as_mut_slice() }, verdict, room);
        tally.dropped_verdict += (done.dropped - done.invalid) as u64;
        tally.dropped_invalid += done.invalid as u64;
        self.free_from(done.forwarded);
    }

    /// Returns the pool of the packets.
    pub fn pool(&self) -> &Arc<dyn Pool> {
        &self.pool
    }
}

impl Drop for BurstBuffer {
    fn drop(&mut self) {
        self.free_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::HeapPool;

    #[test]
    fn packets_return_to_their_pool() {
        let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(8, 64).unwrap());
        let mut buffer = BurstBuffer::new(pool.clone(), 8);
        assert_eq!(buffer.allocate(6), 6);
        assert_eq!((buffer.len(), pool.outstanding()), (6, 6));
        assert_eq!(buffer.free_from(4), 2);
        let released: Vec<_> = buffer.as_slice()[..1].to_vec();
        buffer.release_front(1);
        assert_eq!((buffer.len(), pool.outstanding()), (3, 4));
        // SAFETY: the buffer has just released this packet of its pool.
        unsafe { buffer.push(released[0]) };
        assert_eq!(buffer.len(), 4);
        drop(buffer);
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn a_panic_leaks_nothing() {
        let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(8, 64).unwrap());
        let inner = pool.clone();
        let outcome = std::thread::spawn(move || {
            let mut buffer = BurstBuffer::new(inner.clone(), 8);
            buffer.allocate(8);
            panic!("a worker panics");
        })
        .join();
        assert!(outcome.is_err());
        assert_eq!(pool.outstanding(), 0);
    }
}
