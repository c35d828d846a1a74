//! How long a wait polls before it sleeps, learned from earlier waits.
//!
//! A wake-up takes longer than most steps of a collective. A PE that sleeps therefore delays the other PEs.
//! Their waits become longer, so that they sleep, too, and delay the first PE. Polling a little longer breaks
//! this cycle.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long waits usually poll before they sleep. It is about twice the cost of a wake-up.
const SHORT: Duration = Duration::from_micros(50);
/// How long waits poll after a wait that slept but took less than this time in all. Polling this long would
/// have saved its sleep.
const LONG: Duration = Duration::from_millis(1);

/// The time for which waits poll before they sleep. All waits of a PE share it.
#[derive(Debug, Default)]
pub(super) struct PollLimit {
    is_long: AtomicBool,
}

impl PollLimit {
    /// Returns how long the next wait polls before it sleeps.
    pub fn get(&self) -> Duration {
        if self.is_long.load(Ordering::Relaxed) { LONG } else { SHORT }
    }

    /// Chooses the polling time of the next waits after a wait that polled for `polled` and then slept.
    /// `rest` is the time from its first sleep to its end. The next waits poll for [`LONG`] if the whole wait
    /// took at most that long.
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
