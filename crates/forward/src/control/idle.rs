//! Waits in polling loops, and measures how long a thread had no work.
//!
//! A loop calls [`Idle::wait`] in each round without work, and [`Idle::found_work`] in each round with work.
//! Consecutive rounds without work are an idle period, from the first of these rounds to the last. All other
//! time counts as work.
//!
//! Only every 64th idle period is timed, because reading the clock in each round would increase latencies.

use inlane_core::clock::Clock;
use inlane_core::load::Meter;
use std::cell::Cell;
use std::sync::LazyLock;

/// How one thread spent its time, in ticks of the raw clock.
struct Times {
    /// The clock's reading when the thread's polling loop began; 0 if the thread has no polling loop.
    begun: Cell<u64>,
    /// Rounds without work.
    idle: Rounds,
    /// Rounds in which the polling loop waited because a port accepted no packets.
    refused: Rounds,
    /// Rounds without work in which a device had all that it can have in flight.
    device: Rounds,
    /// The number of [`Idle`] values that exist on this thread. The first measures the thread's polling loop,
    /// in `idle`. Each further one measures a wait inside the loop, in `refused`.
    loops: Cell<u32>,
}

/// Counts rounds without work. Some of these rounds are timed, and their times are added up.
struct Rounds {
    untimed: Cell<u64>,
    timed: Cell<u64>,
    timed_ticks: Cell<u64>,
    /// The total duration, in clock ticks, of the rounds in which this thread yielded the processor or was
    /// preempted.
    yielded_ticks: Cell<u64>,
}

/// The clock. All threads use this one, because creating a clock examines the processor's counter. In a
/// virtual machine, that takes long.
static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::new);

thread_local! {
    static TIMES: Times = const {
        Times { begun: Cell::new(0), idle: Rounds::new(), refused: Rounds::new(), device: Rounds::new(), loops: Cell::new(0) }
    };
}

#[cfg(test)]
thread_local! {
    /// The time that tests set; 0 to read the real clock.
    static TEST_NOW: Cell<u64> = const { Cell::new(0) };
}

/// Reads the clock.
#[inline]
fn now() -> u64 {
    #[cfg(test)]
    if TEST_NOW.get() != 0 {
        return TEST_NOW.get();
    }
    CLOCK.raw()
}

impl Rounds {
    const fn new() -> Self {
        Self {
            untimed: Cell::new(0),
            timed: Cell::new(0),
            timed_ticks: Cell::new(0),
            yielded_ticks: Cell::new(0),
        }
    }

    fn add(to: &Cell<u64>, more: u64) {
        to.set(to.get() + more);
    }

    /// Returns how long all rounds took, in clock ticks. An untimed round counts as the mean of the timed
    /// rounds.
    fn ticks(&self) -> u64 {
        let mean = self.timed_ticks.get() as f64 / self.timed.get().max(1) as f64;
        self.yielded_ticks.get() + self.timed_ticks.get() + (self.untimed.get() as f64 * mean) as u64
    }

    fn clear(&self) {
        for cell in [&self.untimed, &self.timed, &self.timed_ticks, &self.yielded_ticks] {
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
        let waits = self.idle.ticks() + self.refused.ticks() + self.device.ticks();
        now().saturating_sub(begun).saturating_sub(waits)
    }
}

/// Publishes how long the calling thread had work, and how long it waited for a full port and for a device.
pub(crate) fn publish_times(meter: &Meter) {
    let (busy, refused) = spent();
    // The estimate of the waits can exceed the time that has passed, but 0 would mean that the time was not measured.
    let least = u64::from(TIMES.with(|times| times.begun.get()) != 0);
    meter.set_times(CLOCK.between_ns(0, busy).max(least), CLOCK.between_ns(0, refused));
    meter.set_device_time(CLOCK.between_ns(0, TIMES.with(|times| times.device.ticks())));
}

/// Returns two times of the calling thread, in ticks of the raw clock: how long it had work, and how long it
/// waited for a full port.
fn spent() -> (u64, u64) {
    TIMES.with(|times| (times.busy(), times.refused.ticks()))
}

/// Waits in a polling loop, and measures the time without work. The first 512 rounds without work spin. Later
/// ones yield the processor to other threads.
pub struct Idle {
    /// The number of rounds without work since the last round with work, at most [`Idle::SPINS`].
    rounds: u32,
    /// True if [`Idle::wait`] measures the current idle period with the clock. After the first measured
    /// period, only one period in 64 is measured, because reading the clock in each round would increase
    /// latencies.
    timed: bool,
    /// True if this thread has yielded the processor since the last round with work.
    yielded: bool,
    /// The clock reading at the last round that was timed or yielded the processor, in ticks.
    last: u64,
    stretches: u32,
    /// True if the thread waits for a device in the current idle period.
    device: bool,
    /// True if this `Idle` measures a wait for a port inside the thread's polling loop. False if this `Idle`
    /// measures the polling loop itself.
    within: bool,
}

impl Default for Idle {
    fn default() -> Self {
        let within = TIMES.with(|times| {
            let loops = times.loops.get();
            times.loops.set(loops + 1);
            if loops == 0 {
                times.begun.set(now());
                times.idle.clear();
                times.refused.clear();
                times.device.clear();
            }
            loops > 0
        });
        Self { rounds: 0, timed: true, yielded: false, last: 0, stretches: 0, device: false, within }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.found_work();
        TIMES.with(|times| times.loops.set(times.loops.get() - 1));
    }
}

impl Idle {
    const SPINS: u32 = 512;
    /// One of this many idle periods (consecutive rounds without work) is timed.
    const TIMED: u32 = 64;
    /// If a round takes at least this many ticks of the raw clock, it counts as interrupted by other threads.
    const INTERRUPTED_TICKS: u64 = 100_000;

    /// Ends the current idle period. Call it in each round that found work.
    #[inline]
    pub fn found_work(&mut self) {
        if self.rounds > 0 {
            self.end();
        }
    }

    /// Tells whether the rounds that follow wait for a device that has all it can have in flight. Only work changes that,
    /// so call it with the same value for all rounds of an idle period.
    #[inline]
    pub fn set_device(&mut self, device: bool) {
        if device != self.device {
            self.device = device;
            // The duration of a round of this kind may be unknown.
            self.timed |= self.with_rounds(|rounds| rounds.timed.get() == 0);
        }
    }

    /// Spins once, or yields the processor after 512 idle rounds. Call it in each round that found no work.
    #[inline]
    pub fn wait(&mut self) {
        if self.rounds < Self::SPINS {
            self.rounds += 1;
            if self.timed {
                self.time();
            }
            std::hint::spin_loop();
        } else {
            self.yield_processor();
        }
    }

    #[inline(never)]
    fn end(&mut self) {
        let untimed = if self.timed { 0 } else { u64::from(self.rounds - 1) };
        let known = self.with_rounds(|rounds| {
            Rounds::add(&rounds.untimed, untimed);
            rounds.timed.get() > 0
        });
        self.stretches = self.stretches.wrapping_add(1);
        // Only an idle period with at least two rounds can be timed. The duration of a round is unknown until
        // a period has been timed, so time every period until then. Afterwards, time one in [`Idle::TIMED`]
        // periods.
        self.timed = !known || self.stretches.is_multiple_of(Self::TIMED);
        (self.rounds, self.yielded) = (0, false);
    }

    #[inline(never)]
    fn time(&mut self) {
        let now = now();
        if self.rounds > 1 {
            let took = now.saturating_sub(self.last);
            self.with_rounds(|rounds| {
                if took < Self::INTERRUPTED_TICKS {
                    Rounds::add(&rounds.timed, 1);
                    Rounds::add(&rounds.timed_ticks, took);
                } else {
                    Rounds::add(&rounds.yielded_ticks, took);
                }
            });
        }
        self.last = now;
    }

    #[inline(never)]
    fn yield_processor(&mut self) {
        let since = if self.yielded { self.last } else { now() };
        std::thread::yield_now();
        (self.last, self.yielded) = (now(), true);
        self.with_rounds(|rounds| Rounds::add(&rounds.yielded_ticks, self.last.saturating_sub(since)));
    }

    fn with_rounds<T>(&self, change: impl FnOnce(&Rounds) -> T) -> T {
        TIMES.with(|times| {
            change(match (self.within, self.device) {
                (true, _) => &times.refused,
                (false, true) => &times.device,
                (false, false) => &times.idle,
            })
        })
    }

    /// Returns true if the thread has had no work for so long that it yields the processor in each round.
    #[inline]
    pub fn yields(&self) -> bool {
        self.yielded
    }

    /// Returns true in the first round without work after a round with work. Use it to flush buffers once.
    #[inline]
    pub fn is_first_round(&self) -> bool {
        self.rounds == 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::TimeShares;
    use super::*;
    use inlane_core::load::Counts;

    /// Runs `thread` on a new thread, where the thread-local `TIMES` is fresh. The test clock begins at 1000 ticks.
    fn on_a_thread(thread: impl FnOnce() + Send) {
        let thread = || {
            TEST_NOW.set(1000);
            thread();
        };
        std::thread::scope(|scope| scope.spawn(thread).join().unwrap());
    }

    fn pass(ticks: u64) {
        TEST_NOW.set(TEST_NOW.get() + ticks);
    }

    /// Simulates `rounds` rounds without work. The test clock advances by `ticks` ticks between two rounds.
    fn wait(idle: &mut Idle, rounds: u32, ticks: u64) {
        for round in 0..rounds {
            if round > 0 {
                pass(ticks);
            }
            idle.wait();
        }
    }

    #[test]
    fn work_and_waits_are_told_apart() {
        on_a_thread(|| {
            let mut idle = Idle::default();
            for _ in 0..2 {
                wait(&mut idle, 11, 20);
                // These 400 ticks follow the idle period's last round, so they count as work.
                pass(400);
                idle.found_work();
            }
            assert_eq!(spent(), (800, 0), "two stretches of 200 ticks are idle");
            {
                let mut refused = Idle::default();
                wait(&mut refused, 7, 100);
                pass(50);
            }
            assert_eq!(spent(), (850, 600), "a wait within the loop is for a port");
        });
    }

    #[test]
    fn waits_for_a_device_are_neither_idle_nor_work() {
        on_a_thread(|| {
            let mut idle = Idle::default();
            idle.set_device(true);
            wait(&mut idle, 11, 20);
            pass(400);
            idle.found_work();
            idle.set_device(false);
            wait(&mut idle, 11, 30);
            pass(100);
            idle.found_work();
            assert_eq!(spent(), (500, 0));
            assert_eq!(TIMES.with(|times| (times.device.ticks(), times.idle.ticks())), (200, 300));
        });
    }

    #[test]
    fn untimed_rounds_count_with_the_mean_of_timed_ones() {
        on_a_thread(|| {
            let mut idle = Idle::default();
            for _ in 0..1000 {
                wait(&mut idle, 11, 5);
                pass(20);
                idle.found_work();
            }
            assert_eq!(
                spent(),
                (20_000, 0),
                "a thousand times: ten pauses of 5 ticks, then 20 ticks of work"
            );
        });
    }

    #[test]
    fn interrupted_and_yielded_rounds_do_not_count_as_typical() {
        on_a_thread(|| {
            let mut idle = Idle::default();
            wait(&mut idle, 2, 10);
            // Let this round take a million ticks, as if another thread had interrupted it.
            pass(1_000_000);
            idle.wait();
            idle.found_work();
            wait(&mut idle, 3, 10);
            idle.found_work();
            assert_eq!(spent().0, 0, "everything was idle time");
            let mean = TIMES.with(|times| times.idle.timed_ticks.get() / times.idle.timed.get());
            assert_eq!(mean, 10, "the interruption is not part of the mean");
            // Rounds after the 512th yield the processor. They must count as idle, too.
            wait(&mut idle, 600, 10);
            idle.found_work();
            assert!(spent().0 <= 10, "{:?}: at most the round before the first yield is missing", spent());
        });
    }

    #[test]
    fn a_thread_without_a_loop_has_no_account() {
        on_a_thread(|| assert_eq!(spent(), (0, 0)));
        let meter = Meter::default();
        std::thread::scope(|scope| scope.spawn(|| publish_times(&meter)).join().unwrap());
        assert_eq!(meter.read(), Counts::default());
    }

    #[test]
    fn shares_are_of_the_run() {
        let meter = Meter::default();
        let ticks = 1u64 << 40;
        let second = (1e9 * ticks as f64 / CLOCK.between_ns(0, ticks) as f64) as u64;
        on_a_thread(|| {
            let mut idle = Idle::default();
            pass(second / 2);
            // A round of a quarter of a second is very long, so it counts as interrupted by other threads.
            // Interrupted rounds are idle time.
            wait(&mut idle, 2, second / 4);
            idle.found_work();
            publish_times(&meter);
        });
        let shares = TimeShares::of(meter.read(), Some(meter.read()), 1_000_000_000);
        assert!((shares.busy - 0.5).abs() < 1e-6 && shares.feeding == shares.busy, "{shares:?}");
        assert_eq!(shares.refused, 0.0);
    }
}
