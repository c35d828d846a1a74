//! The thread that keeps a pipeline's packets: it receives, hands items out, takes them back and sends them.
//!
//! What a pool knows of a buffer (an mbuf's lines) stays in its core's cache from being received to being given back. To those who
//! process go 16 bytes a packet, and the bytes they touch. Items come back, and are sent, in order.

use super::burst_buffer::BurstBuffer;
use super::rx_stage::{Gathered, RxStage};
use super::single::PUBLISH_EVERY;
use super::tx_stage::TxStage;
use super::{Overload, PipelineContext, PipelineSettings, Tally};
use crate::control::Idle;
use crate::error::{Error, Result};
use inlane_core::clock::thread_cpu_ns;
use inlane_core::ring::{Dispatcher, Half, apply_verdicts};
use inlane_core::{Pool, Rx, Tx};
use std::collections::VecDeque;
use std::sync::Arc;

/// The packets of the items that are out, oldest first, and places for more.
///
/// Not the thread's own: when it panics, others may still write the packets, which go back to the pool only after them.
pub(crate) struct Items {
    out: VecDeque<Item>,
    /// The last used is used next, while it is in the cache.
    #[expect(clippy::vec_box, reason = "they change hands by pointer: see Item")]
    spare: Vec<Box<BurstBuffer>>,
}

struct Item {
    /// Boxed, for it changes hands right behind the word that publishes it: what was written a moment ago in smaller pieces than it is
    /// moved in could be read only once that word's line is here.
    packets: Box<BurstBuffer>,
    received: u64,
    queued: u64,
}

impl Items {
    /// Room for `slots` items of `burst` packets.
    pub(crate) fn new(pool: &Arc<dyn Pool>, slots: usize, burst: usize) -> Self {
        let spare = (0..slots).map(|_| Box::new(BurstBuffer::new(pool.clone(), burst))).collect();
        Self { out: VecDeque::with_capacity(slots), spare }
    }

    /// Keeps what `rx_stage` gathered.
    #[inline]
    fn keep(&mut self, rx_stage: &mut RxStage, queued: u64) {
        let spare = self.spare.pop().expect("one for each slot");
        let packets = std::mem::replace(&mut rx_stage.held, spare);
        self.out.push_back(Item { packets, received: rx_stage.received, queued });
    }

    /// How many packets are out.
    pub(crate) fn packets_out(&self) -> u64 {
        self.out.iter().map(|item| item.packets.len() as u64).sum()
    }
}

/// How many items may be out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// So many: then the thread waits for one rather than receive.
    pub all: u64,
    /// So many of those who process have their hands full: until one is back, a burst that is not full grows rather than queue up
    /// behind them as an item of its own.
    pub partial: u64,
}

impl Limits {
    /// As many as the ring holds.
    pub(crate) const NONE: Self = Self { all: u64::MAX, partial: u64::MAX };
}

/// What the thread does beside, for those who process.
pub(crate) trait CirculationHooks {
    /// An item of `count` packets was submitted.
    ///
    /// # Errors
    /// They can no more.
    #[inline(always)]
    fn item_submitted(&mut self, _count: usize) -> Result<()> {
        Ok(())
    }

    /// A round in which no item came back.
    ///
    /// # Errors
    /// Nothing will come back any more.
    #[inline(always)]
    fn no_item_completed(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Nothing.
impl CirculationHooks for () {}

/// Everything that the thread works with, but for the packets that are out.
pub(crate) struct Circulation {
    rx_stage: RxStage,
    tx_stage: TxStage,
    dispatcher: Dispatcher,
    room: u32,
    limits: Limits,
    tally: Tally,
}

impl Circulation {
    /// Between these queues, through `dispatcher`'s ring.
    pub(crate) fn new(
        rx: Box<dyn Rx>,
        txs: Vec<Box<dyn Tx>>,
        pool: Arc<dyn Pool>,
        dispatcher: Dispatcher,
        limits: Limits,
        drive: &PipelineSettings,
    ) -> Self {
        let room = pool.room() as u32;
        let tx_stage = TxStage::new(txs, &pool, drive);
        Self {
            rx_stage: RxStage::new(rx, pool, drive),
            tx_stage,
            dispatcher,
            room,
            limits,
            tally: Tally::default(),
        }
    }

    /// Runs on the calling thread until nothing will be received and everything is back, or the run is aborted: by an error
    /// of `hooks`'s, too.
    pub(crate) fn run(
        mut self,
        items: &mut Items,
        hooks: &mut impl CirculationHooks,
        drive: &PipelineSettings,
        shared: &PipelineContext<'_>,
    ) -> Tally {
        let pool = self.rx_stage.held.pool().clone();
        let _owner = pool.own();
        if let Err(error) = self.circulate(items, hooks, drive, shared) {
            shared.control.abort();
            self.tally.errors.push(error);
        }
        let Self { mut rx_stage, tx_stage, mut tally, .. } = self;
        tally.dropped_overload += rx_stage.held.give_back_from(0) as u64;
        rx_stage.publish(shared.progress);
        tx_stage.publish(shared.progress, tally.dropped_verdict);
        let (counters, error) = rx_stage.finish();
        tally.rx = counters;
        tally.errors.extend(error.map(Error::from));
        tx_stage.finish(shared.control, &mut tally);
        tally.cpu_ns = thread_cpu_ns();
        tally
    }

    fn circulate(
        &mut self,
        items: &mut Items,
        hooks: &mut impl CirculationHooks,
        drive: &PipelineSettings,
        shared: &PipelineContext<'_>,
    ) -> Result<()> {
        let Self { rx_stage, tx_stage, dispatcher, room, limits, tally } = self;
        let PipelineContext { control, clock, progress, .. } = *shared;
        let mut idle = Idle::default();
        let mut freed = 0u64;
        let mut receiving = true;
        while receiving || dispatcher.in_flight() > 0 {
            let mut busy = false;
            // What is back goes out first: its buffers are the next to be received into.
            if let Some(back) = dispatcher.poll() {
                busy = true;
                let mut item = items.out.pop_front().expect("an item that is out");
                let processed = if drive.stages { clock.raw() } else { 0 };
                let held = &mut item.packets;
                let count = held.len();
                let changed = back.changed();
                if changed {
                    let done = apply_verdicts(held.as_mut_slice(), |i| back.verdict(i), *room);
                    tally.dropped_verdict += (done.dropped - done.invalid) as u64;
                    tally.dropped_invalid += done.invalid as u64;
                    held.give_back_from(done.forwarded);
                }
                back.free();
                dispatcher.prefetch_completion();
                dispatcher.prefetch_next(Half::Second);
                match changed {
                    true => tx_stage.send(held, control, clock),
                    false => tx_stage.send_as_received(held, control, clock),
                };
                dispatcher.prefetch_next(Half::First);
                if drive.stages {
                    let times = [item.received, item.queued, processed, clock.raw()];
                    tally.stages.record(clock, times, count as u64);
                }
                items.spare.push(item.packets);
                freed += 1;
                if freed.is_multiple_of(PUBLISH_EVERY as u64) {
                    rx_stage.publish(progress);
                    tx_stage.publish(progress, tally.dropped_verdict);
                }
            } else if control.aborting() {
                break;
            } else {
                hooks.no_item_completed()?;
            }
            let full = !dispatcher.has_room();
            let out = dispatcher.in_flight();
            if full && drive.overload != Overload::Drop {
                rx_stage.no_room();
            } else if receiving && out < limits.all {
                match rx_stage.gather(control, clock, out >= limits.partial) {
                    Gathered::Burst if full => {
                        busy = true;
                        tally.dropped_overload += rx_stage.held.give_back_from(0) as u64;
                    }
                    Gathered::Burst => {
                        busy = true;
                        let queued = if drive.stages { clock.raw() } else { 0 };
                        let count = rx_stage.held.len();
                        dispatcher.submit(rx_stage.held.as_slice());
                        items.keep(rx_stage, queued);
                        rx_stage.room();
                        hooks.item_submitted(count)?;
                    }
                    Gathered::Nothing => {}
                    Gathered::Ended => {
                        receiving = false;
                        dispatcher.close();
                    }
                }
            }
            if busy {
                idle.busy();
            } else {
                idle.wait();
                if idle.just_emptied() {
                    tx_stage.flush(control);
                    rx_stage.publish(progress);
                    tx_stage.publish(progress, tally.dropped_verdict);
                }
            }
        }
        Ok(())
    }
}
