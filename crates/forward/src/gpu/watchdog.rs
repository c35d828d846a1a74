//! The watchdog: detects that a GPU makes no progress, and sends the host's heartbeat. It has its own thread,
//! because the dispatching thread may block in a port.

use super::lane::Lane;
use crate::control::Control;
use crate::error::{Error, Result};
use inlane_core::ring::Ring;
use inlane_cuda::Stream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The time between two checks. Each check changes the heartbeat, which a persistent kernel reads every 200
/// ms.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Checks the lane every 20 ms until the sender of the channel `ended` is dropped. Aborts the run after an
/// error.
///
/// # Errors
/// [`Error::Stuck`] if one item takes longer than the watchdog's limit, or the error of a failed kernel.
pub(super) fn watch_until(
    ended: &Receiver<()>,
    lane: &Lane,
    streams: &[Stream],
    control: &Control,
) -> Result<()> {
    let mut watchdog = Watchdog::new(lane.watchdog);
    let mut count = 0;
    while ended.recv_timeout(CHECK_EVERY) == Err(RecvTimeoutError::Timeout) {
        count += 1;
        lane.heartbeat(count);
        watchdog
            .check(oldest_in_flight(&lane.ring), lane.loaded.function.name(), streams)
            .inspect_err(|_| control.abort())?;
    }
    Ok(())
}

/// Returns the position of the oldest item that is not freed, if the item is in flight. Returns `None` if the
/// item is complete, or if no item is submitted.
pub(super) fn oldest_in_flight(ring: &Ring) -> Option<u64> {
    let position = ring.freed();
    // When the ring is closed, `release_waits` writes words with a packet count of 0, only to end the waits
    // of kernels. Such a word is no item in flight.
    let submitted = ring.submitted(position).is_some_and(|packets| packets > 0);
    (submitted && !ring.is_completed(position)).then_some(position)
}

/// Measures how long one item has been the oldest item in flight. Reports the item as stuck after a time
/// limit.
pub(super) struct Watchdog {
    limit: Duration,
    /// The number of the oldest item in flight at the last check, and the time of the first check that found
    /// this item the oldest. `None` if no item was in flight.
    oldest: Option<(u64, Instant)>,
}

impl Watchdog {
    /// Creates a watchdog with the time limit `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, oldest: None }
    }

    /// Records `oldest`, the oldest item in flight. If it has not changed since the last call, also checks
    /// `streams` for failed kernels.
    ///
    /// # Errors
    /// [`Error::Stuck`] if the item has been in flight for longer than the limit, or the error of a failed
    /// kernel.
    pub(super) fn check(&mut self, oldest: Option<u64>, function: &str, streams: &[Stream]) -> Result<()> {
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
