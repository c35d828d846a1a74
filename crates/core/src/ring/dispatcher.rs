//! Producer and sender in one: for a thread that hands items out, takes them back itself, and keeps its packets meanwhile.
//!
//! Only descriptors go out, and only where something changed do outcomes come back: cookies, and whatever a pool keeps of a
//! packet beside its bytes, stay with the one thread.

use super::layout::{self, Descriptor, PacketVerdict};
use super::protocol::{self, Polled};
use super::{Consumer, Ring};
use crate::packet::Packet;
use std::sync::Arc;

/// The end that submits items and takes them back.
pub struct Dispatcher {
    pub(super) ring: Arc<Ring>,
    pub(super) producer: protocol::Producer,
    pub(super) sender: protocol::Sender,
}

impl Ring {
    /// Splits a fresh ring between one thread that submits and takes back, and `consumers`.
    pub fn dispatch(self: Arc<Self>, consumers: u32) -> (Dispatcher, Vec<Consumer>) {
        let cursors = (0..consumers).map(|index| protocol::Consumer::new(0, index, consumers));
        let consumers = cursors.map(|cursor| Consumer { ring: self.clone(), cursor }).collect();
        let (producer, sender) = Default::default();
        (Dispatcher { ring: self, producer, sender }, consumers)
    }
}

impl Dispatcher {
    /// True when an item can be submitted now.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.producer.claim(&*self.ring).is_some()
    }

    /// Submits `packets` (at most [`Ring::burst`]) as one item; false when all slots are out, and then nothing happened.
    /// After true the bytes of the packets are the consumer's until the item comes back.
    ///
    /// # Panics
    /// When given more than a burst.
    #[inline]
    pub fn submit(&mut self, packets: &[Packet]) -> bool {
        assert!(packets.len() <= self.ring.burst, "more packets than a burst");
        let Some(slot) = self.producer.claim(&*self.ring) else { return false };
        let lap = self.producer.word(&*self.ring, 0) as u32;
        // SAFETY: the claimed slot is this side's alone until it is published; the count is within burst.
        unsafe { self.ring.describe(slot, lap, packets) };
        self.producer.publish(&*self.ring, packets.len() as u32);
        true
    }

    /// Calls in half of the lines that the next item will be written to, while the caller does something else: the consumer of the
    /// item before in that slot has them. More than a half are not under way between a core and its first-level cache at a time.
    #[inline]
    pub fn prefetch_next(&mut self, half: Half) {
        let Some(slot) = self.producer.claim(&*self.ring) else { return };
        let bytes = layout::ENTRIES + self.ring.burst.min(MOST_PREPARED) * size_of::<Descriptor>();
        let middle = (bytes / 2).next_multiple_of(CORE_LINE);
        let (from, to) = match half {
            Half::Back => (middle, bytes),
            Half::Front => (0, middle),
        };
        let first = self.ring.submit_slot(slot);
        for line in (from..to).step_by(CORE_LINE) {
            prefetch_to_write(first.wrapping_add(line));
        }
    }

    /// Calls in the word that says whether the oldest item out is done.
    #[inline]
    pub fn prefetch_completion(&self) {
        let oldest = self.sender.position() as u32 & (self.ring.slots - 1);
        prefetch_to_read(self.ring.complete_slot(oldest));
    }

    /// Items that are out.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.producer.position() - self.sender.position()
    }

    /// The oldest item that is out, if it is done. Dropped without [`CompletedItem::free`], it is given again by the next poll.
    #[inline]
    pub fn poll(&mut self) -> Option<CompletedItem<'_>> {
        // What another process may say of items that are not out is not even read.
        if self.in_flight() == 0 {
            return None;
        }
        match self.sender.poll(&*self.ring) {
            Polled::Item { slot, info } => Some(CompletedItem { dispatcher: self, slot, info }),
            Polled::Empty | Polled::Closed => None,
        }
    }

    /// Ends the ring: consumers stop once they have done what was submitted.
    pub fn close(&mut self) {
        self.producer.close(&*self.ring);
    }
}

/// Which half of an item's lines. The back is written first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The last packets.
    Back,
    /// The first packets and the word.
    Front,
}

/// Packets of an item whose lines are called in.
const MOST_PREPARED: usize = 128;
/// Bytes that a core's caches know as one.
const CORE_LINE: usize = 64;

#[inline(always)]
fn prefetch_to_read(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: changes neither registers nor memory, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

#[inline(always)]
fn prefetch_to_write(line: *const u8) {
    // The intrinsic asks for reading, unless built for CPUs that all have this instruction; others ignore it.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: changes neither registers nor memory, and never faults.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        // Also on a panic: whoever waits for items must learn that none will come.
        self.close();
    }
}

/// An item that is done.
pub struct CompletedItem<'a> {
    dispatcher: &'a mut Dispatcher,
    slot: u32,
    info: u32,
}

impl CompletedItem<'_> {
    /// True when there is an outcome for each packet; else all are forwarded as they are.
    #[inline]
    pub fn changed(&self) -> bool {
        self.info != layout::UNCHANGED
    }

    /// What became of packet `i` of the item.
    ///
    /// # Panics
    /// When `i` is beyond a burst.
    #[inline]
    pub fn verdict(&self, i: usize) -> PacketVerdict {
        assert!(i < self.dispatcher.ring.burst, "no such packet");
        // SAFETY: the slot has room for a burst of outcomes; another process may write them even now, so each is read once.
        unsafe { self.dispatcher.ring.outcomes(self.slot).add(i).read_volatile() }
    }

    /// The slot may be used again.
    #[inline]
    pub fn free(self) {
        self.dispatcher.sender.free(&*self.dispatcher.ring);
    }
}
