//! Staging by copy engines: GPU A's writes chunks into a ring in pinned memory, GPU B's reads them out, ordered by events.
//!
//! ```text
//!  A's stream:  wait(emptied 0) copy -> slot 0, record filled 0 | ... slot 1 ... | ... slot 2 ...
//!  B's stream:        wait(filled 0) slot 0 -> copy, record emptied 0 | ... slot 1 ...
//! ```
//!
//! The CPU queues all of it at once and is not needed until the end. In the steady state the slower link direction is
//! always busy; the other adds only its first chunk, so a transfer that meets an idle pipeline begins with small ones.

use inlane_core::mover::{Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Location, Region, Result};
use inlane_cuda::{Event, EventKind, Gpu, Pending, Stream, drain};
use std::sync::Arc;

/// What can be tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tuning {
    /// Bytes of the largest chunk.
    pub chunk: usize,
    /// Chunks in the ring.
    pub slots: usize,
    /// Streams each side: with two, one copies while the other waits for its event.
    pub lanes: usize,
}

impl Tuning {
    /// What suits one direction alone, or both at once: on two H200, of 49 GB/s each way that the links allow at once, these carried 45 and
    /// those of one direction 37. Chunks of 4 MiB did best, and smaller rings than of 64 MiB; caches of the host may be why.
    pub fn suited(both_ways: bool) -> Self {
        let (chunk, slots) = if both_ways { (4 << 20, 4) } else { (8 << 20, 8) };
        Self { chunk, slots, lanes: 2 }
    }
}

/// The smallest chunk worth its events.
const SMALLEST: usize = 128 << 10;
/// Chunks from here on need no second stream to hide their events.
const LARGE: usize = 4 << 20;
/// Bytes that a link moves in the time that a chunk's events cost, about 3 us at 55 GB/s.
const CHUNK_COST: f64 = 165e3;

/// The chunks of a transfer. On an idle pipeline their size balances what a chunk costs against what the first one
/// delays (the square root of bytes times cost), and they begin small and end small; behind other transfers only their
/// cost counts, so they are as large as they may be.
pub fn chunks(bytes: usize, largest: usize, idle: bool) -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut left = bytes;
    if !idle {
        while left > 0 {
            sizes.push(left.min(largest));
            left -= left.min(largest);
        }
        return sizes;
    }
    let smallest = SMALLEST.min(largest);
    let best = ((bytes as f64 * CHUNK_COST).sqrt() as usize).next_power_of_two().clamp(smallest, largest);
    let mut tail = Vec::new();
    let mut size = (best / 4).max(smallest);
    // Up by doubling, down the same way; what is between has the best size.
    while size < best && left >= 4 * size {
        sizes.push(size);
        tail.push(size);
        left -= 2 * size;
        size *= 2;
    }
    while left > 0 {
        sizes.push(left.min(best));
        left -= left.min(best);
    }
    sizes.extend(tail.into_iter().rev());
    sizes
}

struct Slot {
    memory: Region,
    filled: Event,
    emptied: Event,
}

/// A mover from one GPU's memory to another's, through the host.
pub struct Staged {
    from: u32,
    to: u32,
    out: Vec<Stream>,
    into: Vec<Stream>,
    ring: Vec<Slot>,
    next: usize,
    largest: usize,
    pending: Pending,
}

impl Staged {
    /// Allocates the ring and its streams.
    ///
    /// # Errors
    /// When there is not enough memory to pin, or the driver refuses.
    pub fn new(from: &Arc<Gpu>, to: &Arc<Gpu>, tuning: Tuning) -> Result<Self> {
        let lanes = tuning.lanes.clamp(1, 4);
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
        for length in chunks(source.len(), self.largest, self.pending.is_empty()) {
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

impl Mover for Staged {
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

impl Drop for Staged {
    fn drop(&mut self) {
        drain(&self.out.iter().chain(&self.into).collect::<Vec<_>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_idle_pipeline_begins_small() {
        let sizes = chunks(256 << 20, 8 << 20, true);
        assert_eq!(sizes[0], 2 << 20);
        assert_eq!(sizes.last(), Some(&(2 << 20)));
        assert_eq!(chunks(64 << 10, 8 << 20, true), [64 << 10]);
        assert_eq!(chunks(256 << 20, 8 << 20, false), vec![8 << 20; 32]);
    }

    proptest! {
        #[test]
        fn chunks_are_the_whole_transfer(bytes in 1usize..1 << 30, power in 12u32..24, idle: bool) {
            let sizes = chunks(bytes, 1 << power, idle);
            prop_assert_eq!(sizes.iter().sum::<usize>(), bytes);
            prop_assert!(sizes.iter().all(|size| *size > 0 && *size <= 1 << power));
        }
    }
}
