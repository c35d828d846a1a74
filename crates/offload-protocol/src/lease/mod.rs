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
//! posted receive      post n bytes, wait briefly             ---> offers received bytes in the receive ring
//!                     copy them out, take                    ---> counts them as delivered
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
//! # Posted receive
//!
//! ```text
//!            post (program)           offer (engine)              take the last bytes (program)
//!       IDLE --------------> POSTED ----------------> OFFERED -------------------> RENEWED
//!        ^                   | ^                       |   |                         |  |
//!        +- stop (program) --+ +-----------------------|---|--- settle (engine) -----+  |
//!        |                                             |   +-- ask (program) -> ASKED   |
//!        +- the bytes are in the pair -- MOVING <------+-- withdraw (engine) -----+     |
//!        |                                                                              |
//!        +- settle (engine) ------------ TAKEN <------------ stop (program) ------------+
//! ```
//!
//! The engine offers bytes only if the pair is empty, and keeps them in the ring until the program has taken them. The
//! program may take them in several parts, and the receive then stays posted. When the engine offers bytes, it
//! sets the slot's bit in [`Area::ready`], so epoll_wait finds them without a system call.
//!
//! A thread ends its posted receives before it sleeps in the kernel, so the engine then wakes it through the pair.
//! A program that does not look at its slot leaves an offer unanswered: it was killed, or uses calls that the
//! preloaded library does not see. The engine withdraws such an offer and moves the bytes to the pair. They come
//! later, but none is lost. Until they are in the pair, the slot shows that bytes are left to read.
//!
//! A late take fails, because the receive word contains a sequence number that tells the offer from later ones.

mod slot;
#[cfg(test)]
mod tests;

pub use slot::{Area, Header, Slot};

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of slots in the memory that the engine shares with a process.
pub const SLOTS: usize = 64;
/// The most bytes of a posted receive, for the largest ring.
pub const RECEIVE: usize = Area::MOST_RING / 4;

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
const POSITION: u64 = (1 << STATE_SHIFT) - 1;

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

/// The lowest bit of a receive word's state. The word:
///
/// ```text
///  63   61 60             32 31           0
/// | state | sequence number | length, bytes |
/// ```
const KIND_SHIFT: u32 = 61;
const IDLE: u64 = 0;
const POSTED: u64 = 1;
const OFFERED: u64 = 2;
const TAKEN: u64 = 3;
const CLOSED: u64 = 4;
const RENEWED: u64 = 5;
const MOVING: u64 = 6;
const ASKED: u64 = 7;
const SEQUENCE_SHIFT: u32 = 32;
const SEQUENCE: u64 = (1 << (KIND_SHIFT - SEQUENCE_SHIFT)) - 1;
const LENGTH: u64 = u32::MAX as u64;

fn receive_word(kind: u64, sequence: u64, len: u64) -> u64 {
    kind << KIND_SHIFT | (sequence & SEQUENCE) << SEQUENCE_SHIFT | len & LENGTH
}

fn sequence(word: u64) -> u64 {
    word >> SEQUENCE_SHIFT & SEQUENCE
}

/// The receive word of a slot of shared memory. The program posts a receive in this word. The engine then
/// puts received bytes into the slot.
pub struct PostedReceive<'a, W>(pub &'a W);

/// The engine's view of a receive that the program has posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Post {
    word: u64,
}

/// An offer: bytes that the engine has put into a slot of shared memory for a posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Offer {
    word: u64,
    /// The number of bytes. For the program, those that are left to read.
    pub len: u64,
}

/// What the program has done with bytes that the engine has offered in a slot of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The program has not taken the bytes yet, or has taken only a part of them.
    Pending,
    /// The program has taken all the bytes.
    Taken,
    /// The program asks to receive the remaining bytes through the pair. Call [`PostedReceive::withdraw`].
    Asked,
    /// The program changed the word in a way that the protocol does not allow.
    Invalid,
}

impl<W: Word> PostedReceive<'_, W> {
    /// Lets the program post receives. The engine calls this only while no connection uses the slot of shared
    /// memory.
    pub fn reset(&self) {
        let word = self.0.load();
        self.0.store(receive_word(IDLE, sequence(word), 0));
    }

    /// Refuses all further posts.
    pub fn close(&self) {
        let word = self.0.load();
        self.0.store(receive_word(CLOSED, sequence(word), 0));
    }

    /// Posts a receive of at most [`RECEIVE`] bytes in the slot. Returns false if a receive is already
    /// posted, if the engine has not yet settled its last offer, or if the slot is closed.
    pub fn post(&self) -> bool {
        let word = self.0.load();
        let posted = receive_word(POSTED, sequence(word) + 1, RECEIVE as u64);
        word >> KIND_SHIFT == IDLE && self.0.exchange(word, posted)
    }

    /// Returns true if the program has no posted receive and the engine has no unsettled offer of bytes.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.0.load() >> KIND_SHIFT == IDLE
    }

    /// Returns the received bytes that the engine offers, even if another thread has posted the receive.
    /// Returns `None` if no offer waits for an answer.
    #[inline]
    pub fn offered(&self) -> Option<Offer> {
        let word = self.0.load();
        (word >> KIND_SHIFT == OFFERED && word & LENGTH <= RECEIVE as u64)
            .then_some(Offer { word, len: word & LENGTH })
    }

    /// Takes the first `len` bytes of an offer, which the program has already copied. The receive stays
    /// posted. Returns true if the bytes now belong to the program. Returns false if the engine has withdrawn
    /// the offer or another thread has taken bytes. The program must then discard its copy.
    #[must_use]
    pub fn take(&self, offer: Offer, len: u64) -> bool {
        let next = match offer.len.saturating_sub(len) {
            0 => receive_word(RENEWED, sequence(offer.word), 0),
            rest => receive_word(OFFERED, sequence(offer.word), rest),
        };
        self.0.exchange(offer.word, next)
    }

    /// Returns true while the engine moves received bytes from shared memory to the socket pair.
    #[inline]
    pub fn is_moving(&self) -> bool {
        matches!(self.0.load() >> KIND_SHIFT, MOVING | ASKED)
    }

    /// Ends a posted receive. Returns false if the engine has already offered bytes to it. These bytes must
    /// first be received or moved to the socket pair.
    pub fn stop(&self) -> bool {
        for _ in 0..ATTEMPTS {
            let word = self.0.load();
            let ended = match word >> KIND_SHIFT {
                POSTED => IDLE,
                RENEWED => TAKEN,
                OFFERED | MOVING | ASKED => return false,
                _ => return true,
            };
            if self.0.exchange(word, receive_word(ended, sequence(word), 0)) {
                return true;
            }
        }
        false
    }

    /// Ends a posted receive. If bytes are offered in shared memory, asks the engine to move them to the
    /// socket pair. Returns true if the engine then has to move bytes, or already does.
    pub fn ask(&self) -> bool {
        for _ in 0..ATTEMPTS {
            if self.stop() {
                return false;
            }
            match self.offered() {
                Some(offer) => {
                    if self.0.exchange(offer.word, receive_word(ASKED, sequence(offer.word), offer.len)) {
                        return true;
                    }
                }
                None => return self.is_moving(),
            }
        }
        false
    }

    /// Returns the receive that the program has posted, and the most bytes that this receive accepts. Returns
    /// `None` if no receive is posted, or if the posted length is invalid.
    #[inline]
    pub fn posted(&self) -> Option<(Post, u64)> {
        let word = self.0.load();
        (word >> KIND_SHIFT == POSTED && word & LENGTH <= RECEIVE as u64)
            .then_some((Post { word }, word & LENGTH))
    }

    /// Offers the program `len` bytes for its posted receive. The engine has already copied them into the
    /// slot. Returns `None` if the program has cancelled the receive.
    pub fn offer(&self, post: Post, len: u64) -> Option<Offer> {
        let word = receive_word(OFFERED, sequence(post.word), len);
        self.0.exchange(post.word, word).then_some(Offer { word, len })
    }

    /// Returns the program's answer to an offer of received bytes. If the program has taken all bytes and has
    /// not ended the receive, posts its receive again.
    pub fn settle(&self, offer: Offer) -> Answer {
        for _ in 0..ATTEMPTS {
            let word = self.0.load();
            let is_answer = sequence(word) == sequence(offer.word);
            let next = match word >> KIND_SHIFT {
                OFFERED if is_answer && word & LENGTH <= offer.len => return Answer::Pending,
                TAKEN if is_answer => receive_word(IDLE, sequence(word), 0),
                RENEWED if is_answer => receive_word(POSTED, sequence(word) + 1, RECEIVE as u64),
                ASKED if is_answer && word & LENGTH <= offer.len => return Answer::Asked,
                _ => return Answer::Invalid,
            };
            // The exchange fails if the program has changed the word meanwhile, for example by ending the
            // receive. Then look at the word again.
            if self.0.exchange(word, next) {
                return Answer::Taken;
            }
        }
        Answer::Invalid
    }

    /// Returns true if the program has taken all bytes of `offer` and has not ended its posted receive. The
    /// engine may leave such an offer unsettled until it has more received bytes for the program.
    #[inline]
    pub fn is_renewed(&self, offer: Offer) -> bool {
        self.0.load() == receive_word(RENEWED, sequence(offer.word), 0)
    }

    /// Returns true if the program has not answered the offer yet, or has taken only a part of its bytes.
    /// Returns false if the program has answered or has broken the protocol.
    #[inline]
    pub fn is_pending(&self, offer: Offer) -> bool {
        let word = self.0.load();
        word >> KIND_SHIFT == OFFERED && sequence(word) == sequence(offer.word)
    }

    /// Withdraws an offer. Returns the number of its bytes that the program has not taken. Write these bytes
    /// to the socket pair, then call [`PostedReceive::end_move`]. Returns `None` if the program has already
    /// answered the offer or has broken the protocol. In that case, call [`PostedReceive::settle`] for the
    /// answer.
    #[must_use]
    pub fn withdraw(&self, offer: Offer) -> Option<u64> {
        for _ in 0..ATTEMPTS {
            let word = self.0.load();
            let (kind, rest) = (word >> KIND_SHIFT, word & LENGTH);
            if sequence(word) != sequence(offer.word) || rest > offer.len || !matches!(kind, OFFERED | ASKED)
            {
                return None;
            }
            if self.0.exchange(word, receive_word(MOVING, sequence(word), rest)) {
                return Some(rest);
            }
        }
        None
    }

    /// Ends a move: the bytes of a withdrawn offer are now in the socket pair. The program may post receives
    /// again.
    pub fn end_move(&self) {
        let word = self.0.load();
        if word >> KIND_SHIFT == MOVING {
            self.0.exchange(word, receive_word(IDLE, sequence(word), 0));
        }
    }
}
