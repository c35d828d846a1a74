//! Checks with the model checker loom that no thread sleeps while bytes for it wait in a receive ring.

use super::*;

/// Two connections that a thread of the program watches.
struct Watched {
    asleep: Modelled,
    watched: [Modelled; 1],
    ready: Modelled,
    /// The number of connections whose bytes are in the pair.
    pairs: Mutex<usize>,
}

impl Watched {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            asleep: Modelled::new(0),
            watched: [Modelled::new(0)],
            ready: Modelled::new(0),
            pairs: Mutex::new(0),
        })
    }

    fn sleepers(&self) -> Sleepers<'_, Modelled> {
        Sleepers { asleep: &self.asleep, watched: &self.watched }
    }

    /// Adds bytes to the ring of slot `index`, and wakes a thread that sleeps, as the engine does. Returns true if the bytes went on to the pair.
    fn fill(&self, index: usize) -> bool {
        Word::set(&self.ready, 1 << index);
        let wakes = self.sleepers().claim_wake(index).is_some();
        *self.pairs.lock().unwrap() += usize::from(wakes);
        wakes
    }

    /// Returns the slots with bytes if the thread need not sleep. `None` if it sleeps, and then wakes up if a pair has bytes. If
    /// `looks` is false, does not look again before it sleeps, which is wrong.
    fn sleep(&self, looks: bool) -> Option<u64> {
        self.sleepers().fall_asleep(0, 3);
        let ready = Word::load(&self.ready);
        if looks && ready != 0 {
            self.sleepers().wake_up(0);
            return Some(ready);
        }
        None
    }
}

/// Two threads of the engine receive bytes for two connections while the program's thread falls asleep.
fn wakes(looks: bool) {
    model(3, move || {
        let watched = Watched::new();
        let other = {
            let watched = watched.clone();
            loom::thread::spawn(move || watched.fill(0))
        };
        let slept = {
            let watched = watched.clone();
            loom::thread::spawn(move || watched.sleep(looks))
        };
        let moved = watched.fill(1);
        let moved = usize::from(other.join().unwrap()) + usize::from(moved);
        let found = slept.join().unwrap();
        assert!(found.is_some() || moved > 0, "the thread sleeps");
        assert!(moved <= 1, "one move wakes the thread");
        watched.sleepers().wake_up(0);
        assert!(!watched.fill(0), "the thread does not sleep");
    });
}

#[test]
fn model_a_thread_that_sleeps_is_woken_once() {
    wakes(true);
}

#[test]
#[should_panic(expected = "the thread sleeps")]
fn model_finds_the_error_of_a_thread_that_does_not_look_again() {
    wakes(false);
}

#[test]
fn only_watched_slots_wake_a_thread() {
    let (asleep, watched) = (AtomicU64::new(0), [AtomicU64::new(0), AtomicU64::new(0)]);
    let sleepers = Sleepers { asleep: &asleep, watched: &watched };
    sleepers.fall_asleep(0, 1 << 5);
    sleepers.fall_asleep(1, 1 << 6 | 1 << 63);
    assert_eq!(sleepers.claim_wake(4), None);
    assert_eq!(sleepers.claim_wake(63), Some(1));
    assert_eq!(sleepers.claim_wake(6), None, "a thread is woken once");
    sleepers.return_wake(1);
    assert_eq!(sleepers.claim_wake(6), Some(1));
    assert_eq!((sleepers.claim_wake(5), asleep.load(Ordering::Relaxed)), (Some(0), 0));
    asleep.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(sleepers.claim_wake(4), None, "numbers that no thread has are ignored");
}
