//! Descriptors that the program duplicates before it binds or connects their socket.
//!
//! bind and connect replace the socket behind one descriptor. The kernel does not tell which other descriptors
//! have the same socket, so this module remembers the duplicates that dup(2) and fcntl(2) make in this process.

use crate::{direct, socket};
use inlane_offload_protocol::name::Local;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of descriptors in the table. Higher descriptors are not remembered.
const MOST: RawFd = 1024;

/// One bit for each descriptor that shared a socket without a port with another descriptor when the program made
/// the duplicate. This is only a hint, because the program may have closed the descriptor since.
static SHARED: [AtomicU64; MOST as usize / 64] = [const { AtomicU64::new(0) }; MOST as usize / 64];

/// Returns the word of `SHARED` for `fd`, and a mask with the bit of `fd`.
fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((SHARED.get(fd / 64)?, 1 << (fd % 64)))
}

fn is_shared(fd: RawFd) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Remembers that the program has duplicated `fd` as `duplicate`, if bind or connect may still replace the socket.
/// Does nothing if `duplicate` is negative, because the duplication has failed. Returns `duplicate`.
pub fn note(fd: RawFd, duplicate: RawFd) -> RawFd {
    if duplicate >= 0 && matches!(socket::local_of(fd), Local::Kernel { port: 0, .. }) {
        for (word, bit) in [fd, duplicate].into_iter().filter_map(bit) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
    duplicate
}

/// Returns the other descriptors of this process that now have the socket of `fd`. The caller may replace the
/// socket of `fd` before it uses the result.
pub fn of(fd: RawFd) -> impl Iterator<Item = RawFd> {
    let original = if is_shared(fd) { direct::identity(fd) } else { None };
    let candidates = if original.is_some() { 0..MOST } else { 0..0 };
    candidates.filter(move |&other| other != fd && is_shared(other) && direct::identity(other) == original)
}
