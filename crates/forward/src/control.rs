//! How a run is ended, watched, and paced: flags and counters that the threads of a run share.

mod idle;

pub use idle::Idle;

use inlane_core::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Ends a run. Shared by all its threads and by who started it.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    abort: AtomicBool,
    above: Option<Arc<Control>>,
}

impl Control {
    /// Of one run of several: it ends by itself, or when `above` ends them all.
    pub fn child_of(above: &Arc<Control>) -> Self {
        Self { above: Some(above.clone()), ..Self::default() }
    }

    /// Does what the one above says. For who waits for the end, a few times a second; threads of a run read their own flags.
    pub fn follow_parent(&self) {
        let Some(above) = &self.above else { return };
        above.follow_parent();
        if above.aborting() {
            self.abort();
        } else if above.stopping() {
            self.stop();
        }
    }

    /// Receive no more; what is in flight still goes out.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Something is broken: do not wait for what is in flight.
    pub fn abort(&self) {
        self.abort.store(true, Relaxed);
        self.stop();
    }

    /// No more is to be received.
    #[inline]
    pub fn stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Nothing in flight is to be waited for.
    #[inline]
    pub fn aborting(&self) -> bool {
        self.abort.load(Relaxed)
    }
}

/// What a lane counted so far, for whoever looks: one writer a word, stored plainly, never added to by two.
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
}

/// How the threads of a pipeline spent their time; the rest of the run they had nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeShares {
    /// Share of the run in which the one that moves packets had something to do.
    pub busy: f64,
    /// Share of the run in which a port that it sends to took nothing.
    pub refused: f64,
    /// Share of the run in which the one that launches, or posts, had something to do; 0 where there is none.
    pub feeding: f64,
}

/// A reading of [`Progress`].
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
    /// Packets dropped, for whatever reason.
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
    /// The receiving thread's words; with them goes how that thread spent its time.
    #[inline]
    pub fn received(&self, packets: u64, bytes: u64) {
        self.rx_packets.store(packets, Relaxed);
        self.rx_bytes.store(bytes, Relaxed);
        let (busy, refused) = idle::spent();
        self.busy.store(busy, Relaxed);
        self.refused.store(refused, Relaxed);
    }

    /// The sending thread's words.
    #[inline]
    pub fn sent(&self, packets: u64, bytes: u64, dropped: u64) {
        self.tx_packets.store(packets, Relaxed);
        self.tx_bytes.store(bytes, Relaxed);
        self.dropped.store(dropped, Relaxed);
    }

    /// How the thread that launches, or posts, spent its time, once it is done.
    pub fn fed(&self) {
        self.feeding.store(idle::spent().0, Relaxed);
    }

    /// What was counted so far.
    pub fn read(&self) -> ProgressSnapshot {
        ProgressSnapshot {
            rx_packets: self.rx_packets.load(Relaxed),
            rx_bytes: self.rx_bytes.load(Relaxed),
            tx_packets: self.tx_packets.load(Relaxed),
            tx_bytes: self.tx_bytes.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
        }
    }

    /// How the threads spent their time, of `nanoseconds` that the run took.
    pub fn time_shares(&self, clock: &Clock, nanoseconds: u64) -> TimeShares {
        let share = |ticks: &AtomicU64| {
            let spent = clock.between_ns(0, ticks.load(Relaxed)) as f64;
            (spent / nanoseconds.max(1) as f64).min(1.0)
        };
        TimeShares { busy: share(&self.busy), refused: share(&self.refused), feeding: share(&self.feeding) }
    }
}
