//! A job that competes with the pipelines for the device that runs the packet function.
//!
//! | device | job |
//! | --- | --- |
//! | GPU | arithmetic on every multiprocessor, in moderate blocks, or in blocks that each occupy a whole multiprocessor |
//! | CPU | a busy thread on each core of the pipelines |

use crate::config::{Compete, Config};
use crate::error::{Error, Result};
use crate::gpu::{CompetingKernel, Gpu};
use crate::pipeline::panic_message;
use crate::result::Competitor;
use inlane_core::load;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the job is measured while it runs alone.
const ALONE: Duration = Duration::from_millis(300);

/// A competing job, and the speed that it reached before the pipelines ran.
pub(crate) struct CompetingJob {
    kind: Kind,
    alone_per_second: f64,
}

enum Kind {
    Gpu(CompetingKernel),
    /// The core of each thread, or `None` if the thread is not bound.
    Cpu(Vec<Option<usize>>),
}

impl CompetingJob {
    /// Prepares the competing job and measures it alone for 300 ms. `cores` are the cores to which the
    /// threads of all `pipelines` are bound; empty if they are not bound. Returns `None` if the settings
    /// request no competing job.
    ///
    /// # Errors
    /// If the GPU refuses the job.
    pub(crate) fn new(
        config: &Config,
        gpu: Option<&Arc<Gpu>>,
        pipelines: usize,
        cores: &[usize],
    ) -> Result<Option<Self>> {
        let large = match config.compete {
            Compete::None => return Ok(None),
            Compete::Compute => false,
            Compete::Large => true,
        };
        let threads = config.executor.threads() * pipelines;
        let kind = match gpu {
            Some(gpu) => Kind::Gpu(CompetingKernel::new(gpu, large)?),
            None => Kind::Cpu((0..threads).map(|thread| cores.get(thread).copied()).collect()),
        };
        let mut job = Self { kind, alone_per_second: 0.0 };
        job.alone_per_second = job.rounds_during(|| std::thread::sleep(ALONE)).1?;
        Ok(Some(job))
    }

    /// Runs the job while `work` runs. Returns the result of `work`, and the job's rounds per second.
    fn rounds_during<T>(&self, work: impl FnOnce() -> T) -> (T, Result<f64>) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let job = scope.spawn(|| match &self.kind {
                Kind::Gpu(job) => job.run(&stop),
                Kind::Cpu(threads) => Ok(compute_on_cores(threads, &stop)),
            });
            // Stop the job even if `work` panics. Otherwise, the scope would wait forever for the job.
            let guard = StopOnDrop(&stop);
            let done = work();
            drop(guard);
            let rounds = job.join().unwrap_or_else(|payload| {
                let message = panic_message(&*payload);
                Err(Error::Panicked { pipeline: 0, thread: "competing", message })
            });
            (done, rounds)
        })
    }

    /// Runs the job while `work` runs. Returns the result of `work`, and the job's speed compared with its
    /// speed alone.
    pub(crate) fn run_beside<T>(&self, work: impl FnOnce() -> T) -> (T, Result<Competitor>) {
        let (done, rounds) = self.rounds_during(work);
        let found = rounds.map(|beside| Competitor {
            what: match &self.kind {
                Kind::Gpu(job) => job.to_string(),
                Kind::Cpu(threads) => {
                    format!("arithmetic by {} threads on the pipelines' cores", threads.len())
                }
            },
            alone_per_second: self.alone_per_second,
            beside_per_second: beside,
            kept: beside / self.alone_per_second,
        });
        (done, found)
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Computes on one thread per entry of `threads` until `stop` is set. Returns the rounds per second of all
/// threads together. A round has 4096 operations.
fn compute_on_cores(threads: &[Option<usize>], stop: &AtomicBool) -> f64 {
    std::thread::scope(|scope| {
        let compute = |core: &Option<usize>| {
            load::bind(*core);
            let (begun, mut rounds, mut x) = (Instant::now(), 0u64, 1.0f32);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..4096 {
                    x = black_box(x * 1.000_000_1 + 1e-7);
                }
                rounds += 1;
            }
            rounds as f64 / begun.elapsed().as_secs_f64()
        };
        let jobs: Vec<_> = threads.iter().map(|core| scope.spawn(move || compute(core))).collect();
        jobs.into_iter().filter_map(|job| job.join().ok()).sum()
    })
}
