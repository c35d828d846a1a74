//! What the ceiling of a run is made of.

use inlane_core::units;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// The resource that limits a run, and how its capacity was measured.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum CeilingOf {
    /// The slowest network link.
    Link {
        /// True if packets flow in both directions.
        both_directions: bool,
    },
    /// A bare kernel that moves the same bytes.
    BareKernel {
        /// The number of the GPU.
        gpu: u32,
        /// What the kernel moves.
        moved: Moved,
        /// The rate of the GPU's copy engine. Null if packets lie in GPU memory.
        copy_engine_bytes_per_second: Option<f64>,
    },
}

/// What a bare kernel moves of each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Moved {
    /// It pulls whole packets into GPU memory.
    Whole,
    /// It pulls the front of packets into GPU memory.
    Front,
    /// It reads what the function reads of packets in pinned memory.
    ReadInPinnedMemory,
    /// It reads what the function reads of packets in GPU memory.
    ReadInGpuMemory,
}

impl fmt::Display for CeilingOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link { both_directions } => {
                write!(f, "the slowest link{}", if *both_directions { ", both directions" } else { "" })
            }
            Self::BareKernel { gpu, moved, copy_engine_bytes_per_second } => {
                let what = match moved {
                    Moved::Whole => "pulls whole packets into GPU memory",
                    Moved::Front => "pulls the front of packets into GPU memory",
                    Moved::ReadInPinnedMemory => "reads what the function reads of packets in pinned memory",
                    Moved::ReadInGpuMemory => "reads what the function reads of packets in GPU memory",
                };
                write!(f, "a bare kernel on gpu:{gpu} that {what} and writes 16 B of each back")?;
                copy_engine_bytes_per_second.map_or(Ok(()), |rate| {
                    write!(f, "; the copy engine moves {}", units::bytes_per_second(rate))
                })
            }
        }
    }
}
