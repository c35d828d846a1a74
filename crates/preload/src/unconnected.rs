//! Finds the engine's sockets that are bound and not connected, such as listeners.
//!
//! Reads and sends on such a socket must fail. The kernel would not fail them, because the program's end
//! belongs to a connected socket pair. A read would even take a connection that waits to be accepted. Asking
//! the engine before each read costs too much. So the library asks only about descriptors that were such
//! sockets before.

use crate::control::addresses;
use crate::descriptor::name_of;
use crate::hint::Hint;
use std::os::fd::RawFd;

/// The descriptors of the engine's sockets that are bound and not connected, such as listeners.
static UNCONNECTED: Hint = Hint::new();
/// The descriptors that were listeners of the engine when the library last used them.
static LISTENING: Hint = Hint::new();

/// Records that `fd` is a socket of the engine, and that it has just been bound.
pub fn note_bound(fd: RawFd) {
    UNCONNECTED.set(fd, true);
    LISTENING.set(fd, false);
}

/// Records that `fd` is a listener of the engine.
pub fn note_listening(fd: RawFd) {
    UNCONNECTED.set(fd, true);
    LISTENING.set(fd, true);
}

/// Returns true if `fd` was recorded as a bound socket without a connection. The record may be out of date,
/// so the caller must check the socket.
#[inline]
pub fn may_be_unconnected(fd: RawFd) -> bool {
    UNCONNECTED.has(fd)
}

/// Returns true if `fd` is a bound socket of the engine without a connection. A read of its socket pair would
/// take a connection that waits to be accepted. Call this before each read and send. Leaves errno unchanged.
#[inline]
pub fn is_unconnected(fd: RawFd) -> bool {
    may_be_unconnected(fd) && ask_unconnected(fd)
}

#[cold]
fn ask_unconnected(fd: RawFd) -> bool {
    let bound = name_of(fd).is_some_and(|name| name.kind.is_bound());
    let unconnected = bound && addresses(fd).is_some_and(|reply| reply.remote.is_none());
    UNCONNECTED.set(fd, unconnected);
    unconnected
}

/// Returns true for a listener of the engine. Leaves errno unchanged.
pub fn is_listener(fd: RawFd) -> bool {
    is_unconnected(fd) && listens(fd)
}

/// Returns true if the bound socket `fd` listens, or if the engine does not answer.
pub fn listens(fd: RawFd) -> bool {
    LISTENING.has(fd) || {
        let listens = addresses(fd).is_none_or(|reply| reply.number != 0);
        if listens {
            note_listening(fd);
        }
        listens
    }
}
