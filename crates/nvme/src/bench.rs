//! Measures a namespace with fio's workloads.
//!
//! Each job is a thread with its own [`Session`] and its own part of the workload's range. With verification,
//! each written block carries its offset, a sequence number and a checksum. Blocks are checked when they are
//! read. At the end, all written blocks are read back.

mod block;
mod job;
mod result;
mod workload;

pub use result::{IoResult, LatencyPercentile};
pub use workload::{Pattern, Workload};

use crate::initiator::{Session, SessionOptions};
use crate::{Error, Result};
use inlane_result::PathExplanation;
use job::{Job, JobResult};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The counters of a running bench.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    /// True once a job has completed its operations. The job then reads back the blocks that it wrote.
    checking: AtomicBool,
}

/// The progress of a running bench: completed reads and writes, and whether a job has begun to read back its
/// blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BenchCounts {
    /// Completed reads.
    pub reads: u64,
    /// Completed writes.
    pub writes: u64,
    /// True once a job has completed its operations. It then reads back the blocks that it wrote, to check
    /// them.
    pub checking: bool,
}

impl Counters {
    fn progress(&self) -> BenchCounts {
        BenchCounts {
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            checking: self.checking.load(Ordering::Relaxed),
        }
    }
}

/// Runs a workload. Returns a row for its reads, a row for its writes, or both. Calls `progress` about ten
/// times a second. Ends early if `stop` is set.
///
/// # Errors
/// Invalid workloads, and failures to connect. An error after the jobs have started is in the rows.
pub fn run(
    workload: &Workload,
    options: &SessionOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(Duration, BenchCounts),
) -> Result<Vec<IoResult>> {
    let sessions: Vec<Session> = (0..workload.jobs).map(|_| Session::open(options)).collect::<Result<_>>()?;
    let namespace = *sessions[0].namespace();
    let parts = workload.parts(&namespace)?;
    let mut jobs = Vec::new();
    for ((session, part), index) in sessions.into_iter().zip(parts).zip(0_u64..) {
        jobs.push(Job::new(session, workload, part, index)?);
    }
    let counters = Counters::default();
    let start_line = Barrier::new(jobs.len() + 1);
    let outcomes: Vec<JobResult> = std::thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .into_iter()
            .map(|job| {
                let (counters, start_line) = (&counters, &start_line);
                scope.spawn(move || {
                    start_line.wait();
                    job.run(counters, stop)
                })
            })
            .collect();
        start_line.wait();
        let started = Instant::now();
        while !threads.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            progress(started.elapsed(), counters.progress());
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, JobResult>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let path = path(options, &outcomes);
    Ok(result::rows(workload, &namespace, outcomes, &path))
}

/// Describes the path between host and target, for the result.
fn path(options: &SessionOptions, outcomes: &[JobResult]) -> PathExplanation {
    let digests = match options.connect.queue.digests.bits() {
        0 => "without digests",
        1 => "with header digests",
        2 => "with data digests",
        _ => "with header and data digests",
    };
    let polls = match options.connect.queue.spin.as_micros() {
        0 => String::new(),
        us => format!("; polls for {us} us before it sleeps"),
    };
    let asked = u32::from(options.io_queues);
    let fewer = match outcomes.iter().map(|outcome| outcome.io_queues).min() {
        Some(granted) if granted < asked => format!("; the target granted {granted} of {asked} I/O queues"),
        _ => String::new(),
    };
    let target = outcomes.first().map_or_else(String::new, |outcome| outcome.path.clone());
    PathExplanation {
        name: "tcp".into(),
        hops: vec![vec!["host".into(), "kernel TCP sockets".into(), target]],
        reason: format!("NVMe over TCP {digests}; data is received into the commands' buffers{polls}{fewer}"),
        not_taken: Vec::new(),
    }
}

/// Returns an error for an invalid setting.
fn invalid(what: impl std::fmt::Display, why: impl Into<String>) -> Error {
    Error::Invalid { what: what.to_string(), why: why.into() }
}
