//! Posts requests to the PE whose memory is accessed (the owner), and waits for the replies.
//!
//! Request n of a connection uses slot n % 64. Its sequence is `tag << 32 | n`. A slot is reused only after
//! the reply to its last request has arrived. So neither PE overwrites a record that the other PE has not yet
//! read.

use super::layout::SLOTS;
use super::record::{CONTENTS, WordSink, write};
use super::wait::{FailureScope, WaitOptions};
use super::{PeContext, Peer, REQUEST};
use crate::error::{Error, Result};
use crate::transport::no_check;
use inlane_core::completion::CompletionMode;
use inlane_ntb::window::Window;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Status of a reply: the request was carried out.
pub(super) const DONE: u64 = 1;
/// Status of a reply: the owner refused the request.
pub(super) const REFUSED: u64 = 2;

/// How long a PE waits for the answer to its request before it rings the doorbell of the other PE.
const RING_AFTER: Duration = Duration::from_micros(3);
/// How long to wait for an answer before the doorbell is rung again, because the last doorbell may have been
/// lost. Each ring doubles this time, from the first value up to the second.
const RING_AGAIN: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));

/// State of a request slot if no thread waits for the reply. The next [`PeContext::collect`] or
/// [`PeContext::post`] frees the slot.
const UNAWAITED: u64 = 0;
/// State of a request slot if a thread waits for the reply. Only that thread frees the slot.
const AWAITED: u64 = 1;
/// State of a slot whose thread no longer waits for the reply. A late reply frees the slot.
const ABANDONED: u64 = 2;

/// Packs the number of a request and the state of its slot into the word of the slot. The word of a free slot
/// is 0.
fn slot_word(number: u64, state: u64) -> u64 {
    number << 2 | state
}

fn slot_state(word: u64) -> u64 {
    word & 3
}

/// The requests that this PE has posted to one other PE. That PE owns the memory that the requests access.
pub(super) struct Requests {
    /// The number of the next request. A thread holds this lock while it posts a request.
    pub next: std::sync::Mutex<u64>,
    /// One word for each slot: the number and the state of the request in the slot, or 0 if the slot is free.
    pub slots: [AtomicU64; SLOTS as usize],
}

impl Default for Requests {
    fn default() -> Self {
        Self { next: std::sync::Mutex::new(1), slots: [const { AtomicU64::new(0) }; SLOTS as usize] }
    }
}

struct Slot<'a> {
    window: &'a Window,
    offset: usize,
    failed: Option<Error>,
}

impl WordSink for Slot<'_> {
    fn store(&mut self, index: usize, value: u64) {
        if let Err(error) = self.window.store_word(self.offset + index * 8, value) {
            self.failed = Some(error.into());
        }
    }

    fn fence(&mut self) {
        self.window.fence_words();
    }
}

pub(super) fn sequence(tag: u32, number: u64) -> u64 {
    (tag as u64) << 32 | (number & 0xFFFF_FFFF)
}

impl PeContext {
    fn reply_word(&self, pe: u32, number: u64, index: usize) -> &AtomicU64 {
        self.word(self.layout.reply(pe, number) + index * 8)
    }

    fn is_answered(&self, pe: u32, number: u64, tag: u32) -> bool {
        self.reply_word(pe, number, 3).load(Ordering::Acquire) == sequence(tag, number)
    }

    /// Posts a request to `pe` without waiting for the reply. Blocks while the request's slot is in use.
    fn post(&self, pe: u32, contents: &[u64; CONTENTS], state: u64) -> Result<u64> {
        let peer = &self.peers[pe as usize];
        let mut next = peer.requests.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.check(FailureScope::Peer(pe))?;
        let (number, tag) = (*next, peer.tag.load(Ordering::Acquire));
        let slot = &peer.requests.slots[(number % SLOTS) as usize];
        self.wait_ringing(pe, self.wait_options("a request"), || self.reap(pe, slot, tag))?;
        let mut sink =
            Slot { window: &peer.window, offset: self.layout.request(self.me, number), failed: None };
        slot.store(slot_word(number, state), Ordering::Release);
        peer.unanswered.fetch_add(1, Ordering::Relaxed);
        write(&mut sink, sequence(tag, number), contents);
        *next += 1;
        self.faults.step("request");
        sink.failed.map_or(Ok(number), Err)
    }

    /// Frees a request slot if its request was answered and no thread waits for the answer. Returns true if
    /// the slot is free now, even if it was free before this call.
    fn reap(&self, pe: u32, slot: &AtomicU64, tag: u32) -> bool {
        let word = slot.load(Ordering::Acquire);
        if word == 0 {
            return true;
        }
        let number = word >> 2;
        if slot_state(word) == AWAITED || !self.is_answered(pe, number, tag) {
            return false;
        }
        let peer = &self.peers[pe as usize];
        if slot.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            peer.unanswered.fetch_sub(1, Ordering::Relaxed);
            // The peer refused the request. Record that for later calls only if no thread ever waited for the
            // answer. If a thread gave up waiting, its caller has already received an error.
            let refused = self.reply_word(pe, number, 0).load(Ordering::Relaxed) == REFUSED;
            if refused && slot_state(word) == UNAWAITED {
                peer.refused.store(true, Ordering::Relaxed);
            }
        }
        slot.load(Ordering::Acquire) == 0
    }

    /// Waits until `done` returns true, which means that PE `pe` has served a request. Rings the doorbell of
    /// `pe` after [`RING_AFTER`], or at once in completion mode `interrupt`. Rings it again after each
    /// [`RING_AGAIN`].
    fn wait_ringing(&self, pe: u32, options: WaitOptions, mut done: impl FnMut() -> bool) -> Result<()> {
        let (mut looks, mut start, mut again) = (0u32, None, RING_AGAIN.0);
        // In completion mode `interrupt`, ring the doorbell at once. The wait polls too seldom in this mode
        // to notice that RING_AFTER has passed.
        let mut after = if options.mode == CompletionMode::Interrupt { Duration::ZERO } else { RING_AFTER };
        let started = |start: &mut Option<Instant>| *start.get_or_insert_with(Instant::now);
        let mut done = || {
            if done() {
                return true;
            }
            looks += 1;
            if looks.is_multiple_of(32) {
                let since = started(&mut start).elapsed();
                if since > after {
                    // The call fails only if the peer does not exist. If a doorbell is lost, a later round of
                    // this loop rings again.
                    let _ = self.ntb.peer_doorbell_set(pe, REQUEST);
                    (after, start) = (again, Some(Instant::now()));
                    again = (again * 2).min(RING_AGAIN.1);
                }
            }
            false
        };
        self.wait_until(options, FailureScope::Peer(pe), true, &mut done, &mut no_check)
    }

    /// Posts a request to `pe` and waits for its answer.
    pub(super) fn request(&self, pe: u32, contents: &[u64; CONTENTS], options: WaitOptions) -> Result<u64> {
        let number = self.post(pe, contents, AWAITED)?;
        let peer = &self.peers[pe as usize];
        let slot = &peer.requests.slots[(number % SLOTS) as usize];
        let tag = peer.tag.load(Ordering::Acquire);
        if let Err(error) = self.wait_ringing(pe, options, || self.is_answered(pe, number, tag)) {
            // The wait has failed, but the peer may still read the request and answer it. So mark the slot as
            // abandoned instead of freeing the slot.
            let word = slot_word(number, AWAITED);
            let abandoned = slot_word(number, ABANDONED);
            let _ = slot.compare_exchange(word, abandoned, Ordering::AcqRel, Ordering::Relaxed);
            return Err(error);
        }
        let status = self.reply_word(pe, number, 0).load(Ordering::Relaxed);
        let value = self.reply_word(pe, number, 1).load(Ordering::Relaxed);
        slot.store(0, Ordering::Release);
        peer.unanswered.fetch_sub(1, Ordering::Relaxed);
        if status == DONE { Ok(value) } else { Err(Error::Refused { peer: pe, what: options.what }) }
    }

    /// Posts a request without waiting for its answer. [`PeContext::collect`] waits for the answer later.
    pub(super) fn request_later(&self, pe: u32, contents: &[u64; CONTENTS]) -> Result<()> {
        self.post(pe, contents, UNAWAITED)?;
        // Ring the owner's doorbell at once. No thread waits for this request, so none could ring later.
        // Several rings may cause one interrupt.
        Ok(self.ntb.peer_doorbell_set(pe, REQUEST)?)
    }

    /// Blocks until all requests to `pe` that no thread waits for are answered.
    pub(super) fn collect(&self, pe: u32, peer: &Peer) -> Result<()> {
        if peer.unanswered.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let tag = peer.tag.load(Ordering::Acquire);
        for slot in &peer.requests.slots {
            // Wait for the answer in each slot whose request no thread waits for (`UNAWAITED`). Slots with a
            // waiting thread are freed by that thread. The answers in abandoned slots are not needed.
            self.wait_ringing(pe, self.wait_options("an atomic"), || {
                self.reap(pe, slot, tag) || slot_state(slot.load(Ordering::Acquire)) != UNAWAITED
            })?;
        }
        match peer.refused.swap(false, Ordering::Relaxed) {
            true => Err(Error::Refused { peer: pe, what: "an atomic" }),
            false => Ok(()),
        }
    }
}
