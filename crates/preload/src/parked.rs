//! The table of kept ends: the program's ends of the pairs of closed connections, which later connections get
//! ([`kept`](crate::direct::kept)).

use crate::hint::Hint;
use crate::{descriptor, real};
use inlane_offload_protocol::slots::SLOTS;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// The kept end of each slot, plus 1. 0 if the slot has none.
pub static PARKED: [AtomicI32; SLOTS] = [const { AtomicI32::new(0) }; SLOTS];
/// The inode of each slot's kept end. It shows whether the program has closed the end in a way that the library does not see.
pub static INODES: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];
/// The numbers of kept ends.
pub static NUMBERS: Hint = Hint::new();
/// The descriptors of connections whose pair may be kept.
pub static KEEPABLE: Hint = Hint::new();
/// True if this process keeps no pairs any more.
pub static STOPPED: AtomicBool = AtomicBool::new(false);

/// Returns true if this process keeps no pairs any more, not even those in new shared memory.
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// Records that the pair of `fd` must not be kept, because the program changes a property that the kernel has.
#[inline]
pub fn forbid(fd: RawFd) {
    if KEEPABLE.has(fd) {
        KEEPABLE.set(fd, false);
    }
}

/// Closes the kept end `fd`.
pub fn close(fd: RawFd) {
    NUMBERS.set(fd, false);
    // SAFETY: the descriptor is a kept end.
    unsafe { real::close(fd) };
}

/// Returns true if `fd` is still the kept end of slot `index`. May change errno.
pub fn is_kept(index: usize, fd: RawFd) -> bool {
    descriptor::identity(fd).is_some_and(|(inode, _)| inode == INODES[index].load(Ordering::SeqCst))
}

/// Closes the kept end `fd` of slot `index`, if it is one. Does nothing for -1.
pub fn close_kept(index: usize, fd: RawFd) {
    if fd >= 0 {
        NUMBERS.set(fd, false);
        if is_kept(index, fd) {
            close(fd);
        }
    }
}

/// Closes the kept end `parked` of slot `index`, unless another thread has taken it.
pub fn unpark(index: usize, parked: RawFd) {
    if PARKED[index].compare_exchange(parked + 1, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
        close_kept(index, parked);
    }
}

/// Closes all kept ends.
pub fn close_all() {
    for (index, parked) in PARKED.iter().enumerate() {
        close_kept(index, parked.swap(0, Ordering::SeqCst) - 1);
    }
}

/// Closes the copies of its parent's kept ends in a new process, which keeps no pairs.
pub fn forget_in_child() {
    STOPPED.store(true, Ordering::SeqCst);
    close_all();
}
