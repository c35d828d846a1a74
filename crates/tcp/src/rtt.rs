//! Round-trip time and retransmission timeout (RFC 6298), and the windowed minimum RTT.

use crate::SECOND;

/// The window of the minimum RTT, in nanoseconds. The minimum covers the current and the previous window. A
/// sample therefore counts for one to two windows.
const MIN_RTT_WINDOW: u64 = 10 * SECOND;
/// The clock granularity that RFC 6298 calls G.
const GRANULARITY: u64 = 1_000_000;

/// The estimator of a connection. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Rtt {
    srtt: u64,
    rttvar: u64,
    rto: u64,
    min: u64,
    previous_min: u64,
    window_start: u64,
}

impl Rtt {
    /// Creates an estimator without samples.
    pub fn new(initial_rto: u64) -> Self {
        Self { srtt: 0, rttvar: 0, rto: initial_rto, min: u64::MAX, previous_min: u64::MAX, window_start: 0 }
    }

    /// Adds a sample.
    pub fn sample(&mut self, now: u64, rtt: u64, min_rto: u64, max_rto: u64) {
        let rtt = rtt.max(1);
        if self.srtt == 0 {
            self.srtt = rtt;
            self.rttvar = rtt / 2;
        } else {
            self.rttvar = self.rttvar - self.rttvar / 4 + self.srtt.abs_diff(rtt) / 4;
            self.srtt = self.srtt - self.srtt / 8 + rtt / 8;
        }
        self.rto = (self.srtt + GRANULARITY.max(4 * self.rttvar)).clamp(min_rto, max_rto);
        self.sample_min(now, rtt);
    }

    /// Adds a sample to the minimum RTT only, not to the smoothed RTT.
    pub fn sample_min(&mut self, now: u64, rtt: u64) {
        if now.saturating_sub(self.window_start) > MIN_RTT_WINDOW {
            self.previous_min = self.min;
            self.min = u64::MAX;
            self.window_start = now;
        }
        self.min = self.min.min(rtt.max(1));
    }

    /// Returns the smoothed RTT, or `None` before the first sample.
    pub fn smoothed(&self) -> Option<u64> {
        (self.srtt > 0).then_some(self.srtt)
    }

    /// Returns the RTT's variation.
    pub fn variation(&self) -> u64 {
        self.rttvar
    }

    /// Returns the least RTT of the last 10 to 20 seconds, or `None` before the first sample.
    pub fn minimum(&self) -> Option<u64> {
        let min = self.min.min(self.previous_min);
        (min != u64::MAX).then_some(min)
    }

    /// Returns the retransmission timeout without backoff, in nanoseconds.
    pub fn timeout(&self) -> u64 {
        self.rto
    }

    /// Sets the retransmission timeout, in nanoseconds, that holds until the next RTT sample (RFC 6298, rule
    /// 5.7).
    pub fn set_timeout(&mut self, rto: u64) {
        self.rto = rto;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    #[test]
    fn rfc6298_first_and_later_samples() {
        let mut rtt = Rtt::new(SECOND);
        assert_eq!((rtt.smoothed(), rtt.timeout()), (None, SECOND));
        rtt.sample(0, 800 * MILLISECOND, 1, 60 * SECOND);
        assert_eq!(rtt.smoothed(), Some(800 * MILLISECOND));
        assert_eq!(rtt.variation(), 400 * MILLISECOND);
        assert_eq!(rtt.timeout(), 2400 * MILLISECOND);
        rtt.sample(0, 1600 * MILLISECOND, 1, 60 * SECOND);
        assert_eq!(rtt.variation(), 500 * MILLISECOND);
        assert_eq!(rtt.smoothed(), Some(900 * MILLISECOND));
        assert_eq!(rtt.timeout(), 2900 * MILLISECOND);
    }

    #[test]
    fn the_minimum_is_forgotten_after_two_windows() {
        let mut rtt = Rtt::new(SECOND);
        rtt.sample_min(0, 5);
        rtt.sample_min(11 * SECOND, 9);
        assert_eq!(rtt.minimum(), Some(5));
        rtt.sample_min(22 * SECOND, 8);
        assert_eq!(rtt.minimum(), Some(8));
    }
}
