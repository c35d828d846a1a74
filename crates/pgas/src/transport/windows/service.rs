//! Serves other PEs' requests to this PE's memory. A thread that waits in the transport serves requests. If
//! no thread waits, the service thread serves them. It sleeps until a request rings the doorbell.
//!
//! A hostile peer may write any request. Each word is therefore loaded once and checked before use.

use super::layout::{LANDING, REPLY};
use super::record::{self, CONTENTS};
use super::requests::{DONE, REFUSED, sequence};
use super::wakeup::{Stored, Word, concerns};
use super::{PeContext, REQUEST};
use crate::transport::{Atomic, Operation, word};
use inlane_ntb::device::Event;
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long the service thread polls for more requests after a doorbell has woken it.
const STAY_AWAKE: Duration = Duration::from_micros(20);

const ATOMIC: u64 = 0;
const PUSH: u64 = 1;

/// Encodes an atomic as the contents of a request.
pub(super) fn encode_atomic(atomic: &Atomic) -> [u64; CONTENTS] {
    let operation = match atomic.operation {
        Operation::Fetch => 0u64,
        Operation::Swap => 1,
        Operation::CompareSwap => 2,
        Operation::Add => 3,
        Operation::And => 4,
        Operation::Or => 5,
        Operation::Xor => 6,
    };
    let head = ATOMIC | operation << 8 | (atomic.width as u64) << 16;
    [head, atomic.offset as u64, atomic.operand, atomic.comparand, 0, 0]
}

/// Encodes a request to push `length` bytes at symmetric `offset` to `landing`, an offset in the requester's
/// inbound memory.
pub(super) fn encode_push(offset: usize, length: usize, landing: usize) -> [u64; CONTENTS] {
    [PUSH, offset as u64, 0, 0, length as u64, landing as u64]
}

fn decode_atomic(contents: &[u64; CONTENTS]) -> Option<Atomic> {
    let operation = match contents[0] >> 8 & 0xFF {
        0 => Operation::Fetch,
        1 => Operation::Swap,
        2 => Operation::CompareSwap,
        3 => Operation::Add,
        4 => Operation::And,
        5 => Operation::Or,
        6 => Operation::Xor,
        _ => return None,
    };
    let width = (contents[0] >> 16) as usize;
    let offset = usize::try_from(contents[1]).ok()?;
    Some(Atomic { operation, offset, width, operand: contents[2], comparand: contents[3] })
}

struct RecordAt<'a>(&'a PeContext, usize);

impl record::Words for RecordAt<'_> {
    type Word = AtomicU64;
    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        self.0.word(self.1 + index * 8)
    }
}

/// For each peer, the number of the next request to serve.
pub(super) type NextRequests = Vec<u64>;

impl PeContext {
    /// Executes pending requests of other PEs. If another thread is already doing this: waits for that thread
    /// if `insist` is set, else returns at once.
    pub(super) fn serve(&self, insist: bool) {
        let mut expected: MutexGuard<'_, NextRequests> = match self.next_requests.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poison)) => poison.into_inner(),
            Err(TryLockError::WouldBlock) if insist => {
                self.next_requests.lock().unwrap_or_else(PoisonError::into_inner)
            }
            Err(TryLockError::WouldBlock) => return,
        };
        for pe in 0..self.pes {
            let tag = self.peers[pe as usize].tag.load(Ordering::Acquire);
            // Serve only a limited number of requests of each peer in one round. Otherwise, a hostile peer
            // that posts requests quickly would keep the other peers waiting.
            for _ in 0..super::layout::SLOTS {
                let number = expected[pe as usize];
                let record = RecordAt(self, self.layout.request(pe, number));
                let Some(contents) = record::take(&record, sequence(tag, number)) else { break };
                expected[pe as usize] += 1;
                let answer = self.carry_out(pe, &contents);
                self.reply(pe, number, tag, answer);
            }
        }
    }

    fn carry_out(&self, pe: u32, contents: &[u64; CONTENTS]) -> Option<u64> {
        match contents[0] & 0xFF {
            ATOMIC => {
                let before = self.apply(&decode_atomic(contents)?)?;
                self.changed_own_memory();
                Some(before)
            }
            PUSH => self.push(pe, contents),
            _ => None,
        }
    }

    /// Applies an atomic to a word of this PE's symmetric memory. Returns `None` if the word is misaligned or
    /// lies outside that memory.
    pub(super) fn apply(&self, atomic: &Atomic) -> Option<u64> {
        self.apply_at(self.base, atomic)
    }

    /// Applies an atomic to a word of a PE's symmetric memory with an instruction of this processor. `base`
    /// is the address at which this process has mapped that PE's inbound memory. The mapping must be
    /// coherent. Returns `None` if the word is misaligned or outside symmetric memory.
    pub(super) fn apply_at(&self, base: *mut u8, atomic: &Atomic) -> Option<u64> {
        let Atomic { offset, width, .. } = *atomic;
        let end = offset.checked_add(width)?;
        if end > self.layout.symmetric_bytes() || !offset.is_multiple_of(width.max(1)) {
            return None;
        }
        // SAFETY: the word lies inside symmetric memory, as checked above. All PEs access the word only by
        // atomics.
        unsafe { word::apply(base.wrapping_add(self.layout.symmetric() + offset), atomic) }
    }

    fn push(&self, pe: u32, contents: &[u64; CONTENTS]) -> Option<u64> {
        let (offset, length) = (usize::try_from(contents[1]).ok()?, usize::try_from(contents[4]).ok()?);
        let landing = usize::try_from(contents[5]).ok()?;
        let end = offset.checked_add(length)?;
        // Gets arrive in the requester's landing area. Refuse addresses below this area, because the
        // requester's header and inboxes lie there.
        if length > LANDING || end > self.layout.symmetric_bytes() || landing < self.layout.landing() {
            return None;
        }
        let source = self.base.wrapping_add(self.layout.symmetric() + offset);
        let window = &self.peers[pe as usize].window;
        // SAFETY: the source lies inside this PE's memory. The window checks the destination.
        unsafe { window.store_from(landing, source, length) }.ok()?;
        window.fence();
        Some(0)
    }

    fn reply(&self, pe: u32, number: u64, tag: u32, answer: Option<u64>) {
        self.faults.step("reply");
        let peer = &self.peers[pe as usize];
        let at = self.layout.reply(self.me, number);
        let status = if answer.is_some() { DONE } else { REFUSED };
        // These stores cannot fail. Their offsets are inside the window, because the window's size was
        // checked when it was mapped.
        let _ = peer.window.store_word(at, status);
        let _ = peer.window.store_word(at + 8, answer.unwrap_or(0));
        peer.window.fence_words();
        let _ = peer.window.store_word(at + REPLY - 8, sequence(tag, number));
        self.stored(pe, peer, Stored::Control);
    }

    /// Runs the service thread: sleeps until a doorbell or a link event, then serves the peers' requests.
    pub(super) fn service(&self) {
        let (Ok(doorbell), Ok(link)) =
            (self.ntb.event(Event::Doorbell(self.request_vector)), self.ntb.event(Event::Link))
        else {
            return;
        };
        while !self.stop.load(Ordering::Acquire) {
            let mut fds = [PollFd::new(&doorbell, PollFlags::IN), PollFd::new(&link, PollFlags::IN)];
            if poll(&mut fds, None).is_err() {
                continue;
            }
            for event in [doorbell, link] {
                let _ = rustix::io::read(event, &mut [0u8; 8]);
            }
            // Requests often come in quick succession. Poll for about the duration of a wake-up, to avoid a
            // sleep between two requests.
            let awake = Instant::now();
            while {
                // Clear the doorbell before the scan, so that a request during the scan rings again.
                self.ntb.doorbell_clear(REQUEST);
                self.serve(true);
                std::hint::spin_loop();
                !self.yields && awake.elapsed() < STAY_AWAKE
            } {}
        }
    }

    /// Returns the word at `offset` of this PE's inbound memory.
    #[inline(always)]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.layout.bytes());
        // SAFETY: the layout's offsets lie inside the memory and are aligned to 8. Peers write the word, so
        // it is an atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    /// Wakes `pe` if it sleeps until a store of kind `what` arrives. Call this after each store to the memory
    /// of `pe`.
    #[inline(always)]
    pub(super) fn stored(&self, pe: u32, peer: &super::Peer, what: Stored) {
        // Test one flag for both exceptions: this PE's own memory, and peers that need a barrier. Every put
        // executes this code, so it must be fast.
        if peer.is_exceptional {
            return self.stored_exceptionally(pe, peer, what);
        }
        if what.needs_barrier() {
            fence(Ordering::SeqCst);
        } else {
            // The processor may still load the announcement before the put arrives. The waiter then finds the
            // word when it looks again.
            compiler_fence(Ordering::SeqCst);
        }
        self.wake_if_announced(pe, peer, what);
    }

    /// Does the work of [`Self::stored`] in two rare cases. If the store went to this PE's own memory, wakes
    /// this PE's threads that wait for the store. Otherwise, executes a full barrier, and then wakes the peer
    /// if the peer has announced a sleep.
    #[inline(never)]
    fn stored_exceptionally(&self, pe: u32, peer: &super::Peer, what: Stored) {
        if pe == self.me {
            return self.changed_own_memory();
        }
        fence(Ordering::SeqCst);
        self.wake_if_announced(pe, peer, what);
    }

    /// Wakes `pe` if it has announced that it sleeps until a store of the kind `what`. Does nothing if `pe`
    /// has already got a doorbell for this announcement.
    #[inline(always)]
    fn wake_if_announced(&self, pe: u32, peer: &super::Peer, what: Stored) {
        let announcement = self.word(self.layout.announcement(pe));
        let now = Word::load(announcement);
        if now != peer.answered.load(Ordering::Relaxed) && concerns(now, what) {
            self.wake(pe, peer, announcement, what);
        }
    }
}
