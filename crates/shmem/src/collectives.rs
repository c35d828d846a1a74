//! Barriers and collectives over active sets. A set is given by its first PE, the logarithm of its stride,
//! and its size.

use crate::world::{check, world};
use inlane_pgas::world::Set;
use std::ffi::{c_int, c_void};

fn set(start: c_int, log_stride: c_int, size: c_int) -> Set {
    // A negative start becomes a very large number. A bad stride or a negative size becomes 0. The library
    // refuses such a set.
    Set {
        start: start as u32,
        stride: 1u32.checked_shl(log_stride as u32).unwrap_or(0),
        size: size.max(0) as u32,
    }
}

/// Blocks until all PEs have called this function and their earlier puts are delivered.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_barrier_all() {
    check(world().barrier_all());
}

/// Blocks until all PEs have called this function.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_sync_all() {
    check(world().sync(world().all()));
}

/// Blocks until all PEs of the set have called this function and their earlier puts are delivered.
#[unsafe(no_mangle)]
pub extern "C" fn shmem_barrier(start: c_int, log_stride: c_int, size: c_int, _psync: *mut i64) {
    check(world().barrier(set(start, log_stride, size)));
}

/// Copies `bytes` from the root to the destination of all other PEs of the set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_shmem_broadcast(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    root: c_int,
    start: c_int,
    log_stride: c_int,
    size: c_int,
) {
    let set = set(start, log_stride, size);
    // SAFETY: the caller's pointers are valid, as the OpenSHMEM specification demands.
    check(unsafe { world().broadcast(set, root as u32, destination as usize, source.cast(), bytes) });
}

/// Concatenates the sources of all PEs. Set `same` to a value other than 0 if the lengths are equal on all
/// PEs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_shmem_collect(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    same: c_int,
    start: c_int,
    log_stride: c_int,
    size: c_int,
) {
    let set = set(start, log_stride, size);
    // SAFETY: the caller's pointers are valid, as the OpenSHMEM specification demands.
    check(unsafe {
        match same {
            0 => world().collect(set, destination as usize, source.cast(), bytes),
            _ => world().fcollect(set, destination as usize, source.cast(), bytes),
        }
    });
}

/// Sends one block of `bytes` to each PE of the set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_shmem_alltoall(
    destination: *mut c_void,
    source: *const c_void,
    bytes: usize,
    start: c_int,
    log_stride: c_int,
    size: c_int,
) {
    // SAFETY: the caller's pointers are valid, as the OpenSHMEM specification demands.
    check(unsafe {
        world().all_to_all(set(start, log_stride, size), destination as usize, source.cast(), bytes)
    });
}

/// Combines the `count` elements of `width` bytes at `source` of the PEs in the active set. Stores the result
/// at `destination` of each of them. `combine(accumulator, other, count)` combines elements of two PEs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inlane_shmem_reduce(
    destination: *mut c_void,
    source: *const c_void,
    count: usize,
    width: usize,
    combine: extern "C" fn(*mut c_void, *const c_void, usize),
    start: c_int,
    log_stride: c_int,
    size: c_int,
) {
    let reduce = |sum: *mut u8, other: *const u8, count: usize| combine(sum.cast(), other.cast(), count);
    let set = set(start, log_stride, size);
    // SAFETY: the caller's pointers are valid, as the OpenSHMEM specification demands.
    check(unsafe { world().reduce(set, destination as usize, source.cast(), (count, width), &reduce) });
}
