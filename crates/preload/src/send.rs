//! Corrects the result of a send after the end of a connection.
//!
//! The kernel reports the end of a socket pair as a broken pipe. A TCP socket first reports the error of the
//! connection, without a signal. It reports a broken pipe only after that.

use crate::{control, descriptor, direct, errno, fail, socket};
use inlane_offload_protocol::message::{Message, Operation};
use libc::{c_int, ssize_t};

/// Returns what the program's send with `flags` must return. `result` is what the kernel returned for the
/// same send with MSG_NOSIGNAL. For EPIPE, raises SIGPIPE unless `flags` contains MSG_NOSIGNAL.
#[inline]
pub fn finish(fd: c_int, flags: c_int, result: ssize_t) -> ssize_t {
    if result > 0 {
        direct::note_sent(fd, result as usize);
    }
    if result != -1 || errno() != libc::EPIPE {
        return result;
    }
    let result = broken(fd);
    if errno() == libc::EPIPE { refuse(flags) } else { result }
}

/// Tells the engine that a send of `len` bytes follows, if `flags` contains MSG_MORE. The engine must be
/// told, because the socket pair does not carry flags.
#[inline]
pub fn prepare(fd: c_int, flags: c_int, len: impl FnOnce() -> usize) {
    if flags & libc::MSG_MORE != 0 && descriptor::name_of(fd).is_some() {
        let mut message = Message::new(Operation::More);
        message.number = len().min(c_int::MAX as usize) as c_int;
        control::request(&mut message, fd);
    }
}

/// Fails a send with EPIPE. Raises SIGPIPE unless `flags` contains MSG_NOSIGNAL.
pub fn refuse(flags: c_int) -> ssize_t {
    if flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: the call sends the signal to this thread, as the kernel would.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    }
    fail(libc::EPIPE)
}

/// Returns the result of the program's write. `result` is the kernel's result. If the write failed with
/// EPIPE, replaces the errno by the reason why the connection failed, if there is one. The kernel has already
/// raised SIGPIPE.
#[inline]
pub fn after_write(fd: c_int, result: ssize_t) -> ssize_t {
    if result > 0 {
        direct::note_sent(fd, result as usize);
    }
    if result == -1 && errno() == libc::EPIPE { broken(fd) } else { result }
}

#[cold]
fn broken(fd: c_int) -> ssize_t {
    match socket::reason_of_broken_pipe(fd) {
        0 => fail(libc::EPIPE),
        error => fail(error),
    }
}
