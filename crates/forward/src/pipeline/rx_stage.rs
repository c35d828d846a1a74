//! The receiving side of a pipeline: gathers packets into bursts.

use super::burst_buffer::BurstBuffer;
use super::{Overload, PipelineSettings};
use crate::control::{Control, Progress};
use inlane_core::clock::Clock;
use inlane_core::{Pool, Rx};
use std::sync::Arc;

/// What [`RxStage::gather`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// A burst is held, to be taken on.
    Burst,
    /// Not enough yet.
    Nothing,
    /// Nothing is held and nothing will come.
    Ended,
}

/// Gathers packets from a queue.
pub struct RxStage {
    rx: Box<dyn Rx>,
    /// The packets gathered.
    pub held: Box<BurstBuffer>,
    /// When the oldest of them was received, as a raw reading; only where somebody asked for times.
    pub received: u64,
    burst: usize,
    current: usize,
    flush_ns: u64,
    overload: Overload,
    timed: bool,
    remaining: u64,
    error: Option<inlane_core::Error>,
}

impl RxStage {
    /// Over one queue.
    pub fn new(rx: Box<dyn Rx>, pool: Arc<dyn Pool>, drive: &PipelineSettings) -> Self {
        Self {
            rx,
            held: Box::new(BurstBuffer::new(pool, drive.burst)),
            received: 0,
            burst: drive.burst,
            current: drive.burst,
            flush_ns: drive.flush.as_nanos() as u64,
            overload: drive.overload,
            timed: drive.stages || !drive.flush.is_zero(),
            remaining: drive.packets,
            error: None,
        }
    }

    /// Receives once, and says whether a burst is complete: full, the last one, or, unless `grow` says that it had better become full,
    /// older than the flush time.
    #[inline]
    pub fn gather(&mut self, control: &Control, clock: &Clock, grow: bool) -> Gathered {
        let ending = self.error.is_some() || control.stopping();
        let want = (self.current as u64).min(self.held.len() as u64 + self.remaining) as usize;
        let mut got = 0;
        if !ending && self.held.len() < want {
            match self.rx.receive(self.held.free_places(want)) {
                Ok(count) => got = count,
                Err(error) => self.error = Some(error),
            }
            if got > 0 {
                if self.timed && self.held.is_empty() {
                    self.received = clock.raw();
                }
                self.held.hold(got);
                self.remaining -= got as u64;
            }
        }
        if self.held.is_empty() {
            let over = ending || self.error.is_some() || self.remaining == 0 || self.rx.exhausted();
            return if over { Gathered::Ended } else { Gathered::Nothing };
        }
        let complete = self.held.len() >= want
            || ending
            || (got == 0 && self.rx.exhausted())
            || !grow && (self.flush_ns == 0 || clock.between_ns(self.received, clock.raw()) >= self.flush_ns);
        if complete { Gathered::Burst } else { Gathered::Nothing }
    }

    /// There was no room for a burst: under [`Overload::Shrink`] the next ones are half as large.
    #[inline]
    pub fn no_room(&mut self) {
        if self.overload == Overload::Shrink {
            self.current = (self.current / 2).max(1);
        }
    }

    /// There was room: bursts grow again.
    #[inline]
    pub fn room(&mut self) {
        if self.current < self.burst {
            self.current = (self.current * 2).min(self.burst);
        }
    }

    /// Tells whoever looks what was received.
    pub fn publish(&self, progress: &Progress) {
        let counters = self.rx.counters();
        progress.received(counters.packets, counters.bytes);
    }

    /// Ends it: the queue's counters, and what went wrong.
    pub fn finish(self) -> (inlane_core::port::Counters, Option<inlane_core::Error>) {
        (self.rx.counters(), self.error)
    }
}
