//! Method `split`: one thread receives and fills items of the burst ring, another takes them out, processes and sends. With
//! workers, the processing is theirs: worker b takes items b, b+n, ..., and the second thread only sends, in order.

use super::inlet::{Gathered, Inlet};
use super::outlet::Outlet;
use super::single::PUBLISH_EVERY;
use super::{Drive, Overload, Pipeline, Shared, Tally, panic_message, pin, work};
use crate::control::Idle;
use crate::error::Error;
use inlane_core::clock::thread_cpu_ns;
use inlane_core::port::Counters;
use inlane_core::ring::{Consumer, Next, Producer, Ring, Sender, Stamps, reclaim};
use inlane_function::Instance;

/// What the receiving thread came to.
struct Received {
    producer: Producer,
    counters: Counters,
    dropped_overload: u64,
    cpu_ns: u64,
    error: Option<inlane_core::Error>,
}

/// Runs `pipeline` on two threads, or two and one for each instance beyond the first, until it ends.
///
/// # Errors
/// When no ring can be made; nothing has run then.
pub fn run(pipeline: Pipeline, drive: &Drive, workers: usize, shared: &Shared<'_>) -> Result<Tally, Error> {
    let ring = Ring::new(drive.slots, drive.burst)?;
    let (producer, mut consumers, sender) = ring.split(workers.max(1) as u32);
    let Pipeline { rx, txs, pool, instances } = pipeline;
    let inlet = Inlet::new(rx, pool.clone(), drive).handed_over();
    let outlet = Outlet::new(txs, &pool, drive);
    let mut instances = instances.into_iter();
    let own = if workers == 0 { consumers.pop().zip(instances.next()) } else { None };
    let room = pool.room() as u32;
    let places = super::held::Held::new(pool.clone(), drive.burst);

    Ok(std::thread::scope(|scope| {
        let named = |role: &str| std::thread::Builder::new().name(format!("inlane-{}-{role}", shared.index));
        let spawned = (|| {
            let receive = named("rx").spawn_scoped(scope, || receive(inlet, producer, drive, shared))?;
            let mut processing = Vec::new();
            for (index, (consumer, instance)) in consumers.into_iter().zip(instances).enumerate() {
                processing.push(named("work").spawn_scoped(scope, move || {
                    // A worker that panics leaves items that will never be complete: nobody must wait for them.
                    let guard = AbortOnPanic(shared.control);
                    let outcome = process(consumer, instance, drive, shared, index);
                    std::mem::forget(guard);
                    outcome
                })?);
            }
            let send = named("tx").spawn_scoped(scope, move || {
                let guard = AbortOnPanic(shared.control);
                let outcome = send(outlet, sender, own, places, room, drive, shared);
                std::mem::forget(guard);
                outcome
            })?;
            Ok((receive, processing, send))
        })();
        let (receive, processing, send) = match spawned {
            Ok(threads) => threads,
            Err(source) => {
                shared.control.abort();
                let error = inlane_core::Error::Os { what: "start the threads of a pipeline".into(), source };
                return Tally { errors: vec![error.into()], ..Tally::default() };
            }
        };
        let mut tally = Tally::default();
        let panicked = |thread, payload: Box<dyn std::any::Any + Send>| {
            let message = panic_message(&*payload);
            Error::Panicked { pipeline: shared.index, thread, message }
        };
        let received = receive.join();
        let processed: Vec<_> = processing.into_iter().map(|thread| thread.join()).collect();
        let sent = send.join();
        let mut errors = Vec::new();
        match sent {
            Ok(sent) => tally = sent,
            Err(payload) => errors.push(panicked("sending", payload)),
        }
        for outcome in processed {
            match outcome {
                Ok((instance, cpu_ns)) => {
                    tally.functions.push(instance);
                    tally.cpu_ns += cpu_ns;
                }
                Err(payload) => errors.push(panicked("working", payload)),
            }
        }
        match received {
            Ok(received) => {
                tally.rx = received.counters;
                tally.dropped_overload += received.dropped_overload;
                tally.cpu_ns += received.cpu_ns;
                errors.extend(received.error.map(Error::from));
                let rest = reclaim(received.producer);
                tally.dropped_unsent += rest.len() as u64;
                pool.give(&rest);
            }
            Err(payload) => errors.push(panicked("receiving", payload)),
        }
        tally.errors.extend(errors);
        tally
    }))
}

/// Ends the run when the thread that holds it panics.
struct AbortOnPanic<'a>(&'a crate::control::Control);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn receive(mut inlet: Inlet, mut producer: Producer, drive: &Drive, shared: &Shared<'_>) -> Received {
    pin(shared.cores, 0);
    let Shared { control, clock, progress, .. } = *shared;
    let mut idle = Idle::default();
    let mut dropped_overload = 0u64;
    let mut bursts = 0u32;
    loop {
        match inlet.gather(control, clock) {
            Gathered::Burst => {
                let queued = if drive.stages { clock.raw() } else { 0 };
                let stamps = Stamps { received: inlet.received, queued };
                if producer.submit(inlet.held.as_slice(), stamps) {
                    inlet.held.release_all();
                    inlet.room();
                    idle.busy();
                } else if drive.overload == Overload::Drop {
                    dropped_overload += inlet.held.give_back_from(0) as u64;
                } else if control.aborting() {
                    break;
                } else {
                    inlet.no_room();
                    idle.wait();
                }
                bursts = bursts.wrapping_add(1);
                if bursts.is_multiple_of(PUBLISH_EVERY) {
                    inlet.publish(progress);
                }
            }
            Gathered::Nothing => {
                idle.wait();
                if idle.just_emptied() {
                    inlet.publish(progress);
                }
            }
            Gathered::Ended => break,
        }
    }
    producer.close();
    inlet.publish(progress);
    let unsent = inlet.held.give_back_from(0) as u64;
    let (counters, error) = inlet.finish();
    Received {
        producer,
        counters,
        dropped_overload: dropped_overload + unsent,
        cpu_ns: thread_cpu_ns(),
        error,
    }
}

/// Runs the function on one item.
#[inline]
fn process_item(
    item: &mut inlane_core::ring::Work<'_>,
    instance: &mut Instance,
    drive: &Drive,
    shared: &Shared<'_>,
    needs_time: bool,
) -> u32 {
    let (descriptors, outcomes) = item.parts();
    work(shared.clock, drive.work, descriptors.len());
    let now = if needs_time { shared.clock.now_ns() } else { 0 };
    // SAFETY: the ring's producer held the packets and submitted them; they are this consumer's until it completes the
    // item, in memory that the CPU maps (checked when the run was set up).
    unsafe { instance.run_descriptors(descriptors, outcomes, now) }
}

fn process(
    mut consumer: Consumer,
    mut instance: Instance,
    drive: &Drive,
    shared: &Shared<'_>,
    index: usize,
) -> (Instance, u64) {
    pin(shared.cores, 2 + index);
    let needs_time = instance.needs_time();
    let mut idle = Idle::default();
    loop {
        match consumer.poll() {
            Next::Item(mut item) => {
                idle.busy();
                let info = process_item(&mut item, &mut instance, drive, shared, needs_time);
                item.complete(info);
            }
            Next::Empty if shared.control.aborting() => break,
            Next::Empty => {
                idle.wait();
                if instance.ticks() {
                    instance.tick(shared.clock.now_ns());
                }
            }
            Next::Closed => break,
        }
    }
    instance.finish();
    (instance, thread_cpu_ns())
}

fn send(
    mut outlet: Outlet,
    mut sender: Sender,
    mut own: Option<(Consumer, Instance)>,
    mut held: super::held::Held,
    room: u32,
    drive: &Drive,
    shared: &Shared<'_>,
) -> Tally {
    pin(shared.cores, 1);
    let Shared { control, clock, progress, .. } = *shared;
    let mut tally = Tally::default();
    let mut idle = Idle::default();
    let mut bursts = 0u32;
    let needs_time = own.as_ref().is_some_and(|(_, instance)| instance.needs_time());
    loop {
        if let Some((consumer, instance)) = &mut own
            && let Next::Item(mut item) = consumer.poll()
        {
            let info = process_item(&mut item, instance, drive, shared, needs_time);
            item.complete(info);
        }
        match sender.poll(held.free_places(drive.burst), room) {
            Next::Item(done) => {
                idle.busy();
                let processed = if drive.stages { clock.raw() } else { 0 };
                held.hold(done.forwarded + done.dropped);
                held.pool().touch(held.as_slice());
                if done.dropped > 0 {
                    tally.dropped_verdict += (done.dropped - done.invalid) as u64;
                    tally.dropped_invalid += done.invalid as u64;
                    held.give_back_from(done.forwarded);
                }
                outlet.send(&mut held, control, clock);
                if drive.stages {
                    let times = [done.stamps.received, done.stamps.queued, processed, clock.raw()];
                    tally.stages.record(clock, times, (done.forwarded + done.dropped) as u64);
                }
                bursts = bursts.wrapping_add(1);
                if bursts.is_multiple_of(PUBLISH_EVERY) {
                    outlet.publish(progress, tally.dropped_verdict);
                }
            }
            Next::Empty if control.aborting() => break,
            Next::Empty => {
                idle.wait();
                if idle.just_emptied() {
                    outlet.flush(control);
                    outlet.publish(progress, tally.dropped_verdict);
                }
                if let Some((_, instance)) = &mut own
                    && instance.ticks()
                {
                    instance.tick(clock.now_ns());
                }
            }
            Next::Closed => break,
        }
    }
    outlet.publish(progress, tally.dropped_verdict);
    outlet.finish(control, &mut tally);
    if let Some((_, instance)) = &mut own {
        instance.finish();
    }
    tally.functions.extend(own.map(|(_, instance)| instance));
    tally.cpu_ns = thread_cpu_ns();
    tally
}
