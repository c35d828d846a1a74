//! One pipeline on the CPU: a receive queue, a packet function, transmit queues, and their threads.
//!
//! ```text
//! single   [ receive -> function -> send ]                                     one thread
//! split    [ receive, send ] <- burst ring -> n x [ function ]                 1 + n threads
//! ```

mod burst_buffer;
pub(crate) mod circulate;
mod publication;
mod rx_stage;
mod single;
mod split;
#[cfg(test)]
mod tests;
mod tx_stage;

use crate::control::{Control, Idle};
use crate::counters::QueueCounters;
use crate::error::Error;
use inlane_core::clock::{Clock, ThreadTime};
use inlane_core::load::{self, Member, Meter, Pace};
use inlane_core::port::Counters;
use inlane_core::setting::Choice;
use inlane_core::stats::LatencyHistogram;
use inlane_core::{Pool, Rx, Tx};
use inlane_function::Instance;
use std::any::Any;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

pub use burst_buffer::BurstBuffer;
pub use single::run as run_single;
pub use split::run as run_split;

/// What the pipeline does when the burst ring or the sending port is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overload {
    /// Wait. Meanwhile, the receive port fills up and counts the packets that it loses.
    #[default]
    Wait,
    /// Drop the newest packets and count them.
    Drop,
    /// Wait, and halve the size of the next bursts, down to one packet. The size doubles again once there is
    /// room.
    Shrink,
}

impl Choice for Overload {
    const CHOICES: &[(Self, &str, &str)] = &[
        (Overload::Wait, "wait", "Wait. The receive port fills and counts missed packets"),
        (Overload::Drop, "drop", "Drop and count the newest packets"),
        (Overload::Shrink, "shrink", "Receive smaller bursts until there is room"),
    ];
}

/// The settings of each pipeline.
#[derive(Clone, Debug)]
pub struct PipelineSettings {
    /// The most packets of a burst.
    pub burst: usize,
    /// How long a partial burst may wait for more packets.
    pub flush: Duration,
    /// The number of slots of the burst ring, a power of two.
    pub slots: usize,
    /// What happens when the burst ring or the sending port is full.
    pub overload: Overload,
    /// The time that a worker spins for each packet, to simulate work.
    pub work: Duration,
    /// True if each burst is timed at every stage. Otherwise the stage histograms stay empty.
    pub stages: bool,
    /// The number of packets to receive; `u64::MAX` for no limit.
    pub packets: u64,
    /// The longest time that the packet function may take for a burst on the CPU, and a GPU for an item. After that
    /// the run cannot go on: see [`Control::set_on_stuck`](crate::control::Control::set_on_stuck).
    pub watchdog: Duration,
}

impl Default for PipelineSettings {
    fn default() -> Self {
        Self {
            burst: 64,
            flush: Duration::ZERO,
            slots: 64,
            overload: Overload::Wait,
            work: Duration::ZERO,
            stages: false,
            packets: u64::MAX,
            watchdog: Duration::from_secs(2),
        }
    }
}

/// The parts of a pipeline whose threads have not started yet.
pub struct Pipeline {
    /// The receive queue.
    pub rx: Box<dyn Rx>,
    /// The transmit queues. A verdict for port n selects element n. All other forwarded packets go to element
    /// 0.
    pub txs: Vec<Box<dyn Tx>>,
    /// The pool that buffers come from and return to.
    pub pool: Arc<dyn Pool>,
    /// The packet function with its state: one instance per worker. Empty if a GPU runs the function.
    pub instances: Vec<Instance>,
}

/// The flags, meters and clock that a pipeline's threads share with the rest of the run.
pub struct PipelineContext<'a> {
    pub(crate) control: &'a Control,
    meters: &'a [Arc<Meter>],
    clock: &'a Clock,
    pub(crate) index: usize,
    cores: &'a [usize],
    member: Mutex<Option<Member<'a>>>,
    pace: Option<&'a Pace>,
    counters: Option<&'a QueueCounters>,
}

impl<'a> PipelineContext<'a> {
    /// Creates the context of the pipeline with number `index`, which starts at once: see
    /// [`PipelineContext::starting_with`].
    ///
    /// `meters` has a meter for each thread of the pipeline: the dispatching thread, then the workers or the feeder.
    /// `cores` has the cores to bind these threads to, in the same order. If it is empty, threads are not bound.
    ///
    /// # Panics
    /// If `meters` is empty.
    pub fn new(
        control: &'a Control,
        meters: &'a [Arc<Meter>],
        clock: &'a Clock,
        index: usize,
        cores: &'a [usize],
    ) -> Self {
        assert!(!meters.is_empty(), "the dispatching thread needs a meter");
        Self { control, meters, clock, index, cores, member: Mutex::default(), pace: None, counters: None }
    }

    /// Makes the pipeline wait at the start line of which `member` is a membership.
    #[must_use]
    pub fn starting_with(self, member: Member<'a>) -> Self {
        Self { member: Mutex::new(Some(member)), ..self }
    }

    /// Makes workers and the feeder sleep while `pace` parks the load. The dispatching thread sleeps in its receive queue.
    #[must_use]
    pub fn parked_by(self, pace: &'a Pace) -> Self {
        Self { pace: Some(pace), ..self }
    }

    /// Makes the pipeline publish the counters of its queues, too.
    #[must_use]
    pub(crate) fn counted_by(self, counters: &'a QueueCounters) -> Self {
        Self { counters: Some(counters), ..self }
    }

    /// Sleeps for a millisecond if the load is parked and the calling thread has long had no work. Otherwise a thread that
    /// polls the ring would take a processor from other loads.
    #[inline]
    pub(crate) fn sleep_if_parked(&self, idle: &Idle) {
        if idle.yields() && self.pace.is_some_and(|pace| pace.get() == 0.0) && !self.control.stopping() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Blocks until all pipelines of the run are ready. If the start was cancelled, stops this run, so the pipeline ends
    /// before it receives packets.
    pub(crate) fn wait_for_start(&self) {
        let member = self.member.lock().unwrap_or_else(PoisonError::into_inner).take();
        if member.is_some_and(|member| member.ready().is_none()) {
            self.control.stop();
        }
    }

    /// Returns the meter of the dispatching thread.
    pub(crate) fn meter(&self) -> &'a Meter {
        &self.meters[0]
    }

    /// Returns the meter of the worker with number `index`, or of the feeder if `index` is 0. `None` if the context was
    /// made without it.
    pub(crate) fn helper_meter(&self, index: usize) -> Option<&'a Meter> {
        self.meters.get(1 + index).map(|meter| &**meter)
    }

    /// Starts a thread of the pipeline. `thread` is its index in the meters and cores. `role` ends its name.
    pub(crate) fn spawn<'scope, T: Send + 'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        thread: usize,
        role: &str,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        let unread = Arc::default();
        let meter = self.meters.get(thread).unwrap_or(&unread);
        let name = format!("inlane-{}{role}", self.index);
        load::spawn(scope, name, self.cores.get(thread).copied(), meter, body)
    }
}

/// The counts of one pipeline.
#[derive(Default)]
pub struct Tally {
    /// The receive queue's counters.
    pub rx: Counters,
    /// The transmit queues' counters, added up.
    pub tx: Counters,
    /// Packets dropped because the burst ring or the sending port was full.
    pub dropped_overload: u64,
    /// The packets of `dropped_overload` that the sending port refused. The others were dropped because the
    /// ring was full.
    pub refused_packets: u64,
    /// Packets dropped by verdict.
    pub dropped_verdict: u64,
    /// Packets dropped because the verdict, the length or the verdict's port was invalid.
    pub dropped_invalid: u64,
    /// Packets dropped because the sending port failed or took no more at the end, or because the run was
    /// aborted.
    pub dropped_unsent: u64,
    /// The processor time of the pipeline's threads.
    pub time: ThreadTime,
    /// The time that packets spent in each stage.
    pub stages: StageHistograms,
    /// The sampled work of the dispatching thread.
    pub work: WorkTicks,
    /// The packet function's instances, whose state the function's report is read from.
    pub functions: Vec<Instance>,
    /// The errors of the pipeline's threads, in the order in which they occurred.
    pub errors: Vec<Error>,
    /// When packets began to flow, and when the last was sent. `None` if the pipeline failed early.
    pub flowed: Option<(Instant, Instant)>,
}

impl Tally {
    /// Creates the tally of a pipeline that failed.
    pub(crate) fn failed(error: Error) -> Self {
        Self { errors: vec![error], ..Self::default() }
    }

    /// Returns the number of packets dropped before the sending stage.
    #[inline]
    fn dropped(&self) -> u64 {
        self.dropped_overload + self.dropped_verdict + self.dropped_invalid
    }

    /// Adds the tally of another pipeline. Leaves `flowed` unchanged.
    pub(crate) fn add(&mut self, other: Tally) {
        // Every field is named, so a new one cannot be forgotten here.
        let Tally {
            rx,
            tx,
            dropped_overload,
            refused_packets,
            dropped_verdict,
            dropped_invalid,
            dropped_unsent,
            time,
            stages,
            work,
            functions,
            errors,
            flowed: _,
        } = other;
        self.rx += rx;
        self.tx += tx;
        self.dropped_overload += dropped_overload;
        self.refused_packets += refused_packets;
        self.dropped_verdict += dropped_verdict;
        self.dropped_invalid += dropped_invalid;
        self.dropped_unsent += dropped_unsent;
        self.time += time;
        self.stages.add(&stages);
        self.work.add(&work);
        self.functions.extend(functions);
        self.errors.extend(errors);
    }
}

/// How long a sample of bursts took to receive, process and send, in ticks of the raw clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkTicks {
    receive: u64,
    function: u64,
    send: u64,
}

/// The shares of a dispatching thread's work, which add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkShares {
    /// The share of receiving packets.
    pub receive: f64,
    /// The share of the packet function and of added work.
    pub function: f64,
    /// The share of sending packets.
    pub send: f64,
}

impl WorkTicks {
    /// Adds a burst. The array holds the raw clock readings before it was received, when it was received, when it
    /// was processed, and when it was sent.
    #[inline]
    fn record(&mut self, [begun, received, processed, sent]: [u64; 4]) {
        self.receive += received.saturating_sub(begun);
        self.function += processed.saturating_sub(received);
        self.send += sent.saturating_sub(processed);
    }

    fn add(&mut self, other: &Self) {
        self.receive += other.receive;
        self.function += other.function;
        self.send += other.send;
    }

    /// Returns the shares. `None` if no burst was recorded.
    pub fn shares(&self) -> Option<WorkShares> {
        let all = (self.receive + self.function + self.send) as f64;
        let share = |ticks: u64| ticks as f64 / all;
        (all > 0.0).then(|| WorkShares {
            receive: share(self.receive),
            function: share(self.function),
            send: share(self.send),
        })
    }
}

/// The nanoseconds that packets spent in each stage. All packets of a burst have the same times.
#[derive(Default)]
pub struct StageHistograms {
    /// The time from receiving packets to submitting them.
    pub queue: LatencyHistogram,
    /// The time from submitting packets until they are processed.
    pub process: LatencyHistogram,
    /// The time from the end of processing until packets are sent.
    pub send: LatencyHistogram,
    /// The time from receiving packets until they are sent.
    pub total: LatencyHistogram,
}

impl StageHistograms {
    /// Records a burst of `count` packets. The array holds the raw clock readings of the times at which the
    /// burst was received, queued, processed and sent.
    pub(crate) fn record(
        &mut self,
        clock: &Clock,
        [received, queued, processed, sent]: [u64; 4],
        count: u64,
    ) {
        self.queue.record(clock.between_ns(received, queued), count);
        self.process.record(clock.between_ns(queued, processed), count);
        self.send.record(clock.between_ns(processed, sent), count);
        self.total.record(clock.between_ns(received, sent), count);
    }

    /// Adds the histograms of another pipeline.
    pub fn add(&mut self, other: &Self) {
        self.queue.add(&other.queue);
        self.process.add(&other.process);
        self.send.add(&other.send);
        self.total.add(&other.total);
    }
}

/// Aborts the run when it is dropped. If a thread panics, other threads would otherwise wait for it. Call
/// `forget` on this value at a normal end.
pub(crate) struct AbortOnPanic<'a>(pub(crate) &'a Control);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Spins for the time `each`, multiplied by the number of packets. This simulates work on the packets.
#[inline]
fn spin_per_packet(clock: &Clock, each: Duration, packets: usize) {
    if each.is_zero() {
        return;
    }
    let (start, span) = (clock.raw(), each.as_nanos() as u64 * packets as u64);
    while clock.between_ns(start, clock.raw()) < span {
        std::hint::spin_loop();
    }
}

/// Returns the error for a thread of pipeline `pipeline` that panicked.
pub(crate) fn panicked(pipeline: usize, thread: &'static str, payload: Box<dyn Any + Send>) -> Error {
    Error::Panicked { pipeline, thread, message: panic_message(&*payload) }
}

/// Returns the error for threads that the system did not start.
pub(crate) fn thread_failed(source: std::io::Error) -> Error {
    let source = inlane_core::error::NotStarted::of(source);
    inlane_core::Error::Os { what: "cannot start the threads of a pipeline".into(), source }.into()
}

/// Returns the message of a panic.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".into())
}
