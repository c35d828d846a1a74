//! A non-transparent bridge (NTB) as Linux's NTB API describes it: ports, memory windows with translation,
//! doorbells with mask and vectors, scratchpads, link events and capabilities.
//!
//! ```text
//!   port 0                                                          port 1
//!   window onto 1  ----- stores ----->  translation ----->  inbound memory of 1
//!   inbound memory of 0  <----- translation <----- stores -----  window onto 0
//!   peer_doorbell_set(1, bits)  ---------------------------->  doorbell, mask, vectors -> event()
//!   peer_scratchpad_write(1, i, v)  ------------------------>  scratchpad_read(i)
//! ```
//! Two back-ends implement [`Ntb`]: the twin ([`crate::twin`], processes of one machine) and ivshmem
//! ([`crate::ivshmem`], virtual machines). Hardware bridges are not supported yet.

use crate::error::Result;
pub use crate::window::Ordering;
use crate::window::Window;
use inlane_core::region::Region;
use std::os::fd::BorrowedFd;

/// The alignment and size that a window needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct WindowLimits {
    /// Required alignment of the memory that a window is mapped to, in bytes.
    pub address_align: u64,
    /// A window's size is a multiple of this number of bytes.
    pub size_align: u64,
    /// Largest size of a window, in bytes.
    pub size_max_bytes: u64,
}

/// The capabilities of a bridge.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Capabilities {
    /// The name of the back-end in results.
    pub name: &'static str,
    /// True for a software stand-in. All its figures are those of a model.
    pub is_twin: bool,
    /// Number of memory windows onto each peer.
    pub windows: u32,
    /// Alignment and size that each window needs.
    pub window: WindowLimits,
    /// Mask of the doorbell bits that the bridge has.
    pub doorbells: u64,
    /// Number of interrupt vectors. Each doorbell bit raises one of these vectors.
    pub vectors: u32,
    /// Number of 32-bit scratchpads of each port.
    pub scratchpads: u32,
    /// True if the memory windows lead to ordinary host memory. Measured bandwidths are then those of a
    /// model, even if the BAR and its interrupts are real. False if the windows lead over a real link.
    pub is_memory_modelled: bool,
    /// When a store through a window becomes visible to the peer.
    pub ordering: Ordering,
}

/// The state of the link to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// True when both sides have enabled the link.
    pub up: bool,
    /// A number that changes whenever the link goes down or comes up. Compare two readings to notice a link
    /// that went down and came up in between.
    pub generation: u64,
}

/// An event that a thread can sleep on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A doorbell bit of the vector with this number was rung while the bit was unmasked.
    Doorbell(u32),
    /// The state of the link to at least one peer changed.
    Link,
}

/// One port of a bridge. Ports are numbered from 0 to [`Ntb::ports`] - 1. Every port except this side's own
/// is a peer. Any thread may call any method.
pub trait Ntb: Send + Sync {
    /// Returns the capabilities of this bridge.
    fn capabilities(&self) -> &Capabilities;
    /// Returns this side's port number.
    fn port(&self) -> u32;
    /// Returns the number of ports, this side's included.
    fn ports(&self) -> u32;

    /// Enables this side of the links to all peers, or disables it if `up` is false.
    fn link_enable(&self, up: bool);
    /// Returns the state of the link to `peer`. The link to a port that does not exist is down.
    fn link(&self, peer: u32) -> Link;

    /// Returns the inbound memory of this side. [`Ntb::set_translation`] can make parts of it accessible to
    /// peers.
    fn inbound(&self) -> &Region;
    /// Makes `peer`'s window `window` lead to `memory`, a part of [`Ntb::inbound`].
    ///
    /// # Errors
    /// [`crate::error::Error::Window`] if the memory lies elsewhere, is misaligned or is larger than the
    /// window.
    fn set_translation(&self, peer: u32, window: u32, memory: &Region) -> Result<()>;
    /// Removes the translation of `peer`'s window `window`. The peer cannot map the window any more.
    fn clear_translation(&self, peer: u32, window: u32);
    /// Maps window `window` onto `peer`'s memory.
    ///
    /// # Errors
    /// [`crate::error::Error::Window`] if the peer has set no translation yet, or an invalid one.
    fn peer_window(&self, peer: u32, window: u32) -> Result<Window>;

    /// Returns the doorbell bits that were rung and not cleared, whether masked or not.
    fn doorbell_read(&self) -> u64;
    /// Clears doorbell bits. Clear a bit before you look for the work that it signals. If a peer then rings
    /// while you look, the bit is set again, and the ring is not missed.
    fn doorbell_clear(&self, bits: u64);
    /// Returns the doorbell bits that raise no event.
    fn doorbell_mask(&self) -> u64;
    /// Masks doorbell bits: they raise no event.
    fn doorbell_mask_set(&self, bits: u64);
    /// Unmasks doorbell bits. A bit that was rung while masked raises no event, so look for work after
    /// unmasking.
    fn doorbell_mask_clear(&self, bits: u64);
    /// Returns the doorbell bits that raise the event of vector `vector`.
    fn vector_bits(&self, vector: u32) -> u64;
    /// Rings doorbell bits at `peer`. Once `peer` sees these bits, it also sees every store made before the
    /// last [`Window::fence`].
    ///
    /// # Errors
    /// [`crate::error::Error::Invalid`] for a peer that does not exist.
    fn peer_doorbell_set(&self, peer: u32, bits: u64) -> Result<()>;
    /// Returns an eventfd that becomes readable when the event happens. Read its 8 bytes to reset it.
    ///
    /// # Errors
    /// [`crate::error::Error::Invalid`] for a vector that does not exist.
    fn event(&self, event: Event) -> Result<BorrowedFd<'_>>;

    /// Reads scratchpad `index` of this port. Returns 0 for an index that does not exist.
    fn scratchpad_read(&self, index: u32) -> u32;
    /// Writes scratchpad `index` of this port. Does nothing for an index that does not exist.
    fn scratchpad_write(&self, index: u32, value: u32);
    /// Writes scratchpad `index` of `peer`.
    ///
    /// # Errors
    /// [`crate::error::Error::Invalid`] for a peer or an index that does not exist.
    fn peer_scratchpad_write(&self, peer: u32, index: u32, value: u32) -> Result<()>;
}
