//! The hand-over protocol of the burst ring. It is generic over its words, so a model checker can run it.
//!
//! Items have positions 0, 1, 2, ... Position p uses slot `p % slots` in lap `p / slots + 1`. Each slot has
//! two words, and each word has one writer:
//!
//! ```text
//!             submitted[slot] = lap | info << 32             completed[slot] = lap | info << 32
//! dispatcher ----------------------------------> consumer b --------------------------------> dispatcher
//!                                             takes b, b+n, ...                               frees the slot
//! ```
//!
//! One aligned 8-byte load reads both the lap and the information about the item. The word of a slot holds
//! either the lap that the reader waits for or the lap before. So readers compare laps only for equality, and
//! the 32-bit lap may wrap. A stale word is never taken for a fresh one.
//!
//! `end` is 0 while the ring is open. Closing sets it to one more than the number of published items.
//! Consumers check the lap before `end`, so they process all published items. `freed` counts freed items, for
//! observers.
//!
//! # Descriptors read before the word
//!
//! Reading descriptors after the word takes a second round trip over PCIe. If the descriptors of a burst lie
//! in the cache line of the item's word, device code may load word and descriptors at the same time. A
//! descriptor may then be older than the word. The code keeps the descriptors that [`belong`](belongs) to the
//! word's lap, and loads the other descriptors again. It keeps no wrong descriptor, because:
//!
//! * [`describe`] writes the lap last, with release ordering, in the second of the descriptor's two words.
//!   The consumer reads both words by one aligned 16-byte access, which lies in one coherent cache line. So a
//!   descriptor with the right lap has the right address.
//! * A descriptor with the right lap is not written again before the item is completed. The consumer
//!   completes the item only after it has read the descriptor.
//! * No descriptor from 2^32 laps ago is accepted. Descriptors beyond an item's packets keep their old lap.
//!   So in lap 0, where the 32-bit lap wraps, the dispatcher clears the laps of all descriptors of the slot.
//!   Consumers never accept lap 0. A consumer that waits for position p has already loaded the word of `p -
//!   consumers`. There are at most as many consumers as slots. So that word was not published before the word
//!   of `p - slots`, the slot's previous position. The consumer therefore sees all writes for `p - slots`.
//! * An item without packets has no descriptors. It ends a wait for an item that was never submitted.
//! * The consumer loads the word with acquire ordering. All earlier writes of the dispatcher, such as the
//!   bytes of the packets, are then visible. This is so even if the consumer read a packet's address before
//!   the word.

/// A 64-bit word that one side writes and other sides read. The accesses are acquire loads and release stores
/// at system scope.
pub trait Word {
    /// Loads the word. All data that the word's writer stored before the word is then visible.
    fn load(&self) -> u64;
    /// Stores the word. If another side loads this value, it then sees everything that this side wrote before
    /// the store.
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

/// The words of one burst ring: two words for each slot, one word that counts the freed items, and one word
/// that closes the ring. The words may lie in any memory.
pub trait Words {
    /// The type of the words.
    type Word: Word;
    /// Returns the number of slots: a power of two, at most 2^31.
    fn slots(&self) -> u32;
    /// Returns the submission word of `slot`: the dispatcher writes it and the slot's consumer reads it.
    fn submitted(&self, slot: u32) -> &Self::Word;
    /// Returns the word that the slot's consumer writes and the dispatcher reads.
    fn completed(&self, slot: u32) -> &Self::Word;
    /// Returns the word with the number of freed items. The dispatcher writes it, and observers read it.
    fn freed(&self) -> &Self::Word;
    /// Returns the word that closes the ring, which the dispatcher writes and consumers read.
    fn end(&self) -> &Self::Word;
}

/// The result of a consumer's poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// The slot holds an item. The item belongs to the consumer until the consumer completes it.
    Item {
        /// The slot.
        slot: u32,
        /// The high half of the word that the dispatcher stored to submit the item. In the burst ring, this
        /// is the number of packets.
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

/// Returns the lap of a position in a ring of `slots` slots. Laps wrap around, so compare them only for
/// equality.
#[inline(always)]
pub fn lap_of(position: u64, slots: u32) -> u32 {
    ((position >> slots.trailing_zeros()) as u32).wrapping_add(1)
}

#[inline(always)]
fn word(lap: u32, info: u32) -> u64 {
    lap as u64 | (info as u64) << 32
}

/// Writes the two words of a descriptor. Writes the word with the lap last. A consumer may therefore read a
/// descriptor before the item's word: the lap shows whether the descriptor belongs to the item.
#[inline(always)]
pub fn describe<W: Word>(words: [&W; 2], address: u64, length: u32, lap: u32) {
    words[0].store(address);
    words[1].store(length as u64 | (lap as u64) << 32);
}

/// Returns true if a descriptor belongs to the item of `lap`, and not to an earlier item in the same slot.
/// `second` is the descriptor's second word, which one load has read together with the first word. Device
/// code makes the same check.
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

    /// Returns the slot for the next item. The slot belongs to the caller until `publish`. Returns `None` if
    /// all slots are in use or the ring is closed.
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

    /// Returns the slot and the info word of the oldest item in flight, if the item is completed. If no item
    /// is in flight, reads nothing: a hostile consumer therefore cannot complete an item that was not
    /// submitted.
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

/// The cursor of a consumer: the position of its next item in the ring. A ring has one or more consumers.
#[derive(Debug)]
pub struct ConsumerCursor {
    position: u64,
    stride: u64,
}

impl ConsumerCursor {
    /// Creates the cursor of consumer `index`. It takes the items at ring positions start + index, start +
    /// index + consumers, and so on.
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
