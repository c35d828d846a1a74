//! The memory of a GPU as the source or destination of transfers. Kernels fill the memory with patterns and
//! check received data.

use super::kernels::Kernels;
use inlane_core::{Region, Result};
use inlane_cuda::{Arguments, Gpu, Kernel, LaunchConfig, Stream, finish};
use std::sync::{Arc, Mutex};

/// An opened GPU with this crate's kernels loaded.
pub struct GpuMemory {
    gpu: Arc<Gpu>,
    kernels: Kernels,
    stream: Stream,
    /// A counter of wrong bytes, which lies in GPU memory. The second region is the pinned word to which the
    /// counter is copied.
    wrong: Mutex<(Region, Region)>,
}

impl GpuMemory {
    /// Opens `gpu:index` and loads the kernels.
    ///
    /// # Errors
    /// [`Error::Device`](inlane_core::Error::Device) if the GPU or the run-time compiler is missing, or the
    /// driver refuses.
    pub fn open(index: u32) -> Result<Self> {
        let gpu = Gpu::open(index)?;
        let kernels = Kernels::load(&gpu)?;
        let wrong = Mutex::new((gpu.allocate(8)?, gpu.pinned(8)?));
        Ok(Self { stream: gpu.stream()?, kernels, wrong, gpu })
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Returns the GPU's name and PCI address.
    pub(crate) fn name(&self) -> String {
        let info = self.gpu.info();
        format!("{} at {}", info.name, info.pci_address)
    }

    /// Returns the current state of the GPU's PCIe link as text, and the link's highest rate in bits per
    /// second. Returns `None` if the link is unknown.
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

    /// Returns an error if the GPU was given up. Call this before queueing work: on such a GPU, queueing may
    /// block.
    fn check_usable(&self) -> Result<()> {
        if self.gpu.is_abandoned() { finish(&self.stream) } else { Ok(()) }
    }

    /// Launches a kernel on this GPU's stream and does not wait for it.
    ///
    /// # Safety
    /// `arguments` match the parameters of the kernel. If they contain the address of a region, the region
    /// stays alive until the stream is finished.
    unsafe fn launch<const N: usize>(&self, kernel: &Kernel, arguments: [u64; N]) -> Result<()> {
        let config = LaunchConfig { blocks: 264, threads: 512, shared_bytes: 0, cooperative: false };
        // SAFETY: the caller promises that the arguments fit the kernel and that the regions stay alive.
        unsafe { kernel.launch(&self.stream, config, Arguments(arguments))? };
        Ok(())
    }

    /// Fills a region of this GPU with the pattern of `seed`.
    ///
    /// # Errors
    /// [`Error::Device`](inlane_core::Error::Device) if the driver refuses.
    pub fn fill(&self, region: &Region, seed: u64) -> Result<()> {
        self.check_usable()?;
        // SAFETY: the kernel takes address, length and seed, and `finish` waits for it.
        unsafe { self.launch(&self.kernels.fill, [region.address(), region.len() as u64, seed])? };
        finish(&self.stream)
    }

    /// Fills a region of this GPU with one byte.
    ///
    /// # Errors
    /// [`Error::Device`](inlane_core::Error::Device) if the driver refuses.
    pub fn poison(&self, region: &Region, byte: u8) -> Result<()> {
        self.check_usable()?;
        // SAFETY: `finish` waits for the fill, or gives up the GPU, whose memory is then never freed.
        unsafe { self.stream.fill(region, byte)? };
        finish(&self.stream)
    }

    /// Counts the bytes of a region that differ from the pattern of `seed`.
    ///
    /// # Errors
    /// [`Error::Device`](inlane_core::Error::Device) if the driver refuses.
    pub fn count_wrong(&self, region: &Region, seed: u64) -> Result<u64> {
        let guard = self.wrong.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (counter, answer) = &*guard;
        self.check_usable()?;
        let arguments = [region.address(), region.len() as u64, seed, counter.address()];
        // SAFETY: the kernel takes address, length, seed and counter. `finish` waits for all three
        // operations.
        unsafe {
            self.stream.fill(counter, 0)?;
            self.launch(&self.kernels.check, arguments)?;
            self.stream.copy(counter, answer)?;
        }
        finish(&self.stream)?;
        // SAFETY: `answer` has 8 aligned bytes of pinned memory. No operation writes them any more.
        Ok(unsafe { answer.as_ptr().cast::<u64>().read_volatile() })
    }
}
