//! Leaves the receive ring before the kernel is asked for received bytes. The engine then moves the bytes of the ring to the
//! socket pair.

use super::slot;
use crate::slots::{self, blocks, entry, is_same};
use crate::{errno, set_errno};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

/// Makes later receives on `fd` go to the kernel. Call this when the program sets SO_RCVLOWAT, because
/// receives through shared memory ignore that option.
pub fn note_low_water(fd: RawFd) {
    if let Some(slot) = slot(fd).filter(|&slot| is_same(fd, slot)) {
        slot.header().low_water.store(1, Ordering::Relaxed);
        slot.receive().leave();
    }
}

/// Leaves the receive ring of `fd`. Lets the engine move the bytes that are there to the socket pair. Call this before a
/// system call that looks at the descriptor's received bytes.
#[inline]
pub fn leave(fd: RawFd) {
    if let Some(slot) = slot(fd) {
        slots::leave(fd, slot);
    }
}

/// Leaves the receive ring of `fd` if the descriptor is blocking. Call this before the kernel's receive, if
/// shared memory has no bytes. The thread may then sleep in the kernel, and the engine can wake it there only
/// through the socket pair.
#[inline]
pub fn note_kernel_receives(fd: RawFd) {
    if let Some(entry) = entry(fd)
        && let Some(slot) = slot(fd)
        && !slot.receive().is_idle()
    {
        let before = errno();
        if blocks(fd, entry, slot) {
            leave(fd);
        }
        set_errno(before);
    }
}

/// Returns true if the stream of `fd` has ended in order, and shared memory has the end. May change errno.
pub fn has_end(fd: RawFd) -> bool {
    slot(fd).is_some_and(|slot| slot.receive().has_end() && is_same(fd, slot))
}
