//! A mover from host memory to host memory through a GPU.

use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::stream::{Event, EventKind, Stream};
use inlane_core::mover::{Flight, Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{Completion, Place, Region};
use std::collections::VecDeque;
use std::sync::Arc;

/// Pieces of memory on the GPU, and their bytes: one is filled while another is emptied.
const SLOTS: usize = 4;
const SLOT: usize = 4 << 20;
/// Larger transfers go in whole slots, smaller ones in halves: a piece costs six calls of the driver, and the first piece in and
/// the last one out have nothing to overlap with.
const LARGE: usize = 32 << 20;

/// Copies between pinned host memories by a GPU's DMA engines.
///
/// ```text
/// source --- copy engine 1 ---> slot n % 4 of GPU memory --- copy engine 2 ---> destination
///            inward | full[n]                  outward waits full[n] | copy | free[n] | event after the last piece
/// ```
///
/// A copy from host to host that is given to the driver as such is done by the CPU; these two are not.
pub struct ThroughGpu {
    inward: Stream,
    outward: Stream,
    slots: Vec<Slot>,
    next: usize,
    flight: Flight,
    pending: VecDeque<Pending>,
    spare: Vec<Event>,
}

struct Slot {
    memory: Region,
    full: Event,
    free: Event,
}

struct Pending {
    event: Event,
    // Memory that a queued copy touches must not be freed, whatever the caller does.
    _regions: [Region; 2],
}

impl ThroughGpu {
    /// A mover on `gpu`, with 16 MiB of its memory.
    ///
    /// # Errors
    /// When the driver refuses memory or streams.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let event = || Event::new(gpu, EventKind::Completion);
        let slot = |_| Ok(Slot { memory: gpu.allocate(SLOT)?, full: event()?, free: event()? });
        Ok(Self {
            inward: gpu.stream()?,
            outward: gpu.stream()?,
            slots: (0..SLOTS).map(slot).collect::<Result<_>>()?,
            next: 0,
            flight: Flight::new(),
            pending: VecDeque::new(),
            spare: Vec::new(),
        })
    }

    fn queue(&mut self, source: &Region, destination: &Region) -> inlane_core::Result<()> {
        let (mut at, most) = (0, if source.len() >= LARGE { SLOT } else { SLOT / 2 });
        while at < source.len() {
            let piece = most.min(source.len() - at);
            let slot = &self.slots[self.next];
            self.next = (self.next + 1) % SLOTS;
            let (from, to) = (source.slice(at, piece)?, destination.slice(at, piece)?);
            let staging = slot.memory.slice(0, piece)?;
            self.inward.wait_for(&slot.free)?;
            // SAFETY: the slot is free when this runs; the caller keeps the regions until the last piece has run.
            unsafe { self.inward.copy(&from, &staging)? };
            self.inward.record(&slot.full)?;
            self.outward.wait_for(&slot.full)?;
            // SAFETY: as above; the slot is full.
            unsafe { self.outward.copy(&staging, &to)? };
            self.outward.record(&slot.free)?;
            at += piece;
        }
        Ok(())
    }

    fn retire(&mut self) {
        while self.pending.len() > self.flight.in_flight() {
            if let Some(Pending { event, .. }) = self.pending.pop_front() {
                self.spare.push(event);
            }
        }
    }
}

impl Mover for ThroughGpu {
    fn name(&self) -> String {
        format!("gpu:{} copy engines", self.inward.gpu().index())
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        *source.place() == Place::Pinned && *destination.place() == Place::Pinned
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> inlane_core::Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            return Err(out_of_reach(self, source, destination));
        }
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(self.inward.gpu(), EventKind::Completion)?,
        };
        let queued = self.queue(source, destination).and_then(|()| Ok(self.outward.record(&event)?));
        if let Err(error) = queued {
            // What was queued still reads and writes the caller's memory.
            let _ = (self.inward.synchronize(), self.outward.synchronize());
            return Err(error);
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
        self.flight.check(ticket)?;
        let first = self.flight.done();
        let Some(index) = (ticket.0.wrapping_sub(1)).checked_sub(first.0) else { return Ok(()) };
        let Some(Pending { event, .. }) = self.pending.get(index as usize) else { return Ok(()) };
        // The outward stream ends them in order: the event of the last one tells of all.
        let poll = || Ok(if event.is_passed()? { ticket } else { first });
        let name = format!("gpu:{} copy engines", self.inward.gpu().index());
        match completion {
            Completion::Interrupt => {
                event.synchronize()?;
                self.flight.complete(ticket, false);
            }
            Completion::Poll => self.flight.wait_polling(&|| name.clone(), ticket, poll)?,
            Completion::Adaptive => self.flight.wait_adaptive(&|| name.clone(), ticket, poll)?,
        }
        self.retire();
        Ok(())
    }
}

impl Drop for ThroughGpu {
    fn drop(&mut self) {
        if self.pending.is_empty() || self.inward.gpu().is_abandoned() {
            return;
        }
        for stream in [&self.inward, &self.outward] {
            if let Err(error) = stream.synchronize() {
                let error: Error = error;
                tracing::warn!("copies given up: {error}");
            }
        }
    }
}
