//! A kernel a burst: methods `single` and `split`.

use super::lane::Lane;
use crate::error::{Error, Result};
use inlane_cuda::{Launch, Stream, argument};

/// Launches kernels, round-robin over its streams.
pub(super) struct Launcher<'a> {
    lane: &'a Lane,
    streams: &'a [Stream],
    position: u64,
}

impl<'a> Launcher<'a> {
    pub(super) fn new(lane: &'a Lane, streams: &'a [Stream]) -> Self {
        Self { lane, streams, position: 0 }
    }

    /// The next item is published, with so many packets.
    ///
    /// # Errors
    /// When the driver refuses, or an earlier kernel failed.
    #[inline]
    pub(super) fn launch(&mut self, count: usize) -> Result<()> {
        let stream = &self.streams[self.position as usize % self.streams.len()];
        // SAFETY: the parameters of `inlane_items`; what they point to lives as long as the lane, which outlives its streams.
        unsafe { launch_item(self.lane, stream, self.position, count as u32)? };
        self.position += 1;
        Ok(())
    }
}

/// Launches the kernel of one item of at most `most` packets.
///
/// # Safety
/// The lane lives until the kernel has run.
#[inline]
pub(super) unsafe fn launch_item(lane: &Lane, stream: &Stream, position: u64, most: u32) -> Result<()> {
    let arguments = [argument(&lane.parameters), argument(&position), argument(&most)];
    // SAFETY: these are the kernel's parameters; the caller vouches for the lane.
    unsafe { lane.program.items.launch(stream, lane.shape, arguments) }.map_err(Error::from)
}

/// Launches the kernel of the first item before it was submitted: it looks, and ends.
///
/// # Safety
/// The lane lives until the kernel has run.
pub(super) unsafe fn launch_nothing(lane: &Lane, stream: &Stream) -> Result<()> {
    let shape = Launch { blocks: 1, cooperative: false, ..lane.shape };
    let arguments = [argument(&lane.parameters), argument(&0u64), argument(&0u32)];
    // SAFETY: these are the kernel's parameters; the caller vouches for the lane.
    unsafe { lane.program.items.launch(stream, shape, arguments) }.map_err(Error::from)
}
