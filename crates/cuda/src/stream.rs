//! Streams and events: ordering work on a GPU, and finding out when it has run.

use crate::device::Gpu;
use crate::driver::call;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUresult};
use inlane_core::{Location, Region};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A queue of work on a GPU. It does not synchronize with the legacy default stream.
pub struct Stream {
    gpu: Arc<Gpu>,
    raw: sys::CUstream,
}

// SAFETY: driver calls on a stream are thread-safe.
unsafe impl Send for Stream {}
// SAFETY: as for `Send`.
unsafe impl Sync for Stream {}

/// The condition for which a stream waits. It compares the word at an address with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitUntil {
    /// `(i32)(*address - value) >= 0`: a counter, which may wrap, has reached the value.
    Reached,
    /// The word equals the value.
    Equal,
    /// The word and the value have a set bit in common.
    AnyBit,
    /// At least one bit is clear in both the word and the value.
    AnyBitClear,
}

/// A memory operation that the GPU's front end executes without a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOperation {
    /// Waits until the 32-bit word at an address meets a condition.
    Wait {
        /// The device address, aligned to 4 bytes.
        address: u64,
        /// The value with which the GPU compares the word.
        value: u32,
        /// The condition.
        until: WaitUntil,
    },
    /// Writes a 32-bit word. Earlier work in the stream has run by then, and its writes are visible.
    Write {
        /// The device address, aligned to 4 bytes.
        address: u64,
        /// The value to write.
        value: u32,
    },
}

impl MemoryOperation {
    pub(crate) fn raw(&self) -> sys::CUstreamBatchMemOpParams {
        use sys::CUstreamBatchMemOpType as Type;
        // SAFETY: the type is a union of plain integers, for which zeros are valid.
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

impl Gpu {
    /// Creates a stream.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn stream(self: &Arc<Self>) -> Result<Stream> {
        Stream::new(self, false)
    }

    /// Creates a stream of the highest priority. When a multiprocessor becomes free, the waiting blocks of
    /// this stream start before those of other streams.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn high_priority_stream(self: &Arc<Self>) -> Result<Stream> {
        Stream::new(self, true)
    }
}

impl Stream {
    pub(crate) fn new(gpu: &Arc<Gpu>, high_priority: bool) -> Result<Self> {
        gpu.make_current()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the context is current, and the pointers are valid.
        unsafe { call!(gpu, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))? };
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let priority = if high_priority { greatest } else { least };
        // SAFETY: the context is current. `drop` destroys the handle.
        unsafe { call!(gpu, cuStreamCreateWithPriority(&mut raw, flags, priority))? };
        Ok(Self { gpu: gpu.clone(), raw })
    }

    /// Returns the driver's handle, for code that calls the driver directly.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Returns the GPU that the stream belongs to.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Queues memory operations, which execute in order.
    ///
    /// # Safety
    /// Until the operations have run, the addresses stay valid for the GPU, and no other access races with
    /// the writes. A wait that is never satisfied blocks this stream and everything that synchronizes with
    /// the stream.
    ///
    /// # Errors
    /// If the driver call fails.
    pub unsafe fn memory_operations(&self, operations: &[MemoryOperation]) -> Result<()> {
        self.gpu.make_current()?;
        if let [one] = operations {
            // SAFETY: the pointer is to one operation. The caller guarantees that the operation's address is
            // valid.
            return unsafe { call!(self.gpu, cuStreamBatchMemOp_v2(self.raw, 1, &mut one.raw(), 0)) };
        }
        // The driver accepts fewer than 256 operations per call, so longer lists are queued in parts of 128.
        for chunk in operations.chunks(128) {
            let mut raw = [MemoryOperation::Write { address: 0, value: 0 }.raw(); 128];
            for (raw, operation) in raw.iter_mut().zip(chunk) {
                *raw = operation.raw();
            }
            // SAFETY: the array has room for a chunk of at most 128 operations. The caller promises that the
            // addresses are valid.
            unsafe {
                call!(self.gpu, cuStreamBatchMemOp_v2(self.raw, chunk.len() as u32, raw.as_mut_ptr(), 0))?
            };
        }
        Ok(())
    }

    /// Queues a copy by the copy engines, between host memory and a GPU, within a GPU, or between GPUs.
    ///
    /// # Safety
    /// Until the copy has run, both regions stay alive, nothing writes to the source, and nothing accesses
    /// the destination.
    ///
    /// # Errors
    /// If the lengths differ, or the driver call fails.
    pub unsafe fn copy(&self, source: &Region, destination: &Region) -> Result<()> {
        if source.len() != destination.len() {
            return Err(Error::invalid(
                format!("a copy from {source:?} to {destination:?}"),
                "the lengths differ; use slices of the same length",
            ));
        }
        self.gpu.make_current()?;
        let (from, to, bytes) = (source.address(), destination.address(), source.len());
        // SAFETY: regions are valid for their lengths, and the caller keeps them alive and untouched.
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

    /// Queues an operation that sets every byte of a region of GPU or pinned memory to `byte`.
    ///
    /// # Safety
    /// Until the operation has run, the region stays alive and nothing else accesses it.
    ///
    /// # Errors
    /// If the driver call fails.
    pub unsafe fn fill(&self, region: &Region, byte: u8) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: a region is valid for its length. The caller guarantees that the region stays alive and
        // that nobody accesses it.
        unsafe { call!(self.gpu, cuMemsetD8Async(region.address(), byte, region.len(), self.raw)) }
    }

    /// Records `event` in the stream. The event completes when all work that is queued so far has run.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: both handles are valid.
        unsafe { call!(self.gpu, cuEventRecord(event.raw, self.raw)) }
    }

    /// Makes work that is queued from now on wait until `event` completes. The event may be of another GPU.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: both handles are valid.
        unsafe { call!(self.gpu, cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }

    /// Blocks until all queued work has run. There is no timeout; see [`Stream::is_idle_within`].
    ///
    /// # Errors
    /// If some of the work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: the handle is valid.
        unsafe { call!(self.gpu, cuStreamSynchronize(self.raw)) }
    }

    /// Returns true if all queued work has run.
    ///
    /// # Errors
    /// If some of the work failed.
    pub fn is_idle(&self) -> Result<bool> {
        self.gpu.make_current()?;
        // SAFETY: the handle is valid.
        match unsafe { sys::cuStreamQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => crate::error::check(answer, "cuStreamQuery", || self.gpu.to_string()).map(|()| true),
        }
    }
}

impl Stream {
    /// Waits until all queued work has run, but at most for `limit`. Returns false if work is still running.
    /// Polls for 200 us, then sleeps between polls.
    ///
    /// # Errors
    /// If some of the work failed.
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
            // SAFETY: the stream is created once and destroyed once. The driver defers destruction until the
            // stream's work has run.
            unsafe { call!(self.gpu, cuStreamDestroy_v2(self.raw)) }
        });
    }
}

/// The purpose of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// For waiting: a wait for the event sleeps until an interrupt. The event records no time.
    Completion,
    /// An event for timing: it records the time at which it completes.
    Timing,
}

/// A marker in a stream. It completes when all work before it in the stream has run.
pub struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: driver calls on an event are thread-safe.
unsafe impl Send for Event {}
// SAFETY: as for `Send`.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event. It counts as completed until it is recorded.
    ///
    /// # Errors
    /// If the driver call fails.
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
        // SAFETY: the context is current. `drop` destroys the handle.
        unsafe { call!(gpu, cuEventCreate(&mut raw, flags))? };
        Ok(Self { gpu: gpu.clone(), raw })
    }

    /// Returns the GPU that the event belongs to.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Returns true if the work before the event has run.
    ///
    /// # Errors
    /// If that work failed.
    pub fn has_completed(&self) -> Result<bool> {
        self.gpu.make_current()?;
        // SAFETY: the handle is valid.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => crate::error::check(answer, "cuEventQuery", || self.gpu.to_string()).map(|()| true),
        }
    }

    /// Blocks until the work before the event has run. Sleeps if the event is of [`EventKind::Completion`].
    /// There is no timeout.
    ///
    /// # Errors
    /// If that work failed.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.make_current()?;
        // SAFETY: the handle is valid.
        unsafe { call!(self.gpu, cuEventSynchronize(self.raw)) }
    }

    /// Returns the nanoseconds from `start` to this event, by the GPU's clock. Both events must be of
    /// [`EventKind::Timing`], and both must be complete.
    ///
    /// # Errors
    /// If one of the two events is not complete, or records no time.
    pub fn since_ns(&self, start: &Event) -> Result<f64> {
        self.gpu.make_current()?;
        let mut milliseconds = 0.0;
        // SAFETY: the handles are valid.
        unsafe { call!(self.gpu, cuEventElapsedTime_v2(&mut milliseconds, start.raw, self.raw))? };
        Ok(milliseconds as f64 * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.gpu.release("an event", || {
            // SAFETY: the handle is created once and destroyed once.
            unsafe { call!(self.gpu, cuEventDestroy_v2(self.raw)) }
        });
    }
}
