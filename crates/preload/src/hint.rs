//! A table of facts about descriptors.

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
