//! The hand-over protocol of the burst ring, generic over its words so that a model checker can run it.
//!
//! Items have growing positions 0, 1, 2, ...; position p uses slot `p % slots` in lap `p / slots + 1`. Each slot has two
//! words, each with one writer:
//!
//! ```text
//!            submitted[slot] = lap | info << 32                completed[slot] = lap | info << 32
//! producer ------------------------------------> consumer b -----------------------------------> sender
//!    ^                                        takes b, b+n, ...                                   |
//!    +------------------------- freed = positions that the sender is done with <------------------+
//! ```
//!
//! A word holds the lap in its low half and what the writer has to say of the item in its high half, so that one aligned
//! 8-byte load tells both. Readers compare laps for equality only: a slot's word is the lap before until the moment it is
//! this lap, so the 32-bit lap may wrap. There is no read-modify-write, and no state that cycles: a stale word is never
//! mistaken for a fresh one.
//!
//! `end` is 0 while the ring runs; the producer sets it to one more than the positions it published, and everybody else
//! stops when they reach it. The lap word is checked before `end`, so nothing published is left behind.
//!
//! # Descriptors read with the word
//!
//! A consumer reads an item's descriptors after its word. Over PCIe that is two trips, one after the other, so in rings whose bursts
//! fit the word's line it may read them along with the word, or before, and keep those that [`belong`](belongs) to the lap of the
//! word that it then sees; the others it reads again, after the word. Why it never keeps a wrong one:
//!
//! * A descriptor says its lap in the second of its two words, and [`describe`] writes that one last, with release: neither compiler
//!   nor CPU puts it before the address. The consumer reads both words by one access of 16 bytes that none of the writer's stores
//!   falls into the middle of: a lap that is right comes with the address that was written before it.
//!   (Memory that hosts and GPUs share is coherent by lines, and an aligned 16 bytes lie in one.)
//! * Nobody writes a descriptor between its lap becoming right and the item's completion, which comes after the consumer's read.
//! * A lap that is right is not left over from 2^32 laps ago, though a descriptor that an item has no packet for keeps the lap that
//!   it had: in lap 0, where the count wraps, the producer gives all of a slot's descriptors that lap, and in lap 0, which is also
//!   that of fresh memory, nothing is believed. A consumer cannot miss that lap: when it waits for position p it has seen the word of
//!   p - consumers, its last, which was published after p - slots, the slot's item of the lap before, as long as there are no more
//!   consumers than slots.
//! * A word without packets, with which waits for items that never came are ended, has no descriptors that would count.
//! * The bytes of packets, like everything else that the producer wrote before it published, are there once the word was acquired,
//!   whatever told where they are.

/// A 64-bit word that one side writes and others read. Loads acquire, stores release, at system scope.
pub trait Word {
    /// Reads; what the writer wrote before is visible after.
    fn load(&self) -> u64;
    /// Writes; what this side wrote before is visible to who reads the value.
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

/// The words of one ring, wherever they lie.
pub trait Words {
    /// The type of its words.
    type Word: Word;
    /// Number of slots: a power of two, at most 2^31.
    fn slots(&self) -> u32;
    /// Written by the producer, read by the slot's consumer. Slot is below [`Words::slots`].
    fn submitted(&self, slot: u32) -> &Self::Word;
    /// Written by the consumer, read by the sender.
    fn completed(&self, slot: u32) -> &Self::Word;
    /// Written by the sender, read by the producer.
    fn freed(&self) -> &Self::Word;
    /// Written by the producer, read by consumers and the sender.
    fn end(&self) -> &Self::Word;
}

/// What a look at the ring found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// The item in this slot is the caller's until handed on; `info` is what the writer said of it.
    Item {
        /// Where it is.
        slot: u32,
        /// The high half of the word.
        info: u32,
    },
    /// Nothing yet.
    Empty,
    /// Nothing any more: the producer closed the ring and all that this side had to do is done.
    Closed,
}

#[inline(always)]
fn slot_of<W: Words>(words: &W, position: u64) -> u32 {
    position as u32 & (words.slots() - 1)
}

/// The lap of a position; wraps, and is compared for equality only.
#[inline(always)]
pub fn lap_of(position: u64, slots: u32) -> u32 {
    ((position >> slots.trailing_zeros()) as u32).wrapping_add(1)
}

#[inline(always)]
fn word(lap: u32, info: u32) -> u64 {
    lap as u64 | (info as u64) << 32
}

/// Writes a descriptor's two words so that it can be read before its item's word: the one with the lap last.
#[inline(always)]
pub fn describe<W: Word>(words: [&W; 2], address: u64, length: u32, lap: u32) {
    words[0].store(address);
    words[1].store(length as u64 | (lap as u64) << 32);
}

/// A descriptor whose second word is `second` was written for the item of `lap`, all of it, if both words were read at once.
#[inline(always)]
pub fn belongs(second: u64, lap: u32) -> bool {
    lap != 0 && (second >> 32) as u32 == lap
}

#[inline(always)]
fn look<W: Words>(words: &W, word: &W::Word, position: u64) -> Polled {
    let value = word.load();
    if value as u32 == lap_of(position, words.slots()) {
        return Polled::Item { slot: slot_of(words, position), info: (value >> 32) as u32 };
    }
    match words.end().load() {
        0 => Polled::Empty,
        end if position >= end - 1 => Polled::Closed,
        _ => Polled::Empty,
    }
}

/// The producer's cursor.
#[derive(Debug, Default)]
pub struct Producer {
    position: u64,
    freed_seen: u64,
}

impl Producer {
    /// A cursor that starts at `position`; all sides must start there, on words that say so (0 for fresh ones).
    pub fn starting_at(position: u64) -> Self {
        Self { position, freed_seen: position }
    }

    /// The slot that may be filled next, or `None` while the ring is full. Claiming twice gives the same slot.
    #[inline]
    pub fn claim<W: Words>(&mut self, words: &W) -> Option<u32> {
        if self.position - self.freed_seen >= words.slots() as u64 {
            self.freed_seen = self.freed_clamped(words);
            if self.position - self.freed_seen >= words.slots() as u64 {
                return None;
            }
        }
        Some(slot_of(words, self.position))
    }

    /// The word that [`Producer::publish`] writes next.
    #[inline(always)]
    pub fn word<W: Words>(&self, words: &W, info: u32) -> u64 {
        word(lap_of(self.position, words.slots()), info)
    }

    /// Hands the claimed slot to its consumer.
    ///
    /// # Panics
    /// In debug builds, when nothing was claimed.
    #[inline]
    pub fn publish<W: Words>(&mut self, words: &W, info: u32) {
        debug_assert!(self.position - self.freed_seen < words.slots() as u64, "publish without claim");
        let slot = slot_of(words, self.position);
        words.submitted(slot).store(self.word(words, info));
        self.position += 1;
    }

    /// How many items are published and not yet freed.
    pub fn in_flight<W: Words>(&mut self, words: &W) -> u64 {
        self.freed_seen = self.freed_clamped(words);
        self.position - self.freed_seen
    }

    /// The position of the next item: how many were published, counted from the start.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// No more items will come.
    pub fn close<W: Words>(&mut self, words: &W) {
        words.end().store(self.position + 1);
    }

    // `freed` may be written by another process: never believe that more was freed than published, or less than before.
    fn freed_clamped<W: Words>(&self, words: &W) -> u64 {
        words.freed().load().clamp(self.freed_seen, self.position)
    }
}

/// The cursor of one of n consumers.
#[derive(Debug)]
pub struct Consumer {
    position: u64,
    stride: u64,
}

impl Consumer {
    /// Consumer `index` of `consumers`: takes positions start + index, start + index + consumers, ...
    pub fn new(start: u64, index: u32, consumers: u32) -> Self {
        Self { position: start + index as u64, stride: consumers as u64 }
    }

    /// Looks for this consumer's next item. Polling again before [`Consumer::complete`] gives the same item.
    #[inline]
    pub fn poll<W: Words>(&self, words: &W) -> Polled {
        look(words, words.submitted(slot_of(words, self.position)), self.position)
    }

    /// Hands the item that `poll` gave to the sender.
    #[inline]
    pub fn complete<W: Words>(&mut self, words: &W, info: u32) {
        let slot = slot_of(words, self.position);
        words.completed(slot).store(word(lap_of(self.position, words.slots()), info));
        self.position += self.stride;
    }
}

/// The sender's cursor: takes every item, in order.
#[derive(Debug, Default)]
pub struct Sender {
    position: u64,
}

impl Sender {
    /// A cursor that starts at `position`.
    pub fn starting_at(position: u64) -> Self {
        Self { position }
    }

    /// Looks whether the next item in order is complete.
    #[inline]
    pub fn poll<W: Words>(&self, words: &W) -> Polled {
        look(words, words.completed(slot_of(words, self.position)), self.position)
    }

    /// The position of the next item: how many were freed, counted from the start.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The lap of the item that is next.
    #[inline(always)]
    pub fn lap<W: Words>(&self, words: &W) -> u32 {
        lap_of(self.position, words.slots())
    }

    /// Gives the slot of the item that `poll` gave back to the producer.
    #[inline]
    pub fn free<W: Words>(&mut self, words: &W) {
        self.position += 1;
        words.freed().store(self.position);
    }
}
