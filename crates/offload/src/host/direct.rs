//! The engine's side of the memory that it shares with programs ([`inlane_offload_protocol::lease`]).
//!
//! Programs may write anything into this memory at any time. So the engine checks each number that it reads
//! from this memory. It keeps its own copy of every number on which it relies.

use super::area::SharedArea;
use crate::stack::ring::ByteRing;
use inlane_core::region::{Location, Region};
use inlane_offload_protocol::lease::{Answer, Offer, Slot};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The nanoseconds for which a program's thread may keep the send ring claimed while it writes. After that,
/// the engine ends the claim by force. Normally a claim takes less than a microsecond, unless the thread is
/// stopped or descheduled.
const CLAIM_LIMIT_NS: u64 = 100_000_000;
/// The nanoseconds for which a program may leave an offer of received bytes unanswered. Then the engine
/// withdraws the offer. Normally an answer takes less than a microsecond.
const OFFER_LIMIT_NS: u64 = 500_000;
/// The number of bytes that an offer may always have, if the ring has so many.
const LEAST_OFFER: usize = 65536;
/// How long the engine holds back received bytes after the program has taken offered bytes, in nanoseconds. A
/// program that receives in a loop posts its next receive within this time. Without the delay, the engine
/// would write the bytes to the socket pair.
const HOLD_NS: u64 = 5_000;
/// The time without offers to posted receives after the engine has withdrawn an offer, in nanoseconds. After
/// a withdrawal, the program probably waits for events in a way that the preloaded library does not see. The
/// time doubles with each withdrawal in a row, at most `MOST_DOUBLINGS` times.
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
    /// The engine's current offer of received bytes, and the time of the offer in nanoseconds. `None` if no
    /// offer waits for the program's answer.
    offer: Option<(Offer, u64)>,
    /// True if the engine must still write the bytes of a withdrawn offer to the socket pair.
    moving: bool,
    /// True if bytes of a withdrawn offer were discarded. The program has never read them.
    unread: bool,
    /// True if more received bytes, or the end of the stream, must wait until the program has answered the
    /// offer.
    waits: bool,
    /// The number of consecutive offers to posted receives that the engine has withdrawn, at most
    /// `MOST_DOUBLINGS`. Each withdrawn offer doubles the time until the next offer.
    withdrawn: u32,
    /// The time in nanoseconds until which the engine makes no offers to a posted receive. It is set after
    /// the program left an offer unanswered.
    shunned_until: u64,
    /// When the program last took an offer, in nanoseconds. `None` if it never did.
    taken_at: Option<u64>,
    /// True if the engine found the socket pair empty, and has written nothing to the pair since then. If
    /// false, the engine checks the pair before it makes an offer.
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
        slot.receive().reset();
        header.ring.store(area.ring() as u64, Ordering::Relaxed);
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
            offer: None,
            moving: false,
            unread: false,
            waits: false,
            withdrawn: 0,
            shunned_until: 0,
            taken_at: None,
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

    /// Returns true if the connection has work for the engine: committed bytes,
    /// an answer to an offer, or an offer that was unanswered for too long. If `all` is false, does not count
    /// an offer whose bytes were all taken and after which no bytes wait.
    #[inline]
    pub fn has_work(&self, now: u64, all: bool) -> bool {
        let answered = self.offer.is_some_and(|(offer, since)| {
            let receive = self.slot.receive();
            now >= since + OFFER_LIMIT_NS
                || !receive.is_pending(offer) && (all || self.waits || !receive.is_renewed(offer))
        });
        answered || self.slot.send().committed() != self.collected
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

    /// Returns true if no offer waits for an answer and the slot was not used for at least 1 ms.
    pub fn is_idle(&self, now: u64) -> bool {
        self.offer.is_none() && now >= self.used_at + IDLE_NS
    }

    /// Returns true if the slot was not used to send or receive for at least `limit` nanoseconds, and the engine may take it
    /// from the connection.
    pub fn is_unused(&self, now: u64, limit: u64) -> bool {
        self.offer.is_none() && !self.moving && !self.abandoned && now >= self.used_at + limit
    }

    /// Returns the number of payload bytes that went through the slot.
    pub fn moved(&self) -> u64 {
        self.sent + self.received
    }

    /// Returns true if the engine has offered received bytes to the program's posted receive, and the program
    /// has not answered. Until it answers, the offered bytes stay in the connection's receive ring, and no
    /// other bytes may be delivered.
    pub fn has_offer(&self) -> bool {
        self.offer.is_some()
    }

    /// Offers `len` received bytes to the program, or as many of these bytes as the posted
    /// receive accepts. They begin at index `start` of the receive ring. Returns false if the bytes must go through the
    /// socket pair: no receive is posted, the
    /// pair holds earlier bytes, or the program has left an offer unanswered.
    pub fn offer(&mut self, now: u64, fd: RawFd, start: u64, len: u64) -> bool {
        let Some((post, room)) = self.slot.receive().posted() else { return false };
        if now < self.shunned_until || len == 0 {
            return false;
        }
        // Leave most of the ring to bytes that arrive before the program has taken all of these.
        let most = (self.area.ring() / 4).max(self.area.ring().min(LEAST_OFFER));
        let len = len.min(room).min(most as u64);
        self.pair_empty = self.pair_empty || is_empty(fd);
        if !self.pair_empty || len == 0 {
            return false;
        }
        self.slot.header().offered.store(start + len, Ordering::Relaxed);
        self.offer = self.slot.receive().offer(post, len).map(|offer| (offer, now));
        self.used_at = now;
        if self.offer.is_some() {
            self.area.announce(self.index);
        }
        self.offer.is_some()
    }

    /// Records whether more follows the current offer: further bytes for the program, or the end of the
    /// stream. If so, [`Direct::has_work`] returns true once the program has answered.
    pub fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Returns the number of bytes in the offer that the program has not answered yet. Returns 0 if there is
    /// none.
    pub fn offered(&self) -> u64 {
        self.offer.map_or(0, |(offer, _)| offer.len)
    }

    /// Returns true if there are received bytes that the program has not taken: bytes of the current offer,
    /// or bytes that were discarded.
    pub fn has_unread(&self) -> bool {
        self.unread || self.offer.is_some_and(|(offer, _)| self.slot.receive().is_pending(offer))
    }

    /// Returns true if the program will probably post another receive soon, because it has just taken the
    /// bytes offered to its last receive. The engine should then keep received bytes for the next receive
    /// instead of writing them to the socket pair.
    pub fn expects_post(&self, now: u64) -> bool {
        self.pair_empty
            && !self.moving
            && self.taken_at.is_some_and(|taken_at| now < taken_at + HOLD_NS)
            && self.slot.receive().posted().is_none()
    }

    /// Ends the current offer of received bytes. Returns the number of its bytes that the program has taken,
    /// or `None` while the program has not answered. If the offer is too old, or the program asks for the
    /// bytes through the socket pair, withdraws the offer. If the program took fewer bytes than offered,
    /// write the rest to the pair, then call [`Direct::note_pair_written`].
    ///
    /// # Errors
    /// If the program broke the protocol.
    pub fn settle(&mut self, now: u64) -> Result<Option<u64>, Hostile> {
        let Some((offer, since)) = self.offer else { return Ok(Some(0)) };
        let receive = self.slot.receive();
        let mut rest = None;
        let answer = match receive.settle(offer) {
            Answer::Pending if now < since + OFFER_LIMIT_NS => return Ok(None),
            Answer::Pending | Answer::Asked => {
                rest = receive.withdraw(offer);
                self.moving = rest.is_some();
                match rest {
                    Some(_) => Answer::Pending,
                    None => receive.settle(offer),
                }
            }
            answer => answer,
        };
        self.offer = None;
        self.used_at = now;
        let taken = match answer {
            Answer::Taken => offer.len,
            Answer::Pending => {
                self.shunned_until = now + (SHUN_NS << self.withdrawn);
                self.withdrawn = (self.withdrawn + 1).min(MOST_DOUBLINGS);
                offer.len - rest.unwrap_or(offer.len)
            }
            Answer::Asked | Answer::Invalid => return Err(Hostile),
        };
        if answer == Answer::Taken {
            self.withdrawn = 0;
            self.taken_at = Some(now);
        }
        self.received += taken;
        Ok(Some(taken))
    }

    /// Ends the current offer of received bytes in shared memory. Returns how many of the offered bytes the
    /// program has taken. Returns `None` if there is no offer.
    pub fn end_offer(&mut self) -> Option<u64> {
        let (offer, _) = self.offer.take()?;
        let receive = self.slot.receive();
        match receive.withdraw(offer) {
            Some(rest) => {
                self.moving = true;
                Some(offer.len - rest)
            }
            // The program has taken all bytes, or has broken the protocol and loses them.
            None => {
                let _ = receive.settle(offer);
                Some(offer.len)
            }
        }
    }

    /// Withdraws the offered bytes that the program has not taken. Also ends a move of offered bytes to the
    /// socket pair. Call this when the received bytes are discarded.
    pub fn forget_offer(&mut self) {
        let _ = self.end_offer();
        if std::mem::take(&mut self.moving) {
            self.unread = true;
            self.slot.receive().end_move();
        }
    }

    /// Records that the engine has written to the socket pair. The next offer then checks whether the pair is
    /// empty.
    pub fn note_pair_written(&mut self) {
        self.pair_empty = false;
        if std::mem::take(&mut self.moving) {
            self.slot.receive().end_move();
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.slot.header().inode.store(0, Ordering::Relaxed);
        self.wake_sleepers();
        // A thread of the program posts a receive, executes a fence and then reads the inode. Because of both
        // fences, one of two things happens. Either the thread reads inode 0, or `close` sees the posted
        // receive and keeps its sequence number.
        fence(Ordering::SeqCst);
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
