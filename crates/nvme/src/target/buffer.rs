//! Data buffers of a worker thread.
//!
//! A command with data holds one buffer until the data is sent or stored. The buffers of a worker have a
//! common budget, which bounds the target's memory. Each connection has a quota of the budget, so one host
//! cannot take all buffers. A command that gets no buffer waits until other commands give their buffers back.
//!
//! ```text
//!   Pool --share--> Share of a connection --allocate--> Buffer --drop--> free list of its size
//! ```
//!
//! Buffers have 4 KiB, 8 KiB and so on, in powers of two, and are aligned to 4 KiB.
//!
//! A reused buffer contains old data, perhaps of another host. Send only bytes that the current command has
//! written.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

/// The smallest buffer, and the alignment of all buffers. It suffices for direct I/O on every supported
/// device.
const UNIT: usize = 4096;

/// The buffers of one thread.
#[derive(Debug)]
pub struct Pool(Rc<RefCell<Shared>>);

/// A connection's access to the buffers of a [`Pool`], limited by a quota.
#[derive(Debug)]
pub struct Share {
    pool: Rc<RefCell<Shared>>,
    quota_bytes: usize,
    used_bytes: Cell<usize>,
}

#[derive(Debug)]
struct Shared {
    budget_bytes: usize,
    /// Bytes of all buffers, in use or free.
    allocated_bytes: usize,
    /// The free buffers of each size. Index n holds buffers of `UNIT << n` bytes.
    free: Vec<Vec<NonNull<u8>>>,
    /// How many buffers have been given back since the pool was created.
    returned: u64,
}

/// A buffer of a [`Pool`]. Dropping it returns it to the pool.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    class: usize,
    share: Rc<Share>,
}

impl Pool {
    /// Creates an empty pool that allocates at most `budget_bytes`.
    pub fn new(budget_bytes: usize) -> Self {
        Self(Rc::new(RefCell::new(Shared {
            budget_bytes,
            allocated_bytes: 0,
            free: Vec::new(),
            returned: 0,
        })))
    }

    /// Creates the share of one connection, which may use at most `quota_bytes` of the pool's memory.
    pub fn share(&self, quota_bytes: usize) -> Rc<Share> {
        Rc::new(Share { pool: self.0.clone(), quota_bytes, used_bytes: Cell::new(0) })
    }

    /// Returns the number of buffers given back so far. While it is unchanged, a failed allocation fails
    /// again.
    pub fn returned(&self) -> u64 {
        self.0.borrow().returned
    }
}

impl Share {
    /// Returns a buffer of at least `bytes` bytes, or `None` if the quota or the budget is used up.
    pub fn allocate(self: &Rc<Self>, bytes: usize) -> Option<Buffer> {
        let class = bytes.div_ceil(UNIT).next_power_of_two().trailing_zeros() as usize;
        let layout = layout(class);
        let used = self.used_bytes.get() + layout.size();
        if used > self.quota_bytes {
            return None;
        }
        let mut shared = self.pool.borrow_mut();
        let start = match shared.free.get_mut(class).and_then(Vec::pop) {
            Some(start) => start,
            None if !shared.make_room(layout.size()) => return None,
            None => {
                shared.allocated_bytes += layout.size();
                // SAFETY: the size is not zero.
                let start = unsafe { alloc_zeroed(layout) };
                NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout))
            }
        };
        self.used_bytes.set(used);
        Some(Buffer { start, class, share: self.clone() })
    }
}

impl Shared {
    /// Frees unused buffers until `bytes` more fit into the budget. Returns false if they do not fit.
    fn make_room(&mut self, bytes: usize) -> bool {
        for class in (0..self.free.len()).rev() {
            while self.allocated_bytes + bytes > self.budget_bytes {
                let Some(start) = self.free[class].pop() else { break };
                // SAFETY: the buffer was allocated with this layout and is not used any more.
                unsafe { dealloc(start.as_ptr(), layout(class)) };
                self.allocated_bytes -= layout(class).size();
            }
        }
        self.allocated_bytes + bytes <= self.budget_bytes
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (class, free) in self.free.iter_mut().enumerate() {
            for start in free.drain(..) {
                // SAFETY: the buffer was allocated with this layout and is not used any more.
                unsafe { dealloc(start.as_ptr(), layout(class)) };
            }
        }
    }
}

fn layout(class: usize) -> Layout {
    Layout::from_size_align(UNIT << class, UNIT).expect("the sizes of commands are bounded")
}

impl Buffer {
    /// Returns the length in bytes.
    pub fn capacity(&self) -> usize {
        UNIT << self.class
    }

    /// Returns the address of the first byte, for requests to the kernel. It stays valid while the buffer
    /// lives.
    pub fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns this memory, which was zeroed when it was allocated.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.capacity()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer owns this memory, which was zeroed when it was allocated. The borrow is
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.capacity()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.share.used_bytes.set(self.share.used_bytes.get() - self.capacity());
        let mut shared = self.share.pool.borrow_mut();
        shared.returned += 1;
        if shared.free.len() <= self.class {
            shared.free.resize_with(self.class + 1, Vec::new);
        }
        shared.free[self.class].push(self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_bounds_all_sizes_together() {
        let all = Pool::new(64 << 10);
        let pool = all.share(usize::MAX);
        let large = pool.allocate(32 << 10).unwrap();
        let small: Vec<_> = (0..8).map(|_| pool.allocate(100).unwrap()).collect();
        assert!(pool.allocate(1).is_none());
        drop(small);
        // This allocation of another size frees the eight small buffers.
        let other = pool.allocate(20_000).unwrap();
        assert_eq!(other.capacity(), 32 << 10);
        assert!(pool.allocate(1).is_none());
        drop((large, other));
        assert!(pool.allocate(64 << 10).is_some());
        assert_eq!(all.returned(), 11);
    }

    #[test]
    fn a_share_cannot_exceed_its_quota() {
        let pool = Pool::new(1 << 20);
        let (greedy, other) = (pool.share(8192), pool.share(8192));
        let held = greedy.allocate(8192).unwrap();
        assert!(greedy.allocate(1).is_none() && other.allocate(1).is_some());
        drop(held);
        assert!(greedy.allocate(8192).is_some());
    }

    #[test]
    fn buffers_are_aligned_for_direct_io() {
        let pool = Pool::new(1 << 20).share(1 << 20);
        for bytes in [1, 4096, 5000, 100_000] {
            let buffer = pool.allocate(bytes).unwrap();
            assert!(buffer.len() >= bytes && (buffer.address() as usize).is_multiple_of(4096));
        }
    }
}
