//! The ranges of the receive buffer that hold data after a gap, and the SACK blocks that report these ranges
//! (RFC 2018).
//!
//! Out-of-order data is written to its final place in the receive buffer at once. This module stores only the
//! ranges.

use crate::options::SackBlocks;
use crate::sequence::Sequence;

/// The greatest number of separate ranges of received bytes. A segment that would add one more range is
/// dropped, and the peer retransmits it.
pub const MAX_RANGES: usize = 256;
/// The number of recently changed ranges to remember. SACK options report these ranges before all others.
const RECENT: usize = 4;

/// The ranges of one connection: sorted, disjoint, with gaps in between.
#[derive(Clone, Debug, Default)]
pub struct Reassembly {
    ranges: Vec<(Sequence, Sequence)>,
    /// A sequence number in each of the ranges that changed last, latest first. SACK options report these
    /// ranges first.
    recent: [Sequence; RECENT],
}

impl Reassembly {
    /// Returns true if there is no data beyond a gap.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of bytes that lie beyond a gap.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// Returns the end of the last range.
    pub fn end(&self) -> Option<Sequence> {
        self.ranges.last().map(|range| range.1)
    }

    /// Returns the received range that contains all of `start..end`. Returns `None` if no range contains all
    /// of it.
    pub fn containing(&self, start: Sequence, end: Sequence) -> Option<(Sequence, Sequence)> {
        let at = self.ranges.partition_point(|range| range.1 < end);
        self.ranges.get(at).copied().filter(|range| range.0 <= start && end <= range.1)
    }

    /// Adds the range `start..end`, which must not be empty. Returns false, and adds nothing, if the result
    /// would have too many ranges.
    pub fn insert(&mut self, start: Sequence, end: Sequence) -> bool {
        // The ranges from `first` to `last` touch or overlap the new one.
        let first = self.ranges.partition_point(|range| range.1 < start);
        let last = first + self.ranges[first..].partition_point(|range| range.0 <= end);
        if first == last {
            if self.ranges.len() >= MAX_RANGES {
                return false;
            }
            self.ranges.insert(first, (start, end));
        } else {
            let merged = (self.ranges[first].0.min(start), self.ranges[last - 1].1.max(end));
            self.ranges[first] = merged;
            self.ranges.drain(first + 1..last);
        }
        self.note(start);
        true
    }

    /// Makes the range that contains `start` the first that SACK options report.
    fn note(&mut self, start: Sequence) {
        if self.recent[0] != start {
            self.recent.copy_within(0..RECENT - 1, 1);
            self.recent[0] = start;
        }
    }

    /// Removes the ranges up to `next`, the first missing byte so far. Returns the first byte that is missing
    /// now.
    #[inline]
    pub fn advance(&mut self, mut next: Sequence) -> Sequence {
        if self.ranges.is_empty() {
            return next;
        }
        let mut taken = 0;
        while let Some(&(start, end)) = self.ranges.get(taken)
            && start <= next
        {
            next = next.max(end);
            taken += 1;
        }
        self.ranges.drain(..taken);
        next
    }

    /// Appends at most `room` blocks to `blocks`. The block that changed last comes first, then the other
    /// recently changed blocks, then the rest.
    pub fn report(&self, blocks: &mut SackBlocks, room: usize) {
        let limit = blocks.len() + room.min(self.ranges.len());
        let mut reported = [usize::MAX; RECENT];
        for (slot, &recent) in self.recent.iter().enumerate() {
            let at = self.ranges.partition_point(|range| range.1 <= recent);
            if blocks.len() >= limit {
                return;
            }
            if self.ranges.get(at).is_some_and(|range| range.0 <= recent) && !reported.contains(&at) {
                reported[slot] = at;
                blocks.push(self.ranges[at].0 as u32, self.ranges[at].1 as u32);
            }
        }
        for (at, range) in self.ranges.iter().enumerate() {
            if blocks.len() >= limit {
                return;
            }
            if !reported.contains(&at) {
                blocks.push(range.0 as u32, range.1 as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_equal_a_set_of_bytes(inserts in proptest::collection::vec((0u64..300, 1u64..40), 0..60), next in 0u64..300) {
            let mut ranges = Reassembly::default();
            let mut bytes = std::collections::BTreeSet::new();
            for &(start, len) in &inserts {
                prop_assert!(ranges.insert(start, start + len));
                bytes.extend(start..start + len);
                prop_assert!(ranges.containing(start, start + len).is_some());
            }
            prop_assert!(ranges.ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
            prop_assert_eq!(ranges.bytes(), bytes.len() as u64);
            let mut blocks = SackBlocks::default();
            ranges.report(&mut blocks, 4);
            prop_assert_eq!(blocks.len(), ranges.ranges.len().min(4));
            for &(left, right) in blocks.as_slice() {
                prop_assert!(ranges.ranges.contains(&(left as u64, right as u64)));
            }
            let mut expected = next;
            while bytes.contains(&expected) {
                expected += 1;
            }
            prop_assert_eq!(ranges.advance(next), expected);
            prop_assert!(ranges.ranges.iter().all(|range| range.0 > expected));
        }
    }

    #[test]
    fn rfc2018_the_first_block_holds_the_latest_segment_and_others_follow_by_recency() {
        let mut ranges = Reassembly::default();
        for start in [100, 300, 500, 700, 900] {
            ranges.insert(start, start + 100);
        }
        ranges.insert(350, 450);
        let mut blocks = SackBlocks::default();
        ranges.report(&mut blocks, 3);
        assert_eq!(blocks.as_slice(), [(300, 450), (900, 1000), (700, 800)]);
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mut ranges = Reassembly::default();
        for n in 0..MAX_RANGES as u64 {
            assert!(ranges.insert(n * 10 + 1, n * 10 + 2));
        }
        assert!(!ranges.insert(1_000_000, 1_000_001));
        assert!(ranges.insert(2, 5), "a range that grows needs no room");
    }
}
