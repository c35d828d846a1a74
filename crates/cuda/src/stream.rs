//! Streams and events: the order of work, and its end.

use crate::device::Gpu;
use crate::driver::call;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUresult};
use inlane_core::{Location, Region};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A queue of work on a GPU; never synchronizes with the legacy default stream.
pub struct Stream {
    gpu: Arc<Gpu>,
    raw: sys::CUstream,
}

// SAFETY: the driver's calls on a stream are thread-safe.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// What a stream waits for at an address, comparing with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitUntil {
    /// `(i32)(*address - value) >= 0`: a counter that may wrap has come so far.
    Reached,
    /// They are equal.
    Equal,
    /// They have a set bit in common.
    AnyBit,
    /// There is a bit that is clear in both.
    AnyBitClear,
}

/// Something that the GPU's front end does itself, without a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOperation {
    /// Waits for the 32-bit word at an address.
    Wait {
        /// Where: device address, aligned to 4.
        address: u64,
        /// Compared with.
        value: u32,
        /// How.
        until: WaitUntil,
    },
    /// Writes a 32-bit word, after all work before it and its writes.
    Write {
        /// Where: device address, aligned to 4.
        address: u64,
        /// What.
        value: u32,
    },
}

impl MemoryOperation {
    pub(crate) fn raw(&self) -> sys::CUstreamBatchMemOpParams {
        use sys::CUstreamBatchMemOpType as Type;
        // SAFETY: a union of plain integers.
        let mut raw: sys::CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
        match *self {
            Self::Wait { address, value, until } => {
                use sys::CUstreamWaitValue_flags as Flags;
                let flags = match until {
                    WaitUntil::Reached => Flags::CU_STREAM_WAIT_VALUE_GEQ,
                    WaitUntil::Equal => Flags::CU_STREAM_WAIT_VALUE_EQ,
                    WaitUntil::AnyBit => Flags::CU_STREAM_WAIT_VALUE_AND,
                    WaitUntil::AnyBitClear => Flags::CU_STREAM_WAIT_VALUE_NOR,
                };
                raw.waitValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
                    operation: Type::CU_STREAM_MEM_OP_WAIT_VALUE_32,
                    address,
                    __bindgen_anon_1:
                        sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 {
                            value,
                        },
                    flags: flags as u32,
                    alias: 0,
                };
            }
            Self::Write { address, value } => {
                raw.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
                    operation: Type::CU_STREAM_MEM_OP_WRITE_VALUE_32,
                    address,
                    __bindgen_anon_1:
                        sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
                            value,
                        },
                    flags: sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32,
                    alias: 0,
                };
            }
        }
        raw
    }
}

impl Stream {
    pub(crate) fn new(gpu: &Arc<Gpu>, high_priority: bool) -> Result<Self> {
        gpu.make_current()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the context is current; valid pointers.
        unsafe { call!(gpu, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))? };
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let priority = if high_priority { greatest } else { least };
        // SAFETY: the context is current; destroyed in drop.
        unsafe { call!(gpu, cuStreamCreateWithPriority(&mut raw, flags, priority))? };
        Ok(Self { gpu: gpu.clone(), raw })
    }

    /// The driver's handle, for code that calls the driver itself.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// The GPU it is on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Queues memory operations, in order.
    ///
    /// # Safety
    /// The addresses are valid for the GPU until they have run. A wait that nothing satisfies blocks this stream, and
    /// what synchronizes with it, for ever.
    ///
    /// # Errors
    /// When the driver refuses.
    pub unsafe fn memory_operations(&self, operations: &[MemoryOperation]) -> Result<()> {
        self.gpu.make_current()?;
        if let [one] = operations {
            // SAFETY: one operation; the caller vouches for the address.
            return unsafe { call!(self.gpu, cuStreamBatchMemOp_v2(self.raw, 1, &mut one.raw(), 0)) };
        }
        // The driver takes at most 256 of them a call.
        for chunk in operations.chunks(128) {
            let mut raw = [MemoryOperation::Write { address: 0, value: 0 }.raw(); 128];
            for (raw, operation) in raw.iter_mut().zip(chunk) {
                *raw = operation.raw();
            }
            // SAFETY: the array holds so many; the caller vouches for the addresses.
            unsafe {
                call!(self.gpu, cuStreamBatchMemOp_v2(self.raw, chunk.len() as u32, raw.as_mut_ptr(), 0))?
            };
        }
        Ok(())
    }

    /// Queues a copy by the copy engines: host memory to GPU and back, within a GPU, between GPUs.
    ///
    /// # Safety
    /// Both regions stay alive and untouched until it has run.
    ///
    /// # Errors
    /// When their lengths differ, or the driver refuses.
    pub unsafe fn copy(&self, source: &Region, destination: &Region) -> Result<()> {
        if source.len() != destination.len() {
            return Err(Error::invalid(
                format!("a copy from {source:?} to {destination:?}"),
                "their lengths differ; take slices of the same length",
            ));
        }
        self.gpu.make_current()?;
        let (from, to, bytes) = (source.address(), destination.address(), source.len());
        // SAFETY: regions are valid for their lengths; the caller keeps them so.
        unsafe {
            match (source.location(), destination.location()) {
                (Location::Gpu(_), Location::Gpu(_)) => {
                    call!(self.gpu, cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw))
                }
                (_, Location::Gpu(_)) => {
                    call!(self.gpu, cuMemcpyHtoDAsync_v2(to, from as *const _, bytes, self.raw))
                }
                (Location::Gpu(_), _) => {
                    call!(self.gpu, cuMemcpyDtoHAsync_v2(to as *mut _, from, bytes, self.raw))
                }
                _ => call!(self.gpu, cuMemcpyAsync(to, from, bytes, self.raw)),
            }
        }
    }

    /// Queues filling a region of GPU or pinned memory with a byte.
    ///
    /// # Safety
    /// The region stays alive and untouched until it has run.
    ///
    /// # Errors
    /// When the driver refuses.
    pub unsafe fn fill(&self, region: &Region, byte: u8) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: a region is valid for its length; the caller keeps it so.
        unsafe { call!(self.gpu, cuMemsetD8Async(region.address(), byte, region.len(), self.raw)) }
    }

    /// Has `event` mark this point of the queue.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: both handles live.
        unsafe { call!(self.gpu, cuEventRecord(event.raw, self.raw)) }
    }

    /// Queues waiting for what `event` marked last, on whichever GPU.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: both handles live.
        unsafe { call!(self.gpu, cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }

    /// Waits until all that was queued has run.
    ///
    /// # Errors
    /// When some of it failed.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: the handle lives.
        unsafe { call!(self.gpu, cuStreamSynchronize(self.raw)) }
    }

    /// True when all that was queued has run.
    ///
    /// # Errors
    /// When some of it failed.
    pub fn is_idle(&self) -> Result<bool> {
        self.gpu.make_current()?;
        // SAFETY: the handle lives.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => crate::error::check(answer, "cuStreamQuery", || self.gpu.to_string()).map(|()| true),
        }
    }
}

impl Stream {
    /// Looks until all that was queued has run, for as long as `limit`: at first again and again, then asleep between looks. False
    /// when it still runs.
    ///
    /// # Errors
    /// When some of it failed.
    pub fn is_idle_within(&self, limit: Duration) -> Result<bool> {
        let began = Instant::now();
        let mut sleep = Duration::from_micros(10);
        while !self.is_idle()? {
            let waited = began.elapsed();
            if waited > limit {
                return Ok(false);
            }
            if waited > Duration::from_micros(200) {
                std::thread::sleep(sleep);
                sleep = (sleep * 2).min(Duration::from_millis(1));
            }
        }
        Ok(true)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.gpu.release("a stream", || {
            // SAFETY: made once, destroyed once; the driver waits with it until its work has run.
            unsafe { call!(self.gpu, cuStreamDestroy_v2(self.raw)) }
        });
    }
}

/// What an event is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Its wait sleeps until an interrupt, its query polls; no time.
    Completion,
    /// It takes the time when it is passed.
    Timing,
}

/// A mark in a stream.
pub struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: the driver's calls on an event are thread-safe.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new event, which counts as passed until it is recorded.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn new(gpu: &Arc<Gpu>, kind: EventKind) -> Result<Self> {
        use sys::CUevent_flags as Flags;
        gpu.make_current()?;
        let flags = match kind {
            EventKind::Completion => {
                Flags::CU_EVENT_BLOCKING_SYNC as u32 | Flags::CU_EVENT_DISABLE_TIMING as u32
            }
            EventKind::Timing => Flags::CU_EVENT_DEFAULT as u32,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current; destroyed in drop.
        unsafe { call!(gpu, cuEventCreate(&mut raw, flags))? };
        Ok(Self { gpu: gpu.clone(), raw })
    }

    /// The GPU it was made on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// True when the stream has passed it.
    ///
    /// # Errors
    /// When work before it failed.
    pub fn has_completed(&self) -> Result<bool> {
        self.gpu.make_current()?;
        // SAFETY: the handle lives.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => crate::error::check(answer, "cuEventQuery", || self.gpu.to_string()).map(|()| true),
        }
    }

    /// Waits until the stream has passed it: asleep for [`EventKind::Completion`].
    ///
    /// # Errors
    /// When work before it failed.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: the handle lives.
        unsafe { call!(self.gpu, cuEventSynchronize(self.raw)) }
    }

    /// Nanoseconds of the GPU's time from `start` to this one, both of [`EventKind::Timing`] and passed.
    ///
    /// # Errors
    /// When one is not passed, or takes no time.
    pub fn since_ns(&self, start: &Event) -> Result<f64> {
        self.gpu.make_current()?;
        let mut milliseconds = 0.0;
        // SAFETY: the handles live.
        unsafe { call!(self.gpu, cuEventElapsedTime_v2(&mut milliseconds, start.raw, self.raw))? };
        Ok(milliseconds as f64 * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.gpu.release("an event", || {
            // SAFETY: made once, destroyed once.
            unsafe { call!(self.gpu, cuEventDestroy_v2(self.raw)) }
        });
    }
}
