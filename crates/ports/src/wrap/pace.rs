//! Limits the rate of a receive queue.

use inlane_core::clock::Clock;
use inlane_core::load::Schedule;
use inlane_core::port::Counters;
use inlane_core::units::Rate;
use inlane_core::{Packet, Result, Rx};

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
