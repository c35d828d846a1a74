//! What keeps the GPU supplied beside the ring: a kernel that runs for good, kernels an item, or work posted ahead; and the time.

use super::lane::Lane;
use super::launch::{Launcher, launch_nothing};
use super::loaded_function::TICK_THREADS;
use super::posters::{GraphPoster, StreamPoster, unused_word};
use crate::config::Method;
use crate::control::{Control, Idle};
use crate::error::Result;
use inlane_cuda::{Stream, argument};
use std::time::{Duration, Instant};

/// How often a function that wants the time gets it.
const TICK_EVERY: Duration = Duration::from_millis(1);

/// The part of a method that gives the GPU its work.
pub(super) struct Feeder<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    posting: Posting<'a>,
}

enum Posting<'a> {
    /// The thread that moves packets launches kernels itself, or one kernel does all.
    None,
    Launch(Launcher<'a>),
    Stream(StreamPoster<'a>),
    Graph(GraphPoster<'a>),
}

impl<'a> Feeder<'a> {
    /// Allocates what the method needs, and leaves nothing running. `side` is a stream for ticks, where the function has them.
    ///
    /// # Errors
    /// When the GPU refuses.
    pub(super) fn prepare(lane: &'a Lane, streams: &'a [Stream], side: Option<&'a Stream>) -> Result<Self> {
        let posting = match lane.settings.method {
            Method::Single | Method::Persistent => Posting::None,
            Method::Split => Posting::Launch(Launcher::new(lane, streams)),
            Method::Stream => Posting::Stream(StreamPoster::new(lane, streams)),
            Method::Graph => Posting::Graph(GraphPoster::new(lane, streams)?),
        };
        warm_up(lane, streams.iter().chain(side))?;
        Ok(Self { lane, streams, posting })
    }

    /// Starts it: launches the persistent kernel, posts what waits for the first packets.
    ///
    /// # Errors
    /// When the GPU refuses.
    pub(super) fn begin(&mut self) -> Result<()> {
        let lane = self.lane;
        if lane.settings.method == Method::Persistent {
            let arguments = [argument(&lane.parameters)];
            // SAFETY: the parameter of `inlane_persistent`; the lane outlives its streams.
            unsafe { lane.program.persistent.launch(&self.streams[0], lane.shape, arguments)? };
        }
        // What was posted before the driver refused waits for words that nobody will write, and frees would wait for it.
        while self.advance().inspect_err(|_| lane.program.gpu.abandon())? {}
        Ok(())
    }

    /// Gives the GPU what is due until all that was submitted has been given and no more will come, or the run is aborted.
    ///
    /// # Errors
    /// When the driver refuses, or an earlier kernel failed.
    pub(super) fn run(&mut self, mut ticks: Option<Ticks<'_>>, control: &Control) -> Result<()> {
        let mut idle = Idle::default();
        while !control.aborting() {
            // Read before looking for more: then nothing was submitted in between.
            let closed_at = self.lane.closed_at();
            if self.advance()? {
                idle.found_work();
                continue;
            }
            if closed_at.is_some_and(|published| self.posted() >= published) {
                self.release();
                break;
            }
            idle.wait();
            if let Some(ticks) = &mut ticks {
                ticks.due()?;
            }
        }
        Ok(())
    }

    /// Ends it, once the producer is gone. Waits until the GPU has let go of the lane, at most as long as the watchdog waits; then gives
    /// the device up.
    ///
    /// # Errors
    /// A kernel's fault, or that it did not end.
    pub(super) fn finish(&mut self, clean: bool, stuck: bool) -> Result<()> {
        if !clean {
            self.lane.order_exit();
        }
        self.release();
        if stuck {
            self.lane.program.gpu.abandon();
            return Ok(());
        }
        settle(self.lane, self.streams)
    }

    /// Launches or posts once, if something is due.
    #[inline]
    fn advance(&mut self) -> Result<bool> {
        match &mut self.posting {
            Posting::None => Ok(false),
            Posting::Launch(launcher) => launcher.advance(),
            Posting::Stream(poster) => poster.advance(),
            Posting::Graph(poster) => poster.advance(),
        }
    }

    /// Ends the waits for items that will not come. Once is enough; again changes nothing.
    fn release(&mut self) {
        self.lane.ring.release_waits(self.posted());
    }

    /// Items that something was posted for.
    fn posted(&self) -> u64 {
        match &self.posting {
            Posting::None => 0,
            Posting::Launch(launcher) => launcher.position(),
            Posting::Stream(poster) => poster.posted(),
            Posting::Graph(poster) => poster.posted(),
        }
    }
}

/// Gives each stream something that ends at once. The driver sets a stream up when it is first used: packets would wait for that, and
/// what it allocates then would wait for what other lanes have running.
fn warm_up<'a>(lane: &Lane, streams: impl Iterator<Item = &'a Stream>) -> Result<()> {
    let streams: Vec<_> = streams.collect();
    for stream in &streams {
        if lane.settings.method == Method::Stream {
            // SAFETY: the word lies in the lane's ring, whose words say now what is waited for.
            unsafe { stream.memory_operations(&[unused_word(lane)])? };
        }
        // SAFETY: the lane outlives its streams. Nothing was submitted, so the kernel leaves the item alone.
        unsafe { launch_nothing(lane, stream)? };
    }
    streams.iter().try_for_each(|stream| stream.synchronize()).map_err(Into::into)
}

/// Tells a function the time, for its limits.
pub(super) struct Ticks<'a> {
    lane: &'a Lane,
    stream: &'a Stream,
    last: Instant,
}

impl<'a> Ticks<'a> {
    /// By kernels in `stream`.
    pub(super) fn new(lane: &'a Lane, stream: &'a Stream) -> Self {
        Self { lane, stream, last: Instant::now() }
    }

    /// Tells it, if it is time again and the last has been heard.
    ///
    /// # Errors
    /// When the driver refuses, or a kernel failed.
    #[inline]
    pub(super) fn due(&mut self) -> Result<()> {
        if self.last.elapsed() >= TICK_EVERY && self.stream.is_idle()? {
            self.last = Instant::now();
            self.tick(0)?;
        }
        Ok(())
    }

    /// Tells it that all limits are due.
    ///
    /// # Errors
    /// As for [`Ticks::due`].
    pub(super) fn last(&self) -> Result<()> {
        self.tick(u64::MAX)
    }

    fn tick(&self, end: u64) -> Result<()> {
        let shape = inlane_cuda::LaunchConfig {
            blocks: 1,
            threads: TICK_THREADS,
            shared_bytes: 0,
            cooperative: false,
        };
        let arguments = [argument(&self.lane.parameters), argument(&end)];
        // SAFETY: the parameters of `inlane_tick`; the lane outlives its streams.
        unsafe { self.lane.program.tick.launch(self.stream, shape, arguments)? };
        Ok(())
    }
}

/// Waits until nothing runs on the lane's streams any more.
pub(super) fn settle(lane: &Lane, streams: &[Stream]) -> Result<()> {
    let begun = Instant::now();
    for stream in streams {
        loop {
            match stream.is_idle() {
                Ok(true) => break,
                Ok(false) if begun.elapsed() > lane.settings.watchdog => {
                    lane.program.gpu.abandon();
                    return Err(crate::Error::Stuck {
                        function: lane.program.function.name().into(),
                        item: lane.closed_at().unwrap_or(0),
                        seconds: lane.settings.watchdog.as_secs_f64(),
                    });
                }
                Ok(false) => std::thread::yield_now(),
                Err(error) => {
                    // A fault has ended every kernel; frees would only repeat it.
                    lane.program.gpu.abandon();
                    return Err(error.into());
                }
            }
        }
    }
    Ok(())
}
