//! What a reader must know besides the figures of a measurement, as data. Documents contain the texts.

use super::Evidence;
use crate::field;
use crate::trial::FailedRate;
use inlane_core::units;
use std::fmt;

/// What a reader must know before comparing figures with others.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// How packets were divided between the pipelines.
    Pipelines {
        /// The packets that each pipeline received.
        received_packets: Vec<u64>,
    },
    /// The GPU's counter of PCIe traffic could not be read.
    PcieNotMeasured {
        /// The error.
        why: String,
    },
    /// The faults that were injected.
    Faults(InjectedFaults),
    /// The round trip of a bare kernel with the same dependent reads as the executor, with one packet and one fence per
    /// item.
    BareRoundTrip {
        /// The median.
        p50_ns: f64,
        /// The 99th percentile.
        p99_ns: f64,
    },
    /// The reader of standard output closed the pipe, which ended the run.
    PipeClosed,
    /// The run received less than the rate that a setting demands.
    RateMissed {
        /// The received and the demanded rate.
        rates: Evidence,
    },
    /// No packet was received from a source that may have been empty.
    NoPackets {
        /// The name of the source.
        source: String,
        /// True for a ring, which is empty unless its specification fills it.
        is_ring: bool,
    },
    /// The search for the highest rate was stopped before a rate passed, so the result is that of the run without a set
    /// rate.
    SearchStopped,
    /// What the search for the highest rate without loss found.
    HighestRate {
        /// The highest rate without loss.
        packets_per_second: f64,
        /// The rate of the run without a set rate.
        unpaced_packets_per_second: f64,
    },
    /// Why the next higher rate failed.
    NextRateFailed(FailedRate),
    /// The duration of the trials.
    Trials {
        /// The duration of each trial.
        duration_ns: f64,
        /// True if the trials are as long as RFC 2544 asks for.
        follows_rfc_2544: bool,
    },
}

/// The numbers of packets with an injected fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectedFaults {
    /// Packets that were dropped.
    pub dropped: u64,
    /// Packets that were duplicated.
    pub duplicated: u64,
    /// Packets that were moved behind later ones.
    pub reordered: u64,
    /// Packets with a changed byte.
    pub corrupted: u64,
    /// Packets that were delayed.
    pub delayed: u64,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Pipelines { received_packets } => {
                let counts: Vec<String> = received_packets.iter().map(u64::to_string).collect();
                write!(f, "packets received by each pipeline: {}", counts.join(", "))
            }
            Note::PcieNotMeasured { why } => write!(f, "PCIe traffic was not measured: {why}"),
            Note::Faults(InjectedFaults { dropped, duplicated, reordered, corrupted, delayed }) => write!(
                f,
                "injected faults: {dropped} packets dropped, {duplicated} duplicated, {reordered} reordered, \
                 {corrupted} corrupted, {delayed} delayed"
            ),
            Note::BareRoundTrip { p50_ns, p99_ns } => write!(
                f,
                "round trip of a bare kernel with the same dependent reads, one packet and one fence per item: p50 {}, p99 {}",
                units::nanoseconds(*p50_ns),
                units::nanoseconds(*p99_ns)
            ),
            Note::PipeClosed => {
                f.write_str("the reader of standard output closed the pipe, which ended the run")
            }
            Note::RateMissed { rates } => {
                write!(f, "{} was not reached: {}", field::RATE, rates.arrived().unwrap_or_default())
            }
            Note::NoPackets { source, is_ring } => {
                let remedy = if *is_ring { "; add prime=N to start with N packets in the ring" } else { "" };
                write!(f, "no packet was received from {source}{remedy}")
            }
            Note::SearchStopped => {
                f.write_str("the search was stopped before a rate passed: this is the run without a set rate")
            }
            Note::HighestRate { packets_per_second, unpaced_packets_per_second } => write!(
                f,
                "highest rate without loss: {}; without a set rate: {}",
                units::packets_per_second(*packets_per_second),
                units::packets_per_second(*unpaced_packets_per_second)
            ),
            Note::NextRateFailed(failed) => write!(f, "the next higher rate failed: {failed}"),
            Note::Trials { duration_ns, follows_rfc_2544: true } => {
                let time = units::nanoseconds(*duration_ns);
                write!(f, "method: RFC 2544, section 26.1, with trials of {time}")
            }
            Note::Trials { duration_ns, follows_rfc_2544: false } => {
                let (time, longer) = (units::nanoseconds(*duration_ns), field::DURATION.with("60s"));
                write!(f, "trials of {time}; give {longer} for the trials that RFC 2544 asks for")
            }
        }
    }
}
