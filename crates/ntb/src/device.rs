//! The non-transparent bridge as Linux's NTB API describes it: ports, memory windows with translation, doorbells with mask
//! and vectors, scratchpads, link events, capabilities.
//!
//! ```text
//!   port 0                                                          port 1
//!   window onto 1  ----- stores ----->  translation ----->  inbound memory of 1
//!   inbound memory of 0  <----- translation <----- stores -----  window onto 0
//!   peer_doorbell_set(1, bits)  ---------------------------->  doorbell, mask, vectors -> event()
//!   peer_scratchpad_write(1, i, v)  ------------------------>  scratchpad_read(i)
//! ```
//!
//! The back-ends are the twin ([`crate::twin`]: two processes of one machine) and ivshmem (two virtual machines). Hardware
//! bridges (Intel, AMD, Switchtec, IDT) are not supported yet; they would implement [`Ntb`] over the kernel's ntb_hw
//! drivers or over VFIO.

use crate::error::Result;
use crate::window::Window;
use inlane_core::region::Region;
use std::os::fd::BorrowedFd;

/// How stores through a window become visible to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ordering {
    /// The window is memory coherent with the peer's: a store that has left the store buffer is delivered.
    Coherent,
    /// Posted, write-combining stores: any order between fences; delivered only after a read-back.
    Posted,
}

/// What a window can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct WindowLimits {
    /// Alignment that a translation address needs, in bytes.
    pub address_align: u64,
    /// Granule of a window's size, in bytes.
    pub size_align: u64,
    /// Largest size, in bytes.
    pub size_max_bytes: u64,
}

/// What a bridge offers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct Capabilities {
    /// The back-end's name in results.
    pub name: &'static str,
    /// A software stand-in: its figures are a model's.
    pub is_twin: bool,
    /// Memory windows per peer.
    pub windows: u32,
    /// What each of them can be.
    pub window: WindowLimits,
    /// Doorbell bits that exist.
    pub doorbells: u64,
    /// Interrupt vectors that the doorbell bits are spread over.
    pub vectors: u32,
    /// 32-bit scratchpads of each port.
    pub scratchpads: u32,
    /// 32-bit message registers towards each peer, which some bridges (IDT's) have instead of scratchpads. No back-end has
    /// any yet; the handshake then says that it needs scratchpads.
    pub message_registers: u32,
    /// Doorbell registers of the peer should not be touched (an erratum, or shared registers).
    pub doorbells_unsafe: bool,
    /// Scratchpads may be overwritten by others (an erratum, or emulated in ordinary memory).
    pub scratchpads_unsafe: bool,
    /// What stores through its windows promise.
    pub ordering: Ordering,
}

/// The state of the link to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Both sides have enabled it.
    pub up: bool,
    /// Changes whenever the link goes down or comes up, so that a flap between two looks is seen.
    pub generation: u64,
}

/// What a thread can sleep on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A doorbell of this vector rang while unmasked.
    Doorbell(u32),
    /// Some link changed its state.
    Link,
}

/// One port of a bridge. Ports are numbered 0, 1, ... [`Ntb::ports`]; all but the own one are peers.
///
/// All methods may be called from any thread.
pub trait Ntb: Send + Sync {
    /// What this bridge offers.
    fn capabilities(&self) -> &Capabilities;
    /// The own port's number.
    fn port(&self) -> u32;
    /// Number of ports, the own one included.
    fn ports(&self) -> u32;

    /// Brings this side of the links up or takes it down.
    fn link_enable(&self, up: bool);
    /// The link to `peer`; down for a port that does not exist.
    fn link(&self, peer: u32) -> Link;

    /// The memory of this side that translations may lead to.
    fn inbound(&self) -> &Region;
    /// Lets `peer`'s window `window` lead to `memory`, a part of [`Ntb::inbound`].
    ///
    /// # Errors
    /// [`crate::error::Error::Window`] for memory elsewhere, misaligned or larger than the window.
    fn set_translation(&self, peer: u32, window: u32, memory: &Region) -> Result<()>;
    /// `peer`'s window `window` leads nowhere any more.
    fn clear_translation(&self, peer: u32, window: u32);
    /// Maps window `window` onto `peer`.
    ///
    /// # Errors
    /// [`crate::error::Error::Window`] while the peer has set no translation, or one that cannot be.
    fn peer_window(&self, peer: u32, window: u32) -> Result<Window>;

    /// Doorbell bits that rang and were not cleared, masked or not.
    fn doorbell_read(&self) -> u64;
    /// Clears bits. Clear before scanning for what they announce, or an arrival in between is lost.
    fn doorbell_clear(&self, bits: u64);
    /// The bits that cause no event.
    fn doorbell_mask(&self) -> u64;
    /// Masks bits.
    fn doorbell_mask_set(&self, bits: u64);
    /// Unmasks bits. Those that rang while masked cause no event: scan again after unmasking.
    fn doorbell_mask_clear(&self, bits: u64);
    /// The bits that vector `vector` stands for.
    fn vector_bits(&self, vector: u32) -> u64;
    /// Rings at `peer`. What was stored before a [`Window::fence`] is there when it is seen.
    ///
    /// # Errors
    /// For a peer or bits that do not exist.
    fn peer_doorbell_set(&self, peer: u32, bits: u64) -> Result<()>;
    /// A descriptor that becomes readable (eventfd: read 8 bytes to reset) when the event happens.
    ///
    /// # Errors
    /// For a vector that does not exist.
    fn event(&self, event: Event) -> Result<BorrowedFd<'_>>;

    /// Reads scratchpad `index` of this port; 0 for one that does not exist.
    fn scratchpad_read(&self, index: u32) -> u32;
    /// Writes scratchpad `index` of this port.
    fn scratchpad_write(&self, index: u32, value: u32);
    /// Writes scratchpad `index` of `peer`.
    ///
    /// # Errors
    /// For a peer or an index that does not exist.
    fn peer_scratchpad_write(&self, peer: u32, index: u32, value: u32) -> Result<()>;
}
