//! What a read must return at the end of a stream.
//!
//! The kernel reports the end of a pair as the end of the stream, or as a reset if the engine left data
//! unread. Only the name of the engine's end says which of the two happened to the connection.

use crate::{errno, fail, socket};
use libc::{c_int, sockaddr, socklen_t, ssize_t};

/// Corrects the result of a kernel read of `len` bytes. A pair ends in the same way after a FIN and after an
/// error of the connection. So at the end of the stream, this function looks up which of the two it was. It
/// returns 0, or -1 with the connection's error in errno. Other results stay unchanged.
#[inline]
pub fn finish(fd: c_int, len: usize, result: ssize_t) -> ssize_t {
    if result > 0 || len == 0 {
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
        // The program has read the connection's error already, so this read reports the end of the stream.
        0 if socket::name_of(fd).is_some() => 0,
        0 => result,
        error => fail(error),
    }
}

/// Removes the name of the engine's end from a sender's address. TCP gives none.
pub fn hide_name(fd: c_int, result: ssize_t, address: *const sockaddr, len: *mut socklen_t) {
    if result < 0 || address.is_null() || len.is_null() {
        return;
    }
    // SAFETY: the program's arguments; the family is read only if the kernel wrote it.
    let is_unix = unsafe { *len >= 2 && (*address).sa_family == libc::AF_UNIX as libc::sa_family_t };
    if is_unix && socket::name_of(fd).is_some() {
        // SAFETY: as above.
        unsafe { *len = 0 };
    }
}
