//! A GPU's SMs as a mover: one kernel launch per copy between the GPU's memory and pinned host memory.

use super::kernels::Kernels;
use inlane_core::mover::{Mover, Ticket, check_pair, out_of_reach};
use inlane_core::{CompletionMode, Location, Region, Result};
use inlane_cuda::{Arguments, Gpu, Kernel, LaunchConfig, PendingCopies, Stream, drain};
use std::sync::Arc;

/// The number of bytes that a block of 1024 threads copies in one turn of its loop.
const TURN: usize = 64 << 10;

/// A mover that copies by kernels on the GPU's SMs. It copies between a GPU's memory and pinned host memory,
/// or within one of them.
pub struct SmCopy {
    stream: Stream,
    kernel: Kernel,
    blocks: u32,
    pending: PendingCopies,
}

impl SmCopy {
    /// Creates a mover on `gpu` that uses at most `blocks` blocks of 1024 threads.
    ///
    /// # Errors
    /// [`Error::Device`](inlane_core::Error::Device) if the driver refuses a stream.
    pub fn new(gpu: &Arc<Gpu>, kernels: &Kernels, blocks: u32) -> Result<Self> {
        Ok(Self {
            stream: gpu.stream()?,
            kernel: kernels.copy.clone(),
            blocks: blocks.max(1),
            pending: PendingCopies::new(),
        })
    }
}

impl Mover for SmCopy {
    fn name(&self) -> String {
        format!("gpu:{} SMs ({} blocks)", self.stream.gpu().index(), self.blocks)
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        let own = Location::Gpu(self.stream.gpu().index());
        let reachable = |region: &Region| *region.location() == own || *region.location() == Location::Pinned;
        reachable(source) && reachable(destination)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        check_pair(source, destination)?;
        if !self.reaches(source, destination) {
            return Err(out_of_reach(self, source, destination));
        }
        // Launch at most one block for each `TURN` bytes, because further blocks would have nothing to
        // copy.
        let blocks = (source.len().div_ceil(TURN) as u32).clamp(1, self.blocks);
        let config = LaunchConfig { blocks, threads: 1024, shared_bytes: 0, cooperative: false };
        let arguments = Arguments([destination.address(), source.address(), source.len() as u64]);
        // SAFETY: the kernel takes destination, source and length. `pending` keeps the regions until the
        // kernel ended.
        unsafe { self.kernel.launch(&self.stream, config, arguments)? };
        self.pending.push(&self.stream, [source.clone(), destination.clone()])
    }

    fn done(&mut self) -> Result<Ticket> {
        self.pending.done()
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
        let index = self.stream.gpu().index();
        self.pending.wait(&|| format!("gpu:{index} SMs"), ticket, completion, &[])
    }
}

impl Drop for SmCopy {
    fn drop(&mut self) {
        drain(&[&self.stream]);
    }
}
