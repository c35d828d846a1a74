//! Staging by copy engines. The copy engine of GPU A writes chunks into a ring in pinned memory. The copy
//! engine of GPU B reads them from there.
//!
//! ```text
//!  A's stream:  wait(emptied 0) copy -> slot 0, record filled 0 | ... slot 1 ... | ... slot 2 ...
//!  B's stream:        wait(filled 0) slot 0 -> copy, record emptied 0 | ... slot 1 ...
//! ```
//!
//! Events order the two copies of a chunk. The CPU queues all copies of a transfer at once, then it is idle
//! until the end. In the steady state, the slower of the two copies determines the rate. The faster copy adds
//! only the time of one chunk, so a transfer on an idle path starts and ends with small chunks.

use crate::tuning::{EngineTuning, engine_chunks};
use inlane_core::mover::{Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Location, Region, Result};
use inlane_cuda::{Event, EventKind, Gpu, PendingCopies, Stream, drain};
use std::sync::Arc;

/// Chunks of at least this many bytes all use one stream. Their copies take so long that the cost of events
/// hardly matters.
const LARGE: usize = 4 << 20;

/// A slot of the ring, with the events that record when the slot was filled and when it was emptied.
struct Slot {
    memory: Region,
    filled: Event,
    emptied: Event,
}

/// A mover from one GPU's memory to another's through pinned host memory, by copy engines.
pub struct EngineStaged {
    from: u32,
    to: u32,
    out: Vec<Stream>,
    into: Vec<Stream>,
    ring: Vec<Slot>,
    next: usize,
    largest: usize,
    pending: PendingCopies,
}

impl EngineStaged {
    /// Allocates the ring in pinned memory and creates the streams.
    ///
    /// # Errors
    /// [`Error::Device`](inlane_core::Error::Device) if too little memory can be pinned, or the driver
    /// refuses.
    pub fn new(from: &Arc<Gpu>, to: &Arc<Gpu>, tuning: EngineTuning) -> Result<Self> {
        let streams = tuning.streams.clamp(1, 4);
        // Each stream needs two slots: one is filled while the other is emptied.
        let slots = tuning.slots.max(2 * streams);
        let memory = from.pinned(slots * tuning.chunk)?;
        let slot = |index: usize| -> Result<Slot> {
            Ok(Slot {
                memory: memory.slice(index * tuning.chunk, tuning.chunk)?,
                filled: Event::new(from, EventKind::Completion)?,
                emptied: Event::new(to, EventKind::Completion)?,
            })
        };
        Ok(Self {
            from: from.index(),
            to: to.index(),
            out: (0..streams).map(|_| from.stream()).collect::<Result<_, _>>()?,
            into: (0..streams).map(|_| to.stream()).collect::<Result<_, _>>()?,
            ring: (0..slots).map(slot).collect::<Result<_>>()?,
            next: 0,
            largest: tuning.chunk,
            pending: PendingCopies::new(),
        })
    }

    /// Returns the index of the stream for a chunk of `bytes` bytes. Small chunks alternate between the
    /// streams, so that one stream copies while another waits for an event. Large chunks all use stream 0:
    /// two copies at the same time would share the link, and both would end later.
    fn stream_for(&self, bytes: usize) -> usize {
        if bytes >= LARGE { 0 } else { self.next % self.out.len() }
    }

    /// Queues the two copies of one chunk: from the source to a slot of the ring, and from that slot to the
    /// destination. Returns the index of the slot.
    fn chunk(&mut self, source: &Region, destination: &Region) -> Result<usize> {
        let index = self.next % self.ring.len();
        let stream = self.stream_for(source.len());
        self.next += 1;
        let (slot, out, into) = (&self.ring[index], &self.out[stream], &self.into[stream]);
        let staged = slot.memory.slice(0, source.len())?;
        // Wait until the slot is empty. In the first lap, this does not wait. The driver treats an event that
        // was never recorded as completed.
        out.wait_for(&slot.emptied)?;
        // SAFETY: `pending` keeps source and destination, and `self` the ring, until the streams are drained.
        // The events order the two copies of a slot.
        unsafe { out.copy(source, &staged)? };
        out.record(&slot.filled)?;
        into.wait_for(&slot.filled)?;
        // SAFETY: `pending` keeps the destination, and `self` the ring, until the streams are drained. The
        // events order the two copies of a slot.
        unsafe { into.copy(&staged, destination)? };
        into.record(&slot.emptied)?;
        Ok(index)
    }

    fn transfer(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        let mut offset = 0;
        let mut last_of_stream = vec![None; self.out.len()];
        let mut last_stream = 0;
        for length in engine_chunks(source.len(), self.largest, self.pending.is_empty()) {
            last_stream = self.stream_for(length);
            let index = self.chunk(&source.slice(offset, length)?, &destination.slice(offset, length)?)?;
            last_of_stream[last_stream] = Some(index);
            offset += length;
        }
        // The transfer's ticket completes when the stream `end` does. So make `end` wait for the last chunk
        // of every other stream and for all earlier transfers.
        let end = &self.into[last_stream];
        for (stream, index) in last_of_stream.iter().enumerate() {
            if let Some(index) = index
                && stream != last_stream
            {
                end.wait_for(&self.ring[*index].emptied)?;
            }
        }
        if self.out.len() > 1 {
            self.pending.order_after_newest(end)?;
        }
        self.pending.push(end, [source.clone(), destination.clone()])
    }
}

impl Mover for EngineStaged {
    fn name(&self) -> String {
        self.hops().join(" -> ")
    }

    fn hops(&self) -> Vec<String> {
        let chunk = inlane_core::units::bytes(self.largest as u64);
        vec![
            format!("gpu:{} copy engine", self.from),
            format!("{} pinned chunks of up to {chunk}", self.ring.len()),
            format!("gpu:{} copy engine, {} streams each", self.to, self.out.len()),
        ]
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        *source.location() == Location::Gpu(self.from) && *destination.location() == Location::Gpu(self.to)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            return Err(out_of_reach(self, source, destination));
        }
        self.pending.done()?;
        let outcome = self.transfer(source, destination);
        if outcome.is_err() {
            // Wait until the chunks that are already queued are copied. After this call, nothing keeps the
            // regions of the transfer alive.
            drain(&self.out.iter().chain(&self.into).collect::<Vec<_>>());
        }
        outcome
    }

    fn done(&mut self) -> Result<Ticket> {
        self.pending.done()
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
        let (from, to) = (self.from, self.to);
        let name = || format!("staging from gpu:{from} to gpu:{to}");
        // Check the streams of the source's GPU (`out`) too. The ticket's event is on the destination's GPU
        // and does not show errors of the source's GPU.
        self.pending.wait(&name, ticket, completion, &self.out)
    }
}

impl Drop for EngineStaged {
    fn drop(&mut self) {
        drain(&self.out.iter().chain(&self.into).collect::<Vec<_>>());
    }
}
