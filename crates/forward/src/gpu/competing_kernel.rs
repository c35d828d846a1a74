//! A job that wants the GPU beside the executor: arithmetic on every multiprocessor, without end.
//!
//! It is many short blocks, as most kernels are: several times more than the GPU holds, each for a fifth of a millisecond, two
//! launches in flight. Its work a second falls with the room that others hold, and a kernel that comes late waits for a block of it
//! to end, unless no room is left to wait for.

use super::ceilings::load;
use crate::error::{Error, Result};
use inlane_core::Region;
use inlane_cuda::{Gpu, Kernel, LaunchConfig, Stream, argument};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a block runs.
const SLICE: Duration = Duration::from_micros(200);
/// Blocks a launch, in terms of those that the GPU holds.
const WAVES: u32 = 8;
/// Between two looks whether a launch has ended: well below what one takes, and another is in flight.
const LOOK_EVERY: Duration = Duration::from_micros(100);
/// How long after the packets a launch may still take. Its blocks are as short as ever; only what leaves them no room makes it late.
const LIMIT: Duration = Duration::from_secs(10);

/// The job, ready to run.
pub(crate) struct CompetingKernel {
    kernel: Kernel,
    /// Launches in flight, each with a word a block for what it got done.
    launches: [(Stream, Region); 2],
    shape: LaunchConfig,
    large: bool,
}

impl CompetingKernel {
    /// Prepares it, before anything persistent runs. `large`: its blocks take a multiprocessor's shared memory each, as those of
    /// matrix products do, so that one with another's block on it is of no use to it.
    ///
    /// # Errors
    /// When the GPU refuses.
    pub(crate) fn new(gpu: &Arc<Gpu>, large: bool) -> Result<Self> {
        let kernel = load(gpu)?.kernel("bare_compete")?;
        let (threads, shared_bytes) =
            if large { (1024, gpu.max_shared_bytes_per_block()?) } else { (256, 0) };
        if large {
            // It declares none itself: all of a block's is the launch's.
            kernel.set_max_dynamic_shared_bytes(shared_bytes)?;
        }
        let blocks = kernel.max_resident_blocks(threads, shared_bytes)? * WAVES;
        let launch = || -> Result<_> { Ok((gpu.stream()?, gpu.pinned(blocks as usize * 8)?)) };
        let shape = LaunchConfig { blocks, threads, shared_bytes, cooperative: false };
        Ok(Self { launches: [launch()?, launch()?], kernel, shape, large })
    }

    /// Runs until `stop`; rounds of arithmetic a second, over all blocks.
    ///
    /// # Errors
    /// When the GPU refuses or was given up, or what was launched does not end.
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
        // SAFETY: the kernel's parameters; a word a block, alive as long as this value, which waits for what it launched, or gives the
        // GPU up: then nothing of it is freed.
        unsafe { self.kernel.launch(stream, self.shape, [argument(&words), argument(&slice)])? };
        Ok(())
    }

    /// Waits for a launch; its rounds.
    fn wait(&self, (stream, counts): &(Stream, Region), stop: &AtomicBool) -> Result<u64> {
        let gpu = stream.gpu();
        let why = match look_for_end(|| Ok(stream.is_idle()?), || gpu.is_abandoned(), stop, LIMIT)? {
            End::Done => None,
            End::GivenUp => Some("the GPU was given up while it ran".to_string()),
            End::Late => {
                gpu.abandon();
                Some(format!(
                    "it did not end within {} s of the packets' end, and {gpu} was given up; does another process keep the GPU busy \
                     (nvidia-smi lists them)?",
                    LIMIT.as_secs()
                ))
            }
        };
        if let Some(why) = why {
            return Err(Error::Competitor(why));
        }
        let word = |index: usize| {
            // SAFETY: inside the region, aligned, pinned memory that the CPU accesses only so.
            unsafe { AtomicU64::from_ptr(counts.as_ptr().cast::<u64>().add(index)) }
        };
        Ok((0..self.shape.blocks as usize).map(|block| word(block).load(Ordering::Relaxed)).sum())
    }
}

/// How waiting for a launch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It has run.
    Done,
    /// The GPU was given up.
    GivenUp,
    /// It takes too long.
    Late,
}

/// Looks until a launch is `done`, the GPU is `given_up`, or `stop` was seen for longer than `limit`. While packets flow it may take as
/// long as these do: their kernel may leave it no room.
pub(super) fn look_for_end(
    mut done: impl FnMut() -> Result<bool>,
    given_up: impl Fn() -> bool,
    stop: &AtomicBool,
    limit: Duration,
) -> Result<End> {
    let mut stopped = None;
    loop {
        // First: the driver need not answer any more.
        if given_up() {
            return Ok(End::GivenUp);
        }
        if done()? {
            return Ok(End::Done);
        }
        if stop.load(Ordering::Relaxed) && stopped.get_or_insert_with(Instant::now).elapsed() > limit {
            return Ok(End::Late);
        }
        std::thread::sleep(LOOK_EVERY);
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
