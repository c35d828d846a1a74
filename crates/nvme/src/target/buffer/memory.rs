//! The memory of a pool's buffers.
//!
//! Most of it is the arena: one mapping of which the kernel makes huge pages, because small pages are scattered in
//! physical memory. A disk transfers a buffer of small pages in many pieces, and some disks need twice the time for
//! that. A buddy system divides the arena: a block is halved until it has the size of the buffer, and two free halves
//! become a block again. A buffer for which the arena has no free block of its size gets memory outside the arena.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeSet;
use std::ptr::NonNull;

/// The smallest buffer, and the alignment of all buffers. It suffices for direct I/O on every supported
/// device.
pub const UNIT: usize = 4096;

/// The size and alignment of a huge page, in bytes.
pub const HUGE_PAGE: usize = 2 << 20;

/// The size of the blocks of which at most half may be divided: the largest transfer of a command (MDTS).
const WHOLE: usize = 1 << 20;

/// The memory of one budget.
#[derive(Debug)]
pub struct Memory {
    /// The arena, aligned to `HUGE_PAGE`. Dangling if the kernel refused to map it.
    arena: NonNull<u8>,
    arena_bytes: usize,
    /// The offsets of free blocks in the arena. Index n holds blocks of `UNIT << n` bytes.
    free: Vec<BTreeSet<usize>>,
    /// The blocks of `WHOLE` bytes that are divided. At most half of the arena is, because a host could otherwise keep a small
    /// buffer in each block, and leave no room for the large buffers of other hosts.
    divided: BTreeSet<usize>,
    /// Like `free`, but not joined with other free blocks yet. The next buffer of the same size gets the last of these,
    /// which is fast and finds it in the processor's caches.
    recent: Vec<Vec<usize>>,
    /// How many bytes more may be allocated outside the arena.
    pub outside_bytes: usize,
    /// How many buffers have been given back since the pool was created.
    pub returned: u64,
}

/// The memory of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferMemory {
    pub start: NonNull<u8>,
    /// True if the buffer lies outside the arena.
    pub outside: bool,
}

impl BufferMemory {
    /// Allocates the memory of a buffer outside the arena, filled with zeros.
    pub fn new(class: usize) -> Self {
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout(class)) });
        Self { start: start.unwrap_or_else(|| handle_alloc_error(layout(class))), outside: true }
    }

    /// Frees the memory of a buffer outside the arena.
    ///
    /// # Safety
    /// [`BufferMemory::new`] allocated it with the same class, and nothing uses it any more.
    pub unsafe fn free(self, class: usize) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(self.start.as_ptr(), layout(class)) };
    }
}

impl Memory {
    /// Maps the arena: three quarters of the budget. The kernel provides its pages when they are first used.
    pub fn new(budget_bytes: usize) -> Self {
        let wanted = budget_bytes / 4 * 3 / UNIT * UNIT;
        let (arena, arena_bytes) = map(wanted).map_or((NonNull::dangling(), 0), |start| (start, wanted));
        let classes = (arena_bytes / UNIT).checked_ilog2().map_or(0, |largest| largest as usize + 1);
        let mut free = vec![BTreeSet::new(); classes];
        let mut offset = 0;
        while offset < arena_bytes {
            let class = ((arena_bytes - offset) / UNIT).ilog2() as usize;
            free[class].insert(offset);
            offset += UNIT << class;
        }
        let (recent, outside_bytes) = (vec![Vec::new(); classes], budget_bytes - arena_bytes);
        let divided = BTreeSet::new();
        Self { arena, arena_bytes, free, divided, recent, outside_bytes, returned: 0 }
    }

    /// Returns the memory of a buffer, or `None` if the budget is used up.
    pub fn allocate(&mut self, class: usize) -> Option<BufferMemory> {
        let recent = self.recent.get_mut(class).and_then(Vec::pop);
        if let Some(offset) = recent.or_else(|| self.divide(class)) {
            // SAFETY: the offset lies within the arena.
            return Some(BufferMemory { start: unsafe { self.arena.add(offset) }, outside: false });
        }
        self.outside_bytes = self.outside_bytes.checked_sub(UNIT << class)?;
        Some(BufferMemory::new(class))
    }

    /// Removes a free block from the arena. If there is none of its size, halves the smallest larger one. Returns `None` if there is no such block, or
    /// if no further block of `WHOLE` bytes may be divided.
    #[cold]
    fn divide(&mut self, class: usize) -> Option<usize> {
        self.join_recent();
        let larger = (class..self.free.len()).find(|larger| !self.free[*larger].is_empty())?;
        let (size, whole) = (UNIT << class, UNIT << larger >= WHOLE);
        if size < WHOLE && whole && (self.divided.len() + 1) * WHOLE > self.arena_bytes / 2 {
            return None;
        }
        let offset = self.free[larger].pop_first()?;
        if size < WHOLE && whole {
            self.divided.insert(offset / WHOLE);
        }
        (class..larger).for_each(|half| _ = self.free[half].insert(offset + (UNIT << half)));
        Some(offset)
    }

    /// Moves the blocks in `recent` to `free`, and joins them with their other halves.
    fn join_recent(&mut self) {
        for (least, recent) in self.recent.iter_mut().enumerate() {
            for mut offset in recent.drain(..) {
                let mut class = least;
                while self.free[class].remove(&(offset ^ (UNIT << class))) {
                    offset &= !(UNIT << class);
                    class += 1;
                }
                let whole = offset / WHOLE..(offset + (UNIT << class)) / WHOLE;
                whole.for_each(|block| _ = self.divided.remove(&block));
                self.free[class].insert(offset);
            }
        }
    }

    /// Takes the memory of a buffer back that [`Memory::allocate`] returned for the same class.
    pub fn give_back(&mut self, class: usize, memory: BufferMemory) {
        self.returned += 1;
        if memory.outside {
            // SAFETY: `allocate` called `BufferMemory::new`, and the buffer ends.
            unsafe { memory.free(class) };
            self.outside_bytes += UNIT << class;
        } else {
            self.recent[class].push(memory.start.addr().get() - self.arena.addr().get());
        }
    }
}

/// Maps `bytes` bytes of zeros at a multiple of `HUGE_PAGE`, and asks the kernel for huge pages.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses the address of the new mapping.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), bytes + HUGE_PAGE, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    let before = mapped.addr().next_multiple_of(HUGE_PAGE) - mapped.addr();
    let start = mapped.wrapping_byte_add(before);
    // SAFETY: the ranges belong to the new mapping, and nothing uses them.
    unsafe {
        if before > 0 {
            libc::munmap(mapped, before);
        }
        libc::munmap(start.wrapping_byte_add(bytes), HUGE_PAGE - before);
        // If the kernel refuses, the pages stay small.
        libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
    }
    NonNull::new(start.cast())
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the arena was mapped with this size. No buffer is in use, because each one keeps the pool alive.
        unsafe { libc::munmap(self.arena.as_ptr().cast(), self.arena_bytes) };
    }
}

/// Returns the index of the least size that holds `bytes` bytes.
pub fn class_of(bytes: usize) -> usize {
    bytes.div_ceil(UNIT).next_power_of_two().trailing_zeros() as usize
}

pub fn layout(class: usize) -> Layout {
    Layout::from_size_align(UNIT << class, UNIT).expect("the sizes of commands are bounded")
}
