//! A GPU as an endpoint: its memory, filled and checked by kernels.

use super::kernels::Kernels;
use inlane_core::{Region, Result};
use inlane_cuda::{Arguments, Gpu, Kernel, LaunchConfig, Stream, finish};
use std::sync::{Arc, Mutex};

/// A GPU with this crate's kernels loaded.
pub struct GpuMemory {
    gpu: Arc<Gpu>,
    kernels: Kernels,
    stream: Stream,
    /// A counter on the GPU, and where it is read back to.
    wrong: Mutex<(Region, Region)>,
}

impl GpuMemory {
    /// Opens `gpu:index`, and loads the kernels.
    ///
    /// # Errors
    /// When there is no such GPU, no run-time compiler, or the driver refuses.
    pub fn open(index: u32) -> Result<Self> {
        let gpu = Gpu::open(index)?;
        let kernels = Kernels::load(&gpu)?;
        let wrong = Mutex::new((gpu.allocate(8)?, gpu.pinned(8)?));
        Ok(Self { stream: gpu.stream()?, kernels, wrong, gpu })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Returns the GPU's name and PCI address.
    pub(crate) fn name(&self) -> String {
        let info = self.gpu.info();
        format!("{} at {}", info.name, info.pci_address)
    }

    /// Returns the GPU's PCIe link as text, and the bits per second that its lanes can signal at their highest rate.
    pub(crate) fn link(&self) -> Option<(String, f64)> {
        let link = self.gpu.info().link.as_ref()?;
        let rate = link.max_gigatransfers * 1e9 * f64::from(link.width);
        Some((format!("PCIe {} GT/s x{}", link.gigatransfers, link.width), rate))
    }

    /// Returns the free bytes of GPU memory, or 0 if the driver does not answer.
    pub(crate) fn capacity(&self) -> usize {
        self.gpu.memory().map_or(0, |(free, _)| free as usize)
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<Region> {
        Ok(self.gpu.allocate(bytes)?)
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Nothing is queued on a GPU that was given up: it may hold the caller up.
    fn must_answer(&self) -> Result<()> {
        if self.gpu.is_abandoned() { finish(&self.stream) } else { Ok(()) }
    }

    fn run(&self, kernel: &Kernel, arguments: [u64; 4], count: usize) -> Result<()> {
        let shape = LaunchConfig { blocks: 264, threads: 512, shared_bytes: 0, cooperative: false };
        // SAFETY: the callers give the kernels' parameters, and wait for the stream before they return.
        unsafe {
            match count {
                3 => kernel.launch(
                    &self.stream,
                    shape,
                    Arguments([arguments[0], arguments[1], arguments[2]]),
                )?,
                _ => kernel.launch(&self.stream, shape, Arguments(arguments))?,
            }
        }
        Ok(())
    }

    /// Fills a region of this GPU with the pattern of `seed`.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn fill(&self, region: &Region, seed: u64) -> Result<()> {
        self.must_answer()?;
        self.run(&self.kernels.fill, [region.address(), region.len() as u64, seed, 0], 3)?;
        finish(&self.stream)
    }

    /// Fills a region with one byte.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn poison(&self, region: &Region, byte: u8) -> Result<()> {
        self.must_answer()?;
        // SAFETY: waited for before this returns, unless the GPU is given up, whose memory is not freed.
        unsafe { self.stream.fill(region, byte)? };
        finish(&self.stream)
    }

    /// How many bytes of a region differ from the pattern.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn count_wrong(&self, region: &Region, seed: u64) -> Result<u64> {
        let guard = self.wrong.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (counter, answer) = &*guard;
        self.must_answer()?;
        // SAFETY: all is waited for below.
        unsafe { self.stream.fill(counter, 0)? };
        let arguments = [region.address(), region.len() as u64, seed, counter.address()];
        self.run(&self.kernels.check, arguments, 4)?;
        // SAFETY: as above.
        unsafe { self.stream.copy(counter, answer)? };
        finish(&self.stream)?;
        // SAFETY: 8 aligned bytes of pinned memory, written before the stream was idle.
        Ok(unsafe { answer.as_ptr().cast::<u64>().read_volatile() })
    }
}
