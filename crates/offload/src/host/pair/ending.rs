//! Finds out whether a program has closed its end of a pair, and whether the engine's close of its own end can block.

use super::messages::{Control, peek, slice};
use super::{is_unix, option, result, set_option};
use inlane_offload_protocol::filler;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Returns true if no descriptors wait at the engine's end `end` of a pair of stream sockets, and nothing can arrive any
/// more. Its close then does not block. Shuts down the receiving direction if `shuts` is true. Otherwise the caller knows
/// that the program has closed its end. Leaves bytes there: the program's next call fails if the engine closes its end
/// with unread bytes.
pub fn has_no_descriptors(end: &OwnedFd, shuts: bool) -> bool {
    let fd = end.as_raw_fd();
    if shuts {
        // Leave the sending direction to the close. Otherwise the program would see that the socket has hung up before it
        // sees the error that the close with unread bytes causes.
        // SAFETY: has no preconditions.
        unsafe { libc::shutdown(fd, libc::SHUT_RD) };
    }
    // A message of a stream socket has at least one byte.
    match unread(fd) {
        Some(0) => true,
        Some(bytes) => has_only_bytes(end, bytes),
        None => false,
    }
}

/// Returns true if `bytes` bytes without descriptors wait at a stream socket that has been shut down. Leaves them there.
#[cold]
fn has_only_bytes(end: &OwnedFd, bytes: u64) -> bool {
    // Each call then peeks at the bytes behind those of the call before.
    if set_option(end, libc::SO_PEEK_OFF, 0).is_err() {
        return false;
    }
    let mut scrap = [0u8; 2 * filler::LEN];
    let mut seen = 0;
    while seen < bytes {
        match peek(end.as_raw_fd(), &mut slice(&mut scrap)) {
            Ok((len, false)) if len > 0 => seen += len as u64,
            _ => return false,
        }
    }
    seen == bytes
}

/// Returns true if no messages wait at a socket that keeps messages apart, and nothing can arrive any more. Its close then
/// does not block. Shuts down both directions.
pub fn has_no_messages(end: &OwnedFd) -> bool {
    let fd = end.as_raw_fd();
    // With this option, every message has control data, also an empty one. The end of the stream has none.
    // SAFETY: has no preconditions.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
    set_option(end, libc::SO_PASSCRED, 1).is_ok()
        // The first call may return an error of the socket instead.
        && (0..2).any(|_| matches!(peek(fd, &mut slice(&mut [0])), Ok((0, false))))
}

/// Shuts down a socket that keeps messages apart, and drops up to 64 messages without descriptors that wait there. Returns
/// true if no message is left. The close of the socket then does not block.
pub fn drop_messages(end: &OwnedFd) -> bool {
    let fd = end.as_raw_fd();
    // With this option, every message has credentials, also an empty one. The end of the stream has none.
    // SAFETY: has no preconditions.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
    if set_option(end, libc::SO_PASSCRED, 1).is_err() {
        return false;
    }
    for _ in 0..64 {
        let mut byte = [0u8];
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut control = Control([0; 32]);
        // SAFETY: the structures outlive the calls. There is no room for descriptors, so none is received.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) as _;
            match result(libc::recvmsg(fd, &mut header, libc::MSG_PEEK | libc::MSG_DONTWAIT)) {
                Ok(0) if header.msg_controllen == 0 => return true,
                Ok(_) if header.msg_flags & libc::MSG_CTRUNC == 0 => {}
                _ => return false,
            }
            libc::recv(fd, byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT);
        }
    }
    false
}

/// Returns true if a descriptor that a program sent is an end of a pair whose other end is closed, and nothing waits there.
/// Its close then does not block.
pub fn is_ended(program_end: &OwnedFd) -> bool {
    let fd = program_end.as_raw_fd();
    is_unix(program_end)
        && option(program_end, libc::SO_TYPE).is_ok_and(|kind| kind == libc::SOCK_STREAM)
        && hung_up(fd)
        && unread(fd) == Some(0)
}

/// Returns the number of bytes that wait at the engine's end `fd`, or `None` if the kernel gives no answer.
pub fn unread(fd: RawFd) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one c_int to `bytes`, which outlives the call.
    let code = unsafe { libc::ioctl(fd, libc::FIONREAD, &mut bytes) };
    (code == 0).then_some(bytes.max(0) as u64)
}

/// Returns true if the program has closed its end of the socket pair, or shut down both directions. `fd` is
/// the engine's end.
pub fn hung_up(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 }
}

/// Returns true if no process has the program's end of the socket pair open. [`hung_up`] cannot distinguish a
/// closed end from an end whose two directions are shut down. This function costs several system calls.
pub fn is_closed(engine_end: RawFd) -> bool {
    // SAFETY: an all-zero address is valid. The address and its length live through the calls.
    unsafe {
        let mut name: libc::sockaddr_un = std::mem::zeroed();
        let mut len = size_of_val(&name) as libc::socklen_t;
        if libc::getpeername(engine_end, (&raw mut name).cast(), &mut len) != 0 {
            return true;
        }
        let probe = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if probe < 0 {
            return false;
        }
        // Try to bind the probe to the name of the program's end of the socket pair. This succeeds only if
        // that end is closed in all processes, because the kernel then frees the name.
        let probe = OwnedFd::from_raw_fd(probe);
        libc::bind(probe.as_raw_fd(), (&raw const name).cast(), len) == 0
    }
}
