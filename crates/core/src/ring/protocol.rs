//! The hand-over protocol of the burst ring, generic over its words so that a model checker can run it.
//!
//! Items have positions 0, 1, 2, ... Position p uses slot `p % slots` in lap `p / slots + 1`. Each slot has
//! two words, and each word has one writer:
//!
//! ```text
//!              submitted[slot] = lap | info << 32               completed[slot] = lap | info << 32
//! dispatcher ------------------------------------> consumer b -----------------------------------> dispatcher
//!                                               takes b, b+n, ...                                  frees the slot
//! ```
//!
//! One aligned 8-byte load reads a word's lap and its information about the item. A slot's word holds either
//! the lap that the reader waits for or the one before. So readers compare laps for equality only, the 32-bit
//! lap may wrap, and a stale word is never taken for a fresh one.
//!
//! `end` is 0 while the ring is open. Closing sets it to one more than the number of published items.
//! Consumers check the lap before `end`, so they process everything that was published. `freed` counts freed
//! items, for observers.
//!
//! # Descriptors read before the word
//!
//! Reading descriptors after the word takes a second round trip over PCIe. If a burst's descriptors lie in
//! the cache line of the item's word, device code may load word and descriptors at the same time. So a
//! descriptor may be older than the word. The code keeps the descriptors that [`belong`](belongs) to the
//! word's lap, and loads the others again. It keeps no wrong descriptor, because:
//!
//! * [`describe`] writes the lap last, with release ordering, in the second of the descriptor's two words.
//!   The consumer reads both words by one aligned 16-byte access, which lies in one coherent cache line. So a
//!   descriptor with the right lap has the right address.
//! * A descriptor with the right lap is not written again before the item is completed, and the consumer
//!   completes it after its read.
//! * No descriptor from 2^32 laps ago is accepted. Descriptors beyond an item's packets keep their old lap.
//!   So in lap 0, where the 32-bit lap wraps, the dispatcher clears the laps of all descriptors of the slot,
//!   and consumers never accept lap 0. A consumer that waits for position p sees everything written for the
//!   slot's previous position, p - slots: it has already loaded the word of p - consumers. That word was
//!   published no earlier than the word of p - slots, because there are at most as many consumers as slots.
//! * An item without packets, which ends a wait for an item that was never submitted, has no descriptors.
//! * Everything that the dispatcher wrote before it published, such as the packets' bytes, is visible once
//!   the consumer has loaded the word with acquire ordering, even if it read the packet's address before.

/// A 64-bit word that one side writes and others read, by acquire loads and release stores at system scope.
pub trait Word {
    /// Loads the word. Everything that its writer wrote before storing it is then visible.
    fn load(&self) -> u64;
    /// Stores the word. A side that loads the value then sees everything that this side wrote before.
    fn store(&self, value: u64);
}

impl Word for std::sync::atomic::AtomicU64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        self.load(std::sync::atomic::Ordering::Acquire)
    }

    #[inline(always)]
    fn store(&self, value: u64) {
        self.store(value, std::sync::atomic::Ordering::Release)
    }
}

/// The words of one burst ring: two for each slot, one that counts the freed items, and one that closes the
/// ring. They may lie in any memory.
pub trait Words {
    /// The type of the words.
    type Word: Word;
    /// Returns the number of slots: a power of two, at most 2^31.
    fn slots(&self) -> u32;
    /// Returns the word that the dispatcher writes and the slot's consumer reads.
    fn submitted(&self, slot: u32) -> &Self::Word;
    /// Returns the word that the slot's consumer writes and the dispatcher reads.
    fn completed(&self, slot: u32) -> &Self::Word;
    /// Returns the count of freed items, which the dispatcher writes and observers read.
    fn freed(&self) -> &Self::Word;
    /// Returns the word that closes the ring, which the dispatcher writes and consumers read.
    fn end(&self) -> &Self::Word;
}

/// The result of a consumer's poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// The item in this slot belongs to the consumer until it is completed.
    Item {
        /// The slot.
        slot: u32,
        /// The high half of the word by which the dispatcher submitted the item. The burst ring stores the
        /// number of packets there.
        info: u32,
    },
    /// No item yet.
    Empty,
    /// No item will follow: the ring is closed, and the consumer has completed all its items.
    Closed,
}

#[inline(always)]
fn slot_of<W: Words>(words: &W, position: u64) -> u32 {
    position as u32 & (words.slots() - 1)
}

/// Returns the lap of a position in a ring of `slots` slots. Laps wrap, so compare them for equality only.
#[inline(always)]
pub fn lap_of(position: u64, slots: u32) -> u32 {
    ((position >> slots.trailing_zeros()) as u32).wrapping_add(1)
}

#[inline(always)]
fn word(lap: u32, info: u32) -> u64 {
    lap as u64 | (info as u64) << 32
}

/// Writes a descriptor's two words, the one with the lap last. A consumer may read the descriptor before the
/// item's word, because the lap shows whether the descriptor is that of the item.
#[inline(always)]
pub fn describe<W: Word>(words: [&W; 2], address: u64, length: u32, lap: u32) {
    words[0].store(address);
    words[1].store(length as u64 | (lap as u64) << 32);
}

/// Returns true if a descriptor belongs to the item of `lap`, and not to an earlier item of the slot.
/// `second` is the descriptor's second word, read together with the first by one load. Device code makes the
/// same check.
#[cfg(test)]
pub fn belongs(second: u64, lap: u32) -> bool {
    lap != 0 && (second >> 32) as u32 == lap
}

/// The dispatcher's cursor: the positions of the next item to publish and of the oldest item in flight.
#[derive(Debug)]
pub struct DispatcherCursor {
    published: u64,
    freed: u64,
    /// How many items may be in flight: the number of slots, or 0 once the ring is closed.
    limit: u64,
}

impl DispatcherCursor {
    /// Creates a cursor at `position`. All earlier items must be completed; for position 0, all words must be
    /// zero.
    pub fn new<W: Words>(words: &W, position: u64) -> Self {
        Self { published: position, freed: position, limit: words.slots() as u64 }
    }

    /// Returns the slot for the next item, which is the caller's until `publish`. `None` if all are in use or
    /// the ring is closed.
    #[inline]
    pub fn claim<W: Words>(&self, words: &W) -> Option<u32> {
        (self.in_flight() < self.limit).then(|| slot_of(words, self.published))
    }

    /// Returns the word that [`DispatcherCursor::publish`] writes next: `info` in the high half, and the next
    /// item's lap in the low half.
    #[inline(always)]
    pub fn word<W: Words>(&self, words: &W, info: u32) -> u64 {
        word(lap_of(self.published, words.slots()), info)
    }

    /// Hands the claimed slot to its consumer.
    ///
    /// # Panics
    /// In debug builds, if no slot was free.
    #[inline]
    pub fn publish<W: Words>(&mut self, words: &W, info: u32) {
        debug_assert!(self.claim(words).is_some(), "published without a free slot");
        words.submitted(slot_of(words, self.published)).store(self.word(words, info));
        self.published += 1;
    }

    /// Returns slot and info of the oldest item in flight if it is completed. Reads nothing if none is in
    /// flight, so a hostile consumer cannot complete an item that was not submitted.
    #[inline]
    pub fn poll<W: Words>(&self, words: &W) -> Option<(u32, u32)> {
        if self.in_flight() == 0 {
            return None;
        }
        let slot = slot_of(words, self.freed);
        let value = words.completed(slot).load();
        (value as u32 == lap_of(self.freed, words.slots())).then_some((slot, (value >> 32) as u32))
    }

    /// Frees the slot of the item that `poll` returned.
    #[inline]
    pub fn free<W: Words>(&mut self, words: &W) {
        self.freed += 1;
        words.freed().store(self.freed);
    }

    /// Returns the number of items published and not freed.
    #[inline(always)]
    pub fn in_flight(&self) -> u64 {
        self.published - self.freed
    }

    /// Returns the position of the oldest item in flight.
    #[inline(always)]
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Closes the ring after the items published so far. No slot can be claimed afterwards.
    pub fn close<W: Words>(&mut self, words: &W) {
        self.limit = 0;
        words.end().store(self.published + 1);
    }
}

/// The cursor of one of a ring's n consumers: the position of the item that it takes next.
#[derive(Debug)]
pub struct ConsumerCursor {
    position: u64,
    stride: u64,
}

impl ConsumerCursor {
    /// Creates the cursor of consumer `index`, which takes positions start + index, start + index + consumers
    /// and so on.
    pub fn new(start: u64, index: u32, consumers: u32) -> Self {
        Self { position: start + index as u64, stride: consumers as u64 }
    }

    /// Polls for this consumer's next item. Returns the same item again until [`ConsumerCursor::complete`] is
    /// called.
    #[inline]
    pub fn poll<W: Words>(&self, words: &W) -> Polled {
        let slot = slot_of(words, self.position);
        let value = words.submitted(slot).load();
        if value as u32 == lap_of(self.position, words.slots()) {
            return Polled::Item { slot, info: (value >> 32) as u32 };
        }
        match words.end().load() {
            0 => Polled::Empty,
            end if self.position >= end - 1 => Polled::Closed,
            _ => Polled::Empty,
        }
    }

    /// Completes the item that `poll` returned, and hands it back to the dispatcher.
    #[inline]
    pub fn complete<W: Words>(&mut self, words: &W, info: u32) {
        let slot = slot_of(words, self.position);
        words.completed(slot).store(word(lap_of(self.position, words.slots()), info));
        self.position += self.stride;
    }
}
