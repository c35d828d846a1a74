//! A mover over the GPU's copy engines.

use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::stream::{Event, EventKind, Stream};
use inlane_core::mover::{Flight, Mover, Ticket};
use inlane_core::{Completion, Place, Region};
use std::collections::VecDeque;
use std::sync::Arc;

/// Copies by a GPU's DMA engines: one stream, an event a copy.
///
/// ```text
/// submit: | copy | event | copy | event | ...      done: events passed, oldest first
/// ```
///
/// The driver decides which engine runs a stream's copies; two movers, one for each direction, use two engines.
pub struct CopyEngine {
    stream: Stream,
    flight: Flight,
    pending: VecDeque<Pending>,
    free: Vec<Event>,
}

struct Pending {
    event: Event,
    // Memory that a queued copy touches must not be freed, whatever the caller does.
    _regions: [Region; 2],
}

impl CopyEngine {
    /// A mover on `gpu`.
    ///
    /// # Errors
    /// When the driver refuses a stream.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self { stream: gpu.stream()?, flight: Flight::new(), pending: VecDeque::new(), free: Vec::new() })
    }

    /// Its stream, to order other work with its copies.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Has all copies submitted from now on wait for `event`, without the CPU.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn after(&mut self, event: &Event) -> Result<()> {
        self.stream.wait_for(event)
    }

    /// Gives back what copies up to the one known to be done held.
    fn retire(&mut self) {
        while self.pending.len() > self.flight.in_flight() {
            if let Some(Pending { event, .. }) = self.pending.pop_front() {
                self.free.push(event);
            }
        }
    }

    fn wait_inner(&mut self, ticket: Ticket, completion: Completion) -> inlane_core::Result<()> {
        self.flight.check(ticket)?;
        let first = self.flight.done();
        let Some(index) = (ticket.0 - 1).checked_sub(first.0) else { return Ok(()) };
        let event = &self.pending[index as usize].event;
        // Copies of a stream end in order: the event of the last one tells of all.
        let poll = || {
            // The driver's lock is one a context: another thread shall get it between two looks.
            (0..8).for_each(|_| std::hint::spin_loop());
            Ok(if event.is_passed()? { ticket } else { first })
        };
        let device = || format!("gpu:{} copy engine", self.stream.gpu().index());
        match completion {
            Completion::Interrupt => {
                event.synchronize()?;
                self.flight.complete(ticket, false);
            }
            Completion::Poll => self.flight.wait_polling(&device, ticket, poll)?,
            Completion::Adaptive => self.flight.wait_adaptive(&device, ticket, poll)?,
        }
        self.retire();
        Ok(())
    }
}

impl Mover for CopyEngine {
    fn name(&self) -> String {
        format!("gpu:{} copy engine", self.stream.gpu().index())
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        let mine = Place::Gpu(self.stream.gpu().index());
        let gpu = |region: &Region| matches!(region.place(), Place::Gpu(_));
        let reachable = |region: &Region| gpu(region) || *region.place() == Place::Pinned;
        // One end is this GPU's; the other may be pinned or any GPU's (the driver stages what has no direct way).
        // Ordinary host memory would make the call synchronous.
        reachable(source)
            && reachable(destination)
            && (*source.place() == mine || *destination.place() == mine)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> inlane_core::Result<Ticket> {
        if !self.reaches(source, destination) || source.overlaps(destination) {
            return Err(Error::invalid(
                format!("{} from {source:?} to {destination:?}", self.name()),
                "both ends must be pinned or GPU memory, one of them this GPU's, and must not overlap",
            )
            .into());
        }
        let event = match self.free.pop() {
            Some(event) => event,
            None => Event::new(self.stream.gpu(), EventKind::Completion)?,
        };
        // SAFETY: the regions are kept in `pending` until the copy has run; that nobody touches them is the trait's contract.
        unsafe { self.stream.copy(source, destination)? };
        if let Err(error) = self.stream.record(&event) {
            // Nothing would tell of this copy's end: it must be over before the regions may go.
            let _ = self.stream.synchronize();
            return Err(error.into());
        }
        self.pending.push_back(Pending { event, _regions: [source.clone(), destination.clone()] });
        Ok(self.flight.submit(source.len()))
    }

    fn done(&mut self) -> inlane_core::Result<Ticket> {
        let mut done = self.flight.done();
        for pending in &self.pending {
            if !pending.event.is_passed()? {
                break;
            }
            done.0 += 1;
        }
        self.flight.complete(done, false);
        self.retire();
        Ok(done)
    }

    fn wait(&mut self, ticket: Ticket, completion: Completion) -> inlane_core::Result<()> {
        self.wait_inner(ticket, completion)
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        // The regions may be freed after this: nothing may still copy to or from them.
        if self.pending.is_empty() || self.stream.gpu().is_abandoned() {
            return;
        }
        if let Err(error) = self.stream.synchronize() {
            tracing::warn!("copies given up: {error}");
        }
    }
}
