//! Implements the socket calls on offloaded sockets: connect, listen, accept, addresses, options and
//! shutdown.

mod accept;
mod connect;
mod names;
mod options;
pub mod relisten;

pub use accept::{accept, listen};
pub use connect::{
    connect, ends_attempt, forget_given_up_at_fork, leave_in_progress, may_connect_again, may_have_given_up,
    note_closing, note_closing_range, note_connecting, note_replacing, reason_of_fast_refusal,
    reason_of_refusal, wait_connected,
};
pub use names::{getpeername, getsockname};
pub use options::{ask_internet, getsockopt, reset_on_close, setsockopt};

use crate::descriptor::name_of;
use crate::flags::Flags;
use crate::{direct, errno, fail, polling, real, set_errno, unconnected, wait};
use inlane_offload_protocol::name::{End, SocketName};
use libc::c_int;
use std::os::fd::RawFd;

fn poll(fd: RawFd, events: i16, timeout: c_int) -> Result<i16, c_int> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the structure outlives the call.
    match unsafe { wait::poll(&mut poll, 1, timeout) } {
        -1 => Err(errno()),
        0 => Err(libc::ETIMEDOUT),
        _ => Ok(poll.revents),
    }
}

/// Returns the pending error of the socket `fd` and clears it, like reading SO_ERROR.
pub fn take_error(fd: RawFd) -> c_int {
    let native = real::option(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
    match End::of(fd, real::ASKING) {
        End::Failed(error) if !Flags::of(fd).has(Flags::ERROR_READ) => {
            Flags::set(fd, Flags::ERROR_READ);
            error
        }
        End::Failed(_) | End::Finished => 0,
        End::Unnamed | End::Listening(_) => {
            // The engine has died. Mark the error as read. A program that has read the error of a kernel
            // socket gets the end of the stream from its next receive; offloaded sockets do the same.
            if native != 0 {
                Flags::set(fd, Flags::ERROR_READ);
            }
            native
        }
    }
}

/// Returns true if the connection has failed, or if both ends have finished sending.
fn is_over(fd: RawFd) -> bool {
    match End::of(fd, real::ASKING) {
        End::Failed(_) => true,
        End::Finished => poll(fd, 0, 0).is_ok_and(|events| events & libc::POLLHUP != 0),
        End::Unnamed | End::Listening(_) => false,
    }
}

/// Returns true while the socket is being connected.
pub fn is_connecting(fd: RawFd, name: &SocketName) -> bool {
    !name.kind.is_bound() && Flags::of(fd).has(Flags::CONNECTING) && !is_over(fd)
}

/// Shuts down one or both directions. Fails with ENOTCONN if the socket has no connection and does not listen.
pub fn shutdown(fd: RawFd, name: &SocketName, how: c_int) -> c_int {
    if !(0..3).contains(&how) {
        return fail(libc::EINVAL);
    }
    if unconnected::is_unconnected(fd) && !unconnected::listens(fd) || is_over(fd) {
        return fail(libc::ENOTCONN);
    }
    if unconnected::is_listener(fd) {
        return accept::shutdown_listener(fd, name, how);
    }
    if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
        Flags::set(fd, Flags::READ_SHUT);
    }
    if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
        direct::shut(fd);
    }
    // The pair must hang up if both directions have ended.
    if how != libc::SHUT_WR || direct::has_end(fd) {
        direct::leave(fd);
    }
    // SAFETY: has no preconditions.
    unsafe { real::shutdown(fd, how) }
}

/// Returns true if `fd` is an offloaded connection whose peer has finished sending. This is how most connections end, and
/// one system call finds it. Returns false without asking the kernel if the library has not offloaded `fd`. Leaves errno
/// unchanged.
fn has_finished(fd: RawFd) -> bool {
    let before = errno();
    // Look at shared memory first: the engine removes the end from there once the pair has it.
    let finished =
        polling::is_offloaded(fd) && (direct::has_end(fd) || End::of(fd, real::ASKING) == End::Finished);
    set_errno(before);
    finished
}

/// Returns the error of the connection that the program's read must report, or 0. Call this after the
/// kernel's read of the socket pair returned 0 or failed with ECONNRESET. The pair itself cannot carry a TCP
/// error.
pub fn reason_of_end(fd: RawFd) -> c_int {
    if has_finished(fd) || name_of(fd).is_none() {
        return 0;
    }
    match End::of(fd, real::ASKING) {
        End::Finished => 0,
        End::Failed(_) if Flags::of(fd).has(Flags::ERROR_READ) => 0,
        End::Failed(error) => {
            Flags::set(fd, Flags::ERROR_READ);
            error
        }
        End::Unnamed | End::Listening(_)
            if Flags::of(fd).has(Flags::READ_SHUT) || Flags::of(fd).has(Flags::ERROR_READ) =>
        {
            0
        }
        End::Unnamed | End::Listening(_) => {
            Flags::set(fd, Flags::ERROR_READ);
            libc::ECONNRESET
        }
    }
}

/// Returns the connection's error if the program has not read it yet, otherwise 0. Call this after the
/// kernel's send on `fd` has failed with EPIPE.
pub fn reason_of_broken_pipe(fd: RawFd) -> c_int {
    if name_of(fd).is_none() {
        return 0;
    }
    let error = match End::of(fd, real::ASKING) {
        End::Failed(error) => error,
        // The send failed because the program has shut down writing, or because the engine is gone. The
        // socket pair has hung up only if the engine is gone.
        End::Unnamed if poll(fd, 0, 0).is_ok() && !Flags::of(fd).has(Flags::READ_SHUT) => libc::ECONNRESET,
        End::Finished | End::Unnamed | End::Listening(_) => 0,
    };
    if error == 0 || Flags::of(fd).has(Flags::ERROR_READ) {
        return 0;
    }
    Flags::set(fd, Flags::ERROR_READ);
    error
}
