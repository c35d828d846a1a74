//! Which packets of each flow have come: lost, twice, or out of order.
//!
//! While packets come in order a flow is one number, the next one expected. Where one is skipped the gap is kept, so that a
//! packet that comes later is told from one that comes twice; what is still in a gap at the end is lost.

use std::collections::{BTreeMap, HashMap};

/// Gaps kept for a flow. Where there are more the oldest is forgotten; a packet that then fills it counts as reordered,
/// without knowing whether it came before.
const MOST_GAPS: usize = 4096;

/// The flows of one queue.
#[derive(Default)]
pub struct Tracker {
    /// The next number expected of each flow, not wrapped.
    next: Vec<u64>,
    gaps: HashMap<u32, BTreeMap<u64, u64>>,
    counts: Counts,
}

/// What a tracker found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that came for the first time.
    pub unique: u64,
    /// Packets that had come before.
    pub duplicated: u64,
    /// Packets that came after a later one of their flow.
    pub reordered: u64,
}

impl Tracker {
    /// A tracker of `flows` flows.
    pub fn new(flows: u32) -> Self {
        Self { next: vec![0; flows as usize], ..Self::default() }
    }

    /// Notes packet `number` (modulo 2^32) of `flow`.
    ///
    /// # Panics
    /// When there is no such flow.
    #[inline(always)]
    pub fn note(&mut self, flow: u32, number: u32) {
        let next = &mut self.next[flow as usize];
        if number == *next as u32 {
            *next += 1;
            self.counts.unique += 1;
        } else {
            self.out_of_turn(flow, number);
        }
    }

    #[cold]
    fn out_of_turn(&mut self, flow: u32, number: u32) {
        let next = &mut self.next[flow as usize];
        let distance = number.wrapping_sub(*next as u32) as i32 as i64;
        let gaps = self.gaps.entry(flow).or_default();
        if distance > 0 {
            let number = *next + distance as u64;
            gaps.insert(*next, number);
            if gaps.len() > MOST_GAPS {
                gaps.pop_first();
            }
            *next = number + 1;
            self.counts.unique += 1;
            return;
        }
        let number = next.saturating_add_signed(distance);
        // The last gap that begins at or before it, if it reaches so far.
        match gaps.range(..=number).next_back().map(|(&start, &end)| (start, end)) {
            Some((start, end)) if number < end => {
                gaps.remove(&start);
                if start < number {
                    gaps.insert(start, number);
                }
                if number + 1 < end {
                    gaps.insert(number + 1, end);
                }
                self.counts.unique += 1;
                self.counts.reordered += 1;
            }
            _ if gaps.len() >= MOST_GAPS
                && gaps.first_key_value().is_some_and(|(&start, _)| number < start) =>
            {
                self.counts.unique += 1;
                self.counts.reordered += 1;
            }
            _ => self.counts.duplicated += 1,
        }
    }

    /// What it found.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// One more than the largest number seen of each flow.
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
        fn equals_a_set(numbers in proptest::collection::vec(0u32..40, 0..200)) {
            let mut tracker = Tracker::new(2);
            let (mut seen, mut highest, mut expected) = (HashSet::new(), -1i64, Counts::default());
            for &number in &numbers {
                tracker.note(1, number);
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
    fn numbers_wrap() {
        let mut tracker = Tracker::new(1);
        tracker.next[0] = (1 << 32) - 2;
        for number in [u32::MAX - 1, u32::MAX, 0, 2, 1, u32::MAX] {
            tracker.note(0, number);
        }
        assert_eq!(tracker.counts(), Counts { unique: 5, duplicated: 1, reordered: 1 });
        assert_eq!(tracker.reached(), &[(1 << 32) + 3]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut tracker = Tracker::new(1);
        for number in 0..100_000 {
            tracker.note(0, number * 2);
        }
        assert_eq!(tracker.gaps[&0].len(), MOST_GAPS);
        tracker.note(0, 1);
        assert_eq!(tracker.counts().reordered, 1);
    }
}
