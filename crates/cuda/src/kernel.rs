//! CompiledProgram code on a device: modules, functions, launches.

use crate::device::Gpu;
use crate::driver::call;
use crate::error::{Error, Result};
use crate::nvrtc::CompiledProgram;
use crate::stream::Stream;
use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};
use inlane_core::{Location, Region};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// Machine code, loaded on a GPU.
pub struct Module {
    gpu: Arc<Gpu>,
    raw: sys::CUmodule,
}

// SAFETY: the driver's calls on a module are thread-safe.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads what [`crate::compile`] gave. Waits for kernels that run on the device.
    ///
    /// # Errors
    /// When it is for another architecture, or the driver refuses.
    pub fn load(gpu: &Arc<Gpu>, compiled: &CompiledProgram) -> Result<Arc<Self>> {
        if compiled.arch() != gpu.info().arch() {
            return Err(Error::invalid(
                format!("machine code for {}", compiled.arch()),
                format!("{gpu} is {}; compile for that", gpu.info().arch()),
            ));
        }
        gpu.make_current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a whole image that the compiler made; the driver copies it.
        unsafe { call!(gpu, cuModuleLoadData(&mut raw, compiled.machine_code().as_ptr().cast()))? };
        Ok(Arc::new(Self { gpu: gpu.clone(), raw }))
    }

    /// The kernel called `name` (declared `extern "C"`), loaded at once.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        let c_name = c_string(name)?;
        self.gpu.make_current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: valid handle, string and pointer.
        unsafe {
            call!(
                format!("{}, kernel {name}", self.gpu),
                cuModuleGetFunction(&mut raw, self.raw, c_name.as_ptr())
            )?
        };
        // SAFETY: the handle was just given. With lazy loading this loads it now rather than at its first launch.
        unsafe { call!(self.gpu, cuFuncLoad(raw))? };
        Ok(Kernel { module: self.clone(), raw, name: name.into() })
    }

    /// The global variable called `name` (declared `extern "C"`).
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn global(self: &Arc<Self>, name: &str) -> Result<Region> {
        let c_name = c_string(name)?;
        self.gpu.make_current()?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: valid handle, string and pointers.
        unsafe {
            call!(
                format!("{}, variable {name}", self.gpu),
                cuModuleGetGlobal_v2(&mut address, &mut bytes, self.raw, c_name.as_ptr())
            )?
        };
        // SAFETY: the variable lives as long as the module, which the region keeps.
        Ok(unsafe { Region::from_raw(address, bytes, Location::Gpu(self.gpu.index()), self.clone()) })
    }
}

fn c_string(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::invalid(format!("the name {name:?}"), "it contains a zero byte"))
}

impl Drop for Module {
    fn drop(&mut self) {
        self.gpu.release("a module", || {
            // SAFETY: loaded once, unloaded once.
            unsafe { call!(self.gpu, cuModuleUnload(self.raw)) }
        });
    }
}

/// A kernel. Cloning shares its module.
#[derive(Clone)]
pub struct Kernel {
    module: Arc<Module>,
    raw: sys::CUfunction,
    name: String,
}

// SAFETY: the driver's calls on a function are thread-safe.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks.
    pub blocks: u32,
    /// Threads a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory a block.
    pub shared_bytes: u32,
    /// All blocks resident at once, or an error: for kernels whose blocks wait for each other, or for the host.
    pub cooperative: bool,
}

/// What a kernel is launched with: [`Arguments`], or an array of what [`argument`] gives. The driver copies the values while
/// it is launched.
pub trait KernelArguments<const N: usize> {
    /// Where each parameter's value is.
    fn pointers(&self) -> [*const c_void; N];
}

/// Parameters of at most 8 bytes each: numbers and addresses.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<const N: usize>(pub [u64; N]);

impl<const N: usize> KernelArguments<N> for Arguments<N> {
    fn pointers(&self) -> [*const c_void; N] {
        // A parameter of 4 bytes is the low half of its value: both sides are little-endian.
        self.0.each_ref().map(argument)
    }
}

/// The address of a parameter's value: of a number, or of a `repr(C)` struct that the kernel takes by value.
pub fn argument<T: Copy>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

impl<const N: usize> KernelArguments<N> for [*const c_void; N] {
    fn pointers(&self) -> [*const c_void; N] {
        *self
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn raw(&self) -> sys::CUfunction {
        self.raw
    }

    /// Registers a thread.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn registers(&self) -> Result<u32> {
        self.attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    fn attribute(&self, attribute: Attribute) -> Result<u32> {
        self.module.gpu.make_current()?;
        let mut value = 0;
        // SAFETY: valid handle and pointer.
        unsafe { call!(self.module.gpu, cuFuncGetAttribute(&mut value, attribute, self.raw))? };
        Ok(value as u32)
    }

    /// How many blocks of that size the whole GPU holds at once.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn max_resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        let gpu = &self.module.gpu;
        gpu.make_current()?;
        let mut blocks = 0;
        // SAFETY: valid handle and pointer.
        unsafe {
            call!(
                gpu,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    &mut blocks,
                    self.raw,
                    threads as i32,
                    shared_bytes as usize
                )
            )?
        };
        Ok(blocks as u32 * gpu.info().multiprocessors)
    }

    /// Bytes of shared memory a block that the kernel declares itself, apart from what it is launched with.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn static_shared_bytes(&self) -> Result<u32> {
        self.attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    }

    /// Allows launches with so many bytes of dynamic shared memory. Without it, 48 KiB together with those that the kernel declares
    /// are the most; with it, [`Gpu::max_shared_bytes_per_block`].
    ///
    /// # Errors
    /// When the driver refuses, also because that is too much.
    pub fn set_max_dynamic_shared_bytes(&self, bytes: u32) -> Result<()> {
        let gpu = &self.module.gpu;
        gpu.make_current()?;
        let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a valid handle.
        unsafe {
            call!(format!("{gpu}, kernel {}", self.name), cuFuncSetAttribute(self.raw, dynamic, bytes as i32))
        }
    }

    /// Queues a launch.
    ///
    /// # Safety
    /// The arguments are those that the kernel declares, and what their values point to stays valid
    /// until it has run.
    ///
    /// # Errors
    /// When the driver refuses the shape, or an earlier kernel failed.
    pub unsafe fn launch<const N: usize>(
        &self,
        stream: &Stream,
        shape: LaunchConfig,
        arguments: impl KernelArguments<N>,
    ) -> Result<()> {
        let gpu = &self.module.gpu;
        gpu.make_current()?;
        let mut pointers = arguments.pointers().map(<*const c_void>::cast_mut);
        // SAFETY: the driver copies the arguments before it returns; the caller vouches for what they mean.
        unsafe {
            if shape.cooperative {
                call!(
                    format!("{gpu}, kernel {}", self.name),
                    cuLaunchCooperativeKernel(
                        self.raw,
                        shape.blocks,
                        1,
                        1,
                        shape.threads,
                        1,
                        1,
                        shape.shared_bytes,
                        stream.raw(),
                        pointers.as_mut_ptr()
                    )
                )
            } else {
                call!(
                    format!("{gpu}, kernel {}", self.name),
                    cuLaunchKernel(
                        self.raw,
                        shape.blocks,
                        1,
                        1,
                        shape.threads,
                        1,
                        1,
                        shape.shared_bytes,
                        stream.raw(),
                        pointers.as_mut_ptr(),
                        std::ptr::null_mut()
                    )
                )
            }
        }
    }
}
