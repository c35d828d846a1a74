//! When a store must ring a doorbell, and how a waiter sleeps without missing a doorbell. The loom tests
//! check this protocol.
//!
//! A doorbell is expensive: the notifier makes an uncached write, and an interrupt occurs at the waiter. So a
//! waiter asks for a doorbell only before it sleeps:
//!
//! ```text
//! waiter:    announcement -> peers     barrier     look again     sleep until the doorbell or the backstop
//! notifier:  data -> waiter            barrier     new announcement with this interest? ring
//! ```
//!
//! An *announcement* is a word that the waiter writes into the memory of each peer that can end the wait. It holds the
//! waiter's [`Interest`]: the stores that can end the wait. After such a store, the peer rings, once for each
//! announcement.
//!
//! Each side needs a full barrier between its store and its next load. Otherwise both sides may read the old
//! value, and the wake-up is lost. A barrier after every put would cost more than the put. Therefore:
//!
//! * On coherent memory windows, notifiers execute a barrier only after notifications and replies
//!   ([`Stored::needs_barrier`]). After a put, they may miss an announcement of the same moment and not ring. A
//!   waiter for a word therefore also looks at the word every [`LOOK_EVERY`] while it sleeps.
//! * On posted windows the notifier executes a barrier after each store, and the waiter reads back through the
//!   window. The completion of this read arrives after all earlier posted stores (PCI Express Base
//!   Specification, "Transaction Ordering").
//!
//! The waiter does not execute the barrier for the notifiers by membarrier(2). This call interrupts all
//! processors that run PEs, and Linux executes one such call at a time, so a call took 0.9 ms with 32 PEs on 32
//! cores.
//!
//! Doorbells can be lost. Each sleep therefore also ends after its *backstop*: 1 ms at first, then doubled up
//! to 64 ms. For answers to requests, and after a doorbell was lost, the first backstop is 0.1 ms.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a waiter polls between its announcement and its sleep. A store in flight usually arrives in this
/// time.
pub const LAST_LOOK: Duration = Duration::from_micros(2);
/// The time after which a sleep ends even if no doorbell arrives. The first sleep of a wait lasts at most the
/// first value. The time doubles with each further sleep, up to the second value.
pub const BACKSTOP: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// How long a thread sleeps between two checks while it waits for words of memory. The kernel may add its
/// timer slack of 50 us.
pub const LOOK_EVERY: Duration = Duration::from_micros(40);

/// After a lost doorbell, waits sleep for shorter times until doorbells have ended this many sleeps.
const REMEMBER_FOR: u32 = 16;
/// The first sleep of a wait is divided by this number after a lost doorbell, because the next doorbell may
/// be lost, too. In a wait for an answer, it is always divided.
const SHORTER: u32 = 10;

/// Remembers lost doorbells, so that the next waits sleep for shorter times. Without losses, waits sleep long
/// and wake seldom.
#[derive(Debug, Default)]
pub(super) struct LostDoorbells(AtomicU32);

impl LostDoorbells {
    /// Records how a sleep ended. `woken` is true if a doorbell ended it, and false if its time limit did.
    /// After a time limit, `over` returns true if the awaited event had happened, so that its doorbell was
    /// lost.
    pub fn record(&self, woken: bool, over: impl FnOnce() -> bool) {
        let before = self.0.load(Ordering::Relaxed);
        match woken {
            true if before > 0 => self.0.store(before - 1, Ordering::Relaxed),
            false if over() => self.0.store(REMEMBER_FOR, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Returns the limit of a wait's first sleep: `usual`, or less if doorbells were lost lately. Also less
    /// if the wait is for an `answer` to a request, because answers take microseconds. A waiter that wakes
    /// without the answer rings the peer's doorbell again.
    pub fn first_sleep(&self, usual: Duration, answer: bool) -> Duration {
        match answer || self.0.load(Ordering::Relaxed) > 0 {
            true => usual / SHORTER,
            false => usual,
        }
    }
}

/// A word of memory that one thread or PE writes and another thread or PE reads.
pub use inlane_core::ring::Word;

/// The stores that can end a wait. A waiter announces its interest before it sleeps. Peers ring the waiter's
/// doorbell only for stores of this interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Notifications and replies. Puts to symmetric memory do not wake the waiter.
    Control,
    /// Notifications, replies, and puts to the 8 bytes at this symmetric offset wake the waiter. The offset
    /// is a multiple of 8.
    Word(usize),
    /// All stores.
    Any,
}

/// The kind of a store. The notifier uses it to decide whether to wake the waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A notification or a reply.
    Control,
    /// A put: symmetric offset and length in bytes.
    Put(usize, usize),
}

impl Stored {
    /// Returns true if the notifier must execute a full barrier between this store and its check for an
    /// announcement, also on coherent windows. That is so for notifications and replies, because their waiters
    /// sleep until the doorbell and do not look for the store meanwhile.
    #[inline(always)]
    pub fn needs_barrier(self) -> bool {
        self == Stored::Control
    }
}

/// An announcement is one word: its low bits hold the interest, its high bits a counter that may wrap. This
/// is the number of low bits.
const INTEREST_BITS: u32 = 40;
const ANY: u64 = (1 << INTEREST_BITS) - 1;

impl Interest {
    /// Returns the stores that must wake a waiter for `width` bytes at a symmetric offset. These are the
    /// stores to the aligned 8-byte word that holds the bytes, or all stores if no single word holds them.
    pub fn word(offset: usize, width: usize) -> Self {
        if offset % 8 + width <= 8 { Self::Word(offset & !7) } else { Self::Any }
    }

    fn encode(self) -> u64 {
        match self {
            Interest::Control => 0,
            Interest::Word(offset) => (offset as u64 / 8 + 1).min(ANY),
            Interest::Any => ANY,
        }
    }

    fn with(self, other: Self) -> Self {
        match (self, other) {
            (Interest::Control, one) | (one, Interest::Control) => one,
            (one, two) if one == two => one,
            _ => Interest::Any,
        }
    }
}

/// Returns true if a store of kind `stored` may end the announced wait. The announcement can have any value,
/// because a peer may be hostile.
#[inline]
pub fn concerns(announcement: u64, stored: Stored) -> bool {
    match (announcement & ANY, stored) {
        (_, Stored::Control) | (ANY, _) => true,
        (0, Stored::Put(..)) => false,
        (unit, Stored::Put(offset, length)) => {
            let start = (unit - 1) * 8;
            (offset as u64) < start + 8 && start < (offset as u64).saturating_add(length as u64)
        }
    }
}

/// The notifier's state for one peer: the peer's last announcement that was answered by a doorbell.
#[derive(Debug, Default)]
pub struct Notifier {
    answered: u64,
}

impl Notifier {
    /// Returns the waiter's announcement if the notifier must ring the doorbell: the announcement is new and
    /// asks for this kind of store. Call this after the store and the barrier. Even if a hostile peer
    /// announces again and again, it gets at most one ring for each store.
    #[inline]
    pub fn must_ring<W: Word>(&mut self, announcement: &W, stored: Stored) -> Option<u64> {
        let now = announcement.load();
        if now == self.answered || !concerns(now, stored) {
            return None;
        }
        self.answered = now;
        Some(now)
    }
}

/// The waiter's state: the counter of announcements, and the interest of each sleeping thread.
#[derive(Debug, Default)]
pub struct Waiter {
    counter: u64,
    sleepers: Vec<Interest>,
}

impl Waiter {
    /// Adds a sleeping thread. Returns one announcement for all sleeping threads. The caller must write it to
    /// the memory of every peer that can end the wait.
    pub fn announce(&mut self, interest: Interest) -> u64 {
        self.counter += 1;
        self.sleepers.push(interest);
        let all = self.sleepers.iter().fold(Interest::Control, |all, one| all.with(*one));
        self.counter << INTEREST_BITS | all.encode()
    }

    /// Removes a thread from the list of sleeping threads after it has woken up. `interest` is the interest
    /// that the thread announced before its sleep.
    pub fn awake(&mut self, interest: Interest) {
        if let Some(index) = self.sleepers.iter().position(|one| *one == interest) {
            self.sleepers.swap_remove(index);
        }
    }

    /// Returns true if any thread sleeps until a word in this PE's own memory changes.
    pub fn sleeps_on_memory(&self) -> bool {
        self.sleepers.iter().any(|one| *one != Interest::Control)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    struct LoomWord<'a>(&'a AtomicU64);

    impl Word for LoomWord<'_> {
        fn load(&self) -> u64 {
            self.0.load(Ordering::Acquire)
        }
        fn store(&self, value: u64) {
            self.0.store(value, Ordering::Release)
        }
    }

    #[derive(Default)]
    struct Model {
        data: AtomicU64,
        announcement: AtomicU64,
        doorbell: AtomicU64,
    }

    /// Lets a notifier store twice and a waiter sleep twice. Checks that no wake-up is lost, and that there
    /// is at most one ring for each announcement. Tries all interleavings with at most three preemptions. The
    /// waiter always executes a full barrier. The notifier executes one if its stores of kind `stored` need it.
    fn model(interest: Interest, stored: Stored) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let shared = Arc::new(Model::default());
            let theirs = shared.clone();
            let sender = loom::thread::spawn(move || {
                let mut notifier = Notifier::default();
                let mut rings = 0;
                for value in 1..=2 {
                    theirs.data.store(value, Ordering::Release);
                    if stored.needs_barrier() {
                        fence(Ordering::SeqCst);
                    }
                    if notifier.must_ring(&LoomWord(&theirs.announcement), stored).is_some() {
                        theirs.doorbell.fetch_or(1, Ordering::SeqCst);
                        rings += 1;
                    }
                }
                rings
            });
            let mut waiter = Waiter::default();
            let mut seen = 0;
            let mut slept_on = None;
            for _ in 0..2 {
                LoomWord(&shared.announcement).store(waiter.announce(interest));
                fence(Ordering::SeqCst);
                let now = shared.data.load(Ordering::Acquire);
                if now == seen {
                    // A waiter sleeps here if no doorbell is pending. The model does not block: it records
                    // the value seen before the sleep and stops.
                    if shared.doorbell.fetch_and(0, Ordering::SeqCst) == 0 {
                        slept_on = Some(seen);
                        break;
                    }
                }
                waiter.awake(interest);
                seen = shared.data.load(Ordering::Acquire);
            }
            let rings = sender.join().unwrap();
            assert!(rings <= 2, "at most one ring for each announcement");
            if let Some(seen) = slept_on {
                // The waiter sleeps, and the sender has finished, so no other doorbell will ring. If the
                // value has changed since the sleep began, a doorbell must be pending.
                let newer = shared.data.load(Ordering::Acquire) != seen;
                assert!(!newer || shared.doorbell.load(Ordering::SeqCst) == 1, "lost wake-up at {seen}");
            }
        });
    }

    #[test]
    fn waits_sleep_shorter_after_a_lost_doorbell() {
        let (lost, usual) = (LostDoorbells::default(), Duration::from_millis(1));
        let first = |answer| lost.first_sleep(usual, answer);
        assert_eq!((first(false), first(true)), (usual, usual / SHORTER));
        lost.record(false, || false);
        assert_eq!(first(false), usual, "the event had not happened, so no doorbell was lost");
        lost.record(false, || true);
        for _ in 0..REMEMBER_FOR {
            assert_eq!(first(false), usual / SHORTER);
            lost.record(true, || unreachable!());
        }
        assert_eq!(first(false), usual, "forgotten after so many doorbells that arrived");
    }

    #[test]
    fn only_stores_of_interest_ring() {
        let rings = |interest: Interest, stored| {
            let mut waiter = Waiter::default();
            let announcement = AtomicWord(waiter.announce(interest).into());
            Notifier::default().must_ring(&announcement, stored).is_some()
        };
        let (put, word) = (Stored::Put(64, 100), |at| Interest::word(at, 4));
        assert!(rings(Interest::Any, put) && rings(Interest::Any, Stored::Control));
        assert!(!rings(Interest::Control, put) && rings(Interest::Control, Stored::Control));
        for (at, hit) in
            [(56, false), (60, false), (64, true), (160, true), (164, true), (168, false), (0, false)]
        {
            assert_eq!(rings(word(at), put), hit, "{at}");
        }
        assert!(
            rings(word(62), Stored::Put(0, 1)),
            "an interest in a word that crosses a boundary covers any store"
        );
        assert!(
            rings(Interest::Word(usize::MAX - 7), Stored::Put(0, 1)),
            "an interest that the announcement cannot encode covers any store"
        );
        assert!(!rings(word(64), Stored::Put(usize::MAX, usize::MAX)));
    }

    #[test]
    fn an_announcement_covers_all_sleeping_threads() {
        let mut waiter = Waiter::default();
        let covers = |announcement, at| concerns(announcement, Stored::Put(at, 8));
        let one = waiter.announce(Interest::Word(8));
        assert!(covers(one, 8) && !covers(one, 16));
        let also = waiter.announce(Interest::Control);
        assert!(also != one && covers(also, 8) && !covers(also, 16), "the first still sleeps");
        assert!(covers(waiter.announce(Interest::Word(16)), 24), "two words become any store");
        waiter.awake(Interest::Word(8));
        let left = waiter.announce(Interest::Control);
        assert!(covers(left, 16) && !covers(left, 8) && waiter.sleeps_on_memory());
        waiter.awake(Interest::Word(16));
        assert!(!waiter.sleeps_on_memory());
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
    fn loom_no_notification_is_lost() {
        model(Interest::Control, Stored::Control);
        model(Interest::Word(8), Stored::Control);
    }

    /// Shows why a waiter for a word must look at the word itself: its doorbell may be missing.
    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn loom_a_put_may_miss_the_announcement() {
        model(Interest::Word(8), Stored::Put(8, 8));
    }

    /// Checks that clearing the doorbell before reading the data loses no wake-up: if the doorbell rings
    /// while the data is read, it stays pending.
    #[test]
    fn loom_clear_before_scan() {
        loom::model(|| {
            let shared = Arc::new(Model::default());
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
