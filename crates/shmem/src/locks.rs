//! Locks. PEs get a lock in the order in which they asked for it (OpenSHMEM 1.5, section 9.12).
//!
//! A lock is a queue of PEs (Mellor-Crummey and Scott, "Algorithms for scalable synchronization on
//! shared-memory multiprocessors", 1991). The two halves of the lock's symmetric word hold the end of the
//! queue and its links:
//!
//! ```text
//! bytes 0..4   at PE 0: the last PE of the queue + 1, or 0 for a free lock
//! bytes 4..8   at each PE: bit 31 while it waits; below, the next PE of the queue + 1
//! ```
//!
//! A PE appends itself by a swap of the first half at PE 0. It then stores its number in the second half at
//! the PE before it, and waits until its own bit 31 is cleared.

use crate::world::{check, invalid, world};
use inlane_pgas::transport::Operation;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

/// The PE whose copy of a lock's word contains the end of the lock's queue: the number of the last PE in the
/// queue. It is the same PE for all locks.
const HOME: u32 = 0;
const WAITING: u32 = 1 << 31;

/// Returns the address of the second half of the lock's word. This half holds the next PE of the lock's
/// queue.
fn links(lock: *mut i64) -> usize {
    lock as usize + 4
}

/// Loads the second half of this PE's word of the lock. Bit 31 is set while this PE waits for the lock. The
/// other bits hold the number of the next PE in the queue, plus 1.
fn own_link(lock: *mut i64) -> u32 {
    // SAFETY: an earlier atomic has checked that the lock is an aligned word of symmetric memory. Other PEs
    // change the word only by atomics.
    unsafe { AtomicU32::from_ptr(links(lock) as *mut u32) }.load(Ordering::Acquire)
}

/// Carries out a 4-byte atomic and returns the previous value.
fn atomic(operation: Operation, target: usize, operand: u32, comparand: u32, pe: u32) -> u32 {
    check(world().atomic(operation, target, 4, operand.into(), comparand.into(), pe)) as u32
}

/// Acquires a lock. Blocks until this PE holds the lock. PEs acquire the lock in the order of their calls.
pub fn set(lock: *mut i64) {
    let me = world().me();
    atomic(Operation::Swap, links(lock), WAITING, 0, me);
    let last = atomic(Operation::Swap, lock as usize, me + 1, 0, HOME);
    if last != 0 {
        check(world().atomic_nbi(Operation::Or, links(lock), 4, (me + 1).into(), last - 1));
        check(world().wait_word(links(lock), 4, || own_link(lock) & WAITING == 0));
    }
}

/// Clears a lock. All earlier puts of this PE are delivered before the next PE gets the lock.
pub fn clear(lock: *mut i64) {
    check(world().quiet());
    let me = world().me();
    let next = || own_link(lock) & !WAITING;
    // Begin with an atomic, because it checks the address. The plain loads below do not.
    let link = atomic(Operation::Fetch, links(lock), 0, 0, me);
    if link & !WAITING == 0 {
        let last = atomic(Operation::CompareSwap, lock as usize, 0, me + 1, HOME);
        if last == me + 1 {
            return;
        }
        if last == 0 {
            invalid(
                format!("the lock at {lock:p}"),
                "it is not set; call shmem_set_lock before shmem_clear_lock",
            );
        }
        // Another PE is already behind this PE in the lock's queue. Wait until it has stored its number in
        // the second half of this PE's copy of the lock's word.
        check(world().wait_word(links(lock), 4, || next() != 0));
    }
    check(world().atomic_nbi(Operation::And, links(lock), 4, (!WAITING).into(), next() - 1));
}

/// Sets a lock if it is free. Returns 0 if this call has set the lock, else 1.
pub fn test(lock: *mut i64) -> c_int {
    let me = world().me();
    // Clear this PE's link to the next PE in the queue before taking the lock. Once the lock is taken, the
    // next PE may store its number in the link.
    atomic(Operation::Swap, links(lock), 0, 0, me);
    let is_taken = atomic(Operation::CompareSwap, lock as usize, me + 1, 0, HOME) != 0;
    if is_taken {
        world().found_nothing();
    }
    is_taken as c_int
}
