//! Data buffers of a worker thread.
//!
//! A command with data holds one buffer until the data is sent or stored. The buffers of a worker have a common
//! memory budget, which bounds the target's memory. A command that gets no buffer waits until other commands give
//! theirs back. Three rules make sure that they do:
//!
//! * **No command that holds a buffer waits for another one.** A Compare on a file needs two buffers' worth of memory
//!   and takes it in one piece.
//! * **Data in capsules has its own part of the budget**, and gets a buffer only once all of it has arrived. The
//!   command may then wait for a disk, but never for a host. This matters because a connection without a buffer for a
//!   capsule stops receiving, so its other commands wait for their data, too.
//! * **Commands of the admin queue always get a buffer** for the data in their capsules. They hold it only while
//!   they execute.
//!
//! The module `budget` limits how much of the remaining budget a host may take.
//!
//! ```text
//!   Pool --share--> Share of a connection --allocate--> Buffer --drop--> free list of its size
//! ```
//!
//! The sizes of buffers are powers of two from 4 KiB. Buffers are aligned to 4 KiB. Most of them lie in huge pages:
//! see the module `memory`.
//!
//! A reused buffer contains old data, perhaps data of another host. Send only bytes that the current command
//! has written.

mod budget;
mod memory;
#[cfg(test)]
mod tests;

use budget::{Budget, Key};
use memory::{BufferMemory, Memory, UNIT, class_of};
use std::cell::RefCell;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// The part of the budget that data in capsules has for itself: one eighth.
const CAPSULE_PART: usize = 8;

/// The buffers of one thread.
#[derive(Clone, Debug)]
pub struct Pool {
    data: Rc<Part>,
    capsules: Rc<Part>,
}

/// The buffers of one purpose, with the budget that they share.
#[derive(Debug)]
struct Part {
    memory: RefCell<Memory>,
    budget: Rc<Budget>,
}

/// A connection's access to the buffers of a [`Pool`].
#[derive(Debug)]
pub struct Share {
    pool: Pool,
    source: IpAddr,
    quota_bytes: usize,
    data: Rc<Budget>,
    capsules: Rc<Budget>,
}

/// A buffer of a [`Pool`]. Dropping the buffer returns it to the pool.
#[derive(Debug)]
pub struct Buffer {
    memory: BufferMemory,
    class: usize,
    /// Where the buffer came from, and the budget that its bytes were taken from. `None` if it is outside all budgets.
    origin: Option<(Rc<Part>, Rc<Budget>)>,
}

impl Pool {
    /// Creates an empty pool that allocates at most `budget_bytes`.
    pub fn new(budget_bytes: usize) -> Self {
        let capsules = budget_bytes / CAPSULE_PART;
        Self { data: Part::new(budget_bytes - capsules), capsules: Part::new(capsules) }
    }

    /// Creates the share of a connection from the network address `source`. The connection may use at most
    /// `quota_bytes` of the pool's memory for data outside capsules.
    pub fn share(&self, source: IpAddr, quota_bytes: usize) -> Share {
        let level = |part: &Part| part.budget.shared(Key::Source(source));
        let data = level(&self.data).connection(quota_bytes);
        Share { pool: self.clone(), source, quota_bytes, data, capsules: level(&self.capsules) }
    }

    /// Returns the number of buffers that were given back so far. If an allocation failed and this number has
    /// not changed since, another attempt fails, too.
    pub fn returned(&self) -> u64 {
        self.data.memory.borrow().returned + self.capsules.memory.borrow().returned
    }
}

impl Part {
    fn new(budget_bytes: usize) -> Rc<Self> {
        let memory = RefCell::new(Memory::new(budget_bytes));
        Rc::new(Self { memory, budget: Budget::new(None, budget_bytes) })
    }

    fn allocate(self: &Rc<Self>, bytes: usize, budget: &Rc<Budget>) -> Option<Buffer> {
        let class = class_of(bytes);
        if !budget.take(UNIT << class) {
            return None;
        }
        let Some(memory) = self.memory.borrow_mut().allocate(class) else {
            budget.give_back(UNIT << class);
            return None;
        };
        Some(Buffer { memory, class, origin: Some((self.clone(), budget.clone())) })
    }
}

impl Share {
    /// Counts further buffers as those of a controller.
    pub fn join(&mut self, controller: u16) {
        let level =
            |part: &Part| part.budget.shared(Key::Source(self.source)).shared(Key::Controller(controller));
        self.data = level(&self.pool.data).connection(self.quota_bytes);
        self.capsules = level(&self.pool.capsules);
    }

    /// Returns a buffer of at least `bytes` bytes for data that is not in a capsule, or `None` if none is left for
    /// the connection.
    pub fn allocate(&self, bytes: usize) -> Option<Buffer> {
        self.pool.data.allocate(bytes, &self.data)
    }

    /// Returns a buffer for data that has arrived in a capsule. The command must not wait for a host before it gives
    /// the buffer back.
    pub fn allocate_for_capsule(&self, bytes: usize) -> Option<Buffer> {
        self.pool.capsules.allocate(bytes, &self.capsules)
    }

    /// Returns a buffer that no budget limits. The caller limits the number of these buffers.
    pub fn allocate_always(&self, bytes: usize) -> Buffer {
        let class = class_of(bytes);
        Buffer { memory: BufferMemory::new(class), class, origin: None }
    }
}

impl Buffer {
    /// Returns the size of the buffer's memory in bytes.
    pub fn capacity(&self) -> usize {
        UNIT << self.class
    }

    /// Returns the address of the first byte, for requests to the kernel. It stays valid while the buffer
    /// lives.
    pub fn address(&self) -> *mut u8 {
        self.memory.start.as_ptr()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns this memory. The memory was zeroed when it was allocated.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr(), self.capacity()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer owns this memory, which was zeroed at its allocation. The mutable borrow of the
        // buffer makes the slice exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.capacity()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.origin {
            Some((part, budget)) => {
                budget.give_back(self.capacity());
                part.memory.borrow_mut().give_back(self.class, self.memory);
            }
            // SAFETY: `allocate_always` allocated the memory with this class, and the buffer ends.
            None => unsafe { self.memory.free(self.class) },
        }
    }
}
