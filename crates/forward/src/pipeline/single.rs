//! Method `single`: one thread receives, runs the packet function, and sends, burst by burst, without a ring.

use super::burst_buffer::BurstBuffer;
use super::publication::Publication;
use super::rx_stage::{ReceiveState, RxStage};
use super::tx_stage::TxStage;
use super::{Pipeline, PipelineContext, PipelineSettings, Tally, panicked, spin_per_packet, thread_failed};
use crate::control::Idle;
use crate::error::Error;
use inlane_core::clock::ThreadTime;
use inlane_core::ring::layout::{PacketVerdict, UNCHANGED};
use std::time::Instant;

/// One of this many bursts is timed.
const TIMED_EVERY: u32 = 64;

/// Runs `pipeline` on a new thread until it ends. Returns its counts. A panic stops the run and gives a
/// failed tally.
pub fn run(pipeline: Pipeline, settings: &PipelineSettings, context: &PipelineContext<'_>) -> Tally {
    std::thread::scope(|scope| {
        let thread = context.spawn(scope, 0, "", || run_here(pipeline, settings, context));
        match thread.map(|thread| thread.join()) {
            Ok(Ok(tally)) => tally,
            Ok(Err(payload)) => {
                context.control.stop();
                Tally::failed(panicked(context.index, "pipeline", payload))
            }
            Err(source) => Tally::failed(thread_failed(source)),
        }
    })
}

fn run_here(pipeline: Pipeline, settings: &PipelineSettings, context: &PipelineContext<'_>) -> Tally {
    let Pipeline { rx, txs, pool, mut instances } = pipeline;
    let _owner = pool.own();
    let &PipelineContext { control, clock, .. } = context;
    let instance = &mut instances[0];
    let room = pool.room() as u32;
    let mut tx_stage = TxStage::new(txs, &pool, settings);
    let mut rx_stage = RxStage::new(rx, pool.clone(), settings);
    let mut verdicts = vec![PacketVerdict::default(); settings.burst];
    let mut tally = Tally::default();
    context.wait_for_start();
    let mut idle = Idle::default();
    let (ticks, needs_time) = (instance.ticks(), instance.needs_time());
    let (mut bursts, mut publication) = (0u32, Publication::new());
    let begun = Instant::now();
    loop {
        // Time one burst in 64, because reading the clock for each burst would slow short functions.
        let sampled = bursts.is_multiple_of(TIMED_EVERY);
        let timed = settings.stages || sampled;
        let before = if sampled { clock.raw() } else { 0 };
        match rx_stage.receive(control, clock, false) {
            ReceiveState::Burst => {
                idle.found_work();
                let burst: &mut BurstBuffer = &mut rx_stage.burst;
                let count = burst.len();
                let queued = if timed { clock.raw() } else { 0 };
                spin_per_packet(clock, settings.work, count);
                let now = if needs_time { clock.now_ns() } else { 0 };
                // SAFETY: this thread owns the packets, and their buffers have the pool's room. Their memory
                // was checked to be accessible to the CPU.
                let info = unsafe { instance.run_packets(burst.as_slice(), &mut verdicts, now) };
                let changed = info != UNCHANGED;
                if changed {
                    burst.apply_verdicts(|i| verdicts[i], room, &mut tally);
                }
                let processed = if timed { clock.raw() } else { 0 };
                let at_once = match changed {
                    true => tx_stage.send(burst, control, clock),
                    false => tx_stage.send_as_received(burst, control, clock),
                };
                if at_once {
                    rx_stage.grow_bursts();
                } else {
                    rx_stage.shrink_bursts();
                }
                if settings.stages {
                    let times = [rx_stage.received, queued, processed, clock.raw()];
                    tally.stages.record(clock, times, count as u64);
                }
                if sampled {
                    tally.work.record([before, queued, processed, clock.raw()]);
                }
                bursts = bursts.wrapping_add(1);
                if publication.is_due() {
                    publication.done(clock);
                    rx_stage.publish(context);
                    tx_stage.publish(context, tally.dropped());
                }
            }
            ReceiveState::Incomplete => {
                idle.wait();
                if idle.is_first_round() {
                    tx_stage.flush(control);
                    rx_stage.publish(context);
                    tx_stage.publish(context, tally.dropped());
                } else if idle.yields() {
                    tx_stage.idle();
                }
                if ticks {
                    instance.tick(clock.now_ns());
                }
            }
            ReceiveState::Ended => break,
        }
    }
    rx_stage.publish(context);
    tx_stage.publish(context, tally.dropped());
    let (rx, error) = rx_stage.finish();
    tally.rx = rx;
    tally.errors.extend(error.map(Error::from));
    tx_stage.finish(control, &mut tally);
    instance.finish();
    tally.functions = instances;
    tally.time = ThreadTime::of_this_thread();
    tally.flowed = Some((begun, Instant::now()));
    tally
}
