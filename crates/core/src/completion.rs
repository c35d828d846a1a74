//! How the end of an asynchronous operation is learnt: by polling, by an interrupt, or by both.
//!
//! * `poll` looks again and again: the least latency, a core all the while;
//! * `interrupt` sleeps until the device wakes the thread: the wake-up's latency, no core;
//! * `adaptive` expects the time that operations of this size took, sleeps most of it, then polls; below the cost of a
//!   wake-up it only polls.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::Error;

/// How the end is learnt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CompletionMode {
    /// Look until it is there.
    #[default]
    Poll,
    /// Sleep until woken.
    Interrupt,
    /// Sleep for most of the time expected, then look.
    Adaptive,
}

impl fmt::Display for CompletionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CompletionMode::Poll => "poll",
            CompletionMode::Interrupt => "interrupt",
            CompletionMode::Adaptive => "adaptive",
        })
    }
}

impl FromStr for CompletionMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "poll" => Ok(CompletionMode::Poll),
            "interrupt" => Ok(CompletionMode::Interrupt),
            "adaptive" => Ok(CompletionMode::Adaptive),
            _ => Err(Error::Invalid {
                what: format!("completion '{text}'"),
                why: "choose poll, interrupt or adaptive".into(),
            }),
        }
    }
}

/// What adaptive completion has learnt: the expected time by size, and how long before it to be awake.
///
/// The expected time is the smallest of recent runs: what the operation takes when nothing disturbs it. The lead is
/// steered: a wake-up that came after the end lengthens it by half, one that came before shortens it by a 64th, so that it
/// settles where about one wake-up in 27 is late, whatever the system's timers cost. Where it has become too long to sleep at
/// all, it shrinks by and by to what sleeps overshoot by, for another try. Of a long operation a late wake-up costs little, and one
/// in seven may be late.
#[derive(Clone, Debug)]
pub struct Expectation {
    by_size: Vec<Learnt>,
    overshoot_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Learnt {
    expected_ns: u64,
    lead_ns: u64,
}

impl Learnt {
    fn sleep_ns(&self) -> Option<u64> {
        let sleep = self.expected_ns.checked_sub(self.lead_ns)?;
        // It must be worth its own cost: longer than what it leaves to polling, or at least a good part of it.
        (sleep >= SHORTEST_SLEEP_NS.max(self.lead_ns / 2)).then_some(sleep)
    }
}

/// Steps between two powers of two that are told apart.
const STEPS: usize = 4;
/// From here on a wake-up that is late by what a timer overshoots costs a few hundredths.
const LONG_NS: u64 = 200_000;
/// A sleep shorter than this costs more than it saves: entering and leaving the kernel is a good part of it.
const SHORTEST_SLEEP_NS: u64 = 15_000;
/// A lead that was long enough becomes shorter by this part of it.
const SHORTEN: u64 = 64;
/// The same of a long operation.
const SHORTEN_LONG: u64 = 16;

impl Default for Expectation {
    fn default() -> Self {
        // 60 us: what a timed sleep of Linux overshoots with its default timer slack of 50 us.
        Self::with_overshoot(Duration::from_micros(60))
    }
}

impl Expectation {
    /// One for a system whose sleeps are known to last this much longer than asked.
    pub fn with_overshoot(overshoot: Duration) -> Self {
        Self { by_size: vec![Learnt::default(); 64 * STEPS], overshoot_ns: overshoot.as_nanos() as u64 }
    }

    /// Notes that an operation of `bytes` took `nanoseconds`.
    pub fn learn(&mut self, bytes: u64, nanoseconds: u64) {
        let overshoot = self.overshoot_ns;
        let entry = &mut self.by_size[Self::class(bytes)];
        entry.expected_ns = match entry.expected_ns {
            0 => {
                entry.lead_ns = nanoseconds / 64 + overshoot;
                nanoseconds
            }
            // Falls at once, rises slowly: an eighth of the way a run.
            old if nanoseconds < old => nanoseconds,
            old => old + (nanoseconds - old) / 8,
        };
        if entry.sleep_ns().is_none() {
            entry.lead_ns = (entry.lead_ns - entry.lead_ns / SHORTEN).max(overshoot.min(entry.lead_ns));
        }
    }

    /// Notes that a sleep lasted `late` longer than asked.
    pub fn learn_overshoot(&mut self, late: Duration) {
        let late = late.as_nanos().min(1_000_000) as u64;
        self.overshoot_ns = (self.overshoot_ns * 7 + late) / 8;
    }

    /// Notes how a wait for `bytes` that slept found the operation: ended already (`late`), or still running.
    pub fn woke(&mut self, bytes: u64, late: bool) {
        let entry = &mut self.by_size[Self::class(bytes)];
        entry.lead_ns = if late {
            (entry.lead_ns * 3 / 2 + 1_000).min(entry.expected_ns)
        } else {
            entry.lead_ns - entry.lead_ns / if entry.expected_ns > LONG_NS { SHORTEN_LONG } else { SHORTEN }
        };
    }

    /// How long to sleep before polling for an operation of `bytes` that began now; zero means poll at once.
    pub fn sleep(&self, bytes: u64) -> Duration {
        Duration::from_nanos(self.by_size[Self::class(bytes)].sleep_ns().unwrap_or(0))
    }

    /// The time expected for `bytes`, if any was seen.
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

/// Sleeps for `time`, as precisely as the system lets a thread (timer slack of 1 ns instead of Linux's 50 us).
pub fn sleep_precisely(time: Duration) {
    #[cfg(target_os = "linux")]
    {
        thread_local! { static PRECISE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) }; }
        PRECISE.with(|precise| {
            if !precise.replace(true) {
                // SAFETY: sets a property of the calling thread; no memory is involved.
                unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
            }
        });
    }
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_operations_are_polled() {
        let mut expectation = Expectation::default();
        assert_eq!(expectation.sleep(4096), Duration::ZERO, "nothing learnt yet");
        expectation.learn(4096, 5_000);
        assert_eq!(expectation.sleep(4096), Duration::ZERO);
    }

    #[test]
    fn long_operations_are_slept_through_but_not_over() {
        let mut expectation = Expectation::default();
        expectation.learn(64 << 20, 1_200_000);
        let sleep = expectation.sleep(64 << 20);
        assert!(sleep > Duration::from_micros(900) && sleep < Duration::from_micros(1_150), "{sleep:?}");
        expectation.learn(64 << 20, 600_000);
        assert!(expectation.sleep(64 << 20) < Duration::from_micros(550), "falls at once");
    }

    #[test]
    fn late_wake_ups_lengthen_the_lead_and_early_ones_shorten_it() {
        let mut expectation = Expectation::with_overshoot(Duration::from_micros(5));
        expectation.learn(4 << 20, 80_000);
        let first = expectation.sleep(4 << 20);
        expectation.woke(4 << 20, true);
        let cautious = expectation.sleep(4 << 20);
        assert!(cautious < first);
        (0..64).for_each(|_| expectation.woke(4 << 20, false));
        assert!(expectation.sleep(4 << 20) > first);
        (0..64).for_each(|_| expectation.woke(4 << 20, true));
        assert_eq!(expectation.sleep(4 << 20), Duration::ZERO, "always late: polls");
        (0..200).for_each(|_| expectation.learn(4 << 20, 80_000));
        assert!(!expectation.sleep(4 << 20).is_zero(), "and tries again in the end");
        assert_eq!(expectation.expected(5 << 20), None, "sizes a quarter apart are learnt apart");
    }

    /// Operations of these durations, each slept for and polled for as the expectation says, in sleeps that overshoot by up
    /// to 8 us: the share of a polling wait's bandwidth, and the share of the time spent polling.
    fn waited(durations: impl Iterator<Item = u64>) -> (f64, f64) {
        const BYTES: u64 = 1 << 20;
        let mut expectation = Expectation::with_overshoot(Duration::from_micros(10));
        let (mut ideal, mut total, mut polled) = (0, 0, 0);
        for (index, took) in durations.enumerate() {
            let sleep = expectation.sleep(BYTES).as_nanos() as u64;
            let woke = if sleep == 0 { 0 } else { sleep + 2_000 + index as u64 * 7_919 % 6_000 };
            if sleep > 0 {
                expectation.woke(BYTES, woke >= took);
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
    fn adaptive_waits_cost_little_bandwidth_and_little_time() {
        let steady = waited((0..2000).map(|n| 400_000 + n * 104_729 % 20_000));
        assert!(steady.0 > 0.97 && steady.1 < 0.33, "{steady:?}");
        // Two speeds by turns, as where a copy just fits a cache or just does not.
        let phases = waited((0..2000).map(|n| if n / 25 % 2 == 0 { 56_000 } else { 100_000 }));
        assert!(phases.0 > 0.97, "{phases:?}");
        let mixed = waited((0..2000).map(|n: u64| if n * 7_919 % 10 < 5 { 56_000 } else { 100_000 }));
        assert!(mixed.0 > 0.97, "{mixed:?}");
    }

    #[test]
    fn names_round_trip() {
        for completion in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
            assert_eq!(completion.to_string().parse::<CompletionMode>().unwrap(), completion);
        }
        assert!("spin".parse::<CompletionMode>().is_err());
    }
}
