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
pub enum Completion {
    /// Look until it is there.
    #[default]
    Poll,
    /// Sleep until woken.
    Interrupt,
    /// Sleep for most of the time expected, then look.
    Adaptive,
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Completion::Poll => "poll",
            Completion::Interrupt => "interrupt",
            Completion::Adaptive => "adaptive",
        })
    }
}

impl FromStr for Completion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "poll" => Ok(Completion::Poll),
            "interrupt" => Ok(Completion::Interrupt),
            "adaptive" => Ok(Completion::Adaptive),
            _ => Err(Error::Invalid {
                what: format!("completion '{text}'"),
                why: "choose poll, interrupt or adaptive".into(),
            }),
        }
    }
}

/// What adaptive completion has learnt: the expected time by size, and what a sleep overshoots.
///
/// Times are kept per power of two of the size as the smallest of recent runs: what a wait can sleep through must be
/// what the operation takes when nothing disturbs it.
#[derive(Clone, Debug)]
pub struct Expectation {
    by_size: [u64; 64],
    overshoot_ns: u64,
}

impl Default for Expectation {
    fn default() -> Self {
        // 60 us: what a timed sleep of Linux overshoots with its default timer slack of 50 us.
        Self { by_size: [0; 64], overshoot_ns: 60_000 }
    }
}

impl Expectation {
    /// Notes that an operation of `bytes` took `nanoseconds`.
    pub fn learn(&mut self, bytes: u64, nanoseconds: u64) {
        let entry = &mut self.by_size[Self::class(bytes)];
        *entry = match *entry {
            0 => nanoseconds,
            // Falls at once, rises slowly: an eighth of the way a run.
            old if nanoseconds < old => nanoseconds,
            old => old + (nanoseconds - old) / 8,
        };
    }

    /// Notes that a sleep lasted `late` longer than asked.
    pub fn learn_overshoot(&mut self, late: Duration) {
        let late = late.as_nanos().min(1_000_000) as u64;
        self.overshoot_ns = (self.overshoot_ns * 7 + late) / 8;
    }

    /// How long to sleep before polling for an operation of `bytes` that began now; zero means poll at once.
    pub fn sleep(&self, bytes: u64) -> Duration {
        let expected = self.by_size[Self::class(bytes)];
        // A sleep must be worth its own cost twice over, and leave a margin of 1/16 for operations that end early.
        let margin = expected / 16 + self.overshoot_ns;
        match expected.checked_sub(margin) {
            Some(sleep) if sleep > 2 * self.overshoot_ns => Duration::from_nanos(sleep),
            _ => Duration::ZERO,
        }
    }

    /// The time expected for `bytes`, if any was seen.
    pub fn expected(&self, bytes: u64) -> Option<Duration> {
        match self.by_size[Self::class(bytes)] {
            0 => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        }
    }

    fn class(bytes: u64) -> usize {
        63 - (bytes | 1).leading_zeros() as usize
    }
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
    fn names_round_trip() {
        for completion in [Completion::Poll, Completion::Interrupt, Completion::Adaptive] {
            assert_eq!(completion.to_string().parse::<Completion>().unwrap(), completion);
        }
        assert!("spin".parse::<Completion>().is_err());
    }
}
