//! Hands out no more than a rate allows.

use crate::generate::pace::Schedule;
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::units::Rate;
use inlane_core::{Packet, Result, Rx};

/// How far a source that had nothing to give may be behind and still catch up.
const CATCH_UP_NS: u64 = 100_000;

/// A receive queue at a rate. What comes faster waits in the port, which counts what it then has to miss.
pub struct PacedRx {
    inner: Box<dyn Rx>,
    schedule: Schedule,
    clock: Clock,
    /// Of packets so far, as far as one burst's worth of it matters.
    mean_bytes: f64,
}

impl PacedRx {
    /// `inner` at `share` of `rate` (the whole of it, for a port with one queue).
    pub fn new(inner: Box<dyn Rx>, rate: Rate, share: f64, clock: &Clock) -> Self {
        Self { inner, schedule: Schedule::new(rate, share), clock: clock.clone(), mean_bytes: 64.0 }
    }
}

// SAFETY: the packets are the inner port's, unchanged.
unsafe impl Rx for PacedRx {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let now_ns = self.clock.now_ns();
        self.schedule.forget_beyond(now_ns, CATCH_UP_NS);
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
