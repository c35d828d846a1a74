//! Memory that the engine shares with a process, and the protocol by which bytes of a connection go through
//! this memory. Without it, the bytes go through the connection's pair of UNIX sockets.
//!
//! A process has one area, a sealed memfd of [`SLOTS`] slots. The engine assigns slots to connections. TCP's two rings of a
//! connection with a slot lie in the slot: a sent byte is copied from the program's buffer into the ring and from there into
//! the packet, a received byte from the packet into the ring and from there into the program's buffer. Bytes that go through
//! the pair are read into the send ring, or written from the receive ring, by the engine.
//!
//! A program sends through its slot while the engine is awake. If the engine sleeps, the program sends through the pair, which
//! wakes the engine. If the ring is full, a blocking send sleeps on [`Header::sleeper`] until half of the ring is free. A
//! program receives through a slot only while it polls the slot.
//!
//! ```text
//!                     program                                     engine
//! send ring           claim, ring the doorbell, copy, commit ---> sends segments from the ring
//!                     send through the pair                  ---> claims, reads the pair into the ring, commits
//! receive ring        ask for the ring, poll it              ---> opens it, and counts up with each received byte
//!                     copy bytes out, take them              ---> counts them as delivered
//! ```
//!
//! # Send ring
//!
//! The send word holds a state, and the index up to which the ring has bytes of the program. An index counts all bytes of its
//! direction of the connection.
//!
//! ```text
//!          claim (program or engine)
//!       OPEN --------------------> CLAIMED          close (engine): any state -> CLOSED
//!         ^---- commit (holder) ------+
//! ```
//!
//! The holder of the claim alone writes into the ring, behind the index. A thread of the program writes the bytes of its send.
//! The engine writes bytes that it reads from the pair. No byte is lost, doubled or reordered, because:
//!
//! * The engine reads the pair only while it holds the claim.
//! * After the claim, the program checks that the pair holds no bytes, and otherwise sends through the pair. So the ring has
//!   all earlier bytes. Usually the check is a look at [`PairMarks`]: the library marks each send through the pair, and each
//!   event after which bytes may reach the pair without it. It asks the kernel only after a mark.
//! * A commit is one compare-and-exchange. If the engine has closed the ring meanwhile, because the thread was stopped, the
//!   commit fails, and the program sends all these bytes through the pair. The engine then sends from a ring of its own,
//!   because the thread may still write.
//!
//! # Stores of a second engine
//!
//! If the peer of a connection is on an engine of the same host, that engine can store into the receive ring itself ([`Stores`]). A word
//! with the layout of the send word says who may write, and counts the stored bytes. For each connection, the engine of the slot opens
//! the word with another random number. If the slot has a new connection, the second engine therefore finds a wrong number, and stores
//! nothing.
//!
//! # Buffers of the program
//!
//! Each area ends with an *arena*, from which a program allocates buffers. A thread that waits for bytes with such a buffer
//! posts it ([`Post`]). The engine then places arriving bytes there, without a copy through the receive ring. It does so only while
//! the program has taken all earlier bytes, and counts the placed bytes as taken.
//!
//! # Doorbell
//!
//! Each thread of the engine has a [`Doorbell`] in the area. It has a bit for each slot, and the time of the thread's last
//! heartbeat, which is 0 while the thread sleeps. The program sets the slot's bit and then looks at the time. A thread
//! of the engine that falls asleep stores 0 and then looks at the bits. So the program finds that the thread sleeps, or the
//! thread finds the bit and stays awake.
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
//! A slot that a connection has from the start begins in mode ASKED: the engine has asked in the program's place, so that the first
//! bytes go into the ring.
//!
//! The engine opens the ring only if the pair is empty. From then on it only counts up the filled position, and the
//! program takes bytes in parts of any size. When the engine has added bytes, it sets the slot's bit in [`Area::ready`], so
//! epoll_wait finds them without a system call. The end of the stream also goes into an open ring, behind the last byte. The pair stays
//! unchanged then, so it can be kept for another connection ([`Life`]).
//!
//! A thread that sleeps in the kernel is woken through the pair. Before it sleeps in recv, poll or select, it leaves the ring. Before it
//! sleeps in epoll_wait, it leaves all rings open, and the engine moves the bytes of one connection to the pair ([`Sleepers`]). In mode PAIR
//! nobody takes bytes of the ring, so the engine moves those that are left to the pair. Until the pair has them, the filled
//! position shows that bytes are left to read.
//! A program that does not look at its slot leaves bytes in the ring: it was killed, or uses calls that the
//! preloaded library does not see. The engine then ends the mode RING itself. The bytes come later, but none is lost.
//!
//! A late take fails, because the position grows with each byte and with each open.

mod life;
mod post;
mod records;
mod sleepers;
mod slot;
#[cfg(test)]
mod tests;

pub use life::Life;
pub use post::{Placing, Post, Posted};
pub use records::Records;
pub use sleepers::Sleepers;
pub use slot::{Area, Header, MOST_THREADS, PeerWords, Slot};

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
    /// Sets the bits `bits`.
    fn set(&self, bits: u64);
    /// Stores 0. Returns the earlier value.
    fn take(&self) -> u64;
    /// Adds `number`, modulo 2^64.
    fn add(&self, number: u64);
    /// Orders all earlier accesses of the thread before all later ones.
    fn fence();
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

    #[inline]
    fn set(&self, bits: u64) {
        self.fetch_or(bits, Ordering::AcqRel);
    }

    #[inline]
    fn take(&self) -> u64 {
        self.swap(0, Ordering::AcqRel)
    }

    #[inline]
    fn add(&self, number: u64) {
        self.fetch_add(number, Ordering::AcqRel);
    }

    #[inline]
    fn fence() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// The lowest bit of a send word's state. The word:
///
/// ```text
///  63   62 61                    0
/// | state | committed index      |
/// ```
const STATE_SHIFT: u32 = 62;
const OPEN: u64 = 0;
const CLAIMED: u64 = 1;
const CLOSED: u64 = 3;
/// The bits of an index or a position in the words of a slot.
pub const POSITION: u64 = (1 << STATE_SHIFT) - 1;

/// The engine tries this many times to change a word before it gives up. If the program follows the protocol,
/// it changes the word only once or twice during these attempts.
const ATTEMPTS: usize = 100;

fn pack(state: u64, position: u64) -> u64 {
    state << STATE_SHIFT | position & POSITION
}

/// The error of an attempt to close a send ring: a thread of the program has claimed it, or keeps changing the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed;

/// The send ring of a slot. It wraps the slot's send word.
pub struct SendRing<'a, W>(pub &'a W);

/// The exclusive right to write bytes into the send ring, from `index` on. [`SendRing::commit`] ends the claim.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Claim {
    /// The index of the first byte to write.
    pub index: u64,
}

impl<W: Word> SendRing<'_, W> {
    /// Opens the ring. The next byte of the program has the index `index`. The engine calls this for a slot that no
    /// connection uses.
    pub fn open(&self, index: u64) {
        self.0.store(pack(OPEN, index));
    }

    /// Returns the index up to which bytes are committed. The engine must check it, because a hostile program can write any
    /// value.
    #[inline]
    pub fn committed(&self) -> u64 {
        self.0.load() & POSITION
    }

    /// Returns true unless the ring is open: while a thread of the program or the engine holds the claim. Also if a hostile program
    /// has written another state. The engine, which calls this until it closes the ring, then ends that state like a claim that
    /// takes too long.
    #[inline]
    pub fn is_claimed(&self) -> bool {
        self.0.load() >> STATE_SHIFT != OPEN
    }

    /// Returns the index at which the next claim would write. Returns `None` if the ring is claimed or closed.
    #[inline]
    pub fn next(&self) -> Option<u64> {
        let word = self.0.load();
        (word >> STATE_SHIFT == OPEN).then_some(word & POSITION)
    }

    /// Claims the ring. Returns `None` if the ring is claimed or closed. A program must then send through the socket pair.
    #[inline]
    pub fn claim(&self) -> Option<Claim> {
        let word = self.0.load();
        (word >> STATE_SHIFT == OPEN && self.0.exchange(word, pack(CLAIMED, word)))
            .then_some(Claim { index: word & POSITION })
    }

    /// Claims the ring if its committed index is `index`. Returns `None` if it is claimed or closed, or has another index: it may belong
    /// to another connection by now.
    #[inline]
    pub fn claim_at(&self, index: u64) -> Option<Claim> {
        self.0.exchange(pack(OPEN, index), pack(CLAIMED, index)).then_some(Claim { index })
    }

    /// Returns true if the ring is not closed, and its committed index is `index`.
    #[inline]
    pub fn is_at(&self, index: u64) -> bool {
        let word = self.0.load();
        word == pack(OPEN, index) || word == pack(CLAIMED, index)
    }

    /// Ends a claim and commits the `len` bytes that its holder wrote into the ring. Returns false if the engine has closed
    /// the ring meanwhile. The bytes must then go through the socket pair.
    #[inline]
    pub fn commit(&self, claim: Claim, len: u64) -> bool {
        self.0.exchange(pack(CLAIMED, claim.index), pack(OPEN, claim.index.wrapping_add(len)))
    }

    /// Ends a claim without bytes, and closes the ring permanently. Returns false if the word has changed meanwhile.
    pub fn end(&self, claim: Claim) -> bool {
        self.0.exchange(pack(CLAIMED, claim.index), pack(CLOSED, claim.index))
    }

    /// Closes the ring permanently. Returns the index up to which bytes are committed.
    ///
    /// # Errors
    /// If the ring is claimed. Also if another process changed the word in each of many attempts, which only a hostile
    /// program does.
    pub fn close(&self) -> Result<u64, Claimed> {
        self.close_if(|state| state != CLAIMED)
    }

    /// Closes the ring permanently, even if it is claimed. The commit of the claim's holder will then fail. Returns the index
    /// up to which bytes are committed.
    ///
    /// # Errors
    /// If a hostile program changed the word during each of many attempts.
    pub fn close_by_force(&self) -> Result<u64, Claimed> {
        self.close_if(|_| true)
    }

    fn close_if(&self, may_close: impl Fn(u64) -> bool) -> Result<u64, Claimed> {
        for _ in 0..ATTEMPTS {
            let word = self.0.load();
            if !may_close(word >> STATE_SHIFT) {
                break;
            }
            if self.0.exchange(word, pack(CLOSED, word)) {
                return Ok(word & POSITION);
            }
        }
        Err(Claimed)
    }
}

/// The value of [`Stores::base`] while the second engine may not publish. An index has fewer bits.
const UNPUBLISHED: u64 = u64::MAX;

/// The words by which a second engine on this host stores bytes into the receive ring of a slot, and publishes them to the program.
pub struct Stores<'a, W> {
    /// The claim of the receive ring, and the number of stored bytes.
    pub ring: SendRing<'a, W>,
    /// The index of the byte at position 0 of the receive ring while the second engine may publish. Only the engine of the slot
    /// changes it, while it has the claim. So the second engine publishes nothing after the engine has taken that right away.
    pub base: &'a W,
    /// The filled position of the [`ReceiveRing`].
    pub filled: &'a W,
}

impl<W: Word> Stores<'_, W> {
    /// Ends a claim of the second engine, which has stored `len` bytes that end at index `end` of the stream. First publishes them if
    /// the second engine may. Returns whether it did. `None` if the ring has been closed meanwhile.
    #[inline]
    pub fn commit(&self, claim: Claim, len: u64, end: u64) -> Option<bool> {
        let base = self.base.load();
        if base != UNPUBLISHED {
            self.filled.store(end.wrapping_sub(base) & POSITION);
        }
        self.ring.commit(claim, len).then_some(base != UNPUBLISHED)
    }

    /// Lets the second engine publish, or ends that if `base` is `None`. The engine of the slot has the claim.
    pub fn set_base(&self, base: Option<u64>) {
        self.base.store(base.map_or(UNPUBLISHED, |base| base & POSITION));
    }
}

/// The bit of a pair word after the library has sent through the pair, until it has found the pair empty.
const SENT: u64 = 1;
/// The bit of a pair word if bytes may reach the pair in ways that the library does not see. It stays set.
const UNSEEN: u64 = 2;
/// What each mark adds to a pair word. The library so notices a mark that is set while it asks the kernel.
const MARK: u64 = 4;

/// What is known about bytes that a program has sent through the socket pair. It wraps the pair word of a slot.
pub struct PairMarks<'a, W>(pub &'a W);

impl<W: Word> PairMarks<'_, W> {
    /// Forgets everything about an earlier connection. If `empty` is true, the pair is new and holds no bytes. Otherwise it may
    /// hold some. The engine calls this for a slot that no connection uses.
    pub fn reset(&self, empty: bool) {
        self.0.store(if empty { 0 } else { SENT });
    }

    /// Records that the library sends through the pair. Call this before the kernel's send, and again after it.
    pub fn note_sent(&self) {
        for _ in 0..ATTEMPTS {
            let word = self.0.load();
            if self.0.exchange(word, word.wrapping_add(MARK) | SENT) {
                return;
            }
        }
        // Only a hostile process changes the word so often.
        self.note_unseen();
    }

    /// Records that bytes may reach the pair in ways that the library does not see, from now on.
    pub fn note_unseen(&self) {
        self.0.set(UNSEEN);
    }

    /// Records that the engine has found bytes in the pair, while it holds the claim of the send ring. If the library has not
    /// sent them, other bytes may follow.
    pub fn note_found(&self) {
        if self.0.load() & (SENT | UNSEEN) == 0 {
            self.note_unseen();
        }
    }

    /// Returns true if no bytes have reached the pair, and none can reach it in ways that the library does not see.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.0.load() == 0
    }

    /// Returns true if the pair holds no bytes of the program. Calls `asks` to ask the kernel, if that is not known. If `clears`
    /// is true, the caller holds the claim of the send ring.
    #[inline]
    pub fn is_empty(&self, clears: bool, asks: impl FnOnce() -> bool) -> bool {
        let word = self.0.load();
        if word & (SENT | UNSEEN) == 0 {
            return true;
        }
        let empty = asks();
        if empty && clears && word & SENT != 0 {
            // This fails if another thread has sent through the pair meanwhile.
            let _ = self.0.exchange(word, word & !SENT);
        }
        empty
    }
}

/// A doorbell, by which programs tell one thread of the engine that slots of one area have new bytes.
pub struct Doorbell<'a, W> {
    /// Bit n is 1 if slot n needs the thread.
    pub rung: &'a W,
    /// The time of the thread's last heartbeat, in nanoseconds of CLOCK_MONOTONIC. 0 while it sleeps. Only the engine
    /// writes it.
    pub alive_ns: &'a W,
}

impl<W: Word> Doorbell<'_, W> {
    /// Asks the thread to look at the slots with these bits. Returns the time of its last heartbeat, or 0 if it sleeps, and may
    /// not look at them.
    #[inline]
    pub fn ring(&self, bits: u64) -> u64 {
        self.rung.set(bits);
        W::fence();
        self.alive_ns.load()
    }

    /// Returns the slots that need the thread, and clears their bits.
    #[inline]
    pub fn answer(&self) -> u64 {
        if self.rung.load() == 0 { 0 } else { self.rung.take() }
    }

    /// Records that the thread lives at the time `now`, and does not sleep.
    pub fn beat(&self, now: u64) {
        self.alive_ns.store(now);
    }

    /// Records that the thread falls asleep. Returns false if a slot needs it. The thread must then stay awake.
    pub fn falls_asleep(&self) -> bool {
        self.alive_ns.store(0);
        W::fence();
        self.rung.load() == 0
    }
}

/// The modes of a receive word, which has the same layout as a send word: the mode, and the position up to which the program
/// has taken bytes. The mode CLOSED has the value of the send word's state [`CLOSED`].
const PAIR: u64 = 0;
const ASKED: u64 = 1;
const RING: u64 = 2;
/// The bit of a filled position while the engine opens the ring, until it adds bytes. The position then lies behind the program's,
/// although no bytes are there.
const OPENING: u64 = 1 << STATE_SHIFT;
/// The bit of a filled position whose last position stands for the end of the stream.
const ENDS: u64 = 1 << 63;

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
    /// Lets the program ask for the ring. If `asked` is true, asks for it in the program's place. Returns the position from
    /// which positions grow. The engine calls this only while no connection uses the slot.
    pub fn reset(&self, asked: bool) -> u64 {
        // No thread of an earlier connection has seen a higher position.
        let position = self.filled.load().wrapping_add(1) & POSITION;
        self.filled.store(position);
        self.word.store(pack(if asked { ASKED } else { PAIR }, position));
        position
    }

    /// Refuses the ring to the program from now on.
    pub fn close(&self) {
        self.word.store(pack(CLOSED, self.filled.load()));
    }

    /// Asks the engine for the ring. Returns false if the ring is not in mode PAIR, or if the engine is moving bytes to the
    /// pair.
    pub fn ask(&self) -> bool {
        let word = self.word.load();
        word >> STATE_SHIFT == PAIR
            && self.filled.load() == word
            && self.word.exchange(word, pack(ASKED, word))
    }

    /// Returns true if all received bytes go through the pair, and the program has not asked for the ring.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.word.load() >> STATE_SHIFT == PAIR
    }

    /// Returns the position up to which the program has taken bytes if the mode is RING and there are no further bytes.
    #[inline]
    pub fn position_if_empty(&self) -> Option<u64> {
        let word = self.word.load();
        let position = word & POSITION;
        (word >> STATE_SHIFT == RING && self.filled.load() == position).then_some(position)
    }

    /// Returns the received bytes in the ring, or `None` if there are none. `most` is the length of the ring.
    #[inline]
    pub fn received(&self, most: u64) -> Option<Received> {
        let word = self.word.load();
        let filled = self.filled.load();
        // The position of the end is no byte.
        let len = filled.wrapping_sub(word).wrapping_sub(filled >> 63) & POSITION;
        (word >> STATE_SHIFT == RING && len > 0 && len <= most).then_some(Received { word, len })
    }

    /// Returns true if the program has taken all bytes, and the stream has ended.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        let filled = self.filled.load();
        let word = self.word.load();
        word >> STATE_SHIFT == RING && filled & ENDS != 0 && filled.wrapping_sub(word) & POSITION == 1
    }

    /// Returns true if the ring has the end of the stream, perhaps behind bytes. It stays true until the pair has it, if the ring is left.
    #[inline]
    pub fn has_end(&self) -> bool {
        self.filled.load() & ENDS != 0
    }

    /// Takes the first `len` bytes of the ring, which the program has already copied. Returns true if the bytes now belong
    /// to the program. Returns false if the engine has ended the mode RING or another thread has taken bytes. The
    /// program must then discard its copy.
    #[must_use]
    pub fn take(&self, received: Received, len: u64) -> bool {
        self.word.exchange(received.word, pack(RING, received.word.wrapping_add(len)))
    }

    /// Returns true while the engine moves received bytes from the ring to the socket pair.
    #[inline]
    pub fn is_moving(&self) -> bool {
        let word = self.word.load();
        let filled = self.filled.load();
        word >> STATE_SHIFT == PAIR && filled != word && filled & OPENING == 0
    }

    /// Leaves the ring if it is empty, or takes back the request for it. Returns false if bytes are left in the ring. These
    /// bytes must first be received or moved to the socket pair.
    pub fn stop(&self) -> bool {
        for _ in 0..ATTEMPTS {
            let word = self.word.load();
            match word >> STATE_SHIFT {
                RING if self.filled.load() & POSITION != word & POSITION => return false,
                ASKED | RING if !self.word.exchange(word, pack(PAIR, word)) => {}
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
            if !matches!(word >> STATE_SHIFT, ASKED | RING) || self.word.exchange(word, pack(PAIR, word)) {
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
        // Set the position first: with the former one, the program would find bytes as soon as the mode is RING.
        self.filled.store(start | OPENING);
        self.word.exchange(pack(ASKED, taken), pack(RING, start)) || {
            self.filled.store(taken);
            false
        }
    }

    /// Adds bytes to the ring: they are in it up to position `filled`. Also ends a move, if `filled` is the position up to
    /// which the program has taken bytes.
    pub fn fill(&self, filled: u64) {
        self.filled.store(filled & POSITION);
    }

    /// Adds the end of the stream behind the bytes up to position `filled`. It takes the next position, which the program never takes. So
    /// the program finds the end again and again, and cannot leave the ring before the engine has moved the end to the pair.
    pub fn end_stream(&self, filled: u64) {
        self.filled.store(filled.wrapping_add(1) & POSITION | ENDS);
    }
}
