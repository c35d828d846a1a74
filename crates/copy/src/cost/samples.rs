//! Estimates the time of one transfer from repeated samples.
//!
//! Other work on the machine can only make a sample longer. The estimate therefore uses only samples near the minimum.
//! Sampling goes on until several samples are near it, or until a limit of samples or time.

use inlane_core::stats::Summary;
use std::time::Duration;

/// The least number of samples.
const LEAST: usize = 8;
/// The number of samples near the minimum that are enough.
const REPEATED: usize = 4;
/// A sample is near the minimum if it takes at most this many times as long.
const NEAR: f64 = 1.5;
/// Without enough samples near the minimum, sampling ends after this number of samples or after [`PATIENCE`].
const MOST: usize = 40;
const PATIENCE: Duration = Duration::from_millis(100);
/// A sample counts as disturbed if threads waited for processors for more than this share of its time.
const WAITED: f64 = 0.1;

/// A sample: how long a transfer took, and how long threads of this process waited for processors meanwhile.
#[derive(Clone, Copy, Debug)]
struct Sample {
    took: Duration,
    waited: Duration,
}

/// Samples of one transfer.
#[derive(Debug, Default)]
pub(super) struct Samples(Vec<Sample>);

impl Samples {
    pub(super) fn push(&mut self, took: Duration, waited: Duration) {
        self.0.push(Sample { took, waited });
    }

    /// Returns true if no further sample is necessary.
    pub(super) fn are_enough(&self) -> bool {
        let (count, near) = (self.0.len(), self.near_minimum().count());
        let total: Duration = self.0.iter().map(|sample| sample.took).sum();
        count >= LEAST && (near >= REPEATED || count >= MOST || total > PATIENCE)
    }

    /// Returns the median of the samples near the minimum, in nanoseconds.
    pub(super) fn time(&self) -> f64 {
        let times: Vec<f64> = self.near_minimum().map(|sample| sample.took.as_nanos() as f64).collect();
        Summary::of(&times).map_or(0.0, |summary| summary.median)
    }

    /// Returns true if most of the samples near the minimum include waiting for processors. The time may then be
    /// too long.
    pub(super) fn waited(&self) -> bool {
        let waited = |sample: &Sample| sample.waited.as_secs_f64() > WAITED * sample.took.as_secs_f64();
        2 * self.near_minimum().filter(waited).count() > self.near_minimum().count()
    }

    fn near_minimum(&self) -> impl Iterator<Item = Sample> {
        let minimum = self.0.iter().map(|sample| sample.took).min().unwrap_or_default();
        self.0.iter().copied().filter(move |sample| sample.took <= minimum.mul_f64(NEAR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(times: &[(u64, u64)]) -> Samples {
        let sample = |(took, waited): &(u64, u64)| Sample {
            took: Duration::from_micros(*took),
            waited: Duration::from_micros(*waited),
        };
        Samples(times.iter().map(sample).collect())
    }

    #[test]
    fn the_minimum_counts_once_it_was_repeated() {
        let mut found = samples(&[(10, 0), (4000, 3990), (4000, 3990), (11, 0), (8000, 7990), (4000, 3990)]);
        assert!(!found.are_enough(), "too few samples");
        found.0.extend(samples(&[(4000, 3990), (4000, 3990)]).0);
        assert!(!found.are_enough(), "the minimum was not repeated");
        found.0.extend(samples(&[(12, 0), (13, 0)]).0);
        assert!(found.are_enough());
        assert_eq!((found.time(), found.waited()), (11_500.0, false));
    }

    #[test]
    fn samples_that_all_waited_are_marked() {
        let found = samples(&[(4000, 3990); 8]);
        assert!(found.are_enough() && found.waited());
        assert!(samples(&[(9, 9); 40]).are_enough() && !samples(&[(9, 0); 40]).waited());
    }
}
