//! Locks that make accesses to a page atomic.
//!
//! A block lies within one page. A command that copies each page under the page's lock therefore reads and writes whole
//! blocks, as NVMe requires (NVM section 2.1.4: a write of one block is atomic).
//!
//! There are two ways to read. A reader that copies writes no shared memory: it repeats its copy if the page has changed
//! meanwhile. A reader whose bytes cannot be called back, because the kernel sends them, pins the page first. Each reader
//! has flags of its own for that, so readers do not share cache lines. A writer looks at the flags of all readers:
//!
//! ```text
//!   reader:  set its flag,  then look at the lock      held: clear the flag again
//!   writer:  take the lock, then look at all flags     set:  wait until they are clear
//! ```
//!
//! All four steps are sequentially consistent, so at least one side sees the other. A reader never waits while it has
//! pinned pages, so readers and writers cannot wait for each other.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The most locks. The memory for them stays small enough for the first-level cache.
const MOST: u64 = 4096;
/// How often a reader repeats its copy because of writers before it locks the page itself.
const OPTIMISTIC_READS: u32 = 32;
/// How often a thread looks at a lock before it lets other threads run.
const SPINS: u32 = 64;

/// Sequence locks. A lock belongs to several pages. Its value is odd while it is held.
#[derive(Debug)]
pub struct PageLocks {
    locks: Box<[AtomicU32]>,
    /// The flags of each reader, one for each lock.
    pins: Box<[Pins]>,
}

/// A reader's flags: bit n % 64 of word n / 64 belongs to lock n. Only the reader changes them.
#[derive(Debug)]
#[repr(align(128))]
struct Pins([AtomicU64; MOST as usize / 64]);

/// Holds the locks of some pages until it is dropped.
#[derive(Debug)]
pub struct Locked<'a> {
    locks: &'a PageLocks,
    pages: Range<u64>,
}

impl PageLocks {
    /// Creates the locks for `pages` pages and `readers` threads that pin pages.
    pub fn new(pages: u64, readers: usize) -> Self {
        let count = pages.next_power_of_two().min(MOST);
        let pins = || Pins([const { AtomicU64::new(0) }; MOST as usize / 64]);
        Self {
            locks: (0..count).map(|_| AtomicU32::new(0)).collect(),
            pins: (0..readers).map(|_| pins()).collect(),
        }
    }

    fn index(&self, page: u64) -> usize {
        page as usize & (self.locks.len() - 1)
    }

    fn of(&self, page: u64) -> &AtomicU32 {
        &self.locks[self.index(page)]
    }

    /// Returns the largest part at the start of `pages` that can be locked at a time.
    pub fn part(&self, pages: &Range<u64>) -> Range<u64> {
        // The number of locks is a power of two.
        let last = pages.start | (self.locks.len() as u64 - 1);
        pages.start..pages.end.min(last + 1)
    }

    /// Locks pages for a change. Waits for other writers, and for readers that have pinned them.
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
                    && lock.compare_exchange_weak(value, next, Ordering::SeqCst, Ordering::Relaxed).is_ok()
                {
                    break;
                }
                pause(&mut spins);
            }
            let (word, flag) = flag(self.index(page));
            for pins in &self.pins {
                while pins.0[word].load(Ordering::SeqCst) & flag != 0 {
                    pause(&mut spins);
                }
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

    /// Pins pages for the reader with this number, so that no writer changes them. Stops at a page that a writer
    /// changes, and returns the number of that page, or the end of `pages`.
    ///
    /// One thread at a time may use a reader's number. It must not lock or read pages before it calls
    /// [`PageLocks::unpin`].
    ///
    /// # Panics
    /// If there is no such reader.
    #[inline]
    pub fn pin(&self, reader: usize, pages: Range<u64>) -> u64 {
        let pins = &self.pins[reader].0;
        for page in pages.clone() {
            let (word, flag) = flag(self.index(page));
            let before = pins[word].load(Ordering::Relaxed);
            // The page, or another page with the same lock, may be pinned already.
            if before & flag == 0 {
                pins[word].swap(before | flag, Ordering::SeqCst);
                if self.of(page).load(Ordering::SeqCst) % 2 == 1 {
                    pins[word].store(before, Ordering::Release);
                    return page;
                }
            }
        }
        pages.end
    }

    /// Waits until no writer changes the page.
    pub fn wait(&self, page: u64) {
        let mut spins = 0;
        while self.of(page).load(Ordering::Relaxed) % 2 == 1 {
            pause(&mut spins);
        }
    }

    /// Unpins all pages of a reader.
    #[inline]
    pub fn unpin(&self, reader: usize) {
        for word in self.pins[reader].0.iter().take(self.locks.len().div_ceil(64)) {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Release);
            }
        }
    }
}

/// Returns the word and the bit of a lock's flag.
#[inline]
fn flag(lock: usize) -> (usize, u64) {
    (lock / 64, 1 << (lock % 64))
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
