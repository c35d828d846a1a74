//! Receives with MSG_WAITALL into a buffer of [`buffers`].

use super::post::WHOLE_NS;
use super::receive::receive_from;
use super::{buffers, leave, slot, using_for};
use crate::signals::BlockedSignals;
use crate::slots::entry;
use crate::time::now_ns;
use crate::{descriptor, errno, fail, real, set_errno};
use libc::{c_void, ssize_t};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

/// Implements recv(2) with MSG_WAITALL: receives through shared memory as long as bytes arrive, and the rest through the kernel.
/// Returns `None` if the caller must receive all bytes through the kernel.
///
/// Signals are blocked meanwhile, because one that arrives between two parts must end the call.
///
/// # Safety
/// `buffer` points to `len` writable bytes.
pub unsafe fn receive_whole(fd: RawFd, buffer: *mut c_void, len: usize) -> Option<ssize_t> {
    if len == 0 || !buffers::are_used() {
        return None;
    }
    let (slot, entry) = (slot(fd)?, entry(fd)?);
    buffers::offset_of(buffer, len, slot)?;
    let before = errno();
    // The limit of SO_RCVTIMEO is that of the whole call.
    let limited = descriptor::receive_limit(fd).is_some();
    set_errno(before);
    if limited {
        return None;
    }
    // Another thread may close the descriptor between two parts. Its number may then be that of another connection.
    let changes = entry.changes.load(Ordering::SeqCst);
    let is_same = || entry.changes.load(Ordering::SeqCst) == changes;
    let (mut signals, mut blocked_at) = (BlockedSignals::new(), now_ns());
    let mut total = 0;
    let mut ended = false;
    while total < len && !ended && is_same() {
        // SAFETY: the rest of the program's buffer.
        let part = unsafe { receive_from(fd, entry, slot, buffer.byte_add(total), len - total, true) };
        match part {
            Some(bytes) if bytes > 0 => total += bytes as usize,
            Some(bytes) if total == 0 => {
                let failure = errno();
                signals.release(false);
                set_errno(failure);
                return Some(bytes);
            }
            // The next receive finds the same end or error.
            Some(_) => break,
            None => ended = true,
        }
        if now_ns() >= blocked_at + WHOLE_NS {
            if signals.release(true) {
                set_errno(before);
                return Some(if total > 0 { total as ssize_t } else { fail(libc::EINTR) });
            }
            (signals, blocked_at) = (BlockedSignals::new(), now_ns());
        }
    }
    let interrupts = signals.release(total < len);
    set_errno(before);
    if total < len && ended && !interrupts && is_same() {
        if total == 0 {
            return None;
        }
        leave(fd);
        let (rest, left) = (buffer.wrapping_byte_add(total), len - total);
        // SAFETY: the rest of the program's buffer.
        let more = using_for(fd, || unsafe { real::recv(fd, rest, left, libc::MSG_WAITALL) });
        total += more.max(0) as usize;
        set_errno(before);
    }
    Some(if total > 0 { total as ssize_t } else { fail(libc::EINTR) })
}
