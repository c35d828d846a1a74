//! Loads modules of compiled code on a GPU, and launches their kernels.

use crate::device::Gpu;
use crate::driver::call;
use crate::error::{Error, Result};
use crate::nvrtc::CompiledProgram;
use crate::stream::Stream;
use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};
use inlane_core::{Location, Region};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// Machine code that is loaded on a GPU.
pub struct Module {
    gpu: Arc<Gpu>,
    raw: sys::CUmodule,
}

// SAFETY: driver calls on a module are thread-safe.
unsafe impl Send for Module {}
// SAFETY: as for `Send`.
unsafe impl Sync for Module {}

impl Module {
    /// Loads the result of [`crate::compile`]. Waits until running kernels end.
    ///
    /// # Errors
    /// If the code is for another architecture, or the driver call fails.
    pub fn load(gpu: &Arc<Gpu>, compiled: &CompiledProgram) -> Result<Arc<Self>> {
        if compiled.arch() != gpu.info().arch() {
            return Err(Error::invalid(
                format!("machine code for {}", compiled.arch()),
                format!("{gpu} needs {}; compile for that", gpu.info().arch()),
            ));
        }
        gpu.make_current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the machine code is a complete image from the compiler. The driver copies it.
        unsafe { call!(gpu, cuModuleLoadData(&mut raw, compiled.machine_code().as_ptr().cast()))? };
        Ok(Arc::new(Self { gpu: gpu.clone(), raw }))
    }

    /// Returns the kernel `name`, which the module's source declares `extern "C"`. Loads the kernel now, so
    /// that its first launch is not delayed.
    ///
    /// # Errors
    /// If the module has no kernel of that name.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        let c_name = c_string(name)?;
        self.gpu.make_current()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle, the string and the pointer are valid.
        unsafe {
            call!(
                format!("{}, kernel {name}", self.gpu),
                cuModuleGetFunction(&mut raw, self.raw, c_name.as_ptr())
            )?
        };
        // Load the kernel now. With lazy loading, the driver would load it at its first launch.
        // SAFETY: the handle is valid.
        unsafe { call!(self.gpu, cuFuncLoad(raw))? };
        Ok(Kernel { module: self.clone(), raw, name: name.into() })
    }

    /// Returns the GPU memory of the variable `name`. The module's source must declare it `extern "C"`.
    ///
    /// # Errors
    /// If the module has no variable of that name.
    pub fn global(self: &Arc<Self>, name: &str) -> Result<Region> {
        let c_name = c_string(name)?;
        self.gpu.make_current()?;
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the handle, the string and the pointers are valid.
        unsafe {
            call!(
                format!("{}, variable {name}", self.gpu),
                cuModuleGetGlobal_v2(&mut address, &mut bytes, self.raw, c_name.as_ptr())
            )?
        };
        // SAFETY: the variable lives as long as the module, which the region keeps alive.
        Ok(unsafe { Region::from_raw(address, bytes, Location::Gpu(self.gpu.index()), self.clone()) })
    }
}

fn c_string(name: &str) -> Result<CString> {
    CString::new(name)
        .map_err(|_| Error::invalid(format!("the name {name:?}"), "it contains a zero byte; remove it"))
}

impl Drop for Module {
    fn drop(&mut self) {
        self.gpu.release("a module", || {
            // SAFETY: the module is loaded once and unloaded once.
            unsafe { call!(self.gpu, cuModuleUnload(self.raw)) }
        });
    }
}

/// A kernel of a loaded module. Each clone keeps the module loaded.
#[derive(Clone)]
pub struct Kernel {
    module: Arc<Module>,
    raw: sys::CUfunction,
    name: String,
}

// SAFETY: driver calls on a kernel are thread-safe.
unsafe impl Send for Kernel {}
// SAFETY: as for `Send`.
unsafe impl Sync for Kernel {}

/// The shape of a kernel launch: how many blocks and threads, how much shared memory, and whether all blocks
/// must be resident at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// The number of blocks.
    pub blocks: u32,
    /// The number of threads per block.
    pub threads: u32,
    /// The bytes of dynamic shared memory per block.
    pub shared_bytes: u32,
    /// If true, the launch fails unless all blocks are resident at once. Set it if blocks wait for other
    /// blocks or for the host.
    pub cooperative: bool,
}

/// The arguments of a launch: [`Arguments`], or an array of results of [`argument`].
pub trait KernelArguments<const N: usize> {
    /// Returns the address of each argument's value. The values must stay valid during the launch.
    fn pointers(&self) -> [*const c_void; N];
}

/// Arguments of at most 8 bytes each: numbers and addresses.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<const N: usize>(pub [u64; N]);

impl<const N: usize> KernelArguments<N> for Arguments<N> {
    fn pointers(&self) -> [*const c_void; N] {
        // A parameter of 4 bytes gets the low half of its 8-byte argument: the driver reads from the first
        // byte, and all supported hosts are little-endian.
        self.0.each_ref().map(argument)
    }
}

/// Returns the address of `value`, an argument of a kernel: a number or a `repr(C)` struct. The kernel takes
/// the argument by value.
pub fn argument<T: Copy>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

impl<const N: usize> KernelArguments<N> for [*const c_void; N] {
    fn pointers(&self) -> [*const c_void; N] {
        *self
    }
}

impl Kernel {
    /// Returns the kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn raw(&self) -> sys::CUfunction {
        self.raw
    }

    /// Returns the number of registers per thread.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn registers(&self) -> Result<u32> {
        self.attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    fn attribute(&self, attribute: Attribute) -> Result<u32> {
        self.module.gpu.make_current()?;
        let mut value = 0;
        // SAFETY: the handle and the pointer are valid.
        unsafe { call!(self.module.gpu, cuFuncGetAttribute(&mut value, attribute, self.raw))? };
        Ok(value as u32)
    }

    /// Returns how many blocks of this size the whole GPU can run at once.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn max_resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        let gpu = &self.module.gpu;
        gpu.make_current()?;
        let mut blocks = 0;
        // SAFETY: the handle and the pointer are valid.
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

    /// Returns the size in bytes of the static shared memory of a block, which the kernel declares. Dynamic
    /// shared memory is not counted.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn static_shared_bytes(&self) -> Result<u32> {
        self.attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    }

    /// Allows launches with up to `bytes` bytes of dynamic shared memory, at most
    /// [`Gpu::max_shared_bytes_per_block`]. Without this call, a launch can use 48 KiB of shared memory in
    /// all.
    ///
    /// # Errors
    /// If `bytes` is too large, or the driver call fails.
    pub fn set_max_dynamic_shared_bytes(&self, bytes: u32) -> Result<()> {
        let gpu = &self.module.gpu;
        gpu.make_current()?;
        let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the handle is valid.
        unsafe {
            call!(format!("{gpu}, kernel {}", self.name), cuFuncSetAttribute(self.raw, dynamic, bytes as i32))
        }
    }

    /// Queues a launch of the kernel on `stream`.
    ///
    /// # Safety
    /// The arguments have the number, types and order that the kernel declares. Memory that they refer to
    /// stays valid until the kernel has run. No other access races with the kernel's accesses to this memory.
    ///
    /// # Errors
    /// If the GPU cannot run this shape, or an earlier kernel failed.
    pub unsafe fn launch<const N: usize>(
        &self,
        stream: &Stream,
        shape: LaunchConfig,
        arguments: impl KernelArguments<N>,
    ) -> Result<()> {
        let gpu = &self.module.gpu;
        gpu.make_current()?;
        let mut pointers = arguments.pointers().map(<*const c_void>::cast_mut);
        // SAFETY: the driver copies the arguments before it returns. The caller guarantees that they fit the
        // kernel.
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
