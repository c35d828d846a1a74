//! recvmmsg and sendmmsg: they receive or send several datagrams in one call.

use super::receive;
use crate::{errno, fail, memory, set_errno};
use inlane_offload_protocol::name::SocketName;
use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t, timespec};
use std::os::fd::RawFd;

/// The most datagrams of a call, as in Linux (UIO_MAXIOV).
const MOST: usize = 1024;

fn now() -> i128 {
    // SAFETY: an all-zero timespec is valid and outlives the call.
    unsafe {
        let mut time: timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        nanoseconds(&time)
    }
}

fn nanoseconds(time: &timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Receives up to `count` datagrams, as recvmmsg does. Like the kernel, checks the timeout only after each
/// datagram.
///
/// # Safety
/// As for recvmmsg.
pub unsafe fn receive_many(
    fd: RawFd,
    name: &SocketName,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let limit = match timeout.is_null() {
        true => None,
        // SAFETY: the program's arguments.
        false => match unsafe { memory::read(timeout) } {
            None => return fail(libc::EFAULT),
            Some(limit) if limit.tv_sec < 0 || !(0..1_000_000_000).contains(&limit.tv_nsec) => {
                return fail(libc::EINVAL);
            }
            limit => limit,
        },
    };
    let deadline = limit.map(|limit| now() + nanoseconds(&limit));
    let mut flags_of_call = flags & !libc::MSG_WAITFORONE;
    let mut received = 0;
    while received < (count as usize).min(MOST) {
        // SAFETY: the program passes `count` messages.
        unsafe {
            if !memory::is_readable(messages.add(received)) {
                set_errno(libc::EFAULT);
                break;
            }
            let message = &mut *messages.add(received);
            let len = receive(fd, name, &mut message.msg_hdr, flags_of_call);
            if len < 0 {
                break;
            }
            message.msg_len = len as c_uint;
        }
        received += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags_of_call |= libc::MSG_DONTWAIT;
        }
        if let Some(deadline) = deadline {
            let rest = (deadline - now()).max(0);
            // SAFETY: the program passes a valid timeout. It is not null, because there is a deadline.
            unsafe {
                (*timeout).tv_sec = (rest / 1_000_000_000) as _;
                (*timeout).tv_nsec = (rest % 1_000_000_000) as _;
            }
            if rest == 0 {
                break;
            }
        }
    }
    outcome(received, count)
}

/// Sends up to `count` messages, as sendmmsg does. `send` sends one message as sendmsg does.
///
/// # Safety
/// As for sendmmsg.
pub unsafe fn send_many(
    messages: *mut mmsghdr,
    count: c_uint,
    mut send: impl FnMut(&msghdr) -> ssize_t,
) -> c_int {
    let mut sent = 0;
    while sent < (count as usize).min(MOST) {
        // SAFETY: the program passes `count` messages.
        unsafe {
            if !memory::is_readable(messages.add(sent)) {
                set_errno(libc::EFAULT);
                break;
            }
            let message = &mut *messages.add(sent);
            let len = send(&message.msg_hdr);
            if len < 0 {
                break;
            }
            message.msg_len = len as c_uint;
        }
        sent += 1;
    }
    outcome(sent, count)
}

/// Returns `done`, the number of completed messages. If the first message failed, returns -1 and leaves its
/// errno.
fn outcome(done: usize, count: c_uint) -> c_int {
    match done {
        0 if count > 0 => {
            debug_assert_ne!(errno(), 0);
            -1
        }
        done => done as c_int,
    }
}
