//! Returns the addresses of an offloaded socket.

use super::is_over;
use crate::direct::kept;
use crate::flags::Flags;
use crate::{control, fail, memory, real};
use inlane_offload_protocol::name::{End, SocketName};
use libc::{c_int, sockaddr, socklen_t};
use std::os::fd::RawFd;

/// Returns true if the library, not the engine, created the socket pair of this connection. The name of such
/// a pair contains no local address.
pub(super) fn is_opened(name: &SocketName) -> bool {
    !name.kind.is_bound() && !name.kind.is_datagram() && name.local.port() == 0
}

/// Returns true if `fd` was connected and its engine has died. In this case, the engine's end of the socket
/// pair has no name, so the engine has not reported how the connection ended. Call this only if the present
/// engine does not know the socket.
fn is_lost(fd: RawFd) -> bool {
    !Flags::of(fd).has(Flags::CONNECTING) && End::of(fd, real::ASKING) == End::Unnamed
}

/// Implements getsockname(2) for an offloaded socket: stores its local address at `address`. Returns 0. If
/// only the engine knew the address and has died, returns -1 with errno ENOTCONN.
///
/// # Safety
/// `len` points to the number of writable bytes at `address`. Either pointer may be null.
pub unsafe fn getsockname(
    fd: RawFd,
    name: &SocketName,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let name = &kept::complete(fd, *name);
    let mut local = name.local;
    if name.kind.is_datagram() || name.remote.is_none() || local.port() == 0 {
        let reply = control::addresses(fd).and_then(|reply| reply.local);
        // If the connection has ended, the engine no longer knows its address. The name of the socket pair
        // still contains the address.
        let known = reply.or_else(|| End::local_address(fd, real::ASKING));
        let misses = is_opened(name) || !name.kind.is_bound() && name.remote.is_none();
        if known.is_none() && misses && is_lost(fd) {
            return fail(libc::ENOTCONN);
        }
        local = known.unwrap_or(local);
    }
    // SAFETY: the program's arguments.
    match unsafe { memory::write_address(local, name.kind.is_v6(), address, len) } {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

/// Implements getpeername(2) for an offloaded socket: stores its remote address at `address`. Returns 0, or
/// -1 with errno ENOTCONN if the socket is not connected.
///
/// # Safety
/// `len` points to the number of writable bytes at `address`. Either pointer may be null.
pub unsafe fn getpeername(
    fd: RawFd,
    name: &SocketName,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let name = &kept::complete(fd, *name);
    let remote = match name.kind.is_bound() || name.kind.is_datagram() {
        true => control::addresses(fd).and_then(|reply| reply.remote).filter(|remote| remote.port() != 0),
        false => name.remote,
    };
    match remote {
        Some(remote) if !Flags::of(fd).has(Flags::CONNECTING) && !is_over(fd) => {
            // SAFETY: the program's arguments.
            match unsafe { memory::write_address(remote, name.kind.is_v6(), address, len) } {
                Ok(()) => 0,
                Err(error) => fail(error),
            }
        }
        _ => fail(libc::ENOTCONN),
    }
}
