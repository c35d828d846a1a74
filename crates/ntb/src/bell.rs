//! When a doorbell must ring, and what a sleeper must do not to miss it; generic over its words for the model checker.
//!
//! A sender would rather store than ring: a doorbell costs it an uncached write (in the twin: a system call), and the
//! receiver an interrupt. So the receiver says when it is about to sleep: it writes a growing number, its *nap*, into a word at
//! the sender, looks once more, and only then sleeps. The sender looks at that word (local to it) after each store, and
//! rings once for each nap.
//!
//! ```text
//! receiver: nap += 1 -> sender     look again     sleep until the doorbell or the backstop     look
//! sender:   data -> receiver       nap new? ring
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

/// The sender's half: which nap it rang for last.
#[derive(Debug, Default)]
pub struct Ringer {
    rung: u64,
}

impl Ringer {
    /// True when the receiver naps and was not rung for it yet. To be asked after the store. The number read is the
    /// receiver's to choose: a mad one gets at most one ring a store.
    #[inline]
    pub fn must_ring<W: Word>(&mut self, nap: &W) -> bool {
        let now = nap.load();
        if now == self.rung {
            return false;
        }
        self.rung = now;
        true
    }
}

/// The receiver's half.
#[derive(Debug, Default)]
pub struct Napper {
    nap: u64,
}

impl Napper {
    /// The number that announces the next nap; to be written at every peer that may have to wake this side.
    pub fn announce(&mut self) -> u64 {
        self.nap += 1;
        self.nap
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
                    if ringer.must_ring(&Acquire(&theirs.nap)) {
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
                Acquire(&shared.nap).store(napper.announce());
                fence(Ordering::SeqCst);
                let now = shared.data.load(Ordering::Acquire);
                if now == seen {
                    // It sleeps here. Bounded: instead of blocking, note what it would sleep on.
                    if shared.doorbell.fetch_and(0, Ordering::SeqCst) == 0 {
                        slept_on = Some(seen);
                        break;
                    }
                }
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
