//! The registers of a bridge, for back-ends that keep them in memory shared by all ports.
//!
//! ```text
//! 0      port 0   doorbell | mask | link | attachments | heartbeat | translations[1024] | scratchpads[8192]
//! 53248  port 1   ...
//! ```
//!
//! Every port maps all registers writable, so a hostile port can write any value. Each value is loaded once
//! and bounded before use.

use crate::device::WindowLimits;
use crate::error::{Error, Result};
use inlane_core::region::Region;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The memory behind a window starts and ends at multiples of this many bytes.
const PAGE: u64 = 4096;

/// The most ports of a bridge.
pub const MAX_PORTS: u32 = 1024;
/// Number of scratchpads of a port: 8 for each port that may write to it.
pub const SCRATCHPADS: u32 = 8 * MAX_PORTS;
/// Number of doorbell vectors. Vector v covers the doorbell bits 32 v to 32 v + 31.
pub const VECTORS: u32 = 2;

/// A value that has 128 bytes to itself: a cache line and the neighbour that the processor prefetches with
/// it. Values with different writers therefore do not slow each other down.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct PaddedWord<T>(pub T);

/// The part of a port's inbound memory to which a peer's window leads. If `bytes` is 0, no translation is
/// set.
#[repr(C)]
pub(crate) struct Translation {
    pub offset: AtomicU64,
    pub bytes: AtomicU64,
}

/// The registers of one port.
#[repr(C, align(4096))]
pub(crate) struct PortRegisters {
    /// Doorbell bits that were rung and not cleared.
    pub doorbell: PaddedWord<AtomicU64>,
    /// Doorbell bits that raise no event.
    pub mask: PaddedWord<AtomicU64>,
    /// The number of times that this port has enabled or disabled its links. An odd number means that the
    /// links are enabled.
    pub link: PaddedWord<AtomicU32>,
    /// Number of processes that have attached to this port. It shows the hub whether a later process has
    /// replaced an ended process. The hub then ignores the end.
    pub attachments: PaddedWord<AtomicU32>,
    /// A counter that grows while the port's process runs. Back-ends without a hub use it to detect the end
    /// of the process.
    pub heartbeat: PaddedWord<AtomicU32>,
    /// The translation of each peer's window onto this port.
    pub translations: [Translation; MAX_PORTS as usize],
    /// The scratchpads.
    pub scratchpads: [AtomicU32; SCRATCHPADS as usize],
}

const _: () = assert!(size_of::<PortRegisters>() == 53248);

/// Returns the doorbell bits of a vector.
pub(crate) fn vector_bits(vector: u32) -> u64 {
    if vector < VECTORS { 0xFFFF_FFFFu64 << (32 * vector) } else { 0 }
}

/// Returns the limits of windows: the required alignment, and `window_bytes` as the largest size.
pub(crate) fn limits(window_bytes: u64) -> WindowLimits {
    WindowLimits { address_align: PAGE, size_align: PAGE, size_max_bytes: window_bytes }
}

impl PortRegisters {
    /// Makes the link word odd (up) or even (down). Returns false if the link already had that state.
    pub(crate) fn set_link(&self, up: bool) -> bool {
        use Ordering::{AcqRel, Acquire};
        self.link
            .0
            .fetch_update(AcqRel, Acquire, |word| ((word & 1 == 1) != up).then(|| word.wrapping_add(1)))
            .is_ok()
    }

    /// Sets the doorbell bits `bits`, and returns the vectors to interrupt. A bit that is masked or was
    /// already set causes no interrupt. So several doorbells may cause only one interrupt.
    pub(crate) fn ring(&self, bits: u64) -> impl Iterator<Item = u32> {
        let before = self.doorbell.0.fetch_or(bits, Ordering::SeqCst);
        let rings = bits & !before & !self.mask.0.load(Ordering::SeqCst);
        (0..VECTORS).filter(move |&vector| rings & vector_bits(vector) != 0)
    }

    /// Makes `peer`'s window lead to `memory`, a part of this port's `inbound` memory.
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
                "offset {offset:#x} and length {:#x} of the translation must be multiples of {PAGE:#x}",
                memory.len()
            ));
        }
        let translation = &self.translations[peer as usize];
        translation.offset.store(offset, Ordering::Release);
        translation.bytes.store(memory.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Returns the span of memory that port `me` may map. The memory belongs to the port that owns these
    /// registers. `window_bytes` is the size of that memory. `peer` is the owning port's number, for error
    /// messages.
    pub(crate) fn window_span(&self, me: u32, peer: u32, window_bytes: u64) -> Result<Range<u64>> {
        let refuse = |why: String| Err(Error::Window { peer, why });
        let translation = &self.translations[me as usize];
        // Load each value only once. The caller then maps exactly the values that are checked here.
        let bytes = translation.bytes.load(Ordering::Acquire);
        let offset = translation.offset.load(Ordering::Acquire);
        if bytes == 0 {
            return refuse("the peer has set no translation yet; connect after its handshake".into());
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= window_bytes && (offset | bytes).is_multiple_of(PAGE) => Ok(offset..end),
            _ => refuse(format!(
                "the peer's translation (offset {offset:#x}, {bytes:#x} bytes) is misaligned or outside its memory of {window_bytes:#x} bytes"
            )),
        }
    }
}
