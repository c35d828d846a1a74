//! The burst ring: the communication list between who receives packets, who processes them and who sends them on.
//!
//! [`protocol`] says how items are handed over, [`layout`] how they lie in memory; this module joins the two over
//! [`Region`]s. The two halves are separate regions, so that each can lie with its reader: both in host memory between
//! threads, in pinned memory or a GPU's own towards a GPU, in a peer's memory through a window.
//!
//! What only the host's side needs (cookies, counts, `freed`) stays in a third, private place, so nothing that the
//! consumer's side writes can make the host free a packet it did not hand out.
//!
//! The submit half must lie in memory that the CPU reads as cheaply as it writes (host, pinned): the sender reads the
//! descriptors again. A submit half in GPU memory (GDRCopy) would need a host copy of them: not supported yet.

mod dispatcher;
pub mod layout;
pub mod protocol;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::packet::Packet;
use crate::region::Region;
use layout::{Descriptor, PacketVerdict};
use protocol::{Polled, Words};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use dispatcher::{CompletedItem, Dispatcher, Half};

/// A word with a cache line (and its prefetched neighbour) to itself.
#[repr(align(128))]
#[derive(Default)]
struct Padded<T>(T);

/// What the host keeps of an item for itself.
struct Kept {
    /// Lap and number of packets, as the producer published them: the sender believes no completion of an item that was
    /// not, whatever another process wrote.
    published: AtomicU64,
    cookies: Box<[UnsafeCell<u64>]>,
    stamps: UnsafeCell<Stamps>,
}

/// When an item passed each stage, as raw readings of a [`crate::clock::Clock`]; zeros where timing is off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamps {
    /// Its packets had been received.
    pub received: u64,
    /// It was published.
    pub queued: u64,
}

/// The memory of one ring, shared by its ends.
pub struct Ring {
    slots: u32,
    burst: usize,
    submit: Region,
    complete: Region,
    submit_stride: usize,
    /// Slot n lies in the (n times this)th place of the submit half; odd, so that each has one.
    submit_spread: u32,
    complete_stride: usize,
    freed: Padded<AtomicU64>,
    kept: Box<[Kept]>,
}

// SAFETY: shared words are atomics; everything else of a slot is touched only by the side that the protocol gave the slot
// to (model-checked in tests), which is a happens-before relation between the accesses.
unsafe impl Sync for Ring {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Ring {}

impl Words for Ring {
    type Word = AtomicU64;

    #[inline(always)]
    fn slots(&self) -> u32 {
        self.slots
    }

    #[inline(always)]
    fn submitted(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: `slot` is below slots, so the word is inside the region; it is 8-aligned by the layout and only ever
        // accessed as an atomic.
        unsafe { AtomicU64::from_ptr(self.submit_slot(slot).cast()) }
    }

    #[inline(always)]
    fn completed(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: as for `submitted`.
        unsafe { AtomicU64::from_ptr(self.complete_slot(slot).cast()) }
    }

    #[inline(always)]
    fn freed(&self) -> &AtomicU64 {
        &self.freed.0
    }

    #[inline(always)]
    fn end(&self) -> &AtomicU64 {
        // SAFETY: the first word of the submit half, as for `submitted`.
        unsafe { AtomicU64::from_ptr(self.submit.as_ptr().cast()) }
    }
}

impl Ring {
    /// A ring of `slots` items of up to `burst` packets, in host memory.
    ///
    /// # Errors
    /// As for [`Ring::over`], and [`Error::Memory`].
    pub fn new(slots: usize, burst: usize) -> Result<Arc<Self>> {
        Self::check(slots, burst)?;
        let submit = Region::host(layout::submit_bytes(slots, burst))?;
        let complete = Region::host(layout::complete_bytes(slots, burst))?;
        // Nobody but this process knows where its slots lie. A consumer's core that reads an item fetches what lies behind it, too:
        // that must not be the item that the producer's core is about to write, or its lines cross once more.
        Self::lay(slots, burst, submit, complete, 5)
    }

    /// A ring over two regions of zeroed memory that the CPU maps, of at least [`layout::submit_bytes`] and
    /// [`layout::complete_bytes`], aligned to [`layout::LINE`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for slots that are no power of two from 2 to 65536, a burst outside 1 to 1024, regions too
    /// small, misaligned, overlapping, or in memory that the CPU does not map.
    pub fn over(slots: usize, burst: usize, submit: Region, complete: Region) -> Result<Arc<Self>> {
        Self::lay(slots, burst, submit, complete, 1)
    }

    fn lay(slots: usize, burst: usize, submit: Region, complete: Region, spread: u32) -> Result<Arc<Self>> {
        Self::check(slots, burst)?;
        let invalid = |why: &str| Error::Invalid { what: "burst ring memory".into(), why: why.into() };
        if submit.len() < layout::submit_bytes(slots, burst)
            || complete.len() < layout::complete_bytes(slots, burst)
        {
            return Err(invalid("smaller than slots and burst need; see ring::layout"));
        }
        if !submit.address().is_multiple_of(layout::LINE as u64)
            || !complete.address().is_multiple_of(layout::LINE as u64)
        {
            return Err(invalid("not aligned to 128 bytes"));
        }
        if submit.overlaps(&complete) {
            return Err(invalid("the two halves overlap"));
        }
        if !submit.location().is_cpu_memory() || !complete.location().is_cpu_memory() {
            return Err(invalid(
                "both halves must be in host or pinned memory; others are not supported yet",
            ));
        }
        let kept = || Kept {
            published: AtomicU64::new(0),
            cookies: (0..burst).map(|_| UnsafeCell::new(0)).collect(),
            stamps: UnsafeCell::default(),
        };
        Ok(Arc::new(Self {
            slots: slots as u32,
            burst,
            submit_stride: layout::submit_stride(burst),
            submit_spread: spread,
            complete_stride: layout::complete_stride(burst),
            submit,
            complete,
            freed: Padded::default(),
            kept: (0..slots).map(|_| kept()).collect(),
        }))
    }

    fn check(slots: usize, burst: usize) -> Result<()> {
        if !slots.is_power_of_two() || !(2..=layout::MAX_SLOTS).contains(&slots) {
            return Err(Error::Invalid {
                what: format!("a burst ring of {slots} items"),
                why: "give a power of two from 2 to 65536".into(),
            });
        }
        if !(1..=layout::MAX_BURST).contains(&burst) {
            return Err(Error::Invalid {
                what: format!("a burst of {burst} packets"),
                why: "give 1 to 1024".into(),
            });
        }
        Ok(())
    }

    /// Splits a fresh ring into its ends, with `consumers` of them on the host (0 when device code consumes).
    pub fn split(self: Arc<Self>, consumers: u32) -> (Producer, Vec<Consumer>, Sender) {
        let cursors = (0..consumers).map(|index| protocol::Consumer::new(0, index, consumers));
        (
            Producer { ring: self.clone(), cursor: Default::default() },
            cursors.map(|cursor| Consumer { ring: self.clone(), cursor }).collect(),
            Sender { ring: self, cursor: Default::default() },
        )
    }

    /// Most packets an item holds.
    pub fn burst(&self) -> usize {
        self.burst
    }

    /// The submit half: what device code reads.
    pub fn submit_region(&self) -> &Region {
        &self.submit
    }

    /// The complete half: what device code writes.
    pub fn complete_region(&self) -> &Region {
        &self.complete
    }

    #[inline(always)]
    fn submit_slot(&self, slot: u32) -> *mut u8 {
        let place = slot.wrapping_mul(self.submit_spread) & (self.slots - 1);
        // SAFETY: place is below slots, so this is inside the region (checked in `lay`).
        unsafe { self.submit.as_ptr().add(layout::LINE + place as usize * self.submit_stride) }
    }

    #[inline(always)]
    fn complete_slot(&self, slot: u32) -> *mut u8 {
        // SAFETY: as in `submit_slot`.
        unsafe { self.complete.as_ptr().add(slot as usize * self.complete_stride) }
    }

    #[inline(always)]
    fn descriptors(&self, slot: u32) -> *mut Descriptor {
        // SAFETY: a slot has room for `burst` descriptors from there.
        unsafe { self.submit_slot(slot).add(layout::ENTRIES).cast() }
    }

    /// Writes descriptors of a claimed slot for an item of `lap`, from the last to the first: the line of the word, at which the
    /// consumer looks all the time, is written at the end, and crosses once.
    ///
    /// # Safety
    /// The slot is claimed and not published, and there are no more packets than a burst.
    #[inline(always)]
    unsafe fn describe(&self, slot: u32, lap: u32, packets: &[Packet]) {
        if self.burst <= layout::TOGETHER {
            return self.describe_early(slot, lap, packets);
        }
        let descriptors = self.descriptors(slot);
        for i in (0..packets.len()).rev() {
            // SAFETY: inside the region, and nobody else's (the caller vouches for it). A packet begins as a descriptor does; nobody looks
            // at the lap. In one piece each: half the stores.
            unsafe { descriptors.add(i).write(packets.as_ptr().add(i).cast::<Descriptor>().read()) };
        }
    }

    /// The same for consumers that may read descriptors before the word.
    #[inline(always)]
    fn describe_early(&self, slot: u32, lap: u32, packets: &[Packet]) {
        if lap == 0 {
            self.forget_laps(slot);
        }
        for (i, packet) in packets.iter().enumerate().rev() {
            protocol::describe(self.descriptor_words(slot, i), packet.address, packet.length, lap);
        }
    }

    /// No descriptor of a claimed slot says a lap of 2^32 laps ago any more.
    #[cold]
    fn forget_laps(&self, slot: u32) {
        (0..self.burst).for_each(|i| protocol::describe(self.descriptor_words(slot, i), 0, 0, 0));
    }

    #[inline(always)]
    fn descriptor_words(&self, slot: u32, i: usize) -> [&AtomicU64; 2] {
        debug_assert!(i < self.burst);
        let first = self.descriptors(slot).wrapping_add(i).cast::<u64>();
        // SAFETY: inside the region and aligned by the layout; who reads them while the slot is claimed does so at once, and is no
        // thread of this process.
        unsafe { [AtomicU64::from_ptr(first), AtomicU64::from_ptr(first.add(1))] }
    }

    #[inline(always)]
    fn outcomes(&self, slot: u32) -> *mut PacketVerdict {
        // SAFETY: a slot has room for `burst` outcomes from there.
        unsafe { self.complete_slot(slot).add(layout::ENTRIES).cast() }
    }
}

/// What an end of the ring found.
pub enum Next<T> {
    /// An item.
    Item(T),
    /// Nothing yet.
    Empty,
    /// Nothing any more.
    Closed,
}

/// The producer's end.
pub struct Producer {
    ring: Arc<Ring>,
    cursor: protocol::Producer,
}

impl Producer {
    /// True when an item can be submitted now.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.cursor.claim(&*self.ring).is_some()
    }

    /// Submits `packets` (at most [`Ring::burst`]) as one item; false when the ring is full, and then nothing happened.
    /// After true the packets belong to the ring.
    ///
    /// # Panics
    /// When given more than a burst.
    #[inline]
    pub fn submit(&mut self, packets: &[Packet], stamps: Stamps) -> bool {
        assert!(packets.len() <= self.ring.burst, "more packets than a burst");
        let Some(slot) = self.cursor.claim(&*self.ring) else { return false };
        let kept = &self.ring.kept[slot as usize];
        let word = self.cursor.word(&*self.ring, packets.len() as u32);
        // SAFETY: the claimed slot is this side's alone until it is published; the count is within burst.
        unsafe {
            *kept.stamps.get() = stamps;
            for (packet, cookie) in packets.iter().zip(&kept.cookies) {
                *cookie.get() = packet.cookie;
            }
            self.ring.describe(slot, word as u32, packets);
        }
        kept.published.store(word, Ordering::Release);
        self.cursor.publish(&*self.ring, packets.len() as u32);
        true
    }

    /// Items submitted and not yet freed.
    pub fn in_flight(&mut self) -> u64 {
        self.cursor.in_flight(&*self.ring)
    }

    /// Ends the ring: the others stop once they have done what was submitted.
    pub fn close(&mut self) {
        self.cursor.close(&*self.ring);
    }

    /// The ring it belongs to.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // Also on a panic: whoever waits for items must learn that none will come.
        self.close();
    }
}

/// A consumer's end: one of those who process items.
pub struct Consumer {
    ring: Arc<Ring>,
    cursor: protocol::Consumer,
}

impl Consumer {
    /// This consumer's next item, if it is there.
    #[inline]
    pub fn poll(&mut self) -> Next<Work<'_>> {
        match self.cursor.poll(&*self.ring) {
            // The count may come from another process: never more than there is room for.
            Polled::Item { slot, info } => {
                let count = (info as usize).min(self.ring.burst);
                Next::Item(Work { consumer: self, slot, count })
            }
            Polled::Empty => Next::Empty,
            Polled::Closed => Next::Closed,
        }
    }
}

/// An item that a consumer works on. Dropped without [`Work::complete`], it is given again by the next poll.
pub struct Work<'a> {
    consumer: &'a mut Consumer,
    slot: u32,
    count: usize,
}

impl Work<'_> {
    /// Its packets, and room for what becomes of them.
    #[inline]
    pub fn parts(&mut self) -> (&[Descriptor], &mut [PacketVerdict]) {
        let ring = &self.consumer.ring;
        // SAFETY: the protocol gave this slot to this consumer, so the producer does not write the descriptors and
        // nobody reads the outcomes until `complete`.
        unsafe {
            (
                std::slice::from_raw_parts(ring.descriptors(self.slot), self.count),
                std::slice::from_raw_parts_mut(ring.outcomes(self.slot), self.count),
            )
        }
    }

    /// Hands the item to the sender. `info` is [`layout::UNCHANGED`] or [`layout::VERDICTS`].
    #[inline]
    pub fn complete(self, info: u32) {
        self.consumer.cursor.complete(&*self.consumer.ring, info);
    }
}

/// The sender's end.
pub struct Sender {
    ring: Arc<Ring>,
    cursor: protocol::Sender,
}

/// What became of an item's packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// How many packets are forwarded: the first so many of the array given.
    pub forwarded: usize,
    /// How many are dropped by verdict: they stand in the array behind those forwarded.
    pub dropped: usize,
    /// Of those dropped, how many had a verdict or length that makes no sense.
    pub invalid: usize,
    /// When the item passed the earlier stages.
    pub stamps: Stamps,
}

/// Applies outcomes to packets in place: those to forward come first, in order, then those to drop.
///
/// An outcome may shorten a packet, or lengthen it up to `room` bytes; anything else drops it as invalid.
#[inline]
pub fn sort_out(packets: &mut [Packet], outcome: impl Fn(usize) -> PacketVerdict, room: u32) -> Done {
    let mut done = Done::default();
    for i in 0..packets.len() {
        let PacketVerdict { length, verdict } = outcome(i);
        let packet = &mut packets[i];
        let sensible =
            length > 0 && length <= room.max(packet.length) && verdict < layout::PORT_BASE + u16::MAX as u32;
        if verdict == layout::DROP || !sensible {
            done.invalid += (verdict != layout::DROP) as usize;
            continue;
        }
        packet.length = length;
        packet.port = verdict.saturating_sub(layout::PORT_BASE);
        packets.swap(i, done.forwarded);
        done.forwarded += 1;
    }
    done.dropped = packets.len() - done.forwarded;
    done
}

/// Takes back every packet of a ring whose other ends are gone: what was submitted and not sent, in order. For the end of a
/// run that broke.
///
/// # Panics
/// When another end of the ring still exists.
pub fn reclaim(mut producer: Producer) -> Vec<Packet> {
    assert_eq!(Arc::strong_count(&producer.ring), 1, "the other ends of the ring must be gone");
    let in_flight = producer.in_flight();
    let ring = &producer.ring;
    let mut packets = Vec::new();
    for position in producer.cursor.position() - in_flight..producer.cursor.position() {
        let slot = position as u32 & (ring.slots - 1);
        let kept = &ring.kept[slot as usize];
        let count = (kept.published.load(Ordering::Acquire) >> 32) as usize;
        for (i, cookie) in kept.cookies[..count].iter().enumerate() {
            // SAFETY: no other end exists, so nobody else touches the slot; the producer wrote `count` descriptors.
            let (descriptor, cookie) = unsafe { (ring.descriptors(slot).add(i).read(), *cookie.get()) };
            packets.push(Packet { address: descriptor.address, length: descriptor.length, port: 0, cookie });
        }
    }
    packets
}

impl Sender {
    /// Copies the next item, if complete, into `packets` (at least [`Ring::burst`] long): those to forward first, in
    /// order, then those to drop; then frees its slot. All of them are the caller's from then on.
    ///
    /// An outcome may shorten a packet, or lengthen it up to `room` bytes; anything else drops it as invalid.
    ///
    /// # Panics
    /// When `packets` is shorter than a burst.
    #[inline]
    pub fn poll(&mut self, packets: &mut [Packet], room: u32) -> Next<Done> {
        assert!(packets.len() >= self.ring.burst, "fewer places than a burst");
        let (slot, info) = match self.cursor.poll(&*self.ring) {
            Polled::Item { slot, info } => (slot, info),
            Polled::Empty => return Next::Empty,
            Polled::Closed => return Next::Closed,
        };
        let kept = &self.ring.kept[slot as usize];
        let published = kept.published.load(Ordering::Acquire);
        if published as u32 != self.cursor.lap(&*self.ring) {
            // Another process completed what the producer has not published: there is nothing yet.
            return Next::Empty;
        }
        let descriptors = self.ring.descriptors(slot);
        let count = (published >> 32) as usize;
        // SAFETY: a published and completed item is the sender's until freed.
        let stamps = unsafe { *kept.stamps.get() };
        let packet = |i: usize| {
            // SAFETY: as above, and i is below count, which the producer wrote within burst in memory that no other process
            // sees.
            let (descriptor, cookie) = unsafe { (descriptors.add(i).read(), *kept.cookies[i].get()) };
            Packet { address: descriptor.address, cookie, length: descriptor.length, port: 0 }
        };
        for (i, place) in packets[..count].iter_mut().enumerate() {
            *place = packet(i);
        }
        let mut done = Done { forwarded: count, stamps, ..Done::default() };
        if info != layout::UNCHANGED {
            // SAFETY: the consumer wrote the outcomes before completing; another process may write them even now, so each
            // is read once.
            let outcome = |i: usize| unsafe { self.ring.outcomes(slot).add(i).read_volatile() };
            done = Done { stamps, ..sort_out(&mut packets[..count], outcome, room) };
        }
        self.cursor.free(&*self.ring);
        Next::Item(done)
    }

    /// The ring it belongs to.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }
}
