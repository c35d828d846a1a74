//! How long a wait polls before it sleeps, learned from earlier waits.
//!
//! A wake-up takes longer than most steps of a collective. PEs that sleep therefore delay each other: the
//! waits of the others grow, and they sleep, too. Polling a little longer ends this.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The usual time. It is about twice the cost of a wake-up.
const SHORT: Duration = Duration::from_micros(50);
/// The time after a wait that would have ended within it.
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

    /// Learns from a wait that polled for `polled` and then slept. `rest` is the time from its first sleep to
    /// its end. The next waits poll longer if this wait would then have needed no sleep.
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
