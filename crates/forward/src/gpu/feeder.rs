//! The feeder, a thread that launches kernels for a lane's items. In some methods it queues the kernels on
//! the GPU before the items are submitted (posting). It also calls the packet function's `tick`.

use super::lane::Lane;
use super::lane::Stretch;
use super::launch::{Launcher, launch_nothing};
use super::loaded_function::TICK_THREADS;
use super::posters::{GraphPoster, StreamPoster, unused_word};
use crate::control::{Idle, publish_times};
use crate::error::Result;
use crate::method::Method;
use crate::pipeline::PipelineContext;
use inlane_cuda::{Stream, argument};
use std::time::{Duration, Instant};

/// The shortest time between two calls of a function's `tick`.
const TICK_EVERY: Duration = Duration::from_millis(1);

/// Launches or posts the kernels of a lane. For method `persistent`, launches one kernel. For method
/// `single`, launches no kernel.
pub(super) struct Feeder<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    posting: Posting<'a>,
}

/// The way in which each item gets a kernel. The feeder launches the kernels, or queues them on the GPU
/// before the items are submitted (posting).
enum Posting<'a> {
    /// The feeder posts nothing. With `single`, the dispatching thread launches the kernels; with
    /// `persistent`, one kernel processes all items.
    None,
    Launch(Launcher<'a>),
    Stream(StreamPoster<'a>),
    Graph(GraphPoster<'a>),
}

impl<'a> Feeder<'a> {
    /// Allocates the method's resources and uses each stream once. The driver sets up a stream at its first
    /// use. No kernel is running when this returns. `tick_stream` is the stream for the function's `tick`, if
    /// the function has one.
    ///
    /// # Errors
    /// If a driver call fails.
    pub(super) fn prepare(
        lane: &'a Lane,
        streams: &'a [Stream],
        tick_stream: Option<&'a Stream>,
    ) -> Result<Self> {
        let posting = match lane.settings.method {
            Method::Single | Method::Persistent => Posting::None,
            Method::Split => Posting::Launch(Launcher::new(lane, streams)),
            Method::Stream => Posting::Stream(StreamPoster::new(lane, streams)),
            Method::Graph => Posting::Graph(GraphPoster::new(lane, streams)?),
        };
        warm_up(lane, streams.iter().chain(tick_stream))?;
        Ok(Self { lane, streams, posting })
    }

    /// Launches the persistent kernel, or posts the waits for the first items.
    ///
    /// # Errors
    /// If a driver call fails. If posting failed, the GPU is abandoned.
    pub(super) fn begin(&mut self) -> Result<()> {
        let lane = self.lane;
        if lane.settings.method == Method::Persistent {
            let arguments = [argument(&lane.parameters)];
            // SAFETY: the argument is the kernel's parameter, and the lane outlives its streams.
            unsafe { lane.loaded.persistent.launch(&self.streams[0], lane.shape, arguments)? };
        }
        // After an error, the posted waits never end, and freeing memory would wait for them. So abandon the
        // GPU.
        while self.advance().inspect_err(|_| lane.loaded.gpu.abandon())? {}
        Ok(())
    }

    /// Feeds the GPU until a kernel was launched or posted for every item of the closed ring. Also returns if
    /// the run is aborted.
    ///
    /// # Errors
    /// If a driver call fails, or an earlier kernel failed.
    pub(super) fn run(&mut self, mut ticks: Option<Ticks<'_>>, context: &PipelineContext<'_>) -> Result<()> {
        /// The rounds between two publications of the thread's times.
        const PUBLISH_EVERY: u32 = 4096;
        let mut idle = Idle::default();
        let (mut rounds, meter) = (0u32, context.helper_meter(0));
        while !context.control.aborting() {
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(PUBLISH_EVERY) {
                meter.map(publish_times);
            }
            // Read this before `advance` looks for items. If the ring is already closed and `advance` then
            // finds nothing, no further item can come.
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
            context.sleep_if_parked(&idle);
            if let Some(ticks) = &mut ticks {
                ticks.due()?;
            }
        }
        meter.map(publish_times);
        Ok(())
    }

    /// Waits until the lane's streams are idle. Call it after the dispatching thread has ended. Abandons the
    /// GPU if the wait exceeds the watchdog's limit.
    ///
    /// - `clean`: true if the run ended normally. If false, orders the kernels to stop.
    /// - `stuck`: true if the watchdog found a stuck item. If true, abandons the GPU without a wait.
    ///
    /// # Errors
    /// If a kernel failed, or did not end in time.
    pub(super) fn finish(&mut self, clean: bool, stuck: bool) -> Result<()> {
        if !clean {
            self.lane.order_exit();
        }
        self.release();
        if stuck {
            self.lane.loaded.gpu.abandon();
            return Ok(());
        }
        wait_until_idle(self.lane, self.streams)
    }

    /// Returns the graphs that the feeder made.
    pub(super) fn into_graphs(self) -> Vec<Stretch> {
        match self.posting {
            Posting::Graph(poster) => poster.into_graphs(),
            _ => Vec::new(),
        }
    }

    /// Launches or posts the next kernels, if any are due. Returns true if there were any.
    #[inline]
    fn advance(&mut self) -> Result<bool> {
        match &mut self.posting {
            Posting::None => Ok(false),
            Posting::Launch(launcher) => launcher.advance(),
            Posting::Stream(poster) => poster.advance(),
            Posting::Graph(poster) => poster.advance(),
        }
    }

    /// Ends the waits of kernels that were posted for items that were never submitted. The kernels can then
    /// end. A second call changes nothing.
    fn release(&mut self) {
        self.lane.ring.release_waits(self.posted());
    }

    /// Returns the number of items for which the feeder has launched or posted a kernel so far.
    fn posted(&self) -> u64 {
        match &self.posting {
            Posting::None => 0,
            Posting::Launch(launcher) => launcher.position(),
            Posting::Stream(poster) => poster.posted(),
            Posting::Graph(poster) => poster.posted(),
        }
    }
}

/// Uses each stream once, because the driver sets a stream up at its first use. During the run, the set-up
/// would delay packets and block on other lanes' kernels.
fn warm_up<'a>(lane: &Lane, streams: impl Iterator<Item = &'a Stream>) -> Result<()> {
    let streams: Vec<_> = streams.collect();
    for stream in &streams {
        if lane.settings.method == Method::Stream {
            // SAFETY: the word lies in the lane's ring and already has the expected value.
            unsafe { stream.memory_operations(&[unused_word(lane)])? };
        }
        // SAFETY: the lane outlives its streams. Nothing was submitted, so the kernel changes nothing.
        unsafe { launch_nothing(lane, stream)? };
    }
    streams.iter().try_for_each(|stream| stream.synchronize()).map_err(Into::into)
}

/// Calls a packet function's `tick` on the GPU: launches the kernel of `tick` at most once per millisecond.
/// Nothing else runs on `stream`, so the last `tick` has ended if the stream is idle.
pub(super) struct Ticks<'a> {
    lane: &'a Lane,
    stream: &'a Stream,
    last: Instant,
}

impl<'a> Ticks<'a> {
    /// Creates the caller of `tick` for one lane. Launch nothing else on `stream`, because an idle `stream`
    /// means that the last `tick` has ended.
    pub(super) fn new(lane: &'a Lane, stream: &'a Stream) -> Self {
        Self { lane, stream, last: Instant::now() }
    }

    /// Launches the function's `tick` if its last launch was at least 1 ms ago and has ended.
    ///
    /// # Errors
    /// If a driver call fails, or a kernel failed.
    #[inline]
    pub(super) fn due(&mut self) -> Result<()> {
        if self.last.elapsed() >= TICK_EVERY && self.stream.is_idle()? {
            self.last = Instant::now();
            self.tick(0)?;
        }
        Ok(())
    }

    /// Launches the function's `tick` for the last time in a run. Passes the largest time, so all timeouts of
    /// the function expire.
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
        // SAFETY: the arguments are the kernel's parameters, and the lane outlives its streams.
        unsafe { self.lane.loaded.tick.launch(self.stream, shape, arguments)? };
        Ok(())
    }
}

/// Waits until the streams are idle. Abandons the GPU after the watchdog's limit or a kernel's failure.
///
/// # Errors
/// [`crate::Error::Stuck`], or the error of a failed kernel.
pub(super) fn wait_until_idle(lane: &Lane, streams: &[Stream]) -> Result<()> {
    let begun = Instant::now();
    for stream in streams {
        loop {
            match stream.is_idle() {
                Ok(true) => break,
                Ok(false) if begun.elapsed() > lane.watchdog => {
                    lane.loaded.gpu.abandon();
                    return Err(crate::Error::Stuck {
                        function: lane.loaded.function.name().into(),
                        item: lane.closed_at().unwrap_or(0),
                        seconds: lane.watchdog.as_secs_f64(),
                    });
                }
                Ok(false) => std::thread::yield_now(),
                Err(error) => {
                    // Abandon the GPU, because after a failed kernel every driver call fails, so nothing can
                    // be freed.
                    lane.loaded.gpu.abandon();
                    return Err(error.into());
                }
            }
        }
    }
    Ok(())
}
