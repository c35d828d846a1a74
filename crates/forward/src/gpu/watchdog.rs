//! Whether the GPU still works on what it was given, and whether it knows that the host lives.
//!
//! Seen to by a thread that does nothing else: the one that moves packets may wait for a port, or be busy dropping them.

use super::lane::Lane;
use crate::control::Control;
use crate::error::{Error, Result};
use inlane_core::ring::Ring;
use inlane_core::ring::protocol::{Words, lap_of};
use inlane_cuda::Stream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often. The GPU looks for a sign of life a few times a second.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Watches until the other end of `ended` is gone. A GPU that is stuck or failed aborts the run.
///
/// # Errors
/// [`Error::Stuck`], or a kernel's fault.
pub(super) fn watch_until(
    ended: &Receiver<()>,
    lane: &Lane,
    streams: &[Stream],
    control: &Control,
) -> Result<()> {
    let mut watch = Watchdog::new(lane.settings.watchdog);
    let mut beat = 0;
    while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
        beat += 1;
        lane.heartbeat(beat);
        watch
            .look(oldest(&lane.ring), lane.program.function.name(), streams)
            .inspect_err(|_| control.abort())?;
    }
    Ok(())
}

/// The oldest item that consumers have, and are not done with.
pub(super) fn oldest(ring: &Ring) -> Option<u64> {
    let (slots, position) = (ring.slots(), ring.freed().load(Ordering::Acquire));
    let (slot, lap) = (position as u32 & (slots - 1), lap_of(position, slots));
    let says = |word: u64| word as u32 == lap;
    let submitted = says(ring.submitted(slot).load(Ordering::Acquire));
    (submitted && !says(ring.completed(slot).load(Ordering::Acquire))).then_some(position)
}

/// What was seen.
pub(super) struct Watchdog {
    limit: Duration,
    /// The oldest item, and since when it is.
    oldest: Option<(u64, Instant)>,
}

impl Watchdog {
    /// An item that takes longer than `limit` is stuck.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, oldest: None }
    }

    /// `oldest` is the oldest item that is out. Streams are asked for faults while it is the same.
    ///
    /// # Errors
    /// [`Error::Stuck`], or the kernel's fault.
    pub(super) fn look(&mut self, oldest: Option<u64>, function: &str, streams: &[Stream]) -> Result<()> {
        match (oldest, self.oldest) {
            (Some(item), Some((seen, since))) if item == seen => {
                streams.iter().try_for_each(|stream| stream.is_idle().map(drop))?;
                if since.elapsed() > self.limit {
                    let seconds = self.limit.as_secs_f64();
                    return Err(Error::Stuck { function: function.into(), item, seconds });
                }
            }
            _ => self.oldest = oldest.map(|item| (item, Instant::now())),
        }
        Ok(())
    }
}
