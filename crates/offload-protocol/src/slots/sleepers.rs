//! Wakes a thread of the program that sleeps in the kernel although receive rings are open.

use super::{ATTEMPTS, Word};

/// The threads of a program that sleep until an epoll instance has events. Bytes in a receive ring do not wake such a thread, because the kernel
/// does not know of them. So the engine moves the bytes of one connection to its pair. The thread then finds the bytes of all other
/// connections in their rings.
///
/// A thread first records that it sleeps, and then looks at [`Area::ready`](super::Area::ready) again. The engine first sets the bit of a slot there, and then
/// looks for threads that sleep. So the thread finds the bytes and stays awake, or the engine finds that it sleeps.
pub struct Sleepers<'a, W> {
    /// Bit n is set while thread n sleeps and was not woken. Both sides change it.
    pub asleep: &'a W,
    /// For each thread, the slots whose bytes must wake it. Only the program writes these words.
    pub watched: &'a [W],
}

impl<W: Word> Sleepers<'_, W> {
    /// Records that thread `number` sleeps, until bytes arrive in one of the slots of the mask `watched`. Before the thread sleeps, look at
    /// [`Area::ready`](super::Area::ready) again.
    pub fn fall_asleep(&self, number: usize, watched: u64) {
        self.watched[number].store(watched);
        self.asleep.set(1 << number);
        W::fence();
    }

    /// Records that thread `number` does not sleep any more.
    pub fn wake_up(&self, number: usize) {
        loop {
            let asleep = self.asleep.load();
            if asleep & 1 << number == 0 || self.asleep.exchange(asleep, asleep & !(1 << number)) {
                return;
            }
        }
    }

    /// Returns the number of a thread that sleeps until bytes arrive in slot `index`, and records that it was woken. The engine then moves the
    /// bytes to the pair. It calls this after it has set the slot's bit in [`Area::ready`](super::Area::ready).
    #[inline]
    pub fn claim_wake(&self, index: usize) -> Option<usize> {
        W::fence();
        if self.asleep.load() == 0 { None } else { self.claim(index) }
    }

    #[cold]
    fn claim(&self, index: usize) -> Option<usize> {
        // Only a hostile program changes the word in each attempt.
        for _ in 0..ATTEMPTS {
            let asleep = self.asleep.load();
            let mut rest = asleep;
            let number = loop {
                if rest == 0 {
                    return None;
                }
                let number = rest.trailing_zeros() as usize;
                if self.watched.get(number).is_some_and(|watched| watched.load() & 1 << index != 0) {
                    break number;
                }
                rest &= rest - 1;
            };
            if self.asleep.exchange(asleep, asleep & !(1 << number)) {
                return Some(number);
            }
        }
        None
    }

    /// Takes a wake of thread `number` back, because nothing was left to move to a pair: the thread may still sleep.
    pub fn return_wake(&self, number: usize) {
        self.asleep.set(1 << number);
    }
}
