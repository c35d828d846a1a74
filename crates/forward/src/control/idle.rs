//! Polling threads without work: what they do, and how long they had none.

use inlane_core::clock::Clock;
use std::cell::Cell;
use std::sync::LazyLock;

/// What the calling thread did with its time so far, in raw readings of the clock; cores may disagree by a few.
struct Times {
    /// When its loop began.
    begun: Cell<u64>,
    /// It had nothing to do.
    idle: Rounds,
    /// Within its loop it waited for a port that takes nothing.
    refused: Rounds,
    /// How many [`Idle`] it has: the first is its loop's, those within are of waits in between.
    loops: Cell<u32>,
}

/// Rounds in which nothing was found: counted, and some of them timed.
struct Rounds {
    counted: Cell<u64>,
    timed: Cell<u64>,
    timed_ticks: Cell<u64>,
    /// Time that others had, which is no round's.
    away_ticks: Cell<u64>,
}

/// Made once: that asks the processor what its counter is good for, which takes long in a virtual machine.
static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::new);

thread_local! {
    static TIMES: Times = const {
        Times { begun: Cell::new(0), idle: Rounds::new(), refused: Rounds::new(), loops: Cell::new(0) }
    };
}

impl Rounds {
    const fn new() -> Self {
        Self {
            counted: Cell::new(0),
            timed: Cell::new(0),
            timed_ticks: Cell::new(0),
            away_ticks: Cell::new(0),
        }
    }

    fn add(to: &Cell<u64>, more: u64) {
        to.set(to.get() + more);
    }

    fn ticks(&self) -> u64 {
        let each = self.timed_ticks.get() as f64 / self.timed.get().max(1) as f64;
        self.away_ticks.get() + self.timed_ticks.get() + (self.counted.get() as f64 * each) as u64
    }

    fn clear(&self) {
        for cell in [&self.counted, &self.timed, &self.timed_ticks, &self.away_ticks] {
            cell.set(0);
        }
    }
}

impl Times {
    fn busy(&self) -> u64 {
        let begun = self.begun.get();
        if begun == 0 {
            return 0;
        }
        CLOCK.raw().saturating_sub(begun).saturating_sub(self.idle.ticks() + self.refused.ticks())
    }
}

/// How long the calling thread had something to do, and how long a port it sends to took nothing; raw differences.
pub(super) fn spent() -> (u64, u64) {
    TIMES.with(|times| (times.busy(), times.refused.ticks()))
}

/// What a polling thread does when there is nothing to do: spins at first, then lets others run, so that on a machine with
/// fewer cores than threads the work still gets done.
///
/// It counts that time: from the first of several rounds that found nothing to the last. What found something is none of it, however
/// long it took. A look at the clock each round would show in latencies: rounds are counted, and every 64th stretch of them is timed.
pub struct Idle {
    empty: u32,
    /// Each round of this stretch is timed.
    timed: bool,
    /// Others were let run in this stretch.
    away: bool,
    /// When the last round was, if one of these holds.
    last: u64,
    stretches: u32,
    /// A wait within a thread's loop.
    within: bool,
}

impl Default for Idle {
    fn default() -> Self {
        let within = TIMES.with(|times| {
            let loops = times.loops.get();
            times.loops.set(loops + 1);
            if loops == 0 {
                times.begun.set(CLOCK.raw());
                times.idle.clear();
                times.refused.clear();
            }
            loops > 0
        });
        Self { empty: 0, timed: true, away: false, last: 0, stretches: 0, within }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.busy();
        TIMES.with(|times| times.loops.set(times.loops.get() - 1));
    }
}

impl Idle {
    const SPINS: u32 = 512;
    /// One stretch of so many is timed.
    const TIMED: u32 = 64;
    /// No round takes so long: others ran.
    const AWAY_TICKS: u64 = 100_000;

    /// There was something.
    #[inline]
    pub fn busy(&mut self) {
        if self.empty > 0 {
            self.end();
        }
    }

    /// There was nothing.
    #[inline]
    pub fn wait(&mut self) {
        if self.empty < Self::SPINS {
            self.empty += 1;
            if self.timed {
                self.time();
            }
            std::hint::spin_loop();
        } else {
            self.let_others_run();
        }
    }

    /// Ends a stretch of rounds that found nothing.
    #[inline(never)]
    fn end(&mut self) {
        let untimed = if self.timed { 0 } else { u64::from(self.empty - 1) };
        let known = self.rounds(|rounds| {
            Rounds::add(&rounds.counted, untimed);
            rounds.timed.get() > 0
        });
        self.stretches = self.stretches.wrapping_add(1);
        // A stretch of one round tells nothing.
        self.timed = !known || self.stretches.is_multiple_of(Self::TIMED);
        (self.empty, self.away) = (0, false);
    }

    #[inline(never)]
    fn time(&mut self) {
        let now = CLOCK.raw();
        if self.empty > 1 {
            let took = now.saturating_sub(self.last);
            self.rounds(|rounds| {
                if took < Self::AWAY_TICKS {
                    Rounds::add(&rounds.timed, 1);
                    Rounds::add(&rounds.timed_ticks, took);
                } else {
                    Rounds::add(&rounds.away_ticks, took);
                }
            });
        }
        self.last = now;
    }

    #[inline(never)]
    fn let_others_run(&mut self) {
        let since = if self.away { self.last } else { CLOCK.raw() };
        std::thread::yield_now();
        (self.last, self.away) = (CLOCK.raw(), true);
        self.rounds(|rounds| Rounds::add(&rounds.away_ticks, self.last.saturating_sub(since)));
    }

    fn rounds<T>(&self, note: impl FnOnce(&Rounds) -> T) -> T {
        TIMES.with(|times| note(if self.within { &times.refused } else { &times.idle }))
    }

    /// There was nothing for the first time since there was something.
    #[inline]
    pub fn just_emptied(&self) -> bool {
        self.empty == 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Progress, TimeShares};
    use super::*;
    use std::time::{Duration, Instant};

    /// Rounds without work for so long.
    fn wait(idle: &mut Idle, milliseconds: u64) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(milliseconds) {
            idle.wait();
        }
    }

    fn work(milliseconds: u64) {
        std::thread::sleep(Duration::from_millis(milliseconds));
    }

    #[test]
    fn a_threads_time_is_told_apart() {
        let (progress, clock) = (Progress::default(), Clock::new());
        let begun = Instant::now();
        let thread = || {
            let mut idle = Idle::default();
            for _ in 0..2 {
                // What came of the round that found something is work, though it is said only behind it.
                wait(&mut idle, 20);
                work(40);
                idle.busy();
            }
            {
                let mut refused = Idle::default();
                wait(&mut refused, 60);
            }
            progress.received(1, 64);
            progress.fed();
        };
        std::thread::scope(|scope| scope.spawn(thread).join().unwrap());
        let took = begun.elapsed();
        let spent = progress.time_shares(&clock, took.as_nanos() as u64);
        let (busy, refused) = (took.mul_f64(spent.busy), took.mul_f64(spent.refused));
        assert!(busy >= Duration::from_millis(79), "{busy:?} of {took:?}");
        assert!((spent.feeding - spent.busy).abs() < 0.1, "{spent:?}");
        assert!(refused >= Duration::from_millis(40), "{refused:?} of {took:?}");
        assert!(took - busy - refused >= Duration::from_millis(25), "{busy:?} {refused:?} of {took:?}");
    }

    /// Stretches of a few rounds, of which most are counted only.
    #[test]
    fn rounds_are_as_long_as_those_that_were_timed() {
        let (progress, clock) = (Progress::default(), Clock::new());
        let spin = |microseconds| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(microseconds) {
                std::hint::spin_loop();
            }
        };
        let begun = Instant::now();
        let thread = || {
            let mut idle = Idle::default();
            for _ in 0..1000 {
                for _ in 0..11 {
                    idle.wait();
                    spin(5);
                }
                spin(20);
                idle.busy();
            }
            progress.received(1, 64);
        };
        std::thread::scope(|scope| scope.spawn(thread).join().unwrap());
        let took = begun.elapsed();
        let idle = took.mul_f64(1.0 - progress.time_shares(&clock, took.as_nanos() as u64).busy);
        // Ten pauses between eleven rounds, a thousand times.
        let expected = Duration::from_millis(40)..Duration::from_millis(80);
        assert!(expected.contains(&idle), "{idle:?} of {took:?}");
    }

    #[test]
    fn a_thread_without_a_loop_did_nothing() {
        let (progress, clock) = (Progress::default(), Clock::new());
        std::thread::scope(|scope| scope.spawn(|| progress.received(1, 64)).join().unwrap());
        assert_eq!(progress.time_shares(&clock, 1_000_000), TimeShares::default());
    }
}
