//! Finds out without the kernel that no connection waits in a listener's pair.
//!
//! Many programs call accept until it fails with EAGAIN. The last of these calls would cost as many system calls as the others.

use crate::control;
use crate::descriptor::blocks;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// The listener from which this process has accepted last, plus 1. 0 if its records are not counted, or if the next call of accept must
/// ask the kernel.
static LAST: AtomicI32 = AtomicI32::new(0);

/// Counts the record of a connection that was received from the listener `fd`. `tag` is that of the record.
pub fn note_received(fd: RawFd, tag: u8) {
    let counted = control::area().is_some_and(|area| area.records().note_received(tag));
    let last = if counted && control::has_present_area() { fd.saturating_add(1) } else { 0 };
    LAST.store(last, Ordering::Relaxed);
}

/// Returns true if accept on the non-blocking listener `fd` must fail with EAGAIN. Returns false if the kernel must be asked: the program has
/// accepted no connection from it since the last question. May change errno.
#[inline]
pub fn is_empty(fd: RawFd) -> bool {
    LAST.load(Ordering::Relaxed) == fd.saturating_add(1) && ask_area(fd)
}

fn ask_area(fd: RawFd) -> bool {
    // Ask the kernel the next time. This keeps an unexpected count from hiding a connection.
    LAST.store(0, Ordering::Relaxed);
    control::area().is_some_and(|area| area.records().is_empty()) && !blocks(fd)
}

/// Forgets the listener `fd`, because the program closes or replaces the descriptor.
#[inline]
pub fn forget(fd: RawFd) {
    if LAST.load(Ordering::Relaxed) == fd.saturating_add(1) {
        forget_all();
    }
}

/// Forgets all listeners.
pub fn forget_all() {
    LAST.store(0, Ordering::Relaxed);
}
