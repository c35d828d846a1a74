//! Locks that make accesses to a page atomic.
//!
//! A block lies within one page. A command that copies each page under the page's lock therefore reads and writes whole
//! blocks, as NVMe requires (NVM section 2.1.4: a write of one block is atomic).

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// The most locks. The memory for them stays small enough for the first-level cache.
const MOST: u64 = 4096;
/// How often a reader repeats its copy because of writers before it locks the page itself.
const OPTIMISTIC_READS: u32 = 32;
/// How often a thread looks at a lock before it lets other threads run.
const SPINS: u32 = 64;

/// Sequence locks. A lock belongs to several pages. Its value is odd while it is held.
///
/// Readers write no shared memory: they repeat their copy if the value has changed meanwhile.
#[derive(Debug)]
pub struct PageLocks(Box<[AtomicU32]>);

/// Holds the locks of some pages until it is dropped.
#[derive(Debug)]
pub struct Locked<'a> {
    locks: &'a PageLocks,
    pages: Range<u64>,
}

impl PageLocks {
    /// Creates the locks for `pages` pages.
    pub fn new(pages: u64) -> Self {
        let count = pages.next_power_of_two().min(MOST);
        Self((0..count).map(|_| AtomicU32::new(0)).collect())
    }

    fn of(&self, page: u64) -> &AtomicU32 {
        &self.0[page as usize & (self.0.len() - 1)]
    }

    /// Returns the largest part at the start of `pages` that can be locked at a time.
    pub fn part(&self, pages: &Range<u64>) -> Range<u64> {
        // The number of locks is a power of two.
        let last = pages.start | (self.0.len() as u64 - 1);
        pages.start..pages.end.min(last + 1)
    }

    /// Locks pages for a change. Waits for other writers.
    ///
    /// # Panics
    /// If this is more than [`PageLocks::part`] allows. Threads that lock in another order could wait for each other.
    #[inline]
    pub fn lock(&self, pages: Range<u64>) -> Locked<'_> {
        assert_eq!(self.part(&pages), pages, "locks in ascending order");
        for page in pages.clone() {
            let lock = self.of(page);
            let mut spins = 0;
            loop {
                let value = lock.load(Ordering::Relaxed);
                let next = value.wrapping_add(1);
                if value.is_multiple_of(2)
                    && lock.compare_exchange_weak(value, next, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    break;
                }
                pause(&mut spins);
            }
        }
        // Orders the locking before the changes of the pages.
        fence(Ordering::Release);
        Locked { locks: self, pages }
    }

    /// Calls `read`, which reads from `page`, until no writer has changed the page meanwhile. Returns its last result.
    #[inline]
    pub fn read<T>(&self, page: u64, mut read: impl FnMut() -> T) -> T {
        let lock = self.of(page);
        let mut spins = 0;
        for _ in 0..OPTIMISTIC_READS {
            let before = lock.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let value = read();
                // Orders the reads of the page before the second look at the lock.
                fence(Ordering::Acquire);
                if lock.load(Ordering::Relaxed) == before {
                    return value;
                }
            }
            pause(&mut spins);
        }
        let _locked = self.lock(page..page + 1);
        read()
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        for page in self.pages.clone() {
            let lock = self.locks.of(page);
            lock.store(lock.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
    }
}

/// Waits a moment. The thread that holds the lock may have been preempted, so lets it run now and then.
fn pause(spins: &mut u32) {
    *spins += 1;
    match spins.is_multiple_of(SPINS) {
        true => std::thread::yield_now(),
        false => std::hint::spin_loop(),
    }
}
