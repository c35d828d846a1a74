//! Staging by copy engines: GPU A's writes chunks into a ring in pinned memory, GPU B's reads them out, ordered by events.
//!
//! ```text
//!  A's stream:  wait(emptied 0) copy -> slot 0, record filled 0 | ... slot 1 ... | ... slot 2 ...
//!  B's stream:        wait(filled 0) slot 0 -> copy, record emptied 0 | ... slot 1 ...
//! ```
//!
//! The CPU queues all of it at once and is not needed until the end. In the steady state the slower link direction is
//! always busy; the other adds only its first chunk, so a transfer that meets an idle pipeline begins with small ones.

use crate::tuning::{EngineTuning, engine_chunks};
use inlane_core::mover::{Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Location, Region, Result};
use inlane_cuda::{Event, EventKind, Gpu, Pending, Stream, drain};
use std::sync::Arc;

/// A chunk of this size or more needs no second stream to hide the cost of its events.
const LARGE: usize = 4 << 20;

struct Slot {
    memory: Region,
    filled: Event,
    emptied: Event,
}

/// A mover from one GPU's memory to another's, through the host.
pub struct EngineStaged {
    from: u32,
    to: u32,
    out: Vec<Stream>,
    into: Vec<Stream>,
    ring: Vec<Slot>,
    next: usize,
    largest: usize,
    pending: Pending,
}

impl EngineStaged {
    /// Allocates the ring and its streams.
    ///
    /// # Errors
    /// When there is not enough memory to pin, or the driver refuses.
    pub fn new(from: &Arc<Gpu>, to: &Arc<Gpu>, tuning: EngineTuning) -> Result<Self> {
        let lanes = tuning.streams.clamp(1, 4);
        // Two slots a lane at least: one is filled while the other is emptied.
        let slots = tuning.slots.max(2 * lanes);
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
            out: (0..lanes).map(|_| from.stream()).collect::<Result<_, _>>()?,
            into: (0..lanes).map(|_| to.stream()).collect::<Result<_, _>>()?,
            ring: (0..slots).map(slot).collect::<Result<_>>()?,
            next: 0,
            largest: tuning.chunk,
            pending: Pending::new(),
        })
    }

    /// Small chunks alternate, so that one copies while another waits for its event; large ones follow each other in one
    /// stream, for two at once share a link and end later.
    fn lane_for(&self, bytes: usize) -> usize {
        if bytes >= LARGE { 0 } else { self.next % self.out.len() }
    }

    /// Queues one chunk, and gives its slot's number.
    fn chunk(&mut self, source: &Region, destination: &Region) -> Result<usize> {
        let index = self.next % self.ring.len();
        let lane = self.lane_for(source.len());
        self.next += 1;
        let (slot, out, into) = (&self.ring[index], &self.out[lane], &self.into[lane]);
        let staged = slot.memory.slice(0, source.len())?;
        // An event that was never recorded counts as passed: the first lap waits for nothing.
        out.wait_for(&slot.emptied)?;
        // SAFETY: source and destination are kept in `pending`, the ring in `self`, until the streams are drained; the
        // events keep the two copies of a slot apart.
        unsafe { out.copy(source, &staged)? };
        out.record(&slot.filled)?;
        into.wait_for(&slot.filled)?;
        // SAFETY: as above.
        unsafe { into.copy(&staged, destination)? };
        into.record(&slot.emptied)?;
        Ok(index)
    }

    fn transfer(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        let mut offset = 0;
        let mut last_of_lane = vec![None; self.out.len()];
        let mut last_lane = 0;
        for length in engine_chunks(source.len(), self.largest, self.pending.is_empty()) {
            last_lane = self.lane_for(length);
            let index = self.chunk(&source.slice(offset, length)?, &destination.slice(offset, length)?)?;
            last_of_lane[last_lane] = Some(index);
            offset += length;
        }
        // The end is when every lane has ended, and every transfer before.
        let end = &self.into[last_lane];
        for (lane, index) in last_of_lane.iter().enumerate() {
            if let Some(index) = index
                && lane != last_lane
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
        format!(
            "gpu:{} copy engine -> {} pinned chunks of up to {} -> gpu:{} copy engine, {} streams each",
            self.from,
            self.ring.len(),
            inlane_core::units::bytes(self.largest as u64),
            self.to,
            self.out.len()
        )
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
            // Part of it may be queued, and its regions are in nobody's keeping.
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
        // The end is one GPU's to tell, and waits for the other's copies.
        self.pending.wait(&name, ticket, completion, &self.out)
    }
}

impl Drop for EngineStaged {
    fn drop(&mut self) {
        drain(&self.out.iter().chain(&self.into).collect::<Vec<_>>());
    }
}
