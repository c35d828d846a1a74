//! Devices: which there are, and one of them opened.

use crate::driver::{self, call};
use crate::error::{Error, Result};
use crate::stream::Stream;
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A PCIe link, as the kernel sees it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct Link {
    /// Transfers a second and lane, in GT/s.
    pub gigatransfers: f64,
    /// Lanes in use.
    pub width: u32,
    /// Transfers a second and lane at most.
    pub max_gigatransfers: f64,
    /// Lanes at most.
    pub max_width: u32,
}

/// What the device says of writes by other PCIe devices into its memory.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct GpuDirect {
    /// Other devices may read and write its memory.
    pub supported: bool,
    /// `GPU_DIRECT_RDMA_WRITES_ORDERING`: 0 none, 100 as seen by the owner, 200 as seen by all.
    pub writes_ordering: i32,
    /// `GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`: bit 0 by the host, bit 1 by stream memory operations.
    pub flush_writes_options: i32,
}

/// What is known of a device without opening it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
pub struct DeviceInfo {
    /// Its number: `gpu:N`.
    pub index: u32,
    /// As the driver names it.
    pub name: String,
    /// Domain, bus, device, function, as the kernel writes them.
    pub pci_address: String,
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Threads that one of them holds.
    pub threads_per_multiprocessor: u32,
    /// Bytes of memory in all.
    pub memory_bytes: u64,
    /// Bytes of second-level cache.
    pub l2_bytes: u64,
    /// Its DMA engines.
    pub copy_engines: u32,
    /// Streams can wait for values of 64 bits.
    pub wide_stream_memory_operations: bool,
    /// Streams can wait until a value's bits are cleared.
    pub stream_wait_nor: bool,
    /// GPUDirect, which nothing here uses yet.
    pub gpu_direct: GpuDirect,
    /// Its PCIe link, where the kernel tells.
    pub link: Option<Link>,
    /// Its NUMA node, where the kernel tells.
    pub numa_node: Option<u32>,
}

impl DeviceInfo {
    /// The architecture as compilers name it: `sm_90`.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.compute_capability.0, self.compute_capability.1)
    }
}

/// The newest CUDA version the driver supports, as 13000 for 13.0.
///
/// # Errors
/// [`Error::NoDriver`], [`Error::DriverTooOld`], or what `cuInit` said.
pub fn driver_version() -> Result<i32> {
    driver::load()
}

/// How many GPUs there are.
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

/// All GPUs that the driver shows.
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
        // SAFETY: a valid device and pointer.
        unsafe { call!(label, cuDeviceGetAttribute(&mut value, attribute, device))? };
        Ok(value)
    };
    let mut name = [0u8; 128];
    let mut address = [0u8; 32];
    let mut memory = 0;
    // SAFETY: the buffers are as long as said, and the driver ends strings with 0.
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
    // "32.0 GT/s PCIe", or "Unknown".
    let speed = |file| sysfs(address, file)?.split_whitespace().next()?.parse::<f64>().ok();
    let width = |file| sysfs(address, file)?.parse::<u32>().ok();
    Some(Link {
        gigatransfers: speed("current_link_speed")?,
        width: width("current_link_width")?,
        max_gigatransfers: speed("max_link_speed")?,
        max_width: width("max_link_width")?,
    })
}

/// What [`Gpu::open`] gave.
static OPENED: Mutex<Vec<Arc<Gpu>>> = Mutex::new(Vec::new());

static ANY_ABANDONED: AtomicBool = AtomicBool::new(false);

/// A GPU of this process was given up ([`Gpu::abandon`]): end it by `_exit`, for exit handlers would wait for the GPU.
pub fn any_abandoned() -> bool {
    ANY_ABANDONED.load(Ordering::Relaxed)
}

/// [`Gpu::abandon`] of every GPU that this process has opened: pinned memory is of all of them, and one that is freed waits for all.
pub fn abandon_all() {
    let opened = OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    opened.iter().for_each(|gpu| gpu.abandon());
}

/// A GPU, opened: everything else in this crate hangs on one.
///
/// All of a process share the device's primary context, so other CUDA libraries in it see the same memory.
pub struct Gpu {
    info: DeviceInfo,
    device: CUdevice,
    context: sys::CUcontext,
    abandoned: AtomicBool,
}

// SAFETY: the driver's calls are thread-safe; the handles are plain values.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens `gpu:index`; it stays open until the process ends, for its context takes tenths of a second to make, and who opens it once
    /// (a trial, a run, its ceiling) mostly opens it again.
    ///
    /// # Errors
    /// When there is no driver, no such device, or its context cannot be had.
    pub fn open(index: u32) -> Result<Arc<Self>> {
        if any_abandoned() {
            return Err(Error::invalid(
                format!("gpu:{index}"),
                "a GPU was given up in this process, and calls to the driver would wait for ever; start another process",
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
        // SAFETY: a valid device; the context is released in drop.
        unsafe { call!(format!("gpu:{index}"), cuDevicePrimaryCtxRetain(&mut context, device))? };
        let gpu = Self { info, device, context, abandoned: AtomicBool::new(false) };
        gpu.make_current()?;
        let gpu = Arc::new(gpu);
        opened.push(gpu.clone());
        Ok(gpu)
    }

    /// What is known of it.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.info.index
    }

    /// The driver's handle of its context, for code that calls the driver itself.
    pub fn context(&self) -> sys::CUcontext {
        self.context
    }

    pub(crate) fn handle(&self) -> CUdevice {
        self.device
    }

    /// Makes its context the calling thread's, as every call of this crate does by itself.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the context lives as long as this value.
        unsafe { call!(self, cuCtxSetCurrent(self.context)) }
    }

    /// Bytes of its memory that are free now, and in all.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: valid pointers.
        unsafe { call!(self, cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok((free as u64, total as u64))
    }

    /// Most bytes of shared memory that a block can have, where its kernel is allowed more than the usual
    /// ([`Kernel::set_max_dynamic_shared_bytes`](crate::Kernel::set_max_dynamic_shared_bytes)).
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn max_shared_bytes_per_block(&self) -> Result<u32> {
        let mut most = 0;
        let wanted = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: a valid device and pointer.
        unsafe { call!(self, cuDeviceGetAttribute(&mut most, wanted, self.device))? };
        Ok(most as u32)
    }

    /// Gives the device up: a kernel on it will never end. From here on nothing of it is freed by calls, which would wait
    /// for that kernel; the system frees all of it when the process ends, which should be soon and without running the
    /// C library's exit handlers (`_exit`).
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        ANY_ABANDONED.store(true, Ordering::Relaxed);
    }

    /// [`Gpu::abandon`] was called.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Runs `free` with the context entered, unless the device was given up; errors are logged, for drops have no other way.
    pub(crate) fn release(&self, what: &str, free: impl FnOnce() -> Result<()>) {
        if self.is_abandoned() {
            return;
        }
        if let Err(error) = self.make_current().and_then(|()| free()) {
            tracing::warn!("{what} not freed: {error}");
        }
    }

    /// A new stream.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn stream(self: &Arc<Self>) -> Result<Stream> {
        Stream::new(self, false)
    }

    /// A new stream whose blocks are placed ahead of those of other streams that wait for room.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn high_priority_stream(self: &Arc<Self>) -> Result<Stream> {
        Stream::new(self, true)
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
            // SAFETY: retained once in `open`; everything made in it holds this value, so it is gone.
            unsafe { call!(self, cuDevicePrimaryCtxRelease_v2(self.device)) }
        });
    }
}
