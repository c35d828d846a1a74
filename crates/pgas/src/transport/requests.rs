//! Requests to an owner: posting them, and awaiting their replies.
//!
//! Request n of a connection goes to slot n % 64; its sequence is `tag << 32 | n`. A slot is used again once the reply to
//! its last request was seen, so neither side ever overwrites what the other has not read.

use super::layout::SLOTS;
use super::wait::{Manner, Watch};
use super::windows::{Peer, REQUEST, Shared};
use crate::error::{Error, Result};
use crate::transport::record::{CONTENTS, Sink, write};
use inlane_core::completion::CompletionMode;
use inlane_ntb::window::Window;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A reply's status.
pub(super) const DONE: u64 = 1;
pub(super) const REFUSED: u64 = 2;

/// Unanswered for this long, a request is rung for, and again after each [`RING_AGAIN`].
const RING_AFTER: Duration = Duration::from_micros(3);
const RING_AGAIN: Duration = Duration::from_millis(1);

/// Who waits for a slot's reply.
const NOBODY: u64 = 0;
const SOMEBODY: u64 = 1;

pub(super) struct Requests {
    /// Number of the next request; the lock is held while one is posted.
    pub next: std::sync::Mutex<u64>,
    /// For each slot: request number << 1 | whether a thread waits for it; 0 when free.
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

impl Sink for Slot<'_> {
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

impl Shared {
    fn reply_word(&self, pe: u32, number: u64, index: usize) -> &AtomicU64 {
        self.word(self.layout.reply(pe, number) + index * 8)
    }

    fn answered(&self, pe: u32, number: u64, tag: u32) -> bool {
        self.reply_word(pe, number, 3).load(Ordering::Acquire) == sequence(tag, number)
    }

    /// Posts a request and does not wait.
    fn post(&self, pe: u32, contents: &[u64; CONTENTS], waits: u64) -> Result<u64> {
        let peer = &self.peers[pe as usize];
        let mut next = peer.requests.next.lock().unwrap_or_else(PoisonError::into_inner);
        self.check(Watch::Peer(pe))?;
        let (number, tag) = (*next, peer.tag.load(Ordering::Acquire));
        let slot = &peer.requests.slots[(number % SLOTS) as usize];
        self.wait_ringing(pe, self.manner("a request"), || self.reap(pe, slot, tag))?;
        let mut sink =
            Slot { window: &peer.window, offset: self.layout.request(self.me, number), failed: None };
        slot.store(number << 1 | waits, Ordering::Release);
        peer.unanswered.fetch_add(1, Ordering::Relaxed);
        write(&mut sink, sequence(tag, number), contents);
        *next += 1;
        self.faults.step("request");
        sink.failed.map_or(Ok(number), Err)
    }

    /// True when the slot is free; frees it when its request was answered and nobody waits for that.
    fn reap(&self, pe: u32, slot: &AtomicU64, tag: u32) -> bool {
        let held = slot.load(Ordering::Acquire);
        if held == 0 {
            return true;
        }
        if held & 1 == SOMEBODY || !self.answered(pe, held >> 1, tag) {
            return false;
        }
        let peer = &self.peers[pe as usize];
        if slot.compare_exchange(held, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            peer.unanswered.fetch_sub(1, Ordering::Relaxed);
            if self.reply_word(pe, held >> 1, 0).load(Ordering::Relaxed) == REFUSED {
                peer.refused.store(true, Ordering::Relaxed);
            }
        }
        slot.load(Ordering::Acquire) == 0
    }

    /// Waits for something that the owner does, ringing when it does not do it by itself.
    fn wait_ringing(&self, pe: u32, manner: Manner, mut done: impl FnMut() -> bool) -> Result<()> {
        let (mut looks, mut start, mut rung) = (0u32, None, false);
        // Who sleeps at once looks too seldom to ring later.
        let after = if manner.completion == CompletionMode::Interrupt { Duration::ZERO } else { RING_AFTER };
        let started = |start: &mut Option<Instant>| *start.get_or_insert_with(Instant::now);
        self.wait_for(manner, Watch::Peer(pe), || {
            if done() {
                return true;
            }
            looks += 1;
            if looks.is_multiple_of(32) {
                let since = started(&mut start).elapsed();
                if since > if rung { RING_AGAIN } else { after } {
                    // The peer exists; a doorbell that is lost is rung again.
                    let _ = self.ntb.peer_doorbell_set(pe, REQUEST);
                    (rung, start) = (true, Some(Instant::now()));
                }
            }
            false
        })
    }

    /// Has `pe` carry out a request and gives its answer.
    pub(super) fn request(&self, pe: u32, contents: &[u64; CONTENTS], manner: Manner) -> Result<u64> {
        let number = self.post(pe, contents, SOMEBODY)?;
        let peer = &self.peers[pe as usize];
        let tag = peer.tag.load(Ordering::Acquire);
        self.wait_ringing(pe, manner, || self.answered(pe, number, tag))?;
        let status = self.reply_word(pe, number, 0).load(Ordering::Relaxed);
        let value = self.reply_word(pe, number, 1).load(Ordering::Relaxed);
        peer.requests.slots[(number % SLOTS) as usize].store(0, Ordering::Release);
        peer.unanswered.fetch_sub(1, Ordering::Relaxed);
        if status == DONE { Ok(value) } else { Err(Error::Refused { peer: pe, what: manner.what }) }
    }

    /// Has `pe` carry out a request some time before the next [`Shared::collect`].
    pub(super) fn request_later(&self, pe: u32, contents: &[u64; CONTENTS]) -> Result<()> {
        self.post(pe, contents, NOBODY)?;
        // Nobody waits here, so nobody would notice that the owner does not look: ring at once. Doorbells coalesce.
        Ok(self.ntb.peer_doorbell_set(pe, REQUEST)?)
    }

    /// Waits until all requests to `pe` that nobody waits for are answered.
    pub(super) fn collect(&self, pe: u32, peer: &Peer) -> Result<()> {
        if peer.unanswered.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let tag = peer.tag.load(Ordering::Acquire);
        for slot in &peer.requests.slots {
            // Slots with a waiting thread are that thread's business.
            self.wait_ringing(pe, self.manner("an atomic"), || {
                slot.load(Ordering::Acquire) & 1 == SOMEBODY || self.reap(pe, slot, tag)
            })?;
        }
        match peer.refused.swap(false, Ordering::Relaxed) {
            true => Err(Error::Refused { peer: pe, what: "an atomic" }),
            false => Ok(()),
        }
    }
}
