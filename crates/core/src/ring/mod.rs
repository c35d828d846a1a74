//! The burst ring: a list by which one thread passes bursts to worker threads or to a GPU, and takes them
//! back.
//!
//! ```text
//!           submission half: bursts                 completion half: verdicts
//! Dispatcher --------------------> Consumer or GPU --------------------------> Dispatcher
//! ```
//!
//! * `protocol.rs` defines how items are passed, and why no word is mistaken for a word of another lap;
//! * [`layout`] defines the layout of items in memory.
//!
//! The two halves are separate regions. They lie in host memory if threads consume items, and in pinned
//! memory if a GPU does. Only descriptors go through the ring. The packets' cookies stay with the dispatching
//! thread, so a consumer cannot make the host free a packet that the host did not submit.

mod consumer;
mod dispatcher;
pub mod layout;
#[cfg(all(test, not(miri)))]
mod model_tests;
pub(crate) mod protocol;
#[cfg(test)]
mod tests;
mod verdicts;

use crate::cache::CacheAligned;
use crate::error::{Error, Result};
use crate::packet::Packet;
use crate::region::Region;
use layout::{Descriptor, PacketVerdict};
use protocol::Words;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use consumer::{Consumer, NextItem, SubmittedItem};
pub use dispatcher::{CompletedItem, Dispatcher, Half};
pub use protocol::{Word, lap_of};
pub use verdicts::{VerdictCounts, apply_verdicts};

/// The memory of one burst ring. The dispatcher and the consumers share it. Other threads may observe it.
///
/// A ring has one dispatcher, which its constructor returns. Nothing creates a second one:
///
/// ```compile_fail,E0599
/// # use inlane_core::ring::Ring;
/// let (dispatcher, consumers) = Ring::between_threads(8, 32, 1)?;
/// let (second, others) = dispatcher.ring().clone().dispatch(1);
/// # Ok::<(), inlane_core::Error>(())
/// ```
///
/// ```compile_fail,E0599
/// # use inlane_core::ring::Ring;
/// let (dispatcher, consumers) = Ring::between_threads(8, 32, 1)?;
/// let second = dispatcher.clone();
/// # Ok::<(), inlane_core::Error>(())
/// ```
pub struct Ring {
    slots: u32,
    burst: usize,
    submit: Region,
    complete: Region,
    submit_stride: usize,
    /// The factor that keeps successive slots apart in memory. A core that reads a slot also prefetches the
    /// cache lines behind it. Slot n of the submission half is stored at index n times this factor, modulo
    /// the number of slots. The factor is odd, so no two slots share an index.
    submit_spread: u32,
    complete_stride: usize,
    freed: CacheAligned<AtomicU64>,
}

// SAFETY: the shared words are atomics. All other bytes of a slot are accessed only by the end that owns the
// slot according to the protocol. The loom tests check that accesses before and after a change of the owner
// are ordered.
unsafe impl Sync for Ring {}
// SAFETY: no field is tied to a thread.
unsafe impl Send for Ring {}

/// Gives the dispatcher and the consumers access to the ring's words.
struct RingWords<'a>(&'a Ring);

impl Words for RingWords<'_> {
    type Word = AtomicU64;

    #[inline(always)]
    fn slots(&self) -> u32 {
        self.0.slots
    }

    #[inline(always)]
    fn submitted(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: `submit_slot` returns an address inside the region that is a multiple of 128. All threads
        // access the word there only as an atomic.
        unsafe { AtomicU64::from_ptr(self.0.submit_slot(slot).cast()) }
    }

    #[inline(always)]
    fn completed(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: as for `submitted`.
        unsafe { AtomicU64::from_ptr(self.0.complete_slot(slot).cast()) }
    }

    #[inline(always)]
    fn freed(&self) -> &AtomicU64 {
        &self.0.freed.0
    }

    #[inline(always)]
    fn end(&self) -> &AtomicU64 {
        // SAFETY: the region begins with this word and is aligned to 128 bytes. All threads access the word
        // atomically.
        unsafe { AtomicU64::from_ptr(self.0.submit.as_ptr().cast()) }
    }
}

impl Ring {
    /// Creates a ring in host memory. The ring has `slots` slots for items of up to `burst` packets. Returns
    /// its dispatcher and one consumer for each worker.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `slots` is a power of two from 2 to 65536 and `burst` is 1 to 1024.
    /// [`Error::Memory`] if the memory cannot be allocated.
    pub fn between_threads(
        slots: usize,
        burst: usize,
        consumers: u32,
    ) -> Result<(Dispatcher, Vec<Consumer>)> {
        Self::check(slots, burst)?;
        let submit = Region::host(layout::submit_bytes(slots, burst))?;
        let complete = Region::host(layout::complete_bytes(slots, burst))?;
        // Store submission slot n at index 5n modulo the number of slots. A core that reads an item also
        // prefetches the cache lines behind it. Those lines must not hold the next slot. The dispatcher is
        // about to write that slot, so its lines would move to the reader and back.
        let ring = Self::over(slots, burst, submit, complete, 5)?;
        let consumers = (0..consumers).map(|index| Consumer::new(ring.clone(), index, consumers)).collect();
        Ok((Dispatcher::new(ring), consumers))
    }

    /// Creates a ring over two regions and returns its dispatcher. The consumer is device code. The regions
    /// are zeroed memory that the CPU maps. They have at least [`layout::submit_bytes`] and
    /// [`layout::complete_bytes`] bytes, and are aligned to [`layout::LINE`].
    ///
    /// # Errors
    /// [`Error::Invalid`] in these cases:
    ///
    /// - `slots` is not a power of two from 2 to 65536, or `burst` is not 1 to 1024.
    /// - The regions are too small, misaligned, overlapping, or not mapped by the CPU.
    ///
    /// # Safety
    /// While the ring exists, nothing else on the host accesses the regions, and device code writes only the
    /// completion half. The caller keeps [`Dispatcher::ring`] or the regions until the device code has ended.
    pub unsafe fn to_device(
        slots: usize,
        burst: usize,
        submit: Region,
        complete: Region,
    ) -> Result<Dispatcher> {
        Ok(Dispatcher::new(Self::over(slots, burst, submit, complete, 1)?))
    }

    fn over(slots: usize, burst: usize, submit: Region, complete: Region, spread: u32) -> Result<Arc<Self>> {
        Self::check(slots, burst)?;
        let invalid = |why: &str| Error::Invalid { what: "burst ring memory".into(), why: why.into() };
        if submit.len() < layout::submit_bytes(slots, burst)
            || complete.len() < layout::complete_bytes(slots, burst)
        {
            return Err(invalid("the regions are too small; see layout::submit_bytes and complete_bytes"));
        }
        if !submit.address().is_multiple_of(layout::LINE as u64)
            || !complete.address().is_multiple_of(layout::LINE as u64)
        {
            return Err(invalid("the regions are not aligned to 128 bytes"));
        }
        if submit.overlaps(&complete) {
            return Err(invalid("the two halves overlap; give each its own region"));
        }
        if !submit.location().is_cpu_memory() || !complete.location().is_cpu_memory() {
            return Err(invalid("the CPU cannot access it; give host or pinned memory"));
        }
        Ok(Arc::new(Self {
            slots: slots as u32,
            burst,
            submit_stride: layout::submit_stride(burst),
            submit_spread: spread,
            complete_stride: layout::complete_stride(burst),
            submit,
            complete,
            freed: CacheAligned::default(),
        }))
    }

    fn check(slots: usize, burst: usize) -> Result<()> {
        if !slots.is_power_of_two() || !(2..=layout::MAX_SLOTS).contains(&slots) {
            return Err(Error::Invalid {
                what: format!("a burst ring of {slots} items").into(),
                why: "give a power of two from 2 to 65536".into(),
            });
        }
        if !(1..=layout::MAX_BURST).contains(&burst) {
            return Err(Error::Invalid {
                what: format!("a burst of {burst} packets").into(),
                why: "give 1 to 1024".into(),
            });
        }
        Ok(())
    }

    /// Returns the number of slots, a power of two.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the largest number of packets in an item.
    pub fn burst(&self) -> usize {
        self.burst
    }

    /// Returns the submission half, which device code reads.
    pub fn submit_region(&self) -> &Region {
        &self.submit
    }

    /// Returns the number of packets of the item at `position`, counted from 0. Returns `None` if the item is
    /// not submitted, or if a later item uses its slot.
    #[inline]
    pub fn submitted(&self, position: u64) -> Option<u32> {
        self.info_of(RingWords(self).submitted(position as u32), position)
    }

    /// Returns true if the item at `position` is completed, and its slot does not yet hold a later completed
    /// item.
    #[inline]
    pub fn is_completed(&self, position: u64) -> bool {
        self.info_of(RingWords(self).completed(position as u32), position).is_some()
    }

    fn info_of(&self, word: &AtomicU64, position: u64) -> Option<u32> {
        let word = word.load(Ordering::Acquire);
        (word as u32 == lap_of(position, self.slots)).then_some((word >> 32) as u32)
    }

    /// Returns the number of items that the dispatcher has freed. This is also the position of the oldest
    /// item in flight.
    #[inline]
    pub fn freed(&self) -> u64 {
        self.freed.0.load(Ordering::Acquire)
    }

    /// Returns how many items were submitted in total, or `None` until the ring is closed.
    #[inline]
    pub fn closed_at(&self) -> Option<u64> {
        RingWords(self).end().load(Ordering::Acquire).checked_sub(1)
    }

    /// Ends the waits of device code for items that were never submitted. For this, writes words of items
    /// without packets. Does nothing before the ring is closed. `posted` is the number of items for which
    /// waits were queued on the device.
    ///
    /// If a slot still holds an earlier item, a wait for that slot does not end. So do not wait for the
    /// device code that has such a wait.
    pub fn release_waits(&self, posted: u64) {
        // Return if the ring is still open. While it is open, only the dispatcher may write the words of the
        // submission half.
        let Some(closed) = self.closed_at() else { return };
        for position in closed..posted.min(self.freed() + self.slots as u64) {
            let lap = lap_of(position, self.slots);
            RingWords(self).submitted(position as u32).store(lap as u64, Ordering::Release);
        }
    }

    /// Returns the address of `slot` in the ring's submission half. A number beyond the last slot wraps
    /// around.
    #[inline(always)]
    fn submit_slot(&self, slot: u32) -> *mut u8 {
        let index = slot.wrapping_mul(self.submit_spread) & (self.slots - 1);
        // SAFETY: the index is below the number of slots, and `over` checked the region's size.
        unsafe { self.submit.as_ptr().add(layout::LINE + index as usize * self.submit_stride) }
    }

    /// Returns the address of a slot in the completion half. A `slot` beyond the last one wraps around.
    #[inline(always)]
    fn complete_slot(&self, slot: u32) -> *mut u8 {
        let index = slot & (self.slots - 1);
        // SAFETY: as in `submit_slot`.
        unsafe { self.complete.as_ptr().add(index as usize * self.complete_stride) }
    }

    #[inline(always)]
    fn descriptors(&self, slot: u32) -> *mut Descriptor {
        // SAFETY: from this address on, the slot has room for `burst` descriptors.
        unsafe { self.submit_slot(slot).add(layout::ENTRIES).cast() }
    }

    #[inline(always)]
    fn verdicts(&self, slot: u32) -> *mut PacketVerdict {
        // SAFETY: the slot has room for `burst` verdicts from offset `ENTRIES` on.
        unsafe { self.complete_slot(slot).add(layout::ENTRIES).cast() }
    }

    /// Writes the descriptors of a claimed slot for the item of `lap`. Writes the last descriptor first. The
    /// consumer polls the cache line that holds the item's word and the first descriptors. This line is
    /// written last, so it moves between the cores only once.
    ///
    /// # Safety
    /// The slot is claimed and not published, and there are at most `burst` packets.
    #[inline(always)]
    unsafe fn describe(&self, slot: u32, lap: u32, packets: &[Packet]) {
        if self.burst <= layout::DESCRIPTORS_WITH_WORD {
            return self.describe_early(slot, lap, packets);
        }
        let descriptors = self.descriptors(slot);
        for i in (0..packets.len()).rev() {
            // SAFETY: the descriptor is inside the region, and no other thread accesses the claimed slot. A
            // packet begins with a descriptor's fields, but has its port in place of the lap. This is sound
            // because consumers read laps only in rings whose bursts have at most `DESCRIPTORS_WITH_WORD`
            // packets.
            unsafe { descriptors.add(i).write(packets.as_ptr().add(i).cast::<Descriptor>().read()) };
        }
    }

    /// Writes the descriptors together with the item's lap. The consumer may then read the descriptors before
    /// the item's word.
    #[inline(always)]
    fn describe_early(&self, slot: u32, lap: u32, packets: &[Packet]) {
        if lap == 0 {
            self.clear_laps(slot);
        }
        for (i, packet) in packets.iter().enumerate().rev() {
            protocol::describe(self.descriptor_words(slot, i), packet.address, packet.length, lap);
        }
    }

    /// Sets the laps of a slot's descriptors to 0. No consumer accepts lap 0. Called when the 32-bit lap
    /// wraps, because a descriptor from 2^32 laps ago would look current. No item may be in the slot.
    #[cold]
    fn clear_laps(&self, slot: u32) {
        (0..self.burst).for_each(|i| protocol::describe(self.descriptor_words(slot, i), 0, 0, 0));
    }

    #[inline(always)]
    fn descriptor_words(&self, slot: u32, i: usize) -> [&AtomicU64; 2] {
        debug_assert!(i < self.burst);
        let first = self.descriptors(slot).wrapping_add(i).cast::<u64>();
        // SAFETY: `i` is below `burst`, so both words are inside the region. They are 8-aligned. While the
        // dispatcher fills the slot, no other host thread accesses them, because a worker first reads the
        // item's word. Device code may read descriptors before the item's word, and then checks their lap.
        unsafe { [AtomicU64::from_ptr(first), AtomicU64::from_ptr(first.add(1))] }
    }
}
