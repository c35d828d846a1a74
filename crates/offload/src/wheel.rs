//! A timer wheel: deadlines of many connections, at a constant cost each.
//!
//! ```text
//! slot:   0      1      2   ...  8191      each 250 us; one turn is about 2 s
//!       [keys] [keys] [    ]    [keys]     a key stays in its slot until the turn of its deadline
//! ```
//!
//! An entry cannot be cancelled or moved. When it is due, the caller must check whether the deadline has
//! moved.

use crate::arena::Key;

/// The time that one slot of the timer wheel covers (a tick), in nanoseconds.
const TICK_NS: u64 = 250_000;
/// The number of slots of the timer wheel, a power of two.
const SLOTS: usize = 8192;

/// A timer wheel.
pub struct Wheel {
    slots: Vec<Vec<(u64, Key)>>,
    /// A bitmap of the timer wheel's slots: a bit is 1 if its slot has entries.
    used: [u64; SLOTS / 64],
    /// The first tick that [`Wheel::expire`] has not processed, counted from time 0 of the clock.
    tick: u64,
}

impl Wheel {
    /// Creates a wheel whose time begins at `now`.
    pub fn new(now: u64) -> Self {
        Self { slots: (0..SLOTS).map(|_| Vec::new()).collect(), used: [0; SLOTS / 64], tick: now / TICK_NS }
    }

    /// Adds an entry that is due at `deadline`, rounded up to a tick.
    pub fn add(&mut self, deadline: u64, key: Key) {
        let tick = deadline.div_ceil(TICK_NS).max(self.tick);
        let slot = tick as usize % SLOTS;
        self.slots[slot].push((tick, key));
        self.used[slot / 64] |= 1 << (slot % 64);
    }

    /// Moves the entries that are due at `now` to `due`.
    pub fn expire(&mut self, now: u64, due: &mut Vec<Key>) {
        let end = now / TICK_NS;
        while self.tick <= end {
            let Some(next) = self.next_used() else {
                self.tick = end + 1;
                return;
            };
            // Skip the empty slots.
            self.tick = next;
            if next > end {
                self.tick = end + 1;
                return;
            }
            let slot = next as usize % SLOTS;
            self.slots[slot].retain(|&(tick, key)| {
                if tick <= next {
                    due.push(key);
                }
                tick > next
            });
            if self.slots[slot].is_empty() {
                self.used[slot / 64] &= !(1 << (slot % 64));
            }
            self.tick += 1;
        }
    }

    /// Returns the time at which [`Wheel::expire`] should be called next, or `None` if there are no entries.
    /// It is possible that no entry is due then, because the entries of the next slot may belong to a later
    /// turn of the wheel.
    pub fn next(&self) -> Option<u64> {
        Some(self.next_used()? * TICK_NS)
    }

    /// Returns the first tick, starting at `self.tick`, whose slot has entries. The entries may be due only
    /// in a later turn of the wheel.
    fn next_used(&self) -> Option<u64> {
        let start = self.tick as usize % SLOTS;
        let (word, bit) = (start / 64, start % 64);
        let first = self.used[word] & (!0 << bit);
        if first != 0 {
            return Some(self.tick + (first.trailing_zeros() as usize - bit) as u64);
        }
        (1..=self.used.len()).find_map(|distance| {
            let index = (word + distance) % self.used.len();
            let bits = self.used[index];
            let bits = if index == word { bits & !(!0 << bit) } else { bits };
            (bits != 0)
                .then(|| self.tick - bit as u64 + (distance * 64) as u64 + u64::from(bits.trailing_zeros()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every entry is due once, at most one tick after its deadline, even if that is many turns of the
        /// wheel away.
        #[test]
        fn entries_are_due_once_and_on_time(start in 0u64..1 << 40, entries in proptest::collection::vec(0u64..10_000_000_000, 1..50)) {
            let mut wheel = Wheel::new(start);
            for (index, &after) in entries.iter().enumerate() {
                wheel.add(start + after, Key::from_u64(index as u64));
            }
            let mut seen = vec![None; entries.len()];
            let mut due = Vec::new();
            let mut rounds = 0;
            while let Some(next) = wheel.next() {
                wheel.expire(next, &mut due);
                for key in due.drain(..) {
                    prop_assert!(seen[key.to_u64() as usize].replace(next).is_none(), "twice");
                }
                rounds += 1;
                prop_assert!(rounds < 10_000);
            }
            for (&after, seen) in entries.iter().zip(seen) {
                let late = seen.unwrap() as i64 - (start + after) as i64;
                prop_assert!((0..=TICK_NS as i64).contains(&late), "{late}");
            }
        }

        #[test]
        fn a_late_call_expires_everything_before_it(ticks in proptest::collection::vec(0u64..40_000, 0..50), now in 0u64..40_000) {
            let mut wheel = Wheel::new(0);
            for (index, &tick) in ticks.iter().enumerate() {
                wheel.add(tick * TICK_NS, Key::from_u64(index as u64));
            }
            let mut due = Vec::new();
            // Call `expire` only every half turn of the wheel, because late calls must expire all entries,
            // too.
            let mut at = 0;
            while at < now {
                at = (at + SLOTS as u64 / 2).min(now);
                wheel.expire(at * TICK_NS, &mut due);
            }
            if now > 0 {
                prop_assert_eq!(due.len(), ticks.iter().filter(|&&tick| tick <= now).count());
            }
        }
    }
}
