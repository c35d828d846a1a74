//! Work posted before its items come: methods `stream` and `graph`.
//!
//! ```text
//! stream   s0: wait word(p) = lap | kernel(p) | wait word(p+S) = lap | kernel(p+S) | ...      posted for one lap ahead
//! graph    chain 0: wait bit(slot) | kernel(slot) | ...      one graph a stretch of slots and parity of the lap
//! ```
//!
//! A graph's nodes are fixed, so it cannot wait for a lap; it waits for the lap's lowest bit. That tells laps apart because a
//! graph is launched for lap L only when every item of lap L-1 in its slots is done: the words then hold L-1 or L. No
//! parameter ever changes. The kernel takes the lap from the word.
//!
//! The kernel stores the completed word itself (it alone knows whether outcomes were written), so no write-value follows it.

use super::lane::Lane;
use super::launch::launch_item;
use crate::error::Result;
use inlane_core::ring::layout;
use inlane_core::ring::protocol::{Words, lap_of};
use inlane_cuda::{Graph, GraphExec, MemoryOperation, Stream, WaitUntil, argument};
use std::sync::atomic::Ordering;

/// The address of a slot's submitted word.
fn word_address(lane: &Lane, slot: u64) -> u64 {
    let burst = lane.ring.burst();
    lane.ring.submit_region().address() + (layout::LINE + slot as usize * layout::submit_stride(burst)) as u64
}

/// A wait that is over: for the first slot's word as it is before anything was submitted.
pub(super) fn unused_word(lane: &Lane) -> MemoryOperation {
    MemoryOperation::Wait { address: word_address(lane, 0), value: 0, until: WaitUntil::Equal }
}

/// Ends the waits for items that never came: `published` to `posted`. Their words get the lap that is waited for and no
/// packets, which kernels leave alone.
///
/// Call it only when the producer is gone: until then the words are its.
pub(super) fn release_waits(lane: &Lane, published: u64, posted: u64) {
    let slots = lane.slots() as u64;
    for position in published..posted.min(published + slots) {
        let slot = (position & (slots - 1)) as u32;
        lane.ring.submitted(slot).store(lap_of(position, slots as u32) as u64, Ordering::Release);
    }
}

/// Posts waits and kernels in streams.
pub(super) struct StreamPoster<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    posted: u64,
    ahead: u64,
}

impl<'a> StreamPoster<'a> {
    pub(super) fn new(lane: &'a Lane, streams: &'a [Stream]) -> Self {
        // As many as the ring holds; a stream's queue takes about 1,000 entries before posting blocks.
        let ahead = (lane.slots() as u64).min(streams.len() as u64 * 256);
        Self { lane, streams, posted: 0, ahead }
    }

    /// Posts until one lap ahead of `freed`; at most `limit` items, so that the caller gets back to its packets.
    ///
    /// # Errors
    /// When the driver refuses, or an earlier kernel failed.
    #[inline]
    pub(super) fn post(&mut self, freed: u64, limit: u64) -> Result<()> {
        let until = (freed + self.ahead).min(self.posted + limit);
        let slots = self.lane.slots() as u64;
        while self.posted < until {
            let stream = &self.streams[self.posted as usize % self.streams.len()];
            let wait = MemoryOperation::Wait {
                address: word_address(self.lane, self.posted & (slots - 1)),
                value: lap_of(self.posted, slots as u32),
                until: WaitUntil::Equal,
            };
            // SAFETY: the word lies in the lane's ring; the wait is satisfied by the producer, or by `release_waits`. The lane
            // outlives the streams.
            unsafe {
                stream.memory_operations(&[wait])?;
                launch_item(self.lane, stream, self.posted, self.lane.ring.burst() as u32)?;
            }
            self.posted += 1;
        }
        Ok(())
    }

    /// Items posted so far.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }
}

/// Launches graphs of waits and kernels.
pub(super) struct GraphPoster<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    /// Two a stretch of slots: for even and odd laps.
    graphs: Vec<[GraphExec; 2]>,
    items: u64,
    posted: u64,
}

impl<'a> GraphPoster<'a> {
    /// Builds and uploads them.
    ///
    /// # Errors
    /// When the driver refuses.
    pub(super) fn new(lane: &'a Lane, streams: &'a [Stream]) -> Result<Self> {
        let items = lane.settings.graph_items_for();
        let mut graphs = Vec::new();
        for first in (0..lane.slots()).step_by(items) {
            let mut pair = [build(lane, first, items, 0)?, build(lane, first, items, 1)?];
            for graph in &mut pair {
                graph.upload(&streams[0])?;
            }
            graphs.push(pair);
        }
        streams[0].synchronize()?;
        Ok(Self { lane, streams, graphs, items: items as u64, posted: 0 })
    }

    /// Launches graphs until one lap ahead of `freed`.
    ///
    /// # Errors
    /// When the driver refuses, or an earlier kernel failed.
    #[inline]
    pub(super) fn post(&mut self, freed: u64) -> Result<()> {
        let slots = self.lane.slots() as u64;
        while self.posted + self.items <= freed + slots {
            let number = self.posted / self.items;
            let index = number as usize % self.graphs.len();
            let odd = lap_of(self.posted, slots as u32) as usize & 1;
            let stream = &self.streams[number as usize % self.streams.len()];
            // SAFETY: nodes point into the lane, which outlives the streams; waits are satisfied by the producer or by
            // `release_waits`; every item of the lap before in these slots is done (the loop's condition).
            unsafe { self.graphs[index][odd].launch(stream)? };
            self.posted += self.items;
        }
        Ok(())
    }

    /// Items posted so far.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }
}

/// The graph of slots `first` to `first + items` for laps of one parity.
fn build(lane: &Lane, first: usize, items: usize, odd: u32) -> Result<GraphExec> {
    let branches = lane.settings.graph_branches_for();
    let mut graph = Graph::new(lane.program.gpu())?;
    for branch in 0..branches {
        let mut last = None;
        for slot in (first + branch..first + items).step_by(branches) {
            // An odd lap has its lowest bit set; an even one, that bit clear: the only bit that is clear in the value.
            let (value, until) = if odd == 1 { (1, WaitUntil::AnyBit) } else { (!1, WaitUntil::AnyBitClear) };
            let wait = MemoryOperation::Wait { address: word_address(lane, slot as u64), value, until };
            let index = slot as u32;
            let arguments = [argument(&lane.parameters), argument(&index), argument(&odd)];
            // SAFETY: addresses lie in the lane, which outlives the graph's launches; these are the parameters of `inlane_slot`.
            unsafe {
                let waited = graph.memory_operations(last.as_slice(), &[wait])?;
                last = Some(graph.kernel(&[waited], &lane.program.slot, lane.shape, arguments)?);
            }
        }
    }
    Ok(graph.instantiate()?)
}
