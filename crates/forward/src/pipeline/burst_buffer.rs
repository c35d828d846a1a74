//! Packets in hand, given back to their pool whatever happens: also when the thread that holds them panics.

use inlane_core::{Packet, Pool};
use std::sync::Arc;

/// An array of packets, the first [`BurstBuffer::len`] of which this thread holds.
pub struct BurstBuffer {
    packets: Box<[Packet]>,
    start: usize,
    end: usize,
    pool: Arc<dyn Pool>,
}

impl BurstBuffer {
    /// Room for `capacity` packets of `pool`.
    pub fn new(pool: Arc<dyn Pool>, capacity: usize) -> Self {
        Self { packets: vec![Packet::EMPTY; capacity].into(), start: 0, end: 0, pool }
    }

    /// How many are held.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// None is.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Those held.
    #[inline]
    pub fn as_slice(&self) -> &[Packet] {
        &self.packets[self.start..self.end]
    }

    /// Those held, to change.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [Packet] {
        &mut self.packets[self.start..self.end]
    }

    /// The places behind those held, for up to `limit` in all: fill from the front, then call [`BurstBuffer::hold`].
    #[inline]
    pub fn free_places(&mut self, limit: usize) -> &mut [Packet] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let end = (self.start + limit).min(self.packets.len()).max(self.end);
        &mut self.packets[self.end..end]
    }

    /// `count` more of the free places now hold packets.
    #[inline]
    pub fn hold(&mut self, count: usize) {
        self.end += count;
        debug_assert!(self.end <= self.packets.len());
    }

    /// The first `count` now belong to somebody else.
    #[inline]
    pub fn release_front(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// All of them now belong to somebody else.
    #[inline]
    pub fn release_all(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Gives all but the first `keep` back to the pool, and returns how many that were.
    #[inline]
    pub fn give_back_from(&mut self, keep: usize) -> usize {
        let from = self.start + keep;
        let count = self.end - from;
        if count > 0 {
            // SAFETY: these packets are held here, are of this pool, and are not used again.
            unsafe { self.pool.free(&self.packets[from..self.end]) };
            self.end = from;
        }
        count
    }

    /// The pool they come from.
    pub fn pool(&self) -> &Arc<dyn Pool> {
        &self.pool
    }
}

impl Drop for BurstBuffer {
    fn drop(&mut self) {
        self.give_back_from(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::HeapPool;

    #[test]
    fn what_is_held_comes_back() {
        let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(8, 64).unwrap());
        let mut held = BurstBuffer::new(pool.clone(), 8);
        let got = pool.allocate(held.free_places(6));
        held.hold(got);
        assert_eq!((held.len(), pool.outstanding()), (6, 6));
        assert_eq!(held.give_back_from(4), 2);
        let mine: Vec<_> = held.as_slice()[..1].to_vec();
        held.release_front(1);
        assert_eq!((held.len(), pool.outstanding()), (3, 4));
        drop(held);
        assert_eq!(pool.outstanding(), 1);
        // SAFETY: these packets are held here, are of this pool, and are not used again.
        unsafe { pool.free(&mine) };
    }

    #[test]
    fn a_panic_leaks_nothing() {
        let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(8, 64).unwrap());
        let inner = pool.clone();
        let outcome = std::thread::spawn(move || {
            let mut held = BurstBuffer::new(inner.clone(), 8);
            let got = inner.allocate(held.free_places(8));
            held.hold(got);
            panic!("as a worker might");
        })
        .join();
        assert!(outcome.is_err());
        assert_eq!(pool.outstanding(), 0);
    }
}
