//! Puts and gets of the UCX transport: copies to and from mapped memory, else operations of UCX.

use super::library::{self, IN_PROGRESS, OperationParameters, RequestPointer, Status};
use super::{Endpoint, Flow, Handles, Peer, Segment, Worker, buffered, release};
use crate::error::Result;
use crate::transport::Reuse;
#[cfg(doc)]
use crate::transport::Transport;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// Copies `length` bytes to or from mapped memory. If `length` is 4 or 8 and `destination` is aligned, the
/// copy is one store. A reader then sees either the old or the new value.
///
/// # Safety
/// Both spans are valid for `length` bytes.
#[inline(always)]
unsafe fn copy(destination: *mut u8, source: *const u8, length: usize) {
    // SAFETY: the caller promises that both spans are valid.
    unsafe {
        match length {
            8 if (destination as usize).is_multiple_of(8) => {
                destination.cast::<u64>().write_volatile(source.cast::<u64>().read_unaligned());
            }
            4 if (destination as usize).is_multiple_of(4) => {
                destination.cast::<u32>().write_volatile(source.cast::<u32>().read_unaligned());
            }
            _ => std::ptr::copy(source, destination, length),
        }
    }
}

/// After this number of operations, UCX's progress function is called once. Over TCP, one system call then
/// receives many answers.
pub(super) const PROGRESS_EVERY: u64 = 64;

/// Frees the request of a put or get for which nobody waits. UCX calls this function when the operation is
/// complete.
extern "C" fn completed(request: *mut c_void, status: Status, flow: *mut c_void) {
    // SAFETY: the argument is a flow of the transport, which outlives UCX's worker.
    let flow = unsafe { &*flow.cast::<Flow>() };
    flow.uncount(buffered::WEIGHT);
    release(request, status, flow);
}

/// UCX's locked handles, the endpoint to a PE, and the address and key of that PE's memory.
pub(super) type Reached<'a> = (std::sync::MutexGuard<'a, Handles>, Endpoint, u64, library::KeyHandle);

impl Worker {
    /// Locks UCX's handles. Returns them with the endpoint to `pe`, and with the address and the key of that
    /// PE's memory at `offset`.
    pub(super) fn reach(&self, pe: u32, segment: Segment, offset: usize) -> Result<Reached<'_>> {
        let peer = self.peer(pe)?;
        if self.broken.load(Ordering::Acquire) {
            self.check()?;
            return Err(self.lost(pe));
        }
        self.record_call();
        let mut handles = self.handles();
        let endpoint = self.endpoint(&mut handles, pe)?;
        // Call the progress function regularly to receive the peers' answers. Otherwise they would fill UCX's
        // buffers during a long series of operations.
        let started = self.started.load(Ordering::Relaxed) + 1;
        self.started.store(started, Ordering::Relaxed);
        if started.is_multiple_of(PROGRESS_EVERY) {
            self.record_progress();
            self.progress_with(&mut handles);
        }
        let (address, key) = self.remote(peer, &endpoint, segment, offset);
        if !peer.direct.load(Ordering::Relaxed).is_null() {
            self.flows[pe as usize].overtakable.store(started, Ordering::Relaxed);
        }
        Ok((handles, endpoint, address, key))
    }

    /// Returns the address at which this process has mapped the symmetric heap of `pe`. Returns null if the
    /// heap is not mapped. First connects to `pe` if there is no connection yet, because connecting maps the
    /// heap.
    #[inline]
    pub(super) fn mapped_base(&self, pe: u32, peer: &Peer) -> Result<*mut u8> {
        let base = peer.direct.load(Ordering::Acquire);
        if !base.is_null() {
            return Ok(base);
        }
        if !peer.connected.load(Ordering::Acquire) {
            let default = self.default.as_deref().unwrap_or(self);
            default.endpoint(&mut default.handles(), pe)?;
        }
        Ok(peer.direct.load(Ordering::Acquire))
    }

    /// Returns the address at which this process has mapped a span of `pe`'s memory. Returns `None` if the
    /// span is not mapped.
    pub(super) fn mapped_address(
        &self,
        pe: u32,
        peer: &Peer,
        segment: Segment,
        offset: usize,
    ) -> Result<Option<*mut u8>> {
        if pe == self.me {
            return Ok(Some(self.own_address(segment, offset)));
        }
        if matches!(segment, Segment::Statics) {
            return Ok(None);
        }
        let base = self.mapped_base(pe, peer)?;
        Ok((!base.is_null()).then(|| base.wrapping_add(offset)))
    }

    /// Decodes `pointer`, which UCX returned when it started an operation. Returns the request if the
    /// operation is in flight, or `None` if the operation is already complete. Error messages contain `what`,
    /// the name of the operation.
    pub(super) fn started(
        &self,
        pointer: RequestPointer,
        pe: u32,
        what: &str,
    ) -> Result<Option<RequestPointer>> {
        self.library.request(pointer, what).map_err(|_| self.failed(pe, pointer as isize as Status))
    }

    /// Handles what UCX returned for an operation that was just started. If `wait` is set, waits until the
    /// operation is complete.
    pub(super) fn finish(
        &self,
        pointer: RequestPointer,
        pe: u32,
        wait: bool,
        what: &'static str,
    ) -> Result<()> {
        match self.started(pointer, pe, what)? {
            Some(request) if wait => self.complete(request, pe, what),
            _ => Ok(()),
        }
    }

    /// Counts an operation for which no thread waits, if UCX has not completed it at once. `pointer` is what
    /// UCX returned for the operation. The caller holds the lock of the handles.
    fn begin(&self, flow: &Flow, pointer: RequestPointer) {
        if matches!(self.library.request(pointer, ""), Ok(Some(_))) {
            flow.count(buffered::WEIGHT);
        }
    }

    /// Returns the parameters of an operation for which no thread waits.
    fn unawaited(flow: &Flow) -> OperationParameters {
        OperationParameters {
            fields: library::WITH_CALLBACK | library::WITH_USER_DATA,
            callback: Some(completed),
            user_data: std::ptr::from_ref(flow).cast_mut().cast(),
            ..OperationParameters::NONE
        }
    }

    /// Copies to `pe`, as [`Transport::put`] does.
    ///
    /// # Safety
    /// As for [`Transport::put`].
    pub(super) unsafe fn copy_to(
        &self,
        pe: u32,
        offset: usize,
        source: *const u8,
        length: usize,
        reuse: Reuse,
    ) -> Result<()> {
        let (peer, segment) = (self.peer(pe)?, self.segment_of(offset, length)?);
        // Count without an atomic addition, because a race is harmless. Some bytes are then not counted, so
        // the count is never too high.
        let issued = &self.flows[pe as usize].issued;
        issued.store(issued.load(Ordering::Relaxed) + length as u64, Ordering::Relaxed);
        if let Some(address) = self.mapped_address(pe, peer, segment, offset)? {
            // SAFETY: the caller promises the source. The destination lies in mapped symmetric memory.
            unsafe { copy(address, source, length) };
            return Ok(());
        }
        if length == 0 {
            return Ok(());
        }
        self.wait_for_room(pe, "a put")?;
        let reached = self.reach(pe, segment, offset)?;
        // SAFETY: the caller keeps the source until the operation is complete.
        unsafe { self.put_reached(pe, reached, source, length, reuse, "a put") }
    }

    /// Starts a put to an address that [`Worker::reach`] has returned. If the source may be reused at the return, a short put
    /// by TCP is copied, and any other put is waited for.
    ///
    /// # Safety
    /// As for [`Transport::put`].
    pub(super) unsafe fn put_reached(
        &self,
        pe: u32,
        (handles, endpoint, address, key): Reached<'_>,
        source: *const u8,
        length: usize,
        reuse: Reuse,
        what: &'static str,
    ) -> Result<()> {
        let wait = reuse == Reuse::AtReturn;
        let (peer, flow) = (self.peer(pe)?, &self.flows[pe as usize]);
        if wait && length <= buffered::LONGEST && peer.only_tcp.load(Ordering::Relaxed) {
            // SAFETY: the source is valid during this call.
            let pointer =
                unsafe { self.put_buffered(&handles, flow, endpoint, source, length, (address, key)) };
            drop(handles);
            return self.started(pointer, pe, what).map(drop);
        }
        let parameters = if wait { OperationParameters::NONE } else { Self::unawaited(flow) };
        // SAFETY: the caller keeps the source until the operation is complete. The lock of the handles is
        // held.
        let pointer =
            unsafe { (self.library.put)(endpoint.handle, source.cast(), length, address, key, &parameters) };
        if !wait {
            self.begin(flow, pointer);
        }
        drop(handles);
        match self.started(pointer, pe, what)? {
            Some(request) if wait => {
                self.poll_at_intervals(|handles| self.status(handles, request) != IN_PROGRESS);
                self.complete(request, pe, what)
            }
            _ => Ok(()),
        }
    }

    /// Copies from `pe`, as [`Transport::get`] does.
    ///
    /// # Safety
    /// As for [`Transport::get`].
    pub(super) unsafe fn copy_from(
        &self,
        pe: u32,
        offset: usize,
        destination: *mut u8,
        length: usize,
        reuse: Reuse,
    ) -> Result<()> {
        let wait = reuse == Reuse::AtReturn;
        let (peer, segment) = (self.peer(pe)?, self.segment_of(offset, length)?);
        if let Some(address) = self.mapped_address(pe, peer, segment, offset)? {
            // SAFETY: the caller promises the destination. The source lies in mapped symmetric memory.
            unsafe { copy(destination, address, length) };
            return Ok(());
        }
        if length == 0 {
            return Ok(());
        }
        if !wait {
            self.wait_for_room(pe, "a get")?;
        }
        let (handles, endpoint, address, key) = self.reach(pe, segment, offset)?;
        let flow = &self.flows[pe as usize];
        let parameters = if wait { OperationParameters::NONE } else { Self::unawaited(flow) };
        // SAFETY: the caller keeps the destination until the operation is complete. The lock of the handles
        // is held.
        let pointer = unsafe {
            (self.library.get)(endpoint.handle, destination.cast(), length, address, key, &parameters)
        };
        if !wait {
            self.begin(flow, pointer);
        }
        drop(handles);
        self.finish(pointer, pe, wait, "a get")
    }
}
