//! Faults that can be injected into a twin at any time, from any thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The faults of a DMA engine, shared with its thread. All are off at first.
#[derive(Debug)]
pub struct Faults {
    lost_after: AtomicU64,
    swallowed_interrupts: AtomicU64,
    flipped_bits: AtomicU64,
    stalled: AtomicBool,
}

/// The value of `lost_after` while no loss of the device is to be simulated.
const NEVER: u64 = u64::MAX;

impl Default for Faults {
    fn default() -> Self {
        Self {
            lost_after: AtomicU64::new(NEVER),
            swallowed_interrupts: AtomicU64::new(0),
            flipped_bits: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
        }
    }
}

impl Faults {
    /// Simulates the loss of the device after it has copied `bytes` more bytes. The loss may be in the middle
    /// of a transfer.
    pub fn lose_after(&self, bytes: u64) {
        self.lost_after.store(bytes, Ordering::Relaxed);
    }

    /// Loses the next `count` interrupts.
    pub fn swallow_interrupts(&self, count: u64) {
        self.swallowed_interrupts.store(count, Ordering::Relaxed);
    }

    /// Flips one bit in each of the next `count` transfers.
    pub fn flip_bits(&self, count: u64) {
        self.flipped_bits.store(count, Ordering::Relaxed);
    }

    /// With true, stalls the engine: no transfer completes until this method is called with false.
    pub fn stall(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Returns how many of the next `bytes` bytes the device copies before its simulated loss. Returns
    /// `bytes` if no loss will be simulated. Subtracts the result from the number of bytes left until the
    /// loss.
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
        take(&self.flipped_bits)
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
}

/// Decrements a counter. Returns false if the counter is 0 already.
fn take(count: &AtomicU64) -> bool {
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
}
