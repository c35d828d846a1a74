//! One pipeline: a queue received from, a packet function, queues sent to; and the threads that drive them.
//!
//! ```text
//! single   [ receive -> function -> send ]                                     one thread
//! split    [ receive, send ] <- ring -> n x [ function ]                       1 + n threads
//! ```

pub mod burst_buffer;
pub(crate) mod circulate;
pub(crate) mod rx_stage;
mod single;
mod split;
#[cfg(test)]
mod tests;
pub(crate) mod tx_stage;

use crate::control::{Control, Progress};
use crate::error::Error;
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::stats::LatencyHistogram;
use inlane_core::{Pool, Rx, Tx};
use inlane_function::Instance;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use single::run as run_single;
pub use split::run as run_split;

/// What to do with packets when what comes after is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overload {
    /// Wait; the port in front fills and counts what it misses.
    #[default]
    Wait,
    /// Drop the newest, and count them.
    Drop,
    /// Take fewer at a time, down to one, until there is room again; then as [`Overload::Wait`].
    Shrink,
}

impl FromStr for Overload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text {
            "wait" => Self::Wait,
            "drop" => Self::Drop,
            "shrink" => Self::Shrink,
            _ => return Err(Error::config(format!("--overload {text}"), "choose wait, drop or shrink")),
        })
    }
}

/// How a pipeline is driven.
#[derive(Clone, Debug)]
pub struct PipelineSettings {
    /// Most packets of an item.
    pub burst: usize,
    /// How long a partial burst may wait for more packets.
    pub flush: Duration,
    /// Items of the burst ring.
    pub slots: usize,
    /// What happens when the ring or the sending port is full.
    pub overload: Overload,
    /// Time to spend on each packet, beside the function.
    pub work: Duration,
    /// Take the time of every burst at every stage.
    pub stages: bool,
    /// Packets to receive at most.
    pub packets: u64,
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
        }
    }
}

/// The parts of one pipeline, before its threads run.
pub struct Pipeline {
    /// Where packets come from.
    pub rx: Box<dyn Rx>,
    /// Where they go: a verdict that names port n goes to the nth, any other to the first.
    pub txs: Vec<Box<dyn Tx>>,
    /// Where buffers come from and return to.
    pub pool: Arc<dyn Pool>,
    /// The packet function with its state, one an executor: for several workers they must share nothing.
    pub instances: Vec<Instance>,
}

/// What the threads of one pipeline share with the run.
pub struct PipelineContext<'a> {
    /// Ends the run.
    pub control: &'a Control,
    /// Counts for whoever looks.
    pub progress: &'a Progress,
    /// The run's clock.
    pub clock: &'a Clock,
    /// Which pipeline this is.
    pub index: usize,
    /// The core of each thread, first those that receive and send, then those that process; empty to leave them to the
    /// kernel.
    pub cores: &'a [usize],
}

/// What became of the packets of one pipeline.
#[derive(Default)]
pub struct Tally {
    /// As the receiving queue counted.
    pub rx: Counters,
    /// As the sending queues counted, added up.
    pub tx: Counters,
    /// Dropped because the ring or the sending port was full.
    pub dropped_overload: u64,
    /// Those of them that the sending port refused; the others found the ring full.
    pub refused_packets: u64,
    /// Dropped by verdict.
    pub dropped_verdict: u64,
    /// Dropped because verdict or length made no sense, or the port named does not exist.
    pub dropped_invalid: u64,
    /// Dropped because the sending port failed, or took no more at the end.
    pub dropped_unsent: u64,
    /// Processor time of its threads.
    pub cpu_ns: u64,
    /// Time in each stage.
    pub stages: StageHistograms,
    /// What its functions report.
    pub functions: Vec<Instance>,
    /// What went wrong, first things first.
    pub errors: Vec<Error>,
    /// From when to when packets flowed, where starting and ending the executor takes time of its own.
    pub flowed: Option<(Instant, Instant)>,
}

impl Tally {
    /// Adds the tally of another pipeline. When packets flowed is not added.
    pub(crate) fn add(&mut self, other: Tally) {
        self.rx += other.rx;
        self.tx += other.tx;
        self.dropped_overload += other.dropped_overload;
        self.refused_packets += other.refused_packets;
        self.dropped_verdict += other.dropped_verdict;
        self.dropped_invalid += other.dropped_invalid;
        self.dropped_unsent += other.dropped_unsent;
        self.cpu_ns += other.cpu_ns;
        self.stages.add(&other.stages);
        self.functions.extend(other.functions);
        self.errors.extend(other.errors);
    }
}

/// Time in each stage, each packet counted.
#[derive(Default)]
pub struct StageHistograms {
    /// Received to queued.
    pub queue: LatencyHistogram,
    /// Queued to processed.
    pub process: LatencyHistogram,
    /// Processed to sent.
    pub send: LatencyHistogram,
    /// Received to sent.
    pub total: LatencyHistogram,
}

impl StageHistograms {
    /// Notes a burst of `count` that was received, queued, processed and sent at these raw readings.
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

    /// Adds another pipeline's.
    pub fn add(&mut self, other: &Self) {
        self.queue.add(&other.queue);
        self.process.add(&other.process);
        self.send.add(&other.send);
        self.total.add(&other.total);
    }
}

/// Ends the run when the thread that holds it panics.
pub(crate) struct AbortOnPanic<'a>(pub(crate) &'a Control);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Spins for the forced work of `packets` packets.
#[inline]
fn work(clock: &Clock, each: Duration, packets: usize) {
    if each.is_zero() {
        return;
    }
    let (start, span) = (clock.raw(), each.as_nanos() as u64 * packets as u64);
    while clock.between_ns(start, clock.raw()) < span {
        std::hint::spin_loop();
    }
}

/// Binds the calling thread to the `index`th core given, if one was.
pub(crate) fn pin(cores: &[usize], index: usize) {
    let Some(&core) = cores.get(index) else { return };
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes within the set; cores come from this process's own affinity mask.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: passes the set with its size; 0 is the calling thread.
    let outcome = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if outcome != 0 {
        tracing::warn!("cannot bind a thread to core {core}: {}", std::io::Error::last_os_error());
    }
}

/// The text of a panic.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".into())
}
