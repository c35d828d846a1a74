//! The rows of `inlane forward`'s result document: the rates, latencies and losses of one run.

mod baseline;
mod ceiling;
mod explanation;
mod limit;
mod note;
mod parameters;
mod text;

use crate::method::Method;
use inlane_core::port::Counters;
use inlane_core::stats::{Percentiles, Summary};
use inlane_core::units::Rate;
use inlane_core::verification::Verification;
use inlane_function::FunctionReport;
use inlane_result::{Ceiling, PathExplanation, RowError};
use schemars::JsonSchema;
use serde::Serialize;

pub use crate::trial::{FailedRate, TrialFailure};
pub use baseline::{Baseline, BaselinePorts};
pub use ceiling::{CeilingOf, Moved};
pub use explanation::{LaunchShape, MethodChoice, MethodReason, MethodTrial};
pub use limit::{Evidence, Limit, LimitKind, Resource, Task};
pub use note::{InjectedFaults, Note};
pub use parameters::Parameters;

/// The packets of one direction of a run: received or transmitted.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct PacketTotals {
    /// The number of packets.
    pub packets: u64,
    /// The bytes of the packets' frames, without FCS.
    pub bytes: u64,
    /// The mean rate over the run.
    pub packets_per_second: f64,
    /// The mean rate of frame bits over the run.
    pub bits_per_second: f64,
    /// Packets that the port lost because no buffer or no reader was available.
    pub missed: u64,
    /// Packets that were malformed, refused by the device, or lost with the port.
    pub errors: u64,
}

impl PacketTotals {
    /// Returns the mean rate on an Ethernet line. It includes each frame's FCS, preamble and gap.
    pub fn line_bits_per_second(&self) -> f64 {
        self.bits_per_second + self.packets_per_second * (Rate::LINE_OVERHEAD * 8) as f64
    }

    /// Converts a port's counters to a flow that lasted `seconds`. If `seconds` is 0, the rates are 0.
    pub fn over(counters: &Counters, seconds: f64) -> Self {
        let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        Self {
            packets: counters.packets,
            bytes: counters.bytes,
            packets_per_second: rate(counters.packets as f64),
            bits_per_second: rate(counters.bytes as f64 * 8.0),
            missed: counters.missed,
            errors: counters.errors,
        }
    }

    /// Returns the mean number of bits in a frame. `None` if there was no packet.
    pub fn bits_per_packet(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.bytes as f64 * 8.0 / self.packets as f64)
    }
}

/// The result of one run.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct PacketResult {
    /// The settings of this run that differ between the rows: burst, method, size and others.
    pub parameters: Parameters,
    /// Why the run failed. The figures are then zero, or those up to the failure.
    pub error: Option<RowError>,
    /// The ports as the user named them: the receive port, then the transmit ports.
    pub ports: Vec<String>,
    /// The path that packets took, one hop description per direction.
    pub path: PathExplanation<Method, MethodReason>,
    /// The numbers of blocks, threads and streams of the kernels on a GPU. Null on the CPU.
    pub shape: Option<LaunchShape>,
    /// The highest rate that the resources of the path allow.
    pub ceiling: Option<Ceiling<CeilingOf>>,
    /// The baseline: the rate of a short run without the packet function. Null if that run was skipped.
    pub baseline: Option<Baseline>,
    /// The outcome of checking the packets. Null if nothing checked them.
    pub verification: Option<Verification>,
    /// The time during which the pipelines received and sent packets.
    pub duration_ns: u64,
    /// The received packets.
    pub rx: PacketTotals,
    /// The transmitted packets.
    pub tx: PacketTotals,
    /// Packets dropped because the pipeline was full and was told not to wait.
    pub dropped_overload: u64,
    /// Packets dropped by the packet function's verdict.
    pub dropped_verdict: u64,
    /// Packets dropped because the verdict named no port of the run, or the length exceeded the buffer.
    pub dropped_invalid: u64,
    /// Packets dropped because the transmit port failed, or accepted no more packets at the end.
    pub dropped_unsent: u64,
    /// Buffers that did not return to their pool. Any number above 0 is a defect of inlane.
    pub leaked_buffers: u64,
    /// The latency at the checker: from the time at which a packet was due to be sent until it arrives.
    pub latency: Option<Percentiles>,
    /// The latency of each stage. Null unless stages were measured.
    pub stages: Option<Stages>,
    /// The processor time of all threads of the pipelines.
    pub cpu_ns: u64,
    /// The memory with the words by which host and GPU hand over items of the burst ring. Null on the CPU.
    pub flags: Option<String>,
    /// Where packets lie, and which of their bytes cross PCIe. Null on the CPU.
    pub memory: Option<String>,
    /// The bytes that crossed PCIe because of the packets. `null` without a GPU.
    pub pcie: Option<Pcie>,
    /// The competing job. Null unless one ran.
    pub competitor: Option<Competitor>,
    /// Median and range over the repeats. The row's other figures are those of the run with the median rate.
    pub repeats: Option<Repeats>,
    /// What limited the rate of this run. Null for a run shorter than 10 ms.
    pub limit: Option<Limit>,
    /// The counters and tables that the packet function reports. Null if it reports none.
    pub function: Option<FunctionReport>,
}

/// The bytes that crossed PCIe between host and GPU because of the packets.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Pcie {
    /// The number of bytes that the packets caused to cross PCIe, in both directions together. Computed, not
    /// measured.
    pub modelled_bytes: u64,
    /// How `modelled_bytes` was computed.
    pub model: String,
    /// The rates that the GPU counted. Null unless they were asked for and the counter can be read.
    pub measured: Option<PcieMeasured>,
}

/// The rates that the GPU's own counter reports for its PCIe link.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PcieMeasured {
    /// The rate of all traffic into the GPU over its PCIe link, including traffic that the packets do not
    /// cause.
    pub in_bytes_per_second: Summary,
    /// The rate of all traffic out of the GPU over its PCIe link. Includes traffic that is not caused by
    /// packets.
    pub out_bytes_per_second: Summary,
    /// Which counter was read, and how.
    pub how: String,
}

/// A competing job. It ran on the same processor or GPU as the pipelines.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Competitor {
    /// What the competing job does.
    pub what: String,
    /// The rounds of work that the competing job did per second while it ran alone, before packets flowed.
    pub alone_per_second: f64,
    /// The competing job's rounds of work per second while packets flowed.
    pub beside_per_second: f64,
    /// The competing job's rate during the packet flow, divided by its rate when it ran alone.
    pub kept: f64,
}

/// Median and range over the repeats of a run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Repeats {
    /// The transmit rate.
    pub packets_per_second: Summary,
    /// The median latency.
    pub p50_ns: Option<Summary>,
    /// The 99th percentile of the latency.
    pub p99_ns: Option<Summary>,
}

impl PacketResult {
    /// Returns the transmit rate in packets per second. With repeats, it is the median of the repeats' rates.
    pub fn rate(&self) -> f64 {
        self.repeats.as_ref().map_or(self.tx.packets_per_second, |repeats| repeats.packets_per_second.median)
    }

    /// Returns the median latency in nanoseconds. With repeats, returns the median of the repeats' medians.
    /// Otherwise returns the median of [`PacketResult::total_latency`].
    pub fn p50_ns(&self) -> Option<f64> {
        let median =
            self.repeats.as_ref().and_then(|repeats| repeats.p50_ns.as_ref()).map(|summary| summary.median);
        median.or(self.total_latency().map(|p| p.p50_ns))
    }

    /// Returns the 99th percentile of the latency in nanoseconds. With repeats, returns the median of the
    /// repeats' percentiles. Otherwise returns the percentile of [`PacketResult::total_latency`].
    pub fn p99_ns(&self) -> Option<f64> {
        let median =
            self.repeats.as_ref().and_then(|repeats| repeats.p99_ns.as_ref()).map(|summary| summary.median);
        median.or(self.total_latency().map(|p| p.p99_ns))
    }

    /// Returns the latency from the time a packet was due to its arrival at the checker. If that was not
    /// measured, returns the latency from receive to transmit.
    pub fn total_latency(&self) -> Option<&Percentiles> {
        self.latency.as_ref().or(self.stages.as_ref().and_then(|stages| stages.total.as_ref()))
    }
}

/// The time that packets spent in each stage of a pipeline.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Stages {
    /// The time from receiving a packet to submitting it to the ring.
    pub queue: Option<Percentiles>,
    /// The time from submitting a packet to the ring until the packet function has processed it.
    pub process: Option<Percentiles>,
    /// The time from the end of processing until the packet is passed to the transmit port.
    pub send: Option<Percentiles>,
    /// The time from receiving a packet until it is handed to the transmit port.
    pub total: Option<Percentiles>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_over_no_time_are_zero() {
        let flow = PacketTotals::over(&Counters { packets: 5, bytes: 320, ..Default::default() }, 0.0);
        assert_eq!((flow.packets, flow.packets_per_second), (5, 0.0));
        assert_eq!(
            PacketTotals::over(&Counters { packets: 5, bytes: 100, ..Default::default() }, 2.0)
                .bits_per_second,
            400.0
        );
    }
}
