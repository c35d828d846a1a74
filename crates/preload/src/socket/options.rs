//! Implements getsockopt(2) and setsockopt(2) for an offloaded TCP socket.

use super::{may_connect_again, take_error};
use crate::descriptor::name_of;
use crate::direct::kept;
use crate::flags::Flags;
use crate::memory::OptionValue;
use crate::{control, convert, direct, errno, fail, memory, options, real, set_errno, unconnected};
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::{End, SocketName};
use libc::{c_int, c_ulong, c_void, socklen_t};
use std::os::fd::RawFd;

/// Resets the connection of `fd` when the program closes the socket.
pub fn reset_on_close(fd: RawFd, name: &SocketName) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of_val(&linger) as socklen_t;
    // SAFETY: the structure lives through the call.
    unsafe { setsockopt(fd, name, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len) };
}

/// Options of level SOL_SOCKET that the engine must know. The kernel also keeps them with the program's end
/// of the socket pair.
const SHARED: [c_int; 3] = [libc::SO_KEEPALIVE, libc::SO_LINGER, libc::SO_REUSEADDR];

/// The length of the `tcp_info` that the engine stores, in bytes.
const TCP_INFO_LEN: usize = 104;

/// Implements getsockopt(2) for an offloaded TCP socket. Stores the option's value at `value`. Returns 0, or
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
    // SAFETY: the program passes `*len` bytes at `value`.
    let put = |bytes: &[u8]| unsafe { memory::put_option(value, len, bytes) };
    // UNIX sockets do not support SO_REUSEPORT, so ask the engine for it.
    let asks_engine = name == libc::SO_REUSEPORT || name == libc::SO_SNDBUF && is_kept_full(fd);
    if level == libc::SOL_SOCKET && !asks_engine {
        if name == libc::SO_SNDBUF {
            kept::opened::restore(fd);
        }
        let number = match name {
            libc::SO_ERROR => take_error(fd),
            libc::SO_DOMAIN if socket.kind.is_v6() => libc::AF_INET6,
            libc::SO_DOMAIN => libc::AF_INET,
            libc::SO_PROTOCOL => libc::IPPROTO_TCP,
            libc::SO_PRIORITY => 0,
            libc::SO_ACCEPTCONN => control::addresses(fd).map_or(0, |reply| reply.number),
            // SAFETY: the program's arguments.
            _ => return unsafe { real::getsockopt(fd, level, name, value, len) },
        };
        return put(&number.to_ne_bytes());
    }
    if !options::has_level(socket, level) {
        return fail(libc::EOPNOTSUPP);
    }
    let mut message = Message::new(Operation::GetOption);
    (message.level, message.name) = (level, name);
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status == 0 => put(reply.value()),
        // If the connection has been established meanwhile, the engine reports no size. Ask the kernel then,
        // because the program's end has its normal send buffer again.
        // SAFETY: the program passes valid arguments.
        Some(_) if level == libc::SOL_SOCKET && name == libc::SO_SNDBUF => unsafe {
            real::getsockopt(fd, level, name, value, len)
        },
        Some((reply, _)) if reply.status > 0 => {
            match may_connect_again(fd, socket) && convert::renew_after_failure(fd, socket).is_ok() {
                // SAFETY: the program's arguments.
                true => unsafe {
                    match name_of(fd) {
                        Some(socket) => getsockopt(fd, &socket, level, name, value, len),
                        None => real::getsockopt(fd, level, name, value, len),
                    }
                },
                // The connection has ended, and the engine has forgotten the socket.
                false if reply.status == libc::EBADF => match option_after_end(fd, level, name) {
                    Some((bytes, len)) => put(&bytes[..len]),
                    None => fail(libc::ENOPROTOOPT),
                },
                false => fail(reply.status),
            }
        }
        _ => fail(libc::ENOPROTOOPT),
    }
}

/// Returns the value of an option of a TCP socket whose connection has ended. The engine no longer has the socket's options,
/// except those that the name of its end contains. All others have the value of a new socket. Also returns the value's
/// length in bytes. Returns `None` for an unknown option.
fn option_after_end(fd: RawFd, level: c_int, name: c_int) -> Option<([u8; TCP_INFO_LEN], usize)> {
    let (mut bytes, mut len) = ([0; TCP_INFO_LEN], 4);
    match (level, name) {
        // The first byte of `tcp_info` is the connection's state.
        (libc::IPPROTO_TCP, libc::TCP_INFO) => (bytes[0], len) = (7, TCP_INFO_LEN),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            bytes[..5].copy_from_slice(b"cubic");
            len = 16;
        }
        _ => {
            let number = options::usual(level, name).or_else(|| is_known(level, name).then_some(0))?;
            bytes[..4].copy_from_slice(&number.to_ne_bytes());
        }
    }
    let mut kept = None;
    End::for_options(fd, real::ASKING, |option| {
        if (option.0, option.1) == (level, name) {
            kept = Some(option.2);
        }
    });
    if let Some(number) = kept {
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
    }
    Some((bytes, len))
}

/// Makes the ioctl `request` on a new internet socket if `fd` is offloaded. Call this after the ioctl has failed with ENOTTY
/// on `fd`. Such requests ask for addresses and routes of the kernel's interfaces, and UNIX sockets do not support them. UNIX
/// sockets do not support requests for the time of the last packet either. A new internet socket answers these with ENOENT, as
/// the kernel's TCP sockets do.
///
/// # Safety
/// As for ioctl(2).
pub unsafe fn ask_internet(fd: RawFd, request: c_ulong, argument: *mut c_void) -> c_int {
    // The requests from SIOCADDRT to SIOCPROTOPRIVATE, and SIOCGSTAMP and SIOCGSTAMPNS, old and new.
    let asks = matches!(request as u32, 0x890b..0x89f0 | 0x8906 | 0x8907 | 0x8010_8906 | 0x8010_8907);
    let name = if asks { name_of(fd) } else { None };
    let Some(name) = name else { return fail(libc::ENOTTY) };
    let family = if name.kind.is_v6() { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: the caller's promise. The descriptor is closed once.
    unsafe {
        let socket = libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return -1;
        }
        let result = real::ioctl(socket, request, argument);
        let error = errno();
        libc::close(socket);
        set_errno(error);
        result
    }
}

/// Implements setsockopt(2) for an offloaded TCP socket. Returns 0, or -1 with errno.
///
/// # Safety
/// `value` is null or points to `len` readable bytes.
pub unsafe fn setsockopt(
    fd: RawFd,
    socket: &SocketName,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    options::note(level, name);
    // After a failed connection attempt, the engine no longer has the socket. Replace it with a kernel
    // socket. The kernel socket keeps the option until the next connect.
    if may_connect_again(fd, socket) && convert::renew_after_failure(fd, socket).is_ok() {
        // SAFETY: the program's arguments.
        return unsafe {
            match name_of(fd) {
                // It was bound, so it is the engine's again.
                Some(socket) => setsockopt(fd, &socket, level, name, value, len),
                None => options::set(fd, level, name, value, len),
            }
        };
    }
    if level == libc::SOL_SOCKET && name != libc::SO_REUSEPORT {
        if name == libc::SO_PRIORITY {
            return 0;
        }
        if name == libc::SO_RCVLOWAT {
            direct::note_low_water(fd);
        }
        if matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF) {
            // SAFETY: the caller promises that `value` is null or points to `len` readable bytes.
            return unsafe { set_buffer(fd, name, value, len) };
        }
        // SAFETY: the program's arguments.
        let code = unsafe { real::setsockopt(fd, level, name, value, len) };
        if code != 0 || !SHARED.contains(&name) {
            return code;
        }
    }
    // SAFETY: the program's arguments.
    let value = match unsafe { OptionValue::read(level, name, value, len) } {
        // Fail like a kernel without the TLS module, because the engine does not implement kernel TLS.
        Ok(_) if (level, name) == (libc::IPPROTO_TCP, libc::TCP_ULP) => return fail(libc::ENOENT),
        Ok(_) if level != libc::SOL_SOCKET && !is_known(level, name) => return fail(libc::ENOPROTOOPT),
        Ok(value) if !options::is_in_range(level, name, value.bytes(), socket.kind.is_bound()) => {
            // The engine has one congestion control.
            let congestion = (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
            return fail(if congestion { libc::ENOENT } else { libc::EINVAL });
        }
        Ok(value) => value,
        Err(error) => return fail(error),
    };
    // Wait for the engine's reply to SO_LINGER, because a close right after this call could overtake the
    // request: the engine notices a close at the socket pair.
    let waits = (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER);
    let mut message = Message::new(if waits { Operation::SetOptionNow } else { Operation::SetOption });
    (message.level, message.name) = (level, name);
    message.set_value(value.bytes());
    control::request(&mut message, fd);
    0
}

/// Sets SO_SNDBUF or SO_RCVBUF. The kernel doubles and limits the value. The engine uses the resulting size
/// for its rings. Returns 0, or -1 with errno.
///
/// # Safety
/// `value` is null or points to `len` readable bytes.
unsafe fn set_buffer(fd: RawFd, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    let full = name == libc::SO_SNDBUF && is_kept_full(fd);
    // The send buffer of a full end must stay small. Otherwise, the end would become writable. So set the option
    // on a temporary UNIX socket, and read the value that the kernel computes from it.
    // SAFETY: the program passes valid arguments, and the descriptor is closed below.
    let (code, bytes) = unsafe {
        let asked =
            if full { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) } else { fd };
        let code = real::setsockopt(asked, libc::SOL_SOCKET, name, value, len);
        let bytes = real::option(asked, libc::SOL_SOCKET, name);
        if full {
            libc::close(asked);
        }
        (code, bytes)
    };
    if code == 0
        && let Some(bytes) = bytes
    {
        // While the socket is being connected, only the engine changes the buffer, after the handshake. So
        // wait until the engine has the size.
        let operation = if full { Operation::SetOptionNow } else { Operation::SetOption };
        let mut message = Message::new(operation);
        (message.level, message.name) = (libc::SOL_SOCKET, name);
        message.set_value(&bytes.to_ne_bytes());
        control::request(&mut message, fd);
    }
    code
}

/// Returns true if the program's end of the socket pair has a small send buffer, which is kept full, so that the end is not
/// writable: while its connection is being established, and if it listens. The engine has the SO_SNDBUF of the socket.
fn is_kept_full(fd: RawFd) -> bool {
    Flags::of(fd).has(Flags::CONNECTING) || unconnected::is_listener(fd)
}

/// Returns true if the option is one of TCP, IPv4 or IPv6 that programs set on TCP sockets. Some of these
/// options have no effect in the engine.
fn is_known(level: c_int, name: c_int) -> bool {
    match level {
        libc::IPPROTO_TCP => matches!(name, 1..=10 | 12 | 13 | 18 | 23 | 25),
        libc::IPPROTO_IP => {
            matches!(name, libc::IP_TOS | libc::IP_TTL | libc::IP_RECVERR | libc::IP_MTU_DISCOVER)
        }
        libc::IPPROTO_IPV6 => {
            matches!(
                name,
                libc::IPV6_V6ONLY
                    | libc::IPV6_TCLASS
                    | libc::IPV6_UNICAST_HOPS
                    | libc::IPV6_RECVERR
                    | libc::IPV6_MTU_DISCOVER
            )
        }
        _ => false,
    }
}
