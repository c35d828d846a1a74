//! A bridge's registers, for back-ends whose ports share memory that can play them.
//!
//! ```text
//! 0      port 0   doorbell | mask | link | life | beat | translations[64] | scratchpads[512]
//! 4096   port 1   ...
//! ```
//!
//! Every port maps all of them writable, and a mad one can write anything there: values are loaded once, and bounded before
//! they are used.

use crate::device::WindowLimits;
use crate::error::{Error, Result};
use inlane_core::region::Region;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Windows lead to whole pages.
const PAGE: u64 = 4096;

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
    /// Grows while the port is alive, where nobody else watches over that.
    pub beat: Line<AtomicU32>,
    /// Where each peer's window onto this port leads.
    pub translations: [Translation; MAX_PORTS as usize],
    /// Scratchpads.
    pub scratchpads: [AtomicU32; SCRATCHPADS as usize],
}

const _: () = assert!(size_of::<PortRegisters>() == 4096);

/// The doorbell bits of a vector.
pub(crate) fn vector_bits(vector: u32) -> u64 {
    if vector < VECTORS { 0xFFFF_FFFFu64 << (32 * vector) } else { 0 }
}

/// What windows over these registers can be.
pub(crate) fn limits(window_bytes: u64) -> WindowLimits {
    WindowLimits { address_align: PAGE, size_align: PAGE, size_max_bytes: window_bytes }
}

impl PortRegisters {
    /// Makes the link word odd (up) or even (down); false when it was so already.
    pub(crate) fn set_link(&self, up: bool) -> bool {
        use Ordering::{AcqRel, Acquire};
        self.link
            .0
            .fetch_update(AcqRel, Acquire, |word| ((word & 1 == 1) != up).then(|| word.wrapping_add(1)))
            .is_ok()
    }

    /// Rings; gives the vectors to interrupt. Only an edge from 0 to 1 that is not masked interrupts: doorbells coalesce.
    pub(crate) fn ring(&self, bits: u64) -> impl Iterator<Item = u32> {
        let before = self.doorbell.0.fetch_or(bits, Ordering::SeqCst);
        let rings = bits & !before & !self.mask.0.load(Ordering::SeqCst);
        (0..VECTORS).filter(move |&vector| rings & vector_bits(vector) != 0)
    }

    /// Lets `peer`'s window lead to `memory`, a part of this port's `inbound` memory.
    pub(crate) fn set_translation(&self, peer: u32, inbound: &Region, memory: &Region) -> Result<()> {
        let refuse = |why: String| Err(Error::Window { peer, why });
        let inside = memory.address() >= inbound.address()
            && memory.address() + memory.len() as u64 <= inbound.address() + inbound.len() as u64;
        if !inside {
            return refuse(format!("{memory:?} is not part of this port's inbound memory"));
        }
        let offset = memory.address() - inbound.address();
        if !offset.is_multiple_of(PAGE) || !(memory.len() as u64).is_multiple_of(PAGE) {
            return refuse(format!(
                "translation to offset {offset:#x}, {:#x} bytes: both must be multiples of {PAGE:#x}",
                memory.len()
            ));
        }
        let translation = &self.translations[peer as usize];
        translation.offset.store(offset, Ordering::Release);
        translation.bytes.store(memory.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Where `me`'s window onto this port, `peer`, leads in its memory of `window_bytes`.
    pub(crate) fn translation(&self, me: u32, peer: u32, window_bytes: u64) -> Result<Range<u64>> {
        let refuse = |why: String| Err(Error::Window { peer, why });
        let translation = &self.translations[me as usize];
        // Loaded once: what is checked is what is mapped.
        let bytes = translation.bytes.load(Ordering::Acquire);
        let offset = translation.offset.load(Ordering::Acquire);
        if bytes == 0 {
            return refuse("the peer has set no translation yet".into());
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= window_bytes && (offset | bytes).is_multiple_of(PAGE) => Ok(offset..end),
            _ => refuse(format!(
                "the peer's translation (offset {offset:#x}, {bytes:#x} bytes) is misaligned or outside its memory of {window_bytes:#x} bytes"
            )),
        }
    }
}
