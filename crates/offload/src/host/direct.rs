//! The engine's side of the memory that it shares with programs ([`inlane_offload_protocol::lease`]).
//!
//! Programs may write anything into this memory at any time. So the engine checks each number that it reads
//! from this memory. It keeps its own copy of every number on which it relies.

use crate::stack::ring::ByteRing;
use inlane_core::region::{Location, Region};
use inlane_offload_protocol::lease::{Answer, Area, Offer, SLOTS, Slot};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

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

/// The memory that the engine shares with one process. The memory is unmapped once the process has ended and
/// no connection uses the memory.
#[derive(Debug)]
pub struct SharedArea {
    start: NonNull<u8>,
    /// The length of each ring in bytes.
    ring: usize,
    /// The length of the mapping in bytes.
    len: usize,
    /// The user of the process.
    pub user: u32,
    /// The ID of the process that shares the memory.
    pub process: i32,
    /// Bit n is 1 while slot n is reserved. A slot is reserved while a connection uses it. The engine may
    /// take the send ring from a program's thread while the thread writes to it. The slot then stays
    /// reserved, because the thread may still write.
    used: AtomicU64,
}

// SAFETY: this value owns the mapping. The memory is accessed only by atomics and by copies.
unsafe impl Send for SharedArea {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedArea {}

impl SharedArea {
    /// Creates an area for the process with the ID `process` of user `user`, with rings of `ring` bytes. Returns it and its
    /// memfd, which the process maps. Seals keep the process from resizing the area. The area does not need the memfd any
    /// more. Pages that were not written take no memory.
    ///
    /// # Errors
    /// Errors of the system: too many descriptors, too little memory. `InvalidInput` for a wrong length.
    pub fn new(process: i32, user: u32, ring: usize) -> io::Result<(Self, OwnedFd)> {
        let len = Area::len(ring).ok_or(io::ErrorKind::InvalidInput)?;
        let file = rustix::fs::memfd_create("inlane", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping touches no memory of this process.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let area = Self { start, ring, len, process, user, used: AtomicU64::new(0) };
        area.area().initialise();
        Ok((area, file))
    }

    fn area(&self) -> Area {
        // SAFETY: this value keeps the area mapped. Slots keep this value alive.
        unsafe { Area::new(self.start, self.ring) }
    }

    /// Reserves a slot of shared memory. Returns the slot's index and the slot. Returns `None` if all slots
    /// are reserved.
    fn reserve(&self) -> Option<(usize, Slot)> {
        // Several threads of the engine may reserve slots of one area. Acquire pairs with the release store
        // with which another thread gave back the slot.
        let reserved = self.used.fetch_update(Ordering::Acquire, Ordering::Relaxed, |used| {
            let index = used.trailing_ones() as usize;
            (index < SLOTS).then(|| used | 1 << index)
        });
        let index = reserved.ok()?.trailing_ones() as usize;
        let slot = self.area().slot(index)?;
        Some((index, slot))
    }

    /// Returns true if all slots are reserved.
    pub fn is_full(&self) -> bool {
        self.used.load(Ordering::Relaxed) == u64::MAX
    }

    /// Sets the bit of slot `index` in the ready word of the shared memory. The bit tells the program that
    /// bytes are offered in this slot.
    fn announce(&self, index: usize) {
        self.area().ready().fetch_or(1 << index, Ordering::Release);
    }

    /// Frees a slot for another connection. If `clears` is true, returns the memory of its rings to the system.
    fn release(&self, index: usize, clears: bool) {
        if let Some(slot) = self.area().slot(index).filter(|_| clears) {
            let offset = (slot.rings() as usize - self.start.as_ptr() as usize).next_multiple_of(4096);
            // SAFETY: the pages lie within the slot's rings, which no connection uses any more. The program finds zeros there.
            unsafe {
                let pages = self.start.as_ptr().add(offset);
                let _ =
                    rustix::mm::madvise(pages.cast(), 2 * self.ring - 4096, rustix::mm::Advice::LinuxRemove);
            }
        }
        self.used.fetch_and(!(1 << index), Ordering::Release);
    }
}

impl Drop for SharedArea {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

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
        header.ring.store(area.ring as u64, Ordering::Relaxed);
        header.shut.store(0, Ordering::Relaxed);
        header.low_water.store(0, Ordering::Relaxed);
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
        let ring = self.area.ring;
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
    pub fn publish(&self, written: u64, acknowledged: u64, limit: u64) {
        let header = self.slot.header();
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
        committed.checked_sub(self.collected).filter(|&ahead| ahead <= self.area.ring as u64).ok_or(Hostile)
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
        let most = (self.area.ring / 4).max(self.area.ring.min(LEAST_OFFER));
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
mod tests {
    use super::*;
    use inlane_tcp::ReceiveBuffer;
    use proptest::prelude::*;
    use std::os::fd::AsRawFd;

    const DEVICE: u64 = 8;

    const RING: usize = 65536;

    fn area() -> Arc<SharedArea> {
        Arc::new(SharedArea::new(1, 1000, RING).unwrap().0)
    }

    fn connection() -> Direct {
        Direct::new(0, &area(), 7, DEVICE).unwrap()
    }

    /// Commits bytes as the preloaded library does.
    fn commit(direct: &Direct, bytes: &[u8]) {
        let claim = direct.slot.send().claim().unwrap();
        assert!(direct.slot.room(claim.position) >= bytes.len());
        // SAFETY: the test has claimed the ring.
        unsafe { direct.slot.write_send(claim.position, bytes.as_ptr(), bytes.len()) };
        assert!(direct.slot.send().commit(claim, bytes.len() as u64));
    }

    #[test]
    fn committed_bytes_are_in_the_ring_in_front_of_those_of_the_pair() {
        let mut direct = connection();
        let [mut ring, _] = direct.rings();
        assert!(direct.slot.send().claim().is_none(), "no lease was granted");
        direct.publish(7, 7, RING as u64);
        direct.grant(1);
        commit(&direct, &[3; 5000]);
        assert!(direct.has_work(1, true) && direct.uncollected() == 5000);
        assert_eq!(direct.end_lease(1), Ok(Turn::Behind));
        assert_eq!(direct.collect(1, RING as u64), Ok(5000));
        assert_eq!(direct.end_lease(1), Ok(Turn::Pair));
        assert!(!direct.has_work(1, true) && direct.slot.send().claim().is_none());
        // The engine reads 3 bytes of the pair, and the peer acknowledges 1000 bytes.
        ring.write(5007, &[4; 3]);
        direct.publish(5010, 1007, RING as u64);
        direct.grant(1);
        assert_eq!(direct.slot.room(direct.slot.send().granted().unwrap()), RING - 4003);
        commit(&direct, &[5; 1000]);
        assert_eq!(direct.collect(1, RING as u64 - 4003), Ok(1000));
        let mut bytes = vec![0; 6003];
        ring.read(7..6010, &mut bytes);
        assert_eq!(bytes, [vec![3; 5000], vec![4; 3], vec![5; 1000]].concat());
    }

    #[test]
    fn more_committed_bytes_than_fit_are_hostile() {
        let mut direct = connection();
        direct.publish(0, 0, 1000);
        direct.grant(1);
        let claim = direct.slot.send().claim().unwrap();
        assert_eq!(direct.slot.room(claim.position), 1000);
        assert!(direct.slot.send().commit(claim, 1001));
        assert_eq!(direct.collect(1, 1000), Err(Hostile));
    }

    #[test]
    fn a_claim_that_lasts_too_long_is_ended_and_its_slot_is_not_used_again() {
        let area = area();
        let mut direct = Direct::new(0, &area, 7, DEVICE).unwrap();
        direct.grant(1);
        let claim = direct.slot.send().claim().unwrap();
        assert_eq!(direct.end_lease(1), Ok(Turn::Claimed));
        assert_eq!(direct.end_lease(1 + CLAIM_LIMIT_NS), Ok(Turn::Pair));
        assert!(direct.take_leaves_ring() && !direct.take_leaves_ring());
        assert!(!direct.slot.send().commit(claim, 5));
        direct.grant(2);
        assert!(direct.slot.send().claim().is_none());
        drop(direct);
        let next: Vec<_> = (0..SLOTS).map_while(|_| Direct::new(0, &area, 8, DEVICE)).collect();
        assert_eq!(next.len(), SLOTS - 1);
        assert!(next.iter().all(|direct| direct.index != 0));
    }

    #[test]
    fn a_receive_is_offered_as_much_as_fits() {
        let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
        let area = Arc::new(SharedArea::new(1, 1000, 2 * LEAST_OFFER).unwrap().0);
        let mut direct = Direct::new(0, &area, 7, DEVICE).unwrap();
        let [_, mut ring] = direct.rings();
        let start = 2 * LEAST_OFFER as u64 - 3000;
        ring.write(start, &[1; 3000]);
        ring.write(start + 3000, &[2; LEAST_OFFER]);
        assert!(direct.slot.receive().post());
        assert!(direct.offer(1, engine.as_raw_fd(), start, 3000 + LEAST_OFFER as u64));
        let offer = direct.slot.receive().offered().unwrap();
        assert_eq!(offer.len, LEAST_OFFER as u64);
        let mut bytes = vec![0; LEAST_OFFER];
        // SAFETY: the vector has room for the bytes.
        unsafe { direct.slot.read_offered(offer, 0, bytes.as_mut_ptr(), LEAST_OFFER) };
        assert_eq!((&bytes[..3000], &bytes[3000..]), (&[1; 3000][..], &[2; LEAST_OFFER - 3000][..]));
    }

    #[test]
    fn an_offer_is_announced_renewed_and_shunned_when_nobody_answers() {
        let (engine, program) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = engine.as_raw_fd();
        let mut direct = connection();
        let ready = |direct: &Direct| direct.area.area().ready().swap(0, Ordering::Acquire);
        assert!(direct.slot.receive().post());
        assert!(direct.offer(1, fd, 0, 8) && ready(&direct) == 1 && direct.has_unread());
        let offer = direct.slot.receive().offered().unwrap();
        assert!(direct.slot.receive().take(offer, 3) && direct.has_unread());
        assert!(!direct.has_work(2, true) && direct.settle(2) == Ok(None));
        let offer = direct.slot.receive().offered().unwrap();
        assert!(direct.slot.receive().take(offer, 5) && !direct.has_unread());
        assert!(!direct.has_work(2, false) && direct.has_work(2, true));
        direct.set_waits(true);
        assert!(direct.has_work(2, false));
        assert_eq!(direct.settle(2), Ok(Some(8)));
        assert!(direct.offer(3, fd, 8, 5) && ready(&direct) == 1);
        let offer = direct.slot.receive().offered().unwrap();
        assert!(direct.slot.receive().take(offer, 4));
        let end = 3 + OFFER_LIMIT_NS;
        assert!(direct.has_work(end, false));
        assert_eq!(direct.settle(end), Ok(Some(4)));
        assert!(direct.slot.receive().is_moving() && !direct.slot.receive().post());
        direct.note_pair_written();
        assert!(direct.slot.receive().post());
        assert!(!direct.offer(end, fd, 12, 5), "the program did not look at its slot");
        assert!(direct.offer(end + SHUN_NS, fd, 12, 5));
        drop(program);
    }

    #[test]
    fn bytes_wait_for_the_next_receive_unless_the_pair_has_earlier_ones() {
        let (engine, program) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut direct = connection();
        assert!(direct.slot.receive().post());
        assert!(direct.offer(1, engine.as_raw_fd(), 0, 8));
        assert_eq!(direct.settle(2), Ok(None));
        assert!(direct.slot.receive().take(direct.slot.receive().offered().unwrap(), 8));
        assert!(direct.slot.receive().stop() && direct.has_work(2, false));
        assert_eq!(direct.settle(2), Ok(Some(8)));
        assert!(direct.expects_post(1 + HOLD_NS) && !direct.expects_post(2 + HOLD_NS));
        assert!(direct.slot.receive().post() && !direct.expects_post(3));
        assert!(direct.slot.receive().stop());
        std::io::Write::write_all(&mut &engine, b"earlier").unwrap();
        direct.note_pair_written();
        assert!(!direct.expects_post(3) && direct.slot.receive().post());
        assert!(!direct.offer(3, engine.as_raw_fd(), 8, 1), "the pair has earlier bytes");
        drop(program);
    }

    #[test]
    fn discarded_bytes_of_a_withdrawn_offer_end_the_move_and_count_as_unread() {
        let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
        for withdrawn_by_age in [true, false] {
            let mut direct = connection();
            assert!(direct.slot.receive().post() && direct.offer(1, engine.as_raw_fd(), 0, 8));
            if withdrawn_by_age {
                assert_eq!(direct.settle(1 + OFFER_LIMIT_NS), Ok(Some(0)));
                assert!(direct.slot.receive().is_moving());
            }
            direct.forget_offer();
            assert!(direct.has_unread() && direct.slot.receive().post());
        }
        let mut direct = connection();
        assert!(direct.slot.receive().post() && direct.offer(1, engine.as_raw_fd(), 0, 8));
        assert!(direct.slot.receive().take(direct.slot.receive().offered().unwrap(), 8));
        direct.forget_offer();
        assert!(!direct.has_unread(), "the program has taken all bytes");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn random_words_harm_nothing(words in proptest::collection::vec((0usize..4, any::<u64>(), any::<bool>()), 1..60)) {
            let (engine, _program) = std::os::unix::net::UnixStream::pair().unwrap();
            let mut direct = connection();
            let (mut written, mut now) = (0, 0);
            for (index, word, small) in words {
                let header = direct.slot.header();
                // Keep only the state bits and a small position or length. Many random words then look valid.
                let word = if small { word & (7 << 61 | 0xffff) } else { word };
                let target = [&header.send.0, &header.receive.0, &header.room.acknowledged, &header.inode][index];
                target.store(word, Ordering::Relaxed);
                now += CLAIM_LIMIT_NS / 3;
                let Ok(len) = direct.collect(now, RING as u64) else { break };
                prop_assert!(len <= RING as u64);
                written += len;
                if direct.end_lease(now).is_err() {
                    break;
                }
                direct.grant(now);
                if !direct.has_offer() {
                    direct.offer(now, engine.as_raw_fd(), written, 200);
                }
                match direct.settle(now) {
                    Ok(taken) => prop_assert!(taken.is_none_or(|taken| taken <= 200)),
                    Err(Hostile) => break,
                }
            }
        }
    }
}
