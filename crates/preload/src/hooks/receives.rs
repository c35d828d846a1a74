//! Functions that receive.

use super::MOST_PARTS;
use super::descriptors::ioctl;
use crate::{datagram, descriptor, direct, fail, memory, real, receive, unconnected};
use inlane_offload_protocol::address::is_possible;
use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

hooks! {
    fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        // Pass a read of 0 bytes to the kernel, because such a read must leave the datagram in the queue.
        if len > 0 && let Some(name) = datagram::name_of(fd) {
            return datagram::receive_from(fd, &name, &[datagram::part(buffer, len)], 0, null_mut(), null_mut());
        }
        if unconnected::is_unconnected(fd) {
            return fail(libc::ENOTCONN);
        }
        let result = direct::receive(fd, buffer, len).unwrap_or_else(|| direct::using_for(fd, || real::read(fd, buffer, len)));
        receive::finish(fd, len, result)
    }

    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        read(fd, buffer, bounded(len, room))
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        if let Some(name) = datagram::name_of(fd) && bytes(parts, count.max(0) as usize) > 0 {
            let parts = std::slice::from_raw_parts(parts, count as usize);
            return datagram::receive_from(fd, &name, parts, 0, null_mut(), null_mut());
        }
        if unconnected::is_unconnected(fd) {
            return fail(libc::ENOTCONN);
        }
        if let Some(result) = receive_available(fd, parts, count.max(0) as usize, 0) {
            return result;
        }
        let result = direct::using_for(fd, || real::readv(fd, parts, count));
        receive::finish(fd, if result == 0 { bytes(parts, count.max(0) as usize) } else { 1 }, result)
    }

    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        if let Some(name) = datagram::name_of(fd) {
            return datagram::receive_from(fd, &name, &[datagram::part(buffer, len)], flags, null_mut(), null_mut());
        }
        if receive::asks_for_errors(fd, flags) {
            return fail(libc::EAGAIN);
        }
        if unconnected::is_unconnected(fd) {
            return fail(libc::ENOTCONN);
        }
        if flags & libc::MSG_TRUNC != 0 && let Some(result) = discard(fd, len, flags) {
            return result;
        }
        let direct = match flags {
            0 => direct::receive(fd, buffer, len),
            libc::MSG_WAITALL => direct::receive_whole(fd, buffer, len)
                .or_else(|| receive_available(fd, &datagram::part(buffer, len), 1, flags)),
            _ => receive_available(fd, &datagram::part(buffer, len), 1, flags),
        };
        receive::finish(fd, len, direct.unwrap_or_else(|| direct::using_for(fd, || real::recv(fd, buffer, len, flags))))
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        recv(fd, buffer, bounded(len, room), flags)
    }

    fn recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t {
        if let Some(name) = datagram::name_of(fd) {
            let part = datagram::part(buffer, len);
            return datagram::receive_from(fd, &name, &[part], flags, address, address_len);
        }
        if receive::asks_for_errors(fd, flags) {
            return fail(libc::EAGAIN);
        }
        if unconnected::is_unconnected(fd) {
            return fail(libc::ENOTCONN);
        }
        if flags & libc::MSG_TRUNC != 0
            && (address.is_null() || is_possible(address_len, size_of::<socklen_t>()))
            && let Some(result) = discard(fd, len, flags)
        {
            if !address.is_null() && result >= 0 {
                address_len.write_unaligned(0);
            }
            return result;
        }
        if flags == 0 && address.is_null() && let Some(result) = direct::receive(fd, buffer, len) {
            return receive::finish(fd, len, result);
        }
        if !address.is_null() && !is_possible(address_len, size_of::<socklen_t>()) {
            // `address_len` is invalid. Let the engine move received bytes from shared memory to the socket pair. The
            // receive below then finds them there, and the kernel reports the invalid pointer.
            direct::leave(fd);
        } else if let Some(result) = receive_available(fd, &datagram::part(buffer, len), 1, flags) {
            if !address.is_null() {
                address_len.write_unaligned(0);
            }
            return result;
        }
        let result = direct::using_for(fd, || real::recvfrom(fd, buffer, len, flags, address, address_len));
        receive::hide_name(fd, result, address, address_len);
        receive::finish(fd, len, result)
    }

    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t {
        recvfrom(fd, buffer, bounded(len, room), flags, address, address_len)
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if !memory::is_readable(message) {
            return real::recvmsg(fd, message, flags);
        }
        if let Some(name) = datagram::name_of(fd) {
            return datagram::receive(fd, &name, &mut *message, flags);
        }
        if receive::asks_for_errors(fd, flags) {
            return fail(libc::EAGAIN);
        }
        if unconnected::is_unconnected(fd) {
            return fail(libc::ENOTCONN);
        }
        let count = real::length((*message).msg_iovlen as _);
        // The kernel must check buffers that it refuses, because it reports the error.
        let discarded = match flags & libc::MSG_TRUNC {
            0 => None,
            _ if count > libc::UIO_MAXIOV as usize => None,
            _ => memory::readable_total((*message).msg_iov, count).and_then(|len| discard(fd, len, flags)),
        };
        if let Some(result) = discarded.or_else(|| receive_available(fd, (*message).msg_iov, count, flags)) {
            if result >= 0 {
                ((*message).msg_namelen, (*message).msg_controllen, (*message).msg_flags) = (0, 0, 0);
            }
            return result;
        }
        let result = direct::using_for(fd, || real::recvmsg(fd, message, flags));
        if result >= 0 {
            receive::note_passed(&*message);
        }
        receive::hide_name(fd, result, (*message).msg_name.cast(), &raw mut (*message).msg_namelen);
        let len = if result == 0 { bytes((*message).msg_iov, count) } else { 1 };
        receive::finish(fd, len, result)
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        match datagram::name_of(fd) {
            Some(name) => datagram::receive_many(fd, &name, messages, count, flags, timeout),
            None if receive::asks_for_errors(fd, flags) => fail(libc::EAGAIN),
            None if unconnected::is_unconnected(fd) => fail(libc::ENOTCONN),
            None => {
                direct::leave(fd);
                direct::using_for(fd, || real::recvmmsg(fd, messages, count, flags, timeout))
            }
        }
    }
}

/// The most bytes that one receive of [`discard`] takes.
const SCRAP: usize = 8192;

/// Implements a receive of `len` bytes with MSG_TRUNC on TCP, which takes bytes and stores them nowhere. On a UNIX socket,
/// the flag has no effect. Returns what the receive must return. Returns `None` if `fd` is not offloaded. Call this only
/// for TCP sockets.
fn discard(fd: c_int, len: usize, flags: c_int) -> Option<ssize_t> {
    descriptor::name_of(fd)?;
    let flags = flags & !libc::MSG_TRUNC;
    let mut scrap = MaybeUninit::<[u8; SCRAP]>::uninit();
    let mut available: c_int = 0;
    let mut total = 0;
    loop {
        let part = (len - total).min(SCRAP);
        // SAFETY: the buffers outlive the calls.
        let result = unsafe { recv(fd, scrap.as_mut_ptr().cast(), part, flags) };
        if result <= 0 {
            return Some(if total > 0 { total as ssize_t } else { result });
        }
        total += result as usize;
        // SAFETY: as above.
        unsafe { ioctl(fd, libc::FIONREAD, (&raw mut available).cast()) };
        if flags & libc::MSG_PEEK != 0 {
            return Some(total.max((available.max(0) as usize).min(len)) as ssize_t);
        }
        if total == len || available <= 0 && flags & libc::MSG_WAITALL == 0 {
            return Some(total as ssize_t);
        }
    }
}

/// Receives bytes that are already in shared memory into `count` buffers. Returns the
/// number of bytes. Returns `None` if there are none, or if only the kernel can handle `flags`.
unsafe fn receive_available(fd: c_int, parts: *const iovec, count: usize, flags: c_int) -> Option<ssize_t> {
    let simple = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_PEEK | libc::MSG_CMSG_CLOEXEC;
    if flags & !simple != 0 || count > MOST_PARTS {
        direct::leave(fd);
        return None;
    }
    // SAFETY: the program's arguments.
    let received = unsafe { direct::receive_available(fd, parts, count, flags & libc::MSG_PEEK == 0) };
    if received.is_none() && flags & libc::MSG_DONTWAIT == 0 {
        direct::note_kernel_receives(fd);
    }
    received
}

/// Returns the total length of the `count` buffers in `parts`, in bytes.
unsafe fn bytes(parts: *const iovec, count: usize) -> usize {
    if parts.is_null() {
        return 0;
    }
    // SAFETY: the caller guarantees that `parts` has `count` elements, and the kernel has just read them.
    unsafe { std::slice::from_raw_parts(parts, count).iter().map(|part| part.iov_len).sum() }
}

/// Returns the number of bytes to read: `len`, but at most the buffer size `room`. Called by `__read_chk` and
/// similar functions, which replace `read` in programs compiled with `_FORTIFY_SOURCE`.
fn bounded(len: size_t, room: size_t) -> size_t {
    len.min(room)
}
