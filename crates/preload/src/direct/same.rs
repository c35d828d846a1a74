//! Receives on a descriptor only as long as it refers to the same connection.
//!
//! A receive with MSG_WAITALL makes several system calls. Between two of them, another thread may close the descriptor, and its
//! number may get another file, whose bytes the receive must not take.

use super::{Entry, identity, is_same, now_ns};
use crate::{fail, real};
use inlane_offload_protocol::slots::Slot;
use libc::{c_long, c_void, ssize_t};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of threads that have found their descriptor unchanged, and receive on it without blocking.
static CALLS: AtomicU32 = AtomicU32::new(0);

/// The longest time for which a close waits for such calls, in nanoseconds. They take microseconds, unless their thread is stopped.
const CALL_NS: u64 = 10_000_000;

/// A descriptor, and the connection that it referred to at the start of a call.
pub(super) struct Same {
    fd: RawFd,
    entry: &'static Entry,
    slot: Slot,
    /// The inode and the device of its socket. The engine may give the slot to another connection.
    identity: (u64, u64),
    /// The next connection may have the same socket, so the inode alone does not show a close.
    changes: u32,
}

impl Same {
    pub fn new(fd: RawFd, entry: &'static Entry, slot: Slot) -> Self {
        let changes = entry.changes.load(Ordering::SeqCst);
        let header = slot.header();
        let identity = (header.inode.load(Ordering::Acquire), header.device.load(Ordering::Relaxed));
        Self { fd, entry, slot, identity, changes }
    }

    /// Returns true if the descriptor still refers to the connection. May change errno.
    #[inline]
    pub fn holds(&self) -> bool {
        !self.is_closed() && (self.has_slot() || identity(self.fd) == Some(self.identity))
    }

    /// Returns true if the connection of the descriptor has the slot. May change errno.
    #[inline]
    pub fn has_slot(&self) -> bool {
        is_same(self.fd, self.slot)
    }

    /// Returns true if the descriptor was closed, unless a call did so that closes a range.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.entry.changes.load(Ordering::SeqCst) != self.changes
    }

    /// Receives bytes of the pair without blocking, if the descriptor still refers to the connection. A close by another thread waits
    /// for that. Fails with EAGAIN otherwise.
    pub fn receive(&self, buffer: *mut c_void, len: usize) -> ssize_t {
        CALLS.fetch_add(1, Ordering::SeqCst);
        // The C library's function is a cancellation point, where the thread could end.
        let flags = libc::MSG_DONTWAIT.into();
        let received = match self.holds() {
            // SAFETY: the kernel checks the buffer.
            true => unsafe {
                real::syscall(
                    libc::SYS_recvfrom,
                    self.fd.into(),
                    buffer as c_long,
                    len as c_long,
                    flags,
                    0,
                    0,
                )
            },
            false => fail(libc::EAGAIN),
        };
        CALLS.fetch_sub(1, Ordering::SeqCst);
        received as ssize_t
    }
}

/// Waits until no thread receives that has found its descriptor unchanged before. Call this after the change was recorded, and before
/// the descriptor is closed.
#[inline]
pub(super) fn await_calls() {
    if CALLS.load(Ordering::SeqCst) != 0 {
        await_them();
    }
}

#[cold]
fn await_them() {
    let end = now_ns() + CALL_NS;
    while CALLS.load(Ordering::SeqCst) != 0 && now_ns() < end {
        // SAFETY: has no preconditions.
        unsafe { libc::sched_yield() };
    }
}

/// Forgets the calls of other threads of the parent, in a new process.
pub(super) fn forget_in_child() {
    CALLS.store(0, Ordering::SeqCst);
}
