//! Schedules, which determine when each packet is due at a given rate.

use crate::units::Rate;

/// Computes when packets are due. Uses the total sent so far, so rounding errors do not accumulate.
///
/// The schedule starts at the first call of [`Schedule::due_at_most`].
#[derive(Clone, Debug)]
pub struct Schedule {
    start_ns: Option<u64>,
    /// The packets or bits sent so far, whichever the rate counts.
    sent: u64,
    ns_per_unit: f64,
    unit: Unit,
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Packets,
    /// A rate in bits per second. Each frame counts with its own length and `overhead` additional bytes.
    Bits {
        overhead: u64,
    },
}

impl Schedule {
    /// Creates a schedule for a fraction of `rate`. A `share` of 1 is the whole rate.
    pub fn new(rate: Rate, share: f64) -> Self {
        let (per_second, unit) = match rate {
            Rate::Bits(bits) => (bits, Unit::Bits { overhead: 0 }),
            Rate::Line(bits) => (bits, Unit::Bits { overhead: Rate::LINE_OVERHEAD }),
            Rate::Packets(packets) => (packets, Unit::Packets),
        };
        Self { start_ns: None, sent: 0, ns_per_unit: 1e9 / (per_second * share), unit }
    }

    /// Returns when the next packet is due, in nanoseconds of the clock whose time is passed to
    /// [`Schedule::due_at_most`].
    #[inline]
    pub fn due_ns(&self) -> u64 {
        self.start_ns.unwrap_or(0) + (self.sent as f64 * self.ns_per_unit) as u64
    }

    /// Counts a sent packet of `bytes` bytes.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        self.sent += match self.unit {
            Unit::Packets => 1,
            Unit::Bits { overhead } => (bytes as u64 + overhead) * 8,
        };
    }

    /// Counts `packets` sent packets of a rate in packets per second.
    #[inline]
    pub fn advance_packets(&mut self, packets: u64) {
        debug_assert!(
            matches!(self.unit, Unit::Packets),
            "frames of a rate in bits count with their lengths"
        );
        self.sent += packets;
    }

    /// Returns about how many packets of `mean` bytes are due at `now_ns`, at most `max`. Returns at least 1
    /// if any is due.
    #[inline]
    pub fn due_at_most(&mut self, now_ns: u64, max: usize, mean: f64) -> usize {
        self.start_ns.get_or_insert(now_ns);
        let due = self.due_ns();
        if due > now_ns {
            return 0;
        }
        let units = match self.unit {
            Unit::Packets => 1.0,
            Unit::Bits { overhead } => (mean + overhead as f64) * 8.0,
        };
        let count = (now_ns - due) as f64 / (units * self.ns_per_unit);
        max.min(count as usize + 1)
    }

    /// Limits the burst after a pause: moves the schedule so that the next packet is overdue by at most
    /// `max_ns` nanoseconds.
    #[inline]
    pub fn limit_backlog(&mut self, now_ns: u64, max_ns: u64) {
        let due = self.due_ns();
        if due + max_ns < now_ns
            && let Some(start) = &mut self.start_ns
        {
            *start += now_ns - max_ns - due;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_due_at_equal_intervals() {
        let mut schedule = Schedule::new(Rate::Packets(1e6), 0.5);
        assert_eq!(schedule.due_at_most(1000, 32, 64.0), 1);
        schedule.advance(64);
        assert_eq!(schedule.due_ns(), 3000);
        assert_eq!(schedule.due_at_most(2999, 32, 64.0), 0);
        assert_eq!(schedule.due_at_most(9000, 32, 64.0), 4);
        assert_eq!(schedule.due_at_most(9_000_000, 32, 64.0), 32);
    }

    #[test]
    fn a_bit_rate_counts_frames() {
        let mut schedule = Schedule::new(Rate::Bits(8e9), 1.0);
        schedule.due_at_most(0, 1, 64.0);
        schedule.advance(1000);
        assert_eq!(schedule.due_ns(), 1000);
    }

    #[test]
    fn a_line_rate_counts_the_overhead_of_ethernet_too() {
        // RFC 2544: 1 Gb/s Ethernet carries 1,488,095 frames of 64 bytes with FCS per second.
        let mut schedule = Schedule::new(Rate::Line(1e9), 1.0);
        schedule.due_at_most(0, 1, 60.0);
        (0..1_488_095).for_each(|_| schedule.advance(60));
        assert_eq!(schedule.due_ns(), 999_999_840);
        assert_eq!(schedule.due_at_most(999_999_840 + 6719, 32, 60.0), 10);
    }

    #[test]
    fn the_backlog_is_limited() {
        let mut schedule = Schedule::new(Rate::Packets(1e9), 1.0);
        schedule.due_at_most(0, 1, 64.0);
        schedule.limit_backlog(1_000_000, 1000);
        assert_eq!(schedule.due_ns(), 999_000);
    }
}
