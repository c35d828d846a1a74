//! A timer wheel: one timer for each key, at a constant cost.
//!
//! ```text
//! near:  0      1      2   ...  8191      one tick of 250 us each; one turn is about 2 s
//!      [keys] [keys] [    ]    [keys]     a slot holds the timers of one tick
//!
//! far:   0      1    ...   1023           one turn of the near slots each; one turn is about 35 min
//!      [keys] [    ]      [keys]          when its time begins, a slot's timers move to the near slots
//! ```
//!
//! The timers of a slot form a linked list in `entries`. Each key's timer has a fixed place there, at the
//! key's index. So the wheel's memory depends only on the number of keys.

use crate::stack::arena::Key;

/// The time of a tick in nanoseconds. Deadlines are rounded up to ticks.
const TICK_NS: u64 = 250_000;
/// The number of near slots, a power of two. A near slot holds the timers of one tick.
const NEAR: usize = 8192;
/// The number of far slots, a power of two. A far slot holds the timers of a whole turn of the near slots.
const FAR: usize = 1024;
/// The end of a list. Also the slot number of an entry that is in no list.
const NONE: u32 = u32::MAX;

/// The entry of a key. It holds the key's timer, or keeps the place free if the key has no timer now.
#[derive(Clone, Copy)]
struct Entry {
    tick: u64,
    key: Key,
    /// The slot whose list contains the timer, or `NONE`. Numbers below `NEAR` are slots of the near level.
    /// Larger numbers are slots of the far level.
    slot: u32,
    previous: u32,
    next: u32,
}

/// The slots of one level: the first timer in each slot's list, and a bitmap of the slots that are not empty.
struct Level {
    heads: Vec<u32>,
    used: Vec<u64>,
}

impl Level {
    fn new(slots: usize) -> Self {
        Self { heads: vec![NONE; slots], used: vec![0; slots / 64] }
    }

    /// Returns the first number from `start` on whose slot has timers. In the near level, a number counts
    /// ticks. In the far level, it counts turns of the near level. The slot of number n is n modulo the
    /// number of slots.
    fn next_used(&self, start: u64) -> Option<u64> {
        let place = start as usize % self.heads.len();
        let (word, bit) = (place / 64, place % 64);
        let first = self.used[word] & (!0 << bit);
        if first != 0 {
            return Some(start + (first.trailing_zeros() as usize - bit) as u64);
        }
        (1..=self.used.len()).find_map(|distance| {
            let index = (word + distance) % self.used.len();
            let bits = self.used[index];
            let bits = if index == word { bits & !(!0 << bit) } else { bits };
            (bits != 0)
                .then(|| start - bit as u64 + (distance * 64) as u64 + u64::from(bits.trailing_zeros()))
        })
    }
}

/// A timer wheel.
pub struct Wheel {
    /// The timers, by the index of their keys.
    entries: Vec<Entry>,
    near: Level,
    far: Level,
    /// The first tick that [`Wheel::expire`] has not processed, counted from time 0 of the clock.
    tick: u64,
    /// The number of a turn. A turn is `NEAR` ticks: turn n begins at tick n * `NEAR`. The timers of all
    /// turns before this one have been moved from far slots to near slots.
    turn: u64,
}

impl Wheel {
    /// Creates a wheel whose time begins at `now`.
    pub fn new(now: u64) -> Self {
        let tick = now / TICK_NS;
        Self {
            entries: Vec::new(),
            near: Level::new(NEAR),
            far: Level::new(FAR),
            tick,
            turn: tick.div_ceil(NEAR as u64),
        }
    }

    /// Sets the timer of `key` to `deadline`, rounded up to a tick. Replaces the key's earlier timer.
    pub fn set(&mut self, deadline: u64, key: Key) {
        let unused = Entry { tick: 0, key, slot: NONE, previous: NONE, next: NONE };
        if self.entries.len() <= key.index() {
            self.entries.resize(key.index() + 1, unused);
        }
        self.unlink(key.index() as u32);
        let tick = deadline.div_ceil(TICK_NS).max(self.tick);
        self.entries[key.index()] = Entry { tick, ..unused };
        self.link(key.index() as u32);
    }

    /// Removes the timer of `key`. Does nothing if `key` has no timer.
    pub fn remove(&mut self, key: Key) {
        if self.entries.get(key.index()).is_some_and(|entry| entry.key == key) {
            self.unlink(key.index() as u32);
        }
    }

    /// Returns the level (near or far) of a slot, and the slot's index in this level.
    fn place(&mut self, slot: u32) -> (&mut Level, usize) {
        match (slot as usize).checked_sub(NEAR) {
            None => (&mut self.near, slot as usize),
            Some(place) => (&mut self.far, place),
        }
    }

    /// Adds the entry `index` to the list of its slot.
    fn link(&mut self, index: u32) {
        let tick = self.entries[index as usize].tick;
        let slot = match tick < self.tick + NEAR as u64 {
            true => tick as usize % NEAR,
            false => NEAR + (tick / NEAR as u64) as usize % FAR,
        } as u32;
        let (level, place) = self.place(slot);
        let next = std::mem::replace(&mut level.heads[place], index);
        level.used[place / 64] |= 1 << (place % 64);
        if next != NONE {
            self.entries[next as usize].previous = index;
        }
        let entry = &mut self.entries[index as usize];
        (entry.slot, entry.previous, entry.next) = (slot, NONE, next);
    }

    /// Removes the entry with index `index` from its list. Does nothing if the entry is in no list.
    fn unlink(&mut self, index: u32) {
        let Entry { slot, previous, next, .. } = self.entries[index as usize];
        if slot == NONE {
            return;
        }
        self.entries[index as usize].slot = NONE;
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        if previous != NONE {
            self.entries[previous as usize].next = next;
            return;
        }
        let (level, place) = self.place(slot);
        level.heads[place] = next;
        if next == NONE {
            level.used[place / 64] &= !(1 << (place % 64));
        }
    }

    /// Moves the keys whose timers are due at `now` to `due`. These keys then have no timer.
    pub fn expire(&mut self, now: u64, due: &mut Vec<Key>) {
        let end = now / TICK_NS;
        while self.tick <= end {
            let (near, far) = self.next_ticks();
            let next = near.min(far);
            if next > end {
                self.tick = end + 1;
                self.turn = self.turn.max(self.tick.div_ceil(NEAR as u64));
                return;
            }
            self.tick = next;
            if far == next {
                self.empty_far_slot();
                continue;
            }
            while self.near.heads[next as usize % NEAR] != NONE {
                let index = self.near.heads[next as usize % NEAR];
                due.push(self.entries[index as usize].key);
                self.unlink(index);
            }
            self.tick += 1;
        }
    }

    /// Moves timers from a far slot to near slots. The far slot is the one whose time begins at `self.tick`.
    /// Timers of a later turn of the wheel stay in the far slot.
    fn empty_far_slot(&mut self) {
        self.turn = self.tick / NEAR as u64;
        let place = self.turn as usize % FAR;
        let mut index = std::mem::replace(&mut self.far.heads[place], NONE);
        self.far.used[place / 64] &= !(1 << (place % 64));
        while index != NONE {
            let next = self.entries[index as usize].next;
            self.link(index);
            index = next;
        }
        self.turn += 1;
    }

    /// Returns two ticks: the tick of the next timer in the near slots, and the tick at which the timers of
    /// the next far slot move to the near slots. `u64::MAX` means that there are no such timers.
    fn next_ticks(&self) -> (u64, u64) {
        let near = self.near.next_used(self.tick).unwrap_or(u64::MAX);
        let far = self.far.next_used(self.turn).map_or(u64::MAX, |turn| turn * NEAR as u64);
        (near, far)
    }

    /// Returns the time of the next call of [`Wheel::expire`], or `None` if there are no timers. At that
    /// time, it is possible that no timer is due.
    pub fn next(&self) -> Option<u64> {
        let (near, far) = self.next_ticks();
        Some(near.min(far)).filter(|&tick| tick != u64::MAX).map(|tick| tick * TICK_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(index: u64) -> Key {
        Key::from_u64(index)
    }

    fn expired(wheel: &mut Wheel, now: u64) -> Vec<Key> {
        let mut due = Vec::new();
        wheel.expire(now, &mut due);
        due
    }

    /// Sets two timers per round, as a connection with keepalive does: after each exchange of data, its next
    /// timer lies two hours ahead. The wheel's memory must not grow.
    #[test]
    fn a_key_has_one_timer_however_often_it_is_set() {
        const SECOND: u64 = 1_000_000_000;
        let mut wheel = Wheel::new(0);
        for second in 0..10_000 {
            wheel.set((second + 1) * SECOND, key(3));
            assert_eq!(expired(&mut wheel, (second + 1) * SECOND), [key(3)]);
            wheel.set((second + 7200) * SECOND, key(3));
        }
        assert_eq!(wheel.entries.len(), 4);
        let last = (9_999 + 7200) * SECOND;
        assert_eq!(expired(&mut wheel, last - 1_000_000), []);
        assert_eq!(expired(&mut wheel, last), [key(3)]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn a_removed_timer_is_never_due() {
        let mut wheel = Wheel::new(0);
        for index in 0..10 {
            wheel.set(1_000_000 + index / 3, key(index));
        }
        for index in [0, 4, 5, 9] {
            wheel.remove(key(index));
        }
        // A key of an earlier object with the same index removes nothing.
        wheel.remove(key(1 << 32 | 1));
        let mut due: Vec<u64> = expired(&mut wheel, 10_000_000).iter().map(|key| key.to_u64()).collect();
        due.sort();
        assert_eq!(due, [1, 2, 3, 6, 7, 8]);
        assert_eq!(wheel.next(), None);
    }

    /// While all timers are far away, the wheel asks for few calls. Otherwise an idle engine with many
    /// connections could never sleep long.
    #[test]
    fn timers_that_are_far_away_seldom_ask_for_a_call() {
        let mut wheel = Wheel::new(0);
        for index in 0..10_000 {
            wheel.set(7_200_000_000_000 + index * 100_000, key(index));
        }
        let mut calls = 0;
        while let Some(next) = wheel.next().filter(|&next| next < 7_199_000_000_000) {
            assert_eq!(expired(&mut wheel, next), []);
            calls += 1;
        }
        assert!(calls < 20, "{calls}");
    }

    proptest! {
        /// Each entry must become due exactly once, and at most one tick after its deadline. This holds even
        /// if the deadline is many turns of the wheel away.
        #[test]
        fn entries_are_due_once_and_on_time(start in 0u64..1 << 40, entries in proptest::collection::vec(prop_oneof![0u64..10_000_000_000, 0u64..20_000_000_000_000], 1..50)) {
            let mut wheel = Wheel::new(start);
            for (index, &after) in entries.iter().enumerate() {
                wheel.set(start + after, Key::from_u64(index as u64));
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
                wheel.set(tick * TICK_NS, Key::from_u64(index as u64));
            }
            let mut due = Vec::new();
            // Call `expire` only every half turn of the wheel, because it must expire all entries even if it
            // is called late.
            let mut at = 0;
            while at < now {
                at = (at + NEAR as u64 / 2).min(now);
                wheel.expire(at * TICK_NS, &mut due);
            }
            if now > 0 {
                prop_assert_eq!(due.len(), ticks.iter().filter(|&&tick| tick <= now).count());
            }
        }
    }
}
