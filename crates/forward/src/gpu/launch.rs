//! Kernels for items that are there: methods `single` and `split`, and whatever posts ahead when it has fallen behind.

use super::lane::Lane;
use crate::error::{Error, Result};
use inlane_cuda::{LaunchConfig, Stream, argument};

/// Launches a kernel an item, round-robin over its streams.
pub(super) struct Launcher<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    position: u64,
}

impl<'a> Launcher<'a> {
    pub(super) fn new(lane: &'a Lane, streams: &'a [Stream]) -> Self {
        Self { lane, streams, position: 0 }
    }

    /// Launches the kernel of the next item, if it was submitted.
    ///
    /// # Errors
    /// As for [`Launcher::launch`].
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        let Some(count) = self.lane.submitted(self.position) else { return Ok(false) };
        self.launch(count)?;
        Ok(true)
    }

    /// Launches the kernel of the next item, which is there, with so many packets.
    ///
    /// # Errors
    /// When the driver refuses, or an earlier kernel failed.
    #[inline]
    pub(super) fn launch(&mut self, count: u32) -> Result<()> {
        let stream = &self.streams[self.position as usize % self.streams.len()];
        // SAFETY: the lane outlives its streams.
        unsafe { launch_items(self.lane, stream, self.position, 1, count)? };
        self.position += 1;
        Ok(())
    }

    /// Items launched so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }
}

/// Launches one kernel for `items` items from `position` on, a block an item, of at most `most` packets each.
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
    // SAFETY: these are the kernel's parameters; the caller vouches for the lane.
    unsafe { lane.program.items.launch(stream, shape, arguments) }.map_err(Error::from)
}

/// Launches the kernel of the first item before it was submitted: it looks, and ends.
///
/// # Safety
/// The lane lives until the kernel has run.
pub(super) unsafe fn launch_nothing(lane: &Lane, stream: &Stream) -> Result<()> {
    // SAFETY: as the caller vouches.
    unsafe { launch_items(lane, stream, 0, 1, 0) }
}
