//! Receives bytes of the receive ring in shared memory, and polls for them.

use super::leave;
use super::post::{LOOK_NS, Receive};
use super::{are_possible, buffers, slot};
use crate::signals::BlockedSignals;
use crate::slots::{ask, await_move, blocks, entry, is_same, is_same_quietly, stop};
use crate::time::now_ns;
use crate::{errno, fail, polling, real, set_errno};
use inlane_offload_protocol::address::is_possible;
use inlane_offload_protocol::slots::Slot;
use libc::{c_void, iovec, ssize_t};
use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

/// Returns the number of received bytes of socket `fd` in shared memory, or `None` if there are none.
pub fn available(fd: RawFd) -> Option<usize> {
    let slot = slot(fd)?;
    if slot.receive().is_moving() {
        await_move(fd, slot);
    }
    let received = slot.received()?;
    is_same_quietly(fd, slot).then_some(received.len as usize)
}

/// Receives bytes that are already in shared memory. If `takes` is false, only reads the
/// bytes without consuming them (MSG_PEEK). Returns their number, 0 at the end of the stream, or `None` if there is nothing. Leaves errno
/// unchanged.
///
/// # Safety
/// `parts` points to `count` buffers. Each buffer is writable for the length that it states.
#[inline]
pub unsafe fn receive_available(
    fd: RawFd,
    parts: *const iovec,
    count: usize,
    takes: bool,
) -> Option<ssize_t> {
    let slot = slot(fd)?;
    loop {
        let before = slot.received().map(|received| received.position());
        // SAFETY: the caller's promises.
        let bytes = unsafe { take_available(fd, slot, parts, count, takes, || is_same_quietly(fd, slot)) };
        if takes || bytes.is_none() {
            return bytes;
        }
        fence(Ordering::Acquire);
        // If another thread has taken bytes meanwhile, the engine may have reused their place.
        if slot.received().map(|received| received.position()) == before {
            return bytes;
        }
    }
}

/// Implements [`receive_available`] for a caller that has already found the socket's slot. `is_same` must
/// return true if the slot still belongs to the socket `fd`.
#[inline]
pub(super) unsafe fn take_available(
    fd: RawFd,
    slot: Slot,
    parts: *const iovec,
    count: usize,
    takes: bool,
    is_same: impl FnOnce() -> bool,
) -> Option<ssize_t> {
    let received = slot.received();
    let at_end = received.is_none() && slot.receive().is_at_end();
    if received.is_none() && !at_end {
        if slot.receive().is_moving() {
            await_move(fd, slot);
        }
        return None;
    }
    if !is_possible(parts, 0) || !is_same() {
        return None;
    }
    // SAFETY: the caller promises `count` buffers.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    if !are_possible(parts) {
        // Let the receive go to the kernel, which refuses the invalid buffers.
        leave(fd);
        return None;
    }
    let Some(received) = received else { return Some(0) };
    let mut copied = 0;
    for part in parts {
        let len = part.iov_len.min(received.len as usize - copied);
        // SAFETY: the caller guarantees that each part of the program's buffer has room for `iov_len` bytes.
        unsafe { slot.read_received(received, copied, part.iov_base.cast(), len) };
        copied += len;
    }
    if takes && copied > 0 && !slot.receive().take(received, copied as u64) {
        // The engine has ended the mode RING meanwhile. The kernel's receive must find the bytes in the socket pair.
        if slot.receive().is_moving() {
            await_move(fd, slot);
        }
        return None;
    }
    (copied > 0).then_some(copied as ssize_t)
}

/// Implements recv(2) without flags. Polls for a short time, because sleeping and waking up costs more.
/// Returns the result of the program's call, or `None` if the caller must receive through the kernel.
///
/// # Safety
/// `buffer` points to `len` writable bytes.
#[inline]
pub unsafe fn receive(fd: RawFd, buffer: *mut c_void, len: usize) -> Option<ssize_t> {
    let slot = slot(fd)?;
    let entry = entry(fd)?;
    let part = iovec { iov_base: buffer, iov_len: len };
    // SAFETY: the program's arguments.
    let take = || unsafe { receive_available(fd, &part, 1, true) };
    if let Some(bytes) = take() {
        return Some(bytes);
    }
    let before = errno();
    if !blocks(fd, entry, slot) {
        set_errno(before);
        return None;
    }
    let wait_ns = polling::time_ns();
    if entry.patience.skips() {
        // Leave the ring. The engine wakes a thread that sleeps in the kernel only through the socket pair.
        return if stop(fd, slot) { None } else { take() };
    }
    if len == 0
        || wait_ns == 0
        || !is_possible(buffer, len)
        || slot.header().low_water.load(Ordering::Relaxed) != 0
    {
        return None;
    }
    // SAFETY: the program's arguments.
    let receive = || unsafe { real::recv(fd, buffer, len, libc::MSG_DONTWAIT) };
    // If the ring is open, do not read the socket pair first. Received bytes then usually arrive in the ring.
    if slot.receive().is_idle() {
        match receive() {
            -1 if errno() == libc::EAGAIN => {}
            -1 if errno() == libc::ENOTSOCK => {
                entry.remove(slot);
                set_errno(before);
                return None;
            }
            result => return Some(result),
        }
    }
    let inode = slot.header().inode.load(Ordering::Relaxed);
    if !is_same(fd, slot) || inode == 0 {
        entry.remove(slot);
        set_errno(before);
        return None;
    }
    // From here on, check only that the slot still belongs to the same socket. Do not check the descriptor,
    // because another thread may close it. Like a receive that sleeps in the kernel, the call must then
    // continue.
    let is_unchanged =
        || slot.header().inode.load(Ordering::Acquire) == inode && self::slot(fd) == Some(slot);
    // SAFETY: the program's arguments.
    let take_known = || unsafe { take_available(fd, slot, &part, 1, true, is_unchanged) };
    let start = now_ns();
    let (mut looked, mut now) = (start, start);
    let waited = match buffers::are_used() {
        true => Receive { fd, entry, slot, buffer, len, whole: false }.wait(start + wait_ns, is_unchanged),
        false => None,
    };
    if waited.is_some() {
        now = now_ns();
    }
    while waited.is_none() && !slot.receive().is_idle() && now < start + polling::BRIEF_NS.min(wait_ns) {
        if let Some(bytes) = take_known() {
            entry.patience.note(true);
            set_errno(before);
            return Some(bytes);
        }
        std::hint::spin_loop();
        now = now_ns();
    }
    let signals = match waited {
        None => BlockedSignals::new(),
        Some((0, signals)) => signals,
        Some((placed, signals)) => {
            entry.patience.note(true);
            signals.release(false);
            set_errno(before);
            return Some(placed as ssize_t);
        }
    };
    let mut received = loop {
        if let Some(bytes) = take_known() {
            break Some(bytes);
        }
        if now >= start + wait_ns {
            break None;
        }
        if now >= looked + LOOK_NS {
            looked = now;
            let result = receive();
            if result != -1 || errno() != libc::EAGAIN {
                break Some(result);
            }
            // Yield, because the thread that sends the bytes may be waiting for this processor.
            // SAFETY: has no preconditions.
            unsafe { libc::sched_yield() };
        }
        // The ring stays open after this call, so that the next call finds bytes without a system call.
        if slot.receive().is_idle()
            && slot.header().inode.load(Ordering::Relaxed) == inode
            && !ask(slot, inode)
        {
            break None;
        }
        std::hint::spin_loop();
        now = now_ns();
    };
    let failure = errno();
    if received.is_none() && !stop(fd, slot) {
        received = take();
    }
    entry.patience.note(received.is_some());
    let interrupts = signals.release(received.is_none());
    set_errno(if received == Some(-1) { failure } else { before });
    match received {
        None if interrupts => Some(fail(libc::EINTR)),
        received => received,
    }
}
