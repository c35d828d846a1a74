//! Limits the rate of a receive queue: to a fixed rate ([`PacedRx`]), or to a pace that may change ([`PaceFollower`]).

use inlane_core::clock::Clock;
use inlane_core::load::{Pacer, Schedule};
use inlane_core::port::Counters;
use inlane_core::units::Rate;
use inlane_core::{Packet, Result, Rx};
use std::time::Duration;

/// The most nanoseconds that a source may be behind its schedule. After a longer pause, the source makes up
/// only the packets of the last 100 us, in one burst.
const MAX_BACKLOG_NS: u64 = 100_000;

/// A receive queue with a limited rate. Excess packets wait in the inner port. If that port has to drop
/// packets, it counts them.
pub struct PacedRx {
    inner: Box<dyn Rx>,
    schedule: Schedule,
    clock: Clock,
    /// Moving average of packet lengths, in bytes.
    mean_bytes: f64,
}

impl PacedRx {
    /// Wraps `inner` and limits its receive rate to `share` times `rate`. `share` is from 0 to 1.
    pub fn new(inner: Box<dyn Rx>, rate: Rate, share: f64, clock: &Clock) -> Self {
        Self { inner, schedule: Schedule::new(rate, share), clock: clock.clone(), mean_bytes: 64.0 }
    }
}

// SAFETY: the packets are those of the inner queue, unchanged.
unsafe impl Rx for PacedRx {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let now_ns = self.clock.now_ns();
        self.schedule.limit_backlog(now_ns, MAX_BACKLOG_NS);
        let due = self.schedule.due_at_most(now_ns, packets.len(), self.mean_bytes);
        if due == 0 {
            return Ok(0);
        }
        let count = self.inner.receive(&mut packets[..due])?;
        for packet in &packets[..count] {
            self.schedule.advance(packet.length as usize);
            self.mean_bytes += (packet.length as f64 - self.mean_bytes) / 64.0;
        }
        Ok(count)
    }

    fn exhausted(&self) -> bool {
        self.inner.exhausted()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

/// How long a queue has been parked before its thread sleeps. Meanwhile, the packets in flight leave.
const PARKING_NS: u64 = 2_000_000;
/// How long the thread of a parked queue sleeps in each call.
const PARKED: Duration = Duration::from_millis(1);

/// Packets that are due within this time are received together, up to a full burst. One by one, they would cost the thread more
/// time than at full speed, so a slower pace would not free any.
const GATHERED_NS: u64 = 20_000;

/// A receive queue that follows a pace, which may change at any time. Excess packets wait in the inner port.
///
/// If the pace is 0, the queue receives nothing, and its thread sleeps in [`Rx::receive`] for a millisecond at a time.
pub struct PaceFollower {
    inner: Box<dyn Rx>,
    pacer: Pacer,
    clock: Clock,
    /// When the queue was parked; `None` while it runs.
    parked_ns: Option<u64>,
}

impl PaceFollower {
    /// Wraps `inner`, whose thread follows `pacer`.
    pub fn new(inner: Box<dyn Rx>, pacer: Pacer, clock: &Clock) -> Self {
        Self { inner, pacer, clock: clock.clone(), parked_ns: None }
    }

    #[cold]
    fn park(&mut self, now_ns: u64) {
        let since = *self.parked_ns.get_or_insert(now_ns);
        if now_ns - since > PARKING_NS {
            std::thread::sleep(PARKED);
        }
    }
}

// SAFETY: the packets are those of the inner queue, unchanged.
unsafe impl Rx for PaceFollower {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let now_ns = if self.pacer.is_unlimited() { 0 } else { self.clock.now_ns() };
        let due = self.pacer.due(now_ns, packets.len());
        if due == 0 || due < self.pacer.due_within(GATHERED_NS).min(packets.len()) {
            if self.pacer.is_parked() {
                self.park(now_ns);
            }
            return Ok(0);
        }
        self.parked_ns = None;
        let count = self.inner.receive(&mut packets[..due])?;
        self.pacer.did(count);
        Ok(count)
    }

    fn exhausted(&self) -> bool {
        self.inner.exhausted()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}
