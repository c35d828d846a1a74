//! Asks the kernel about a descriptor: which socket or file it refers to, and how calls on it wait.

use crate::{errno, real, set_errno};
use inlane_offload_protocol::name::{Local, SocketName};
use libc::{c_int, c_long, socklen_t};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// Returns the engine's name for the socket `fd`, or `None` if the socket is not offloaded. Leaves errno
/// unchanged.
pub fn name_of(fd: RawFd) -> Option<SocketName> {
    let before = errno();
    let name = SocketName::of(fd, real::ASKING);
    set_errno(before);
    name
}

/// Returns what kind of socket `fd` is, according to its local address. Leaves errno unchanged.
pub fn local_of(fd: RawFd) -> Local {
    let before = errno();
    let local = Local::of(fd, real::ASKING);
    set_errno(before);
    local
}

/// Returns the inode and the device number of a descriptor's file, or `None` if there is none. May change errno.
pub fn identity(fd: RawFd) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat(2) fills the structure if it succeeds. The structure is read only in that case.
    unsafe {
        (libc::fstat(fd, status.as_mut_ptr()) == 0).then(|| {
            let status = status.assume_init();
            (status.st_ino, status.st_dev)
        })
    }
}

/// Returns true if `fd` is open. Leaves errno unchanged.
pub fn is_open(fd: RawFd) -> bool {
    let before = errno();
    let open = identity(fd).is_some();
    set_errno(before);
    open
}

/// Returns true unless the descriptor is non-blocking.
pub fn blocks(fd: RawFd) -> bool {
    // SAFETY: has no preconditions.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK == 0 }
}

/// Returns the socket's send timeout (SO_SNDTIMEO) in milliseconds, or `None` without one.
pub fn send_limit(fd: RawFd) -> Option<c_int> {
    limit(fd, libc::SO_SNDTIMEO)
}

/// Returns the socket's receive timeout (SO_RCVTIMEO) in milliseconds, or `None` without one.
pub fn receive_limit(fd: RawFd) -> Option<c_int> {
    limit(fd, libc::SO_RCVTIMEO)
}

fn limit(fd: RawFd, name: c_int) -> Option<c_int> {
    // SAFETY: an all-zero timeval is valid, and the structures outlive the call.
    let limit = unsafe {
        let mut limit: libc::timeval = std::mem::zeroed();
        let mut len = size_of_val(&limit) as socklen_t;
        real::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut limit).cast(), &mut len);
        limit
    };
    let milliseconds = limit.tv_sec.saturating_mul(1000).saturating_add(limit.tv_usec.div_euclid(1000));
    let unlimited = milliseconds == 0 && limit.tv_usec == 0;
    (!unlimited).then(|| milliseconds.clamp(1, c_int::MAX as i64) as c_int)
}

/// Returns true if the engine's end of the socket pair is closed.
pub fn is_hung_up(fd: RawFd) -> bool {
    poll(fd, 0) & (libc::POLLHUP | libc::POLLNVAL) != 0
}

/// Returns true if the socket pair has bytes, an end of the stream or an error.
pub fn is_polled_readable(fd: RawFd) -> bool {
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
