//! Why a run used its method, and the shape of its kernels.

use crate::method::Method;
use inlane_core::units;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// The numbers of blocks, threads and streams of a pipeline's kernels on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum LaunchShape {
    /// A kernel that runs for the whole run.
    Resident {
        /// Blocks of the kernel.
        blocks: u32,
        /// Threads of each block.
        threads_per_block: u32,
    },
    /// Kernels in streams, with one block for each item.
    Streams {
        /// CUDA streams.
        streams: usize,
        /// Threads of each block.
        threads_per_block: u32,
    },
    /// CUDA graphs of kernels, with one block for each item.
    Graphs {
        /// Items of each graph.
        items: usize,
        /// Parallel chains of each graph.
        chains: usize,
        /// CUDA streams.
        streams: usize,
        /// Threads of each block.
        threads_per_block: u32,
    },
}

impl fmt::Display for LaunchShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let streams = |count: usize| units::counted(count as u64, "stream");
        match *self {
            Self::Resident { blocks, threads_per_block } => {
                write!(f, "{blocks} blocks of {threads_per_block} threads")
            }
            Self::Streams { streams: count, threads_per_block } => {
                write!(f, "{}, a block of {threads_per_block} threads per item", streams(count))
            }
            Self::Graphs { items, chains, streams: count, threads_per_block } => write!(
                f,
                "graphs of {items} items in {chains} chains, {}, a block of {threads_per_block} threads per item",
                streams(count)
            ),
        }
    }
}

/// Why a run used its method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum MethodReason {
    /// The result has no method.
    #[default]
    Unknown,
    /// The settings name the method, and no other was tried.
    Set {
        /// The method.
        method: Method,
    },
    /// Short trials of all methods chose it.
    Chosen(MethodChoice),
}

/// The outcome of trying all methods.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MethodChoice {
    /// The latency limit of the goal. Null for the goal of the highest rate.
    pub latency_limit_ns: Option<f64>,
    /// The number of trials.
    pub trials: usize,
    /// The duration of all trials.
    pub duration_ns: f64,
    /// The chosen trial.
    pub chosen: MethodTrial,
    /// The best trial of each other method.
    pub others: Vec<MethodTrial>,
    /// Candidates that were not tried because time ran out.
    pub left_out: usize,
}

/// What a trial of a method measured.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct MethodTrial {
    /// The method.
    pub method: Method,
    /// The largest number of packets in a burst.
    pub burst: usize,
    /// The flush time. Null for bursts of one packet and at full speed.
    pub flush_ns: Option<f64>,
    /// The rate at full speed.
    pub packets_per_second: f64,
    /// The 99th percentile of the latency. Null if it was not measured.
    pub p99_ns: Option<f64>,
    /// True if packets arrived at the offered rate while the latency was measured.
    pub carried: bool,
}

impl fmt::Display for MethodTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at burst {}", self.method, self.burst)?;
        if let Some(flush) = self.flush_ns {
            write!(f, ", flush {}", units::nanoseconds(flush))?;
        }
        write!(f, ": {}", units::packets_per_second(self.packets_per_second))?;
        if let Some(p99) = self.p99_ns {
            write!(f, ", p99 {}", units::nanoseconds(p99))?;
        }
        if self.carried { Ok(()) } else { f.write_str(" (below the offered rate)") }
    }
}

impl fmt::Display for MethodChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let aim = match self.latency_limit_ns {
            None => "the highest rate".to_string(),
            Some(limit) => format!("the highest rate with a p99 within {}", units::nanoseconds(limit)),
        };
        let others: Vec<String> = self.others.iter().map(MethodTrial::to_string).collect();
        let others = if others.is_empty() { "no other method ran".into() } else { others.join("; ") };
        write!(
            f,
            "auto: {aim} of {} short trials in {}, {}; best of the other methods: {others}",
            self.trials,
            units::nanoseconds(self.duration_ns),
            self.chosen
        )?;
        match self.left_out {
            0 => Ok(()),
            left_out => write!(f, "; {left_out} candidates were not tried because time ran out"),
        }
    }
}

impl fmt::Display for MethodReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => Ok(()),
            Self::Set { method } => {
                write!(f, "{} is {method}, and no other method was tried", crate::field::METHOD)
            }
            Self::Chosen(choice) => choice.fmt(f),
        }
    }
}
