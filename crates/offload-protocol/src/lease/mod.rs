//! Memory that the engine shares with a process, and the protocol by which bytes of a connection go through
//! this memory. Without it, the bytes go through the connection's pair of UNIX sockets.
//!
//! A process has one area, a sealed memfd of [`SLOTS`] slots. The engine assigns slots to connections. TCP's two rings of a
//! connection with a slot lie in the slot: a sent byte is copied from the program's buffer into the ring and from there into
//! the packet, a received byte from the packet into the ring and from there into the program's buffer. Bytes that go through
//! the pair are read into the send ring, or written from the receive ring, by the engine. A
//! program sends through a slot only while the engine runs. If the ring is full, a blocking send sleeps on
//! [`Header::sleeper`] until half of the ring is free. A program receives through a slot only
//! while it polls the slot. In all other cases, and if a step fails, the bytes go through the pair.
//!
//! ```text
//!                     program                                     engine
//! send lease          claim, copy into the send ring, commit ---> sends segments from the ring
//! receive ring        ask for the ring, poll it               ---> opens it, and counts up with each received byte
//!                     copy bytes out, take them               ---> counts them as delivered
//! ```
//!
//! # Send lease
//!
//! The send word holds a state and the position up to which the program has committed bytes.
//!
//! ```text
//!              grant (engine)               claim (program)
//!       PAIR ------------------> GRANTED --------------------> CLAIMED
//!         ^                       |   ^                           |
//!         +----- revoke (engine) -+   +---- commit (program) -----+          abandon (engine): any state -> ENDED
//! ```
//!
//! No byte is lost, doubled or reordered, because:
//!
//! * Only one thread holds the claim, so threads and processes that share the socket do not write the same
//!   bytes of the ring.
//! * The engine reads the pair only after it has revoked the lease and taken note of all committed bytes. So these
//!   bytes are sent before later bytes in the pair. It reads the pair into the same ring, and adds the number of these bytes to
//!   [`Header::base`], so the next claim writes behind them.
//! * After the claim, the program checks that the pair holds no bytes, and otherwise writes nothing to the
//!   ring. So the engine has read all earlier bytes of the pair.
//! * A commit is one compare-and-exchange. If the engine has ended the claim meanwhile, the commit fails, and
//!   the program sends all these bytes through the pair. The engine then sends from a ring of its own, because the thread
//!   may still write.
//!
//! # Receive ring
//!
//! The receive word holds a mode and the position up to which the program has taken bytes. The engine alone writes
//! [`Header::filled`], the position up to which the ring has bytes for the program.
//!
//! ```text
//!            ask (program)           open (engine)
//!       PAIR -------------> ASKED ------------------> RING --+ take (program)
//!        ^                    |                        | ^---+
//!        +-- stop (program) --+------------------------+
//!        +-- stop, leave (program), end (engine) ------+      close (engine): any mode -> CLOSED
//! ```
//!
//! The engine opens the ring only if the pair is empty. From then on it only counts up the filled position, and the
//! program takes bytes in parts of any size. When the engine has added bytes, it sets the slot's bit in [`Area::ready`], so
//! epoll_wait finds them without a system call.
//!
//! A thread leaves the ring before it sleeps in the kernel, so the engine then wakes it through the pair. In mode PAIR
//! nobody takes bytes of the ring, so the engine moves those that are left to the pair. Until the pair has them, the filled
//! position shows that bytes are left to read.
//! A program that does not look at its slot leaves bytes in the ring: it was killed, or uses calls that the
//! preloaded library does not see. The engine then ends the mode RING itself. The bytes come later, but none is lost.
//!
//! A late take fails, because the position grows with each byte and with each open.

mod slot;
#[cfg(test)]
mod tests;

pub use slot::{Area, Header, Slot};

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of slots in the memory that the engine shares with a process.
pub const SLOTS: usize = 64;

/// A 64-bit word that the engine and the program share. Both change it by compare-and-exchange. This is a
/// trait because the model checker of the tests needs its own atomic type.
pub trait Word {
    /// Loads the word with acquire ordering. If the other side stored this value, all its earlier writes are
    /// then visible.
    fn load(&self) -> u64;
    /// Stores the word.
    fn store(&self, value: u64);
    /// Stores `new` if the word is `current`. Returns true if `new` was stored, and false if the word had
    /// another value.
    fn exchange(&self, current: u64, new: u64) -> bool;
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, value: u64) {
        self.store(value, Ordering::Release)
    }

    #[inline]
    fn exchange(&self, current: u64, new: u64) -> bool {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The lowest bit of a send word's state. The word:
///
/// ```text
///  63   62 61                    0
/// | state | committed position   |
/// ```
const STATE_SHIFT: u32 = 62;
const PAIR: u64 = 0;
const GRANTED: u64 = 1;
const CLAIMED: u64 = 2;
const ENDED: u64 = 3;
/// The bits of a position in the words of a slot.
pub const POSITION: u64 = (1 << STATE_SHIFT) - 1;

/// The engine tries this many times to change a word before it gives up. If the program follows the protocol,
/// it changes the word only once or twice during these attempts.
const ATTEMPTS: usize = 100;

fn send_word(state: u64, position: u64) -> u64 {
    state << STATE_SHIFT | position & POSITION
}

/// The error of an attempt to end a lease. The engine cannot end the lease now, because the program has
/// claimed the ring or keeps changing the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed;

/// The send lease of a slot: the program's permission to put bytes into the slot's send ring. It wraps the
/// slot's send word.
pub struct SendLease<'a, W>(pub &'a W);

/// The exclusive right of one thread to write bytes into the send ring, from `position` on.
/// [`SendLease::commit`] ends the claim.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Claim {
    /// The position of the first byte to write. Positions count the bytes that go through the slot.
    pub position: u64,
}

impl<W: Word> SendLease<'_, W> {
    /// Makes all bytes go through the socket pair until the next [`SendLease::grant`]. The engine calls this
    /// for a slot that no connection uses. `position` is the position of the next byte that will be sent
    /// through the slot.
    pub fn reset(&self, position: u64) {
        self.0.store(send_word(PAIR, position));
    }

    /// Lets the program put bytes into the send ring. The engine calls this after it has read all bytes from
    /// the socket pair. Does nothing if the lease is already granted or has been abandoned.
    pub fn grant(&self) {
        let word = self.0.load();
        if word >> STATE_SHIFT == PAIR {
            self.0.exchange(word, send_word(GRANTED, word));
        }
    }

    /// Returns the position up to which bytes are committed. Check the position, because a hostile program
    /// can write any value.
    pub fn committed(&self) -> u64 {
        self.0.load() & POSITION
    }

    /// Ends the lease until the next grant. Returns the position of the end of the committed bytes. If no
    /// lease is granted, only returns the position.
    ///
    /// # Errors
    /// If a thread of the program has claimed the ring. That thread may still commit bytes, so call this
    /// again later. Also if another process changed the word in each of many attempts, which only a hostile
    /// program does.
    pub fn revoke(&self) -> Result<u64, Claimed> {
        for _ in 0..ATTEMPTS {
            let word = self.0.load();
            match word >> STATE_SHIFT {
                CLAIMED => return Err(Claimed),
                GRANTED if !self.0.exchange(word, send_word(PAIR, word)) => {}
                _ => return Ok(word & POSITION),
            }
        }
        Err(Claimed)
    }

    /// Ends the lease permanently, even if a thread has claimed the ring. The commit of that thread will then
    /// fail. Returns the position up to which bytes are committed.
    ///
    /// # Errors
    /// If a hostile program changed the word during each of many attempts.
    pub fn abandon(&self) -> Result<u64, Claimed> {
        for _ in 0..ATTEMPTS {
            let word = self.0.load();
            if self.0.exchange(word, send_word(ENDED, word)) {
                return Ok(word & POSITION);
            }
        }
        Err(Claimed)
    }

    /// Claims the send ring for the calling thread. Returns `None` if the lease is not granted, or if another
    /// thread has claimed the ring. The bytes must then go through the socket pair.
    #[inline]
    pub fn claim(&self) -> Option<Claim> {
        let word = self.0.load();
        (word >> STATE_SHIFT == GRANTED && self.0.exchange(word, send_word(CLAIMED, word)))
            .then_some(Claim { position: word & POSITION })
    }

    /// Returns the position in the send ring at which the next claim would write. Returns `None` if no lease
    /// is granted, or if a thread has claimed the ring.
    #[inline]
    pub fn granted(&self) -> Option<u64> {
        let word = self.0.load();
        (word >> STATE_SHIFT == GRANTED).then_some(word & POSITION)
    }

    /// Ends a claim and commits the `len` bytes that the thread wrote into the ring. Returns false if the
    /// engine has ended the claim meanwhile. The bytes must then go through the socket pair.
    #[inline]
    pub fn commit(&self, claim: Claim, len: u64) -> bool {
        let next = claim.position.wrapping_add(len);
        self.0.exchange(send_word(CLAIMED, claim.position), send_word(GRANTED, next))
    }
}

/// The modes of a receive word, which has the same layout as a send word: the mode, and the position up to which the program
/// has taken bytes. The modes PAIR and CLOSED have the values of the send word's states [`PAIR`] and [`ENDED`].
const ASKED: u64 = 1;
const RING: u64 = 2;
const CLOSED: u64 = 3;

/// The receiving side of a slot. It wraps the receive word and the filled position.
pub struct ReceiveRing<'a, W> {
    /// The mode, and the position up to which the program has taken bytes.
    pub word: &'a W,
    /// The position up to which the ring has bytes for the program. Only the engine writes it.
    pub filled: &'a W,
}

/// Received bytes in the ring that the program has not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Received {
    word: u64,
    /// The number of bytes.
    pub len: u64,
}

impl Received {
    /// The position of the first byte.
    pub fn position(self) -> u64 {
        self.word & POSITION
    }
}

impl<W: Word> ReceiveRing<'_, W> {
    /// Lets the program ask for the ring. Returns the position from which positions grow. The engine calls this only while no
    /// connection uses the slot.
    pub fn reset(&self) -> u64 {
        // No thread of an earlier connection has seen a higher position.
        let position = self.filled.load().wrapping_add(1) & POSITION;
        self.filled.store(position);
        self.word.store(send_word(PAIR, position));
        position
    }

    /// Refuses the ring to the program from now on.
    pub fn close(&self) {
        self.word.store(send_word(CLOSED, self.filled.load()));
    }

    /// Asks the engine for the ring. Returns false if the ring is not in mode PAIR, or if the engine is moving bytes to the
    /// pair.
    pub fn ask(&self) -> bool {
        let word = self.word.load();
        word >> STATE_SHIFT == PAIR
            && self.filled.load() == word
            && self.word.exchange(word, send_word(ASKED, word))
    }

    /// Returns true if all received bytes go through the pair, and the program has not asked for the ring.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.word.load() >> STATE_SHIFT == PAIR
    }

    /// Returns the received bytes in the ring, or `None` if there are none. `most` is the length of the ring.
    #[inline]
    pub fn received(&self, most: u64) -> Option<Received> {
        let word = self.word.load();
        let len = self.filled.load().wrapping_sub(word) & POSITION;
        (word >> STATE_SHIFT == RING && len > 0 && len <= most).then_some(Received { word, len })
    }

    /// Takes the first `len` bytes of the ring, which the program has already copied. Returns true if the bytes now belong
    /// to the program. Returns false if the engine has ended the mode RING or another thread has taken bytes. The
    /// program must then discard its copy.
    #[must_use]
    pub fn take(&self, received: Received, len: u64) -> bool {
        self.word.exchange(received.word, send_word(RING, received.word.wrapping_add(len)))
    }

    /// Returns true while the engine moves received bytes from the ring to the socket pair.
    #[inline]
    pub fn is_moving(&self) -> bool {
        let word = self.word.load();
        word >> STATE_SHIFT == PAIR && self.filled.load() != word
    }

    /// Leaves the ring if it is empty, or takes back the request for it. Returns false if bytes are left in the ring. These
    /// bytes must first be received or moved to the socket pair.
    pub fn stop(&self) -> bool {
        for _ in 0..ATTEMPTS {
            let word = self.word.load();
            match word >> STATE_SHIFT {
                RING if self.filled.load() != word & POSITION => return false,
                ASKED | RING if !self.word.exchange(word, send_word(PAIR, word)) => {}
                // The engine may have added bytes before it sees the new mode.
                _ => return !self.is_moving(),
            }
        }
        false
    }

    /// Leaves the ring. Returns true if the engine then has to move bytes to the socket pair, or already does.
    pub fn leave(&self) -> bool {
        self.end();
        self.is_moving()
    }

    /// Ends the modes ASKED and RING. Returns the position up to which the program has taken bytes. It is final, because the
    /// program takes bytes only in mode RING.
    pub fn end(&self) -> u64 {
        for _ in 0..ATTEMPTS {
            let word = self.word.load();
            if !matches!(word >> STATE_SHIFT, ASKED | RING) || self.word.exchange(word, send_word(PAIR, word))
            {
                return word & POSITION;
            }
        }
        // Only a hostile program changes the word so often.
        self.word.load() & POSITION
    }

    /// Returns whether the mode is RING, and the position up to which the program has taken bytes. Check the position,
    /// because a hostile program can write any value.
    #[inline]
    pub fn taken(&self) -> (bool, u64) {
        let word = self.word.load();
        (word >> STATE_SHIFT == RING, word & POSITION)
    }

    /// Returns true if the program has asked for the ring.
    #[inline]
    pub fn is_asked(&self) -> bool {
        self.word.load() >> STATE_SHIFT == ASKED
    }

    /// Opens the ring, which the program has asked for at position `taken`. Received bytes begin at the position after
    /// that. Returns false if the program has taken back its request.
    pub fn open(&self, taken: u64) -> bool {
        let start = taken.wrapping_add(1) & POSITION;
        self.filled.store(start);
        self.word.exchange(send_word(ASKED, taken), send_word(RING, start)) || {
            self.filled.store(taken);
            false
        }
    }

    /// Adds bytes to the ring: they are in it up to position `filled`. Also ends a move, if `filled` is the position up to
    /// which the program has taken bytes.
    pub fn fill(&self, filled: u64) {
        self.filled.store(filled & POSITION);
    }
}
