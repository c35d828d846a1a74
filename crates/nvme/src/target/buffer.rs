//! Data buffers of a worker thread.
//!
//! A command with data holds one buffer until the data is sent or stored. The buffers of a worker have a
//! common memory budget. It bounds the target's memory. Each connection has a quota of the budget, so one
//! host cannot take all buffers. A command that gets no buffer waits until other commands give their buffers
//! back.
//!
//! ```text
//!   Pool --share--> Share of a connection --allocate--> Buffer --drop--> free list of its size
//! ```
//!
//! The sizes of buffers are powers of two from 4 KiB. Buffers are aligned to 4 KiB. Buffers smaller than 2
//! MiB lie in huge pages, until huge pages take half of the budget. If no buffer of a huge page is in use,
//! the page can be divided again into buffers of another size.
//!
//! A reused buffer contains old data, perhaps data of another host. Send only bytes that the current command
//! has written.

#[cfg(test)]
mod tests;

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
    /// The free buffers of each size that lie in huge pages. Index n holds buffers of `UNIT << n` bytes.
    free_in_pages: Vec<Vec<BufferMemory>>,
    /// The free buffers of each size that were allocated individually, outside huge pages.
    free_alone: Vec<Vec<BufferMemory>>,
    /// The bytes of all buffers in `free_alone`.
    free_alone_bytes: usize,
    /// The huge pages. An index without a page can be used again.
    huge_pages: Vec<Option<HugePage>>,
    /// The bytes of all huge pages.
    huge_bytes: usize,
    /// The number of huge pages without a used buffer.
    idle_pages: usize,
    /// How many buffers have been given back since the pool was created.
    returned: u64,
}

/// A huge page that is divided into buffers of one size. Small pages are scattered in physical memory, so a
/// disk transfers a buffer of small pages in many pieces. Some disks need twice the time for that.
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
    /// The index of the huge page that holds the buffer. `None` if the buffer lies outside huge pages.
    page: Option<usize>,
}

/// A buffer of a [`Pool`]. Dropping the buffer returns it to the pool.
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
            free_in_pages: Vec::new(),
            free_alone: Vec::new(),
            free_alone_bytes: 0,
            huge_pages: Vec::new(),
            huge_bytes: 0,
            idle_pages: 0,
            returned: 0,
        })))
    }

    /// Creates the share of one connection. The connection may use at most `quota_bytes` of the pool's
    /// memory.
    pub fn share(&self, quota_bytes: usize) -> Rc<Share> {
        Rc::new(Share { pool: self.0.clone(), quota_bytes, used_bytes: Cell::new(0) })
    }

    /// Returns the number of buffers that were given back so far. If an allocation failed and this number has
    /// not changed since, another attempt fails, too.
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
        let memory = shared.take_in_page(class).or_else(|| shared.allocate(class))?;
        self.used_bytes.set(used);
        Some(Buffer { memory, class, share: self.clone() })
    }
}

impl Shared {
    /// Removes a free buffer that lies in a huge page.
    fn take_in_page(&mut self, class: usize) -> Option<BufferMemory> {
        let memory = self.free_in_pages.get_mut(class)?.pop()?;
        let page = memory.page.and_then(|index| self.huge_pages[index].as_mut());
        let page = page.expect("a huge page stays while its free buffers are listed");
        if page.used == 0 {
            self.idle_pages -= 1;
        }
        page.used += 1;
        Some(memory)
    }

    /// Removes a free buffer that was allocated alone.
    fn take_alone(&mut self, class: usize) -> Option<BufferMemory> {
        let memory = self.free_alone.get_mut(class)?.pop()?;
        self.free_alone_bytes -= layout(class).size();
        Some(memory)
    }

    /// Adds a huge page if possible, and returns a buffer in it. Otherwise returns a buffer outside huge
    /// pages. Returns `None` if the budget is used up.
    fn allocate(&mut self, class: usize) -> Option<BufferMemory> {
        let size = layout(class).size();
        if size < HUGE_PAGE && self.provide_huge_page(class) {
            return self.take_in_page(class);
        }
        if let Some(memory) = self.take_alone(class) {
            return Some(memory);
        }
        if !self.make_room(size) {
            return None;
        }
        self.allocated_bytes += size;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout(class)) });
        Some(BufferMemory { start: start.unwrap_or_else(|| handle_alloc_error(layout(class))), page: None })
    }

    /// Adds the free buffers of one more huge page. Returns false if the limits allow none, or the kernel
    /// refuses.
    fn provide_huge_page(&mut self, class: usize) -> bool {
        // Huge pages take at most half of the budget, because one buffer in use keeps a whole page.
        let allowed = self.huge_bytes + HUGE_PAGE <= self.budget_bytes / 2;
        if allowed && self.allocated_bytes + HUGE_PAGE <= self.budget_bytes {
            return self.add_huge_page(class);
        }
        if let Some(index) = self.remove_idle_page_buffers() {
            self.divide(index, class);
            return true;
        }
        allowed && self.make_room(HUGE_PAGE) && self.add_huge_page(class)
    }

    /// Maps a huge page and divides it into free buffers. Returns false if the kernel refuses.
    fn add_huge_page(&mut self, class: usize) -> bool {
        let Some(start) = map_huge_page() else { return false };
        self.allocated_bytes += HUGE_PAGE;
        self.huge_bytes += HUGE_PAGE;
        self.idle_pages += 1;
        let index = match self.huge_pages.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.huge_pages.push(None);
                self.huge_pages.len() - 1
            }
        };
        self.huge_pages[index] = Some(HugePage { start, class, used: 0 });
        self.divide(index, class);
        true
    }

    /// Divides a huge page without buffers into free buffers of one size.
    fn divide(&mut self, index: usize, class: usize) {
        let page = self.huge_pages[index].as_mut().expect("the index of a huge page");
        page.class = class;
        let first = page.start;
        let free = list(&mut self.free_in_pages, class);
        for offset in (0..HUGE_PAGE).step_by(layout(class).size()).rev() {
            // SAFETY: the offset lies within the huge page.
            let start = unsafe { first.add(offset) };
            free.push(BufferMemory { start, page: Some(index) });
        }
    }

    /// Removes all buffers of one idle huge page. A huge page is idle if none of its buffers is in use.
    /// Returns the page's index, or `None` if no page is idle.
    fn remove_idle_page_buffers(&mut self) -> Option<usize> {
        // Skip the search below, because usually no huge page is idle.
        if self.idle_pages == 0 {
            return None;
        }
        let is_idle = |page: &Option<HugePage>| page.as_ref().is_some_and(|page| page.used == 0);
        let index = self.huge_pages.iter().position(is_idle)?;
        let class = self.huge_pages[index].as_ref()?.class;
        self.free_in_pages[class].retain(|memory| memory.page != Some(index));
        Some(index)
    }

    fn give_back(&mut self, class: usize, memory: BufferMemory) {
        let Some(index) = memory.page else {
            self.free_alone_bytes += layout(class).size();
            return list(&mut self.free_alone, class).push(memory);
        };
        let page = self.huge_pages[index].as_mut().expect("a huge page stays while its buffers are in use");
        page.used -= 1;
        if page.used == 0 {
            self.idle_pages += 1;
        }
        self.free_in_pages[class].push(memory);
    }

    /// Frees unused buffers and huge pages until `bytes` more fit into the budget. Returns false, and frees
    /// nothing, if they cannot fit.
    fn make_room(&mut self, bytes: usize) -> bool {
        let unused_bytes = self.free_alone_bytes + self.idle_pages * HUGE_PAGE;
        if self.allocated_bytes - unused_bytes + bytes > self.budget_bytes {
            return false;
        }
        let fits = |shared: &Self| shared.allocated_bytes + bytes <= shared.budget_bytes;
        for class in (0..self.free_alone.len()).rev() {
            while !fits(self)
                && let Some(memory) = self.take_alone(class)
            {
                // SAFETY: the buffer was allocated alone with this layout and is not used any more.
                unsafe { dealloc(memory.start.as_ptr(), layout(class)) };
                self.allocated_bytes -= layout(class).size();
            }
        }
        while !fits(self)
            && let Some(page) =
                self.remove_idle_page_buffers().and_then(|index| self.huge_pages[index].take())
        {
            unmap(&page);
            self.allocated_bytes -= HUGE_PAGE;
            self.huge_bytes -= HUGE_PAGE;
            self.idle_pages -= 1;
        }
        true
    }
}

/// Returns the list of the free buffers of one size.
fn list(lists: &mut Vec<Vec<BufferMemory>>, class: usize) -> &mut Vec<BufferMemory> {
    if lists.len() <= class {
        lists.resize_with(class + 1, Vec::new);
    }
    &mut lists[class]
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
    // SAFETY: the huge page was mapped with this size. None of its buffers is in use any more.
    unsafe { libc::munmap(page.start.as_ptr().cast(), HUGE_PAGE) };
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (class, free) in self.free_alone.iter_mut().enumerate() {
            for memory in free.drain(..) {
                // SAFETY: the buffer was allocated alone with this layout and is not used any more.
                unsafe { dealloc(memory.start.as_ptr(), layout(class)) };
            }
        }
        // No buffer is in use, because each buffer in use keeps the pool alive. So the pages can be unmapped.
        self.huge_pages.iter().flatten().for_each(unmap);
    }
}

fn layout(class: usize) -> Layout {
    Layout::from_size_align(UNIT << class, UNIT).expect("the sizes of commands are bounded")
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
        self.share.used_bytes.set(self.share.used_bytes.get() - self.capacity());
        let mut shared = self.share.pool.borrow_mut();
        shared.returned += 1;
        shared.give_back(self.class, self.memory);
    }
}
