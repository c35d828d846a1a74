//! A mover that uses a GPU's copy engines.

use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::pending::{PendingCopies, drain};
use crate::stream::{Event, Stream};
use inlane_core::mover::{Mover, Ticket};
use inlane_core::{CompletionMode, Location, Region};
use std::sync::Arc;
use std::time::Duration;

/// A mover that copies with a GPU's DMA engines. It uses one stream with an event after each copy.
///
/// ```text
/// stream: | copy | event | copy | event | ...
/// ```
///
/// The driver chooses the DMA engine for a stream's copies. To copy in two directions at the same time, use
/// two movers, because they use two engines.
pub struct CopyEngine {
    stream: Stream,
    pending: PendingCopies,
}

impl CopyEngine {
    /// Creates a mover on `gpu`.
    ///
    /// # Errors
    /// If the driver cannot create a stream.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self { stream: gpu.stream()?, pending: PendingCopies::new() })
    }

    /// Returns the mover's stream, to order other work with its copies.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sets the timeout of waits. If no copy completes during the timeout, a wait fails and abandons all GPUs
    /// of this process. The default is 10 s.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.pending.set_timeout(timeout);
    }

    /// Makes all copies that are submitted from now on wait for `event`. The GPU waits, not the CPU.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn after(&mut self, event: &Event) -> Result<()> {
        self.stream.wait_for(event)
    }
}

impl Mover for CopyEngine {
    fn name(&self) -> String {
        format!("gpu:{} copy engine", self.stream.gpu().index())
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        let mine = Location::Gpu(self.stream.gpu().index());
        let gpu = |region: &Region| matches!(region.location(), Location::Gpu(_));
        let reachable = |region: &Region| gpu(region) || *region.location() == Location::Pinned;
        // Refuse host memory that is not pinned, because the driver call would block until the copy has run.
        reachable(source)
            && reachable(destination)
            && (*source.location() == mine || *destination.location() == mine)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> inlane_core::Result<Ticket> {
        if !self.reaches(source, destination) || source.overlaps(destination) {
            return Err(Error::invalid(
                format!("{} from {source:?} to {destination:?}", self.name()),
                "both regions must be pinned or GPU memory, one of them this GPU's, and must not overlap",
            )
            .into());
        }
        // SAFETY: `pending` keeps the regions alive until the copy has ended. Until then, the trait's
        // contract forbids access to the regions.
        unsafe { self.stream.copy(source, destination)? };
        self.pending.push(&self.stream, [source.clone(), destination.clone()])
    }

    fn done(&mut self) -> inlane_core::Result<Ticket> {
        self.pending.done()
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> inlane_core::Result<()> {
        let device = || format!("gpu:{} copy engine", self.stream.gpu().index());
        self.pending.wait(&device, ticket, completion, &[])
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        // Wait for the copies in flight, because their regions may be freed once this function returns.
        if !self.pending.is_empty() {
            drain(&[&self.stream]);
        }
    }
}
