//! The memory of a pool's buffers: allocates it, keeps free buffers, and divides huge pages.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The smallest buffer, and the alignment of all buffers. It suffices for direct I/O on every supported
/// device.
pub const UNIT: usize = 4096;

/// The size and alignment of a huge page, in bytes.
pub const HUGE_PAGE: usize = 2 << 20;

/// The memory of one budget.
#[derive(Debug, Default)]
pub struct Memory {
    pub budget_bytes: usize,
    /// Bytes of all buffers, in use or free.
    pub allocated_bytes: usize,
    /// The free buffers of each size that lie in huge pages. Index n holds buffers of `UNIT << n` bytes.
    pub free_in_pages: Vec<Vec<BufferMemory>>,
    /// The free buffers of each size that were allocated individually, outside huge pages.
    pub free_alone: Vec<Vec<BufferMemory>>,
    /// The bytes of all buffers in `free_alone`.
    pub free_alone_bytes: usize,
    /// The huge pages. An index without a page can be used again.
    pub huge_pages: Vec<Option<HugePage>>,
    /// The bytes of all huge pages.
    pub huge_bytes: usize,
    /// The number of huge pages without a used buffer.
    pub idle_pages: usize,
    /// How many buffers have been given back since the pool was created.
    pub returned: u64,
}

/// A huge page that is divided into buffers of one size. Small pages are scattered in physical memory, so a
/// disk transfers a buffer of small pages in many pieces. Some disks need twice the time for that.
#[derive(Debug)]
pub struct HugePage {
    pub start: NonNull<u8>,
    class: usize,
    /// The number of buffers in use.
    pub used: usize,
}

/// The memory of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferMemory {
    pub start: NonNull<u8>,
    /// The index of the huge page that holds the buffer. `None` if the buffer lies outside huge pages.
    pub page: Option<usize>,
}

impl BufferMemory {
    /// Allocates the memory of a buffer outside huge pages, filled with zeros.
    pub fn new(class: usize) -> Self {
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout(class)) });
        Self { start: start.unwrap_or_else(|| handle_alloc_error(layout(class))), page: None }
    }

    /// Frees the memory of a buffer outside huge pages.
    ///
    /// # Safety
    /// [`BufferMemory::new`] allocated it with the same class, and nothing uses it any more.
    pub unsafe fn free(self, class: usize) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(self.start.as_ptr(), layout(class)) };
    }
}

impl Memory {
    /// Removes a free buffer that lies in a huge page.
    pub fn take_in_page(&mut self, class: usize) -> Option<BufferMemory> {
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
    pub fn take_alone(&mut self, class: usize) -> Option<BufferMemory> {
        let memory = self.free_alone.get_mut(class)?.pop()?;
        self.free_alone_bytes -= layout(class).size();
        Some(memory)
    }

    /// Adds a huge page if possible, and returns a buffer in it. Otherwise returns a buffer outside huge
    /// pages. Returns `None` if the budget is used up.
    pub fn allocate(&mut self, class: usize) -> Option<BufferMemory> {
        let size = layout(class).size();
        if size < HUGE_PAGE && self.provide_huge_page(class) {
            return self.take_in_page(class);
        }
        if let Some(memory) = self.take_alone(class) {
            return Some(memory);
        }
        self.make_room(size).then(|| {
            self.allocated_bytes += size;
            BufferMemory::new(class)
        })
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

    /// Adds a buffer to the free ones.
    pub fn give_back(&mut self, class: usize, memory: BufferMemory) {
        self.returned += 1;
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
        let fits = |memory: &Self| memory.allocated_bytes + bytes <= memory.budget_bytes;
        for class in (0..self.free_alone.len()).rev() {
            while !fits(self)
                && let Some(memory) = self.take_alone(class)
            {
                // SAFETY: a free buffer outside huge pages, removed from its list.
                unsafe { memory.free(class) };
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

impl Drop for Memory {
    fn drop(&mut self) {
        for (class, free) in self.free_alone.iter_mut().enumerate() {
            for memory in free.drain(..) {
                // SAFETY: a free buffer outside huge pages, removed from its list.
                unsafe { memory.free(class) };
            }
        }
        // No buffer is in use, because each buffer in use keeps the pool alive. So the pages can be unmapped.
        self.huge_pages.iter().flatten().for_each(unmap);
    }
}

/// Returns the index of the least size that holds `bytes` bytes.
pub fn class_of(bytes: usize) -> usize {
    bytes.div_ceil(UNIT).next_power_of_two().trailing_zeros() as usize
}

pub fn layout(class: usize) -> Layout {
    Layout::from_size_align(UNIT << class, UNIT).expect("the sizes of commands are bounded")
}
