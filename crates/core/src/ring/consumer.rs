//! A worker's end of the burst ring. The worker takes items there and completes them.

use super::layout::{Descriptor, PacketVerdict};
use super::protocol::{self, Polled};
use super::{Ring, RingWords};
use std::sync::Arc;

/// The result of a consumer's poll.
pub enum NextItem<T> {
    /// An item.
    Item(T),
    /// No item yet.
    Empty,
    /// No item will follow: the ring is closed, and this consumer has completed all its items.
    Closed,
}

/// One worker's end of the burst ring. The worker polls this end for items, and completes the items.
pub struct Consumer {
    ring: Arc<Ring>,
    cursor: protocol::ConsumerCursor,
}

impl Consumer {
    pub(super) fn new(ring: Arc<Ring>, index: u32, consumers: u32) -> Self {
        Self { ring, cursor: protocol::ConsumerCursor::new(0, index, consumers) }
    }

    /// Polls for this consumer's next item.
    #[inline]
    pub fn poll(&mut self) -> NextItem<SubmittedItem<'_>> {
        match self.cursor.poll(&RingWords(&self.ring)) {
            Polled::Item { slot, info } => {
                let count = (info as usize).min(self.ring.burst);
                NextItem::Item(SubmittedItem { consumer: self, slot, count })
            }
            Polled::Empty => NextItem::Empty,
            Polled::Closed => NextItem::Closed,
        }
    }
}

/// An item for a worker to process. If the worker drops it without [`SubmittedItem::complete`], the next poll
/// returns the same item again.
pub struct SubmittedItem<'a> {
    consumer: &'a mut Consumer,
    slot: u32,
    count: usize,
}

impl SubmittedItem<'_> {
    /// Returns the item's descriptors, and as many verdicts for the worker to write.
    #[inline]
    pub fn parts(&mut self) -> (&[Descriptor], &mut [PacketVerdict]) {
        let ring = &self.consumer.ring;
        // SAFETY: the slot is this consumer's until `complete`: the dispatcher accesses neither descriptors
        // nor verdicts. `count` is at most `burst`.
        unsafe {
            (
                std::slice::from_raw_parts(ring.descriptors(self.slot), self.count),
                std::slice::from_raw_parts_mut(ring.verdicts(self.slot), self.count),
            )
        }
    }

    /// Hands the item back to the dispatcher. `info` is [`UNCHANGED`](super::layout::UNCHANGED), or
    /// [`VERDICTS`](super::layout::VERDICTS) if each packet's verdict is written.
    #[inline]
    pub fn complete(self, info: u32) {
        self.consumer.cursor.complete(&RingWords(&self.consumer.ring), info);
    }
}
