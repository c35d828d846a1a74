//! The dispatching thread of a pipeline. It receives packets, submits them as items, takes completed items
//! back, and sends their packets.
//!
//! This thread allocates and frees all buffers. So the metadata of a pool, such as the mbufs, stays in the
//! cache of one core. Only descriptors and the accessed packet bytes move to a worker's core. Items are taken
//! back and sent in the order of submission.

use super::burst_buffer::BurstBuffer;
use super::publication::Publication;
use super::rx_stage::{ReceiveState, RxStage};
use super::tx_stage::TxStage;
use super::{Overload, PipelineContext, PipelineSettings, Tally};
use crate::control::Idle;
use crate::error::{Error, Result};
use inlane_core::clock::ThreadTime;
use inlane_core::ring::{Dispatcher, Half};
use inlane_core::{Pool, Rx, Tx};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// The packets of the items in flight, oldest first, and empty buffers for further items.
///
/// The thread that starts the workers owns this value. So even if the dispatching thread panics, packets are
/// freed only after the workers have ended. Until then, the workers may still write to packets.
pub(crate) struct Items {
    in_flight: VecDeque<Item>,
    /// Empty buffers for further items. The last one added is used first, because it is still in the cache.
    #[expect(clippy::vec_box, reason = "only the pointer moves: see Item")]
    spare: Vec<Box<BurstBuffer>>,
}

struct Item {
    /// Boxed so that only a pointer moves. Moving the packets right after publishing would stall on store
    /// forwarding.
    packets: Box<BurstBuffer>,
    received: u64,
    queued: u64,
}

impl Items {
    /// Creates buffers for `slots` items of `burst` packets.
    pub(crate) fn new(pool: &Arc<dyn Pool>, slots: usize, burst: usize) -> Self {
        let spare = (0..slots).map(|_| Box::new(BurstBuffer::new(pool.clone(), burst))).collect();
        Self { in_flight: VecDeque::with_capacity(slots), spare }
    }

    /// Moves the submitted burst of `rx_stage` to the items in flight, and gives the stage a spare buffer.
    /// `queued` is the raw clock reading at the submission.
    #[inline]
    fn push(&mut self, rx_stage: &mut RxStage, queued: u64) {
        let spare = self.spare.pop().expect("one buffer per slot");
        let packets = std::mem::replace(&mut rx_stage.burst, spare);
        self.in_flight.push_back(Item { packets, received: rx_stage.received, queued });
    }

    /// Returns the number of packets in flight.
    pub(crate) fn packets_in_flight(&self) -> u64 {
        self.in_flight.iter().map(|item| item.packets.len() as u64).sum()
    }
}

/// Limits on the number of items in flight. They apply in addition to the ring's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlightLimits {
    /// While this many items are in flight, the dispatching thread does not receive.
    pub all: u64,
    /// If this many items are in flight, the dispatching thread does not submit a partial burst. The burst
    /// waits and grows, because it would only queue behind these items.
    pub partial: u64,
}

impl InFlightLimits {
    /// No limits: only the ring's size limits the items in flight.
    pub(crate) const NONE: Self = Self { all: u64::MAX, partial: u64::MAX };
}

/// Hooks by which an executor adds work to the dispatching thread.
pub(crate) trait CirculationHooks {
    /// True if a device processes the items, and not threads that measure their own time.
    const ON_DEVICE: bool = false;

    /// Called after an item of `count` packets was submitted, for example to launch a kernel for the item.
    ///
    /// # Errors
    /// When the executor has failed.
    #[inline(always)]
    fn item_submitted(&mut self, _count: usize) -> Result<()> {
        Ok(())
    }

    /// Does the executor's own work while the dispatching thread waits. The dispatching thread calls this in
    /// each round in which the oldest item in flight is not complete.
    ///
    /// # Errors
    /// When the executor has failed and no item will complete any more.
    #[inline(always)]
    fn no_item_completed(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Hooks that do nothing, for executors that add no work to the dispatching thread.
impl CirculationHooks for () {}

/// The dispatching thread's queues, ring and counters.
pub(crate) struct Circulation {
    rx_stage: RxStage,
    tx_stage: TxStage,
    dispatcher: Dispatcher,
    room: u32,
    limits: InFlightLimits,
    tally: Tally,
}

impl Circulation {
    /// Creates the dispatching thread's part of a pipeline. Packets from `rx` will pass through
    /// `dispatcher`'s ring and leave by `txs`.
    pub(crate) fn new(
        rx: Box<dyn Rx>,
        txs: Vec<Box<dyn Tx>>,
        pool: Arc<dyn Pool>,
        dispatcher: Dispatcher,
        limits: InFlightLimits,
        settings: &PipelineSettings,
    ) -> Self {
        let room = pool.room() as u32;
        let tx_stage = TxStage::new(txs, &pool, settings);
        let rx_stage = RxStage::new(rx, pool, settings);
        Self { rx_stage, tx_stage, dispatcher, room, limits, tally: Tally::default() }
    }

    /// Runs on the calling thread until nothing more will be received and no item is in flight. If the run is
    /// aborted or a hook fails, ends at once and may leave packets in `items`.
    pub(crate) fn run(
        mut self,
        items: &mut Items,
        hooks: &mut impl CirculationHooks,
        settings: &PipelineSettings,
        context: &PipelineContext<'_>,
    ) -> Tally {
        let pool = self.rx_stage.burst.pool().clone();
        let _owner = pool.own();
        let begun = Instant::now();
        if let Err(error) = self.circulate(items, hooks, settings, context) {
            context.control.abort();
            self.tally.errors.push(error);
        }
        let Self { mut rx_stage, tx_stage, mut tally, .. } = self;
        // Count packets that are still in the receiving stage as unsent. This happens only in an aborted run.
        tally.dropped_unsent += rx_stage.burst.free_all() as u64;
        rx_stage.publish(context);
        tx_stage.publish(context, tally.dropped());
        let (counters, error) = rx_stage.finish();
        tally.rx = counters;
        tally.errors.extend(error.map(Error::from));
        tx_stage.finish(context.control, &mut tally);
        tally.time = ThreadTime::of_this_thread();
        tally.flowed = Some((begun, Instant::now()));
        tally
    }

    fn circulate<H: CirculationHooks>(
        &mut self,
        items: &mut Items,
        hooks: &mut H,
        settings: &PipelineSettings,
        context: &PipelineContext<'_>,
    ) -> Result<()> {
        let Self { rx_stage, tx_stage, dispatcher, room, limits, tally } = self;
        let &PipelineContext { control, clock, .. } = context;
        let mut idle = Idle::default();
        let mut publication = Publication::new();
        let mut receiving = true;
        while receiving || dispatcher.in_flight() > 0 {
            let mut busy = false;
            // Send before receiving, because sending frees buffers for the next packets.
            if let Some(completed) = dispatcher.poll() {
                busy = true;
                let mut item = items.in_flight.pop_front().expect("a completed item was in flight");
                let processed = if settings.stages { clock.raw() } else { 0 };
                let burst = &mut item.packets;
                let count = burst.len();
                let changed = completed.changed();
                if changed {
                    burst.apply_verdicts(|i| completed.verdict(i), *room, tally);
                }
                completed.free();
                dispatcher.prefetch_completion();
                dispatcher.prefetch_next(Half::Second);
                match changed {
                    true => tx_stage.send(burst, control, clock),
                    false => tx_stage.send_as_received(burst, control, clock),
                };
                dispatcher.prefetch_next(Half::First);
                if settings.stages {
                    let times = [item.received, item.queued, processed, clock.raw()];
                    tally.stages.record(clock, times, count as u64);
                }
                items.spare.push(item.packets);
                if publication.is_due() {
                    publication.done(clock);
                    rx_stage.publish(context);
                    tx_stage.publish(context, tally.dropped());
                }
            } else if control.aborting() {
                break;
            } else {
                hooks.no_item_completed()?;
            }
            let full = !dispatcher.has_room();
            let in_flight = dispatcher.in_flight();
            if full && settings.overload != Overload::Drop {
                rx_stage.shrink_bursts();
            } else if receiving && in_flight < limits.all {
                match rx_stage.receive(control, clock, in_flight >= limits.partial) {
                    // Submit nothing more in an aborted run. The packets count as unsent.
                    ReceiveState::Burst if control.aborting() => {}
                    ReceiveState::Burst if full => {
                        busy = true;
                        tally.dropped_overload += rx_stage.burst.free_all() as u64;
                    }
                    ReceiveState::Burst => {
                        busy = true;
                        let queued = if settings.stages { clock.raw() } else { 0 };
                        let count = rx_stage.burst.len();
                        dispatcher.submit(rx_stage.burst.as_slice());
                        items.push(rx_stage, queued);
                        rx_stage.grow_bursts();
                        hooks.item_submitted(count)?;
                    }
                    ReceiveState::Incomplete => {}
                    ReceiveState::Ended => {
                        receiving = false;
                        dispatcher.close();
                    }
                }
            }
            if busy {
                idle.found_work();
            } else {
                if H::ON_DEVICE {
                    idle.set_device(full || in_flight >= limits.all);
                }
                idle.wait();
                if idle.is_first_round() {
                    tx_stage.flush(control);
                    rx_stage.publish(context);
                    tx_stage.publish(context, tally.dropped());
                } else if idle.yields() {
                    tx_stage.idle();
                }
            }
        }
        Ok(())
    }
}
