//! The layout of the shared memory.
//!
//! ```text
//! area:  slot 0 | slot 1 | ... | slot 63 | words of the area (4096 bytes) | doorbells (64 bytes for each thread of the engine) | arena
//! slot:  header (4096 bytes) | send ring | receive ring
//! ```
//!
//! The rings of a slot are those of TCP: the engine sends segments from the send ring, and puts received segments into the
//! receive ring. A byte at index i of its direction of the connection lies at i modulo the ring's length.

use super::{
    Doorbell, Life, PairMarks, Post, ReceiveRing, Received, Records, SLOTS, SendRing, Sleepers, Stores,
};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most threads of an engine.
pub const MOST_THREADS: usize = 64;

/// A 64-bit word on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line(pub AtomicU64);

/// The words that a program writes when it sends.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct SendWords {
    /// The word of [`SendRing`].
    pub ring: AtomicU64,
    /// The word of [`PairMarks`].
    pub pair: AtomicU64,
}

/// The words of a [`Doorbell`].
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct DoorbellWords {
    rung: AtomicU64,
    alive_ns: AtomicU64,
}

/// Which bytes of a slot's send ring the program may overwrite. Only the engine writes it.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct SendRoom {
    /// The index up to which the peer has acknowledged the bytes of the send ring.
    pub acknowledged: AtomicU64,
    /// The most unacknowledged bytes in the send ring: the ring's length, or less if the program has set SO_SNDBUF.
    pub limit: AtomicU64,
}

/// The words of [`Records`] that only the engine writes.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct RecordWords {
    sent: AtomicU64,
    tag: AtomicU64,
}

/// The words of an area that belong to no slot alone.
#[repr(C)]
#[derive(Debug)]
struct AreaWords {
    ready: Line,
    from_start: Line,
    sent_records: RecordWords,
    received_records: Line,
    buffers: Line,
    keeps: Line,
    asleep: Line,
    watched: [AtomicU64; 64],
    inodes: [AtomicU64; SLOTS],
}

/// The number of bytes between the slots and the doorbells.
const WORDS: usize = 4096;

const _: () = assert!(size_of::<AreaWords>() <= WORDS);

/// The header of a slot of shared memory. The engine and the program share its words, and access them only as
/// atomics. The engine checks every value that it reads, because the program may write any value.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Header {
    /// The words that the program writes when it sends.
    pub send: SendWords,
    /// The word of [`ReceiveRing`].
    pub receive: Line,
    /// Which bytes of the send ring may be overwritten.
    pub room: SendRoom,
    /// The position up to which the receive ring has bytes for the program. Only the engine writes it.
    pub filled: AtomicU64,
    /// The index of the byte at position 0 of [`ReceiveRing`]. Only the engine writes it, while the ring has no bytes: before it opens the
    /// ring, and when it has placed bytes into a buffer.
    pub received: AtomicU64,
    /// The distance in bytes from the slot to the doorbell of the engine's thread that runs the connection. Only the engine
    /// writes it, before the program gets the slot.
    pub doorbell: AtomicU64,
    /// The inode of the program's end of the socket pair, or 0 if no connection uses the slot. Only the
    /// engine writes it.
    pub inode: AtomicU64,
    /// The device number (`st_dev`) of the program's end of the socket pair. Only the engine writes it.
    pub device: AtomicU64,
    /// The length of each ring in bytes, a power of two. Only the engine writes it, before the program gets the slot.
    pub ring: AtomicU32,
    /// The number of the slot in its area. Only the engine writes it, before the program gets the slot.
    pub number: AtomicU32,
    /// 1 once the program has shut down its sending direction. Only the program writes it.
    pub shut: AtomicU32,
    /// 1 once the program has set SO_RCVLOWAT. All received bytes must then go through the socket pair,
    /// because the kernel applies this option there. Only the program writes this word.
    pub low_water: AtomicU32,
    /// A futex, on which threads sleep until the program may write to the send ring and half of the ring is free. 1 if a
    /// thread may sleep. The program sets it before it sleeps, and the engine clears it when it wakes the sleepers.
    pub sleeper: AtomicU32,
}

/// The words of [`Stores`].
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct StoreWords {
    /// The word of [`SendRing`].
    pub ring: AtomicU64,
    /// See [`Stores::base`].
    pub base: AtomicU64,
}

/// The words by which a second engine on this host stores bytes into the receive ring of a slot. They follow the header.
#[repr(C)]
#[derive(Debug, Default)]
pub struct PeerWords {
    /// A word of [`SendRing`], in which the second engine claims the receive ring for a store. It counts the stored bytes. The engine
    /// of the slot opens and closes it.
    pub stores: StoreWords,
    /// The index up to which the engine of the slot has received the stream. Only that engine writes it.
    pub noted: Line,
    /// The word of [`Life`].
    pub life: Line,
}

/// The words of [`Post`].
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct PostWords {
    word: AtomicU64,
    offset: AtomicU64,
    len: AtomicU64,
    position: AtomicU64,
}

/// The offset of the [`PostWords`] from the start of a slot, in bytes.
const POST_WORDS: usize = 3072;

/// The offset of the [`PeerWords`] from the start of a slot, in bytes.
const PEER_WORDS: usize = 2048;

const _: () = assert!(size_of::<Header>() <= PEER_WORDS && PEER_WORDS + size_of::<PeerWords>() <= POST_WORDS);
const _: () = assert!(POST_WORDS + size_of::<PostWords>() <= HEADER);

/// The length of a slot's header, and the offset of the send ring from the start of a slot, in bytes.
const HEADER: usize = 4096;

/// Returns the distance in bytes from the memory of one slot to that of the next, for rings of `ring` bytes. It has a page
/// more than a slot, because slots start at different distances from the start of a page ([`SHIFTS`]).
const fn distance(ring: usize) -> usize {
    HEADER + 2 * ring + 4096
}

/// Returns the offset of the arena from the start of an area, in bytes.
const fn before_arena(ring: usize) -> usize {
    (distance(ring) * SLOTS + WORDS + MOST_THREADS * size_of::<DoorbellWords>()).next_multiple_of(4096)
}

/// The number of different offsets within a page at which slots start. If all slots had the same offset,
/// their headers would compete for the same few sets of a processor's first-level cache.
const SHIFTS: usize = 16;
/// The difference between the starts of successive slots within a page, in bytes. Because of it, their
/// headers fall into different sets of the cache.
const SHIFT: usize = 256;

const _: () = assert!(size_of::<Header>() <= SHIFT && (SHIFTS - 1) * SHIFT <= 4096);

/// A mapped area.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    start: NonNull<u8>,
    ring: usize,
}

impl Area {
    /// The least length of a ring, in bytes.
    pub const LEAST_RING: usize = 4096;
    /// The greatest length of a ring, in bytes.
    pub const MOST_RING: usize = 16 << 20;

    /// The length of the arena, in bytes. The program allocates buffers there, into which the engine places received bytes.
    pub const ARENA: usize = 64 << 20;

    /// Returns the length of an area whose rings have `ring` bytes each, in bytes. Returns `None` if that is no length of a
    /// ring.
    pub const fn len(ring: usize) -> Option<usize> {
        if ring.is_power_of_two() && ring >= Self::LEAST_RING && ring <= Self::MOST_RING {
            Some(before_arena(ring) + Self::ARENA)
        } else {
            None
        }
    }

    /// Creates a handle for the area that is mapped at `start`, whose rings have `ring` bytes each.
    ///
    /// # Safety
    /// [`Area::len`] bytes of readable and writable shared memory are mapped at `start`. They stay mapped as
    /// long as this value and its slots are used.
    pub unsafe fn new(start: NonNull<u8>, ring: usize) -> Self {
        Self { start, ring }
    }

    /// Creates a handle for an area that the engine has created and that is mapped at `start`. Returns `None` if its rings have
    /// no valid length.
    ///
    /// # Safety
    /// As for [`Area::new`]. The engine has called [`Area::initialise`].
    pub unsafe fn mapped(start: NonNull<u8>) -> Option<Self> {
        let ring = Slot(start).ring();
        Self::len(ring).map(|_| Self { start, ring })
    }

    /// Stores the length of the rings in the area, where [`Area::mapped`] finds it, and the tag of [`Records`]. The engine calls this for a
    /// new area.
    pub fn initialise(&self, tag: u8) {
        self.words().sent_records.tag.store(tag.into(), Ordering::Relaxed);
        Slot(self.start).header().ring.store(self.ring as u32, Ordering::Relaxed);
    }

    fn words(&self) -> &AreaWords {
        // SAFETY: the words lie in the mapped area, behind the slots. Atomics are valid for any bytes and may be
        // shared with other processes.
        unsafe { self.start.add(distance(self.ring) * SLOTS).cast().as_ref() }
    }

    /// Returns the area's ready word. The engine sets bit n when it adds bytes to the receive ring of
    /// slot n. It never reads the word. The program clears the bit when it finds no bytes in the ring.
    pub fn ready(&self) -> &AtomicU64 {
        &self.words().ready.0
    }

    /// Returns the words of threads that sleep while receive rings are open.
    pub fn sleepers(&self) -> Sleepers<'_, AtomicU64> {
        let words = self.words();
        Sleepers { asleep: &words.asleep.0, watched: &words.watched }
    }

    /// Returns the word that is 1 while new connections get a slot from the start, without a request. The program sets it.
    /// The engine clears it if connections do not use these slots.
    pub fn from_start(&self) -> &AtomicU64 {
        &self.words().from_start.0
    }

    /// Returns the numbers of the records that were sent to the program's listeners and received there.
    pub fn records(&self) -> Records<'_, AtomicU64> {
        let words = self.words();
        let RecordWords { sent, tag } = &words.sent_records;
        Records { sent, received: &words.received_records.0, tag: tag.load(Ordering::Relaxed) as u8 }
    }

    /// Returns the word that is 1 once the program has allocated a buffer in the arena. Only the program writes it.
    pub fn buffers(&self) -> &AtomicU64 {
        &self.words().buffers.0
    }

    /// Returns the word that is 1 while the program keeps pairs for later connections. Only the program writes it.
    pub fn keeps(&self) -> &AtomicU64 {
        &self.words().keeps.0
    }

    /// Returns the word with the inode of the connection that uses slot `index`, or 0 if none does. Only the engine writes it.
    /// By these words, the program finds the slots that it has not requested.
    ///
    /// # Panics
    /// If `index` is not below [`SLOTS`].
    pub fn inode(&self, index: usize) -> &AtomicU64 {
        &self.words().inodes[index]
    }

    /// Returns the slot of the connection with this inode, or `None` if it has none.
    pub fn find(self, inode: u64) -> Option<Slot> {
        (0..SLOTS)
            .find(|&index| self.inode(index).load(Ordering::Acquire) == inode)
            .and_then(|index| self.slot(index))
    }

    /// Returns the address of the arena, which has [`Area::ARENA`] bytes.
    pub fn arena(self) -> *mut u8 {
        // SAFETY: the arena lies in the mapped area.
        unsafe { self.start.as_ptr().add(before_arena(self.ring)) }
    }

    /// Returns the distance in bytes from `slot` to the doorbell of the engine's thread `thread`.
    pub fn distance_to_doorbell(&self, slot: Slot, thread: usize) -> usize {
        let start = self.start.as_ptr() as usize + distance(self.ring) * SLOTS + WORDS;
        start + thread % MOST_THREADS * size_of::<DoorbellWords>() - slot.0.as_ptr() as usize
    }

    /// Returns the doorbell of the engine's thread `thread`.
    pub fn doorbell(&self, thread: usize) -> Doorbell<'_, AtomicU64> {
        // SAFETY: the doorbell lies in the mapped area.
        unsafe { doorbell_behind(self.start, self.distance_to_doorbell(Slot(self.start), thread)) }
    }

    /// Returns the index of `slot` in this area, or `None` if the slot belongs to another area.
    pub fn index_of(self, slot: Slot) -> Option<usize> {
        let offset = (slot.0.as_ptr() as usize).checked_sub(self.start.as_ptr() as usize)?;
        Some(offset / distance(self.ring)).filter(|&index| self.slot(index) == Some(slot))
    }

    /// Returns slot `index` of the shared memory, or `None` if `index` is not below [`SLOTS`].
    pub fn slot(self, index: usize) -> Option<Slot> {
        // SAFETY: `index` is below `SLOTS`, so the slot is in the mapped area.
        (index < SLOTS)
            .then(|| Slot(unsafe { self.start.add(index * distance(self.ring) + index % SHIFTS * SHIFT) }))
    }
}

/// Returns the doorbell `distance` bytes behind `start`.
///
/// # Safety
/// The area stays mapped as long as the result is used, and has a doorbell there.
#[inline]
unsafe fn doorbell_behind<'a>(start: NonNull<u8>, distance: usize) -> Doorbell<'a, AtomicU64> {
    // SAFETY: the caller's promise. Atomics are valid for any bytes and may be shared with other processes.
    let words: &DoorbellWords = unsafe { start.byte_add(distance).cast().as_ref() };
    Doorbell { rung: &words.rung, alive_ns: &words.alive_ns }
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

    /// Returns the words for stores of a second engine.
    #[inline]
    pub fn peer(&self) -> &PeerWords {
        // SAFETY: the words lie in the page of the header. Otherwise as for `header`.
        unsafe { self.0.add(PEER_WORDS).cast().as_ref() }
    }

    /// Returns the ring's word for stores of a second engine.
    #[inline]
    pub fn stores(&self) -> Stores<'_, AtomicU64> {
        let StoreWords { ring, base } = &self.peer().stores;
        Stores { ring: SendRing(ring), base, filled: &self.header().filled }
    }

    /// Returns the words by which the program posts a buffer.
    #[inline]
    pub fn post(&self) -> Post<'_, AtomicU64> {
        // SAFETY: the words lie in the page of the header. Otherwise as for `header`.
        let PostWords { word, offset, len, position } =
            unsafe { self.0.add(POST_WORDS).cast::<PostWords>().as_ref() };
        Post { word, offset, len, position }
    }

    /// Returns the send ring.
    pub fn send(&self) -> SendRing<'_, AtomicU64> {
        SendRing(&self.header().send.ring)
    }

    /// Returns the life of the connection.
    pub fn life(&self) -> Life<'_, AtomicU64> {
        Life(&self.peer().life.0)
    }

    /// Returns what is known about the program's bytes in the socket pair.
    pub fn pair(&self) -> PairMarks<'_, AtomicU64> {
        PairMarks(&self.header().send.pair)
    }

    /// Returns the doorbell of the engine's thread that runs the connection. Call this only for a slot that the engine has
    /// assigned to a connection.
    #[inline]
    pub fn doorbell(&self) -> Doorbell<'_, AtomicU64> {
        // SAFETY: the engine has stored the distance of a doorbell in this area.
        unsafe { doorbell_behind(self.0, self.header().doorbell.load(Ordering::Relaxed) as usize) }
    }

    /// Asks the engine to look at the slot. Returns the time of the engine's last heartbeat, or 0 if it sleeps.
    #[inline]
    pub fn ring_doorbell(&self) -> u64 {
        self.doorbell().ring(1 << (self.header().number.load(Ordering::Relaxed) % SLOTS as u32))
    }

    /// Returns the receiving side.
    pub fn receive(&self) -> ReceiveRing<'_, AtomicU64> {
        let header = self.header();
        ReceiveRing { word: &header.receive.0, filled: &header.filled }
    }

    /// Returns the received bytes in the ring, or `None` if there are none.
    #[inline]
    pub fn received(self) -> Option<Received> {
        self.receive().received(self.ring() as u64)
    }

    /// Returns the length of each ring in bytes.
    #[inline]
    pub fn ring(self) -> usize {
        self.header().ring.load(Ordering::Relaxed) as usize
    }

    /// Returns the address of the send ring. The receive ring follows it.
    pub fn rings(self) -> *mut u8 {
        // SAFETY: the rings follow the header in the mapped area.
        unsafe { self.0.as_ptr().add(HEADER) }
    }

    /// Returns the number of bytes that fit into the send ring. `index` is that of a claim.
    #[inline]
    pub fn room(self, index: u64) -> usize {
        let used = index.wrapping_sub(self.header().room.acknowledged.load(Ordering::Acquire));
        self.limit().saturating_sub(used) as usize
    }

    /// Returns the most unacknowledged bytes in the send ring.
    #[inline]
    pub fn limit(self) -> u64 {
        self.header().room.limit.load(Ordering::Relaxed).min(self.ring() as u64)
    }

    /// Copies `len` bytes at `from` into the send ring, at the index of a claim.
    ///
    /// # Safety
    /// `from` has `len` bytes. The calling thread has claimed the ring, and the bytes fit ([`Slot::room`]).
    pub unsafe fn write_send(self, index: u64, from: *const u8, len: usize) {
        let ring = self.ring();
        let offset = index as usize & (ring - 1);
        let first = len.min(ring - offset);
        // SAFETY: both parts lie within the ring, and the caller promises that `from` has `len` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(from, self.rings().add(offset), first);
            std::ptr::copy_nonoverlapping(from.add(first), self.rings(), len - first);
        }
    }

    /// Copies `len` bytes of `received` to `to`. Skips the first `from` bytes.
    ///
    /// # Safety
    /// `to` has room for `len` bytes. There are at least `from` and `len` bytes.
    pub unsafe fn read_received(self, received: Received, from: usize, to: *mut u8, len: usize) {
        let ring = self.ring();
        let index = received.position().wrapping_add(self.header().received.load(Ordering::Relaxed)) as usize;
        let offset = index.wrapping_add(from) & (ring - 1);
        let first = len.min(ring - offset);
        // SAFETY: both parts lie within the receive ring, and the caller promises room for the bytes.
        unsafe {
            let start = self.rings().add(ring);
            std::ptr::copy_nonoverlapping(start.add(offset), to, first);
            std::ptr::copy_nonoverlapping(start, to.add(first), len - first);
        }
    }
}
