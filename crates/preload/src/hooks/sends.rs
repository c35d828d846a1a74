//! Functions that send.

use super::MOST_PARTS;
use crate::convert::{self, Conversion};
use crate::descriptor::name_of;
use crate::{connect, datagram, direct, errno, fail, memory, passed, real, send, set_errno, unconnected};
use inlane_offload_protocol::address::is_possible;
use inlane_offload_protocol::name::SocketName;
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::ptr::null;

hooks! {
    fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        if let Some(sent) = direct::send(fd, &[datagram::part(buffer, len)], 0) {
            return sent;
        }
        match datagram::name_of(fd) {
            Some(name) => datagram::send_to(fd, &name, &[datagram::part(buffer, len)], 0, null(), 0),
            None if unconnected::is_unconnected(fd) => send::refuse(0),
            None => {
                let _sending = direct::sending(fd);
                send::after_write(fd, real::write(fd, buffer, len))
            }
        }
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        if let Some(sent) = send_directly(fd, parts, count.max(0) as usize, 0) {
            return sent;
        }
        match datagram::name_of(fd) {
            Some(name) if !parts.is_null() && count >= 0 => {
                let parts = std::slice::from_raw_parts(parts, count as usize);
                datagram::send_to(fd, &name, parts, 0, null(), 0)
            }
            _ if unconnected::is_unconnected(fd) => send::refuse(0),
            _ => {
                let _sending = direct::sending(fd);
                send::after_write(fd, real::writev(fd, parts, count))
            }
        }
    }

    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        if let Some(sent) = send_directly(fd, &datagram::part(buffer, len), 1, flags) {
            return sent;
        }
        if flags & libc::MSG_FASTOPEN != 0 {
            return sendto(fd, buffer, len, flags, null(), 0);
        }
        match datagram::name_of(fd) {
            Some(name) => datagram::send_to(fd, &name, &[datagram::part(buffer, len)], flags, null(), 0),
            None if unconnected::is_unconnected(fd) => send::refuse(flags),
            None => {
                send::prepare(fd, flags, || len);
                let _sending = direct::sending(fd);
                send::finish(fd, flags, real::send(fd, buffer, len, flags | libc::MSG_NOSIGNAL))
            }
        }
    }

    fn sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t {
        if flags & libc::MSG_FASTOPEN != 0 && let Some(connected) = connect::fast_open(fd, address, address_len, flags) {
            return if connected == 0 { send(fd, buffer, len, flags & !libc::MSG_FASTOPEN) } else { -1 };
        }
        if address.is_null() && let Some(sent) = send_directly(fd, &datagram::part(buffer, len), 1, flags) {
            return sent;
        }
        match before_send(fd, address, address_len) {
            Ok(Some(name)) => {
                let part = datagram::part(buffer, len);
                return datagram::send_to(fd, &name, &[part], flags, address, address_len);
            }
            Ok(None) if unconnected::is_unconnected(fd) => return send::refuse(flags),
            Ok(None) => {}
            Err(error) => return fail(error),
        }
        send::prepare(fd, flags, || len);
        let _sending = direct::sending(fd);
        let before = errno();
        let mut result = real::sendto(fd, buffer, len, flags | libc::MSG_NOSIGNAL, address, address_len);
        if result == -1 && refuses_addresses(address.cast()) && name_of(fd).is_some() {
            // Send again without the address. A connected TCP socket ignores an address, but the UNIX socket
            // of the socket pair refuses it.
            set_errno(before);
            result = real::sendto(fd, buffer, len, flags | libc::MSG_NOSIGNAL, std::ptr::null(), 0);
        }
        send::finish(fd, flags, result)
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        let is_message = memory::is_readable(message);
        if is_message {
            if flags & libc::MSG_FASTOPEN != 0
                && let Some(connected) = connect::fast_open(fd, (*message).msg_name.cast(), (*message).msg_namelen, flags)
            {
                let mut without = message.read();
                (without.msg_name, without.msg_namelen) = (std::ptr::null_mut(), 0);
                return if connected == 0 { sendmsg(fd, &without, flags & !libc::MSG_FASTOPEN) } else { -1 };
            }
            if (*message).msg_name.is_null()
                && real::length((*message).msg_controllen as _) == 0
                && let Some(sent) = send_directly(fd, (*message).msg_iov, real::length((*message).msg_iovlen as _), flags)
            {
                return sent;
            }
            match before_send(fd, (*message).msg_name.cast(), (*message).msg_namelen) {
                Ok(Some(name)) => return datagram::send(fd, &name, &*message, flags),
                Ok(None) if unconnected::is_unconnected(fd) => return send::refuse(flags),
                Ok(None) => {}
                Err(error) => return fail(error),
            }
        }
        if is_message {
            send::prepare(fd, flags, || memory::total((*message).msg_iov, real::length((*message).msg_iovlen as _)));
            passed::descriptors(&*message).for_each(direct::note_passed);
        }
        let _sending = direct::sending(fd);
        let before = errno();
        let mut result = real::sendmsg(fd, message, flags | libc::MSG_NOSIGNAL);
        if result == -1 && is_message && refuses_addresses((*message).msg_name) && name_of(fd).is_some() {
            set_errno(before);
            let mut without = message.read();
            (without.msg_name, without.msg_namelen) = (std::ptr::null_mut(), 0);
            result = real::sendmsg(fd, &without, flags | libc::MSG_NOSIGNAL);
        }
        send::finish(fd, flags, result)
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if count > 0 && memory::is_readable(messages) {
            let first = &(*messages).msg_hdr;
            match before_send(fd, first.msg_name.cast(), first.msg_namelen) {
                Ok(Some(name)) => {
                    return datagram::send_many(messages, count, |message| datagram::send(fd, &name, message, flags));
                }
                Ok(None) if name_of(fd).is_some() => {
                    return datagram::send_many(messages, count, |message| sendmsg(fd, message, flags));
                }
                Ok(None) => {}
                Err(error) => return fail(error),
            }
        }
        for index in 0..count as usize {
            let message = messages.wrapping_add(index);
            if memory::is_readable(message) && !(*message).msg_hdr.msg_control.is_null() {
                passed::descriptors(&(*message).msg_hdr).for_each(direct::note_passed);
            }
        }
        real::sendmmsg(fd, messages, count, flags)
    }
}

/// Sends `count` buffers through the memory that is shared with the engine. Returns the number of sent bytes.
/// Returns `None` if the socket or the flags do not allow shared memory, so that the kernel must send the
/// buffers.
unsafe fn send_directly(fd: c_int, parts: *const iovec, count: usize, flags: c_int) -> Option<ssize_t> {
    if flags & !(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) != 0 || !is_possible(parts, 0) || count > MOST_PARTS
    {
        return None;
    }
    // SAFETY: the program's arguments.
    unsafe { direct::send(fd, std::slice::from_raw_parts(parts, count), flags) }
}

/// Offers a UDP socket without a port to the engine, because the send will give the socket a port. Call this
/// before a datagram is sent to `address`, which may be null. Returns the socket's name if it is a UDP socket
/// of the engine, otherwise `None`. If the send must fail, returns the errno.
unsafe fn before_send(
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> Result<Option<SocketName>, c_int> {
    if let Some(name) = datagram::name_of(fd) {
        return Ok(Some(name));
    }
    // SAFETY: the program's arguments.
    let Ok(Some(remote)) = (unsafe { memory::read_address(address, len) }) else { return Ok(None) };
    match convert::offer_unbound(fd, remote) {
        Conversion::Kernel => Ok(None),
        Conversion::Engine => Ok(datagram::name_of(fd)),
        Conversion::Failed(error) => Err(error),
    }
}

/// Returns true if a send to `address` failed because a connected UNIX socket, such as the program's end of a
/// socket pair, accepts no address. Call this right after the send, because it reads errno.
fn refuses_addresses(address: *const c_void) -> bool {
    !address.is_null() && matches!(errno(), libc::EISCONN | libc::EOPNOTSUPP)
}
