//! Corrects the result of a read at the end of a stream.
//!
//! At the end of a socket pair, the kernel reports the end of the stream or a reset. Only the name of the
//! engine's end of the pair shows how the connection itself ended.

use crate::{datagram, descriptor, direct, errno, fail, passed, socket};
use libc::{c_int, msghdr, sockaddr, socklen_t, ssize_t};

/// Corrects the result of a kernel read of `len` bytes. A socket pair ends in the same way after a FIN and
/// after an error of the connection. At the end of the stream, this function looks up the reason. For a FIN
/// it returns 0. For an error it returns -1, with the connection's error in errno. All other results stay
/// unchanged.
#[inline]
pub fn finish(fd: c_int, len: usize, result: ssize_t) -> ssize_t {
    if result > 0 {
        direct::note_received(fd, result as usize);
        return result;
    }
    if len == 0 {
        return result;
    }
    at_end(fd, result)
}

#[cold]
fn at_end(fd: c_int, result: ssize_t) -> ssize_t {
    if result == -1 && errno() != libc::ECONNRESET {
        return result;
    }
    match socket::reason_of_end(fd) {
        0 if result == 0 => 0,
        // This is an offloaded socket without a pending error. The program has already read the connection's
        // error, so report the end of the stream.
        0 if descriptor::name_of(fd).is_some() => 0,
        0 => result,
        error => fail(error),
    }
}

/// Returns true if `flags` ask for the error queue and `fd` is an offloaded TCP socket. The receive must then
/// fail with EAGAIN, because this queue is always empty.
pub fn asks_for_errors(fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_ERRQUEUE != 0 && descriptor::name_of(fd).is_some()
}

/// Sets `len` to 0 if the socket `fd` is offloaded, because a receive on TCP gives no sender's address. Call
/// this after each receive that can store an address. Otherwise, the program would see the UNIX name of the
/// engine's end of the socket pair, which the kernel has stored.
///
/// # Safety
/// `address` and `len` are null, or the kernel has stored an address and its length there.
pub unsafe fn hide_name(fd: c_int, result: ssize_t, address: *const sockaddr, len: *mut socklen_t) {
    if result < 0 || address.is_null() || len.is_null() {
        return;
    }
    // SAFETY: the caller promises valid pointers. The family is read only if the kernel has written it, which
    // the address length shows.
    let is_unix = unsafe { *len >= 2 && (*address).sa_family == libc::AF_UNIX as libc::sa_family_t };
    if is_unix && descriptor::name_of(fd).is_some() {
        // SAFETY: the caller promises a valid pointer.
        unsafe { *len = 0 };
    }
}

/// Checks whether a received message has passed descriptors of the engine's UDP sockets to this process. If
/// so, later calls check whether a descriptor is an offloaded UDP socket. Call this after each receive that
/// may bring descriptors.
///
/// # Safety
/// The kernel has filled `message` in a receive, and its control messages are still in place.
pub unsafe fn note_passed(message: &msghdr) {
    // SAFETY: the caller's promise.
    for fd in unsafe { passed::descriptors(message) } {
        direct::note_unseen(fd);
        datagram::note_passed(fd);
    }
}
