//! Remembers descriptors that the program duplicates before it binds or connects their socket.
//!
//! bind and connect replace the socket behind one descriptor. The kernel does not tell which other
//! descriptors have the same socket. So this module remembers the duplicates that dup(2) and fcntl(2) create
//! in this process.

use crate::hint::Hint;
use crate::{descriptor, direct};
use inlane_offload_protocol::name::Local;
use std::os::fd::RawFd;

/// Marks descriptors that may share their socket with other descriptors. If the program duplicates a
/// descriptor before its socket has a port, both descriptors are marked.
static SHARED: Hint = Hint::new();

/// Remembers that the program has duplicated `fd` as `duplicate`, if bind or connect may still replace the socket.
/// Does nothing if `duplicate` is negative, because the duplication has failed. Returns `duplicate`.
pub fn note(fd: RawFd, duplicate: RawFd) -> RawFd {
    if duplicate >= 0 {
        direct::note_unseen(fd);
        direct::note_unseen(duplicate);
    }
    if duplicate >= 0 && matches!(descriptor::local_of(fd), Local::Kernel { port: 0, .. }) {
        SHARED.set(fd, true);
        SHARED.set(duplicate, true);
    }
    duplicate
}

/// Returns the other descriptors of this process that refer to the socket of `fd` now. The caller may replace
/// the socket of `fd` before it uses the result.
pub fn of(fd: RawFd) -> impl Iterator<Item = RawFd> {
    let original = if SHARED.has(fd) { descriptor::identity(fd) } else { None };
    let candidates = original.is_some().then(|| SHARED.iter()).into_iter().flatten();
    candidates.filter(move |&other| other != fd && descriptor::identity(other) == original)
}
