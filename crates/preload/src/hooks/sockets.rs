//! Functions that bind, connect and listen, and that ask for and change a socket's properties.

use crate::convert::{self, Conversion};
use crate::descriptor::{local_of, name_of};
use crate::direct::kept;
use crate::{connect, datagram, direct, errno, fail, memory, options, parked, real, socket, unconnected};
use inlane_offload_protocol::name::{Local, SocketName};
use inlane_offload_protocol::rules::Use;
use libc::{c_int, c_void, sockaddr, socklen_t};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

hooks! {
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        if let Ok(Some(wanted)) = memory::read_address(address, len) {
            let mut local = local_of(fd);
            if let Local::Offloaded(name) = local {
                local = match convert::unbind(fd, &name) {
                    Some(local) => local,
                    None => return fail(libc::EINVAL),
                };
            }
            match convert::offer(fd, local, Use::Listen, wanted) {
                Conversion::Kernel => {}
                Conversion::Engine => {
                    unconnected::note_bound(fd);
                    if wanted.port() != 0 {
                        options::note_chosen_port(fd);
                    }
                    return 0;
                }
                Conversion::Failed(error) => return fail(error),
            }
        }
        real::bind(fd, address, len)
    }

    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        if let Ok(Some(remote)) = memory::read_address(address, len) {
            if let Some(result) = connect::connect(fd, remote, true) {
                return result;
            }
        } else if let Some(name) = name_of(fd) {
            if is_unspecified(address, len) {
                return disconnect(fd, &name);
            }
            return fail(socket::reason_of_refusal(fd, &name, address, len));
        }
        real::connect(fd, address, len)
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        // For a socket that was never bound, `listen` chooses a port. Offer such a socket to the engine now.
        let local = local_of(fd);
        let any = match local {
            Local::Offloaded(_) => return socket::listen(fd, backlog),
            Local::Kernel { v6: false, port: 0 } => Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
            Local::Kernel { v6: true, port: 0 } => Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
            Local::Kernel { .. } | Local::Other => None,
        };
        if let Some(any) = any.filter(|_| convert::is_stream(fd)) {
            match convert::offer(fd, local, Use::Listen, any) {
                Conversion::Kernel => {}
                Conversion::Engine => return socket::listen(fd, backlog),
                Conversion::Failed(error) => return fail(error),
            }
        }
        real::listen(fd, backlog)
    }

    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if let Some(accepted) = accept_from_engine(fd, address, len, 0) {
            return accepted;
        }
        let result = real::accept(fd, address, len);
        after_accept(result, fd, address, len, 0)
    }

    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        if let Some(accepted) = accept_from_engine(fd, address, len, flags) {
            return accepted;
        }
        let result = real::accept4(fd, address, len, flags);
        after_accept(result, fd, address, len, flags)
    }

    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        match name_of(fd) {
            Some(name) => socket::getsockname(fd, &name, address, len),
            None => real::getsockname(fd, address, len),
        }
    }

    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        match name_of(fd) {
            Some(name) => socket::getpeername(fd, &name, address, len),
            None => real::getpeername(fd, address, len),
        }
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        match name_of(fd) {
            Some(socket) if socket.kind.is_datagram() => datagram::getsockopt(fd, &socket, level, name, value, len),
            Some(socket) => socket::getsockopt(fd, &socket, level, name, value, len),
            None => real::getsockopt(fd, level, name, value, len),
        }
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        match local_of(fd) {
            Local::Offloaded(socket) if socket.kind.is_datagram() => datagram::setsockopt(fd, level, name, value, len),
            Local::Offloaded(socket) => {
                kept::note_option(fd, level);
                let _using = direct::using(fd);
                socket::setsockopt(fd, &socket, level, name, value, len)
            }
            Local::Kernel { port: 0, .. } => options::set(fd, level, name, value, len),
            Local::Kernel { .. } | Local::Other => real::setsockopt(fd, level, name, value, len),
        }
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        parked::forbid(fd);
        let _using = direct::using(fd);
        match name_of(fd) {
            Some(name) if name.kind.is_datagram() => datagram::shutdown(fd, how),
            // Linux gives the attempt to connect up.
            Some(name) if (0..3).contains(&how) && socket::is_connecting(fd, &name) => disconnect(fd, &name),
            Some(name) => socket::shutdown(fd, &name, how),
            None => real::shutdown(fd, how),
        }
    }
}

/// Accepts a connection from the engine if the library has already used `fd` as a listener of the engine.
/// This saves a call of the kernel's accept, which would fail. Returns `None` for other descriptors.
unsafe fn accept_from_engine(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Option<c_int> {
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == 0 && direct::waiting::is_empty(fd) {
        return Some(fail(libc::EAGAIN));
    }
    let name = if unconnected::may_be_unconnected(fd) { name_of(fd) } else { None };
    name.map(|name| socket::accept(fd, &name, address, len, flags))
}

/// Corrects `result`, the result of the kernel's accept. On the program's end of a socket pair, the kernel's
/// accept fails with EINVAL. In that case, accepts a connection from the engine. Otherwise returns `result`.
unsafe fn after_accept(
    result: c_int,
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if result != -1 || errno() != libc::EINVAL {
        return result;
    }
    match name_of(fd) {
        Some(name) => socket::accept(fd, &name, address, len, flags),
        None => result,
    }
}

/// Returns true for an address of family AF_UNSPEC, which disconnects a UDP socket.
unsafe fn is_unspecified(address: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: the program's arguments.
    len >= 2 && unsafe { memory::read(address.cast::<u16>()) } == Some(libc::AF_UNSPEC as u16)
}

/// Implements connect(2) with an address of family AF_UNSPEC. Such a call disconnects an offloaded socket.
fn disconnect(fd: c_int, name: &SocketName) -> c_int {
    if name.kind.is_datagram() {
        return datagram::disconnect(fd);
    }
    socket::reset_on_close(fd, name);
    if convert::renew(fd, name.kind.is_v6()) { 0 } else { fail(libc::ENOBUFS) }
}
