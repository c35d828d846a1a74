//! The twin's register file: one sealed shared memory of all ports, as a bridge's registers are one device's.
//!
//! ```text
//! 0      port 0   doorbell | mask | link | life | translations[64] | scratchpads[512]
//! 4096   port 1   ...
//! ```
//!
//! Every process of the fabric maps it writable, and a mad one can write anything there: values read are bounded by who
//! uses them.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Most ports of a fabric.
pub const MAX_PORTS: u32 = 64;
/// Scratchpads of a port: a row of 8 for each port that may write there.
pub const SCRATCHPADS: u32 = 8 * MAX_PORTS;
/// Doorbell vectors; vector v stands for bits 32 v to 32 v + 31.
pub const VECTORS: u32 = 2;

/// A cache line (and its prefetched neighbour) for words with different writers.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Line<T>(pub T);

/// Where a peer's window leads: a span of the owner's inbound memory. No bytes: nowhere.
#[repr(C)]
pub(crate) struct Translation {
    pub offset: AtomicU64,
    pub bytes: AtomicU64,
}

/// One port's registers.
#[repr(C, align(4096))]
pub(crate) struct PortRegisters {
    /// Bits that rang and were not cleared.
    pub doorbell: Line<AtomicU64>,
    /// Bits that cause no event.
    pub mask: Line<AtomicU64>,
    /// Odd: this side has enabled its links; grows with every change.
    pub link: Line<AtomicU32>,
    /// Counts the processes that were attached here, so that the end of an old one is not taken for that of a new one.
    pub life: Line<AtomicU32>,
    /// Where each peer's window onto this port leads.
    pub translations: [Translation; MAX_PORTS as usize],
    /// Scratchpads.
    pub scratchpads: [AtomicU32; SCRATCHPADS as usize],
}

const _: () = assert!(size_of::<PortRegisters>() == 4096);

impl PortRegisters {
    /// Makes the link word odd (up) or even (down).
    pub(crate) fn set_link(&self, up: bool) -> bool {
        use std::sync::atomic::Ordering::{AcqRel, Acquire};
        self.link
            .0
            .fetch_update(AcqRel, Acquire, |word| ((word & 1 == 1) != up).then(|| word.wrapping_add(1)))
            .is_ok()
    }
}
