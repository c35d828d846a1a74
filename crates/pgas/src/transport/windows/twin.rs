//! Joins and connects the PEs of a job over the twin. The twin is a PE's connection to the hub, and it carries the
//! program's static objects in its inbound memory.

use super::layout::Layout;
use super::{Settings, Windows, hub, options};
use crate::error::Result;
use crate::transport::Statics;
use crate::transport::bootstrap::{JobControl, JobSettings, MeetingPoint, Network, Opening};
use inlane_ntb::device::Ntb;
use inlane_ntb::twin::Twin;
use std::sync::Arc;
use std::time::Duration;

impl JobControl for Twin {
    fn me(&self) -> u32 {
        self.port()
    }

    fn pes(&self) -> u32 {
        self.ports()
    }

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

impl Network for Windows {
    type Link = Twin;

    const HAS_WINDOWS: bool = true;

    fn meeting_point(opening: &Opening) -> Result<Arc<dyn MeetingPoint>> {
        Ok(Arc::new(hub::JobHub::new(opening)?))
    }

    fn join(invitation: &str, pe: u32, needed: &dyn Fn(u32) -> usize) -> Result<Arc<Twin>> {
        let faults = options::faults()?;
        let socket = hub::socket(invitation, pe)?;
        let needed = |pes| Layout::overhead(pes) + needed(pes);
        Ok(Arc::new(Twin::attach_with(socket, &faults, needed)?))
    }

    unsafe fn connect_job(
        link: Arc<Twin>,
        bytes: usize,
        statics: Option<Statics>,
        settings: &JobSettings,
    ) -> Result<Self> {
        let symmetric = Layout::overhead(link.ports());
        if let Some(Statics { offset, address, bytes }) = statics {
            // SAFETY: the caller keeps the promises about the static objects. The inbound memory is fresh.
            unsafe { move_statics(&link, symmetric + offset, address, bytes)? };
        }
        let settings = Settings {
            completion: settings.completion,
            yields: settings.yields,
            faults: options::faults()?,
            mover: options::mover()?,
            connect_timeout: settings.connect_timeout.unwrap_or(Duration::MAX),
            request_timeout: settings.request_timeout,
            ..Settings::default()
        };
        Self::connect(link, symmetric + bytes, settings)
    }

    fn name(&self) -> String {
        self.ntb().capabilities().name.into()
    }

    fn path(&self) -> String {
        "windows in shared memory".into()
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
