//! What limited a run: the resource, how it is known, and the numbers that show it.

use inlane_core::units;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// What limited the rate of a run.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Limit {
    /// How the limit is known.
    pub kind: LimitKind,
    /// What limited the rate.
    pub resource: Resource,
    /// The numbers that show it, the most important first.
    pub evidence: Vec<Evidence>,
}

/// How a limit is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// The run processed all that was offered.
    Offered,
    /// The resource worked at its ceiling.
    Saturated,
    /// The threads of the resource had work nearly all the time.
    Busy,
    /// The pipeline was measured waiting for the resource.
    Waited,
    /// The measurements exclude all other resources.
    Excluded,
}

/// What can limit a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// The rate that a setting demands.
    OfferedRate,
    /// The receive port, which had no more packets.
    Source,
    /// The slowest network link.
    Link,
    /// The GPU's PCIe link.
    Pcie,
    /// The GPU's memory.
    GpuMemory,
    /// A transmit port.
    SendingPort,
    /// Processor time that a control group allows.
    CpuQuota,
    /// Processors that other threads used.
    Processors,
    /// System calls in which threads slept.
    SystemCalls,
    /// Processors or system calls: the kernel does not report which.
    ProcessorsOrSystemCalls,
    /// The dispatching thread.
    Thread,
    /// The thread that launches kernels.
    Launches,
    /// The thread that posts kernels.
    Posting,
    /// The receive and transmit ports.
    Ports,
    /// The worker threads.
    Workers,
    /// The round trip to the GPU, if one item at a time is in flight.
    RoundTrip,
    /// The GPU.
    Gpu,
}

/// A measurement that supports a limit. Shares are fractions from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Evidence {
    /// The received share of the offered packet rate.
    ArrivedPackets {
        /// The received rate.
        arrived_packets_per_second: f64,
        /// The rate that was set.
        offered_packets_per_second: f64,
    },
    /// The received share of the offered bit rate.
    ArrivedBits {
        /// The received rate.
        arrived_bits_per_second: f64,
        /// The rate that was set. Both rates are of frames, or both of an Ethernet line.
        offered_bits_per_second: f64,
    },
    /// No packet was lost.
    NothingLost,
    /// Packets were lost because the receive port or the pipeline was full.
    Lost {
        /// The number of lost packets.
        packets: u64,
    },
    /// The receive port always had a packet.
    AlwaysReady,
    /// Frames with preamble and gap filled a link.
    LinkUsed {
        /// The used share of the link.
        share: f64,
        /// The link's rate.
        link_bits_per_second: f64,
    },
    /// The rate as a share of the rate of a bare kernel that moves the same bytes.
    BareKernel {
        /// The share.
        share: f64,
    },
    /// The rates that the GPU counted on its PCIe link.
    GpuCounted {
        /// The rate into the GPU.
        in_bytes_per_second: f64,
        /// The rate out of the GPU.
        out_bytes_per_second: f64,
    },
    /// The transmit port accepted nothing for a share of the time.
    PortTookNothing {
        /// The share of the run's duration.
        share: f64,
    },
    /// The transmit port was full, and the packets were dropped.
    PortFull {
        /// The share of the received packets.
        share: f64,
    },
    /// The control group of the process was throttled.
    Throttled {
        /// The processors that the quota allows.
        cores: f64,
        /// The quota periods of the run.
        periods: u64,
        /// The periods in which the group used up its quota.
        throttled_periods: u64,
    },
    /// Threads were ready to run, and other threads used the processors.
    WaitedForCores {
        /// The share of the run's duration.
        share: f64,
        /// The number of the pipelines' threads.
        threads: usize,
    },
    /// Threads did not run, and the kernel does not report why.
    NotRunning {
        /// The share of the run's duration.
        share: f64,
        /// The number of the pipelines' threads.
        threads: usize,
    },
    /// Threads slept in system calls.
    BlockedInCalls {
        /// The share of the run's duration.
        share: f64,
        /// The number of the pipelines' threads.
        threads: usize,
    },
    /// Threads had work for a share of the time.
    Busy {
        /// What the threads do.
        task: Task,
        /// The smallest share of a thread.
        least_share: f64,
        /// The largest share of a thread.
        most_share: f64,
        /// The number of threads.
        threads: usize,
    },
    /// How the dispatching thread's work divides, from a sample of its bursts.
    Work {
        /// The share of receiving, which includes the generator's work.
        receive_share: f64,
        /// The share of the packet function and of added work.
        function_share: f64,
        /// The share of sending, which includes the checker's work.
        send_share: f64,
    },
}

/// The task of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Receives and sends packets.
    ReceiveAndSend,
    /// Launches kernels.
    LaunchKernels,
    /// Posts kernels.
    PostKernels,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::OfferedRate => "offered rate",
            Resource::Source => "source",
            Resource::Link => "link",
            Resource::Pcie => "PCIe",
            Resource::GpuMemory => "GPU memory",
            Resource::SendingPort => "sending port",
            Resource::CpuQuota => "CPU quota",
            Resource::Processors => "processors",
            Resource::SystemCalls => "system calls",
            Resource::ProcessorsOrSystemCalls => "processors or system calls",
            Resource::Thread => "thread",
            Resource::Launches => "launches",
            Resource::Posting => "posting",
            Resource::Ports => "ports",
            Resource::Workers => "workers",
            Resource::RoundTrip => "round trip to the GPU, one item at a time",
            Resource::Gpu => "GPU",
        })
    }
}

/// The resource, a colon, and the evidence.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let evidence: Vec<String> = self.evidence.iter().map(|one| one.text(self)).collect();
        write!(f, "{}: {}", self.resource, evidence.join("; "))
    }
}

impl Evidence {
    /// Returns the evidence as a part of the sentence about `limit`.
    fn text(&self, limit: &Limit) -> String {
        let only = if limit.kind == LimitKind::Offered { "" } else { "only " };
        let thread = |count: usize| if count == 1 { "thread" } else { "threads" };
        let was = |count: usize| if count == 1 { "was" } else { "were" };
        match *self {
            Evidence::ArrivedPackets { .. } | Evidence::ArrivedBits { .. } => {
                format!("{only}{}", self.arrived().unwrap_or_default())
            }
            Evidence::NothingLost => "nothing was lost".into(),
            Evidence::Lost { packets } => format!("{packets} packets were lost"),
            Evidence::AlwaysReady => "there was always more to receive".into(),
            Evidence::LinkUsed { share, link_bits_per_second } => format!(
                "frames with preamble and gap used {} of {}",
                percent(share),
                units::bits_per_second(link_bits_per_second)
            ),
            Evidence::BareKernel { share } if limit.kind == LimitKind::Saturated => {
                format!("{} of the rate of a bare kernel that moves the same bytes", percent(share))
            }
            Evidence::BareKernel { share } => format!("the rate is {} of a bare kernel's", percent(share)),
            Evidence::GpuCounted { in_bytes_per_second, out_bytes_per_second } => format!(
                "the GPU counted {} in and {} out",
                units::bytes_per_second(in_bytes_per_second),
                units::bytes_per_second(out_bytes_per_second)
            ),
            Evidence::PortTookNothing { share } => {
                format!("it took nothing for {} of the time", percent(share))
            }
            Evidence::PortFull { share } => {
                format!("it was full for {} of the packets, which were dropped", percent(share))
            }
            Evidence::Throttled { cores, periods, throttled_periods } => format!(
                "the control group may use {cores:.2} cores, and was throttled in {throttled_periods} of {periods} periods; \
                 raise its cpu.max"
            ),
            Evidence::WaitedForCores { share, threads } => format!(
                "the {} waited {} of the time for cores that other threads used",
                thread(threads),
                percent(share)
            ),
            Evidence::NotRunning { share, threads } => format!(
                "the {} {} not running for {} of the time",
                thread(threads),
                was(threads),
                percent(share)
            ),
            Evidence::BlockedInCalls { share, threads } => format!(
                "the {} {} blocked for {} of the time while {} read and wrote ports",
                thread(threads),
                was(threads),
                percent(share),
                if threads == 1 { "it" } else { "they" }
            ),
            Evidence::Busy { task, least_share, most_share, threads } => {
                let [one, several] = match task {
                    Task::ReceiveAndSend => ["receives and sends", "receive and send"],
                    Task::LaunchKernels => ["launches kernels", "launch kernels"],
                    Task::PostKernels => ["posts kernels", "post kernels"],
                };
                let (from, to) = (percent(least_share), percent(most_share));
                match threads {
                    1 => format!("the thread that {one} was busy {to} of the time"),
                    _ if from == to => format!("the threads that {several} were busy {to} of the time"),
                    _ => format!("the threads that {several} were busy {from} to {to} of the time"),
                }
            }
            Evidence::Work { receive_share, function_share, send_share } => format!(
                "of its work, receiving took {}, the function {}, sending {}",
                percent(receive_share),
                percent(function_share),
                percent(send_share)
            ),
        }
    }

    /// Returns the received and the offered rate as text. `None` for other evidence.
    pub(crate) fn arrived(&self) -> Option<String> {
        let (arrived, offered): (String, String) = match *self {
            Evidence::ArrivedPackets { arrived_packets_per_second, offered_packets_per_second } => (
                units::packets_per_second(arrived_packets_per_second),
                units::packets_per_second(offered_packets_per_second),
            ),
            Evidence::ArrivedBits { arrived_bits_per_second, offered_bits_per_second } => (
                units::bits_per_second(arrived_bits_per_second),
                units::bits_per_second(offered_bits_per_second),
            ),
            _ => return None,
        };
        Some(format!("{arrived} of {offered} arrived"))
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
