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
//! Buffers have 4 KiB, 8 KiB and so on, in powers of two, and are aligned to 4 KiB. Buffers of less than 2 MiB lie
//! in huge pages while these take at most half of the budget.
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

/// The size and alignment of a huge page, in bytes.
const HUGE_PAGE: usize = 2 << 20;

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
    free: Vec<Vec<BufferMemory>>,
    /// The huge pages. An index without a page can be used again.
    huge_pages: Vec<Option<HugePage>>,
    /// How many buffers have been given back since the pool was created.
    returned: u64,
}

/// A huge page that is divided into buffers of one size. A disk transfers a buffer of small pages in many
/// pieces, because such pages are scattered in physical memory. Some disks need twice the time for that.
#[derive(Debug)]
struct HugePage {
    start: NonNull<u8>,
    class: usize,
    /// The number of buffers in use.
    used: usize,
}

/// The memory of a buffer.
#[derive(Clone, Copy, Debug)]
struct BufferMemory {
    start: NonNull<u8>,
    /// The index of the huge page that holds the buffer. `None` if the memory was allocated alone.
    page: Option<usize>,
}

/// A buffer of a [`Pool`]. Dropping it returns it to the pool.
#[derive(Debug)]
pub struct Buffer {
    memory: BufferMemory,
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
            huge_pages: Vec::new(),
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
        let memory = shared.take(class).or_else(|| shared.allocate(class))?;
        self.used_bytes.set(used);
        Some(Buffer { memory, class, share: self.clone() })
    }
}

impl Shared {
    /// Removes a free buffer.
    fn take(&mut self, class: usize) -> Option<BufferMemory> {
        let memory = self.free.get_mut(class)?.pop()?;
        self.count(memory, 1);
        Some(memory)
    }

    /// Adds `change` to the number of used buffers in the buffer's huge page, if it lies in one.
    fn count(&mut self, memory: BufferMemory, change: isize) {
        if let Some(page) = memory.page {
            let page =
                self.huge_pages[page].as_mut().expect("a huge page stays while its buffers are in use");
            page.used = page.used.wrapping_add_signed(change);
        }
    }

    /// Allocates a buffer. Returns `None` if the budget is used up.
    fn allocate(&mut self, class: usize) -> Option<BufferMemory> {
        // Huge pages take at most half of the budget, because one buffer in use keeps a whole page.
        if layout(class).size() < HUGE_PAGE
            && self.allocated_bytes + HUGE_PAGE <= self.budget_bytes / 2
            && self.add_huge_page(class)
        {
            return self.take(class);
        }
        if !self.make_room(layout(class).size()) {
            return None;
        }
        self.allocated_bytes += layout(class).size();
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout(class)) });
        Some(BufferMemory { start: start.unwrap_or_else(|| handle_alloc_error(layout(class))), page: None })
    }

    /// Maps a huge page and divides it into free buffers. Returns false if the kernel refuses.
    fn add_huge_page(&mut self, class: usize) -> bool {
        let Some(start) = map_huge_page() else { return false };
        self.allocated_bytes += HUGE_PAGE;
        let page = HugePage { start, class, used: 0 };
        let index = match self.huge_pages.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.huge_pages.push(None);
                self.huge_pages.len() - 1
            }
        };
        self.huge_pages[index] = Some(page);
        for offset in (0..HUGE_PAGE).step_by(layout(class).size()).rev() {
            // SAFETY: the offset lies within the huge page.
            let start = unsafe { start.add(offset) };
            self.give_back(class, BufferMemory { start, page: Some(index) });
        }
        true
    }

    fn give_back(&mut self, class: usize, memory: BufferMemory) {
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        self.free[class].push(memory);
    }

    /// Frees unused buffers and huge pages until `bytes` more fit into the budget. Returns false if they do not fit.
    fn make_room(&mut self, bytes: usize) -> bool {
        let fits = |shared: &Self| shared.allocated_bytes + bytes <= shared.budget_bytes;
        for class in (0..self.free.len()).rev() {
            while !fits(self) {
                let Some(at) = self.free[class].iter().rposition(|memory| memory.page.is_none()) else {
                    break;
                };
                let memory = self.free[class].swap_remove(at);
                // SAFETY: the buffer was allocated alone with this layout and is not used any more.
                unsafe { dealloc(memory.start.as_ptr(), layout(class)) };
                self.allocated_bytes -= layout(class).size();
            }
        }
        for index in 0..self.huge_pages.len() {
            if fits(self) {
                break;
            }
            if let Some(page) = self.huge_pages[index].take_if(|page| page.used == 0) {
                self.free[page.class].retain(|memory| memory.page != Some(index));
                unmap(&page);
                self.allocated_bytes -= HUGE_PAGE;
            }
        }
        fits(self)
    }
}

/// Maps `HUGE_PAGE` bytes of zeros at a multiple of `HUGE_PAGE`, and asks the kernel for a huge page.
fn map_huge_page() -> Option<NonNull<u8>> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses the address of the new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), 2 * HUGE_PAGE, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
    let page = start.wrapping_byte_add(before);
    // SAFETY: both ranges belong to the new mapping, and nothing uses them.
    unsafe {
        if before > 0 {
            libc::munmap(start, before);
        }
        libc::munmap(page.wrapping_byte_add(HUGE_PAGE), HUGE_PAGE - before);
        // If the kernel refuses, the pages stay small.
        libc::madvise(page, HUGE_PAGE, libc::MADV_HUGEPAGE);
    }
    NonNull::new(page.cast())
}

fn unmap(page: &HugePage) {
    // SAFETY: the huge page was mapped with this size, and none of its buffers is used any more.
    unsafe { libc::munmap(page.start.as_ptr().cast(), HUGE_PAGE) };
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (class, free) in self.free.iter_mut().enumerate() {
            for memory in free.drain(..).filter(|memory| memory.page.is_none()) {
                // SAFETY: the buffer was allocated alone with this layout and is not used any more.
                unsafe { dealloc(memory.start.as_ptr(), layout(class)) };
            }
        }
        // All buffers have been given back, because each of them keeps the pool alive.
        self.huge_pages.iter().flatten().for_each(unmap);
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
        self.memory.start.as_ptr()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns this memory, which was zeroed when it was allocated.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr(), self.capacity()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer owns this memory, which was zeroed when it was allocated. The borrow is
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.capacity()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.share.used_bytes.set(self.share.used_bytes.get() - self.capacity());
        let mut shared = self.share.pool.borrow_mut();
        shared.returned += 1;
        shared.count(self.memory, -1);
        shared.give_back(self.class, self.memory);
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
    fn unused_huge_pages_make_room_for_other_sizes() {
        let all = Pool::new(2 * HUGE_PAGE);
        let pool = all.share(usize::MAX);
        let page_of = |buffer: &Buffer| (buffer.memory.page.is_some(), buffer.address() as usize / HUGE_PAGE);
        let first = pool.allocate(128 << 10).unwrap();
        let second = pool.allocate(128 << 10).unwrap();
        assert_eq!((page_of(&first), page_of(&first).0), (page_of(&second), true));
        assert!(second.iter().all(|byte| *byte == 0));
        drop(first);
        // A huge page with a buffer in use cannot be freed, so half of the budget is left.
        assert!(pool.allocate(2 * HUGE_PAGE).is_none());
        let whole = pool.allocate(HUGE_PAGE).unwrap();
        assert!(pool.allocate(4096).is_none());
        drop((second, whole));
        let both = pool.allocate(2 * HUGE_PAGE).unwrap();
        assert!(pool.allocate(4096).is_none());
        drop(both);
        assert!(!page_of(&pool.allocate(4096).unwrap()).0);
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
