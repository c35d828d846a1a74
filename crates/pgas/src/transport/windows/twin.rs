//! What a PE at a port of the twin has besides the transport: the connection to its launcher, and its static objects in
//! the inbound memory.

use super::layout::Layout;
use super::{Settings, Windows};
use crate::error::Result;
use crate::transport::Statics;
use crate::transport::bootstrap::JobControl;
use inlane_ntb::device::Ntb;
use inlane_ntb::twin::Twin;
use std::sync::Arc;

impl JobControl for Twin {
    fn report_finished(&self) {
        Twin::report_finished(self);
    }

    fn report_lost(&self, peer: u32) {
        Twin::report_lost(self, peer);
    }

    fn request_exit_all(&self, status: i32) {
        Twin::request_exit_all(self, status);
    }

    fn wait_for_end(&self) -> Option<i32> {
        Twin::wait_for_end(self)
    }
}

impl Windows {
    /// Connects as [`Windows::connect`] does, over the twin. Symmetric memory has `bytes` bytes. Moves the program's
    /// static objects into it.
    ///
    /// # Errors
    /// As for [`Windows::connect`]; the system's error if the static objects cannot be mapped.
    ///
    /// # Safety
    /// The memory of `statics` is mapped and writable. During the call, no other thread accesses it.
    pub unsafe fn connect_twin(
        twin: Arc<Twin>,
        bytes: usize,
        statics: Option<Statics>,
        settings: Settings,
    ) -> Result<Self> {
        let symmetric = Layout::overhead(twin.ports());
        if let Some(Statics { offset, address, bytes }) = statics {
            // SAFETY: the caller keeps the promises about the static objects. The inbound memory is fresh.
            unsafe { move_statics(&twin, symmetric + offset, address, bytes)? };
        }
        Self::connect(twin, symmetric + bytes, settings)
    }
}

/// Maps the inbound memory at `offset` in place of the program's static objects at `address`. Other PEs can
/// then access these objects. Moves `length` bytes, which are whole pages, and keeps their contents.
///
/// # Safety
/// The memory at `address` is mapped and writable. Nothing else uses this part of the inbound memory. During the
/// call, no other thread writes the program's static objects.
///
/// # Errors
/// The system's error if the mapping fails.
unsafe fn move_statics(twin: &Twin, offset: usize, address: usize, length: usize) -> Result<()> {
    let inbound = twin.inbound().slice(offset, length)?;
    let (from, to) = (address as *const u64, inbound.as_ptr().cast::<u64>());
    // Copy word by word, because the span contains red zones of AddressSanitizer between static objects.
    // AddressSanitizer would report a memcpy that reads these.
    for word in 0..length / 8 {
        // SAFETY: both spans are mapped. The caller guarantees that no thread writes to them during the call.
        unsafe { to.add(word).write_volatile(from.add(word).read_volatile()) };
    }
    // SAFETY: the pages of the inbound memory hold the segment's contents now.
    Ok(unsafe { twin.map_inbound_at(offset, length, address as *mut u8) }?)
}
