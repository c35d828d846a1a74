//! Decides from earlier waits how long a wait polls before it sleeps.
//!
//! A wake-up takes longer than most steps of a collective. A PE that sleeps therefore delays the other PEs.
//! The other PEs then wait longer and also sleep, which delays the first PE. If PEs poll a little longer,
//! they do not sleep, and the delays end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a wait lets other PEs run before it sleeps, if PEs share processors. The event often happens
/// meanwhile, and a sleep costs the waiter and the notifier more than many of these system calls.
pub(super) const YIELDS: u32 = 32;

/// How long waits usually poll before they sleep. It is about twice the cost of a wake-up.
const SHORT: Duration = Duration::from_micros(50);
/// How long waits poll after a wait that has slept, but has ended within this time. If that wait had polled
/// this long, it would not have slept.
const LONG: Duration = Duration::from_millis(1);

/// The time for which waits poll before they sleep. All waits of a PE share this value.
#[derive(Debug, Default)]
pub(super) struct PollLimit {
    is_long: AtomicBool,
}

impl PollLimit {
    /// Returns how long the next wait polls before it sleeps.
    pub fn get(&self) -> Duration {
        if self.is_long.load(Ordering::Relaxed) { LONG } else { SHORT }
    }

    /// Records a wait that polled for `polled` and then slept. `rest` is the time from the first sleep to the
    /// end of the wait. If `polled` and `rest` together are at most [`LONG`], the next waits poll for
    /// [`LONG`] before they sleep.
    pub fn learn(&self, polled: Duration, rest: Duration) {
        self.is_long.store(polled + rest <= LONG, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_poll_longer_only_if_that_saves_the_sleep() {
        let limit = PollLimit::default();
        assert_eq!(limit.get(), SHORT);
        limit.learn(limit.get(), Duration::from_millis(20));
        assert_eq!(limit.get(), SHORT, "a long wait");
        limit.learn(limit.get(), Duration::from_micros(300));
        assert_eq!(limit.get(), LONG, "a short wait that slept");
        limit.learn(limit.get(), Duration::from_micros(300));
        assert_eq!(limit.get(), SHORT, "a wait that outlasted the long poll");
    }
}
