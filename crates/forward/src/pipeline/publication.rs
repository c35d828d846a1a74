//! How often a pipeline's thread publishes its counters.

use inlane_core::clock::Clock;

/// The most bursts between two publications.
const MOST: u32 = 64;
/// Between two publications should pass at least this time. Publishing more often would slow fast pipelines.
const SHORT_NS: u64 = 1_000_000;
/// Between two publications should pass at most this time. A port that takes few packets, or blocks in system calls, would
/// look as if it stood still.
const LONG_NS: u64 = 10_000_000;

/// Counts bursts until the next publication. Adapts their number to the time that they take.
pub(super) struct Publication {
    left: u32,
    every: u32,
    last: u64,
}

impl Publication {
    pub fn new() -> Self {
        Self { left: MOST, every: MOST, last: 0 }
    }

    /// Counts a burst. Returns true if the counters must be published now: call [`Publication::done`] then.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// Begins the count of bursts until the next publication.
    pub fn done(&mut self, clock: &Clock) {
        let now = clock.raw();
        let passed = if self.last == 0 { LONG_NS } else { clock.between_ns(self.last, now) };
        self.last = now;
        self.adapt(passed);
    }

    fn adapt(&mut self, passed_ns: u64) {
        self.every = match passed_ns {
            passed if passed > LONG_NS => (self.every / 8).max(1),
            passed if passed < SHORT_NS => (self.every * 2).min(MOST),
            _ => self.every,
        };
        self.left = self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts bursts until a publication is due, and publishes after `passed_ns`.
    fn next(publication: &mut Publication, passed_ns: u64) -> u32 {
        let bursts = (1..).find(|_| publication.is_due()).unwrap();
        publication.adapt(passed_ns);
        bursts
    }

    #[test]
    fn slow_bursts_are_published_more_often() {
        let mut publication = Publication::new();
        assert_eq!(next(&mut publication, 100_000), 64);
        let slow: Vec<u32> = (0..4).map(|_| next(&mut publication, 50_000_000)).collect();
        assert_eq!(slow, [64, 8, 1, 1]);
        assert_eq!(next(&mut publication, 5_000_000), 1, "neither slow nor fast");
        let fast: Vec<u32> = (0..9).map(|_| next(&mut publication, 500)).collect();
        assert_eq!(fast, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }
}
