//! A job that wants what the packet function runs on: what it costs the packets, and what they cost it.
//!
//! On a GPU: arithmetic on every multiprocessor, in blocks of moderate size or in such that take one each. On the CPU: a busy thread on each core that the
//! pipelines' threads are bound to, which the kernel's scheduler divides between the two.

use crate::config::{Compete, Config};
use crate::error::{Error, Result};
use crate::gpu::competing_kernel::CompetingKernel;
use crate::pipeline::pin;
use crate::result::Competitor;
use inlane_cuda::Gpu;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long it runs alone, to compare with.
const ALONE: Duration = Duration::from_millis(300);

/// A job, and how fast it is alone.
pub(crate) struct Rival {
    kind: Kind,
    alone: f64,
}

enum Kind {
    Gpu(CompetingKernel),
    /// A thread for each; bound to the core where one is named.
    Cpu(Vec<Option<usize>>),
}

impl Rival {
    /// Prepares it and measures it alone, before any pipeline runs; `cores` are those of the pipelines' `threads` threads, or none.
    ///
    /// # Errors
    /// When the GPU refuses.
    fn new(gpu: Option<&Arc<Gpu>>, large: bool, threads: usize, cores: &[usize]) -> Result<Self> {
        let kind = match gpu {
            Some(gpu) => Kind::Gpu(CompetingKernel::new(gpu, large)?),
            None => Kind::Cpu((0..threads).map(|thread| cores.get(thread).copied()).collect()),
        };
        let mut rival = Self { kind, alone: 0.0 };
        rival.alone = rival.during(|| std::thread::sleep(ALONE)).1?;
        Ok(rival)
    }

    /// Does `work` with the job beside it; what came of it, and the job's rounds a second meanwhile.
    fn during<T>(&self, work: impl FnOnce() -> T) -> (T, Result<f64>) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let job = scope.spawn(|| match &self.kind {
                Kind::Gpu(job) => job.run(&stop),
                Kind::Cpu(threads) => Ok(on_cores(threads, &stop)),
            });
            // Also when `work` panics: the scope waits for the job.
            let _stop = StopOnDrop(&stop);
            let done = work();
            stop.store(true, Ordering::Relaxed);
            let rounds = job.join().unwrap_or_else(|payload| {
                Err(Error::Panicked {
                    pipeline: 0,
                    thread: "competing",
                    message: crate::pipeline::panic_message(&*payload),
                })
            });
            (done, rounds)
        })
    }

    /// Does `work` with the job beside it; what the job kept of its speed.
    pub(crate) fn beside<T>(&self, work: impl FnOnce() -> T) -> (T, Result<Competitor>) {
        let (done, rounds) = self.during(work);
        let found = rounds.map(|beside| Competitor {
            what: match &self.kind {
                Kind::Gpu(job) => job.to_string(),
                Kind::Cpu(threads) => {
                    format!("arithmetic by {} threads on the pipelines' cores", threads.len())
                }
            },
            alone_per_second: self.alone,
            beside_per_second: beside,
            kept: beside / self.alone,
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

fn on_cores(threads: &[Option<usize>], stop: &AtomicBool) -> f64 {
    std::thread::scope(|scope| {
        let jobs: Vec<_> = threads
            .iter()
            .map(|core| {
                scope.spawn(move || {
                    pin(core.as_slice(), 0);
                    let (begun, mut rounds, mut x) = (Instant::now(), 0u64, 1.0f32);
                    while !stop.load(Ordering::Relaxed) {
                        for _ in 0..4096 {
                            x = black_box(x * 1.000_000_1 + 1e-7);
                        }
                        rounds += 1;
                    }
                    rounds as f64 / begun.elapsed().as_secs_f64()
                })
            })
            .collect();
        jobs.into_iter().filter_map(|job| job.join().ok()).sum()
    })
}

/// The job of a run, where one was asked for.
///
/// # Errors
/// As for [`Rival::new`].
pub(crate) fn rival(
    config: &Config,
    gpu: Option<&Arc<Gpu>>,
    pipelines: usize,
    cores: &[usize],
) -> Result<Option<Rival>> {
    let large = match config.compete {
        Compete::None => return Ok(None),
        Compete::Compute => false,
        Compete::Large => true,
    };
    Rival::new(gpu, large, config.threads() * pipelines, cores).map(Some)
}
