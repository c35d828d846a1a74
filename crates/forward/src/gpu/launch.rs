//! Launching kernels for submitted items: in methods `single` and `split`, and in `stream` if items arrive
//! faster than waits can be posted.

use super::lane::Lane;
use crate::error::{Error, Result};
use inlane_cuda::{LaunchConfig, Stream, argument};

/// Launches one kernel per item, round-robin over the streams.
pub(super) struct Launcher<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    position: u64,
}

impl<'a> Launcher<'a> {
    /// Creates a launcher that begins with item 0.
    pub(super) fn new(lane: &'a Lane, streams: &'a [Stream]) -> Self {
        Self { lane, streams, position: 0 }
    }

    /// Launches the kernel of the next item if that item was submitted. Returns true if a kernel was
    /// launched.
    ///
    /// # Errors
    /// As for [`Launcher::launch`].
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        let Some(count) = self.lane.submitted(self.position) else { return Ok(false) };
        self.launch(count)?;
        Ok(true)
    }

    /// Launches the kernel of the next item, which was submitted and has `count` packets.
    ///
    /// # Errors
    /// If the driver call fails, or an earlier kernel failed.
    #[inline]
    pub(super) fn launch(&mut self, count: u32) -> Result<()> {
        let stream = &self.streams[self.position as usize % self.streams.len()];
        // SAFETY: the lane outlives its streams.
        unsafe { launch_items(self.lane, stream, self.position, 1, count)? };
        self.position += 1;
        Ok(())
    }

    /// Returns the number of items for which kernels were launched so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }
}

/// Launches one kernel for `items` items from `position` on, a block per item. No item has more than `most`
/// packets.
///
/// # Safety
/// The lane lives until the kernel has run.
#[inline]
pub(super) unsafe fn launch_items(
    lane: &Lane,
    stream: &Stream,
    position: u64,
    items: u32,
    most: u32,
) -> Result<()> {
    let shape = LaunchConfig { blocks: items, cooperative: false, ..lane.shape };
    let arguments = [argument(&lane.parameters), argument(&position), argument(&most)];
    // SAFETY: the arguments are the kernel's parameters. The caller keeps the lane alive.
    unsafe { lane.loaded.items.launch(stream, shape, arguments) }.map_err(Error::from)
}

/// Launches a kernel that finds no packets and ends at once. Call it before item 0 is submitted, because the
/// first launch makes the driver set up the stream.
///
/// # Safety
/// The lane lives until the kernel has run.
pub(super) unsafe fn launch_nothing(lane: &Lane, stream: &Stream) -> Result<()> {
    // SAFETY: the caller promises that the lane lives until the kernel has run.
    unsafe { launch_items(lane, stream, 0, 1, 0) }
}
