//! Finds the engine's sockets that are bound and not connected, such as listeners.
//!
//! Reads and sends on such a socket must fail. The kernel would not fail them, because the program's end
//! belongs to a connected socket pair. A read would even take a connection that waits to be accepted. Asking
//! the engine before each read costs too much. So the library asks only about descriptors that were such
//! sockets before.

use crate::socket::{addresses, name_of};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// A fact about descriptors from 0 to 65535, one bit each. The fact was true when the library last used the
/// descriptor. It is only a hint: the program may have closed the descriptor since, and the number may belong
/// to another socket.
pub struct Hint([AtomicU64; Hint::MOST as usize / 64]);

impl Hint {
    /// The number of descriptors with a bit.
    const MOST: RawFd = 1 << 16;

    /// Creates a [`Hint`] with all bits 0: its fact is false for every descriptor.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; Self::MOST as usize / 64])
    }

    /// Returns the word with the bit of `fd`, and the mask of this bit. Returns `None` if `fd` is above 65535.
    fn bit(&self, fd: RawFd) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }

    /// Returns true if the hint is set for `fd`. Returns false for a descriptor above 65535.
    #[inline]
    pub fn has(&self, fd: RawFd) -> bool {
        self.bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Returns the descriptors for which the hint is set.
    pub fn iter(&self) -> impl Iterator<Item = RawFd> {
        let words =
            self.0.iter().zip((0..).step_by(64)).filter(|(word, _)| word.load(Ordering::Relaxed) != 0);
        words.flat_map(|(_, first)| first..first + 64).filter(|&fd| self.has(fd))
    }

    /// Stores the hint for `fd`. Does nothing for a descriptor above 65535.
    pub fn set(&self, fd: RawFd, value: bool) {
        if let Some((word, bit)) = self.bit(fd) {
            match value {
                true => word.fetch_or(bit, Ordering::Relaxed),
                false => word.fetch_and(!bit, Ordering::Relaxed),
            };
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::Hint;

    #[test]
    fn a_hint_has_one_bit_for_each_descriptor() {
        static HINT: Hint = Hint::new();
        let all = [0, 63, 64, 4000, 65535];
        for fd in all {
            assert!(!HINT.has(fd));
            HINT.set(fd, true);
        }
        for outside in [-1, i32::MIN, 65536, i32::MAX] {
            HINT.set(outside, true);
            assert!(!HINT.has(outside));
        }
        assert_eq!(HINT.iter().collect::<Vec<_>>(), all);
        HINT.set(64, false);
        assert!(!HINT.has(64) && HINT.has(63));
    }
}
