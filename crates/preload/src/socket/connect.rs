//! Connects an offloaded TCP socket, and waits until it is connected.

use super::{Flags, blocks, name_of, names::is_opened, poll, take_error};
use crate::{control, convert, direct, fail, memory, real, unconnected};
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::{End, SocketName};
use libc::{c_int, sockaddr, socklen_t};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Waits until the connection is established, but at most for the socket's send timeout (SO_SNDTIMEO), or
/// without limit if that is 0. Returns 0, or -1 with errno. If the library has opened the connection, and the engine does
/// not answer any more, the kernel connects the socket instead.
pub fn wait_connected(fd: RawFd) -> c_int {
    // SAFETY: an all-zero timeval is valid, and the structures outlive the call.
    let timeout = unsafe {
        let mut limit: libc::timeval = std::mem::zeroed();
        let mut len = size_of_val(&limit) as socklen_t;
        real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, (&raw mut limit).cast(), &mut len);
        match limit.tv_sec.saturating_mul(1000).saturating_add(limit.tv_usec.div_euclid(1000)) {
            0 if limit.tv_usec == 0 => -1,
            milliseconds => milliseconds.clamp(1, c_int::MAX as i64) as c_int,
        }
    };
    let outcome = match name_of(fd).filter(is_opened) {
        Some(name) => match poll_opened(fd, timeout) {
            Some(outcome) => outcome,
            None => return convert::leave_engine(fd, &name),
        },
        None => poll(fd, libc::POLLOUT, timeout),
    };
    match outcome {
        Err(libc::ETIMEDOUT) => fail(libc::EINPROGRESS),
        Err(error) => fail(error),
        Ok(_) => match take_error(fd) {
            0 if Flags::of(fd).has(Flags::CONNECTING) => fail(libc::ECONNRESET),
            0 => 0,
            error => fail(error),
        },
    }
}

/// Polls a connection that the library has opened until it is established or has failed. Asks the engine for the
/// connection's addresses at times. Returns `None` if the engine does not answer.
fn poll_opened(fd: RawFd, timeout: c_int) -> Option<Result<i16, c_int>> {
    const STEP: c_int = 1000 * control::REPLY_SECONDS as c_int;
    let start = direct::now_ns();
    loop {
        let passed = c_int::try_from((direct::now_ns() - start) / 1_000_000).unwrap_or(c_int::MAX);
        let rest = if timeout < 0 { c_int::MAX } else { timeout.saturating_sub(passed).max(0) };
        match poll(fd, libc::POLLOUT, rest.min(STEP)) {
            Err(libc::ETIMEDOUT) if rest > STEP => {}
            outcome => return Some(outcome),
        }
        if control::request(&mut Message::new(Operation::Addresses), fd).is_none() {
            return poll(fd, libc::POLLOUT, 0).ok().map(Ok);
        }
    }
}

/// Returns true if a connection attempt of `fd` has failed and the program has read the error. As in Linux, the program
/// may then connect the socket again.
pub fn may_connect_again(fd: RawFd, name: &SocketName) -> bool {
    let flags = Flags::of(fd);
    !name.kind.is_bound()
        && flags.has(Flags::CONNECTING)
        && flags.has(Flags::ERROR_READ)
        && matches!(End::of(fd, real::ASKING), End::Failed(_))
}

/// Implements connect(2) for a socket that is already offloaded. Blocks until the connection is established,
/// unless the descriptor is non-blocking. Returns 0, or -1 with errno set.
pub fn connect(fd: RawFd, name: &SocketName, remote: SocketAddr) -> c_int {
    if !name.kind.is_bound() || Flags::of(fd).has(Flags::CONNECTING) {
        return match poll(fd, libc::POLLOUT, 0) {
            Err(_) if Flags::of(fd).has(Flags::CONNECTING) && blocks(fd) => wait_connected(fd),
            Err(_) if Flags::of(fd).has(Flags::CONNECTING) => fail(libc::EALREADY),
            Ok(_) if Flags::of(fd).has(Flags::CONNECTING) => match take_error(fd) {
                0 => fail(libc::ECONNABORTED),
                error => fail(error),
            },
            _ => fail(libc::EISCONN),
        };
    }
    let mut message = Message::new(Operation::Connect);
    message.remote = Some(remote);
    message.v6 = name.kind.is_v6();
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status == 0 => match blocks(fd) {
            true => wait_connected(fd),
            false => fail(libc::EINPROGRESS),
        },
        Some((reply, _)) if reply.status > 0 => fail(reply.status),
        _ => fail(libc::ENETUNREACH),
    }
}

/// Returns the errno for a connect of the offloaded socket `fd` to an address that is not an internet
/// address.
///
/// # Safety
/// As for [`memory::read_bytes`].
pub unsafe fn reason_of_refusal(
    fd: RawFd,
    name: &SocketName,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    let lengths = size_of::<libc::sa_family_t>()..=size_of::<libc::sockaddr_storage>();
    // SAFETY: the caller's promise.
    let family = unsafe { memory::read(address.cast::<libc::sa_family_t>()) };
    match name.kind {
        _ if !lengths.contains(&(len as usize)) => libc::EINVAL,
        _ if family.is_none() => libc::EFAULT,
        _ if name.kind.is_datagram() => libc::EAFNOSUPPORT,
        _ if may_connect_again(fd, name) => libc::EAFNOSUPPORT,
        _ if Flags::of(fd).has(Flags::CONNECTING) => libc::EALREADY,
        _ if unconnected::is_unconnected(fd) && !unconnected::listens(fd) => libc::EAFNOSUPPORT,
        _ => libc::EISCONN,
    }
}
