//! What a reader must know besides the figures of a bench, as data. Documents contain the texts.

use super::MeasuredOperation;
use inlane_core::completion::CompletionMode;
use inlane_core::units::bytes;
use std::fmt;

/// What a reader must know before comparing figures with others, or what the points show together.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// The least share of a plain copy's bandwidth that put reaches, from 1 MiB.
    ShareOfPlainCopy {
        /// Put's bandwidth divided by that of the plain copy.
        least: f64,
        /// The size of that put.
        size_bytes: u64,
    },
    /// The time of a small put, beside that of a cache line.
    OneWay {
        /// The time of a put of 8 bytes.
        put_ns: f64,
        /// The time of a cache line between processors.
        cache_line_ns: f64,
    },
    /// Put's bandwidth divided by that of the peer's put.
    AgainstPeer {
        /// The geometric mean over all sizes.
        mean: f64,
        /// The least ratio.
        least: f64,
        /// The size with that ratio.
        size_bytes: u64,
    },
    /// The processor time of an idle wait.
    IdleWait {
        /// The completion mode of the wait.
        completion: String,
        /// Its share of a processor's time.
        share: f64,
    },
    /// The processor time of an adaptive wait for a mover, as a share of that of polling.
    AdaptiveWait {
        /// The highest share, from 4 MiB.
        most: f64,
    },
    /// The bandwidth of a completion mode, as a share of that of polling.
    AgainstPolling {
        /// The measured operation.
        operation: MeasuredOperation,
        /// The completion mode.
        completion: CompletionMode,
        /// The smallest size that counts.
        from_bytes: u64,
        /// The lowest share.
        least: f64,
        /// The size with that share.
        least_at_bytes: u64,
        /// The highest share.
        most: f64,
    },
    /// The memory behind the windows is host memory.
    Modelled,
    /// All repeats use the same memory.
    SameMemory,
    /// UCX's own program was measured, too.
    Peer {
        /// True if it used shared memory. False if it used what the UCX_ variables chose.
        shared_memory: bool,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::ShareOfPlainCopy { least, size_bytes } => write!(
                f,
                "from 1 MiB, put reaches at least {:.1} % of the bandwidth of a plain copy (at {})",
                least * 100.0,
                bytes(*size_bytes)
            ),
            Note::OneWay { put_ns, cache_line_ns } => write!(
                f,
                "a put of 8 bytes takes {put_ns:.0} ns one way, {:.2} times as long as a cache line between processors \
                 ({cache_line_ns:.0} ns)",
                put_ns / cache_line_ns
            ),
            Note::AgainstPeer { mean, least, size_bytes } => write!(
                f,
                "put's bandwidth divided by that of the peer's put, from 8 B: geometric mean {mean:.2}, least {least:.2} at {}",
                bytes(*size_bytes)
            ),
            Note::IdleWait { completion, share } => {
                write!(f, "an idle wait in mode {completion} takes {:.2} % of a processor", share * 100.0)
            }
            Note::AdaptiveWait { most } => write!(
                f,
                "put by mover, from 4 MiB: an adaptive wait takes at most {:.0} % of the processor time of polling",
                most * 100.0
            ),
            Note::AgainstPolling { operation, completion, from_bytes, least, least_at_bytes, most } => write!(
                f,
                "{}, from {}: mode {completion} reaches {:.0} % (at {}) to {:.0} % of the bandwidth of polling",
                operation.name(),
                bytes(*from_bytes),
                least * 100.0,
                bytes(*least_at_bytes),
                most * 100.0
            ),
            Note::Modelled => f.write_str(
                "these figures are a model's: host memory lies behind the windows, so no byte crosses a PCIe link",
            ),
            Note::SameMemory => f.write_str(
                "source and destination are the same memory each time, so small sizes stay in caches",
            ),
            Note::Peer { shared_memory: true } => f.write_str(
                "the peer is ucx_perftest -t ucp_put_bw with UCX_TLS=shm,self,tcp on the same two processors",
            ),
            Note::Peer { shared_memory: false } => f.write_str(
                "the peer is ucx_perftest -t ucp_put_bw with the same UCX_ variables on the same two processors",
            ),
        }
    }
}
