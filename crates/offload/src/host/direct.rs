//! The engine's side of the memory that it shares with programs ([`inlane_offload_protocol::lease`]).
//!
//! Programs may write anything into this memory at any time. So the engine checks each number that it reads
//! from this memory. It keeps its own copy of every number on which it relies.

use super::area::SharedArea;
use crate::stack::ring::ByteRing;
use inlane_core::region::{Location, Region};
use inlane_offload_protocol::lease::{POSITION, Slot};
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
/// The number of taken bytes after which the engine tells TCP at once. Otherwise it does so with its next work, and in the
/// next check of all leases.
const TAKEN: u64 = 16 << 10;
/// The time during which the engine does not open the receive ring after it has moved bytes from there to the pair, in
/// nanoseconds. The program then probably waits for events in a way that the preloaded library does not see. The
/// time doubles with each move in a row, at most `MOST_DOUBLINGS` times.
const SHUN_NS: u64 = 1_000_000;
/// The most times that `SHUN_NS` is doubled.
const MOST_DOUBLINGS: u32 = 10;
/// The nanoseconds after which the engine ends an unused lease.
const IDLE_NS: u64 = 1_000_000;
/// The most bytes that a connection may have moved through its slot so that the slot's memory is kept for the next
/// connection.
const KEPT: u64 = 64 << 10;
/// The interval, in nanoseconds, at which the engine writes the time into a leased slot of shared memory.
const ALIVE_NS: u64 = 1_000_000;

/// The error that the program broke the protocol of the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hostile;

/// The result of [`Direct::end_lease`]: whether the engine may read the socket pair now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The engine may read the socket pair. The program commits no more bytes to its slot of shared memory,
    /// and the engine has collected all committed bytes.
    Pair,
    /// The engine may not read the pair yet. It must first call [`Direct::collect`] for bytes that the program has committed
    /// before.
    Behind,

    /// The engine may not read the pair yet, because a thread of the program is writing into the send ring.
    /// Try again in the next round.
    Claimed,
}

/// The value of a slot's send word when the engine last read it. An array of these structures takes few cache
/// lines, so the engine can check all of them in each round.
#[derive(Debug)]
pub struct Watch {
    /// Keeps the slot mapped.
    _area: Arc<SharedArea>,
    slot: Slot,
    seen: u64,
}

// SAFETY: the slot lies in the area of shared memory, which this value keeps mapped. The value only reads an
// atomic of the slot.
unsafe impl Send for Watch {}

impl Watch {
    /// Returns true if the slot's send word has changed since the last call. The first call compares the word
    /// with 0.
    #[inline]
    pub fn has_changed(&mut self) -> bool {
        let word = self.slot.header().send.0.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, word) != word
    }
}

/// A connection's slot in shared memory.
#[derive(Debug)]
pub struct Direct {
    area: Arc<SharedArea>,
    index: usize,
    slot: Slot,
    /// The position up to which the engine has taken note of committed bytes.
    collected: u64,
    /// The time in nanoseconds at which the engine first deferred the end of the connection's lease. It
    /// defers the end while a thread of the program writes to the send ring (a claim). `None` if no claim
    /// defers it.
    claimed_since: Option<u64>,
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
    /// The number of consecutive times that the engine has moved bytes from the receive ring to the pair, at most
    /// `MOST_DOUBLINGS`.
    moved_in_row: u32,
    /// The time in nanoseconds until which the engine does not open the receive ring.
    shunned_until: u64,
    /// True if the engine found the socket pair empty, and has written nothing to the pair since then. If
    /// false, the engine checks the pair before it opens the receive ring.
    pair_empty: bool,
    /// When the slot was last used to send or receive, or the lease was granted, in nanoseconds.
    used_at: u64,
    /// When the engine last wrote the time into the slot, in nanoseconds. 0 if it never did.
    alive_at: u64,
    /// True if the engine took the send ring of the slot away while a thread of the program was writing to
    /// the ring. The thread may still write, so this slot of shared memory is not used again.
    abandoned: bool,
    /// True if the engine must not put bytes of the pair into the slot's send ring, because the thread may still write there.
    leaves_ring: bool,
    /// True if at least half of the send ring was free at the last [`Direct::publish`].
    has_room: bool,
    /// The index of this connection in the engine's list of leases. `None` if the connection is not in the
    /// list.
    pub listed: Option<usize>,
    /// The number of bytes that the program has sent through shared memory.
    pub sent: u64,
    /// The number of bytes that the program has received through shared memory.
    pub received: u64,
}

// SAFETY: the slot is in the area, and this value keeps the area mapped. The slot's memory is accessed only
// by atomics and copies, and any thread may do these.
unsafe impl Send for Direct {}

impl Direct {
    /// Assigns a slot in the shared memory of `area` to a connection. `inode` and `device` identify the
    /// program's end of the socket pair. Returns `None` if no slot is free.
    pub fn new(now: u64, area: &Arc<SharedArea>, inode: u64, device: u64) -> Option<Self> {
        let (index, slot) = area.reserve()?;
        let header = slot.header();
        slot.send().reset(0);
        let position = slot.receive().reset();
        header.ring.store(area.ring() as u32, Ordering::Relaxed);
        header.shut.store(0, Ordering::Relaxed);
        header.low_water.store(0, Ordering::Relaxed);
        header.sleeper.store(0, Ordering::Relaxed);
        header.device.store(device, Ordering::Relaxed);
        header.inode.store(inode, Ordering::Release);
        Some(Self {
            area: area.clone(),
            index,
            slot,
            collected: 0,
            claimed_since: None,
            open: false,
            base: 0,
            taken: position,
            filled: position,
            progress_at: 0,
            moving: false,
            unread: false,
            ends: false,
            moved_in_row: 0,
            shunned_until: 0,
            pair_empty: false,
            used_at: now,
            alive_at: 0,
            abandoned: false,
            leaves_ring: false,
            has_room: true,
            listed: None,
            sent: 0,
            received: 0,
        })
    }

    /// Returns the area that contains the connection's slot of shared memory, and the slot's index in the
    /// area.
    pub fn location(&self) -> (&Arc<SharedArea>, usize) {
        (&self.area, self.index)
    }

    /// Returns the user of the process that shares the memory.
    pub fn user(&self) -> u32 {
        self.area.user
    }

    /// Returns the slot of shared memory, for tests that act as the program.
    #[cfg(test)]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Returns a [`Watch`]. The engine uses it in each round to detect changes of the send word in this slot
    /// of shared memory.
    pub fn watch(&self) -> Watch {
        Watch { _area: self.area.clone(), slot: self.slot, seen: 0 }
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

    /// Tells the program which bytes of the send ring it may overwrite. `written` is the index at which the connection's
    /// data ends, and `acknowledged` the index before which the peer has acknowledged it. At most `limit` bytes may be
    /// unacknowledged. Call this after each of them has changed. Between two leases, the next bytes of the program then follow `written`.
    pub fn publish(&mut self, written: u64, acknowledged: u64, limit: u64) {
        let header = self.slot.header();
        self.has_room = limit.saturating_sub(written.wrapping_sub(acknowledged)) >= limit / 2;
        header.base.store(written.wrapping_sub(self.collected), Ordering::Release);
        header.room.limit.store(limit, Ordering::Relaxed);
        header.room.acknowledged.store(acknowledged, Ordering::Release);
    }

    /// Returns how many of the first `committed` bytes the engine has not collected yet.
    ///
    /// # Errors
    /// If `committed` is less than the number of collected bytes, or more than the send ring can hold. The
    /// program wrote this number, so it can be wrong.
    fn ahead(&self, committed: u64) -> Result<u64, Hostile> {
        committed.checked_sub(self.collected).filter(|&ahead| ahead <= self.area.ring() as u64).ok_or(Hostile)
    }

    /// Returns how many committed bytes were not collected yet, or 0 if the program broke the protocol.
    pub fn uncollected(&self) -> u64 {
        self.ahead(self.slot.send().committed()).unwrap_or(0)
    }

    /// Returns true if the connection has work for the engine: committed bytes, taken bytes that TCP should know of, or
    /// bytes in the receive ring that must be moved to the pair. If `all` is true, counts any taken bytes.
    #[inline]
    pub fn has_work(&self, now: u64, all: bool) -> bool {
        self.slot.send().committed() != self.collected || self.open && self.has_receive_work(now, all)
    }

    fn has_receive_work(&self, now: u64, all: bool) -> bool {
        let (open, taken) = self.slot.receive().taken();
        let (all, rest) = (all || self.ends && taken == self.filled, self.filled != taken);
        rest && (!open || now >= self.progress_at + UNTAKEN_LIMIT_NS)
            || taken != self.taken && (all || taken.wrapping_sub(self.taken) >= TAKEN)
    }

    /// Returns how many bytes the program has committed since the last call. They are in the send ring. `room` is the number
    /// of free bytes in the ring.
    ///
    /// # Errors
    /// If the program broke the protocol.
    pub fn collect(&mut self, now: u64, room: u64) -> Result<u64, Hostile> {
        let len = self.ahead(self.slot.send().committed())?;
        if len > room {
            return Err(Hostile);
        }
        if len > 0 {
            self.collected += len;
            self.sent += len;
            self.used_at = now;
        }
        Ok(len)
    }

    /// Tries to end the lease, so that the engine may read the socket pair. The lease goes on while a thread
    /// of the program writes into the send ring (a claim). If a claim lasts longer than 100 ms, the engine
    /// ends it by force. The connection then never sends through its slot of shared memory again.
    ///
    /// # Errors
    /// If the program broke the protocol.
    pub fn end_lease(&mut self, now: u64) -> Result<Turn, Hostile> {
        let send = self.slot.send();
        let committed = match send.revoke() {
            Ok(committed) => committed,
            Err(_) => {
                let since = *self.claimed_since.get_or_insert(now);
                if now < since + CLAIM_LIMIT_NS {
                    return Ok(Turn::Claimed);
                }
                (self.abandoned, self.leaves_ring) = (true, true);
                send.abandon().map_err(|_| Hostile)?
            }
        };
        self.claimed_since = None;
        self.wake_sleepers();
        Ok(if self.ahead(committed)? == 0 { Turn::Pair } else { Turn::Behind })
    }

    /// Returns true, once, if the connection must send from another ring before the engine reads the pair.
    pub fn take_leaves_ring(&mut self) -> bool {
        std::mem::take(&mut self.leaves_ring)
    }

    /// Lets the program send through shared memory, until the engine ends the lease.
    pub fn grant(&mut self, now: u64) {
        self.used_at = now;
        self.refresh(now);
        self.slot.send().grant();
        if self.has_room {
            self.wake_sleepers();
        }
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

    /// Writes the current time into the slot of shared memory, if the time in the slot is at least 1 ms old.
    /// The program uses a lease only if the slot's time is recent.
    pub fn refresh(&mut self, now: u64) {
        if now >= self.alive_at + ALIVE_NS || self.alive_at == 0 {
            self.alive_at = now;
            self.slot.header().alive_ns.store(monotonic_ns(), Ordering::Relaxed);
        }
    }

    /// Returns true if the receive ring is empty and the slot was not used for at least 1 ms.
    pub fn is_idle(&self, now: u64) -> bool {
        !self.has_untaken() && now >= self.used_at + IDLE_NS
    }

    /// Returns true if the slot was not used to send or receive for at least `limit` nanoseconds, and the engine may take it
    /// from the connection.
    pub fn is_unused(&self, now: u64, limit: u64) -> bool {
        !self.has_untaken() && !self.moving && !self.abandoned && now >= self.used_at + limit
    }

    /// Returns the number of payload bytes that went through the slot.
    pub fn moved(&self) -> u64 {
        self.sent + self.received
    }

    /// Returns true if the receive ring had bytes that the program had not taken, when the engine last looked.
    pub fn has_untaken(&self) -> bool {
        self.open && self.filled != self.taken
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
            (self.open, self.taken, self.filled) = (true, first, first);
        }
        let filled = next_position(start.wrapping_sub(self.base), len);
        if filled != self.filled {
            if !self.has_untaken() {
                self.progress_at = now;
            }
            (self.filled, self.used_at) = (filled, now);
            receive.fill(filled);
            self.area.announce(self.index);
        }
        true
    }

    /// Records that the peer has closed its direction. [`Direct::has_work`] then returns true once the program has taken all
    /// bytes.
    pub fn set_ends(&mut self, ends: bool) {
        self.ends = ends;
    }

    /// Returns true if there are received bytes that the program has not taken: bytes in the receive ring, or bytes that
    /// were discarded.
    pub fn has_unread(&self) -> bool {
        self.unread || self.open && self.slot.receive().taken().1 != self.filled
    }

    /// Returns how many bytes of the receive ring the program has taken since the last call. If the program has left the ring,
    /// or has taken nothing for too long, bytes that are left there must go to the pair. Write them there, then call
    /// [`Direct::note_pair_written`].
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
        }
        if open && !(self.has_untaken() && now >= self.progress_at + UNTAKEN_LIMIT_NS) {
            return Ok(taken);
        }
        if !open && self.slot.receive().is_asked() {
            // The program has left the empty ring and has asked for it again. It may have bytes from between.
            self.open = false;
            self.end_move();
            return Ok(taken);
        }
        let taken = taken + self.leave()?;
        if self.moving {
            self.shunned_until = now + (SHUN_NS << self.moved_in_row);
            self.moved_in_row = (self.moved_in_row + 1).min(MOST_DOUBLINGS);
        }
        Ok(taken)
    }

    /// Takes note of the position up to which the program has taken bytes. Returns the number of new bytes.
    fn advance(&mut self, position: u64) -> Result<u64, Hostile> {
        let distance = |from, to: u64| to.wrapping_sub(from) & POSITION;
        let taken = distance(self.taken, position);
        if taken > distance(self.taken, self.filled) {
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
        (self.moving, self.open) = (self.filled != self.taken, false);
        taken
    }

    /// Closes the receive ring, because the connection has failed. Returns how many further bytes the program has taken.
    pub fn end(&mut self) -> u64 {
        // A program that breaks the protocol gets its bytes again.
        self.leave().unwrap_or(0)
    }

    /// Closes the receive ring, and ends a move of its bytes to the pair. Call this when the received bytes are discarded.
    pub fn discard(&mut self) {
        self.end();
        if self.moving {
            self.unread = true;
            self.end_move();
        }
    }

    /// Shows the program that no bytes are left in the receive ring.
    fn end_move(&mut self) {
        self.moving = false;
        self.filled = self.taken;
        self.slot.receive().fill(self.taken);
    }

    /// Records that the engine has written to the socket pair. The engine then checks whether the pair is empty before it opens
    /// the receive ring again.
    pub fn note_pair_written(&mut self) {
        self.pair_empty = false;
        if self.moving {
            self.end_move();
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.slot.header().inode.store(0, Ordering::Relaxed);
        self.wake_sleepers();
        self.slot.receive().close();
        // If a claim was ended by force, never use the slot of shared memory again. The thread with the claim
        // may still write to the slot.
        match self.slot.send().revoke() {
            Ok(_) if !self.abandoned => self.area.release(self.index, self.moved() > KEPT),
            Ok(_) => {}
            Err(_) => drop(self.slot.send().abandon()),
        }
    }
}

/// Returns the position `len` bytes behind `position` of the receive ring.
fn next_position(position: u64, len: u64) -> u64 {
    position.wrapping_add(len) & POSITION
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds. All processes share this clock.
fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
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
