//! Method `split` on the CPU: one thread receives and sends, others process.
//!
//! The first thread keeps the packets: what a pool knows of a buffer (an mbuf's lines) stays in its core's cache from being
//! received to being given back. To the others go 16 bytes a packet and the bytes they touch. Worker b takes items b, b+n, ...;
//! they come back, and are sent, in order.

use super::held::Held;
use super::inlet::{Gathered, Inlet};
use super::outlet::Outlet;
use super::single::PUBLISH_EVERY;
use super::{Drive, Overload, Pipeline, Shared, Tally, panic_message, pin, work};
use crate::control::{Control, Idle};
use crate::error::Error;
use inlane_core::clock::thread_cpu_ns;
use inlane_core::ring::{Consumer, Dispatcher, Next, Ring, sort_out};
use inlane_core::{Pool, Rx, Tx};
use inlane_function::Instance;
use std::collections::VecDeque;
use std::sync::Arc;

/// Runs `pipeline` on one thread that receives and sends, and one for each of its instances that processes, until it ends.
///
/// # Errors
/// When no ring can be made; nothing has run then.
pub fn run(pipeline: Pipeline, drive: &Drive, shared: &Shared<'_>) -> Result<Tally, Error> {
    let Pipeline { rx, txs, pool, instances } = pipeline;
    let (dispatcher, consumers) = Ring::new(drive.slots, drive.burst)?.dispatch(instances.len() as u32);
    // Not the thread's own: when it panics, workers may still write the packets, which go back to the pool only after them.
    let mut items = Items::new(&pool, drive);

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
            let move_packets = move || move_packets(rx, txs, pool, dispatcher, items, drive, shared);
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

/// Ends the run when the thread that holds it panics.
struct AbortOnPanic<'a>(&'a Control);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The packets of the items that are out, oldest first, and places for more.
struct Items {
    out: VecDeque<Item>,
    /// The last used is used next, while it is in the cache.
    spare: Vec<Held>,
}

struct Item {
    packets: Held,
    received: u64,
    queued: u64,
}

impl Items {
    fn new(pool: &Arc<dyn Pool>, drive: &Drive) -> Self {
        let spare = (0..drive.slots).map(|_| Held::new(pool.clone(), drive.burst)).collect();
        Self { out: VecDeque::with_capacity(drive.slots), spare }
    }

    /// Keeps what `inlet` gathered.
    #[inline]
    fn keep(&mut self, inlet: &mut Inlet, queued: u64) {
        let spare = self.spare.pop().expect("one for each slot");
        let packets = std::mem::replace(&mut inlet.held, spare);
        self.out.push_back(Item { packets, received: inlet.received, queued });
    }

    /// How many packets are out.
    fn packets_out(&self) -> u64 {
        self.out.iter().map(|item| item.packets.len() as u64).sum()
    }
}

fn move_packets(
    rx: Box<dyn Rx>,
    txs: Vec<Box<dyn Tx>>,
    pool: Arc<dyn Pool>,
    mut dispatcher: Dispatcher,
    items: &mut Items,
    drive: &Drive,
    shared: &Shared<'_>,
) -> Tally {
    pin(shared.cores, 0);
    let Shared { control, clock, progress, .. } = *shared;
    let room = pool.room() as u32;
    let mut outlet = Outlet::new(txs, &pool, drive);
    let mut inlet = Inlet::new(rx, pool, drive);
    let mut tally = Tally::default();
    let mut idle = Idle::default();
    let mut bursts = 0u32;
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
                let done = sort_out(held.as_mut_slice(), |i| back.outcome(i), room);
                tally.dropped_verdict += (done.dropped - done.invalid) as u64;
                tally.dropped_invalid += done.invalid as u64;
                held.give_back_from(done.forwarded);
            }
            back.free();
            dispatcher.prepare();
            match changed {
                true => outlet.send(held, control, clock),
                false => outlet.send_as_received(held, control, clock),
            };
            if drive.stages {
                let times = [item.received, item.queued, processed, clock.raw()];
                tally.stages.record(clock, times, count as u64);
            }
            items.spare.push(item.packets);
            bursts = bursts.wrapping_add(1);
            if bursts.is_multiple_of(PUBLISH_EVERY) {
                inlet.publish(progress);
                outlet.publish(progress, tally.dropped_verdict);
            }
        } else if control.aborting() {
            break;
        }
        let full = !dispatcher.has_room();
        if full && drive.overload != Overload::Drop {
            inlet.no_room();
        } else if receiving {
            match inlet.gather(control, clock) {
                Gathered::Burst if full => {
                    busy = true;
                    tally.dropped_overload += inlet.held.give_back_from(0) as u64;
                }
                Gathered::Burst => {
                    busy = true;
                    let queued = if drive.stages { clock.raw() } else { 0 };
                    dispatcher.submit(inlet.held.as_slice());
                    items.keep(&mut inlet, queued);
                    inlet.room();
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
                outlet.flush(control);
                inlet.publish(progress);
                outlet.publish(progress, tally.dropped_verdict);
            }
        }
    }
    tally.dropped_overload += inlet.held.give_back_from(0) as u64;
    inlet.publish(progress);
    outlet.publish(progress, tally.dropped_verdict);
    let (counters, error) = inlet.finish();
    tally.rx = counters;
    tally.errors.extend(error.map(Error::from));
    outlet.finish(control, &mut tally);
    tally.cpu_ns = thread_cpu_ns();
    tally
}

fn process(
    mut consumer: Consumer,
    mut instance: Instance,
    drive: &Drive,
    shared: &Shared<'_>,
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
