//! Method `split` on the CPU: one thread receives and sends ([`super::circulate`]), workers run the packet
//! function. Of n workers, worker w takes items w, w + n, w + 2n, ...

use super::circulate::{Circulation, InFlightLimits, Items};
use super::{
    AbortOnPanic, Pipeline, PipelineContext, PipelineSettings, Tally, panicked, spin_per_packet,
    thread_failed,
};
use crate::control::{Idle, publish_times};
use crate::error::Error;
use inlane_core::clock::ThreadTime;
use inlane_core::load::Meter;
use inlane_core::ring::{Consumer, NextItem, Ring};
use inlane_function::Instance;

/// The number of items between two publications of a worker's times.
const PUBLISH_EVERY: u32 = 64;

/// Runs `pipeline` until it ends. One thread receives and sends. Each instance of the packet function has its own
/// worker thread.
///
/// # Errors
/// When the burst ring cannot be created. No packet was received then.
pub fn run(
    pipeline: Pipeline,
    settings: &PipelineSettings,
    context: &PipelineContext<'_>,
) -> Result<Tally, Error> {
    let Pipeline { rx, txs, pool, instances } = pipeline;
    let (dispatcher, consumers) =
        Ring::between_threads(settings.slots, settings.burst, instances.len() as u32)?;
    let mut items = Items::new(&pool, settings.slots, settings.burst);
    let circulation = Circulation::new(rx, txs, pool, dispatcher, InFlightLimits::NONE, settings);

    let mut tally = std::thread::scope(|scope| {
        let spawned = (|| {
            let mut workers = Vec::new();
            for (index, (consumer, instance)) in consumers.into_iter().zip(instances).enumerate() {
                let meter = context.helper_meter(index);
                workers.push(context.spawn(scope, 1 + index, "-work", move || {
                    // Abort the run if this worker panics, because the dispatching thread would wait for its
                    // items.
                    let guard = AbortOnPanic(context.control);
                    let outcome = run_worker(consumer, instance, settings, context, meter);
                    std::mem::forget(guard);
                    outcome
                })?);
            }
            let items = &mut items;
            let dispatch = move || {
                context.wait_for_start();
                circulation.run(items, &mut (), settings, context)
            };
            Ok((context.spawn(scope, 0, "-io", dispatch)?, workers))
        })();
        let (dispatching, workers) = match spawned {
            Ok(threads) => threads,
            Err(source) => {
                context.control.abort();
                return Tally::failed(thread_failed(source));
            }
        };
        let mut tally = dispatching.join().unwrap_or_else(|payload| {
            context.control.stop();
            Tally::failed(panicked(context.index, "dispatching", payload))
        });
        for worker in workers {
            match worker.join() {
                Ok((instance, time)) => {
                    tally.functions.push(instance);
                    tally.time += time;
                }
                Err(payload) => tally.errors.push(panicked(context.index, "worker", payload)),
            }
        }
        tally
    });
    tally.dropped_unsent += items.packets_in_flight();
    Ok(tally)
}

/// Runs the packet function on a worker's items until the ring is closed and empty, or the run is aborted.
fn run_worker(
    mut consumer: Consumer,
    mut instance: Instance,
    settings: &PipelineSettings,
    context: &PipelineContext<'_>,
    meter: Option<&Meter>,
) -> (Instance, ThreadTime) {
    let (ticks, needs_time) = (instance.ticks(), instance.needs_time());
    let mut idle = Idle::default();
    let mut items = 0u32;
    loop {
        match consumer.poll() {
            NextItem::Item(mut item) => {
                idle.found_work();
                let (descriptors, verdicts) = item.parts();
                spin_per_packet(context.clock, settings.work, descriptors.len());
                let now = if needs_time { context.clock.now_ns() } else { 0 };
                // SAFETY: the packets are submitted, so only this worker accesses their bytes until it
                // completes the item. An earlier check has shown that the CPU can access their memory.
                let info = unsafe { instance.run_descriptors(descriptors, verdicts, now) };
                item.complete(info);
                items = items.wrapping_add(1);
                if items.is_multiple_of(PUBLISH_EVERY) {
                    meter.map(publish_times);
                }
            }
            NextItem::Empty if context.control.aborting() => break,
            NextItem::Empty => {
                idle.wait();
                context.sleep_if_parked(&idle);
                if idle.is_first_round() {
                    meter.map(publish_times);
                }
                if ticks {
                    instance.tick(context.clock.now_ns());
                }
            }
            NextItem::Closed => break,
        }
    }
    meter.map(publish_times);
    instance.finish();
    (instance, ThreadTime::of_this_thread())
}
