//! The threads of a pipeline whose function runs on a GPU.
//!
//! ```text
//! single       [ receive -> submit -> launch -> wait -> send ]                 one thread
//! the others   [ receive -> submit (-> launch) ]   [ wait -> send (-> post) ]   two threads
//! ```
//!
//! What the threads work with belongs to who started them: when one panics, the ring can still be drained and the GPU let go.

use super::feed::{Feed, settle, tick};
use super::lane::{Lane, Report};
use super::launch::Launcher;
use super::watch::Watch;
use crate::config::Method;
use crate::control::Idle;
use crate::error::{Error, Result};
use crate::pipeline::held::Held;
use crate::pipeline::inlet::{Gathered, Inlet};
use crate::pipeline::outlet::Outlet;
use crate::pipeline::{Drive, Overload, Pipeline, Shared, Tally, panic_message, pin};
use inlane_core::clock::thread_cpu_ns;
use inlane_core::ring::{Done, Next, Producer, Sender, Stamps, reclaim};
use inlane_cuda::Stream;
use std::time::Instant;

/// How many bursts go by between two publications of the counters.
const PUBLISH_EVERY: u32 = 64;

/// How many idle rounds go by between two signs of life for the GPU, which looks for them a few times a second. A line that
/// two cores write all the time would slow every other read of the GPU.
const BEAT_EVERY: u64 = 1 << 12;

/// Runs `pipeline`, whose packets lie where `lane` was made for, until it ends. Afterwards the GPU has let go of the lane, or
/// was given up, and an error says so.
pub fn run(pipeline: Pipeline, lane: Lane, drive: &Drive, shared: &Shared<'_>) -> (Tally, Option<Report>) {
    let pool = pipeline.pool.clone();
    let (producer, _, sender) = lane.ring.clone().split(0);
    let Pipeline { rx, txs, pool: rx_pool, .. } = pipeline;
    let mut receiving = Receiving {
        inlet: Some(Inlet::new(rx, rx_pool.clone(), drive)),
        producer,
        submitted: 0,
        tally: Tally::default(),
    };
    let mut tally = Tally::default();
    let room = pool.room() as u32;
    let outlet = Outlet::new(txs, &pool, drive);
    let held = Held::new(rx_pool, drive.burst);
    let mut sending =
        Sending { sender, outlet: Some(outlet), held, room, freed: 0, bursts: 0, tally: Tally::default() };
    if let Err(error) = on_streams(&lane, &mut receiving, &mut sending, &mut tally.flowed, drive, shared) {
        tally.errors.push(error);
        shared.control.stop();
    }
    lane.leave_together();
    let Receiving { producer, submitted, tally: received, inlet } = receiving;
    drop(inlet);
    let Sending { sender, outlet, held, tally: sent, .. } = sending;
    drop((sender, outlet, held));
    let errors = std::mem::take(&mut tally.errors);
    let flowed = tally.flowed;
    tally = Tally { flowed, ..sent };
    tally.rx = received.rx;
    tally.dropped_overload += received.dropped_overload;
    tally.cpu_ns += received.cpu_ns;
    tally.errors.extend(received.errors);
    // What the GPU says at the end is mostly the echo of an error that a thread saw first.
    if tally.errors.is_empty() {
        tally.errors.extend(errors);
    }

    // Reading from a GPU that was given up, for another lane's sake, would wait for ever.
    let report = match tally.errors.is_empty() && !lane.program.gpu().is_abandoned() {
        true => lane
            .report(submitted, tally.rx.packets, tally.rx.bytes)
            .map_err(|error| tally.errors.push(error))
            .ok(),
        false => None,
    };
    // The lane's hold on the ring goes, and what was submitted and never sent comes back.
    drop(lane);
    let rest = reclaim(producer);
    tally.dropped_unsent += rest.len() as u64;
    pool.give(&rest);
    (tally, report)
}

/// Everything between the first thing given to the GPU and the last it has let go of.
fn on_streams(
    lane: &Lane,
    receiving: &mut Receiving,
    sending: &mut Sending,
    flowed: &mut Option<(Instant, Instant)>,
    drive: &Drive,
    shared: &Shared<'_>,
) -> Result<()> {
    let gpu = lane.program.gpu();
    let open = || if lane.settings.urgent { gpu.urgent_stream() } else { gpu.stream() };
    let streams =
        (0..lane.settings.streams_for()).map(|_| open()).collect::<inlane_cuda::Result<Vec<_>>>()?;
    let ticks = lane.program.info.ticks();
    let side = ticks.then(open).transpose()?;
    let mut feed = Feed::prepare(lane, &streams, side.as_ref())?;
    lane.start_together();
    feed.begin()?;
    let mut worker =
        Worker { lane, streams: &streams, drive, shared, watch: Watch::new(lane.settings.watchdog) };
    let begun = Instant::now();
    if lane.settings.method == Method::Single {
        worker.alone(receiving, sending, &mut feed);
    } else {
        worker.together(receiving, sending, &mut feed);
    }
    *flowed = Some((begun, Instant::now()));
    receiving.producer.close();
    let clean =
        !shared.control.aborting() && receiving.tally.errors.is_empty() && sending.tally.errors.is_empty();
    let stuck = sending.tally.errors.iter().any(|error| matches!(error, Error::Stuck { .. }));
    let ended = feed.finish(receiving.submitted, clean, stuck).and_then(|()| match &side {
        // What is half assembled is delivered.
        Some(side) if !stuck => {
            tick(lane, side, u64::MAX)?;
            settle(lane, std::slice::from_ref(side), 0)
        }
        _ => Ok(()),
    });
    if ended.is_err() || !clean {
        // One that broke ends the others, in order.
        shared.control.stop();
    }
    // Streams and graphs go only then, too.
    lane.leave_together();
    ended
}

/// What the receiving side works with.
struct Receiving {
    inlet: Option<Inlet>,
    producer: Producer,
    submitted: u64,
    tally: Tally,
}

/// What the sending side works with.
struct Sending {
    sender: Sender,
    outlet: Option<Outlet>,
    held: Held,
    room: u32,
    freed: u64,
    bursts: u32,
    tally: Tally,
}

struct Worker<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    drive: &'a Drive,
    shared: &'a Shared<'a>,
    watch: Watch,
}

/// Ends the run when the thread that holds it panics.
struct AbortOnPanic<'a>(&'a crate::control::Control);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Worker<'_> {
    fn together(&mut self, receiving: &mut Receiving, sending: &mut Sending, feed: &mut Feed<'_>) {
        let Worker { lane, streams, drive, shared, .. } = *self;
        let named = |role: &str| std::thread::Builder::new().name(format!("inlane-{}-{role}", shared.index));
        let guarded = |work: &mut dyn FnMut()| {
            let guard = AbortOnPanic(shared.control);
            work();
            std::mem::forget(guard);
        };
        let outcomes = std::thread::scope(|scope| {
            let launcher = (lane.settings.method == Method::Split).then(|| Launcher::new(lane, streams));
            let receive = named("rx").spawn_scoped(scope, || {
                let mut launcher = launcher;
                guarded(&mut || receive(receiving, lane, launcher.as_mut(), drive, shared));
            });
            let send = named("tx").spawn_scoped(scope, || guarded(&mut || self.send(sending, feed)));
            if receive.is_err() || send.is_err() {
                // Before the other is waited for.
                shared.control.abort();
            }
            [("receiving", receive), ("sending", send)].map(|(thread, started)| match started {
                Ok(handle) => handle.join().err().map(|payload| Error::Panicked {
                    pipeline: shared.index,
                    thread,
                    message: panic_message(&*payload),
                }),
                Err(source) => {
                    let what = "start the threads of a pipeline".into();
                    Some(inlane_core::Error::Os { what, source }.into())
                }
            })
        });
        sending.tally.errors.extend(outcomes.into_iter().flatten());
        sending.end(shared);
    }

    fn alone(&mut self, receiving: &mut Receiving, sending: &mut Sending, feed: &mut Feed<'_>) {
        let shared = self.shared;
        let outcome = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name(format!("inlane-{}", shared.index))
                .spawn_scoped(scope, || {
                    let guard = AbortOnPanic(shared.control);
                    self.take_turns(receiving, sending, feed);
                    std::mem::forget(guard);
                })
                .map(|handle| handle.join())
        });
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(payload)) => {
                let message = panic_message(&*payload);
                sending.tally.errors.push(Error::Panicked {
                    pipeline: shared.index,
                    thread: "pipeline",
                    message,
                });
            }
            Err(source) => {
                let error = inlane_core::Error::Os { what: "start a thread".into(), source };
                sending.tally.errors.push(error.into());
            }
        }
        sending.end(shared);
    }

    /// Method `single`: nothing overlaps.
    fn take_turns(&mut self, receiving: &mut Receiving, sending: &mut Sending, feed: &mut Feed<'_>) {
        pin(self.shared.cores, 0);
        let mut launcher = Launcher::new(self.lane, self.streams);
        let Shared { control, clock, progress, .. } = *self.shared;
        let mut idle = Idle::default();
        while let Some(inlet) = receiving.inlet.as_mut() {
            match inlet.gather(control, clock) {
                Gathered::Burst => {
                    idle.busy();
                    let launched = receiving.submit(self.drive, self.shared, Some(&mut launcher));
                    let waited = launched.and_then(|_| self.wait_for_one(sending, feed));
                    if let Err(error) = waited {
                        control.abort();
                        sending.tally.errors.push(error);
                        break;
                    }
                    if sending.bursts.is_multiple_of(PUBLISH_EVERY) {
                        receiving.publish(progress);
                    }
                }
                Gathered::Nothing => {
                    idle.wait();
                    if idle.just_emptied() {
                        receiving.publish(progress);
                        sending.rest(self.shared);
                    }
                    if let Err(error) = feed.idle(sending.freed) {
                        control.abort();
                        sending.tally.errors.push(error);
                        break;
                    }
                }
                Gathered::Ended => break,
            }
        }
        receiving.end(self.shared);
    }

    fn wait_for_one(&mut self, sending: &mut Sending, feed: &mut Feed<'_>) -> Result<()> {
        let freed = sending.freed;
        loop {
            if !sending.next(self.drive, self.shared) || sending.freed != freed {
                return Ok(());
            }
            let name = self.lane.program.function.name();
            self.watch.nothing(freed, true, name, self.streams)?;
            feed.idle(freed)?;
        }
    }

    fn send(&mut self, sending: &mut Sending, feed: &mut Feed<'_>) {
        pin(self.shared.cores, 1);
        let control = self.shared.control;
        let mut idle = Idle::default();
        let mut beat = 0;
        let cpu_before = thread_cpu_ns();
        loop {
            let freed = sending.freed;
            if !sending.next(self.drive, self.shared) {
                break;
            }
            let outcome = if sending.freed != freed {
                idle.busy();
                if sending.bursts.is_multiple_of(PUBLISH_EVERY) {
                    beat += BEAT_EVERY;
                    self.lane.heartbeat(1, beat);
                }
                feed.done(sending.freed)
            } else if control.aborting() {
                break;
            } else {
                idle.wait();
                beat += 1;
                if beat % BEAT_EVERY == 0 {
                    self.lane.heartbeat(1, beat);
                }
                if idle.just_emptied() {
                    sending.rest(self.shared);
                }
                let name = self.lane.program.function.name();
                let waiting = self.lane.has_submitted(freed);
                self.watch.nothing(freed, waiting, name, self.streams).and_then(|()| feed.idle(freed))
            };
            if let Err(error) = outcome {
                control.abort();
                sending.tally.errors.push(error);
                break;
            }
        }
        sending.tally.cpu_ns += thread_cpu_ns() - cpu_before;
    }
}

fn receive(
    receiving: &mut Receiving,
    lane: &Lane,
    mut launcher: Option<&mut Launcher<'_>>,
    drive: &Drive,
    shared: &Shared<'_>,
) {
    pin(shared.cores, 0);
    let Shared { control, clock, progress, .. } = *shared;
    let mut idle = Idle::default();
    let mut beat = 0;
    while let Some(inlet) = receiving.inlet.as_mut() {
        match inlet.gather(control, clock) {
            Gathered::Burst => {
                match receiving.submit(drive, shared, launcher.as_deref_mut()) {
                    Ok(true) => idle.busy(),
                    Ok(false) if control.aborting() => break,
                    Ok(false) => {
                        idle.wait();
                        beat += 1;
                        if beat % BEAT_EVERY == 0 {
                            lane.heartbeat(0, beat);
                        }
                    }
                    Err(error) => {
                        control.abort();
                        receiving.tally.errors.push(error);
                        break;
                    }
                }
                if (receiving.submitted as u32).is_multiple_of(PUBLISH_EVERY) {
                    receiving.publish(progress);
                }
            }
            Gathered::Nothing => {
                idle.wait();
                beat += 1;
                if beat % BEAT_EVERY == 0 {
                    lane.heartbeat(0, beat);
                }
                if idle.just_emptied() {
                    receiving.publish(progress);
                }
            }
            Gathered::Ended => break,
        }
    }
    receiving.producer.close();
    receiving.end(shared);
}

impl Receiving {
    /// Submits the burst gathered, and launches its kernel where that is the method. False when the ring is full and the
    /// burst is still held.
    #[inline]
    fn submit(
        &mut self,
        drive: &Drive,
        shared: &Shared<'_>,
        launcher: Option<&mut Launcher<'_>>,
    ) -> Result<bool> {
        let Some(inlet) = self.inlet.as_mut() else { return Ok(false) };
        let queued = if drive.stages { shared.clock.raw() } else { 0 };
        let count = inlet.held.len();
        if self.producer.submit(inlet.held.as_slice(), Stamps { received: inlet.received, queued }) {
            inlet.held.release_all();
            inlet.room();
            self.submitted += 1;
            if let Some(launcher) = launcher {
                launcher.launch(count)?;
            }
            return Ok(true);
        }
        if drive.overload == Overload::Drop {
            self.tally.dropped_overload += inlet.held.give_back_from(0) as u64;
            return Ok(true);
        }
        inlet.no_room();
        Ok(false)
    }

    fn publish(&self, progress: &crate::control::Progress) {
        if let Some(inlet) = &self.inlet {
            inlet.publish(progress);
        }
    }

    fn end(&mut self, shared: &Shared<'_>) {
        let Some(mut inlet) = self.inlet.take() else { return };
        inlet.publish(shared.progress);
        self.tally.dropped_overload += inlet.held.give_back_from(0) as u64;
        let (counters, error) = inlet.finish();
        self.tally.rx = counters;
        self.tally.errors.extend(error.map(Error::from));
        self.tally.cpu_ns = thread_cpu_ns();
    }
}

impl Sending {
    /// Sends the next item, if it is complete. False when none will come.
    #[inline]
    fn next(&mut self, drive: &Drive, shared: &Shared<'_>) -> bool {
        let Some(outlet) = self.outlet.as_mut() else { return false };
        let done = match self.sender.poll(self.held.free_places(drive.burst), self.room) {
            Next::Item(done) => done,
            Next::Empty => return true,
            Next::Closed => return false,
        };
        let Done { forwarded, dropped, invalid, stamps } = done;
        let processed = if drive.stages { shared.clock.raw() } else { 0 };
        self.freed += 1;
        self.held.hold(forwarded + dropped);
        if dropped > 0 {
            self.tally.dropped_verdict += (dropped - invalid) as u64;
            self.tally.dropped_invalid += invalid as u64;
            self.held.give_back_from(forwarded);
        }
        outlet.send(&mut self.held, shared.control, shared.clock);
        if drive.stages {
            let times = [stamps.received, stamps.queued, processed, shared.clock.raw()];
            self.tally.stages.record(shared.clock, times, (forwarded + dropped) as u64);
        }
        self.bursts = self.bursts.wrapping_add(1);
        if self.bursts.is_multiple_of(PUBLISH_EVERY) {
            outlet.publish(shared.progress, self.tally.dropped_verdict);
        }
        true
    }

    /// Nothing to send for now.
    fn rest(&mut self, shared: &Shared<'_>) {
        if let Some(outlet) = self.outlet.as_mut() {
            outlet.flush(shared.control);
            outlet.publish(shared.progress, self.tally.dropped_verdict);
        }
    }

    fn end(&mut self, shared: &Shared<'_>) {
        if let Some(outlet) = self.outlet.take() {
            outlet.publish(shared.progress, self.tally.dropped_verdict);
            outlet.finish(shared.control, &mut self.tally);
        }
    }
}
