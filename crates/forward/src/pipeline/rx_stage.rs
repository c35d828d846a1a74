//! The receiving stage of a pipeline: receives packets and gathers them into bursts.

use super::burst_buffer::BurstBuffer;
use super::{Overload, PipelineContext, PipelineSettings};
use crate::control::{Control, publish_times};
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::{Pool, Rx};
use std::sync::Arc;

/// The state of the receiving stage after [`RxStage::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveState {
    /// A burst is complete and can be processed.
    Burst,
    /// The stage holds no packets, or a partial burst that waits for more packets. Call [`RxStage::receive`]
    /// again.
    Incomplete,
    /// The stage holds no packets, and none will be received any more.
    Ended,
}

/// Gathers packets of one receive queue into bursts.
pub struct RxStage {
    rx: Box<dyn Rx>,
    /// The packets gathered so far.
    pub burst: Box<BurstBuffer>,
    /// The raw clock reading when the burst's oldest packet was received. Only set with timed stages or a
    /// flush time.
    pub received: u64,
    largest: usize,
    /// The size of the next burst. It shrinks under [`Overload::Shrink`] and grows again later.
    current: usize,
    flush_ns: u64,
    overload: Overload,
    timed: bool,
    remaining: u64,
    error: Option<inlane_core::Error>,
}

impl RxStage {
    /// Creates the stage for the queue `rx`. The queue's packets come from `pool`.
    pub fn new(rx: Box<dyn Rx>, pool: Arc<dyn Pool>, settings: &PipelineSettings) -> Self {
        Self {
            rx,
            burst: Box::new(BurstBuffer::new(pool, settings.burst)),
            received: 0,
            largest: settings.burst,
            current: settings.burst,
            flush_ns: settings.flush.as_nanos() as u64,
            overload: settings.overload,
            timed: settings.stages || !settings.flush.is_zero(),
            remaining: settings.packets,
            error: None,
        }
    }

    /// Receives once, and adds the packets to the burst. The burst is complete if it is full, if no more
    /// packets will be received, or if its oldest packet has waited for the flush time. If `grow` is true,
    /// the flush time does not count.
    // Always inlined, because a call would save and restore registers in each burst.
    #[inline(always)]
    pub fn receive(&mut self, control: &Control, clock: &Clock, grow: bool) -> ReceiveState {
        let ending = self.error.is_some() || control.stopping();
        let want = (self.current as u64).min(self.burst.len() as u64 + self.remaining) as usize;
        let mut got = 0;
        if !ending && self.burst.len() < want {
            match self.rx.receive(self.burst.free_places(want)) {
                Ok(count) => got = count,
                Err(error) => self.error = Some(error),
            }
            if got > 0 {
                if self.timed && self.burst.is_empty() {
                    self.received = clock.raw();
                }
                // SAFETY: the queue has just received these packets of its pool, which is the burst's pool.
                unsafe { self.burst.extend(got) };
                self.remaining -= got as u64;
            }
        }
        if self.burst.is_empty() {
            let over = ending || self.error.is_some() || self.remaining == 0 || self.rx.exhausted();
            return if over { ReceiveState::Ended } else { ReceiveState::Incomplete };
        }
        let complete = self.burst.len() >= want
            || ending
            || (got == 0 && self.rx.exhausted())
            || !grow && (self.flush_ns == 0 || clock.between_ns(self.received, clock.raw()) >= self.flush_ns);
        if complete { ReceiveState::Burst } else { ReceiveState::Incomplete }
    }

    /// Halves the size of the next bursts under [`Overload::Shrink`]. Call it when the ring or the sending
    /// port is full.
    #[inline]
    pub fn shrink_bursts(&mut self) {
        if self.overload == Overload::Shrink {
            self.current = (self.current / 2).max(1);
        }
    }

    /// Doubles the size of the next bursts, up to the full size. Call it when the ring and the sending port
    /// had room.
    #[inline]
    pub fn grow_bursts(&mut self) {
        if self.current < self.largest {
            self.current = (self.current * 2).min(self.largest);
        }
    }

    /// Publishes the counters of the packets received so far, and the times of the calling thread.
    pub fn publish(&self, context: &PipelineContext<'_>) {
        let (meter, counters) = (context.meter(), self.rx.counters());
        meter.set_begun(counters.packets);
        publish_times(meter);
        if let Some(queues) = context.counters {
            queues.rx.set(counters);
        }
    }

    /// Ends the stage. Returns the queue's counters, and the receive error if there was one.
    pub fn finish(self) -> (Counters, Option<inlane_core::Error>) {
        (self.rx.counters(), self.error)
    }
}
