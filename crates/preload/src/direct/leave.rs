//! Asks for the receive ring, and leaves it before the kernel is asked for received bytes. The engine then moves the
//! bytes of the ring to the socket pair.

use super::{blocks, entry, is_alive, is_same, slot};
use crate::time::now_ns;
use crate::{errno, real, set_errno};
use inlane_offload_protocol::slots::Slot;
use libc::c_long;
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

/// The longest wait until the engine has moved bytes of the ring to the pair, in nanoseconds. The engine usually
/// needs a few microseconds, but may wait for a processor.
const MOVE_NS: u64 = 200_000_000;

/// Leaves the receive ring of `fd`. Lets the engine move the bytes that are there to the socket pair. Call this before a
/// system call that looks at the descriptor's received bytes.
#[inline]
pub fn leave(fd: RawFd) {
    if let Some(slot) = slot(fd) {
        leave_slot(fd, slot);
    }
}

/// Leaves the receive ring of `fd`, which lies in `slot`, as [`leave`] does.
#[inline]
pub fn leave_slot(fd: RawFd, slot: Slot) {
    if slot.receive().leave() {
        await_move(fd, slot);
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

/// Waits briefly while the engine moves bytes of `fd` from shared memory to the socket pair. If the
/// slot is outdated or the engine does not finish, removes the slot from the table, because each later call
/// would wait again. Leaves errno unchanged.
#[cold]
pub(super) fn await_move(fd: RawFd, slot: Slot) {
    let before = errno();
    let start = now_ns();
    let mut ends = is_same(fd, slot);
    while ends && is_moving(fd, slot) {
        ends = now_ns() < start + MOVE_NS;
        // Yield, because the engine may be waiting for this processor.
        // SAFETY: has no preconditions.
        unsafe { libc::sched_yield() };
    }
    if let Some(entry) = entry(fd)
        && (!ends || slot.receive().is_moving())
    {
        entry.remove(slot);
    }
    set_errno(before);
}

/// Returns true if the engine is copying bytes of `fd` from shared memory into the socket pair.
/// Returns false if the engine has ended. May change errno.
pub fn is_moving(fd: RawFd, slot: Slot) -> bool {
    slot.receive().is_moving() && (is_alive(slot) || !is_hung_up(fd))
}

/// Returns true if the engine's end of the socket pair is closed.
pub(super) fn is_hung_up(fd: RawFd) -> bool {
    poll(fd, 0) & (libc::POLLHUP | libc::POLLNVAL) != 0
}

/// Returns true if the socket pair has bytes, an end of the stream or an error.
pub(super) fn is_polled_readable(fd: RawFd) -> bool {
    poll(fd, libc::POLLIN) != 0
}

/// Returns the present events of a descriptor.
fn poll(fd: RawFd, events: i16) -> i16 {
    let mut pair = libc::pollfd { fd, events, revents: 0 };
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Use a raw system call. The C library's function is a cancellation point: pthread_cancel could end the
    // thread in it. SAFETY: the structures live through the call.
    let found = unsafe {
        let (pair, none) = (&raw mut pair as c_long, &raw const none as c_long);
        real::syscall(libc::SYS_ppoll, pair, 1, none, 0, 0, 0)
    };
    if found == 1 { pair.revents } else { 0 }
}

/// Asks the engine for the receive ring of `slot`, unless that was already done. Returns false if the slot does not
/// belong to the connection with this inode any more.
pub fn ask(slot: Slot, inode: u64) -> bool {
    if !slot.receive().ask() {
        return true;
    }
    // The engine clears the inode before it gives the slot to another connection. So if this thread has asked for the ring
    // of another connection, it finds another inode.
    let same = slot.header().inode.load(Ordering::Acquire) == inode;
    if !same {
        slot.receive().leave();
    }
    same
}

/// Leaves the receive ring of `slot` before the calling thread sleeps in the
/// kernel. Returns false if bytes are there.
pub(super) fn stop(fd: RawFd, slot: Slot) -> bool {
    slot.receive().stop() || {
        await_move(fd, slot);
        slot.received().is_none() && !slot.receive().is_at_end()
    }
}

/// Returns true if the stream of `fd` has ended in order, and shared memory has the end. May change errno.
pub fn has_end(fd: RawFd) -> bool {
    slot(fd).is_some_and(|slot| slot.receive().has_end() && is_same(fd, slot))
}
