//! Implements connect(2), and sends that connect a TCP socket first (MSG_FASTOPEN).

use crate::convert::{self, Conversion};
use crate::descriptor::local_of;
use crate::{datagram, descriptor, fail, memory, socket};
use inlane_offload_protocol::name::Local;
use inlane_offload_protocol::rules::Use;
use libc::{c_int, sockaddr, socklen_t};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Connects `fd` to `remote` if the engine runs the socket, or takes it now. If the descriptor is blocking and `waits` is
/// set, waits until the connection is established. Returns 0, or -1 with errno. Returns `None` if the kernel must connect
/// the socket.
pub fn connect(fd: RawFd, remote: SocketAddr, waits: bool) -> Option<c_int> {
    let mut local = local_of(fd);
    if let Local::Offloaded(name) = local
        && socket::may_connect_again(fd, &name)
    {
        if socket::ends_attempt(fd) {
            return Some(fail(libc::ECONNABORTED));
        }
        if let Err(error) = convert::renew_after_failure(fd, &name) {
            return Some(fail(error));
        }
        local = local_of(fd);
    }
    if let Local::Offloaded(name) = local {
        return Some(match name.kind.is_datagram() {
            // SAFETY: the name is that of the offloaded UDP socket `fd`.
            true => unsafe { datagram::connect(fd, &name, remote) },
            false => socket::connect(fd, &name, remote, waits),
        });
    }
    match convert::offer(fd, local, Use::Connect, remote) {
        Conversion::Kernel => None,
        Conversion::Engine => {
            socket::note_connecting(fd);
            Some(if waits { finish(fd) } else { socket::leave_in_progress(fd) })
        }
        Conversion::Failed(error) => Some(fail(error)),
    }
}

/// Returns the result of the program's `connect`. Call this after [`convert::offer`] has begun a connection. If `fd`
/// is blocking, first waits until the connection is established or fails. Waits at most for the socket's send
/// timeout.
fn finish(fd: RawFd) -> c_int {
    match descriptor::blocks(fd) {
        _ if datagram::name_of(fd).is_some() => 0,
        true => socket::wait_connected(fd),
        false => socket::leave_in_progress(fd),
    }
}

/// Connects `fd` because the program sends with MSG_FASTOPEN to `address`. Returns 0 if the caller must send the bytes over
/// the connection now, or -1 with errno. Returns `None` if the kernel must do both, or if `fd` is not a TCP socket.
///
/// The engine connects without a Fast Open cookie. So the result is that of the kernel without a cookie for the server.
///
/// # Safety
/// As for [`memory::read_bytes`].
pub unsafe fn fast_open(fd: RawFd, address: *const sockaddr, len: socklen_t, flags: c_int) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let remote = unsafe { memory::read_address(address, len) };
    match local_of(fd) {
        Local::Offloaded(name) if !name.kind.is_datagram() => match remote {
            Ok(Some(remote)) => connect(fd, remote, flags & libc::MSG_DONTWAIT == 0),
            // SAFETY: as above.
            _ => Some(fail(unsafe { socket::reason_of_fast_refusal(fd, &name, address, len) })),
        },
        Local::Kernel { .. } if convert::is_stream(fd) => {
            connect(fd, remote.ok()??, flags & libc::MSG_DONTWAIT == 0)
        }
        _ => None,
    }
}
