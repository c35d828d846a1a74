//! Method `split` on the CPU: one thread receives and sends, others process.
//!
//! The first thread keeps the packets ([`super::circulate`]); worker b takes items b, b+n, ...

use super::circulate::{Circulation, Items, Limits};
use super::{AbortOnPanic, Pipeline, PipelineContext, PipelineSettings, Tally, panic_message, pin, work};
use crate::control::Idle;
use crate::error::Error;
use inlane_core::clock::thread_cpu_ns;
use inlane_core::ring::{Consumer, Next, Ring};
use inlane_function::Instance;

/// Runs `pipeline` on one thread that receives and sends, and one for each of its instances that processes, until it ends.
///
/// # Errors
/// When no ring can be made; nothing has run then.
pub fn run(
    pipeline: Pipeline,
    drive: &PipelineSettings,
    shared: &PipelineContext<'_>,
) -> Result<Tally, Error> {
    let Pipeline { rx, txs, pool, instances } = pipeline;
    let (dispatcher, consumers) = Ring::between_threads(drive.slots, drive.burst, instances.len() as u32)?;
    let mut items = Items::new(&pool, drive.slots, drive.burst);
    let circulation = Circulation::new(rx, txs, pool, dispatcher, Limits::NONE, drive);

    let mut tally = std::thread::scope(|scope| {
        let named = |role: &str| std::thread::Builder::new().name(format!("inlane-{}-{role}", shared.index));
        let spawned = (|| {
            let mut workers = Vec::new();
            for (index, (consumer, instance)) in consumers.into_iter().zip(instances).enumerate() {
                workers.push(named("work").spawn_scoped(scope, move || {
                    // A worker that panics leaves items that will never be done: nobody must wait for them.
                    let guard = AbortOnPanic(shared.control);
                    let outcome = process(consumer, instance, drive, shared, index);
                    std::mem::forget(guard);
                    outcome
                })?);
            }
            let items = &mut items;
            let move_packets = move || {
                pin(shared.cores, 0);
                circulation.run(items, &mut (), drive, shared)
            };
            Ok((named("io").spawn_scoped(scope, move_packets)?, workers))
        })();
        let (moving, workers) = match spawned {
            Ok(threads) => threads,
            Err(source) => {
                shared.control.abort();
                let error = inlane_core::Error::Os { what: "start the threads of a pipeline".into(), source };
                return Tally { errors: vec![error.into()], ..Tally::default() };
            }
        };
        let panicked = |thread, payload: Box<dyn std::any::Any + Send>| {
            let message = panic_message(&*payload);
            Error::Panicked { pipeline: shared.index, thread, message }
        };
        let mut tally = moving.join().unwrap_or_else(|payload| {
            shared.control.stop();
            Tally { errors: vec![panicked("receiving and sending", payload)], ..Tally::default() }
        });
        for worker in workers {
            match worker.join() {
                Ok((instance, cpu_ns)) => {
                    tally.functions.push(instance);
                    tally.cpu_ns += cpu_ns;
                }
                Err(payload) => tally.errors.push(panicked("working", payload)),
            }
        }
        tally
    });
    tally.dropped_unsent += items.packets_out();
    Ok(tally)
}

fn process(
    mut consumer: Consumer,
    mut instance: Instance,
    drive: &PipelineSettings,
    shared: &PipelineContext<'_>,
    index: usize,
) -> (Instance, u64) {
    pin(shared.cores, 1 + index);
    let (ticks, needs_time) = (instance.ticks(), instance.needs_time());
    let mut idle = Idle::default();
    loop {
        match consumer.poll() {
            Next::Item(mut item) => {
                idle.busy();
                let (descriptors, outcomes) = item.parts();
                work(shared.clock, drive.work, descriptors.len());
                let now = if needs_time { shared.clock.now_ns() } else { 0 };
                // SAFETY: the dispatching thread holds the packets and submitted them; their bytes are this consumer's until it
                // completes the item, in memory that the CPU maps (checked when the run was set up).
                let info = unsafe { instance.run_descriptors(descriptors, outcomes, now) };
                item.complete(info);
            }
            Next::Empty if shared.control.aborting() => break,
            Next::Empty => {
                idle.wait();
                if ticks {
                    instance.tick(shared.clock.now_ns());
                }
            }
            Next::Closed => break,
        }
    }
    instance.finish();
    (instance, thread_cpu_ns())
}
