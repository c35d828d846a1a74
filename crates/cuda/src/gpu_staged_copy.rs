//! A mover from pinned host memory to pinned host memory, staged in GPU memory.

use crate::device::Gpu;
use crate::error::Result;
use crate::pending::{PendingCopies, drain};
use crate::stream::{Event, EventKind, Stream};
use inlane_core::mover::{Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Location, Region};
use std::sync::Arc;

/// The number of staging slots in GPU memory. While one copy engine fills a slot, the other empties another
/// slot.
const SLOTS: usize = 4;
/// The size of a staging slot in bytes.
const SLOT: usize = 4 << 20;
/// Transfers of at least this many bytes are copied in chunks of a whole staging slot. Smaller ones use
/// chunks of half a slot, because with too few chunks, one of the two copy engines is idle.
const LARGE: usize = 32 << 20;

/// A mover that copies between regions of pinned host memory with a GPU's DMA engines.
///
/// ```text
/// source --- copy engine 1 ---> slot n % 4 of GPU memory --- copy engine 2 ---> destination
/// stream inward:  wait free[n] | copy | record full[n]
/// stream outward: wait full[n] | copy | record free[n] | ... | the ticket's event after the last chunk
/// ```
///
/// Use it to copy without the CPU. The driver would execute a plain host-to-host copy on the CPU.
pub struct GpuStagedCopy {
    inward: Stream,
    outward: Stream,
    slots: Vec<Slot>,
    next: usize,
    pending: PendingCopies,
}

/// A staging slot. The event `full` completes when the slot has been filled. The event `free` completes when
/// the slot has been emptied.
struct Slot {
    memory: Region,
    full: Event,
    free: Event,
}

impl GpuStagedCopy {
    /// Creates a mover on `gpu`. It allocates 16 MiB of GPU memory.
    ///
    /// # Errors
    /// If there is not enough memory, or a driver call fails.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let event = || Event::new(gpu, EventKind::Completion);
        let slot = |_| Ok(Slot { memory: gpu.allocate(SLOT)?, full: event()?, free: event()? });
        Ok(Self {
            inward: gpu.stream()?,
            outward: gpu.stream()?,
            slots: (0..SLOTS).map(slot).collect::<Result<_>>()?,
            next: 0,
            pending: PendingCopies::new(),
        })
    }

    /// Queues the copies of one transfer, chunk by chunk.
    fn queue(&mut self, source: &Region, destination: &Region) -> inlane_core::Result<()> {
        let (mut at, chunk) = (0, if source.len() >= LARGE { SLOT } else { SLOT / 2 });
        while at < source.len() {
            let bytes = chunk.min(source.len() - at);
            let slot = &self.slots[self.next];
            self.next = (self.next + 1) % SLOTS;
            let (from, to) = (source.slice(at, bytes)?, destination.slice(at, bytes)?);
            let staging = slot.memory.slice(0, bytes)?;
            self.inward.wait_for(&slot.free)?;
            // SAFETY: the slot is free when this copy runs. The caller keeps the regions until the last chunk
            // has run.
            unsafe { self.inward.copy(&from, &staging)? };
            self.inward.record(&slot.full)?;
            self.outward.wait_for(&slot.full)?;
            // SAFETY: the slot is full when this copy runs. The caller keeps the regions until the last chunk
            // has run.
            unsafe { self.outward.copy(&staging, &to)? };
            self.outward.record(&slot.free)?;
            at += bytes;
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
            // Wait for the copies that were queued, because they still use the caller's memory.
            drain(&[&self.inward, &self.outward]);
            return Err(error);
        }
        // Return a ticket of the outward stream, because the last copy of each transfer runs on this stream.
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
