//! Lists the machine's GPUs, opens one, and marks GPUs as abandoned once they stop answering.

use crate::driver::{self, call};
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The PCIe link of a GPU, as the Linux kernel reports it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct Link {
    /// The current transfer rate of each PCIe lane, in GT/s.
    pub gigatransfers: f64,
    /// The number of PCIe lanes in use.
    pub width: u32,
    /// The highest transfer rate of each PCIe lane that the GPU supports, in GT/s.
    pub max_gigatransfers: f64,
    /// The highest number of PCIe lanes that the GPU supports.
    pub max_width: u32,
}

/// How other PCIe devices can access the GPU's memory (GPUDirect RDMA).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct GpuDirect {
    /// True if other devices can read and write the GPU's memory.
    pub supported: bool,
    /// `GPU_DIRECT_RDMA_WRITES_ORDERING`: 0 none, 100 visible in order to this GPU, 200 visible in order to
    /// all devices.
    pub writes_ordering: i32,
    /// `GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`: bit 0 if the host can flush writes, bit 1 if stream memory
    /// operations can.
    pub flush_writes_options: i32,
}

/// The properties of a GPU that are known without opening the GPU.
#[derive(Clone, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct DeviceInfo {
    /// The number N in `gpu:N`.
    pub index: u32,
    /// The model name.
    pub name: String,
    /// The PCI address, for example `0000:1b:00.0`.
    pub pci_address: String,
    /// The compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// The number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// The most threads that one multiprocessor can hold at the same time.
    pub threads_per_multiprocessor: u32,
    /// The size of the memory in bytes.
    pub memory_bytes: u64,
    /// The size of the L2 cache in bytes.
    pub l2_bytes: u64,
    /// The number of DMA engines. They copy memory while kernels run.
    pub copy_engines: u32,
    /// True if CUDA streams can wait for and write 64-bit values in memory.
    pub wide_stream_memory_operations: bool,
    /// True if CUDA streams can wait until bits of a value in memory are clear.
    pub stream_wait_nor: bool,
    /// GPUDirect RDMA. inlane reports it and does not use it.
    pub gpu_direct: GpuDirect,
    /// The PCIe link. Null if the kernel does not report it.
    pub link: Option<Link>,
    /// The NUMA node to which the GPU is attached. Null if the kernel does not report it.
    pub numa_node: Option<u32>,
}

impl DeviceInfo {
    /// Returns the architecture as compilers name it, for example `sm_90`.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.compute_capability.0, self.compute_capability.1)
    }
}

/// Returns the newest CUDA version that the driver supports, as 13000 for 13.0.
///
/// # Errors
/// [`Error::NoDriver`], [`Error::DriverTooOld`], or the error of `cuInit`.
pub fn driver_version() -> Result<i32> {
    driver::load()
}

/// Returns the number of GPUs that the driver shows.
///
/// # Errors
/// As for [`driver_version`].
pub fn device_count() -> Result<u32> {
    driver::load()?;
    let mut count = 0;
    // SAFETY: the driver is loaded; the pointer is valid.
    unsafe { call!("CUDA driver", cuDeviceGetCount(&mut count))? };
    Ok(count as u32)
}

/// Lists the GPUs that the driver shows.
///
/// # Errors
/// As for [`driver_version`].
pub fn devices() -> Result<Vec<DeviceInfo>> {
    (0..device_count()?).map(|index| describe(index, handle(index)?)).collect()
}

fn handle(index: u32) -> Result<CUdevice> {
    let count = device_count()?;
    if index >= count {
        return Err(Error::NoDevice { index, count });
    }
    let mut device = 0;
    // SAFETY: the driver is loaded; the index exists.
    unsafe { call!(format!("gpu:{index}"), cuDeviceGet(&mut device, index as i32))? };
    Ok(device)
}

fn describe(index: u32, device: CUdevice) -> Result<DeviceInfo> {
    use Attribute::*;
    let label = format!("gpu:{index}");
    let attribute = |attribute: Attribute| -> Result<i32> {
        let mut value = 0;
        // SAFETY: the device and the pointer are valid.
        unsafe { call!(label, cuDeviceGetAttribute(&mut value, attribute, device))? };
        Ok(value)
    };
    let mut name = [0u8; 128];
    let mut address = [0u8; 32];
    let mut memory = 0;
    // SAFETY: the buffers have the passed lengths, and the driver terminates strings with 0.
    unsafe {
        call!(label, cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device))?;
        call!(label, cuDeviceGetPCIBusId(address.as_mut_ptr().cast(), address.len() as i32, device))?;
        call!(label, cuDeviceTotalMem_v2(&mut memory, device))?;
    }
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let pci_address = text(&address).to_lowercase();
    Ok(DeviceInfo {
        index,
        name: text(&name),
        compute_capability: (
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ),
        multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        threads_per_multiprocessor: attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)? as u32,
        memory_bytes: memory as u64,
        l2_bytes: attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as u64,
        copy_engines: attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)? as u32,
        wide_stream_memory_operations: attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)? != 0,
        stream_wait_nor: attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR)? != 0,
        gpu_direct: GpuDirect {
            supported: attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)? != 0,
            writes_ordering: attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?,
            flush_writes_options: attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?,
        },
        link: link(&pci_address),
        numa_node: sysfs(&pci_address, "numa_node").and_then(|text| text.parse().ok()),
        pci_address,
    })
}

fn sysfs(address: &str, file: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{address}/{file}")).ok()?;
    Some(text.trim().to_string())
}

fn link(address: &str) -> Option<Link> {
    // Parses the first word of a text such as "32.0 GT/s PCIe". "Unknown" yields `None`.
    let speed = |file| sysfs(address, file)?.split_whitespace().next()?.parse::<f64>().ok();
    let width = |file| sysfs(address, file)?.parse::<u32>().ok();
    Some(Link {
        gigatransfers: speed("current_link_speed")?,
        width: width("current_link_width")?,
        max_gigatransfers: speed("max_link_speed")?,
        max_width: width("max_link_width")?,
    })
}

/// The GPUs that [`Gpu::open`] has opened.
static OPENED: Mutex<Vec<Arc<Gpu>>> = Mutex::new(Vec::new());

static ANY_ABANDONED: AtomicBool = AtomicBool::new(false);

/// Returns true if a GPU of this process was abandoned ([`Gpu::abandon`]). The process must then end with
/// `_exit`, because exit handlers would wait for the GPU.
pub fn any_abandoned() -> bool {
    ANY_ABANDONED.load(Ordering::Relaxed)
}

/// Abandons every GPU that this process has opened. Call it even if only one GPU hangs, because freeing
/// pinned memory waits for all GPUs of the process.
pub fn abandon_all() {
    let opened = OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    opened.iter().for_each(|gpu| gpu.abandon());
}

/// An open GPU. Streams, events, memory, modules and graphs belong to a GPU and keep it open.
///
/// An open GPU uses the device's primary context, so other CUDA libraries in the process see the same memory.
pub struct Gpu {
    info: DeviceInfo,
    device: CUdevice,
    context: sys::CUcontext,
    abandoned: AtomicBool,
}

// SAFETY: driver calls are thread-safe, and the handles are plain values.
unsafe impl Send for Gpu {}
// SAFETY: as for `Send`.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens `gpu:index`. The GPU stays open until the process ends, because creating a CUDA context takes
    /// tenths of a second.
    ///
    /// # Errors
    /// If there is no driver, no such device, or no context, or if a GPU was abandoned in this process.
    pub fn open(index: u32) -> Result<Arc<Self>> {
        if any_abandoned() {
            return Err(Error::invalid(
                format!("gpu:{index}"),
                "a GPU was abandoned in this process, so calls to the driver may never return; start another process",
            ));
        }
        let mut opened = OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(gpu) = opened.iter().find(|gpu| gpu.index() == index) {
            gpu.make_current()?;
            return Ok(gpu.clone());
        }
        let device = handle(index)?;
        let info = describe(index, device)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the device and the pointer are valid. `drop` releases the context.
        unsafe { call!(format!("gpu:{index}"), cuDevicePrimaryCtxRetain(&mut context, device))? };
        let gpu = Self { info, device, context, abandoned: AtomicBool::new(false) };
        gpu.make_current()?;
        let gpu = Arc::new(gpu);
        opened.push(gpu.clone());
        Ok(gpu)
    }

    /// Returns the GPU's properties.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns the CUDA index of the GPU, the number N in its name `gpu:N`.
    pub fn index(&self) -> u32 {
        self.info.index
    }

    /// Returns the driver's handle of the context, for code that calls the driver directly.
    pub fn context(&self) -> sys::CUcontext {
        self.context
    }

    pub(crate) fn handle(&self) -> CUdevice {
        self.device
    }

    /// Makes the GPU's context current for the calling thread. Call it before you call the driver directly.
    /// The functions of this crate call it themselves.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the context lives as long as this value.
        unsafe { call!(self, cuCtxSetCurrent(self.context)) }
    }

    /// Returns the free bytes of the GPU's memory at this moment, and all its bytes.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are valid.
        unsafe { call!(self, cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok((free as u64, total as u64))
    }

    /// Returns the most bytes of shared memory that a block can have. More than 48 KiB need
    /// [`Kernel::set_max_dynamic_shared_bytes`](crate::Kernel::set_max_dynamic_shared_bytes).
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn max_shared_bytes_per_block(&self) -> Result<u32> {
        let mut most = 0;
        let wanted = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: the device and the pointer are valid.
        unsafe { call!(self, cuDeviceGetAttribute(&mut most, wanted, self.device))? };
        Ok(most as u32)
    }

    /// Abandons the GPU because a kernel on it will never end. From now on, none of the GPU's memory and
    /// handles are freed, because freeing would wait for that kernel. The system frees everything when the
    /// process ends. End the process soon, with `_exit`, which skips exit handlers.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        ANY_ABANDONED.store(true, Ordering::Relaxed);
    }

    /// Returns true if [`Gpu::abandon`] was called.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Makes the GPU's context current and calls `free`, which must release a stream, memory or another
    /// object of this GPU. Does nothing if the GPU was abandoned. Logs errors instead of returning them,
    /// because `drop` calls this function.
    pub(crate) fn release(&self, what: &str, free: impl FnOnce() -> Result<()>) {
        if self.is_abandoned() {
            return;
        }
        if let Err(error) = self.make_current().and_then(|()| free()) {
            tracing::warn!("cannot free {what}: {error}");
        }
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpu:{} ({} at {})", self.info.index, self.info.name, self.info.pci_address)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.release("a context", || {
            // SAFETY: `open` retained the context once. Every object of the context holds an `Arc` of this
            // value. So no object is left when this value is dropped.
            unsafe { call!(self, cuDevicePrimaryCtxRelease_v2(self.device)) }
        });
    }
}
