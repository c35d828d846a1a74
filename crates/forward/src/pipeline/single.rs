//! Method `single`: one thread receives, processes and sends, burst after burst. No ring: nothing is handed over.

use super::rx_stage::{Gathered, RxStage};
use super::tx_stage::TxStage;
use super::{Pipeline, PipelineContext, PipelineSettings, Tally, panic_message, pin, work};
use crate::control::Idle;
use crate::error::Error;
use inlane_core::clock::thread_cpu_ns;
use inlane_core::ring::apply_verdicts;
use inlane_core::ring::layout::{PacketVerdict, UNCHANGED};

/// How many bursts go by between two publications of the counters.
pub(super) const PUBLISH_EVERY: u32 = 64;

/// Runs `pipeline` on a thread of its own until it ends.
pub fn run(pipeline: Pipeline, drive: &PipelineSettings, shared: &PipelineContext<'_>) -> Tally {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(format!("inlane-{}", shared.index))
            .spawn_scoped(scope, || drive_it(pipeline, drive, shared));
        let outcome = match thread {
            Ok(thread) => thread.join(),
            Err(source) => {
                let error = inlane_core::Error::Os { what: "start a thread".into(), source };
                return Tally { errors: vec![error.into()], ..Tally::default() };
            }
        };
        outcome.unwrap_or_else(|payload| {
            shared.control.stop();
            let message = panic_message(&*payload);
            let error = Error::Panicked { pipeline: shared.index, thread: "pipeline", message };
            Tally { errors: vec![error], ..Tally::default() }
        })
    })
}

fn drive_it(pipeline: Pipeline, drive: &PipelineSettings, shared: &PipelineContext<'_>) -> Tally {
    pin(shared.cores, 0);
    let Pipeline { rx, txs, pool, mut instances } = pipeline;
    let _owner = pool.own();
    let PipelineContext { control, clock, progress, .. } = *shared;
    let instance = &mut instances[0];
    let room = pool.room() as u32;
    let mut tx_stage = TxStage::new(txs, &pool, drive);
    let mut rx_stage = RxStage::new(rx, pool.clone(), drive);
    let mut outcomes = vec![PacketVerdict::default(); drive.burst];
    let mut tally = Tally::default();
    let mut idle = Idle::default();
    let (ticks, needs_time) = (instance.ticks(), instance.needs_time());
    let mut bursts = 0u32;
    loop {
        match rx_stage.gather(control, clock, false) {
            Gathered::Burst => {
                idle.busy();
                let held = &mut rx_stage.held;
                let count = held.len();
                let queued = if drive.stages { clock.raw() } else { 0 };
                work(clock, drive.work, count);
                let now = if needs_time { clock.now_ns() } else { 0 };
                // SAFETY: the packets are held here, in memory that the CPU maps (checked when the run was set up), with
                // room for what the pool says.
                let info = unsafe { instance.run_packets(held.as_slice(), &mut outcomes, now) };
                let changed = info != UNCHANGED;
                if changed {
                    let done = apply_verdicts(held.as_mut_slice(), |i| outcomes[i], room);
                    tally.dropped_verdict += (done.dropped - done.invalid) as u64;
                    tally.dropped_invalid += done.invalid as u64;
                    held.give_back_from(done.forwarded);
                }
                let processed = if drive.stages { clock.raw() } else { 0 };
                let at_once = match changed {
                    true => tx_stage.send(held, control, clock),
                    false => tx_stage.send_as_received(held, control, clock),
                };
                if at_once {
                    rx_stage.room();
                } else {
                    rx_stage.no_room();
                }
                if drive.stages {
                    let times = [rx_stage.received, queued, processed, clock.raw()];
                    tally.stages.record(clock, times, count as u64);
                }
                bursts = bursts.wrapping_add(1);
                if bursts.is_multiple_of(PUBLISH_EVERY) {
                    rx_stage.publish(progress);
                    tx_stage.publish(progress, tally.dropped_verdict);
                }
            }
            Gathered::Nothing => {
                idle.wait();
                if idle.just_emptied() {
                    tx_stage.flush(control);
                    rx_stage.publish(progress);
                    tx_stage.publish(progress, tally.dropped_verdict);
                }
                if ticks {
                    instance.tick(clock.now_ns());
                }
            }
            Gathered::Ended => break,
        }
    }
    rx_stage.publish(progress);
    tx_stage.publish(progress, tally.dropped_verdict);
    let (rx, error) = rx_stage.finish();
    tally.rx = rx;
    tally.errors.extend(error.map(Error::from));
    tx_stage.finish(control, &mut tally);
    instance.finish();
    tally.functions = instances;
    tally.cpu_ns = thread_cpu_ns();
    tally
}
