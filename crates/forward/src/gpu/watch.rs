//! Whether the GPU still works on what it was given.

use crate::error::{Error, Result};
use inlane_cuda::Stream;
use std::time::{Duration, Instant};

/// How often a stream is asked for faults while its results are awaited.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Kept by the thread that waits for items.
pub(super) struct Watch {
    limit: Duration,
    freed: u64,
    since: Option<Instant>,
    asked: Instant,
}

impl Watch {
    /// An item that takes longer than `limit` is stuck.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, freed: 0, since: None, asked: Instant::now() }
    }

    /// Nothing came: `freed` items are done, `waiting` says whether more are out. `streams` are asked for faults.
    ///
    /// # Errors
    /// [`Error::Stuck`], or the kernel's fault.
    pub(super) fn nothing<'a>(
        &mut self,
        freed: u64,
        waiting: bool,
        function: &str,
        streams: impl IntoIterator<Item = &'a Stream>,
    ) -> Result<()> {
        if !waiting {
            self.since = None;
            return Ok(());
        }
        let now = Instant::now();
        if now - self.asked >= ASK_EVERY {
            self.asked = now;
            for stream in streams {
                stream.is_idle()?;
            }
        }
        match self.since {
            Some(since) if self.freed == freed => {
                if now - since > self.limit {
                    return Err(Error::Stuck {
                        function: function.into(),
                        item: freed,
                        seconds: self.limit.as_secs_f64(),
                    });
                }
            }
            _ => {
                self.freed = freed;
                self.since = Some(now);
            }
        }
        Ok(())
    }
}
