//! Allocates and frees memory of the symmetric heap. All PEs must make the same calls in the same order.

use crate::world::{self, check, world};
use inlane_pgas::error::{Error, Result};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Converts the result of an allocation to C's: the address, or null if the heap is full or the alignment is
/// invalid. Ends the job for other errors.
fn made(outcome: Result<*mut u8>) -> *mut c_void {
    match outcome {
        Ok(address) => address.cast(),
        Err(Error::Heap { .. } | Error::Invalid { .. }) => null_mut(),
        Err(error) => world::fail(&error),
    }
}

/// Allocates memory. Returns null if the size is 0 or the heap is full.
pub fn allocate(size: usize) -> *mut c_void {
    if size == 0 {
        check(world().allocate_nothing());
        return null_mut();
    }
    made(world().allocate_for_copies(size))
}

/// Allocates `size` bytes of symmetric memory at an aligned address. Rounds the alignment up to a power of
/// two, as other OpenSHMEM libraries do. Returns null if the size is 0, the heap is full, or the alignment is
/// 0 or too large.
pub fn allocate_aligned(alignment: usize, size: usize) -> *mut c_void {
    if size == 0 {
        check(world().allocate_nothing());
        return null_mut();
    }
    let alignment = match alignment {
        0 => 0,
        _ => alignment.checked_next_power_of_two().unwrap_or(usize::MAX),
    };
    made(world().allocate(size, alignment))
}

/// Allocates memory. The hints make no difference: all memory serves atomics and signals equally well.
pub fn allocate_with_hints(size: usize, _hints: i64) -> *mut c_void {
    allocate(size)
}

/// Allocates memory of zeros. Returns null if the size is 0, overflows, or the heap is full.
pub fn allocate_zeros(count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return null_mut() };
    let address = allocate(bytes);
    if !address.is_null() {
        // SAFETY: the memory was just allocated with `bytes` bytes.
        unsafe { std::ptr::write_bytes(address.cast::<u8>(), 0, bytes) };
        check(world().barrier_all());
    }
    address
}

/// Frees memory of the symmetric heap. All PEs must call this. If the address is null, frees nothing, but
/// still waits until all PEs have made the call.
pub fn free(address: *mut c_void) {
    match address.is_null() {
        true => check(world().release_nothing()),
        false => check(world().release(address.cast())),
    }
}

/// Changes the size of an allocation, possibly by moving it. If the address is null, allocates new memory. If
/// the size is 0, frees the memory and returns null. Also returns null if the heap is full.
pub fn reallocate(address: *mut c_void, size: usize) -> *mut c_void {
    if address.is_null() {
        return allocate(size);
    }
    if size == 0 {
        free(address);
        return null_mut();
    }
    let Some(old) = world().allocated(address.cast()) else {
        check::<()>(world().release(address.cast()));
        return null_mut();
    };
    if check(world().shrink(address.cast(), size)) {
        return address;
    }
    let fresh = allocate(size);
    if !fresh.is_null() {
        // SAFETY: the old allocation has `old` bytes, and the new one has `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), fresh.cast(), old.min(size)) };
        free(address);
    }
    fresh
}
