//! Descriptors that the program duplicates before it binds or connects their socket.
//!
//! bind and connect replace the socket behind one descriptor. The kernel does not tell which other descriptors
//! have the same socket, so this module remembers the duplicates that dup(2) and fcntl(2) make in this process.

use crate::unconnected::Hint;
use crate::{direct, socket};
use inlane_offload_protocol::name::Local;
use std::os::fd::RawFd;

/// Marks the descriptors whose socket other descriptors may share. Set for both descriptors when one is
/// duplicated before their socket has a port.
static SHARED: Hint = Hint::new();

/// Remembers that the program has duplicated `fd` as `duplicate`, if bind or connect may still replace the socket.
/// Does nothing if `duplicate` is negative, because the duplication has failed. Returns `duplicate`.
pub fn note(fd: RawFd, duplicate: RawFd) -> RawFd {
    if duplicate >= 0 && matches!(socket::local_of(fd), Local::Kernel { port: 0, .. }) {
        SHARED.set(fd, true);
        SHARED.set(duplicate, true);
    }
    duplicate
}

/// Returns the other descriptors of this process that now have the socket of `fd`. The caller may replace the
/// socket of `fd` before it uses the result.
pub fn of(fd: RawFd) -> impl Iterator<Item = RawFd> {
    let original = if SHARED.has(fd) { direct::identity(fd) } else { None };
    let candidates = if original.is_some() { 0..Hint::MOST } else { 0..0 };
    candidates.filter(move |&other| other != fd && SHARED.has(other) && direct::identity(other) == original)
}
