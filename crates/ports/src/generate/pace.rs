//! Schedules: when each packet is due at a given rate.

use inlane_core::units::Rate;

/// Due times of packets one behind the other, computed from what was sent in all, so that no error adds up. It starts when it is
/// first asked.
#[derive(Clone, Debug)]
pub struct Schedule {
    start_ns: Option<u64>,
    /// Packets or bits so far.
    sent: u64,
    ns_per_unit: f64,
    by_bits: bool,
}

impl Schedule {
    /// A schedule for `share` of `rate`.
    pub fn new(rate: Rate, share: f64) -> Self {
        let (per_second, by_bits) = match rate {
            Rate::Bits(bits) => (bits, true),
            Rate::Packets(packets) => (packets, false),
        };
        Self { start_ns: None, sent: 0, ns_per_unit: 1e9 / (per_second * share), by_bits }
    }

    /// When the next packet is due.
    #[inline]
    pub fn due_ns(&self) -> u64 {
        self.start_ns.unwrap_or(0) + (self.sent as f64 * self.ns_per_unit) as u64
    }

    /// Notes that a packet of `bytes` was sent.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        self.sent += if self.by_bits { bytes as u64 * 8 } else { 1 };
    }

    /// About how many packets of `mean` bytes are due at `now_ns`, at most `most`: never too few when one is due.
    #[inline]
    pub fn due_at_most(&mut self, now_ns: u64, most: usize, mean: f64) -> usize {
        self.start_ns.get_or_insert(now_ns);
        let due = self.due_ns();
        if due > now_ns {
            return 0;
        }
        let units = if self.by_bits { mean * 8.0 } else { 1.0 };
        let count = (now_ns - due) as f64 / (units * self.ns_per_unit);
        most.min(count as usize + 1)
    }

    /// Forgets what is more than `most_ns` late, for sources that had nothing to send.
    #[inline]
    pub fn forget_beyond(&mut self, now_ns: u64, most_ns: u64) {
        let due = self.due_ns();
        if due + most_ns < now_ns
            && let Some(start) = &mut self.start_ns
        {
            *start += now_ns - most_ns - due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_due_evenly() {
        let mut schedule = Schedule::new(Rate::Packets(1e6), 0.5);
        assert_eq!(schedule.due_at_most(1000, 32, 64.0), 1);
        schedule.advance(64);
        assert_eq!(schedule.due_ns(), 3000);
        assert_eq!(schedule.due_at_most(2999, 32, 64.0), 0);
        assert_eq!(schedule.due_at_most(9000, 32, 64.0), 4);
        assert_eq!(schedule.due_at_most(9_000_000, 32, 64.0), 32);
    }

    #[test]
    fn bits_count_by_length() {
        let mut schedule = Schedule::new(Rate::Bits(8e9), 1.0);
        schedule.due_at_most(0, 1, 64.0);
        schedule.advance(1000);
        assert_eq!(schedule.due_ns(), 1000);
    }

    #[test]
    fn what_is_long_past_can_be_forgotten() {
        let mut schedule = Schedule::new(Rate::Packets(1e9), 1.0);
        schedule.due_at_most(0, 1, 64.0);
        schedule.forget_beyond(1_000_000, 1000);
        assert_eq!(schedule.due_ns(), 999_000);
    }
}
