//! Predicts how long an operation takes, from the waits for earlier operations of its size.

use super::wait::Slept;
use std::time::Duration;

/// The expected duration of operations by size, and the lead. The lead is the time between a wait's wake-up
/// and the expected end of the operation.
///
/// A shorter measured duration replaces the expected one at once. A longer one was probably disturbed, so it
/// raises the expected one by an eighth of the difference.
///
/// A late wake-up lengthens the lead by half. An early wake-up shortens it by a 64th. Above 200 us it
/// shortens the lead by a 16th, because a late wake-up matters less there. If the lead leaves no time for a
/// sleep, waits only poll. Each such wait shortens the lead, but not below the usual overshoot of a sleep.
#[derive(Clone, Debug)]
pub struct ExpectedDurations {
    by_size: Vec<Entry>,
    overshoot_ns: u64,
}

/// The expected duration of one size class, and the lead: how long before the expected end a wait wakes up.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The expected duration in nanoseconds; 0 if no operation of this class was timed.
    expected_ns: u64,
    /// How long before the expected end a wait wakes up, in nanoseconds.
    lead_ns: u64,
}

impl Entry {
    fn sleep_ns(&self) -> Option<u64> {
        let sleep = self.expected_ns.checked_sub(self.lead_ns)?;
        // Sleep only under two conditions. The sleep must save more than entering and leaving the kernel
        // costs. The thread must then poll at most twice as long as it sleeps.
        (sleep >= SHORTEST_SLEEP_NS.max(self.lead_ns / 2)).then_some(sleep)
    }
}

/// The number of size classes per power of two.
const STEPS: usize = 4;
/// Above this duration, in nanoseconds, a late wake-up costs only a few percent of an operation.
const LONG_NS: u64 = 200_000;
/// The shortest sleep that saves more than entering and leaving the kernel costs.
const SHORTEST_SLEEP_NS: u64 = 15_000;
/// The lead is how long before an operation's expected end a wait wakes up. A wake-up before the operation's
/// end shortens the lead by one part in this many.
const SHORTEN: u64 = 64;
/// Replaces [`SHORTEN`] for operations above 200 us. Their lead shrinks by one part in 16. This is faster
/// than for others, because a late wake-up costs only a few percent of a long operation.
const SHORTEN_LONG: u64 = 16;

impl Default for ExpectedDurations {
    fn default() -> Self {
        // Linux's default timer slack of 50 us, plus 10 us for the wake-up.
        Self::with_overshoot(Duration::from_micros(60))
    }
}

impl ExpectedDurations {
    /// Creates an expectation that has recorded no durations yet. `overshoot` is how much longer than
    /// requested the thread's sleeps usually last.
    pub fn with_overshoot(overshoot: Duration) -> Self {
        Self { by_size: vec![Entry::default(); 64 * STEPS], overshoot_ns: overshoot.as_nanos() as u64 }
    }

    /// Records that an operation of `bytes` took `nanoseconds`.
    pub fn learn(&mut self, bytes: u64, nanoseconds: u64) {
        let overshoot = self.overshoot_ns;
        let entry = &mut self.by_size[Self::class(bytes)];
        entry.expected_ns = match entry.expected_ns {
            0 => {
                entry.lead_ns = nanoseconds / 64 + overshoot;
                nanoseconds
            }
            old if nanoseconds < old => nanoseconds,
            old => old + (nanoseconds - old) / 8,
        };
        if entry.sleep_ns().is_none() {
            entry.lead_ns = (entry.lead_ns - entry.lead_ns / SHORTEN).max(overshoot.min(entry.lead_ns));
        }
    }

    /// Records the timed sleep of a wait for an operation of `bytes` bytes. The lead is how long before the
    /// expected end a wait wakes up. It grows if the thread woke late, and shrinks otherwise. Updates the
    /// average overshoot of sleeps.
    pub fn slept(&mut self, bytes: u64, slept: &Slept) {
        let overshoot = slept.overshoot.as_nanos().min(1_000_000) as u64;
        self.overshoot_ns = (self.overshoot_ns * 7 + overshoot) / 8;
        let entry = &mut self.by_size[Self::class(bytes)];
        entry.lead_ns = if slept.late {
            (entry.lead_ns * 3 / 2 + 1_000).min(entry.expected_ns)
        } else {
            entry.lead_ns - entry.lead_ns / if entry.expected_ns > LONG_NS { SHORTEN_LONG } else { SHORTEN }
        };
    }

    /// Returns how long to sleep for an operation of `bytes` that begins now. Zero: poll at once.
    pub fn sleep(&self, bytes: u64) -> Duration {
        Duration::from_nanos(self.by_size[Self::class(bytes)].sleep_ns().unwrap_or(0))
    }

    /// Returns the expected duration of an operation of `bytes` bytes. Returns `None` if no operation of
    /// about this size has been timed.
    pub fn expected(&self, bytes: u64) -> Option<Duration> {
        match self.by_size[Self::class(bytes)].expected_ns {
            0 => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        }
    }

    fn class(bytes: u64) -> usize {
        let bytes = bytes | 1;
        let power = 63 - bytes.leading_zeros() as usize;
        let step = if power >= 2 { (bytes >> (power - 2)) as usize & (STEPS - 1) } else { 0 };
        power * STEPS + step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the outcome of a sleep that overshot by 5 us.
    fn slept(late: bool) -> Slept {
        let overshoot = Duration::from_micros(5);
        Slept { overshoot, took: overshoot, late }
    }

    #[test]
    fn short_operations_are_only_polled() {
        let mut expectation = ExpectedDurations::default();
        assert_eq!(expectation.sleep(4096), Duration::ZERO, "no duration is known yet");
        expectation.learn(4096, 5_000);
        assert_eq!(expectation.sleep(4096), Duration::ZERO);
    }

    #[test]
    fn sleeps_are_shorter_than_long_operations() {
        let mut expectation = ExpectedDurations::default();
        expectation.learn(64 << 20, 1_200_000);
        let sleep = expectation.sleep(64 << 20);
        assert!(sleep > Duration::from_micros(900) && sleep < Duration::from_micros(1_150), "{sleep:?}");
        expectation.learn(64 << 20, 600_000);
        assert!(expectation.sleep(64 << 20) < Duration::from_micros(550), "the expected time falls at once");
    }

    #[test]
    fn late_wake_ups_lengthen_the_lead_and_early_ones_shorten_it() {
        let mut expectation = ExpectedDurations::with_overshoot(Duration::from_micros(5));
        expectation.learn(4 << 20, 80_000);
        let first = expectation.sleep(4 << 20);
        expectation.slept(4 << 20, &slept(true));
        let cautious = expectation.sleep(4 << 20);
        assert!(cautious < first);
        (0..64).for_each(|_| expectation.slept(4 << 20, &slept(false)));
        assert!(expectation.sleep(4 << 20) > first);
        (0..64).for_each(|_| expectation.slept(4 << 20, &slept(true)));
        assert_eq!(expectation.sleep(4 << 20), Duration::ZERO, "a wait that is always late only polls");
        (0..200).for_each(|_| expectation.learn(4 << 20, 80_000));
        assert!(!expectation.sleep(4 << 20).is_zero(), "the lead shrinks until it sleeps again");
        assert_eq!(expectation.expected(5 << 20), None, "sizes that differ by a quarter are separate");
    }

    /// Simulates adaptive waits for operations of these durations in nanoseconds. Each sleep overshoots by 2
    /// to 8 us. Returns the bandwidth relative to the bandwidth of polling, and the share of time spent
    /// polling.
    fn simulated(durations: impl Iterator<Item = u64>) -> (f64, f64) {
        const BYTES: u64 = 1 << 20;
        let mut expectation = ExpectedDurations::with_overshoot(Duration::from_micros(10));
        let (mut ideal, mut total, mut polled) = (0, 0, 0);
        for (index, took) in durations.enumerate() {
            let sleep = expectation.sleep(BYTES).as_nanos() as u64;
            let woke = if sleep == 0 { 0 } else { sleep + 2_000 + index as u64 * 7_919 % 6_000 };
            if sleep > 0 {
                expectation.slept(BYTES, &Slept { late: woke >= took, ..slept(true) });
            }
            if woke < took {
                expectation.learn(BYTES, took);
            }
            ideal += took;
            total += took.max(woke);
            polled += took.saturating_sub(woke);
        }
        (ideal as f64 / total as f64, polled as f64 / total as f64)
    }

    #[test]
    fn adaptive_waits_keep_the_bandwidth_of_polling() {
        let steady = simulated((0..2000).map(|n| 400_000 + n * 104_729 % 20_000));
        assert!(steady.0 > 0.97 && steady.1 < 0.33, "{steady:?}");
        // Operations that take 56 us and 100 us alternate in groups of 25. Copies that sometimes fit the
        // cache behave like this.
        let phases = simulated((0..2000).map(|n| if n / 25 % 2 == 0 { 56_000 } else { 100_000 }));
        assert!(phases.0 > 0.97, "{phases:?}");
        let mixed = simulated((0..2000).map(|n: u64| if n * 7_919 % 10 < 5 { 56_000 } else { 100_000 }));
        assert!(mixed.0 > 0.97, "{mixed:?}");
    }
}
