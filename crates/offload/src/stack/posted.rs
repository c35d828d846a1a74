//! Places received bytes directly into a buffer that the program has posted, in place of the receive ring
//! ([`inlane_offload_protocol::slots::Post`]).
//!
//! The engine claims the buffer with the first byte that belongs there, and keeps the claim until the connection is served, within
//! the same round. Bytes that arrive out of order go into the ring, as do those for which the buffer has no room.

use super::ring::{ByteRing, Span};
use super::stream::Stream;
use inlane_offload_protocol::slots::{POSITION, Placing, Slot};
use std::any::Any;
use std::sync::Arc;

/// The buffers that the program posts for a connection.
pub struct PostedBuffers {
    slot: Slot,
    /// The arena in which the buffers lie.
    arena: Span,
    _area: Arc<dyn Any + Send + Sync>,
    /// The index of the byte at position 0 of the receive ring. `None` while no bytes may be placed.
    base: Option<u64>,
    /// The buffer that is being filled.
    filling: Option<Filling>,
    /// True if the program has posted a buffer outside the arena.
    hostile: bool,
}

// SAFETY: the slot and the arena lie in memory that the area keeps mapped. They are accessed only by atomics and copies, and any
// thread may do these.
unsafe impl Send for PostedBuffers {}

/// A buffer that the engine has claimed.
struct Filling {
    claim: Placing,
    /// The memory of the buffer from the first placed byte on.
    memory: Span,
    /// The index of the first placed byte.
    start: u64,
    /// The number of placed bytes.
    placed: usize,
}

impl PostedBuffers {
    /// Returns the buffers that are posted in `slot` and lie in `arena`. `area` keeps both mapped.
    pub fn new(slot: Slot, arena: Span, area: Arc<dyn Any + Send + Sync>) -> Self {
        Self { slot, arena, _area: area, base: None, filling: None, hostile: false }
    }

    /// Places as many of `bytes` as belong into a posted buffer. Returns their number. `index` is that of the first byte.
    #[inline]
    pub fn write(&mut self, index: u64, bytes: &[u8]) -> usize {
        let Some(filling) = &mut self.filling else { return self.begin(index, bytes) };
        if index != filling.start + filling.placed as u64 {
            return 0;
        }
        let len = bytes.len().min(filling.memory.len - filling.placed);
        // SAFETY: the bytes lie within the memory of the buffer, which the engine has claimed.
        unsafe { filling.memory.start.add(filling.placed).copy_from_nonoverlapping(bytes.as_ptr(), len) };
        filling.placed += len;
        len
    }

    /// Claims the posted buffer, if there is one and the program has taken all bytes before `index`. Then places bytes.
    #[inline]
    fn begin(&mut self, index: u64, bytes: &[u8]) -> usize {
        let Some(base) = self.base else { return 0 };
        let Some(claim) = self.slot.post().claim(index.wrapping_sub(base) & POSITION) else { return 0 };
        let (offset, len) = (claim.offset, claim.room);
        if offset.checked_add(len).is_none_or(|end| end > self.arena.len as u64) {
            self.slot.post().commit(&claim, 0);
            (self.hostile, self.base) = (true, None);
            return 0;
        }
        // SAFETY: the offset lies within the arena.
        let memory = Span { start: unsafe { self.arena.start.add(offset as usize) }, len: len as usize };
        self.filling = Some(Filling { claim, memory, start: index, placed: 0 });
        self.write(index, bytes)
    }
}

impl Drop for PostedBuffers {
    fn drop(&mut self) {
        if let Some(filling) = self.filling.take() {
            self.slot.post().commit(&filling.claim, 0);
        }
    }
}

/// The error that the program has posted a buffer outside the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideArena;

impl Stream {
    /// Lets received bytes be placed into posted buffers from now on if `base` is the index of the byte at position 0 of the receive
    /// ring. Call this after [`Stream::take_placed`]. `create` describes the buffers, and is called the first time.
    #[inline]
    pub fn expect_posts(&mut self, base: Option<u64>, create: impl FnOnce() -> PostedBuffers) {
        self.receive.posted.get_or_insert_with(|| Box::new(create())).base = base;
    }

    /// Gives the buffer that was filled back to the program, and counts the placed bytes as taken. Returns their number. All bytes that
    /// the program has taken out of the ring must be counted before.
    ///
    /// # Errors
    /// If the program has posted a buffer outside the arena.
    #[inline]
    pub fn take_placed(&mut self) -> Result<u64, OutsideArena> {
        let Some(posted) = &mut self.receive.posted else { return Ok(0) };
        if posted.hostile {
            return Err(OutsideArena);
        }
        let Some(filling) = posted.filling.take() else { return Ok(0) };
        let (placed, post) = (filling.placed as u64, posted.slot.post());
        let end = filling.start + placed;
        // A hostile program may have posted a wrong position, and a packet of a hostile peer may contradict one that is missing.
        let counts = filling.start == self.delivered && end <= self.connection.received();
        if counts && post.commit(&filling.claim, placed) {
            self.delivered = end;
            return Ok(placed);
        }
        self.receive.put_back(&filling, !counts);
        Ok(0)
    }

    /// Gives the buffer that is being filled back to the program, without bytes, and copies those bytes into the ring.
    pub fn forget_placed(&mut self) {
        if let Some(filling) = self.receive.posted.as_mut().and_then(|posted| posted.filling.take()) {
            self.receive.put_back(&filling, true);
        }
    }
}

impl ByteRing {
    /// Copies the bytes that were placed into a buffer to their place in the ring. If `ends` is true, ends the claim without bytes.
    #[cold]
    fn put_back(&mut self, filling: &Filling, ends: bool) {
        // SAFETY: the bytes lie in the arena, which stays mapped. The program may change them meanwhile, with the effect of other bytes.
        let bytes = unsafe { std::slice::from_raw_parts(filling.memory.start, filling.placed) };
        self.write_ring(filling.start, bytes);
        if let Some(posted) = self.posted.as_ref().filter(|_| ends) {
            posted.slot.post().commit(&filling.claim, 0);
        }
    }
}
