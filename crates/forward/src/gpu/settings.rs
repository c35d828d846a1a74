//! What can be chosen of a GPU executor.

use crate::config::Method;
use crate::error::{Error, Result};
use crate::pipeline::circulate::Limits;
use inlane_function::CallKind;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Where the GPU finds packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Memory {
    /// In pinned host memory: worked on in place, over PCIe.
    #[default]
    Pinned,
    /// In pinned host memory, pulled into GPU memory by the kernel; what the function changed is written back.
    Gpu,
    /// As [`Memory::Gpu`], only so many bytes at each packet's front.
    Split(u32),
    /// In GPU memory from the start, for ports that never touch payload.
    Pool,
}

impl Memory {
    /// Most bytes of a packet that are pulled.
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
                format!("--memory {text}"),
                "choose pinned (read in place), gpu (pulled into GPU memory), or gpu-pool (buffers in GPU memory, \
                 for ports that never touch payload)",
            )),
        }
    }
}

/// How a GPU executor is set up. Zeros stand for what suits burst and method.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How control flows.
    pub method: Method,
    /// Where packets are.
    pub memory: Memory,
    /// Blocks of a persistent kernel.
    pub blocks: u32,
    /// Threads a block.
    pub threads: u32,
    /// Streams that kernels are launched or posted in.
    pub streams: u32,
    /// Items of a graph.
    pub graph_items: u32,
    /// Chains of a graph that run beside each other.
    pub graph_branches: u32,
    /// Pause of a block between two looks at the ring.
    pub pause: Duration,
    /// An item that takes longer is stuck.
    pub watchdog: Duration,
    /// Packets' blocks are placed ahead of those of other jobs that wait for room.
    pub urgent: bool,
    /// Whether the GPU's own counters of its PCIe link are sampled during the run.
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
            watchdog: Duration::from_secs(2),
            urgent: true,
            measure_pcie: false,
        }
    }
}

/// Most threads a block; the kernels are compiled for it.
pub(super) const MOST_THREADS: u32 = 512;

/// Most items of a ring where each may be a launch. The driver is known to keep about a thousand (documented nowhere, and not measured here):
/// who launches more waits in it, and for ever behind a function that never ends.
const MOST_LAUNCHES: usize = 512;

/// Work queues of a GPU, as the driver is told ([`inlane_cuda`]). Streams beyond them share one, and what waits there holds up what
/// is behind it, whosever it is.
const QUEUES: usize = 32;

impl Settings {
    /// As they are for each of `lanes` pipelines: whatever waits for packets on the GPU has a queue of its own.
    ///
    /// # Errors
    /// When more queues are asked for than there are.
    pub(super) fn among(&self, lanes: u32, ticks: bool) -> Result<Self> {
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
                    "--pipelines, --streams and --graph-branches ({lanes}, {}, {chains})",
                    own.streams_for()
                ),
                format!(
                    "{queues} streams would wait for packets, and a GPU has {QUEUES} queues for them; ask for fewer"
                ),
            ));
        }
        Ok(own)
    }

    /// Threads a block for items of `burst` packets: one a packet where a thread works on it in place, a warp a packet
    /// where payload is pulled, or the function takes the block as a whole.
    pub(super) fn threads_for(&self, burst: usize, kind: CallKind) -> u32 {
        let burst = burst as u32;
        let warps = self.memory.pull() != 0 || kind == CallKind::Burst;
        let wanted = match (self.threads, warps) {
            (0, false) => burst.clamp(32, 256),
            // Small items: more blocks rather than larger ones.
            (0, true) if burst < 64 => (burst * 32).clamp(128, 256),
            (0, true) => MOST_THREADS,
            (threads, _) => threads,
        };
        wanted.min(MOST_THREADS).next_multiple_of(32)
    }

    /// Blocks of a persistent kernel. Each that waits reads over PCIe all the time, and a lone packet waits behind those reads:
    /// few blocks for the small bursts that are asked for when latency counts, many where items must overlap.
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

    /// Streams that kernels are launched or posted in: a persistent one has one.
    pub(super) fn streams_for(&self) -> usize {
        match (self.streams, self.method) {
            (0, Method::Single) | (_, Method::Persistent) => 1,
            (0, Method::Graph) => 2,
            (0, _) => 8,
            (streams, _) => streams.min(64) as usize,
        }
    }

    /// How many items of up to `burst` packets may be out.
    pub(super) fn limits(&self, burst: usize) -> Limits {
        let partial = match self.method {
            Method::Single => return Limits { all: 1, ..Limits::NONE },
            // More small items than this and one thread cannot keep up with them.
            Method::Persistent => self.blocks_for(burst).min(16) as u64,
            // A launch takes a third of the time of an item.
            Method::Split => 4,
            Method::Stream => self.streams_for() as u64,
            Method::Graph => (self.streams_for() * self.graph_branches_for()) as u64,
        };
        Limits { partial, ..Limits::NONE }
    }

    /// Items of the ring: at least `asked`, as far as the driver keeps so many launches, and so many that every block has some in hand
    /// and some to come.
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

    /// Items of a graph: a power of two, so that graphs tile the ring.
    pub(super) fn graph_items_for(&self) -> usize {
        match self.graph_items {
            0 => 16,
            items => items.min(1024).next_power_of_two() as usize,
        }
    }

    /// Chains of a graph: a power of two that divides its items.
    pub(super) fn graph_branches_for(&self) -> usize {
        let branches = if self.graph_branches == 0 { 4 } else { self.graph_branches as usize };
        branches.next_power_of_two().min(self.graph_items_for())
    }
}
