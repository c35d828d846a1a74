//! Locks. PEs get a lock in the order in which they asked for it (OpenSHMEM 1.5, section 9.12). The threads of
//! one PE get it in any order.
//!
//! A lock is a queue of PEs (Mellor-Crummey and Scott, "Algorithms for scalable synchronization on
//! shared-memory multiprocessors", 1991). The two halves of the lock's symmetric word hold the end of the
//! queue and its links:
//!
//! ```text
//! bytes 0..4   at PE 0: the last PE of the queue + 1, or 0 for a free lock
//! bytes 4..8   at each PE: bit 31 while it waits; bit 30 while it is in the queue; below, the next PE of the
//!              queue + 1. It is 0 if no thread of the PE uses the lock
//! ```
//!
//! Only one thread of a PE uses the lock at a time: the one that has replaced the PE's second half by a
//! nonzero value. Other threads of the PE wait until the second half is 0 again.
//!
//! A PE appends itself by a swap of the first half at PE 0. It then stores its number in the second half at
//! the PE before it, and waits until its own bit 31 is cleared.

use crate::world::{check, invalid, world};
use inlane_pgas::transport::{Operation, Transport};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// The PE whose copy of a lock's word contains the end of the lock's queue: the number of the last PE in the
/// queue. It is the same PE for all locks.
const HOME: u32 = 0;
const WAITING: u32 = 1 << 31;
/// This PE is in the lock's queue: it waits for the lock or holds it.
const QUEUED: u32 = 1 << 30;

/// Returns the address of the second half of the lock's word. This half holds the next PE of the lock's
/// queue.
fn links(lock: *mut i64) -> usize {
    lock as usize + 4
}

/// Returns the second half of this PE's word of the lock.
fn own_link<'a>(lock: *mut i64) -> &'a AtomicU32 {
    // SAFETY: an earlier atomic has checked that the lock is an aligned word of symmetric memory. Other PEs
    // change the word only by atomics.
    unsafe { AtomicU32::from_ptr(links(lock) as *mut u32) }
}

/// Returns the number of the next PE in the queue, plus 1, or 0 if there is none.
fn next(link: u32) -> u32 {
    link & !(WAITING | QUEUED)
}

/// Carries out a 4-byte atomic and returns the previous value.
fn atomic(operation: Operation, target: usize, operand: u32, comparand: u32, pe: u32) -> u32 {
    check(world().atomic(operation, target, 4, operand.into(), comparand.into(), pe)) as u32
}

/// Acquires a lock. Blocks until the calling thread holds the lock. PEs acquire the lock in the order of
/// their calls. The threads of one PE acquire it in any order.
pub fn set(lock: *mut i64) {
    let me = world().me();
    while atomic(Operation::CompareSwap, links(lock), WAITING | QUEUED, 0, me) != 0 {
        // Another thread of this PE uses the lock.
        check(world().wait_word((links(lock), 4), None, || own_link(lock).load(Ordering::Acquire) == 0));
    }
    let last = atomic(Operation::Swap, lock as usize, me + 1, 0, HOME);
    if last != 0 {
        let before = last - 1;
        check(world().atomic_nbi(Operation::Or, links(lock), 4, (me + 1).into(), before));
        let granted = || own_link(lock).load(Ordering::Acquire) & WAITING == 0;
        check(world().wait_word((links(lock), 4), Some(before), granted));
    }
}

/// Clears a lock. All earlier puts of this PE are delivered before the next PE gets the lock.
pub fn clear(lock: *mut i64) {
    check(world().transport().quiet());
    let me = world().me();
    // Begin with an atomic, because it checks the address. The plain loads below do not.
    let mut link = atomic(Operation::Fetch, links(lock), 0, 0, me);
    if link & QUEUED == 0 {
        invalid(
            format!("the lock at {lock:p}"),
            "it is not set by this PE; call shmem_set_lock before shmem_clear_lock",
        );
    }
    if next(link) == 0 {
        let last = atomic(Operation::CompareSwap, lock as usize, 0, me + 1, HOME);
        if last == me + 1 {
            // No PE is behind this PE, so no other PE changes its word now. Other threads of this PE change
            // the word only once it is 0.
            own_link(lock).store(0, Ordering::Release);
            return;
        }
        // Another PE is already behind this PE in the lock's queue. Wait until it has stored its number in
        // the second half of this PE's copy of the lock's word.
        check(world().wait_word((links(lock), 4), None, || {
            link = own_link(lock).load(Ordering::Acquire);
            next(link) != 0
        }));
    }
    // The next PE has stored its number, so no other PE changes this word any more. From this store on,
    // another thread of this PE may append this PE to the queue again.
    own_link(lock).store(0, Ordering::Release);
    check(world().atomic_nbi(Operation::And, links(lock), 4, (!WAITING).into(), next(link) - 1));
}

/// Sets a lock if it is free. Returns 0 if this call has set the lock, else 1. Also returns 1 while another
/// thread of this PE uses the lock.
pub fn test(lock: *mut i64) -> c_int {
    let me = world().me();
    // Prepare this PE's word before taking the lock. Once the lock is taken, the next PE may store its number
    // in the word. If a thread of this PE uses the lock already, leave the word as it is.
    let in_use = atomic(Operation::CompareSwap, links(lock), QUEUED, 0, me) != 0;
    let is_taken = in_use || atomic(Operation::CompareSwap, lock as usize, me + 1, 0, HOME) != 0;
    if is_taken {
        if !in_use {
            own_link(lock).store(0, Ordering::Release);
        }
        world().found_nothing();
    }
    is_taken as c_int
}
