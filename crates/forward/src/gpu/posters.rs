//! Posting, for methods `stream` and `graph`: queues waits and kernels on the GPU before their items are
//! submitted. A wait ends when the word of the item's slot in the ring shows that the item was submitted.
//!
//! ```text
//! stream   stream 0 of S: wait word(p) = lap | kernel(p) | wait word(p+S) = lap | kernel(p+S) | ...
//! graph    chain 0: wait bit(slot) | kernel(slot) | ...   two graphs per stretch: for even and odd laps
//! ```
//!
//! Posting takes microseconds per item. If items arrive faster, they are submitted before their waits are
//! posted. One kernel, with a block per item, then processes all of them without waits. So posting does not
//! limit the packet rate.
//!
//! A graph's nodes have fixed parameters, so a node waits for the lowest bit of the lap. This bit is enough:
//! a graph is launched for lap L only after every item of lap L-1 in its slots is complete. So the slots'
//! words hold L-1 or L. The kernel takes the lap from the word.
//!
//! When an item is complete, the kernel itself stores the word that tells the host. Only the kernel knows
//! whether it wrote verdicts.

use super::lane::{Lane, Stretch};
use super::launch::launch_items;
use crate::error::Result;
use inlane_core::ring::{lap_of, layout};
use inlane_cuda::{Graph, GraphExec, LaunchConfig, MemoryOperation, Stream, WaitUntil, argument};

/// Returns the address of the word of `slot` by which the dispatcher submits an item. The low half of the
/// word is the lap.
fn word_address(lane: &Lane, slot: u64) -> u64 {
    let burst = lane.ring.burst();
    lane.ring.submit_region().address() + (layout::LINE + slot as usize * layout::submit_stride(burst)) as u64
}

/// Returns an operation that waits until the word of slot 0 is 0. The word is 0 until the first item is
/// submitted. Queue the operation before that, to make the driver set up a stream.
pub(super) fn unused_word(lane: &Lane) -> MemoryOperation {
    MemoryOperation::Wait { address: word_address(lane, 0), value: 0, until: WaitUntil::Equal }
}

/// The state of a ring on which posting depends. Tests implement this trait without using a GPU.
pub(super) trait RingView {
    /// Returns the number of the ring's slots.
    fn slots(&self) -> u64;
    /// Returns the number of items that the dispatcher has taken back.
    fn freed(&self) -> u64;
    /// Returns true if the item at `position` was submitted and its slot has not been reused.
    fn is_submitted(&self, position: u64) -> bool;
}

impl RingView for Lane {
    fn slots(&self) -> u64 {
        self.slots() as u64
    }

    #[inline]
    fn freed(&self) -> u64 {
        self.ring.freed()
    }

    #[inline]
    fn is_submitted(&self, position: u64) -> bool {
        self.submitted(position).is_some()
    }
}

/// Decides what to post next. Compares the number of posted items with the number of submitted items.
#[derive(Debug, Default)]
pub(super) struct PostingCursor {
    /// The number of items for which kernels have been posted so far.
    pub(super) posted: u64,
    /// The number of submitted items that `next` has found so far.
    submitted: u64,
}

/// A poster's decision: the operations that it posts to the GPU in its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextPost {
    /// Nothing.
    Nothing,
    /// Post kernels for this many submitted items.
    Kernels(u64),
    /// Post waits and kernels for the next stretch of consecutive items. Some of these items are not
    /// submitted yet.
    Waits,
}

impl PostingCursor {
    /// Decides what to post next. Items are posted in stretches: a stretch is `stretch` consecutive items.
    ///
    /// - If all items of the next stretch are submitted, posts kernels for all submitted stretches, but for
    ///   at most `most` items.
    /// - If some are not submitted, posts waits and kernels for the next stretch. Posts nothing if the end of
    ///   that stretch is more than `ahead` stretches beyond the submitted items. Posts nothing either if one
    ///   of its slots still holds an older item.
    #[inline]
    pub(super) fn next(&mut self, ring: &impl RingView, stretch: u64, ahead: u64, most: u64) -> NextPost {
        // Freed items count as submitted. Their slots may already be reused, so do not read the words.
        let freed = ring.freed();
        self.submitted = self.submitted.max(freed);
        while self.submitted < self.posted + most && ring.is_submitted(self.submitted) {
            self.submitted += 1;
        }
        let behind = self.submitted.saturating_sub(self.posted);
        let end = self.posted + stretch;
        if behind >= stretch {
            NextPost::Kernels(behind / stretch * stretch)
        } else if end <= self.submitted + ahead * stretch && end <= freed + ring.slots() {
            NextPost::Waits
        } else {
            NextPost::Nothing
        }
    }
}

/// Posts waits and kernels in streams, for method `stream`.
pub(super) struct StreamPoster<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    cursor: PostingCursor,
    /// The index of the stream to use next.
    turn: usize,
}

impl<'a> StreamPoster<'a> {
    pub(super) fn new(lane: &'a Lane, streams: &'a [Stream]) -> Self {
        Self { lane, streams, cursor: PostingCursor::default(), turn: 0 }
    }

    /// Launches one kernel for all submitted items. If no item is submitted, posts a wait and a kernel for
    /// the next item, unless each stream already has a wait. Returns false if it did neither.
    ///
    /// # Errors
    /// If a driver call fails, or an earlier kernel failed.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        let Self { lane, streams, cursor, turn } = self;
        let (position, slots) = (cursor.posted, lane.slots() as u64);
        let stream = &streams[*turn];
        let items = match cursor.next(*lane, 1, streams.len() as u64, slots) {
            NextPost::Nothing => return Ok(false),
            NextPost::Kernels(items) => items,
            NextPost::Waits => {
                let address = word_address(lane, position & (slots - 1));
                let value = lap_of(position, slots as u32);
                let wait = MemoryOperation::Wait { address, value, until: WaitUntil::Equal };
                // SAFETY: the word lies in the lane's ring, and the lane outlives the streams. The dispatcher
                // or `release_waits` satisfies the wait.
                unsafe { stream.memory_operations(&[wait])? };
                1
            }
        };
        // SAFETY: the lane outlives the streams.
        unsafe { launch_items(lane, stream, position, items as u32, lane.ring.burst() as u32)? };
        cursor.posted += items;
        *turn = (*turn + 1) % streams.len();
        Ok(true)
    }

    /// Returns the number of items whose kernels have been posted or launched.
    pub(super) fn posted(&self) -> u64 {
        self.cursor.posted
    }
}

/// Launches graphs of waits and kernels, for method `graph`.
pub(super) struct GraphPoster<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    stretches: Vec<Stretch>,
    /// The number of items in a stretch. A stretch is a run of consecutive items whose kernels one graph
    /// launches.
    items: u64,
    cursor: PostingCursor,
}

impl<'a> GraphPoster<'a> {
    /// Returns the graphs.
    pub(super) fn into_graphs(self) -> Vec<Stretch> {
        self.stretches
    }

    /// Builds all graphs and uploads them to the GPU.
    ///
    /// # Errors
    /// If a driver call fails.
    pub(super) fn new(lane: &'a Lane, streams: &'a [Stream]) -> Result<Self> {
        let items = lane.settings.graph_items_for();
        let mut stretches = Vec::new();
        for first in (0..lane.slots()).step_by(items) {
            let mut stretch = Stretch {
                waiting: [waiting(lane, first, items, 0)?, waiting(lane, first, items, 1)?],
                ready: [ready(lane, first, items, 0)?, ready(lane, first, items, 1)?],
            };
            for graph in stretch.waiting.iter_mut().chain(&mut stretch.ready) {
                graph.upload(&streams[0])?;
            }
            stretches.push(stretch);
        }
        streams[0].synchronize()?;
        Ok(Self { lane, streams, stretches, items: items as u64, cursor: PostingCursor::default() })
    }

    /// Launches a graph for the next stretch of items. If all items of the stretch were submitted, launches
    /// the graph without waits, else the graph with waits. Each stream holds at most one graph whose items
    /// are not submitted. Returns false if no graph was launched.
    ///
    /// # Errors
    /// If a driver call fails, or an earlier kernel failed.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        let Self { lane, streams, stretches, items, cursor } = self;
        let (number, count) = ((cursor.posted / *items) as usize, stretches.len());
        let stretch = &mut stretches[number % count];
        let graphs = match cursor.next(*lane, *items, streams.len() as u64, *items) {
            NextPost::Nothing => return Ok(false),
            NextPost::Kernels(_) => &mut stretch.ready,
            NextPost::Waits => &mut stretch.waiting,
        };
        let odd = lap_of(cursor.posted, lane.slots() as u32) as usize & 1;
        // SAFETY: the addresses of the nodes are in the lane, which outlives the streams. The dispatcher or
        // `release_waits` satisfies the waits. Every item of the previous lap in these slots is complete,
        // because `next` posts for a slot only after the slot's previous item was freed.
        unsafe { graphs[odd].launch(&streams[number % streams.len()])? };
        cursor.posted += *items;
        Ok(true)
    }

    /// Returns the number of items whose kernels have been posted or launched.
    pub(super) fn posted(&self) -> u64 {
        self.cursor.posted
    }
}

/// Builds a graph that processes `items` slots of the lane's ring, starting with slot `first`. Before each
/// kernel, the graph waits until the slot's item is submitted. `odd` is 1 for odd laps of the ring, 0 for
/// even laps.
fn waiting(lane: &Lane, first: usize, items: usize, odd: u32) -> Result<GraphExec> {
    let branches = lane.settings.graph_branches_for();
    let mut graph = Graph::new(lane.loaded.gpu())?;
    for branch in 0..branches {
        let mut last = None;
        for slot in (first + branch..first + items).step_by(branches) {
            // In an odd lap, wait until the word's lowest bit is set. In an even lap, wait until this bit is
            // clear. `AnyBitClear` ignores the bits that are set in `value`, which are all bits but the
            // lowest.
            let (value, until) = if odd == 1 { (1, WaitUntil::AnyBit) } else { (!1, WaitUntil::AnyBitClear) };
            let wait = MemoryOperation::Wait { address: word_address(lane, slot as u64), value, until };
            let index = slot as u32;
            let arguments = [argument(&lane.parameters), argument(&index), argument(&odd)];
            // SAFETY: the addresses lie in the lane, which outlives all launches of the graph. The arguments
            // match the kernel's parameters. The dependencies are nodes of this graph.
            unsafe {
                let waited = graph.memory_operations(last.as_slice(), &[wait])?;
                last = Some(graph.kernel(&[waited], &lane.loaded.slots, lane.shape, arguments)?);
            }
        }
    }
    Ok(graph.instantiate()?)
}

/// Builds a graph that processes the `items` slots from slot `first` on, without waiting for them. If `odd`
/// is 1, the graph serves odd laps. If it is 0, the graph serves even laps.
fn ready(lane: &Lane, first: usize, items: usize, odd: u32) -> Result<GraphExec> {
    let mut graph = Graph::new(lane.loaded.gpu())?;
    let index = first as u32;
    let arguments = [argument(&lane.parameters), argument(&index), argument(&odd)];
    let shape = LaunchConfig { blocks: items as u32, ..lane.shape };
    // SAFETY: as in `waiting`.
    unsafe { graph.kernel(&[], &lane.loaded.slots, shape, arguments)? };
    Ok(graph.instantiate()?)
}
