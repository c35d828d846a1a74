//! The engine's side of the memory that it shares with programs ([`inlane_offload_protocol::slots`]).
//!
//! Programs may write anything into this memory at any time. So the engine checks each number that it reads
//! from this memory. It keeps its own copy of every number on which it relies.

mod publishing;
mod wake;

use super::area::Polled;
use super::area::SharedArea;
use crate::stack::arena::Key;
use crate::stack::posted::{OutsideArena, PostedBuffers};
use crate::stack::ring::{ByteRing, Span};
use crate::stack::stream::Stream;
use inlane_core::region::{Location, Region};
use inlane_offload_protocol::slots::{Area, Claim, POSITION, Slot};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The nanoseconds for which a program's thread may keep the send ring claimed while it writes. After that,
/// the engine ends the claim by force. Normally a claim takes less than a microsecond, unless the thread is
/// stopped or descheduled.
const CLAIM_LIMIT_NS: u64 = 100_000_000;
/// The nanoseconds for which a program may leave bytes in the receive ring and take none. Then the engine moves the
/// bytes to the pair. Normally a program takes them within a microsecond.
const UNTAKEN_LIMIT_NS: u64 = 500_000;
/// The longest that bytes wait in the receive ring for a program that has not accepted the connection, in nanoseconds. They keep the
/// engine awake meanwhile.
const UNACCEPTED_LIMIT_NS: u64 = 100_000_000;
/// The number of taken bytes after which the engine tells TCP at once. Otherwise it does so with its next work, and in the
/// next check of all connections with received bytes.
const TAKEN: u64 = 16 << 10;
/// The time during which the engine does not open the receive ring after it has moved bytes from there to the pair, in
/// nanoseconds. The program then probably waits for events in a way that the preloaded library does not see. The
/// time doubles with each move in a row, at most `MOST_DOUBLINGS` times.
const SHUN_NS: u64 = 1_000_000;
/// The most times that `SHUN_NS` is doubled.
const MOST_DOUBLINGS: u32 = 10;
/// The most bytes that a connection may have moved through its slot so that the slot's memory is kept for the next
/// connection.
const KEPT: u64 = 64 << 10;

/// The nanoseconds for which a store of the peer's engine may last while this engine waits for its end. Usually it takes some
/// microseconds, unless that engine is stopped. The program could also pretend a store.
const STORE_LIMIT_NS: u64 = 5_000_000_000;
/// For how long a connection must have had its slot before its receive ring is shared with the peer's engine, in nanoseconds. For
/// shorter connections, the system calls cost more than they save.
const LEAST_AGE_NS: u64 = 5_000_000;

/// The error that the program broke the protocol of the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hostile;

impl From<OutsideArena> for Hostile {
    fn from(_: OutsideArena) -> Self {
        Self
    }
}

/// The result of [`Direct::claim`]: whether the engine may read the socket pair now.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// The engine may read the pair into the send ring, and must then commit the claim.
    Claimed(Claim),
    /// The engine may read the pair. The program cannot use the slot's send ring any more.
    Closed,
    /// The engine may not read the pair yet, because a thread of the program is writing into the send ring.
    /// Try again in the next round.
    Busy,
}

/// The payload bytes of a connection that went through shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectBytes {
    /// Sent bytes.
    pub sent: u64,
    /// Received bytes that the program has copied from the receive ring.
    pub ring: u64,
    /// Received bytes that were placed into buffers of the program.
    pub buffers: u64,
}

impl DirectBytes {
    /// Returns the number of all these bytes.
    pub fn all(self) -> u64 {
        self.sent + self.ring + self.buffers
    }
}

impl std::ops::AddAssign for DirectBytes {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.ring += other.ring;
        self.buffers += other.buffers;
    }
}

/// A connection's slot in shared memory.
#[derive(Debug)]
pub struct Direct {
    area: Arc<SharedArea>,
    index: usize,
    slot: Slot,
    /// The inode and the device of the program's end.
    inode: (u64, u64),
    /// Makes a thread of the engine look at the doorbell of the area.
    polled: Polled,
    /// True if the engine has written bytes to the pair.
    pair_written: bool,
    /// The index up to which the engine has taken note of committed bytes.
    collected: u64,
    /// When the engine first saw that a thread of the program writes to the send ring, in nanoseconds. `None` if it does not.
    claimed_since: Option<u64>,
    /// True once the engine has closed the send ring for the program.
    closed: bool,
    /// True while the receive ring is open: received bytes go there. The program may have left it since.
    open: bool,
    /// The index of the byte at position 0 of the receive ring.
    base: u64,
    /// The position up to which the program has taken bytes of the receive ring, when the engine last looked.
    taken: u64,
    /// The position up to which the receive ring has bytes for the program.
    filled: u64,
    /// When the receive ring was last empty or the program last took bytes, in nanoseconds.
    progress_at: u64,
    /// True if the engine must still write bytes that were left in the receive ring to the socket pair.
    moving: bool,
    /// True if bytes that were left in the receive ring were discarded. The program has never read them.
    unread: bool,
    /// True if the peer has closed its direction. The program learns of it once it has taken all bytes.
    ends: bool,
    /// True if the receive ring has the end of the stream.
    has_end: bool,
    /// The number of a thread of the program that sleeps until the connection has events. What is in the receive ring must go to the pair.
    wakes: Option<usize>,
    /// The number of consecutive times that the engine has moved bytes from the receive ring to the pair, at most
    /// `MOST_DOUBLINGS`.
    moved_in_row: u32,
    /// The time in nanoseconds until which the engine does not open the receive ring.
    shunned_until: u64,
    /// True if the engine found the socket pair empty, and has written nothing to the pair since then. If
    /// false, the engine checks the pair before it opens the receive ring.
    pair_empty: bool,
    /// When the connection got the slot, in nanoseconds.
    since: u64,
    /// When the slot was last used to send or receive, or the connection got it, in nanoseconds.
    used_at: u64,
    /// True if the engine took the send ring of the slot away while a thread of the program was writing to
    /// the ring. The thread may still write, so this slot of shared memory is not used again.
    abandoned: bool,
    /// When bytes arrived in the empty receive ring, in nanoseconds.
    arrived_at: u64,
    /// True if the connection got the slot from the start, and has not used it yet.
    untried: bool,
    /// True if the connection is in the engine's list of connections with bytes in the receive ring.
    pub listed: bool,
    /// True if the engine has tried to let the peer's engine store into the receive ring.
    pub offered: bool,
    /// True while the peer's engine publishes the bytes that it stores into the receive ring.
    published: bool,
    /// True if that must end before the receive ring is left: see [`Direct::settle`].
    must_end: bool,
    /// When the engine first waited for a store, to end that.
    stored_since: Option<u64>,
    /// The number of bytes that the program has sent through shared memory.
    pub sent: u64,
    /// The number of bytes that the program has received through shared memory.
    pub received: u64,
    /// How many of them were placed into buffers of the program.
    pub placed: u64,
}

// SAFETY: the slot is in the area, and this value keeps the area mapped. The slot's memory is accessed only
// by atomics and copies, and any thread may do these.
unsafe impl Send for Direct {}

/// Makes the program ring the doorbell of the thread of `polled`.
fn name_doorbell(slot: Slot, polled: &Polled) {
    let doorbell = polled.area().area().distance_to_doorbell(slot, polled.thread());
    slot.header().doorbell.store(doorbell as u64, Ordering::Relaxed);
}

impl Direct {
    /// Assigns a slot in the shared memory of `polled` to the connection `key` with the number `id`. `inode` and `device` identify
    /// the program's end of the socket pair. The program's next byte has the index `written`. If `from_start` is true, the pair is
    /// new and empty, and the first received bytes go into the receive ring. `reserved` is the slot of a kept pair. Returns `None` if no
    /// slot is free.
    pub fn new(
        now: u64,
        polled: Polled,
        (key, id): (Key, u64),
        (inode, device): (u64, u64),
        written: u64,
        from_start: bool,
        reserved: Option<usize>,
    ) -> Option<Self> {
        let area = polled.area().clone();
        let (index, slot) = match reserved {
            Some(index) => area.assume(index, key)?,
            None => area.reserve(key)?,
        };
        if reserved.is_none() {
            slot.life().begin(id);
        }
        let header = slot.header();
        let position = slot.receive().reset(from_start);
        name_doorbell(slot, &polled);
        header.number.store(index as u32, Ordering::Relaxed);
        header.ring.store(area.ring() as u32, Ordering::Relaxed);
        header.shut.store(0, Ordering::Relaxed);
        header.low_water.store(0, Ordering::Relaxed);
        header.sleeper.store(0, Ordering::Relaxed);
        header.device.store(device, Ordering::Relaxed);
        slot.pair().reset(from_start);
        slot.send().open(written);
        let _ = slot.stores().ring.close_by_force();
        header.inode.store(inode, Ordering::Release);
        area.area().inode(index).store(inode, Ordering::Release);
        Some(Self {
            area,
            index,
            slot,
            inode: (inode, device),
            pair_written: false,
            polled,
            collected: written,
            claimed_since: None,
            closed: false,
            open: false,
            base: 0,
            taken: position,
            filled: position,
            progress_at: 0,
            moving: false,
            unread: false,
            ends: false,
            has_end: false,
            wakes: None,
            moved_in_row: 0,
            shunned_until: 0,
            pair_empty: from_start,
            since: now,
            used_at: now,
            abandoned: false,
            arrived_at: 0,
            untried: from_start,
            listed: false,
            offered: false,
            published: false,
            must_end: false,
            stored_since: None,
            sent: 0,
            received: 0,
            placed: 0,
        })
    }

    /// Moves the slot to the thread of `polled`, where the connection has the key `key`. The program does not use the slot yet, because
    /// the connection is not established.
    pub fn move_to(&mut self, polled: Polled, key: Key) {
        name_doorbell(self.slot, &polled);
        let _ = self.area.assume(self.index, key);
        self.polled = polled;
    }

    /// Returns the area that contains the connection's slot of shared memory, and the slot's index in the
    /// area.
    pub fn location(&self) -> (&Arc<SharedArea>, usize) {
        (&self.area, self.index)
    }

    /// Returns true if the connection has slot `index` of `area`.
    pub fn is_at(&self, area: &Arc<SharedArea>, index: usize) -> bool {
        Arc::ptr_eq(&self.area, area) && self.index == index
    }

    /// Returns the thread whose doorbell the program rings.
    pub fn thread(&self) -> usize {
        self.polled.thread()
    }

    /// Returns the inode and the device of the program's end.
    pub fn inode(&self) -> (u64, u64) {
        self.inode
    }

    /// Records that the connection `id` need not be accepted, because the program has opened it.
    pub fn note_accepted(&self, id: u64) {
        let _ = self.slot.life().accept(id);
    }

    /// Records that the connection, which the program opens over a kept pair, is established.
    pub fn note_established(&self) {
        self.slot.life().establish();
    }

    /// Returns true if the program has accepted the connection.
    pub fn is_accepted(&self) -> bool {
        self.slot.life().is_accepted()
    }

    /// Returns true if the program has closed the connection in its slot.
    #[inline]
    pub fn is_closed_by_program(&self) -> bool {
        self.slot.life().is_closed()
    }

    /// Closes the send ring, in which the program has ended its last claim.
    pub fn note_closed(&mut self) {
        (self.closed, self.claimed_since) = (true, None);
    }

    /// Returns true if the pair can be kept for another connection of the slot. The program does not close its end then.
    pub fn may_keep_pair(&self) -> bool {
        self.closed && !self.abandoned && !self.offered && self.slot.life().keep()
    }

    /// Returns true if the program has left received bytes in the pair. `fd` is the engine's end.
    pub fn has_unread_in_pair(&self, fd: RawFd) -> bool {
        self.pair_written && !is_empty(fd)
    }

    /// Returns the slot of shared memory.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Returns the connection's rings in the slot: the send ring and the receive ring.
    pub fn rings(&self) -> [ByteRing; 2] {
        let ring = self.area.ring();
        [0, ring].map(|offset| {
            let keeper: Arc<dyn Send + Sync> = self.area.clone();
            // SAFETY: the ring lies in the area, which the region keeps mapped.
            let memory = unsafe {
                Region::from_raw(self.slot.rings().add(offset) as u64, ring, Location::Host, keeper)
            };
            ByteRing::shared(memory)
        })
    }

    /// Counts `len` received bytes as taken that were placed into a buffer of the program. The receive ring has no bytes.
    pub fn note_placed(&mut self, now: u64, len: u64) {
        self.base = self.base.wrapping_add(len);
        self.slot.header().received.store(self.base, Ordering::Relaxed);
        (self.used_at, self.progress_at, self.moved_in_row) = (now, now, 0);
        self.received += len;
        self.placed += len;
        self.note_use(true);
    }

    /// Lets received bytes be placed into buffers of the program from now on, if it has some and the receive ring is open. Call this after
    /// each change of the ring.
    #[inline]
    pub fn expect_posts(&self, stream: &mut Stream) {
        if self.area.area().buffers().load(Ordering::Relaxed) != 0 {
            let base = (self.open && !self.published).then_some(self.base);
            stream.expect_posts(base, || {
                let arena = Span { start: self.area.area().arena(), len: Area::ARENA };
                PostedBuffers::new(self.slot, arena, self.area.clone())
            });
        }
    }

    /// Tells the program which bytes of the send ring it may overwrite: the peer has acknowledged all bytes before the index
    /// `acknowledged`, and at most `limit` bytes may be unacknowledged. Call this after each of them has changed. Wakes threads
    /// that wait for room if half of the ring is free.
    pub fn publish(&mut self, acknowledged: u64, limit: u64) {
        let room = &self.slot.header().room;
        room.limit.store(limit, Ordering::Relaxed);
        room.acknowledged.store(acknowledged, Ordering::Release);
        if self.collected.wrapping_sub(acknowledged) <= limit / 2 {
            self.wake_sleepers();
        }
    }

    /// Returns how many of the bytes before index `committed` the engine has not collected yet.
    ///
    /// # Errors
    /// If there are more than the send ring can hold, or fewer than 0. The program wrote this number, so it can be wrong.
    fn ahead(&self, committed: u64) -> Result<u64, Hostile> {
        committed.checked_sub(self.collected).filter(|&ahead| ahead <= self.area.ring() as u64).ok_or(Hostile)
    }

    /// Returns how many committed bytes were not collected yet, or 0 if the program broke the protocol.
    pub fn uncollected(&self) -> u64 {
        if self.closed { 0 } else { self.ahead(self.slot.send().committed()).unwrap_or(0) }
    }

    /// Returns true if the program has taken bytes that TCP should know of, or has left bytes in the receive ring that must be
    /// moved to the pair. If `all` is true, counts any taken bytes.
    #[inline]
    pub fn has_receive_work(&self, now: u64, all: bool) -> bool {
        let (open, taken) = self.slot.receive().taken();
        let (all, rest) = (all || self.ends && taken == self.filled, self.has_end || self.filled != taken);
        self.open
            && (rest && (!open || now >= self.progress_at + UNTAKEN_LIMIT_NS)
                || taken != self.taken && (all || taken.wrapping_sub(self.taken) >= TAKEN))
    }

    /// Returns how many bytes the program has committed since the last call. They are in the send ring. `room` is the number
    /// of free bytes in the ring.
    ///
    /// # Errors
    /// If the program broke the protocol.
    pub fn collect(&mut self, now: u64, room: u64) -> Result<u64, Hostile> {
        let len = if self.closed { 0 } else { self.ahead(self.slot.send().committed())? };
        if len > room {
            return Err(Hostile);
        }
        if len > 0 {
            self.collected += len;
            self.sent += len;
            self.used_at = now;
            self.note_use(true);
        }
        Ok(len)
    }

    /// Returns true while a thread of the program is writing into the send ring.
    pub fn is_claimed(&mut self, now: u64) -> bool {
        let claimed = !self.closed && self.slot.send().is_claimed();
        self.claimed_since = claimed.then(|| self.claimed_since.unwrap_or(now));
        claimed
    }

    /// Returns true if a thread has been writing for so long that it was probably stopped.
    pub fn is_stuck(&self, now: u64) -> bool {
        self.claimed_since.is_some_and(|since| now >= since + CLAIM_LIMIT_NS)
    }

    /// Closes the send ring, even if a thread of the program is writing into it. The connection then never sends through its
    /// slot again. Returns how many bytes were committed before and not collected.
    ///
    /// # Errors
    /// If the program broke the protocol.
    pub fn abandon(&mut self) -> Result<u64, Hostile> {
        let committed = self.slot.send().close_by_force().map_err(|_| Hostile)?;
        let len = self.ahead(committed)?;
        (self.abandoned, self.closed, self.claimed_since) = (true, true, None);
        self.collected += len;
        self.sent += len;
        Ok(len)
    }

    /// Claims the send ring, so that the engine may read the pair. Then call [`Direct::collect`], because the program may have
    /// committed further bytes.
    pub fn claim(&mut self, now: u64) -> Turn {
        self.used_at = now;
        match self.closed {
            true => Turn::Closed,
            false => self.slot.send().claim().map_or(Turn::Busy, Turn::Claimed),
        }
    }

    /// Ends the engine's claim, with `len` bytes of the pair in the ring.
    ///
    /// # Errors
    /// If the program broke the protocol.
    pub fn commit(&mut self, claim: Claim, len: u64) -> Result<(), Hostile> {
        self.collected += len;
        if len > 0 {
            self.slot.pair().note_found();
        }
        if self.slot.send().commit(claim, len) { Ok(()) } else { Err(Hostile) }
    }

    /// Ends the engine's claim, and closes the send ring, because the program has finished sending.
    ///
    /// # Errors
    /// If the program broke the protocol.
    pub fn end(&mut self, claim: Claim) -> Result<(), Hostile> {
        self.closed = true;
        if self.slot.send().end(claim) { Ok(()) } else { Err(Hostile) }
    }

    /// Closes the send ring. Returns false if a thread is writing into it.
    pub fn close(&mut self) -> bool {
        self.closed = self.closed || self.slot.send().close().is_ok();
        self.closed
    }

    /// Wakes the program's threads that sleep until they may write to the send ring.
    fn wake_sleepers(&self) {
        let sleeper = &self.slot.header().sleeper;
        if sleeper.load(Ordering::Relaxed) != 0 {
            sleeper.store(0, Ordering::Relaxed);
            // SAFETY: the kernel takes the word's address only as the name of the futex.
            unsafe { libc::syscall(libc::SYS_futex, sleeper.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
        }
    }

    /// Returns true if the slot was not used to send or receive for at least `limit` nanoseconds, and the engine may take it
    /// from the connection.
    pub fn is_unused(&self, now: u64, limit: u64) -> bool {
        !self.has_untaken() && !self.moving && !self.abandoned && now >= self.used_at + limit
    }

    /// Returns the payload bytes that went through the slot.
    pub fn bytes(&self) -> DirectBytes {
        DirectBytes { sent: self.sent, ring: self.received - self.placed, buffers: self.placed }
    }

    /// Returns true if the receive ring had bytes that the program had not taken, when the engine last looked, or if it has the end of the
    /// stream.
    pub fn has_untaken(&self) -> bool {
        self.open && (self.has_end || self.filled != self.taken)
    }

    /// Gives the program `len` received bytes, which begin at index `start` of the receive ring. Returns false if they must go
    /// through the socket pair: the program has not asked for the ring, the pair holds earlier bytes, or the program has left
    /// bytes in the ring. Call this after [`Direct::settle`].
    pub fn fill(&mut self, now: u64, fd: RawFd, start: u64, len: u64) -> bool {
        let receive = self.slot.receive();
        if !self.open {
            if len == 0 || now < self.shunned_until || !receive.is_asked() {
                return false;
            }
            self.pair_empty = self.pair_empty || is_empty(fd);
            if !self.pair_empty {
                return false;
            }
            let first = next_position(self.taken, 1);
            self.base = start.wrapping_sub(first);
            self.slot.header().received.store(self.base, Ordering::Relaxed);
            if !receive.open(self.taken) {
                return false;
            }
            (self.open, self.taken, self.filled, self.wakes) = (true, first, first, None);
        }
        let filled = next_position(start.wrapping_sub(self.base), len);
        if filled != self.filled {
            if !self.has_untaken() {
                (self.progress_at, self.arrived_at) = (now, now);
            }
            (self.filled, self.used_at) = (filled, now);
            if !self.published {
                receive.fill(filled);
                self.area.announce(self.index);
            }
            self.look_for_sleepers(now);
        }
        true
    }

    /// Puts the end of the stream into the receive ring, behind the received bytes. Returns false if it must go through the pair: the ring is
    /// not open, or the program has also shut down its direction, so the pair must hang up. Call this after [`Direct::fill`].
    pub fn pass_end(&mut self, now: u64) -> bool {
        self.ends = true;
        if !self.open || self.published || self.slot.header().shut.load(Ordering::Relaxed) != 0 {
            return false;
        }
        if !self.has_end {
            if !self.has_untaken() {
                self.progress_at = now;
            }
            self.has_end = true;
            self.slot.receive().end_stream(self.filled);
            self.area.announce(self.index);
            self.look_for_sleepers(now);
        }
        true
    }

    /// Records that the pair has the end of the stream.
    pub fn note_end_in_pair(&mut self) {
        if self.moving {
            self.end_move();
        }
    }

    /// Returns true if there are received bytes that the program has not taken: bytes in the receive ring, or bytes that
    /// were discarded. Call this after [`Direct::settle_last`].
    pub fn has_unread(&self) -> bool {
        self.unread || self.open && self.slot.receive().taken().1 != self.filled
    }

    /// Returns how many bytes of the receive ring the program has taken since the last call. If the program has left the ring,
    /// or has taken nothing for too long, bytes that are left there must go to the pair. Write them there, then call
    /// [`Direct::note_pair_written`]. If the peer's engine publishes bytes in the ring, call [`Direct::end_publishing`] and then this again,
    /// before bytes are written.
    ///
    /// # Errors
    /// If the program broke the protocol.
    pub fn settle(&mut self, now: u64) -> Result<u64, Hostile> {
        if !self.open {
            return Ok(0);
        }
        let (open, position) = self.slot.receive().taken();
        let taken = self.advance(position)?;
        if taken > 0 {
            (self.used_at, self.progress_at, self.moved_in_row) = (now, now, 0);
            self.note_use(true);
        }
        if open && !self.is_overdue(now) {
            return Ok(taken);
        }
        if self.published {
            self.must_end = true;
            return Ok(taken);
        }
        if !open && self.slot.receive().is_asked() {
            // The program has left the empty ring and has asked for it again. It may have bytes from between.
            self.open = false;
            self.end_move();
            return Ok(taken);
        }
        let taken = taken + self.leave()?;
        // A thread that was woken for another connection may not have run yet.
        if self.filled != self.taken && !self.area.has_just_woken(now) {
            self.note_use(false);
            self.shunned_until = now + (SHUN_NS << self.moved_in_row);
            self.moved_in_row = (self.moved_in_row + 1).min(MOST_DOUBLINGS);
        }
        Ok(taken)
    }

    /// Records the first use of a slot that the connection got from the start, or that the program has not taken received bytes.
    #[inline]
    fn note_use(&mut self, used: bool) {
        if std::mem::take(&mut self.untried) {
            self.area.note_use(used);
        }
    }

    /// Returns true if the program has left bytes in the receive ring for so long that they must go to the pair.
    #[inline]
    pub fn is_overdue(&self, now: u64) -> bool {
        self.has_untaken() && now >= self.progress_at + UNTAKEN_LIMIT_NS
    }

    /// Gives a program that has not accepted the connection the whole time again to take the bytes in the receive ring, unless they
    /// have waited for [`UNACCEPTED_LIMIT_NS`].
    pub fn postpone(&mut self, now: u64) {
        if now < self.arrived_at + UNACCEPTED_LIMIT_NS {
            self.progress_at = now;
        }
    }

    /// Takes note of the position up to which the program has taken bytes. Returns the number of new bytes.
    fn advance(&mut self, position: u64) -> Result<u64, Hostile> {
        let distance = |from, to: u64| to.wrapping_sub(from) & POSITION;
        let mut taken = distance(self.taken, position);
        let filled = distance(self.taken, self.filled);
        let mut position = position;
        if taken > filled && self.published {
            // The peer's engine has published bytes that this engine has not processed. The program may have taken them.
            (taken, position) = (filled, self.filled);
        }
        if taken > filled {
            return Err(Hostile);
        }
        self.taken = position;
        self.received += taken;
        Ok(taken)
    }

    /// Closes the receive ring. Returns how many further bytes the program has taken. The others must go to the pair.
    ///
    /// # Errors
    /// If the program broke the protocol.
    fn leave(&mut self) -> Result<u64, Hostile> {
        if !self.open {
            return Ok(0);
        }
        let position = self.slot.receive().end();
        let taken = self.advance(position);
        (self.moving, self.open) = (self.has_end || self.filled != self.taken, false);
        if self.moving {
            // What goes to the pair wakes the thread.
            self.wakes = None;
        }
        taken
    }

    /// Closes the receive ring, because the connection has failed. Returns how many further bytes the program has taken.
    pub fn end_receiving(&mut self) -> u64 {
        // A program that breaks the protocol gets its bytes again.
        self.leave().unwrap_or(0)
    }

    /// Closes the receive ring, and ends a move of its bytes to the pair. Call this when the received bytes are discarded.
    pub fn discard(&mut self) {
        self.must_end = self.published;
        self.end_receiving();
        if self.moving {
            self.unread |= self.filled != self.taken;
            self.end_move();
        }
    }

    /// Shows the program that no bytes are left in the receive ring.
    fn end_move(&mut self) {
        (self.moving, self.has_end) = (false, false);
        self.filled = self.taken;
        self.slot.receive().fill(self.taken);
    }

    /// Records that the engine has written to the socket pair. The engine then checks whether the pair is empty before it opens
    /// the receive ring again.
    pub fn note_pair_written(&mut self) {
        (self.pair_empty, self.pair_written) = (false, true);
        if self.moving {
            self.end_move();
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.return_wake();
        self.note_use(false);
        self.area.area().inode(self.index).store(0, Ordering::Relaxed);
        self.slot.header().inode.store(0, Ordering::Relaxed);
        self.wake_sleepers();
        self.slot.receive().close();
        // If a thread has the claim, never use the slot of shared memory again, because the thread may still write. If the peer's engine has
        // that of the receive ring, do not use the slot until its store has ended.
        let is_stored = self.slot.stores().ring.close().is_err();
        match self.slot.send().close() {
            Ok(_) if self.abandoned => {}
            Ok(_) if is_stored => self.area.release_after_store(self.index),
            Ok(_) => self.area.release(self.index, self.bytes().all() > KEPT),
            Err(_) => drop(self.slot.send().close_by_force()),
        }
    }
}

/// Returns the position `len` bytes behind `position` of the receive ring.
fn next_position(position: u64, len: u64) -> u64 {
    position.wrapping_add(len) & POSITION
}

/// Returns true if the program has read all bytes that the engine has written to the socket pair. `fd` is the
/// engine's end of the pair.
fn is_empty(fd: RawFd) -> bool {
    let mut bytes: libc::c_int = 1;
    // SAFETY: the kernel writes one number to `bytes`, which outlives the call.
    unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) == 0 && bytes == 0 }
}

#[cfg(test)]
mod tests;
