//! A packet function, compiled together with the executor's kernels and loaded on a GPU.

use super::parameters::LaneParameters;
use super::settings::{MOST_THREADS, Memory};
use crate::error::{Error, Result};
use inlane_cuda::{self as cuda, Gpu, Module};
use inlane_function::abi::CounterPlace;
use inlane_function::report::StateCounter;
use inlane_function::{FunctionInfo, FunctionSource, HEADERS, PacketFunction};
use std::sync::Arc;

/// The source of the executor's kernels.
pub(super) const EXECUTOR: &str = include_str!("kernels/executor.cu");

/// The number of threads of the kernel that calls a function's `tick`. It is a multiple of 32, because
/// functions rely on whole warps.
pub(super) const TICK_THREADS: u32 = 128;

/// The kernels of one packet function, loaded on one GPU. All pipelines of a run share them.
pub struct LoadedFunction {
    pub(super) gpu: Arc<Gpu>,
    pub(super) function: PacketFunction,
    pub(super) info: FunctionInfo,
    /// The counters that the function declares.
    pub(super) counters: Vec<StateCounter>,
    pub(super) persistent: cuda::Kernel,
    pub(super) items: cuda::Kernel,
    pub(super) slots: cuda::Kernel,
    pub(super) tick: cuda::Kernel,
    /// True if the kernels can pull packets into GPU memory.
    pub(super) pulls: bool,
    cached: bool,
}

impl LoadedFunction {
    /// Compiles `function` for `gpu` and for packets in `memory`, or takes its code from the cache, and loads
    /// the code.
    ///
    /// # Errors
    /// If the function does not compile (with the compiler's messages), or the code cannot be loaded.
    pub fn new(gpu: &Arc<Gpu>, function: &PacketFunction, memory: Memory) -> Result<Arc<Self>> {
        let pulls = memory.pull() != 0;
        let compiled = compile(function, pulls, &gpu.info().arch(), &[])?;
        for line in compiled.log().lines() {
            tracing::warn!("{line}");
        }
        let module = Module::load(gpu, &compiled)?;
        let info = gpu.read(&module.global(&format!("inlane_info_{}", source(function)?.symbol))?)?;
        let info = FunctionInfo::from_bytes(&info).ok_or_else(|| {
            Error::config(
                crate::field::FUNCTION.with(function.name()),
                "it was compiled against another version of inlane.h; include the header of this version",
            )
        })?;
        Ok(Arc::new(Self {
            gpu: gpu.clone(),
            function: function.clone(),
            info,
            counters: counters(gpu, &module, function)?,
            persistent: module.kernel("inlane_persistent")?,
            items: module.kernel("inlane_items")?,
            slots: module.kernel("inlane_slots")?,
            tick: module.kernel("inlane_tick")?,
            pulls,
            cached: compiled.is_cached(),
        }))
    }

    /// Returns the GPU that the kernels are loaded on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Returns how many blocks of persistent kernels the GPU can run at once, besides the function's `tick`
    /// kernel.
    ///
    /// # Errors
    /// If the driver call fails.
    pub(super) fn room_for_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        let blocks = self.persistent.max_resident_blocks(threads, shared_bytes)?;
        let kept = TICK_THREADS.div_ceil(threads) * self.info.ticks() as u32;
        Ok(blocks.saturating_sub(kept))
    }

    /// Permits launches with the shared memory that items of `burst` packets need. Returns the number of
    /// bytes of shared memory per block.
    ///
    /// # Errors
    /// If a block of this GPU cannot have that much shared memory.
    pub(super) fn shared_for(&self, burst: usize, pulled: bool) -> Result<u32> {
        let most = self.gpu.max_shared_bytes_per_block()?;
        let bytes = shared_bytes(burst, pulled);
        for kernel in [&self.persistent, &self.items, &self.slots] {
            let fixed = kernel.static_shared_bytes()?;
            let fits = fit_shared(burst, pulled, fixed, most).map_err(|why| {
                Error::config(crate::field::BURST.with(burst), format!("on {}, {why}", self.gpu))
            })?;
            if fits == SharedMemory::Allowed {
                kernel.set_max_dynamic_shared_bytes(bytes)?;
            }
        }
        Ok(bytes)
    }

    /// Returns the function's properties.
    pub fn info(&self) -> &FunctionInfo {
        &self.info
    }

    /// Returns true if the code came from the cache.
    pub fn is_cached(&self) -> bool {
        self.cached
    }
}

/// Finds the counters of `function` in its module. The preprocessor may have removed a counter for the GPU.
fn counters(gpu: &Arc<Gpu>, module: &Arc<Module>, function: &PacketFunction) -> Result<Vec<StateCounter>> {
    let mut counters = Vec::new();
    for name in function.declared_counters() {
        if let Ok(global) = module.global(&format!("inlane_counter_{}_{name}", source(function)?.symbol))
            && let Some(place) = CounterPlace::from_bytes(&gpu.read(&global)?)
        {
            counters.push(StateCounter { name: name.clone(), place });
        }
    }
    Ok(counters)
}

/// Whether a kernel's limit on shared memory must be raised before its launches
/// (`Kernel::set_max_dynamic_shared_bytes`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharedMemory {
    /// The launches need at most the 48 KiB of shared memory that every kernel may use. Leave the kernel's
    /// limit unchanged.
    Usual,
    /// The launches use more shared memory than the usual limit. Raise the kernel's limit before the
    /// launches.
    Allowed,
}

/// The most shared memory per block in a launch of a kernel whose limit was not raised, in bytes.
const USUAL_SHARED: u32 = 48 << 10;

/// Returns the bytes of shared memory per packet: the packet's descriptor and, if packets are pulled (copied
/// into GPU memory), the descriptor of the copy and a verdict.
const fn shared_per_packet(pulled: bool) -> u32 {
    if pulled { 16 + 16 + 8 } else { 16 }
}

/// Returns how many bytes of shared memory a block needs for items of `burst` packets.
pub(super) const fn shared_bytes(burst: usize, pulled: bool) -> u32 {
    burst as u32 * shared_per_packet(pulled)
}

/// Checks that the shared memory of a launch fits into a block's `most` bytes. A launch needs the bytes for
/// `burst` packets and the packet function's `fixed` bytes.
pub(super) fn fit_shared(burst: usize, pulled: bool, fixed: u32, most: u32) -> Result<SharedMemory, String> {
    let bytes = shared_bytes(burst, pulled);
    // Shared memory begins with the packet function's bytes. Round them up to a multiple of 16, because the
    // descriptors of the packets follow and need that alignment.
    match fixed.next_multiple_of(16) + bytes {
        all if all <= USUAL_SHARED => Ok(SharedMemory::Usual),
        all if all <= most => Ok(SharedMemory::Allowed),
        all => {
            let each = shared_per_packet(pulled);
            let room = most.saturating_sub(fixed.next_multiple_of(16)) / each;
            let remedy = match room {
                0 => "declare less in the packet function".into(),
                room => format!("use {} or less", crate::field::BURST.with(room)),
            };
            Err(format!(
                "a block would need {all} bytes of shared memory ({fixed} for the packet function, {each} per packet) and can have \
                 {most}; {remedy}"
            ))
        }
    }
}

/// Returns the source of a function that can run on a GPU.
fn source(function: &PacketFunction) -> Result<FunctionSource<'_>> {
    function.source().ok_or_else(|| {
        Error::config(
            crate::field::FUNCTION.with(function.name()),
            "it is written in Rust, and runs on the CPU only; write it in C++ for a GPU",
        )
    })
}

/// Compiles a function with the executor's kernels for one architecture. Needs no GPU. If `pulls` is set, the
/// kernels can pull packets into GPU memory, but need more registers and are slower. `more` are additional
/// compiler options.
pub(super) fn compile(
    function: &PacketFunction,
    pulls: bool,
    arch: &str,
    more: &[&str],
) -> Result<cuda::CompiledProgram> {
    let source = source(function)?.for_gpu() + EXECUTOR + &LaneParameters::layout_assertions();
    let threads = format!("-DINLANE_MOST_THREADS={MOST_THREADS}");
    let pulls = format!("-DINLANE_PULLS={}", pulls as u32);
    // -lineinfo gives profilers line numbers. -default-device compiles unannotated functions for the GPU.
    let options = [&["-lineinfo", "-default-device", &threads, &pulls], more].concat();
    let headers = [&HEADERS[..], &[cuda::SYSTEM_HEADER]].concat();
    let program = cuda::Source { name: "executor.cu", source: &source, headers: &headers, options: &options };
    match cuda::compile(&program, arch) {
        // Name the packet function in the message, because the user does not know executor.cu.
        Err(cuda::Error::DoesNotCompile { arch, log, .. }) => Err(cuda::Error::DoesNotCompile {
            name: format!("packet function {}", function.name()),
            arch,
            log,
        }
        .into()),
        other => Ok(other?),
    }
}
