//! A packet function compiled together with the executor's kernels, loaded on one GPU.

use super::lane::Parameters;
use super::settings::{MOST_THREADS, Memory};
use crate::error::{Error, Result};
use inlane_cuda::{self as cuda, Gpu, Module};
use inlane_function::{FunctionInfo, HEADERS, PacketFunction};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

pub(super) const EXECUTOR: &str = include_str!("kernels/executor.cu");

/// Threads of the kernel that sees to a function's time limits: functions count on whole warps.
pub(super) const TICK_THREADS: u32 = 128;

/// The kernels of one function on one GPU; pipelines share it.
pub struct LoadedFunction {
    pub(super) gpu: Arc<Gpu>,
    pub(super) function: PacketFunction,
    pub(super) info: FunctionInfo,
    pub(super) persistent: cuda::Kernel,
    pub(super) items: cuda::Kernel,
    pub(super) slots: cuda::Kernel,
    pub(super) tick: cuda::Kernel,
    /// Lanes that have not allocated everything yet, and lanes that use the GPU.
    pub(super) starting: AtomicU32,
    pub(super) users: AtomicU32,
    /// When all lanes were ready.
    pub(super) began: OnceLock<Instant>,
    /// Its kernels can pull packets into GPU memory.
    pub(super) pulls: bool,
    cached: bool,
}

impl LoadedFunction {
    /// Compiles `function` for `gpu` and for packets as `memory` has them, or finds what was compiled before, and loads it.
    ///
    /// # Errors
    /// When the function does not compile (with the compiler's messages), or the GPU refuses.
    pub fn new(gpu: &Arc<Gpu>, function: &PacketFunction, memory: Memory) -> Result<Arc<Self>> {
        let pulls = memory.pull() != 0;
        let compiled = compile(function, pulls, &gpu.info().arch(), &[])?;
        for line in compiled.log().lines() {
            tracing::warn!("{line}");
        }
        let module = Module::load(gpu, &compiled)?;
        let info = gpu.read(&module.global(&format!("inlane_info_{}", function.symbol()))?)?;
        let info = FunctionInfo::from_bytes(&info).ok_or_else(|| {
            Error::config(
                format!("--function {}", function.name()),
                "it was made for another version of inlane.h; use the one of this version",
            )
        })?;
        Ok(Arc::new(Self {
            gpu: gpu.clone(),
            function: function.clone(),
            info,
            persistent: module.kernel("inlane_persistent")?,
            items: module.kernel("inlane_items")?,
            slots: module.kernel("inlane_slots")?,
            tick: module.kernel("inlane_tick")?,
            starting: AtomicU32::new(0),
            users: AtomicU32::new(0),
            began: OnceLock::new(),
            pulls,
            cached: compiled.is_cached(),
        }))
    }

    /// The GPU it is loaded on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// How many blocks of persistent kernels the GPU holds at once: where the function has time limits, all but the room in which the
    /// kernel that sees to them runs.
    ///
    /// # Errors
    /// When the GPU cannot say.
    pub(super) fn room_for_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        let blocks = self.persistent.max_resident_blocks(threads, shared_bytes)?;
        let kept = TICK_THREADS.div_ceil(threads) * self.info.ticks() as u32;
        Ok(blocks.saturating_sub(kept))
    }

    /// Allows launches with the shared memory that bursts of that size need; how many bytes that is.
    ///
    /// # Errors
    /// When a block of this GPU cannot have so much.
    pub(super) fn shared_for(&self, burst: usize, pulled: bool) -> Result<u32> {
        let most = self.gpu.max_shared_bytes_per_block()?;
        let bytes = shared_bytes(burst, pulled);
        for kernel in [&self.persistent, &self.items, &self.slots] {
            let fixed = kernel.static_shared_bytes()?;
            let fits = fit_shared(burst, pulled, fixed, most).map_err(|why| {
                Error::config(format!("--burst {burst}"), format!("on {}, {why}", self.gpu))
            })?;
            if fits == SharedMemory::Allowed {
                kernel.set_max_dynamic_shared_bytes(bytes)?;
            }
        }
        Ok(bytes)
    }

    /// What the function says of itself.
    pub fn info(&self) -> &FunctionInfo {
        &self.info
    }

    /// When all its lanes were ready and packets began to flow; `None` before.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// It was compiled by an earlier run.
    pub fn is_cached(&self) -> bool {
        self.cached
    }
}

/// What a launch with more shared memory takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharedMemory {
    /// Nothing: any launch may have so much.
    Usual,
    /// The kernel must be allowed it first.
    Allowed,
}

/// Bytes of shared memory that every launch may have.
const USUAL_SHARED: u32 = 48 << 10;

/// Descriptors as given; where payload is pulled, those of the pulled packets, and outcomes.
const fn shared_per_packet(pulled: bool) -> u32 {
    if pulled { 16 + 16 + 8 } else { 16 }
}

/// Bytes of shared memory a block that items of `burst` packets need.
pub(super) const fn shared_bytes(burst: usize, pulled: bool) -> u32 {
    burst as u32 * shared_per_packet(pulled)
}

/// Whether they fit a block that has `most`, beside the `fixed` that the packet function declares; else why not.
pub(super) fn fit_shared(burst: usize, pulled: bool, fixed: u32, most: u32) -> Result<SharedMemory, String> {
    let bytes = shared_bytes(burst, pulled);
    // What a launch brings begins at a multiple of 16.
    match fixed.next_multiple_of(16) + bytes {
        all if all <= USUAL_SHARED => Ok(SharedMemory::Usual),
        all if all <= most => Ok(SharedMemory::Allowed),
        all => {
            let each = shared_per_packet(pulled);
            let room = most.saturating_sub(fixed.next_multiple_of(16)) / each;
            let remedy = match room {
                0 => "declare less in the function".into(),
                room => format!("use --burst {room} or less"),
            };
            Err(format!(
                "a block would need {all} bytes of shared memory ({fixed} that the packet function declares, {each} a packet of the burst) \
                 and can have {most}; {remedy}"
            ))
        }
    }
}

/// Compiles a function with the executor's kernels for one architecture; needs no GPU. Kernels that can pull packets into GPU memory
/// are made apart: what these have in registers would slow the others. `more` are options for the compiler.
pub(super) fn compile(
    function: &PacketFunction,
    pulls: bool,
    arch: &str,
    more: &[&str],
) -> Result<cuda::CompiledProgram> {
    let source = function.gpu_source() + EXECUTOR + &Parameters::layout_assertions();
    let threads = format!("-DINLANE_MOST_THREADS={MOST_THREADS}");
    let pulls = format!("-DINLANE_PULLS={}", pulls as u32);
    // Line numbers, for compute-sanitizer and profilers. Functions need no annotation to be the device's.
    let options = [&["-lineinfo", "-default-device", &threads, &pulls], more].concat();
    let headers = [&HEADERS[..], &[cuda::SYSTEM_HEADER]].concat();
    let program = cuda::Source { name: "executor.cu", source: &source, headers: &headers, options: &options };
    match cuda::compile(&program, arch) {
        // The user knows the function, not the file that includes it.
        Err(cuda::Error::DoesNotCompile { arch, log, .. }) => Err(cuda::Error::DoesNotCompile {
            name: format!("packet function {}", function.name()),
            arch,
            log,
        }
        .into()),
        other => Ok(other?),
    }
}
