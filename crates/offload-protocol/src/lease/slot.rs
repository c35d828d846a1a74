//! The layout of the shared memory.
//!
//! ```text
//! area:  slot 0 | slot 1 | ... | slot 63 | ready word (4096 bytes)
//! slot:  header (4096 bytes) | send ring (SEND bytes) | received bytes (RECEIVE bytes)
//! ```

use super::{Offer, PostedReceive, RECEIVE, SEND, SLOTS, SendLease};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit word on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line(pub AtomicU64);

/// The header of a slot of shared memory. The engine and the program share its words, and access them only as
/// atomics. The engine checks every value that it reads, because the program may write any value.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Header {
    /// The word of [`SendLease`].
    pub send: Line,
    /// The word of [`PostedReceive`].
    pub receive: Line,
    /// The position in the send ring up to which the engine has copied bytes out. Only the engine writes it.
    pub copied: Line,
    /// The number of received bytes in the slot that the engine currently offers to the program. Only the
    /// engine writes it.
    pub offered: AtomicU64,
    /// The last time at which the engine recorded that it is running, in nanoseconds of CLOCK_MONOTONIC. Only
    /// the engine writes this word.
    pub alive_ns: AtomicU64,
    /// The inode of the program's end of the socket pair, or 0 if no connection uses the slot. Only the
    /// engine writes it.
    pub inode: AtomicU64,
    /// The device number (`st_dev`) of the program's end of the socket pair. Only the engine writes it.
    pub device: AtomicU64,
    /// 1 once the program has shut down its sending direction. Only the program writes it.
    pub shut: AtomicU64,
    /// 1 once the program has set SO_RCVLOWAT. All received bytes must then go through the socket pair,
    /// because the kernel applies this option there. Only the program writes this word.
    pub low_water: AtomicU64,
}

/// The offset of the send ring in bytes, counted from the start of a slot.
const SEND_AT: usize = 4096;
/// The offset of the memory for received bytes from the start of a slot, in bytes.
const RECEIVE_AT: usize = SEND_AT + SEND;
/// The distance in bytes from the memory of one slot to that of the next. It has a page more than a slot,
/// because slots start at different distances from the start of a page ([`SHIFTS`]).
const LEN: usize = RECEIVE_AT + RECEIVE + 4096;
/// The number of different offsets within a page at which slots start. If all slots had the same offset,
/// their headers would compete for the same few sets of a processor's first-level cache.
const SHIFTS: usize = 16;
/// The difference between the starts of successive slots within a page, in bytes. Because of it, their
/// headers fall into different sets of the cache.
const SHIFT: usize = 256;

const _: () = assert!(size_of::<Header>() <= SHIFT && SEND.is_power_of_two() && LEN.is_multiple_of(4096));
const _: () = assert!(RECEIVE_AT + RECEIVE + (SHIFTS - 1) * SHIFT <= LEN);

/// A mapped area.
#[derive(Clone, Copy, Debug)]
pub struct Area(NonNull<u8>);

impl Area {
    /// The length of an area, in bytes.
    pub const LEN: usize = LEN * SLOTS + 4096;

    /// Creates a handle for the area that is mapped at `start`.
    ///
    /// # Safety
    /// [`Area::LEN`] bytes of readable and writable shared memory are mapped at `start`. They stay mapped as
    /// long as this value and its slots are used.
    pub unsafe fn new(start: NonNull<u8>) -> Self {
        Self(start)
    }

    /// Returns the area's ready word. The engine sets bit n when it offers bytes to the posted receive of
    /// slot n. It never reads the word. The program clears the bit when it finds no offer in the slot.
    pub fn ready(&self) -> &AtomicU64 {
        // SAFETY: the word lies in the mapped area, behind the slots. An atomic is valid for any bytes and may be
        // shared with other processes.
        unsafe { self.0.add(LEN * SLOTS).cast().as_ref() }
    }

    /// Returns the index of `slot` in this area, or `None` if the slot belongs to another area.
    pub fn index_of(self, slot: Slot) -> Option<usize> {
        let offset = (slot.0.as_ptr() as usize).checked_sub(self.0.as_ptr() as usize)?;
        Some(offset / LEN).filter(|&index| self.slot(index) == Some(slot))
    }

    /// Returns slot `index` of the shared memory, or `None` if `index` is not below [`SLOTS`].
    pub fn slot(self, index: usize) -> Option<Slot> {
        // SAFETY: `index` is below `SLOTS`, so the slot is in the mapped area.
        (index < SLOTS).then(|| Slot(unsafe { self.0.add(index * LEN + index % SHIFTS * SHIFT) }))
    }
}

/// A slot of an area of shared memory. Other processes may write to the slot at any time. So its bytes are
/// only copied, and no reference to them exists. Its words are atomics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(NonNull<u8>);

impl Slot {
    /// Returns the address of the slot.
    pub fn as_ptr(self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// Creates a handle of the slot of shared memory at `start`. Returns `None` if `start` is null.
    ///
    /// # Safety
    /// `start` comes from [`Slot::as_ptr`] of a slot whose area is still mapped.
    pub unsafe fn from_ptr(start: *mut u8) -> Option<Self> {
        NonNull::new(start).map(Self)
    }

    /// Returns the words.
    pub fn header(&self) -> &Header {
        // SAFETY: the slot lies in an area that is mapped while the slot is used (see [`Area::new`]). A slot
        // begins with its header. The header consists of atomics, which are valid for any bytes and may be
        // shared with other processes.
        unsafe { self.0.cast().as_ref() }
    }

    /// Returns the send lease.
    pub fn send(&self) -> SendLease<'_, AtomicU64> {
        SendLease(&self.header().send.0)
    }

    /// Returns the posted receive.
    pub fn receive(&self) -> PostedReceive<'_, AtomicU64> {
        PostedReceive(&self.header().receive.0)
    }

    /// Returns the address of the byte at `position` in the send ring, and the number of bytes from there to
    /// the ring's end.
    fn send_at(self, position: u64) -> (*mut u8, usize) {
        let offset = (position & (SEND as u64 - 1)) as usize;
        // SAFETY: the offset is within the ring.
        (unsafe { self.0.as_ptr().add(SEND_AT + offset) }, SEND - offset)
    }

    /// Copies `len` bytes at `from` into the send ring, at `position`.
    ///
    /// # Safety
    /// `from` has `len` bytes, at most [`SEND`], and the calling thread has claimed the ring.
    pub unsafe fn write_send(self, position: u64, from: *const u8, len: usize) {
        let (to, room) = self.send_at(position);
        let first = len.min(room);
        // SAFETY: both parts lie within the ring, and the caller promises that `from` has `len` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, first);
            std::ptr::copy_nonoverlapping(from.add(first), self.send_at(0).0, len - first);
        }
    }

    /// Copies bytes of the send ring to `to` until `to` is full, beginning at `position`.
    ///
    /// # Panics
    /// If `to` is longer than the ring.
    pub fn read_send(self, position: u64, to: &mut [u8]) {
        assert!(to.len() <= SEND);
        let (from, room) = self.send_at(position);
        let (low, high) = to.split_at_mut(to.len().min(room));
        // SAFETY: both source spans lie within the send ring. If the program writes to them during the copy,
        // the copy mixes old and new bytes. That harms only this connection, because only its peer receives
        // the bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(from, low.as_mut_ptr(), low.len());
            std::ptr::copy_nonoverlapping(self.send_at(0).0, high.as_mut_ptr(), high.len());
        }
    }

    /// Copies `first` and then `second` into the memory for received bytes.
    ///
    /// # Panics
    /// If `first` and `second` together are longer than [`RECEIVE`].
    pub fn write_received(self, first: &[u8], second: &[u8]) {
        assert!(first.len() + second.len() <= RECEIVE);
        self.header().offered.store((first.len() + second.len()) as u64, Ordering::Relaxed);
        // SAFETY: the bytes lie within the slot.
        unsafe {
            let to = self.0.as_ptr().add(RECEIVE_AT);
            std::ptr::copy_nonoverlapping(first.as_ptr(), to, first.len());
            std::ptr::copy_nonoverlapping(second.as_ptr(), to.add(first.len()), second.len());
        }
    }

    /// Copies the first `len` received bytes of the slot to `to`, but at most [`RECEIVE`] bytes.
    ///
    /// # Safety
    /// `to` has room for `len` bytes.
    pub unsafe fn read_received(self, to: *mut u8, len: usize) {
        // SAFETY: the caller promises room for the bytes.
        unsafe { self.read_received_at(0, to, len) };
    }

    /// Copies `len` unread bytes of `offer` to `to`. Skips the first `from` unread bytes.
    ///
    /// # Safety
    /// `to` has room for `len` bytes.
    pub unsafe fn read_offered(self, offer: Offer, from: usize, to: *mut u8, len: usize) {
        let start = self.header().offered.load(Ordering::Relaxed).saturating_sub(offer.len);
        // SAFETY: the caller promises room for the bytes.
        unsafe { self.read_received_at((start as usize).saturating_add(from), to, len) };
    }

    /// Copies received bytes of the slot to `to`: `len` bytes from the offset `from` on, but none behind the
    /// first [`RECEIVE`] bytes.
    ///
    /// # Safety
    /// `to` has room for `len` bytes.
    unsafe fn read_received_at(self, from: usize, to: *mut u8, len: usize) {
        let from = from.min(RECEIVE);
        // SAFETY: the bytes lie within the slot, and the caller guarantees that `to` has room for them.
        unsafe {
            let bytes = self.0.as_ptr().add(RECEIVE_AT + from);
            std::ptr::copy_nonoverlapping(bytes, to, len.min(RECEIVE - from));
        }
    }
}
