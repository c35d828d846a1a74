//! Receives with MSG_PEEK and MSG_WAITALL. On a socket pair, the kernel ignores the second flag.

use super::whole::Limits;
use super::{leave, now_ns};
use crate::{errno, fail, memory, real, set_errno, socket};
use libc::{c_int, iovec, ssize_t};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// The shortest and the longest time between two looks for further bytes, in nanoseconds. The kernel does not wake a thread for them.
const LOOK_NS: [u64; 2] = [20_000, 1_000_000];

/// Implements a receive with MSG_PEEK and MSG_WAITALL into `count` buffers. Returns the result of the program's call, or `None` if the
/// socket is not an offloaded connection. Leaves errno unchanged unless it returns -1.
///
/// # Safety
/// As for recvmsg(2).
pub unsafe fn peek_whole(fd: RawFd, parts: *const iovec, count: usize) -> Option<ssize_t> {
    let before = errno();
    leave(fd);
    // SAFETY: the caller's promise.
    let len = unsafe { memory::readable_total(parts, count) }.filter(|&len| len > 0);
    let len = len.filter(|_| socket::name_of(fd).is_some_and(|name| !name.kind.is_datagram()));
    set_errno(before);
    let len = len? as ssize_t;
    // SAFETY: the caller's promise. The kernel checks the buffers.
    let peek = |flags: c_int| unsafe {
        let mut message = MaybeUninit::<libc::msghdr>::zeroed().assume_init();
        (message.msg_iov, message.msg_iovlen) = (parts.cast_mut(), count as _);
        real::recvmsg(fd, &mut message, libc::MSG_PEEK | flags)
    };
    let (mut limits, mut pause) = (Limits::new(fd, now_ns()), LOOK_NS[0]);
    let mut ended = false;
    let result = loop {
        let peeked = peek(libc::MSG_DONTWAIT);
        if peeked == -1 && errno() == libc::EAGAIN {
            match limits.sleep() {
                Err(libc::EINTR) if limits.restarts() => {}
                Err(error) => break fail(error),
                Ok(()) => {}
            }
        } else if ended || peeked <= 0 || peeked >= len || !socket::blocks(fd) {
            break peeked;
        } else {
            // The pair is not readable again when further bytes arrive, but its end wakes the thread. After that, look once more.
            let left = limits.left();
            let limit = left.map_or(pause, |left| left.min(pause));
            ended = limits.poll(libc::POLLRDHUP, Some(limit)) != 0 || left == Some(0);
            pause = (2 * pause).min(LOOK_NS[1]);
        }
    };
    let failure = errno();
    limits.signals.release(false);
    set_errno(if result == -1 { failure } else { before });
    Some(result)
}
