//! The competing job: a kernel that computes on every multiprocessor of the GPU while an executor runs.
//!
//! The job consists of short blocks of 0.2 ms. A launch has eight times as many blocks as the GPU holds at
//! once, and two launches are in flight. The executor's new kernels wait until some blocks end. The speed of
//! the job shows how much of the GPU the executor leaves free.

use super::ceilings::load;
use crate::error::{Error, Result};
use inlane_core::Region;
use inlane_cuda::{Gpu, Kernel, LaunchConfig, Stream, argument};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time that each block of the competing kernel computes before it ends.
const SLICE: Duration = Duration::from_micros(200);
/// The number of blocks in a launch, divided by the number of blocks that the GPU holds at once.
const WAVES: u32 = 8;
/// The time between two checks whether a launch has ended. Meanwhile the GPU stays busy, because a second
/// launch is in flight.
const CHECK_EVERY: Duration = Duration::from_micros(100);
/// The longest that a launch may take after `stop` was set. It takes longer only if another kernel occupies
/// the GPU.
const LIMIT: Duration = Duration::from_secs(10);

/// The competing job on one GPU.
pub(crate) struct CompetingKernel {
    kernel: Kernel,
    /// The two launches in flight. For each, a stream, and pinned memory in which each block stores how many
    /// rounds of arithmetic it has completed.
    launches: [(Stream, Region); 2],
    shape: LaunchConfig,
    large: bool,
}

impl CompetingKernel {
    /// Compiles and loads the kernel. Call this before a persistent kernel runs. If `large` is set, each
    /// block uses all shared memory, so it cannot share a multiprocessor with a block of the executor.
    ///
    /// # Errors
    /// If the kernel does not compile, or if a driver call fails.
    pub(crate) fn new(gpu: &Arc<Gpu>, large: bool) -> Result<Self> {
        let kernel = load(gpu)?.kernel("bare_compete")?;
        let (threads, shared_bytes) =
            if large { (1024, gpu.max_shared_bytes_per_block()?) } else { (256, 0) };
        if large {
            // The kernel declares no static shared memory, so its launches may use all shared memory that a
            // block can have.
            kernel.set_max_dynamic_shared_bytes(shared_bytes)?;
        }
        let blocks = kernel.max_resident_blocks(threads, shared_bytes)? * WAVES;
        let launch = || -> Result<_> { Ok((gpu.stream()?, gpu.pinned(blocks as usize * 8)?)) };
        let shape = LaunchConfig { blocks, threads, shared_bytes, cooperative: false };
        Ok(Self { launches: [launch()?, launch()?], kernel, shape, large })
    }

    /// Runs the competing job until `stop` is set. Returns the rounds of arithmetic per second, summed over
    /// all blocks.
    ///
    /// # Errors
    /// If a driver call fails, or if a kernel on this GPU is known never to end. Also if a launch has not
    /// ended 10 s after `stop` was set.
    pub(crate) fn run(&self, stop: &AtomicBool) -> Result<f64> {
        let begun = Instant::now();
        let mut rounds = 0;
        for launch in &self.launches {
            self.launch(launch)?;
        }
        for launch in self.launches.iter().cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            rounds += self.wait(launch, stop)?;
            self.launch(launch)?;
        }
        for launch in &self.launches {
            rounds += self.wait(launch, stop)?;
        }
        Ok(rounds as f64 / begun.elapsed().as_secs_f64())
    }

    fn launch(&self, (stream, counts): &(Stream, Region)) -> Result<()> {
        let (words, slice) = (counts.address(), SLICE.as_nanos() as u64);
        // SAFETY: the arguments are the kernel's parameters, with a word per block. `run` waits for every
        // launch, or else the GPU is abandoned and its memory never freed.
        unsafe { self.kernel.launch(stream, self.shape, [argument(&words), argument(&slice)])? };
        Ok(())
    }

    /// Waits until a launch has ended, and returns its rounds of arithmetic. If the launch has not ended
    /// within `LIMIT` after `stop` was set, abandons the GPU and returns an error.
    fn wait(&self, (stream, counts): &(Stream, Region), stop: &AtomicBool) -> Result<u64> {
        let gpu = stream.gpu();
        let why = match wait_for_end(|| Ok(stream.is_idle()?), || gpu.is_abandoned(), stop, LIMIT)? {
            LaunchEnd::Done => None,
            LaunchEnd::Abandoned => Some("the GPU was abandoned while it ran".to_string()),
            LaunchEnd::Late => {
                gpu.abandon();
                Some(format!(
                    "it did not end within {} s after the packets, so {gpu} was abandoned; check with nvidia-smi whether another process \
                     keeps the GPU busy",
                    LIMIT.as_secs()
                ))
            }
        };
        if let Some(why) = why {
            return Err(Error::Competitor(why));
        }
        let word = |index: usize| {
            // SAFETY: the word is aligned and lies inside the region `counts`. The CPU accesses it only as an
            // atomic.
            unsafe { AtomicU64::from_ptr(counts.as_ptr().cast::<u64>().add(index)) }
        };
        Ok((0..self.shape.blocks as usize).map(|block| word(block).load(Ordering::Relaxed)).sum())
    }
}

/// The outcome of waiting for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaunchEnd {
    /// The launch has ended.
    Done,
    /// The GPU was abandoned.
    Abandoned,
    /// The launch had not ended when the time limit passed.
    Late,
}

/// Waits until a launch is `done`, the GPU is `abandoned`, or `stop` has been set for `limit`. Before `stop`
/// there is no limit, because the executor's kernel may leave the launch no room.
pub(super) fn wait_for_end(
    mut done: impl FnMut() -> Result<bool>,
    abandoned: impl Fn() -> bool,
    stop: &AtomicBool,
    limit: Duration,
) -> Result<LaunchEnd> {
    let mut stopped = None;
    loop {
        // Check for an abandoned GPU first, because `done` calls the driver, which may no longer answer for
        // such a GPU.
        if abandoned() {
            return Ok(LaunchEnd::Abandoned);
        }
        if done()? {
            return Ok(LaunchEnd::Done);
        }
        if stop.load(Ordering::Relaxed) && stopped.get_or_insert_with(Instant::now).elapsed() > limit {
            return Ok(LaunchEnd::Late);
        }
        std::thread::sleep(CHECK_EVERY);
    }
}

impl fmt::Display for CompetingKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = if self.large { "that take a multiprocessor each" } else { "of 256 threads" };
        write!(
            f,
            "arithmetic on every multiprocessor in blocks {size}, 0.2 ms long, {WAVES} times as many as fit"
        )
    }
}
