//! The dispatching thread's end of the burst ring. It submits items, and takes completed items back.
//!
//! The dispatching thread keeps the packets of an item until the item is completed. It needs their cookies
//! and metadata, because these are not passed through the ring.

use super::layout::{self, Descriptor, PacketVerdict};
use super::{Ring, RingWords, protocol};
use crate::packet::Packet;
use std::sync::Arc;

/// The dispatching thread's end of the burst ring. Dropping it closes the ring.
pub struct Dispatcher {
    pub(super) ring: Arc<Ring>,
    pub(super) cursor: protocol::DispatcherCursor,
}

impl Dispatcher {
    pub(super) fn new(ring: Arc<Ring>) -> Self {
        let cursor = protocol::DispatcherCursor::new(&RingWords(&ring), 0);
        Self { ring, cursor }
    }

    /// Returns the ring. Other threads, such as a watchdog, can read its progress from it.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Returns true if [`Dispatcher::submit`] would accept an item.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.cursor.claim(&RingWords(&self.ring)).is_some()
    }

    /// Submits `packets` as one item and returns true. The packets' bytes then belong to the consumer until
    /// the item is completed. If all slots are in use or the ring is closed, does nothing and returns false.
    ///
    /// # Panics
    /// If there are more packets than [`Ring::burst`].
    #[inline]
    pub fn submit(&mut self, packets: &[Packet]) -> bool {
        assert!(packets.len() <= self.ring.burst, "more packets than a burst");
        let words = RingWords(&self.ring);
        let Some(slot) = self.cursor.claim(&words) else { return false };
        let lap = self.cursor.word(&words, 0) as u32;
        // SAFETY: the dispatcher owns the claimed slot until the slot is published. The number of packets was
        // checked.
        unsafe { self.ring.describe(slot, lap, packets) };
        self.cursor.publish(&words, packets.len() as u32);
        true
    }

    /// Prefetches half of the next item's cache lines, which are still in a consumer's cache. Call it once
    /// for each half, with other work in between. A whole item at once would exceed the core's line-fill
    /// buffers.
    #[inline]
    pub fn prefetch_next(&self, half: Half) {
        let Some(slot) = self.cursor.claim(&RingWords(&self.ring)) else { return };
        let bytes = layout::ENTRIES + self.ring.burst.min(MOST_PREFETCHED) * size_of::<Descriptor>();
        let middle = (bytes / 2).next_multiple_of(CORE_LINE);
        let (from, to) = match half {
            Half::Second => (middle, bytes),
            Half::First => (0, middle),
        };
        let first = self.ring.submit_slot(slot);
        for line in (from..to).step_by(CORE_LINE) {
            prefetch_to_write(first.wrapping_add(line));
        }
    }

    /// Prefetches the word that [`Dispatcher::poll`] reads next.
    #[inline]
    pub fn prefetch_completion(&self) {
        prefetch_to_read(self.ring.complete_slot(self.cursor.freed() as u32));
    }

    /// Returns the number of items in flight.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.cursor.in_flight()
    }

    /// Returns the oldest item in flight if it is completed. If the caller drops the returned item without
    /// [`CompletedItem::free`], the next poll returns the same item again.
    #[inline]
    pub fn poll(&mut self) -> Option<CompletedItem<'_>> {
        let (slot, info) = self.cursor.poll(&RingWords(&self.ring))?;
        Some(CompletedItem { dispatcher: self, slot, info })
    }

    /// Closes the ring. No more items can be submitted. Each consumer ends after it has completed its items.
    pub fn close(&mut self) {
        self.cursor.close(&RingWords(&self.ring));
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        // Close the ring in a panic, too. The consumers then end.
        self.close();
    }
}

/// A half of an item's cache lines. Prefetch the second half first, because [`Dispatcher::submit`] writes it
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The cache lines with the item's word and the descriptors of its first packets.
    First,
    /// The cache lines that hold the descriptors of the item's last packets.
    Second,
}

/// The most packets per item for which [`Dispatcher::prefetch_next`] prefetches descriptors. Larger items are
/// prefetched in part.
const MOST_PREFETCHED: usize = 128;
/// The length of a CPU's cache line, in bytes. [`layout::LINE`] spans two of them.
const CORE_LINE: usize = 64;

#[inline(always)]
fn prefetch_to_read(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes no register or memory, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

#[inline(always)]
fn prefetch_to_write(line: *const u8) {
    // Use assembly, because the compiler's intrinsic prefetches for reading unless the target CPU is known to
    // have `prefetchw`. CPUs without `prefetchw` ignore the instruction.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes no register or memory, and never faults.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

/// An item that a consumer has completed.
pub struct CompletedItem<'a> {
    dispatcher: &'a mut Dispatcher,
    slot: u32,
    info: u32,
}

impl CompletedItem<'_> {
    /// Returns true if there is a verdict for each packet. If not, all packets are forwarded at their old
    /// length.
    #[inline]
    pub fn changed(&self) -> bool {
        self.info != layout::UNCHANGED
    }

    /// Returns the verdict on packet `i` of the item.
    ///
    /// # Panics
    /// If `i` is [`Ring::burst`] or more.
    #[inline]
    pub fn verdict(&self, i: usize) -> PacketVerdict {
        assert!(i < self.dispatcher.ring.burst, "the burst has no such packet");
        // SAFETY: the slot has room for `burst` verdicts. Faulty device code may still write to a completed
        // item, so use a volatile read. It keeps the compiler from reading twice.
        unsafe { self.dispatcher.ring.verdicts(self.slot).add(i).read_volatile() }
    }

    /// Returns the item's slot to the ring. The ring can then put another item into the slot.
    #[inline]
    pub fn free(self) {
        self.dispatcher.cursor.free(&RingWords(&self.dispatcher.ring));
    }
}
