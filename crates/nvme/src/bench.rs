//! Measures a namespace with fio's workloads.
//!
//! Each job is a thread with its own [`Session`] and its own part of the workload's range. With verification,
//! each written block carries its offset, a sequence number and a checksum. Blocks are checked when they are
//! read. At the end, all written blocks are read back.
//!
//! A [`Bench`] is a [`Load`], so it can run beside other loads and follows a pace. [`measure`] runs one alone, and a [`Series`] several with
//! different block sizes and depths.

mod block;
mod job;
mod result;
mod series;
#[cfg(test)]
mod tests;
mod workload;

pub use block::{Wrong, WrongBlock};
pub use result::{IoResult, LatencyPercentile, Repeats};
pub use series::{Series, SeriesEvent};
pub use workload::{Pattern, Workload};

use crate::initiator::{NamespaceInfo, Session, SessionOptions};
use crate::{Error, Result};
use inlane_core::load::{self, Load, LoadError, Meter, Pace, Resource, Running, Use, UseSource};
use inlane_result::{PathExplanation, RowError};
use job::{Control, Job, JobResult};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often [`measure`] looks at the time and at the request to stop.
const TICK: Duration = Duration::from_millis(20);

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

/// The meters of a job.
#[derive(Clone, Default)]
struct Meters {
    /// Counts reads, and has the times of the job's thread.
    reads: Arc<Meter>,
    writes: Arc<Meter>,
}

/// A connected workload. It has the results of its run afterwards.
pub struct Bench {
    workload: Arc<Workload>,
    options: SessionOptions,
    namespace: NamespaceInfo,
    pace: Arc<Pace>,
    jobs: Vec<Job>,
    meters: Vec<Meters>,
    /// True once a job reads its blocks back.
    checking: Arc<AtomicBool>,
    /// Ends the jobs at once: commands in flight are given up, and blocks are not read back.
    interrupt: Arc<AtomicBool>,
    results: Vec<JobResult>,
}

impl Bench {
    /// Connects all jobs and allocates their buffers. Nothing moves before [`measure`] or [`Load::run`].
    ///
    /// # Errors
    /// If the workload does not fit the namespace, or a connection fails.
    pub fn open(workload: &Workload, options: &SessionOptions) -> Result<Self> {
        let sessions: Vec<Session> =
            (0..workload.jobs).map(|_| Session::open(options)).collect::<Result<_>>()?;
        let namespace = *sessions[0].namespace();
        let parts = workload.parts(&namespace)?;
        let (workload, pace) = (Arc::new(workload.clone()), Arc::<Pace>::default());
        let meters = vec![(); sessions.len()].into_iter().map(|()| Meters::default()).collect::<Vec<_>>();
        let mut jobs = Vec::new();
        for (index, ((session, part), meters)) in sessions.into_iter().zip(parts).zip(&meters).enumerate() {
            jobs.push(Job::new(session, workload.clone(), part, index, meters.clone(), pace.clone())?);
        }
        Ok(Self {
            workload,
            options: options.clone(),
            namespace,
            pace,
            jobs,
            meters,
            checking: Arc::default(),
            interrupt: Arc::new(AtomicBool::new(true)),
            results: Vec::new(),
        })
    }

    /// Returns a row for the reads, a row for the writes, or both. They have what was done before an error or a stop, and
    /// the error.
    pub fn rows(&self) -> Vec<IoResult> {
        result::rows(&self.workload, &self.namespace, &self.results, &self.path())
    }

    /// Describes the path between host and target.
    fn path(&self) -> PathExplanation {
        let digests = self.options.connect.queue.digests.bits();
        let digests = ["without", "with header", "with data", "with header and data"][usize::from(digests)];
        let polls = match self.options.connect.queue.spin.as_micros() {
            0 => String::new(),
            us => format!("; polls for {us} us before it sleeps"),
        };
        let asked = u32::from(self.options.io_queues);
        let fewer = match self.results.iter().map(|result| result.io_queues).min() {
            Some(granted) if granted < asked => {
                format!("; the target granted {granted} of {asked} I/O queues")
            }
            _ => String::new(),
        };
        let target = self.results.first().map_or_else(String::new, |result| result.path.clone());
        PathExplanation {
            name: "tcp".into(),
            hops: vec![vec!["host".into(), "kernel TCP sockets".into(), target]],
            reason: format!(
                "NVMe over TCP {digests} digests; data is received into the commands' buffers{polls}{fewer}"
            ),
            not_taken: Vec::new(),
        }
    }
}

impl Load for Bench {
    fn name(&self) -> String {
        format!("nvme {} of {}", self.workload.pattern, self.options.connect.subsystem)
    }

    fn meters(&self) -> Vec<Arc<Meter>> {
        self.meters.iter().flat_map(|meters| [meters.reads.clone(), meters.writes.clone()]).collect()
    }

    fn pace(&self) -> Arc<Pace> {
        self.pace.clone()
    }

    fn uses(&self) -> Vec<Use> {
        let peer = Resource::Peer(self.options.connect.subsystem.clone());
        let cores = self.workload.cores.iter().map(|core| (Resource::Core(*core), None));
        [(peer, Some(1.0))]
            .into_iter()
            .chain(cores)
            .map(|(resource, per_byte)| Use { resource, per_byte, source: UseSource::Computed })
            .collect()
    }

    fn threads(&self) -> usize {
        self.meters.len()
    }

    /// Runs the jobs. After a stop, commands in flight have 50 ms to complete, and are given up then.
    fn run(&mut self, run: &Running) -> Result<(), LoadError> {
        let members = run.start.members(self.jobs.len());
        let control = Control::new(run, &self.interrupt, &self.checking);
        let jobs = std::mem::take(&mut self.jobs);
        let cores = &self.workload.cores;
        self.results = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, (job, member)) in jobs.into_iter().zip(members).enumerate() {
                let core = cores.get(index % cores.len().max(1)).copied();
                let (control, meter) = (&control, self.meters[index].reads.clone());
                let body = move || job.run(member, control);
                threads.push(load::spawn(scope, format!("nvme-{index}"), core, &meter, body));
            }
            let joined = threads.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(error) => {
                    control.fail();
                    JobResult { error: Some(RowError::new(Error::no_thread(error))), ..JobResult::default() }
                }
            });
            joined.collect()
        });
        match self.results.iter().find_map(|result| result.error.clone()) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }
}

/// Runs a bench alone, for `duration` or until its workload is done. Calls `progress` about 50 times a second with the
/// elapsed time and a function that counts. Returns the rows, also after an error: it is in the rows.
///
/// At the end, commands in flight complete and written blocks are read back. If `stop` is set, the run ends at once
/// without that.
pub fn measure(
    bench: &mut Bench,
    duration: Option<Duration>,
    stop: &AtomicBool,
    mut progress: impl FnMut(Duration, &dyn Fn() -> BenchCounts),
) -> Vec<IoResult> {
    let run = Running::new(bench.threads());
    let (meters, checking, interrupt) =
        (bench.meters.clone(), bench.checking.clone(), bench.interrupt.clone());
    interrupt.store(false, Ordering::Relaxed);
    let counts = || {
        let sum = |of: fn(&Meters) -> &Meter| meters.iter().map(|it| of(it).read().operations).sum();
        let checking = checking.load(Ordering::Relaxed);
        BenchCounts { reads: sum(|it| &it.reads), writes: sum(|it| &it.writes), checking }
    };
    let outcomes = load::run_together(&mut [&mut *bench], &run, |_| {
        if stop.load(Ordering::Relaxed) {
            interrupt.store(true, Ordering::Relaxed);
            run.stop();
        }
        let Some(elapsed) = run.start.started().map(|started| started.elapsed()) else { return TICK };
        progress(elapsed, &counts);
        match duration.map(|duration| duration.saturating_sub(elapsed)) {
            Some(Duration::ZERO) => {
                run.stop();
                TICK
            }
            left => left.map_or(TICK, |left| left.min(TICK)),
        }
    });
    let mut rows = bench.rows();
    if let Some(Err(error)) = outcomes.into_iter().next() {
        let error = RowError::from(error);
        rows.iter_mut().for_each(|row| row.error = Some(error.clone()));
    }
    rows
}
