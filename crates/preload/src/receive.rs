//! Corrects the result of a read at the end of a stream.
//!
//! At the end of a socket pair, the kernel reports the end of the stream or a reset. Only the name of the
//! engine's end of the pair shows how the connection itself ended.

use crate::{datagram, direct, errno, fail, socket};
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
        0 if socket::name_of(fd).is_some() => 0,
        0 => result,
        error => fail(error),
    }
}

/// Returns true if `flags` ask for the error queue and `fd` is an offloaded TCP socket. The receive must then
/// fail with EAGAIN, because this queue is always empty.
pub fn asks_for_errors(fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_ERRQUEUE != 0 && socket::name_of(fd).is_some()
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
    if is_unix && socket::name_of(fd).is_some() {
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
    if message.msg_control.is_null() || message.msg_controllen < size_of::<libc::cmsghdr>() {
        return;
    }
    // SAFETY: the kernel has written whole control messages and their total length.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while !next.is_null() {
            if ((*next).cmsg_level, (*next).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let count = ((*next).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize) / 4;
                for index in 0..count {
                    datagram::note_passed(libc::CMSG_DATA(next).cast::<c_int>().add(index).read_unaligned());
                }
            }
            next = libc::CMSG_NXTHDR(message, next);
        }
    }
}
