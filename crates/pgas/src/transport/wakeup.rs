//! When a doorbell must ring, and what a sleeper must do not to miss it; generic over its words for the model checker.
//!
//! A sender would rather store than ring: a doorbell costs it an uncached write (in the twin: a system call), and the
//! receiver an interrupt. So the receiver says when it is about to sleep: it writes a growing number, its *nap*, into a word at
//! the sender, looks once more, and only then sleeps. The sender looks at that word (local to it) after each store, and
//! rings once for each nap. With the number goes what the receiver waits for: puts that cannot end its wait do not ring, or a
//! peer that sleeps in a barrier would be rung for, and woken by, every few microseconds of bulk that arrives meanwhile.
//!
//! ```text
//! receiver: nap += 1, wanted -> sender     look again     sleep until the doorbell or the backstop     look
//! sender:   data -> receiver               nap new, and this was wanted? ring
//! ```
//!
//! With a full fence on both sides between the write and the look, no wake-up is ever lost (model-checked below). The sender
//! leaves its fence out: on a posted window no instruction of its own could order the peer's memory against its own. What
//! may be missed then is a nap that begins while the store is under way; the receiver therefore looks again for about as long
//! as a store can be under way ([`GRACE`]), and its sleep has a backstop that grows from 1 ms to 64 ms.

use std::time::Duration;

/// How long a receiver looks on after it announced its nap.
pub const GRACE: Duration = Duration::from_micros(2);
/// The first and the longest backstop of a sleep.
pub const BACKSTOP: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// A word with one writer.
pub use inlane_core::ring::protocol::Word;

/// What a sleeper waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Notifications and replies, which no put to symmetric memory is.
    Control,
    /// A store to the 8 bytes at this symmetric offset, a multiple of 8; or control.
    Word(usize),
    /// Any store.
    Any,
}

/// What was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A notification or a reply.
    Control,
    /// So many bytes at a symmetric offset.
    Put(usize, usize),
}

/// Bits of a nap word for what is wanted; the number is above them, and may wrap.
const WANTED_BITS: u32 = 40;
const ANY: u64 = (1 << WANTED_BITS) - 1;

impl Wanted {
    /// The word at a symmetric offset, where it is inside one that is aligned to 8.
    pub fn word(offset: usize, width: usize) -> Self {
        if offset % 8 + width <= 8 { Self::Word(offset & !7) } else { Self::Any }
    }

    fn encode(self) -> u64 {
        match self {
            Wanted::Control => 0,
            Wanted::Word(offset) => (offset as u64 / 8 + 1).min(ANY),
            Wanted::Any => ANY,
        }
    }

    fn with(self, other: Self) -> Self {
        match (self, other) {
            (Wanted::Control, one) | (one, Wanted::Control) => one,
            (one, two) if one == two => one,
            _ => Wanted::Any,
        }
    }
}

/// True when a nap that says `nap` may end by what was stored. The peer's word: anything may stand there.
#[inline]
pub fn concerns(nap: u64, stored: Stored) -> bool {
    match (nap & ANY, stored) {
        (_, Stored::Control) | (ANY, _) => true,
        (0, Stored::Put(..)) => false,
        (unit, Stored::Put(offset, length)) => {
            let start = (unit - 1) * 8;
            (offset as u64) < start + 8 && start < (offset as u64).saturating_add(length as u64)
        }
    }
}

/// The sender's half: which nap it rang for last.
#[derive(Debug, Default)]
pub struct Ringer {
    rung: u64,
}

impl Ringer {
    /// The nap to ring for, when the receiver naps, was not rung for it yet, and waits for what was stored. To be asked after
    /// the store. What is read is the receiver's to choose: a mad one gets at most one ring a store.
    #[inline]
    pub fn must_ring<W: Word>(&mut self, nap: &W, stored: Stored) -> Option<u64> {
        let now = nap.load();
        if now == self.rung || !concerns(now, stored) {
            return None;
        }
        self.rung = now;
        Some(now)
    }
}

/// The receiver's half: how many naps there were, and what those who sleep now wait for.
#[derive(Debug, Default)]
pub struct Napper {
    nap: u64,
    sleepers: Vec<Wanted>,
}

impl Napper {
    /// A thread goes to sleep: the word that announces it, to be written at every peer that may have to wake this side.
    pub fn announce(&mut self, wanted: Wanted) -> u64 {
        self.nap += 1;
        self.sleepers.push(wanted);
        let wanted = self.sleepers.iter().fold(Wanted::Control, |all, one| all.with(*one));
        self.nap << WANTED_BITS | wanted.encode()
    }

    /// It is awake again.
    pub fn woke(&mut self, wanted: Wanted) {
        if let Some(index) = self.sleepers.iter().position(|one| *one == wanted) {
            self.sleepers.swap_remove(index);
        }
    }

    /// Somebody sleeps who may wait for the words of own symmetric memory.
    pub fn sleeps_on_memory(&self) -> bool {
        self.sleepers.iter().any(|one| *one != Wanted::Control)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    struct Acquire<'a>(&'a AtomicU64);

    impl Word for Acquire<'_> {
        fn load(&self) -> u64 {
            self.0.load(Ordering::Acquire)
        }
        fn store(&self, value: u64) {
            self.0.store(value, Ordering::Release)
        }
    }

    #[derive(Default)]
    struct Shared {
        data: AtomicU64,
        nap: AtomicU64,
        doorbell: AtomicU64,
    }

    /// Two stores against two naps: the receiver never sleeps on data that is there without a doorbell coming.
    fn model(fenced: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let shared = Arc::new(Shared::default());
            let theirs = shared.clone();
            let sender = loom::thread::spawn(move || {
                let mut ringer = Ringer::default();
                let mut rings = 0;
                for value in 1..=2 {
                    theirs.data.store(value, Ordering::Release);
                    if fenced {
                        fence(Ordering::SeqCst);
                    }
                    if ringer.must_ring(&Acquire(&theirs.nap), Stored::Put(8, 8)).is_some() {
                        theirs.doorbell.fetch_or(1, Ordering::SeqCst);
                        rings += 1;
                    }
                }
                rings
            });
            let mut napper = Napper::default();
            let mut seen = 0;
            let mut slept_on = None;
            for _ in 0..2 {
                Acquire(&shared.nap).store(napper.announce(Wanted::Word(8)));
                fence(Ordering::SeqCst);
                let now = shared.data.load(Ordering::Acquire);
                if now == seen {
                    // It sleeps here. Bounded: instead of blocking, note what it would sleep on.
                    if shared.doorbell.fetch_and(0, Ordering::SeqCst) == 0 {
                        slept_on = Some(seen);
                        break;
                    }
                }
                napper.woke(Wanted::Word(8));
                seen = shared.data.load(Ordering::Acquire);
            }
            let rings = sender.join().unwrap();
            assert!(rings <= 2, "at most one ring a nap");
            if let (Some(seen), true) = (slept_on, fenced) {
                // The sender is done: if there is anything new, the doorbell must be pending.
                let newer = shared.data.load(Ordering::Acquire) != seen;
                assert!(!newer || shared.doorbell.load(Ordering::SeqCst) == 1, "slept through {seen}");
            }
            if let Some(seen) = slept_on {
                // The backstop: looking once more finds what the sender stored, rung for or not.
                assert!(shared.data.load(Ordering::Acquire) == 2 || seen == 2);
            }
        });
    }

    #[test]
    fn only_what_is_wanted_rings() {
        let rings = |wanted: Wanted, stored| {
            let mut napper = Napper::default();
            let nap = AtomicWord(napper.announce(wanted).into());
            Ringer::default().must_ring(&nap, stored).is_some()
        };
        let (put, word) = (Stored::Put(64, 100), |at| Wanted::word(at, 4));
        assert!(rings(Wanted::Any, put) && rings(Wanted::Any, Stored::Control));
        assert!(!rings(Wanted::Control, put) && rings(Wanted::Control, Stored::Control));
        for (at, hit) in
            [(56, false), (60, false), (64, true), (160, true), (164, true), (168, false), (0, false)]
        {
            assert_eq!(rings(word(at), put), hit, "{at}");
        }
        assert!(rings(word(62), Stored::Put(0, 1)), "a word across two is waited for by any store");
        assert!(rings(Wanted::Word(usize::MAX - 7), Stored::Put(0, 1)), "one too far away too");
        assert!(!rings(word(64), Stored::Put(usize::MAX, usize::MAX)));
    }

    #[test]
    fn sleepers_are_told_of_together() {
        let mut napper = Napper::default();
        let means = |nap, at| concerns(nap, Stored::Put(at, 8));
        let one = napper.announce(Wanted::Word(8));
        assert!(means(one, 8) && !means(one, 16));
        let also = napper.announce(Wanted::Control);
        assert!(also != one && means(also, 8) && !means(also, 16), "the first still sleeps");
        assert!(means(napper.announce(Wanted::Word(16)), 24), "two words: any");
        napper.woke(Wanted::Word(8));
        let rest = napper.announce(Wanted::Control);
        assert!(means(rest, 16) && !means(rest, 8) && napper.sleeps_on_memory());
        napper.woke(Wanted::Word(16));
        assert!(!napper.sleeps_on_memory());
    }

    struct AtomicWord(std::sync::atomic::AtomicU64);

    impl Word for AtomicWord {
        fn load(&self) -> u64 {
            self.0.load(std::sync::atomic::Ordering::Acquire)
        }
        fn store(&self, value: u64) {
            self.0.store(value, std::sync::atomic::Ordering::Release)
        }
    }

    #[test]
    fn loom_no_wakeup_is_lost_with_fences() {
        model(true);
    }

    #[test]
    fn loom_the_backstop_finds_the_rest() {
        model(false);
    }

    /// Clearing before scanning: a doorbell that rings while the receiver scans is still pending afterwards.
    #[test]
    fn loom_clear_before_scan() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let theirs = shared.clone();
            let sender = loom::thread::spawn(move || {
                for value in 1..=2 {
                    theirs.data.store(value, Ordering::Release);
                    theirs.doorbell.fetch_or(1, Ordering::SeqCst);
                }
            });
            let mut seen = 0;
            for _ in 0..2 {
                if shared.doorbell.fetch_and(0, Ordering::SeqCst) != 0 {
                    seen = shared.data.load(Ordering::Acquire);
                }
            }
            sender.join().unwrap();
            assert!(seen == 2 || shared.doorbell.load(Ordering::SeqCst) == 1);
        });
    }
}
