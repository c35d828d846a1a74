//! What can be made to go wrong with a twin, at any time, from any thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Faults of a DMA engine. All off at first; shared with the engine's thread.
#[derive(Debug)]
pub struct Faults {
    lost_after: AtomicU64,
    swallowed_interrupts: AtomicU64,
    flipped_bytes: AtomicU64,
    stalled: AtomicBool,
}

/// No limit.
const NEVER: u64 = u64::MAX;

impl Default for Faults {
    fn default() -> Self {
        Self {
            lost_after: AtomicU64::new(NEVER),
            swallowed_interrupts: AtomicU64::new(0),
            flipped_bytes: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
        }
    }
}

impl Faults {
    /// The device is gone once so many more bytes were copied: in the middle of a transfer, if that is where they end.
    pub fn lose_after(&self, bytes: u64) {
        self.lost_after.store(bytes, Ordering::Relaxed);
    }

    /// The next `count` interrupts are never raised.
    pub fn swallow_interrupts(&self, count: u64) {
        self.swallowed_interrupts.store(count, Ordering::Relaxed);
    }

    /// One byte in each of the next `count` transfers arrives with a bit flipped.
    pub fn flip_bytes(&self, count: u64) {
        self.flipped_bytes.store(count, Ordering::Relaxed);
    }

    /// Transfers stop ending (true), or end again (false).
    pub fn stall(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// How many of `bytes` the device copies before it is lost; all of them when it is not.
    pub(crate) fn take_bytes(&self, bytes: usize) -> usize {
        let left = self.lost_after.load(Ordering::Relaxed);
        if left == NEVER {
            return bytes;
        }
        let taken = left.min(bytes as u64);
        self.lost_after.store(left - taken, Ordering::Relaxed);
        taken as usize
    }

    pub(crate) fn take_interrupt(&self) -> bool {
        take(&self.swallowed_interrupts)
    }

    pub(crate) fn take_flip(&self) -> bool {
        take(&self.flipped_bytes)
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
}

/// Counts one down, if any is left. Only the engine's thread takes.
fn take(count: &AtomicU64) -> bool {
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
}
