//! What flags of `inlane forward` may be given: choices, lists, and all that concerns a GPU.

use clap::{Args, ValueEnum};
use inlane_core::units;
use inlane_forward::config::Method;
use inlane_forward::gpu::{self, Memory};
use std::time::Duration;

/// A method, or the one that suits best.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    Auto,
    Method(Method),
}

impl std::str::FromStr for Choice {
    type Err = inlane_forward::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" { Ok(Choice::Auto) } else { text.parse().map(Choice::Method) }
    }
}

/// What `--method auto` aims at.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Aim {
    /// The most packets a second
    Throughput,
}

/// How a GPU is used.
#[derive(Args, Debug)]
#[command(next_help_heading = "On a GPU")]
pub(super) struct OnGpu {
    /// Where packets are: pinned (host memory, worked on in place), gpu (pulled into GPU memory, changes written back), gpu-pool
    /// (buffers in GPU memory, for ports that never touch payload) [default: pinned]
    #[arg(long, value_name = "WHERE")]
    pub(super) memory: Option<Memory>,
    /// Pull only so many bytes of each packet into GPU memory; the rest of the payload stays in the host's
    #[arg(long, value_name = "BYTES")]
    pub(super) split: Option<u32>,
    /// Blocks of a persistent kernel; 0 chooses
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(super) blocks: u32,
    /// Threads a block; 0 chooses
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(super) threads: u32,
    /// Streams that kernels are launched or posted in; 0 chooses
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(super) streams: u32,
    /// Items of a graph; 0 chooses
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(super) graph_items: u32,
    /// Chains of a graph that run beside each other; 0 chooses
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(super) graph_branches: u32,
    /// Pause of a persistent kernel's blocks between two looks at the ring
    #[arg(long, default_value = "0", value_name = "TIME", value_parser = units::parse_time)]
    pub(super) pause: Duration,
    /// An item that the GPU does not finish in this time is stuck: the run ends with an error
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = units::parse_time)]
    pub(super) watchdog: Duration,
    /// Whether packets' kernels go ahead of other jobs' that wait for room on the GPU
    #[arg(long, value_enum, default_value_t = Priority::High)]
    pub(super) priority: Priority,
    /// Read the GPU's counter of what crosses its PCIe link, too (NVML)
    #[arg(long)]
    pub(super) measure_pcie: bool,
}

/// Against other jobs on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Priority {
    /// First
    High,
    /// In the order of arrival
    Normal,
}

/// What runs beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Compete {
    /// Nothing
    None,
    /// Arithmetic without end: on every multiprocessor of the GPU, or on every core that the pipelines use
    Compute,
    /// On a GPU: the same in blocks that take a multiprocessor each, as those of matrix products do
    Large,
}

impl OnGpu {
    /// What they come to.
    ///
    /// # Errors
    /// Where one would make nothing of another.
    pub(super) fn settings(&self) -> Result<gpu::Settings, inlane_forward::Error> {
        let memory = match (self.memory, self.split) {
            (None, None) => Memory::default(),
            (Some(memory), None) => memory,
            (None | Some(Memory::Gpu), Some(bytes)) => Memory::Split(bytes),
            (Some(memory), Some(_)) => {
                return Err(inlane_forward::Error::config(
                    format!("--memory {memory} and --split"),
                    "packets that stay where they are have no front that is pulled; leave one of them out",
                ));
            }
        };
        Ok(gpu::Settings {
            memory,
            blocks: self.blocks,
            threads: self.threads,
            streams: self.streams,
            graph_items: self.graph_items,
            graph_branches: self.graph_branches,
            pause: self.pause,
            watchdog: self.watchdog,
            urgent: self.priority == Priority::High,
            measure_pcie: self.measure_pcie,
            ..gpu::Settings::default()
        })
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum PlayPace {
    /// As fast as it goes
    Full,
    /// As its timestamps say
    Original,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum OnOverload {
    /// Wait; the port in front fills and counts what it misses
    Wait,
    /// Drop the newest packets, and count them
    Drop,
    /// Take fewer packets at a time until there is room
    Shrink,
}

/// `0,2,4-7` as a list.
pub(super) fn cores(list: &str) -> inlane_core::Result<Vec<usize>> {
    let bad = || inlane_core::Error::Quantity {
        text: list.into(),
        what: "a list of cores",
        why: "not numbers and ranges separated by commas".into(),
        example: "2,3 or 4-7 or none",
    };
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) =
            (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
        if last < first || last >= libc::CPU_SETSIZE as usize {
            return Err(bad());
        }
        cores.extend(first..=last);
    }
    Ok(cores)
}

/// A share of the highest rate without loss.
pub(super) fn percent(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|share| (0.01..=1000.0).contains(share)).ok_or("give per cents, 0.01 to 1000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_lists() {
        assert_eq!(cores("0,2,4-6").unwrap(), [0, 2, 4, 5, 6]);
        for bad in ["", "a", "3-1", "1,", "0-99999999"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
    }
}
