//! Rows of forward's result document.

mod text;

use inlane_core::port::Counters;
use inlane_core::result::Ceiling;
use inlane_core::stats::{Percentiles, Summary};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// One direction of a packet result.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct Flow {
    /// Packets that crossed.
    pub packets: u64,
    /// Bytes of their frames, without FCS.
    pub bytes: u64,
    /// Packets a second over the run.
    pub packets_per_second: f64,
    /// Bits of frames a second over the run.
    pub bits_per_second: f64,
    /// Lost in the port for want of a buffer or a reader.
    pub missed: u64,
    /// Refused, malformed, or lost with the port.
    pub errors: u64,
}

impl Flow {
    /// From a port's counters over `seconds`.
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

    /// Bits of a frame, on average; `None` where there was none.
    pub fn bits_per_packet(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.bytes as f64 * 8.0 / self.packets as f64)
    }
}

/// A result of forwarding.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct PacketResult {
    /// What distinguishes this run from its neighbours (burst, method, size, ...).
    pub parameters: BTreeMap<String, String>,
    /// What went wrong; the figures are then zero, or those up to there.
    pub error: Option<String>,
    /// The ports, as named: the one received from, then those sent to.
    pub ports: Vec<String>,
    /// The chain that packets took, for each direction.
    pub path: Vec<String>,
    /// Blocks, threads and streams on a GPU.
    pub shape: Option<String>,
    /// The most that the path's resources allow, where it was calibrated.
    pub ceiling: Option<Ceiling>,
    /// How long packets flowed.
    pub duration_ns: u64,
    /// What came in.
    pub rx: Flow,
    /// What went out.
    pub tx: Flow,
    /// Dropped because the pipeline was full (`--overload drop`).
    pub dropped_overload: u64,
    /// Dropped by the packet function's verdict.
    pub dropped_verdict: u64,
    /// Dropped because a verdict or length made no sense.
    pub dropped_invalid: u64,
    /// Dropped because the sending port took no more at the end, or failed.
    pub dropped_unsent: u64,
    /// Buffers that did not come back to their pool: always 0, or it is a defect.
    pub leaked_buffers: u64,
    /// Latency against when each packet was due.
    pub latency: Option<Percentiles>,
    /// Latency by stage, where it was asked for.
    pub stages: Option<Stages>,
    /// Processor time of all pipeline threads.
    pub cpu_ns: u64,
    /// Where the ring's flags lie.
    pub flags: Option<String>,
    /// Where packets lie and what of them crosses PCIe.
    pub memory: Option<String>,
    /// What crossed PCIe because of packets; `null` without a GPU.
    pub pcie: Option<Pcie>,
    /// The job that ran beside, where one was asked for.
    pub competitor: Option<Competitor>,
    /// Over repeats, of which the figures above are those of the run with the median rate.
    pub repeats: Option<Repeats>,
    /// What limited this run: a word or a few, a colon, and how that was seen. `null` for what was too short to tell.
    pub limit: Option<String>,
    /// What the packet function reports of its state.
    pub function: Option<serde_json::Value>,
}

/// What crossed PCIe.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Pcie {
    /// Computed, each way summed.
    pub modelled_bytes: u64,
    /// How.
    pub model: String,
    /// As the device counted, where that was asked for and can be read.
    pub measured: Option<PcieMeasured>,
}

/// What the device's own counter says of its link.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PcieMeasured {
    /// Into the device, everything that shares the link included.
    pub in_bytes_per_second: Summary,
    /// Out of it.
    pub out_bytes_per_second: Summary,
    /// Which counter.
    pub how: String,
}

/// A job that ran on the same processor or GPU.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Competitor {
    /// What it does.
    pub what: String,
    /// Its rounds of work a second before packets flowed.
    pub alone_per_second: f64,
    /// The same while they did.
    pub beside_per_second: f64,
    /// What it kept of its speed: `beside_per_second / alone_per_second`.
    pub kept: f64,
}

/// Medians and spread over repeats of one run.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Repeats {
    /// Packets a second sent.
    pub packets_per_second: Summary,
    /// Latency, median.
    pub p50_ns: Option<Summary>,
    /// Latency, 99 % of packets.
    pub p99_ns: Option<Summary>,
}

impl PacketResult {
    /// Packets sent a second: the median where the run was repeated.
    pub fn rate(&self) -> f64 {
        self.repeats.map_or(self.tx.packets_per_second, |repeats| repeats.packets_per_second.median)
    }

    /// Half of the packets took at most this: the median where the run was repeated.
    pub fn p50_ns(&self) -> Option<f64> {
        let median = self.repeats.and_then(|repeats| repeats.p50_ns).map(|summary| summary.median);
        median.or(self.total_latency().map(|p| p.p50_ns))
    }

    /// 99 % of the packets took at most this: the median where the run was repeated.
    pub fn p99_ns(&self) -> Option<f64> {
        let median = self.repeats.and_then(|repeats| repeats.p99_ns).map(|summary| summary.median);
        median.or(self.total_latency().map(|p| p.p99_ns))
    }

    /// Latency against when packets were due, or where that is not known from received to sent, where stages were timed.
    pub fn total_latency(&self) -> Option<&Percentiles> {
        self.latency.as_ref().or(self.stages.as_ref().and_then(|stages| stages.total.as_ref()))
    }
}

/// Time that packets spent in each stage.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Stages {
    /// From received to queued in the ring.
    pub queue: Option<Percentiles>,
    /// From queued to processed.
    pub process: Option<Percentiles>,
    /// From processed to handed to the sending port.
    pub send: Option<Percentiles>,
    /// From received to handed to the sending port.
    pub total: Option<Percentiles>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_no_time_are_zero() {
        let flow = Flow::over(&Counters { packets: 5, bytes: 320, ..Default::default() }, 0.0);
        assert_eq!((flow.packets, flow.packets_per_second), (5, 0.0));
        assert_eq!(
            Flow::over(&Counters { packets: 5, bytes: 100, ..Default::default() }, 2.0).bits_per_second,
            400.0
        );
    }
}
