//! The settings of a GPU executor. Also the numbers of blocks, threads, streams and slots that result from
//! these settings.

use crate::error::{Error, Result};
use crate::field;
use crate::method::Method;
use crate::pipeline::circulate::InFlightLimits;
use inlane_function::CallKind;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Where packets are stored. Also whether the GPU processes them in place or pulls them into its own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Packets lie in pinned host memory. The GPU processes them in place, over PCIe.
    #[default]
    Pinned,
    /// Packets lie in pinned host memory. The kernel pulls them into GPU memory and writes changes back.
    Gpu,
    /// Like [`Memory::Gpu`], but the kernel pulls only this many bytes from the front of each packet.
    Split(u32),
    /// Packets lie in GPU memory from the start. Only for ports that never access packet bytes with the CPU.
    Pool,
}

impl Memory {
    /// Returns the most bytes per packet that the kernel copies into GPU memory: 0 if packets are processed
    /// where they lie.
    pub(super) fn pull(&self) -> u32 {
        match self {
            Memory::Pinned | Memory::Pool => 0,
            Memory::Gpu => u32::MAX,
            Memory::Split(bytes) => *bytes,
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Pinned => f.write_str("pinned"),
            Memory::Gpu => f.write_str("gpu"),
            Memory::Split(bytes) => write!(f, "split {bytes}"),
            Memory::Pool => f.write_str("gpu-pool"),
        }
    }
}

impl FromStr for Memory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "pinned" => Ok(Memory::Pinned),
            "gpu" => Ok(Memory::Gpu),
            "gpu-pool" => Ok(Memory::Pool),
            _ => Err(Error::config(
                field::MEMORY.with(text),
                "choose one of pinned (processed in place), gpu (pulled into GPU memory), gpu-pool (buffers in GPU memory, \
                 for ports that never touch payload)",
            )),
        }
    }
}

/// The settings of a GPU executor. For a number that is 0, inlane chooses a suitable value.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The method.
    pub method: Method,
    /// Where packets lie, and whether the GPU pulls them into its own memory.
    pub memory: Memory,
    /// The number of blocks of a persistent kernel.
    pub blocks: u32,
    /// The number of threads per block.
    pub threads: u32,
    /// The number of CUDA streams that are used to launch or post kernels.
    pub streams: u32,
    /// The number of items that one launch of a CUDA graph processes.
    pub graph_items: u32,
    /// The number of chains that a graph's items are divided into. The chains run side by side.
    pub graph_branches: u32,
    /// The pause of a block between two polls of the ring.
    pub pause: Duration,
    /// If true, the GPU starts the streams' blocks before waiting blocks of other jobs. If false, streams
    /// have CUDA's normal priority.
    pub high_priority: bool,
    /// True if the GPU's own counters of its PCIe link are sampled during the run.
    pub measure_pcie: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            method: Method::Persistent,
            memory: Memory::default(),
            blocks: 0,
            threads: 0,
            streams: 0,
            graph_items: 0,
            graph_branches: 0,
            pause: Duration::ZERO,
            high_priority: true,
            measure_pcie: false,
        }
    }
}

/// The most threads per block. The kernels are compiled with this limit.
pub(super) const MOST_THREADS: u32 = 512;

/// The limit on the requested ring slots if each item may need a launch. The driver's queue is reported to
/// hold about a thousand launches (not measured here). A launch into a full queue blocks.
const MOST_LAUNCHES: usize = 512;

/// The number of hardware queues that inlane requests from the driver. If several streams share a queue, a
/// wait in one blocks the others.
const QUEUES: usize = 32;

impl Settings {
    /// Returns the settings for each of `lanes` pipelines that share a GPU. Each stream with waits gets its
    /// own hardware queue. Set `ticks` if the function has a `tick`, because each lane then needs one more
    /// stream.
    ///
    /// # Errors
    /// If the settings need more queues than the GPU has.
    pub(super) fn for_lanes(&self, lanes: u32, ticks: bool) -> Result<Self> {
        let mut own = self.clone();
        if !matches!(self.method, Method::Stream | Method::Graph) {
            return Ok(own);
        }
        let each = (QUEUES / lanes.max(1) as usize).saturating_sub(ticks as usize);
        if own.streams == 0 {
            let streams = if self.method == Method::Graph && each < 8 { 1 } else { self.streams_for() };
            own.streams = streams.clamp(1, each.max(1)) as u32;
        }
        let chains = match self.method {
            Method::Graph => {
                if own.graph_branches == 0 {
                    let most = (each / own.streams_for()).max(1);
                    own.graph_branches = (1 << most.ilog2()).min(self.graph_branches_for()) as u32;
                }
                own.graph_branches_for()
            }
            _ => 1,
        };
        let queues = lanes as usize * (own.streams_for() * chains + ticks as usize);
        if queues > QUEUES {
            return Err(Error::config(
                format!(
                    "{}, {} and {} ({lanes}, {}, {chains})",
                    field::PIPELINES,
                    field::STREAMS,
                    field::GRAPH_BRANCHES,
                    own.streams_for()
                ),
                format!(
                    "{queues} streams would wait for packets, but a GPU has {QUEUES} queues; ask for fewer"
                ),
            ));
        }
        Ok(own)
    }

    /// Returns the threads per block for items of `burst` packets: a thread per packet, or a warp per packet
    /// if packets are copied into GPU memory or the function is called per burst.
    pub(super) fn threads_for(&self, burst: usize, kind: CallKind) -> u32 {
        let burst = burst as u32;
        let warps = self.memory.pull() != 0 || kind == CallKind::Burst;
        let wanted = match (self.threads, warps) {
            (0, false) => burst.clamp(32, 256),
            // For items of few packets, many small blocks are faster than few large ones.
            (0, true) if burst < 64 => (burst * 32).clamp(128, 256),
            (0, true) => MOST_THREADS,
            (threads, _) => threads,
        };
        wanted.min(MOST_THREADS).next_multiple_of(32)
    }

    /// Returns the number of blocks of a persistent kernel. This is the number in the settings, or else a
    /// number that suits the burst. Small bursts get few blocks, because waiting blocks poll over PCIe and
    /// delay packets. Bursts of at least 64 packets get half as many blocks as bursts of 8 to 63 packets.
    pub(super) fn blocks_for(&self, burst: usize) -> u32 {
        match (self.blocks, self.memory.pull()) {
            (0, _) if burst <= 2 => 4,
            (0, _) if burst < 8 => 16,
            (0, 0) if burst >= 64 => 32,
            (0, 0) => 64,
            (0, _) if burst >= 64 => 64,
            (0, _) => 128,
            (blocks, _) => blocks,
        }
    }

    /// Returns the number of streams for launches; 1 for a persistent kernel.
    pub(super) fn streams_for(&self) -> usize {
        match (self.streams, self.method) {
            (0, Method::Single) | (_, Method::Persistent) => 1,
            (0, Method::Graph) => 2,
            (0, _) => 8,
            (streams, _) => streams.min(64) as usize,
        }
    }

    /// Returns the limits on the number of items in flight. Items have up to `burst` packets.
    pub(super) fn limits(&self, burst: usize) -> InFlightLimits {
        let partial = match self.method {
            Method::Single => return InFlightLimits { all: 1, ..InFlightLimits::NONE },
            // Allow one partial burst in flight per block to keep the blocks busy, but at most 16, because
            // the dispatching thread cannot keep up with more small items.
            Method::Persistent => self.blocks_for(burst).min(16) as u64,
            // Four items in flight keep the GPU busy. The launch takes about a third of an item's time from
            // launch to completion.
            Method::Split => 4,
            Method::Stream => self.streams_for() as u64,
            Method::Graph => (self.streams_for() * self.graph_branches_for()) as u64,
        };
        InFlightLimits { partial, ..InFlightLimits::NONE }
    }

    /// Returns the number of the ring's slots, a power of two: at least `asked`, enough to keep every block
    /// or stream busy, and at most `MAX_SLOTS`. With a feeder, `asked` is limited to [`MOST_LAUNCHES`].
    pub(crate) fn slots_for(&self, asked: usize, burst: usize) -> usize {
        let needed = match self.method {
            Method::Single => 2,
            Method::Persistent => (4 * self.blocks_for(burst) as usize).max((16384 / burst).min(1024)),
            Method::Split => 4 * self.streams_for(),
            Method::Stream => (8 * self.streams_for()).max((8192 / burst).min(256)),
            Method::Graph => (4 * self.graph_items_for()).max((8192 / burst).min(256)),
        };
        let asked = if self.method.has_feeder() { asked.min(MOST_LAUNCHES) } else { asked };
        asked.max(needed).next_power_of_two().min(inlane_core::ring::layout::MAX_SLOTS)
    }

    /// Returns the number of items that a graph processes. It is a power of two, so that graphs divide the
    /// ring evenly.
    pub(super) fn graph_items_for(&self) -> usize {
        match self.graph_items {
            0 => 16,
            items => items.min(1024).next_power_of_two() as usize,
        }
    }

    /// Returns the number of branches of a graph. Each branch is a chain of items, and the branches run in
    /// parallel. The number divides [`Settings::graph_items_for`], because both are powers of two. So all
    /// chains have the same length.
    pub(super) fn graph_branches_for(&self) -> usize {
        let branches = if self.graph_branches == 0 { 4 } else { self.graph_branches as usize };
        branches.next_power_of_two().min(self.graph_items_for())
    }
}
