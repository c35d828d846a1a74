//! Tracks the sequence numbers of each flow, to find duplicated and reordered packets.
//!
//! For each flow, the tracker keeps the next expected number and the ranges of missing numbers, called gaps.
//! A late packet's number lies in a gap. A duplicate's number does not.

use std::collections::{BTreeMap, HashMap};

/// The most gaps that are stored for a flow's sequence numbers. If there are more, the oldest gap is
/// forgotten. A packet from before the end of a forgotten gap then counts as reordered, even if it is a
/// duplicate.
const MAX_GAPS: usize = 4096;

/// Finds duplicated and reordered packets among the flows that one queue receives.
#[derive(Default)]
pub struct Tracker {
    /// The next sequence number of each flow, extended to 64 bits.
    next: Vec<u64>,
    /// For each flow that has or had a gap: its gaps.
    gaps: HashMap<u32, Gaps>,
    counts: Counts,
}

/// The gaps of one flow: ranges of sequence numbers that have not arrived.
#[derive(Default)]
struct Gaps {
    /// For each gap, the first missing number, and the first number after the gap.
    missing: BTreeMap<u64, u64>,
    /// The first number after the newest gap that was dropped because of `MAX_GAPS`; 0 if none was dropped.
    forgotten: u64,
}

impl Gaps {
    /// Adds a gap: the numbers from `start` up to, but not including, `end`. Forgets the oldest gap if there
    /// are too many.
    fn insert(&mut self, start: u64, end: u64) {
        self.missing.insert(start, end);
        if self.missing.len() > MAX_GAPS
            && let Some((_, end)) = self.missing.pop_first()
        {
            self.forgotten = end;
        }
    }
}

/// How many packets a tracker has recorded, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that had not arrived before.
    pub unique: u64,
    /// Packets that had arrived before.
    pub duplicated: u64,
    /// The number of packets that arrived after a later packet of the same flow.
    pub reordered: u64,
}

impl Tracker {
    /// Creates a tracker of `flows` flows.
    pub fn new(flows: u32) -> Self {
        Self { next: vec![0; flows as usize], ..Self::default() }
    }

    /// Records the arrival of a packet. `sequence` is its number in `flow`, modulo 2^32.
    ///
    /// # Panics
    /// If the tracker has no such flow.
    #[inline(always)]
    pub fn record(&mut self, flow: u32, sequence: u32) {
        let next = &mut self.next[flow as usize];
        if sequence == *next as u32 {
            *next += 1;
            self.counts.unique += 1;
        } else {
            self.record_out_of_order(flow, sequence);
        }
    }

    #[cold]
    fn record_out_of_order(&mut self, flow: u32, sequence: u32) {
        let next = &mut self.next[flow as usize];
        let distance = sequence.wrapping_sub(*next as u32) as i32 as i64;
        let gaps = self.gaps.entry(flow).or_default();
        if distance > 0 {
            let number = *next + distance as u64;
            gaps.insert(*next, number);
            *next = number + 1;
            self.counts.unique += 1;
            return;
        }
        let number = next.saturating_add_signed(distance);
        // Look only at the last gap that starts at or before `number`. No other gap can contain the number.
        match gaps.missing.range(..=number).next_back().map(|(&start, &end)| (start, end)) {
            Some((start, end)) if number < end => {
                gaps.missing.remove(&start);
                if start < number {
                    gaps.insert(start, number);
                }
                if number + 1 < end {
                    gaps.insert(number + 1, end);
                }
            }
            _ if number < gaps.forgotten => {}
            _ => {
                self.counts.duplicated += 1;
                return;
            }
        }
        self.counts.unique += 1;
        self.counts.reordered += 1;
    }

    /// Returns how many packets were recorded so far: unique, duplicated and reordered.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns one more than the largest sequence number of each flow.
    pub fn reached(&self) -> &[u64] {
        &self.next
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.unique += other.unique;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn counts_equal_those_of_a_set(numbers in proptest::collection::vec(0u32..40, 0..200)) {
            let mut tracker = Tracker::new(2);
            let (mut seen, mut highest, mut expected) = (HashSet::new(), -1i64, Counts::default());
            for &number in &numbers {
                tracker.record(1, number);
                if !seen.insert(number) {
                    expected.duplicated += 1;
                } else {
                    expected.unique += 1;
                    expected.reordered += ((number as i64) < highest) as u64;
                }
                highest = highest.max(number as i64);
            }
            prop_assert_eq!(tracker.counts(), expected);
            prop_assert_eq!(tracker.reached(), &[0, (highest + 1) as u64]);
        }
    }

    #[test]
    fn late_packets_that_split_gaps_keep_at_most_the_limit() {
        let mut tracker = Tracker::new(1);
        let late = 4 * MAX_GAPS as u32;
        tracker.record(0, late);
        (0..late / 2).for_each(|number| tracker.record(0, 2 * number + 1));
        assert_eq!(tracker.gaps[&0].missing.len(), MAX_GAPS);
        let unique = u64::from(late / 2) + 1;
        assert_eq!(tracker.counts(), Counts { unique, duplicated: 0, reordered: unique - 1 });
    }

    #[test]
    fn a_late_packet_of_a_forgotten_gap_is_no_duplicate_when_other_gaps_have_closed() {
        let mut tracker = Tracker::new(1);
        // Open one gap too many: the numbers 0, 2, 4, ... are missing.
        (0..=MAX_GAPS as u32).for_each(|number| tracker.record(0, 2 * number + 1));
        // Deliver all missing numbers but 0. This closes all gaps that the tracker still knows. Then deliver
        // 0. The tracker has forgotten the gap of 0.
        (1..=MAX_GAPS as u32).for_each(|number| tracker.record(0, 2 * number));
        tracker.record(0, 0);
        assert_eq!(tracker.counts().duplicated, 0);
        // Number 5 arrived once after the forgotten gap, so this second arrival counts as a duplicate.
        tracker.record(0, 5);
        assert_eq!(tracker.counts().duplicated, 1);
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut tracker = Tracker::new(1);
        tracker.next[0] = (1 << 32) - 2;
        for number in [u32::MAX - 1, u32::MAX, 0, 2, 1, u32::MAX] {
            tracker.record(0, number);
        }
        assert_eq!(tracker.counts(), Counts { unique: 5, duplicated: 1, reordered: 1 });
        assert_eq!(tracker.reached(), &[(1 << 32) + 3]);
    }

    #[test]
    fn the_number_of_gaps_is_bounded() {
        let mut tracker = Tracker::new(1);
        for number in 0..100_000 {
            tracker.record(0, number * 2);
        }
        assert_eq!(tracker.gaps[&0].missing.len(), MAX_GAPS);
        tracker.record(0, 1);
        assert_eq!(tracker.counts().reordered, 1);
    }
}
