//! Work posted before its items come: methods `stream` and `graph`.
//!
//! ```text
//! stream   s0: wait word(p) = lap | kernel(p) | wait word(p+S) = lap | kernel(p+S) | ...      posted some items ahead
//! graph    chain 0: wait bit(slot) | kernel(slot) | ...      one graph a stretch of slots and parity of the lap
//! ```
//!
//! Posting costs microseconds an item. When items come faster than that, they are there before anything was posted for them, and
//! need no wait: one kernel (or a graph of one kernel) then takes all that are there, a block an item. So waits are posted while
//! packets are few, and their number does not limit how many there can be.
//!
//! A graph's nodes are fixed, so it cannot wait for a lap; it waits for the lap's lowest bit. That tells laps apart because a
//! graph is launched for lap L only when every item of lap L-1 in its slots is done: the words then hold L-1 or L. No
//! parameter ever changes. The kernel takes the lap from the word.
//!
//! The kernel stores the completed word itself (it alone knows whether outcomes were written), so no write-value follows it.

use super::lane::Lane;
use super::launch::launch_items;
use crate::error::Result;
use inlane_core::ring::{lap_of, layout};
use inlane_cuda::{Graph, GraphExec, LaunchConfig, MemoryOperation, Stream, WaitUntil, argument};

/// The address of a slot's submitted word.
fn word_address(lane: &Lane, slot: u64) -> u64 {
    let burst = lane.ring.burst();
    lane.ring.submit_region().address() + (layout::LINE + slot as usize * layout::submit_stride(burst)) as u64
}

/// A wait that is over: for the first slot's word as it is before anything was submitted.
pub(super) fn unused_word(lane: &Lane) -> MemoryOperation {
    MemoryOperation::Wait { address: word_address(lane, 0), value: 0, until: WaitUntil::Equal }
}

/// What can be seen of a ring by who posts for it.
pub(super) trait RingView {
    /// Slots of the ring.
    fn slots(&self) -> u64;
    /// Items that are back.
    fn freed(&self) -> u64;
    /// The item at this position is there, and its slot not reused.
    fn is_there(&self, position: u64) -> bool;
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
    fn is_there(&self, position: u64) -> bool {
        self.submitted(position).is_some()
    }
}

/// How far the items are, and what was posted for them.
#[derive(Debug, Default)]
pub(super) struct PostingCursor {
    /// Items that something was posted for.
    pub(super) posted: u64,
    /// Items known to be there.
    there: u64,
}

/// What is to be posted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextPost {
    /// Nothing.
    Nothing,
    /// Work for so many items that are there.
    Work(u64),
    /// Waits and work for a stretch of items.
    Waits,
}

impl PostingCursor {
    /// What is due. Items are posted for in stretches of `stretch`, of which `ahead` may wait at a time, and at most `most` items that
    /// are there at once.
    #[inline]
    pub(super) fn due(&mut self, ring: &impl RingView, stretch: u64, ahead: u64, most: u64) -> NextPost {
        // Of items that are back, words tell nothing any more: their slots may have been used again.
        let freed = ring.freed();
        self.there = self.there.max(freed);
        while self.there < self.posted + most && ring.is_there(self.there) {
            self.there += 1;
        }
        let behind = self.there.saturating_sub(self.posted);
        let end = self.posted + stretch;
        if behind >= stretch {
            NextPost::Work(behind / stretch * stretch)
        } else if end <= self.there + ahead * stretch && end <= freed + ring.slots() {
            NextPost::Waits
        } else {
            NextPost::Nothing
        }
    }
}

/// Posts waits and kernels in streams.
pub(super) struct StreamPoster<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    cursor: PostingCursor,
    /// Whose turn it is.
    turn: usize,
}

impl<'a> StreamPoster<'a> {
    pub(super) fn new(lane: &'a Lane, streams: &'a [Stream]) -> Self {
        Self { lane, streams, cursor: PostingCursor::default(), turn: 0 }
    }

    /// Launches a kernel for all items that are there, or else posts a wait and a kernel for one to come: one a stream. False when
    /// nothing was due.
    ///
    /// # Errors
    /// When the driver refuses, or an earlier kernel failed.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        let Self { lane, streams, cursor, turn } = self;
        let (position, slots) = (cursor.posted, lane.slots() as u64);
        let stream = &streams[*turn];
        let items = match cursor.due(*lane, 1, streams.len() as u64, slots) {
            NextPost::Nothing => return Ok(false),
            NextPost::Work(items) => items,
            NextPost::Waits => {
                let address = word_address(lane, position & (slots - 1));
                let value = lap_of(position, slots as u32);
                let wait = MemoryOperation::Wait { address, value, until: WaitUntil::Equal };
                // SAFETY: the word lies in the lane's ring; the wait is satisfied by the producer, or by `release_waits`. The lane
                // outlives the streams.
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

    /// Items posted so far.
    pub(super) fn posted(&self) -> u64 {
        self.cursor.posted
    }
}

/// Launches graphs of waits and kernels.
pub(super) struct GraphPoster<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    stretches: Vec<Stretch>,
    /// Of a stretch.
    items: u64,
    cursor: PostingCursor,
}

/// The graphs of a stretch of slots, for even and odd laps.
struct Stretch {
    /// A wait and a kernel an item.
    waiting: [GraphExec; 2],
    /// For when all its items are there: a kernel with a block an item.
    ready: [GraphExec; 2],
}

impl<'a> GraphPoster<'a> {
    /// Builds and uploads them.
    ///
    /// # Errors
    /// When the driver refuses.
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

    /// Launches the graph of the next stretch: if all its items are there, or else, where a stream has no other waiting, ahead of
    /// them. False when nothing was due.
    ///
    /// # Errors
    /// When the driver refuses, or an earlier kernel failed.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        let Self { lane, streams, stretches, items, cursor } = self;
        let (number, count) = ((cursor.posted / *items) as usize, stretches.len());
        let stretch = &mut stretches[number % count];
        let graphs = match cursor.due(*lane, *items, streams.len() as u64, *items) {
            NextPost::Nothing => return Ok(false),
            NextPost::Work(_) => &mut stretch.ready,
            NextPost::Waits => &mut stretch.waiting,
        };
        let odd = lap_of(cursor.posted, lane.slots() as u32) as usize & 1;
        // SAFETY: nodes point into the lane, which outlives the streams; waits are satisfied by the producer or by
        // `release_waits`; every item of the lap before in these slots is done: else none could be there, or be waited for.
        unsafe { graphs[odd].launch(&streams[number % streams.len()])? };
        cursor.posted += *items;
        Ok(true)
    }

    /// Items posted so far.
    pub(super) fn posted(&self) -> u64 {
        self.cursor.posted
    }
}

/// The graph of slots `first` to `first + items` for laps of one parity, each item waited for.
fn waiting(lane: &Lane, first: usize, items: usize, odd: u32) -> Result<GraphExec> {
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
            // SAFETY: addresses lie in the lane, which outlives the graph's launches; these are the parameters of `inlane_slots`.
            unsafe {
                let waited = graph.memory_operations(last.as_slice(), &[wait])?;
                last = Some(graph.kernel(&[waited], &lane.program.slots, lane.shape, arguments)?);
            }
        }
    }
    Ok(graph.instantiate()?)
}

/// The graph of slots `first` to `first + items` for laps of one parity, when all are there.
fn ready(lane: &Lane, first: usize, items: usize, odd: u32) -> Result<GraphExec> {
    let mut graph = Graph::new(lane.program.gpu())?;
    let index = first as u32;
    let arguments = [argument(&lane.parameters), argument(&index), argument(&odd)];
    let shape = LaunchConfig { blocks: items as u32, ..lane.shape };
    // SAFETY: as for those that wait.
    unsafe { graph.kernel(&[], &lane.program.slots, shape, arguments)? };
    Ok(graph.instantiate()?)
}
