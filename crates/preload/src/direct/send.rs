//! Sends through shared memory.

use super::{are_possible, identity, is_alive, is_same, now_ns, slot};
use crate::{errno, real, set_errno, socket};
use inlane_offload_protocol::lease::Slot;
use libc::{c_int, iovec, ssize_t};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

/// The most bytes that a send writes before it commits them. The engine sends the first part of a large send while the
/// program copies the rest.
const CHUNK: usize = 32 << 10;

/// Returns true if the engine has read all bytes that the program has sent through the pair. Returns false if
/// some bytes are unread, or if the kernel gives no answer.
fn pair_is_empty(fd: RawFd) -> bool {
    let mut bytes: c_int = 1;
    // SAFETY: the kernel writes one c_int to `bytes`, which outlives the call.
    unsafe { real::ioctl(fd, libc::TIOCOUTQ, (&raw mut bytes).cast()) == 0 && bytes == 0 }
}

/// Sends the bytes of `parts` through shared memory. `flags` are flags of send(2). Only MSG_DONTWAIT and
/// MSG_NOSIGNAL are supported. Returns the number of sent bytes, or `None` if the caller must send the bytes
/// through the kernel. Leaves errno unchanged.
///
/// # Safety
/// Each element of `parts` points to as many readable bytes as its length says.
#[inline]
pub unsafe fn send(fd: RawFd, parts: &[iovec], flags: c_int) -> Option<ssize_t> {
    let slot = slot(fd)?;
    // SAFETY: the caller promises that the buffers in `parts` are readable.
    unsafe { send_to(fd, slot, parts, flags) }
}

unsafe fn send_to(fd: RawFd, slot: Slot, parts: &[iovec], flags: c_int) -> Option<ssize_t> {
    let len = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))?;
    if !are_possible(parts) {
        return None;
    }
    if let ([part], true) = (parts, len > CHUNK) {
        // SAFETY: the caller promises that the buffer is readable.
        return unsafe { send_large(fd, slot, part.iov_base.cast(), len, flags) };
    }
    if len == 0 {
        return None;
    }
    let claim = slot.send().claim()?;
    if slot.room(claim.position) < len || !may_send(fd, slot) {
        let _ = slot.send().commit(claim, 0);
        return None;
    }
    let mut at = claim.position;
    for part in parts {
        // SAFETY: the caller promises that the parts are readable. This thread has claimed the send ring, and
        // the bytes fit into it.
        unsafe { slot.write_send(at, part.iov_base.cast(), part.iov_len) };
        at += part.iov_len as u64;
    }
    slot.send().commit(claim, len as u64).then_some(len as ssize_t)
}

/// Returns true if a thread that has claimed the send ring may write into it. Sending must not be shut down,
/// the engine must be alive, and the socket pair must be empty. `fd` must still belong to the slot of shared
/// memory. Leaves errno unchanged.
fn may_send(fd: RawFd, slot: Slot) -> bool {
    let before = errno();
    let may = slot.header().shut.load(Ordering::Relaxed) == 0
        && is_alive(slot)
        && is_same(fd, slot)
        && pair_is_empty(fd);
    set_errno(before);
    may
}

/// How long a large send waits for free bytes in the send ring, in nanoseconds. After this time, it sends the
/// remaining bytes through the kernel.
const ROOM_NS: u64 = 20_000;

/// Sends `len` bytes in parts of at most [`CHUNK`] bytes. If the call may block, it waits briefly for room in the ring. Bytes without room are sent through
/// the kernel. The engine reads these after the bytes in the ring.
///
/// # Safety
/// `from` has `len` readable bytes.
unsafe fn send_large(fd: RawFd, slot: Slot, from: *const u8, len: usize, flags: c_int) -> Option<ssize_t> {
    let header = slot.header();
    let inode = header.inode.load(Ordering::Acquire);
    let device = header.device.load(Ordering::Relaxed);
    let mut sent = 0;
    let mut since = 0;
    while sent < len {
        let Some(claim) = slot.send().claim() else { break };
        // During this call, another thread may close the connection. The slot of shared memory may then
        // belong to another connection.
        let same = header.inode.load(Ordering::Acquire) == inode;
        let part = slot.room(claim.position).min(len - sent).min(CHUNK);
        let may = same && (part == 0 || sent > 0 || may_send(fd, slot));
        if part == 0 || !may {
            let _ = slot.send().commit(claim, 0);
            let now = now_ns();
            if !may || (since > 0 && now >= since + ROOM_NS) {
                break;
            }
            if since == 0 {
                if flags & libc::MSG_DONTWAIT != 0 || !socket::blocks(fd) {
                    break;
                }
                since = now;
            }
            std::hint::spin_loop();
            continue;
        }
        // SAFETY: the caller promises readable bytes. This thread has claimed the ring, and the bytes fit.
        unsafe { slot.write_send(claim.position, from.add(sent), part) };
        if !slot.send().commit(claim, part as u64) {
            break;
        }
        (sent, since) = (sent + part, 0);
    }
    if sent == 0 {
        return None;
    }
    let before = errno();
    if sent < len && identity(fd) == Some((inode, device)) {
        // Offer the rest to the kernel even if the descriptor is non-blocking. With edge-triggered epoll, a
        // program gets the next EPOLLOUT only after a send that the kernel could not accept as a whole.
        // SAFETY: the caller guarantees readable bytes.
        let rest = unsafe { real::send(fd, from.add(sent).cast(), len - sent, flags | libc::MSG_NOSIGNAL) };
        sent += usize::try_from(rest).unwrap_or(0);
    }
    set_errno(before);
    Some(sent as ssize_t)
}

/// Makes later sends on `fd` bypass shared memory and go to the kernel, which refuses them. Call this before
/// the program shuts down the sending direction of the socket.
pub fn shut(fd: RawFd) {
    if let Some(slot) = slot(fd).filter(|&slot| is_same(fd, slot)) {
        slot.header().shut.store(1, Ordering::Relaxed);
    }
}
