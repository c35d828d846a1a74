//! A mover over the GPU's copy engines.

use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::pending::{Pending, drain};
use crate::stream::{Event, Stream};
use inlane_core::mover::{Mover, Ticket};
use inlane_core::{CompletionMode, Location, Region};
use std::sync::Arc;
use std::time::Duration;

/// Copies by a GPU's DMA engines: one stream, an event a copy.
///
/// ```text
/// submit: | copy | event | copy | event | ...      done: events passed, oldest first
/// ```
///
/// The driver decides which engine runs a stream's copies; two movers, one for each direction, use two engines.
pub struct CopyEngine {
    stream: Stream,
    pending: Pending,
}

impl CopyEngine {
    /// A mover on `gpu`.
    ///
    /// # Errors
    /// When the driver refuses a stream.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self { stream: gpu.stream()?, pending: Pending::new() })
    }

    /// Its stream, to order other work with its copies.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// How long to wait for copies while none ends, before the GPUs of this process count as lost and are given up.
    pub fn set_timeout(&mut self, patience: Duration) {
        self.pending.set_timeout(patience);
    }

    /// Has all copies submitted from now on wait for `event`, without the CPU.
    ///
    /// # Errors
    /// When the driver refuses.
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
        // One end is this GPU's; the other may be pinned or any GPU's (the driver stages what has no direct way).
        // Ordinary host memory would make the call synchronous.
        reachable(source)
            && reachable(destination)
            && (*source.location() == mine || *destination.location() == mine)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> inlane_core::Result<Ticket> {
        if !self.reaches(source, destination) || source.overlaps(destination) {
            return Err(Error::invalid(
                format!("{} from {source:?} to {destination:?}", self.name()),
                "both ends must be pinned or GPU memory, one of them this GPU's, and must not overlap",
            )
            .into());
        }
        // SAFETY: the regions are kept in `pending` until the copy has run; that nobody touches them is the trait's contract.
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
        // The regions may be freed after this: nothing may still copy to or from them.
        if !self.pending.is_empty() {
            drain(&[&self.stream]);
        }
    }
}
