//! getsockopt and setsockopt for UDP sockets that the engine runs.

use super::take_error;
use crate::memory::OptionValue;
use crate::options::{has_level, is_in_range};
use crate::{control, fail, memory, real};
use inlane_offload_protocol::datagram::LEAST_BUFFER;
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::SocketName;
use libc::{c_int, c_void, socklen_t};
use std::os::fd::RawFd;

/// Returns true for options that the library must pass to the engine. Other options of SOL_SOCKET take effect
/// in the kernel, on the program's end of the socket pair.
fn is_for_engine(level: c_int, name: c_int) -> bool {
    level != libc::SOL_SOCKET || matches!(name, libc::SO_REUSEPORT | libc::SO_REUSEADDR | libc::SO_RCVBUF)
}

/// Returns true for options of IPv4, IPv6 and UDP that programs set on UDP sockets. For some of these
/// options, the engine only stores the value.
fn is_known(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => true,
        libc::IPPROTO_UDP => name == libc::UDP_CORK,
        libc::IPPROTO_IP => matches!(
            name,
            libc::IP_TOS
                | libc::IP_TTL
                | libc::IP_PKTINFO
                | libc::IP_RECVTTL
                | libc::IP_RECVTOS
                | libc::IP_RECVERR
                | libc::IP_MTU_DISCOVER
                | libc::IP_FREEBIND
                | libc::IP_BIND_ADDRESS_NO_PORT
                | libc::IP_MULTICAST_TTL
                | libc::IP_MULTICAST_LOOP
        ),
        libc::IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_V6ONLY
                | libc::IPV6_TCLASS
                | libc::IPV6_UNICAST_HOPS
                | libc::IPV6_RECVPKTINFO
                | libc::IPV6_RECVHOPLIMIT
                | libc::IPV6_RECVTCLASS
                | libc::IPV6_RECVERR
                | libc::IPV6_MTU_DISCOVER
                | libc::IPV6_DONTFRAG
                | libc::IPV6_MULTICAST_HOPS
                | libc::IPV6_MULTICAST_LOOP
        ),
        _ => false,
    }
}

/// Implements getsockopt(2) for an offloaded UDP socket. Stores the option's value at `value`. Returns 0, or
/// -1 with errno set.
///
/// # Safety
/// `len` points to the number of writable bytes at `value`. Either pointer may be null.
pub unsafe fn getsockopt(
    fd: RawFd,
    socket: &SocketName,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the program's arguments.
    if let Err(error) = unsafe { memory::read_length(len) } {
        return fail(error);
    }
    // SAFETY: the program passes `*len` writable bytes at `value`.
    let put = |bytes: &[u8]| unsafe { memory::put_option(value, len, bytes) };
    if level == libc::SOL_SOCKET && name != libc::SO_REUSEPORT {
        let number = match name {
            libc::SO_ERROR => take_error(fd, socket),
            libc::SO_TYPE => libc::SOCK_DGRAM,
            libc::SO_DOMAIN if socket.kind.is_v6() => libc::AF_INET6,
            libc::SO_DOMAIN => libc::AF_INET,
            libc::SO_PROTOCOL => libc::IPPROTO_UDP,
            libc::SO_PRIORITY | libc::SO_ACCEPTCONN => 0,
            // SAFETY: the program's arguments.
            _ => return unsafe { real::getsockopt(fd, level, name, value, len) },
        };
        return put(&number.to_ne_bytes());
    }
    if !has_level(socket, level) {
        return fail(libc::EOPNOTSUPP);
    }
    if !is_known(level, name) {
        return fail(libc::ENOPROTOOPT);
    }
    let mut message = Message::new(Operation::GetOption);
    (message.level, message.name) = (level, name);
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status == 0 => put(reply.value()),
        Some((reply, _)) if reply.status > 0 => fail(reply.status),
        _ => fail(libc::ENOPROTOOPT),
    }
}

/// Implements setsockopt(2) for an offloaded UDP socket. Returns 0, or -1 with errno set.
///
/// # Safety
/// `value` is null or points to `len` readable bytes.
pub unsafe fn setsockopt(
    fd: RawFd,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the program's arguments.
    let bytes = match unsafe { OptionValue::read(level, name, value, len) } {
        Ok(_) if !is_known(level, name) => return fail(libc::ENOPROTOOPT),
        Ok(value) if !is_in_range(level, name, value.bytes(), true) => return fail(libc::EINVAL),
        Ok(value) => value,
        Err(error) => return fail(error),
    };
    if level == libc::SOL_SOCKET && name == libc::SO_PRIORITY {
        return 0;
    }
    if level == libc::SOL_SOCKET
        && name == libc::SO_SNDBUF
        && let Some(&wanted) = bytes.bytes().first_chunk()
    {
        let wanted = c_int::from_ne_bytes(wanted);
        return if real::set_option(fd, level, name, wanted.max(LEAST_BUFFER)) { 0 } else { -1 };
    }
    if level == libc::SOL_SOCKET && name != libc::SO_REUSEPORT {
        // SAFETY: the program's arguments.
        let code = unsafe { real::setsockopt(fd, level, name, value, len) };
        if code != 0 || !is_for_engine(level, name) {
            return code;
        }
    }
    // Use the operation with a reply, and wait for the reply. The option travels over the control socket, but
    // the next datagram travels over the socket pair. Without the wait, the datagram could overtake the
    // option.
    let mut message = Message::new(Operation::SetOptionNow);
    (message.level, message.name) = (level, name);
    message.set_value(bytes.bytes());
    if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVBUF) {
        // Send the engine the size that the kernel stored. It differs from the program's value, because the
        // kernel doubles and limits that.
        message.set_value(&real::option(fd, level, name).unwrap_or(0).to_ne_bytes());
    }
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status > 0 => fail(reply.status),
        _ => 0,
    }
}
