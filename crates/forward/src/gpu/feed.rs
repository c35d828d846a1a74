//! What keeps the GPU supplied beside the ring, on the sending thread: nothing, or posted work.

use super::lane::Lane;
use super::launch::launch_nothing;
use super::posted::{GraphPoster, StreamPoster, release_waits, unused_word};
use crate::config::Method;
use crate::error::Result;
use inlane_cuda::{Stream, argument};
use std::time::{Duration, Instant};

/// How often a function that wants the time gets it.
const TICK_EVERY: Duration = Duration::from_millis(1);

/// The part of a method that follows what is done.
pub(super) struct Feed<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    posting: Posting<'a>,
    /// What was posted for items that will not come was released.
    released: bool,
    ticks: Option<(&'a Stream, Instant)>,
}

enum Posting<'a> {
    /// Kernels are launched elsewhere.
    None,
    Stream(StreamPoster<'a>),
    Graph(GraphPoster<'a>),
}

impl<'a> Feed<'a> {
    /// Allocates what the method needs, and leaves nothing running. `side` is a stream for ticks, where the function has them.
    ///
    /// # Errors
    /// When the GPU refuses.
    pub(super) fn prepare(lane: &'a Lane, streams: &'a [Stream], side: Option<&'a Stream>) -> Result<Self> {
        let posting = match lane.settings.method {
            Method::Single | Method::Split | Method::Persistent => Posting::None,
            Method::Stream => Posting::Stream(StreamPoster::new(lane, streams)),
            Method::Graph => Posting::Graph(GraphPoster::new(lane, streams)?),
        };
        warm_up(lane, streams.iter().chain(side))?;
        let ticks = side.map(|side| (side, Instant::now()));
        Ok(Self { lane, streams, posting, released: false, ticks })
    }

    /// Starts it: launches the persistent kernel, posts the first lap.
    ///
    /// # Errors
    /// When the GPU refuses.
    pub(super) fn begin(&mut self) -> Result<()> {
        let lane = self.lane;
        // What was posted before the driver refused waits for words that nobody will write, and frees would wait for it.
        let give_up = |_: &crate::Error| lane.program.gpu.abandon();
        match &mut self.posting {
            Posting::Stream(poster) => poster.post(0, u64::MAX).inspect_err(give_up),
            Posting::Graph(poster) => poster.post(0).inspect_err(give_up),
            Posting::None if lane.settings.method == Method::Persistent => {
                let arguments = [argument(&lane.parameters)];
                // SAFETY: the parameter of `inlane_persistent`; the lane outlives its streams.
                unsafe { lane.program.persistent.launch(&self.streams[0], lane.shape, arguments)? };
                Ok(())
            }
            Posting::None => Ok(()),
        }
    }

    /// `freed` items are done: posts what may follow.
    ///
    /// # Errors
    /// When the driver refuses, or an earlier kernel failed.
    #[inline]
    pub(super) fn done(&mut self, freed: u64) -> Result<()> {
        match &mut self.posting {
            Posting::Stream(poster) if !self.released => poster.post(freed, 1),
            Posting::Graph(poster) if !self.released => poster.post(freed),
            _ => Ok(()),
        }
    }

    /// Nothing was done: catches up, releases what waits in vain, and gives the function the time.
    ///
    /// # Errors
    /// As for [`Feed::done`].
    #[inline]
    pub(super) fn idle(&mut self, freed: u64) -> Result<()> {
        if let Some(published) =
            released_from(self.lane.closed_at(), self.posted()).filter(|_| !self.released)
        {
            self.release(published);
        }
        if let Posting::Stream(poster) = &mut self.posting
            && !self.released
        {
            poster.post(freed, 4)?;
        }
        if let Some((stream, last)) = &mut self.ticks
            && last.elapsed() >= TICK_EVERY
            && stream.is_idle()?
        {
            *last = Instant::now();
            tick(self.lane, stream, 0)?;
        }
        Ok(())
    }

    /// Ends it, once the producer is gone: `published` items were submitted. Waits until the GPU has let go of the lane,
    /// at most as long as the watchdog waits; then gives the device up.
    ///
    /// # Errors
    /// A kernel's fault, or that it did not end.
    pub(super) fn finish(&mut self, published: u64, clean: bool, stuck: bool) -> Result<()> {
        if !clean {
            self.lane.order_exit();
        }
        self.release(published);
        if stuck {
            self.lane.program.gpu.abandon();
            return Ok(());
        }
        settle(self.lane, self.streams, published)
    }
}

impl Feed<'_> {
    /// Ends the waits for items that will not come: the producer is gone, after `published` items.
    fn release(&mut self, published: u64) {
        self.released = true;
        release_waits(self.lane, published, self.posted());
    }

    /// Items that something was posted for.
    fn posted(&self) -> u64 {
        match &self.posting {
            Posting::None => 0,
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

/// From which item on waits are in vain, once that is known and no more needs to be posted: work is posted in stretches, and may be
/// behind what was submitted when the producer closes.
pub(super) fn released_from(closed_at: Option<u64>, posted: u64) -> Option<u64> {
    closed_at.filter(|&published| posted >= published)
}

/// Tells the function the time, by one block; `end` is 0, or a time by which all limits are due.
///
/// # Errors
/// When the driver refuses.
pub(super) fn tick(lane: &Lane, stream: &Stream, end: u64) -> Result<()> {
    // Functions count on whole warps.
    let shape = inlane_cuda::Launch { blocks: 1, threads: 128, shared_bytes: 0, cooperative: false };
    // SAFETY: the parameters of `inlane_tick`; the lane outlives its streams.
    unsafe { lane.program.tick.launch(stream, shape, [argument(&lane.parameters), argument(&end)])? };
    Ok(())
}

/// Waits until nothing runs on the lane's streams any more.
pub(super) fn settle(lane: &Lane, streams: &[Stream], published: u64) -> Result<()> {
    let begun = Instant::now();
    for stream in streams {
        loop {
            match stream.is_idle() {
                Ok(true) => break,
                Ok(false) if begun.elapsed() > lane.settings.watchdog => {
                    lane.program.gpu.abandon();
                    return Err(crate::Error::Stuck {
                        function: lane.program.function.name().into(),
                        item: published,
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
