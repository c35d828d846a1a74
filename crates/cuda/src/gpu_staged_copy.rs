//! A mover from host memory to host memory through a GPU.

use crate::device::Gpu;
use crate::error::Result;
use crate::pending::{Pending, drain};
use crate::stream::{Event, EventKind, Stream};
use inlane_core::mover::{Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Location, Region};
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
pub struct GpuStagedCopy {
    inward: Stream,
    outward: Stream,
    slots: Vec<Slot>,
    next: usize,
    pending: Pending,
}

struct Slot {
    memory: Region,
    full: Event,
    free: Event,
}

impl GpuStagedCopy {
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
            pending: Pending::new(),
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
}

impl Mover for GpuStagedCopy {
    fn name(&self) -> String {
        format!("gpu:{} copy engines", self.inward.gpu().index())
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        *source.location() == Location::Pinned && *destination.location() == Location::Pinned
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> inlane_core::Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            return Err(out_of_reach(self, source, destination));
        }
        if let Err(error) = self.queue(source, destination) {
            // What was queued still reads and writes the caller's memory.
            drain(&[&self.inward, &self.outward]);
            return Err(error);
        }
        // The outward stream ends them in order.
        self.pending.push(&self.outward, [source.clone(), destination.clone()])
    }

    fn done(&mut self) -> inlane_core::Result<Ticket> {
        self.pending.done()
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> inlane_core::Result<()> {
        let device = || format!("gpu:{} copy engines", self.inward.gpu().index());
        self.pending.wait(&device, ticket, completion, std::slice::from_ref(&self.inward))
    }
}

impl Drop for GpuStagedCopy {
    fn drop(&mut self) {
        if !self.pending.is_empty() {
            drain(&[&self.inward, &self.outward]);
        }
    }
}
