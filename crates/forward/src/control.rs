//! Flags that end a run, and counters of its progress. The threads of a run share them.

mod idle;

pub use idle::Idle;

use inlane_core::clock::Clock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The flags that end a run. The run's threads and the caller of the run share the flags, so each of these
/// threads can stop or abort the run.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    abort: AtomicBool,
    parent: Option<Arc<Control>>,
}

impl Control {
    /// Creates the control of one run of several. If `parent` is stopped or aborted, this run ends too: see
    /// [`Control::follow_parent`].
    pub fn child_of(parent: &Arc<Control>) -> Self {
        Self { parent: Some(parent.clone()), ..Self::default() }
    }

    /// Stops or aborts this run if the parent was stopped or aborted. The thread that waits for the run's end
    /// calls this function several times a second. This is necessary because the run's other threads read
    /// only the run's own flags.
    pub fn follow_parent(&self) {
        let Some(parent) = &self.parent else { return };
        parent.follow_parent();
        if parent.aborting() {
            self.abort();
        } else if parent.stopping() {
            self.stop();
        }
    }

    /// Stops receiving. Packets in flight are still sent.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Ends the run without waiting for packets in flight. Call it after an error that may have prevented the
    /// packets from completing.
    pub fn abort(&self) {
        self.abort.store(true, Relaxed);
        self.stop();
    }

    /// Returns true after [`Control::stop`] or [`Control::abort`].
    #[inline]
    pub fn stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Returns true after [`Control::abort`].
    #[inline]
    pub fn aborting(&self) -> bool {
        self.abort.load(Relaxed)
    }
}

/// The counters of one pipeline. Any thread may read them. Each counter has one writer, so writes need no
/// atomic addition.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Progress {
    rx_packets: AtomicU64,
    rx_bytes: AtomicU64,
    tx_packets: AtomicU64,
    tx_bytes: AtomicU64,
    dropped: AtomicU64,
    busy: AtomicU64,
    refused: AtomicU64,
    feeding: AtomicU64,
    begun: OnceLock<Instant>,
}

/// The shares of a run's duration that a pipeline's threads spent in different ways. In the remaining time,
/// they polled without work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeShares {
    /// The share of the run's duration in which the dispatching thread had work.
    pub busy: f64,
    /// The share of the run's duration in which the dispatching thread waited for a full transmit port.
    pub refused: f64,
    /// The fraction of the time in which the feeder had work. 0 if the method has no feeder.
    pub feeding: f64,
}

/// A copy of the packet counters of [`Progress`]. During a run, the counters may be from different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressSnapshot {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets dropped for any reason.
    pub dropped: u64,
}

impl std::ops::AddAssign for ProgressSnapshot {
    fn add_assign(&mut self, other: Self) {
        self.rx_packets += other.rx_packets;
        self.rx_bytes += other.rx_bytes;
        self.tx_packets += other.tx_packets;
        self.tx_bytes += other.tx_bytes;
        self.dropped += other.dropped;
    }
}

impl Progress {
    /// Records the current time at its first call. Always returns the time of the first call. Call this when
    /// packets begin to flow.
    pub fn begin(&self) -> Instant {
        *self.begun.get_or_init(Instant::now)
    }

    /// Returns the time at which packets began to flow, or `None` if none has flowed yet.
    pub fn begun(&self) -> Option<Instant> {
        self.begun.get().copied()
    }

    /// Publishes the counts of received packets and the calling thread's times. Only the dispatching thread
    /// calls it.
    #[inline]
    pub fn set_received(&self, packets: u64, bytes: u64) {
        self.rx_packets.store(packets, Relaxed);
        self.rx_bytes.store(bytes, Relaxed);
        let (busy, refused) = idle::spent();
        self.busy.store(busy, Relaxed);
        self.refused.store(refused, Relaxed);
    }

    /// Publishes the counts of sent and dropped packets. Only the dispatching thread calls it.
    #[inline]
    pub fn set_sent(&self, packets: u64, bytes: u64, dropped: u64) {
        self.tx_packets.store(packets, Relaxed);
        self.tx_bytes.store(bytes, Relaxed);
        self.dropped.store(dropped, Relaxed);
    }

    /// Publishes how the calling thread has spent its time. Only the feeder calls this, when it ends.
    pub fn set_feeding(&self) {
        self.feeding.store(idle::spent().0, Relaxed);
    }

    /// Reads the counters.
    pub fn read(&self) -> ProgressSnapshot {
        ProgressSnapshot {
            rx_packets: self.rx_packets.load(Relaxed),
            rx_bytes: self.rx_bytes.load(Relaxed),
            tx_packets: self.tx_packets.load(Relaxed),
            tx_bytes: self.tx_bytes.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
        }
    }

    /// Returns how the threads spent their time. The times are shares of the run, which lasted `nanoseconds`.
    pub fn time_shares(&self, clock: &Clock, nanoseconds: u64) -> TimeShares {
        let share = |ticks: &AtomicU64| {
            let spent = clock.between_ns(0, ticks.load(Relaxed)) as f64;
            (spent / nanoseconds.max(1) as f64).min(1.0)
        };
        TimeShares { busy: share(&self.busy), refused: share(&self.refused), feeding: share(&self.feeding) }
    }
}
