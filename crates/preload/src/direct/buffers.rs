//! Buffers that the program allocates for its receives by `inlane_offload.h`. They lie in the arena of the memory that the engine shares
//! with this process, so the engine can place received bytes there.
//!
//! Each buffer has pages of its own. A forked child shares the buffers with its parent, and allocates none in that arena.

#![cfg_attr(test, allow(dead_code, reason = "only programs call the exported functions"))]

use crate::control;
use inlane_offload_protocol::slots::{Area, Slot};
use libc::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

const PAGE: usize = 4096;
const PAGES: usize = Area::ARENA / PAGE;

/// The start of the arena that has the buffers of this process. Null before the first buffer.
static ARENA: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The number of pages of the buffer that begins at each page, or 0. Only the holder of `LOCKED` uses it.
static RUNS: [AtomicU32; PAGES] = [const { AtomicU32::new(0) }; PAGES];
static LOCKED: AtomicBool = AtomicBool::new(false);
/// True once a buffer was taken away from an engine that was stopped while it wrote. The buffers are plain memory from then on.
static DETACHED: AtomicBool = AtomicBool::new(false);

/// Calls `call` while no other thread does. Returns `None` if that takes too long: the thread that did may not exist in this
/// process, which is a forked child.
fn locked<T>(call: impl FnOnce() -> T) -> Option<T> {
    const ATTEMPTS: usize = 100_000;
    for _ in 0..ATTEMPTS {
        if !LOCKED.swap(true, Ordering::Acquire) {
            let result = call();
            LOCKED.store(false, Ordering::Release);
            return Some(result);
        }
        // SAFETY: has no preconditions.
        unsafe { libc::sched_yield() };
    }
    None
}

/// Allocates a buffer, for `inlane_offload_buffer` of the header. Its memory is that of `malloc` if the engine shares no memory
/// with the process, or if the arena is full.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn inlane_offload_allocate(len: usize) -> *mut c_void {
    let pages = len.max(1).div_ceil(PAGE);
    if let Some(buffer) = use_arena().and_then(|arena| locked(|| allocate(arena, pages))?) {
        return buffer.cast();
    }
    let mut buffer = null_mut();
    // SAFETY: the call stores the address of the memory.
    match unsafe { libc::posix_memalign(&mut buffer, PAGE, len.max(1)) } {
        0 => buffer,
        _ => null_mut(),
    }
}

/// Frees a buffer of [`inlane_offload_allocate`].
///
/// # Safety
/// `buffer` is such a buffer, or null. No receive uses it.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn inlane_offload_free(buffer: *mut c_void) {
    let Some(offset) = offset_in_arena(buffer) else {
        // SAFETY: the caller's promise: the C library has allocated this memory.
        return unsafe { libc::free(buffer) };
    };
    // The pages may be those of the process that has forked this one, or no shared memory any more.
    if is_own() {
        locked(|| {
            let pages = RUNS[offset / PAGE].swap(0, Ordering::Relaxed);
            // SAFETY: the pages are those of the buffer, which nobody uses any more. They are then zero.
            unsafe { libc::madvise(buffer, pages as usize * PAGE, libc::MADV_REMOVE) };
        });
    }
}

/// Returns the arena for buffers of this process, after it has asked the engine for shared memory if necessary.
fn use_arena() -> Option<*mut u8> {
    if DETACHED.load(Ordering::Relaxed) {
        return None;
    }
    if !control::has_mapped_area() {
        if !ARENA.load(Ordering::Acquire).is_null() {
            // The buffers are those of the process that has forked this one.
            return None;
        }
        share()?;
    }
    let area = control::area()?;
    area.buffers().store(1, Ordering::Relaxed);
    let arena = area.arena();
    let _ = ARENA.compare_exchange(null_mut(), arena, Ordering::AcqRel, Ordering::Relaxed);
    // After another engine has started, the process may have another area, and keeps its buffers.
    (ARENA.load(Ordering::Acquire) == arena).then_some(arena)
}

/// Asks the engine for shared memory. Tries again while another thread uses the control connection.
fn share() -> Option<()> {
    const ATTEMPTS: usize = 10_000;
    for _ in 0..ATTEMPTS {
        match control::share() {
            // SAFETY: has no preconditions.
            Err(libc::EBUSY) => drop(unsafe { libc::sched_yield() }),
            outcome => return outcome.ok(),
        }
    }
    None
}

/// Returns true if the arena of the buffers is that of this process, and bytes may be placed there.
#[inline]
fn is_own() -> bool {
    let own = || control::area().is_some_and(|area| area.arena() == ARENA.load(Ordering::Relaxed));
    !DETACHED.load(Ordering::SeqCst) && control::has_mapped_area() && own()
}

/// Makes the buffers of this process plain memory, into which nothing is placed any more.
pub fn stop_placing() {
    DETACHED.store(true, Ordering::SeqCst);
}

/// Returns true after [`stop_placing`].
#[inline]
pub fn are_stopped() -> bool {
    DETACHED.load(Ordering::SeqCst)
}

/// Finds `pages` free pages in a row.
fn allocate(arena: *mut u8, pages: usize) -> Option<*mut u8> {
    let (mut start, mut at) = (0, 0);
    while at < PAGES && at - start < pages {
        match RUNS[at].load(Ordering::Relaxed) {
            0 => at += 1,
            used => {
                at += used as usize;
                start = at;
            }
        }
    }
    if at - start < pages {
        return None;
    }
    RUNS[start].store(pages as u32, Ordering::Relaxed);
    // SAFETY: the pages lie in the arena.
    Some(unsafe { arena.add(start * PAGE) })
}

/// Returns true if this process has allocated buffers.
#[inline]
pub fn are_used() -> bool {
    !ARENA.load(Ordering::Relaxed).is_null()
}

fn offset_in_arena(buffer: *mut c_void) -> Option<usize> {
    let arena = ARENA.load(Ordering::Acquire);
    let offset = (buffer as usize).checked_sub(arena as usize).filter(|_| !arena.is_null())?;
    (offset < Area::ARENA).then_some(offset)
}

/// Returns the offset of a buffer in the arena of the area in which `slot` lies. Returns `None` if the engine cannot place bytes into
/// the buffer.
#[inline]
pub fn offset_of(buffer: *mut c_void, len: usize, slot: Slot) -> Option<u64> {
    let offset = offset_in_arena(buffer)?;
    let has_slot = || control::area().is_some_and(|area| area.index_of(slot).is_some());
    (len <= Area::ARENA - offset && is_own() && has_slot()).then_some(offset as u64)
}

/// Takes the memory of a buffer away from an engine that may still write there: the buffer gets other pages with the same contents. Calls
/// `seize` before that, and returns its result. Returns `None` if there is no memory, or if `seize` does. Other threads must
/// not write to the same pages meanwhile.
#[cold]
pub fn detach(buffer: *mut c_void, len: usize, seize: impl FnOnce() -> Option<u64>) -> Option<u64> {
    let first = buffer as usize & !(PAGE - 1);
    let pages = (buffer as usize + len).next_multiple_of(PAGE) - first;
    // SAFETY: the system chooses the address of the new pages. They replace pages of the arena, which keep their address and contents.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let copy = libc::mmap(null_mut(), pages, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if copy == libc::MAP_FAILED {
            return None;
        }
        let Some(placed) = seize() else {
            libc::munmap(copy, pages);
            return None;
        };
        copy.cast::<u8>().copy_from_nonoverlapping(first as *const u8, pages);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        while libc::mremap(copy, pages, pages, flags, first as *mut c_void) == libc::MAP_FAILED {
            // The process has too many mappings at present.
            libc::sched_yield();
        }
        Some(placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_allocated_once_and_reused_after_they_were_freed() {
        let arena = 0x10_0000 as *mut u8;
        let at = |page: usize| Some(arena.wrapping_add(page * PAGE));
        assert_eq!([allocate(arena, 3), allocate(arena, 1), allocate(arena, 2)], [at(0), at(3), at(4)]);
        RUNS[3].store(0, Ordering::Relaxed);
        assert_eq!([allocate(arena, 2), allocate(arena, 1)], [at(6), at(3)]);
        RUNS[0].store(0, Ordering::Relaxed);
        assert_eq!([allocate(arena, 2), allocate(arena, 2), allocate(arena, 1)], [at(0), at(8), at(2)]);
        assert_eq!([allocate(arena, PAGES - 10), allocate(arena, 1)], [at(10), None]);
    }

    #[test]
    fn a_detached_buffer_keeps_its_contents_and_shares_nothing() {
        // SAFETY: two views of the same new memory, of which the second stays as it is.
        unsafe {
            let file = libc::memfd_create(c"test".as_ptr(), 0);
            assert_eq!(libc::ftruncate(file, 3 * PAGE as i64), 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let map = || libc::mmap(null_mut(), 3 * PAGE, access, libc::MAP_SHARED, file, 0).cast::<u8>();
            let (program, engine) = (map(), map());
            engine.write_bytes(7, 3 * PAGE);
            let buffer = program.add(PAGE + 100).cast();
            assert_eq!(detach(buffer, 10, || None), None);
            engine.add(PAGE).write_bytes(8, PAGE);
            assert_eq!(*program.add(PAGE), 8);
            assert_eq!(detach(buffer, 10, || Some(5)), Some(5));
            engine.write_bytes(9, 3 * PAGE);
            assert_eq!([0, PAGE, 2 * PAGE - 1, 2 * PAGE].map(|at| *program.add(at)), [9, 8, 8, 9]);
        }
    }
}
