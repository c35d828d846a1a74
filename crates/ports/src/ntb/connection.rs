//! A connection: the inbound memory of this end, the window onto that of the peer, and the words in both.
//!
//! Each end's inbound memory has this layout. Only the peer writes to it, and only its owner reads it:
//!
//! ```text
//! 0      hello    a number that says that the peer carries frames
//! 128    sent     the position behind the last record in this ring
//! 256    read     the peer's position in the ring of its own memory
//! 384    asleep   1 if the peer sleeps until its doorbell rings
//! 4096   the ring
//! ```
//!
//! The upper half of each word is the connection's tag. A word with another tag remains from an earlier connection and is ignored.

use super::ring::{HEADER, LONGEST_FRAME, UNIT};
use inlane_core::region::Region;
use inlane_ntb::device::Ntb;
use inlane_ntb::window::Window;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// The words, by their offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Word {
    Hello = 0,
    Sent = 128,
    Read = 256,
    Asleep = 384,
}

/// The value of [`Word::Hello`]: the version of this layout, and a number by which it differs from other programs'.
const HELLO: u32 = 0x4652_0001;
/// The bytes before the ring.
const RING_AT: usize = 4096;
/// The bytes of the largest ring. More would leave the cache before the reader reads them.
const LARGEST_RING: usize = 1 << 20;
/// The bytes of the smallest ring, so that the longest frame always finds a place.
const SMALLEST_RING: usize = (2 * (LONGEST_FRAME + HEADER)).next_power_of_two();
/// The bytes of inbound memory for the largest ring.
pub(super) const INBOUND_BYTES: usize = RING_AT + LARGEST_RING;
/// The doorbell bit that wakes a receiver.
pub(super) const DOORBELL: u64 = 1;

/// Returns the part of an end's inbound memory that is used: that with the largest ring.
///
/// # Errors
/// If it is too small.
pub(super) fn used(inbound: &Region) -> Result<Region, String> {
    let ring = inbound.len().saturating_sub(RING_AT).min(LARGEST_RING);
    let ring = if ring == 0 { 0 } else { 1 << ring.ilog2() };
    if ring < SMALLEST_RING {
        return Err(format!(
            "its memory windows have {} bytes, and {} are necessary; give the device more memory",
            inbound.len(),
            RING_AT + SMALLEST_RING
        ));
    }
    inbound.slice(0, RING_AT + ring).map_err(|error| error.to_string())
}

/// Returns the number of units of the ring in `bytes` bytes of inbound memory, or `None` if no end has that much.
fn ring_units(bytes: usize) -> Option<u32> {
    let ring = bytes.checked_sub(RING_AT)?;
    (ring.is_power_of_two() && (SMALLEST_RING..=LARGEST_RING).contains(&ring)).then_some((ring / UNIT) as u32)
}

/// A connection to the peer. It stays usable when the peer is gone, because the memory stays mapped.
pub(super) struct Connection {
    ntb: Arc<dyn Ntb>,
    peer: u32,
    tag: u32,
    inbound: Region,
    window: Window,
    /// The units of the ring in this end's memory.
    pub(super) units_in: u32,
    /// The units of the ring in the peer's memory.
    pub(super) units_out: u32,
    /// How the peer has broken the protocol, if it has.
    broken: OnceLock<&'static str>,
    /// True if a later connection may use the memory.
    closed: AtomicBool,
}

impl Connection {
    /// Creates a connection after the handshake. `inbound` is the memory that was offered to the peer, from [`used`].
    ///
    /// # Errors
    /// If the peer has a memory of another layout.
    pub(super) fn new(
        ntb: Arc<dyn Ntb>,
        peer: u32,
        tag: u32,
        inbound: Region,
        window: Window,
    ) -> Result<Self, String> {
        let units_of = |bytes: usize| {
            ring_units(bytes).ok_or_else(|| format!("the peer offers {bytes} bytes, as no port does"))
        };
        let (units_in, units_out) = (units_of(inbound.len())?, units_of(window.len())?);
        let broken = OnceLock::new();
        let closed = AtomicBool::new(false);
        Ok(Self { ntb, peer, tag, inbound, window, units_in, units_out, broken, closed })
    }

    pub(super) fn ntb(&self) -> &dyn Ntb {
        &*self.ntb
    }

    /// Loads a word that the peer writes. Returns `former` if the word remains from an earlier connection.
    #[inline]
    pub(super) fn load(&self, word: Word, former: u32) -> u32 {
        // SAFETY: the word lies in the inbound memory, which starts at a page. All accesses to it are atomic.
        let value = unsafe { AtomicU64::from_ptr(self.inbound.as_ptr().add(word as usize).cast()) };
        let value = value.load(Ordering::Acquire);
        if (value >> 32) as u32 == self.tag { value as u32 } else { former }
    }

    /// Stores a word that the peer reads. The peer sees it after all earlier stores of words, so an older value of the same word
    /// cannot replace it.
    #[inline]
    pub(super) fn store(&self, word: Word, value: u32) {
        self.window.fence_words();
        self.store_at(word as usize, u64::from(self.tag) << 32 | u64::from(value));
    }

    #[inline]
    fn store_at(&self, offset: usize, value: u64) {
        let stored = self.window.store_word(offset, value);
        debug_assert!(stored.is_ok(), "all offsets lie in the window");
    }

    /// Stores the first word of a record in the peer's ring.
    #[inline]
    pub(super) fn store_header(&self, position: u32, header: u64) {
        self.store_at(self.out_at(position), header);
    }

    /// Returns the offset of a record in the window.
    #[inline]
    fn out_at(&self, position: u32) -> usize {
        RING_AT + (position & (self.units_out - 1)) as usize * UNIT
    }

    /// Returns the address of a record's frame in the peer's ring, if the CPU may write there as in its own memory.
    #[inline]
    pub(super) fn frame_out(&self, position: u32) -> Option<*mut u8> {
        let base = self.window.coherent_base()?;
        // SAFETY: the offset lies in the window.
        Some(unsafe { base.add(self.out_at(position) + HEADER) })
    }

    /// Stores bytes of a record's frame in the peer's ring, from byte `offset` of the frame on.
    ///
    /// # Safety
    /// `source` is readable for `length` bytes.
    pub(super) unsafe fn store_frame(&self, position: u32, offset: usize, source: *const u8, length: usize) {
        // SAFETY: the caller guarantees the source, which does not lie in the peer's memory.
        let stored =
            unsafe { self.window.store_from(self.out_at(position) + HEADER + offset, source, length) };
        debug_assert!(stored.is_ok(), "the record lies in the window");
    }

    /// Returns the address of a record in this end's ring.
    #[inline]
    fn record_in(&self, position: u32) -> *mut u8 {
        let offset = RING_AT + (position & (self.units_in - 1)) as usize * UNIT;
        // SAFETY: the offset lies in the inbound memory.
        unsafe { self.inbound.as_ptr().add(offset) }
    }

    /// Loads the first word of a record in this end's ring.
    #[inline]
    pub(super) fn load_header(&self, position: u32) -> u64 {
        // SAFETY: the word lies in the inbound memory and is aligned. Only the peer writes it.
        unsafe { AtomicU64::from_ptr(self.record_in(position).cast()) }.load(Ordering::Relaxed)
    }

    /// Returns the address of a record's frame in this end's ring. The peer may write there at any time.
    #[inline]
    pub(super) fn frame_in(&self, position: u32) -> *const u8 {
        // SAFETY: a record has at least one unit, which is longer than its first word.
        unsafe { self.record_in(position).add(HEADER) }
    }

    /// Shows the peer all records before `position`, and wakes it if it sleeps.
    #[inline]
    pub(super) fn show(&self, position: u32) {
        self.window.fence();
        self.store(Word::Sent, position);
        // The peer announces its sleep, makes the announcement visible, and looks at the position once more. So it sees the
        // position, or this end sees the announcement.
        fence(Ordering::SeqCst);
        if self.load(Word::Asleep, 0) != 0 {
            self.window.fence();
            // The peer exists, so the call cannot fail.
            let _ = self.ntb.peer_doorbell_set(self.peer, DOORBELL);
        }
    }

    /// Announces to the peer that this end sleeps. Look for records once more afterwards.
    pub(super) fn announce_sleep(&self) {
        self.store(Word::Asleep, 1);
        // On a posted window, this reads from the peer. The answer arrives after all that the peer has stored before it saw the
        // announcement.
        self.window.flush();
    }

    /// Tells the peer that this end carries frames.
    pub(super) fn greet(&self) {
        self.store(Word::Hello, HELLO);
        self.window.flush();
    }

    /// Returns true once the peer has said that it carries frames.
    ///
    /// # Errors
    /// If it has said something else.
    pub(super) fn is_greeted(&self) -> Result<bool, String> {
        match self.load(Word::Hello, 0) {
            HELLO => Ok(true),
            0 => Ok(false),
            other => Err(format!(
                "the peer says {other:#x} instead of {HELLO:#x}; run the same release of inlane on both sides"
            )),
        }
    }

    /// Records that the peer has broken the protocol. Returns true if that is new.
    #[cold]
    pub(super) fn break_off(&self, why: &'static str) -> bool {
        self.broken.set(why).is_ok()
    }

    /// Records that the memory will hold frames of another connection. Call this before the peer learns of that connection.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Returns true if frames in this end's memory may be those of a later connection. Call this after reading a frame.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        fence(Ordering::Acquire);
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns how the peer has broken the protocol, if it has.
    pub(super) fn broken(&self) -> Option<&'static str> {
        self.broken.get().copied()
    }
}
