//! The operations of the UCX transport: put, get, atomics, ordering, notifications and waits.

use super::buffered;
use super::library::{self, IN_PROGRESS, OperationParameters, RequestPointer, Status};
use super::{ALIGNMENT, Endpoint, Flow, Handles, MOST_CONTEXTS, NOTIFICATION, Peer, Place, Ucx, Worker};
use crate::error::{Error, Result};
use crate::transport::{Atomic, Awaited, Capabilities, Check, Operation, Transport, word};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

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
/// The name of an atomic operation in error messages.
const ATOMIC: &str = "an atomic";

/// Frees the request of a put or get for which nobody waits. UCX calls this function when the operation is
/// complete.
extern "C" fn completed(request: *mut c_void, status: Status, flow: *mut c_void) {
    // SAFETY: the argument is a flow of the transport, which outlives UCX's worker.
    let flow = unsafe { &*flow.cast::<Flow>() };
    flow.uncount(buffered::WEIGHT);
    release(request, status, flow);
}

/// The operand and the unwanted result of an atomic that no thread waits for.
struct Operands {
    flow: *const Flow,
    operand: u64,
    result: u64,
}

/// Frees the request and the operands of an atomic for which no thread waits. UCX calls this function when
/// the atomic is complete.
extern "C" fn atomic_completed(request: *mut c_void, status: Status, operands: *mut c_void) {
    // SAFETY: the argument was made by `Box::into_raw`, and UCX calls this function once. The flow outlives
    // UCX's worker.
    let flow = unsafe { &*Box::from_raw(operands.cast::<Operands>()).flow };
    flow.uncount(buffered::WEIGHT);
    release(request, status, flow);
}

pub(super) fn release(request: *mut c_void, status: Status, flow: &Flow) {
    if status != library::OK {
        flow.fail(status);
    }
    if let Ok(library) = library::Library::load() {
        // SAFETY: the request is complete, and only this call frees it. UCX runs this callback inside one of
        // its own calls for the worker of the request. These are made under one lock.
        unsafe { (library.request_free)(request) };
    }
}

fn operation_code(operation: Operation) -> c_int {
    match operation {
        Operation::Fetch | Operation::Add => 0,
        Operation::Swap => 1,
        Operation::CompareSwap => 2,
        Operation::And => 3,
        Operation::Or => 4,
        Operation::Xor => 5,
    }
}

/// Returns true if `operation` must be carried out by compare-and-swaps. UCX 1.13 carries out the fetching
/// variants of these operations wrongly over shared memory.
fn needs_swaps(operation: Operation) -> bool {
    matches!(operation, Operation::And | Operation::Or | Operation::Xor)
}

/// UCX's locked handles, the endpoint to a PE, and the address and key of that PE's memory.
type Reached<'a> = (std::sync::MutexGuard<'a, Handles>, Endpoint, u64, library::KeyHandle);

impl Worker {
    /// Locks UCX's handles. Returns them with the endpoint to `pe`, and with the address and the key of that
    /// PE's memory at `offset`.
    fn reach(&self, pe: u32, place: Place, offset: usize) -> Result<Reached<'_>> {
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
        let (address, key) = self.remote(peer, &endpoint, place, offset);
        if !peer.direct.load(Ordering::Relaxed).is_null() {
            self.flows[pe as usize].overtakable.store(started, Ordering::Relaxed);
        }
        Ok((handles, endpoint, address, key))
    }

    /// Returns the address at which this process has mapped the symmetric heap of `pe`. Returns null if the
    /// heap is not mapped. First connects to `pe` if there is no connection yet, because connecting maps the
    /// heap.
    #[inline]
    fn mapped_base(&self, pe: u32, peer: &Peer) -> Result<*mut u8> {
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
    fn mapped_address(&self, pe: u32, peer: &Peer, place: Place, offset: usize) -> Result<Option<*mut u8>> {
        if pe == self.me {
            return Ok(Some(self.own_address(place, offset)));
        }
        if matches!(place, Place::Statics) {
            return Ok(None);
        }
        let base = self.mapped_base(pe, peer)?;
        Ok((!base.is_null()).then(|| base.wrapping_add(offset)))
    }

    /// Decodes `pointer`, which UCX returned when it started an operation. Returns the request if the
    /// operation is in flight, or `None` if the operation is already complete. Error messages contain `what`,
    /// the name of the operation.
    fn started(&self, pointer: RequestPointer, pe: u32, what: &str) -> Result<Option<RequestPointer>> {
        self.library.request(pointer, what).map_err(|_| self.failed(pe, pointer as isize as Status))
    }

    /// Handles what UCX returned for an operation that was just started. If `wait` is set, waits until the
    /// operation is complete.
    fn finish(&self, pointer: RequestPointer, pe: u32, wait: bool, what: &'static str) -> Result<()> {
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

    /// Copies to `pe`. If `wait` is set, waits until the source may be reused.
    ///
    /// # Safety
    /// As for [`Transport::put`] or [`Transport::put_nbi`].
    unsafe fn copy_to(
        &self,
        pe: u32,
        offset: usize,
        source: *const u8,
        length: usize,
        wait: bool,
    ) -> Result<()> {
        let (peer, place) = (self.peer(pe)?, self.place(offset, length)?);
        // Count without an atomic addition, because a race is harmless. Some bytes are then not counted, so
        // the count is never too high.
        let issued = &self.flows[pe as usize].issued;
        issued.store(issued.load(Ordering::Relaxed) + length as u64, Ordering::Relaxed);
        if let Some(address) = self.mapped_address(pe, peer, place, offset)? {
            // SAFETY: the caller promises the source. The destination lies in mapped symmetric memory.
            unsafe { copy(address, source, length) };
            return Ok(());
        }
        if length == 0 {
            return Ok(());
        }
        self.wait_for_room(pe, "a put")?;
        let reached = self.reach(pe, place, offset)?;
        // SAFETY: the caller keeps the source until the operation is complete.
        unsafe { self.put_reached(pe, reached, source, length, wait, "a put") }
    }

    /// Starts a put to an address that [`Shared::reach`] has returned. If `wait` is set, the source may be
    /// reused at the return: a short put by TCP is copied, and any other put is waited for.
    ///
    /// # Safety
    /// As for [`Transport::put`] or [`Transport::put_nbi`].
    unsafe fn put_reached(
        &self,
        pe: u32,
        (handles, endpoint, address, key): Reached<'_>,
        source: *const u8,
        length: usize,
        wait: bool,
        what: &'static str,
    ) -> Result<()> {
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

    /// Copies from `pe`. If `wait` is set, waits until the bytes have arrived.
    ///
    /// # Safety
    /// As for [`Transport::get`] or [`Transport::get_nbi`].
    unsafe fn copy_from(
        &self,
        pe: u32,
        offset: usize,
        destination: *mut u8,
        length: usize,
        wait: bool,
    ) -> Result<()> {
        let (peer, place) = (self.peer(pe)?, self.place(offset, length)?);
        if let Some(address) = self.mapped_address(pe, peer, place, offset)? {
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
        let (handles, endpoint, address, key) = self.reach(pe, place, offset)?;
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

    /// Starts an atomic. Until the atomic is complete, UCX reads `operand`, and reads and writes `result`.
    /// `result` is null for an atomic without a result. Returns `Some` if the callback frees the operands (it
    /// may have run already), or if the atomic is in flight. Returns `None` if the atomic is complete and no
    /// callback runs.
    ///
    /// # Errors
    /// If the atomic is refused or cannot be started. UCX then does not access the words.
    ///
    /// # Safety
    /// Both pointers are valid for the width of the atomic until the operation is complete.
    unsafe fn start_atomic(
        &self,
        pe: u32,
        atomic: &Atomic,
        operand: *mut u64,
        result: *mut c_void,
        callback: Option<(library::SendCallback, *mut c_void)>,
    ) -> Result<Option<RequestPointer>> {
        let Atomic { operation, offset, width, .. } = *atomic;
        let place = self.place(offset, width)?;
        if !matches!(width, 4 | 8) || !offset.is_multiple_of(width) {
            return Err(Error::Refused { peer: pe, what: ATOMIC });
        }
        // For a compare-and-swap, store the comparand in `operand` and the new value in `result`, because UCX
        // reads them there.
        let first = match operation {
            Operation::Fetch => 0,
            Operation::CompareSwap => atomic.comparand,
            _ => atomic.operand,
        };
        // SAFETY: the caller guarantees that both pointers are valid. A 4-byte number is kept in
        // an 8-byte word. Numbers are little-endian, so it is the word's first 4 bytes.
        unsafe {
            operand.write(first);
            if operation == Operation::CompareSwap {
                let new = (&raw const atomic.operand).cast::<u8>();
                std::ptr::copy_nonoverlapping(new, result.cast(), width);
            }
        }
        let mut parameters = OperationParameters {
            fields: library::WITH_DATATYPE,
            datatype: library::contiguous(width),
            reply: result,
            ..OperationParameters::NONE
        };
        if !result.is_null() {
            parameters.fields |= library::WITH_REPLY;
        }
        if let Some((function, argument)) = callback {
            parameters.fields |= library::WITH_CALLBACK | library::WITH_USER_DATA;
            (parameters.callback, parameters.user_data) = (Some(function), argument);
            if result.is_null() {
                // Without this flag, UCX does not call back for atomics without a result. It reports such an
                // atomic as complete, even while it keeps a request for it.
                parameters.fields |= library::ALWAYS_CALL_BACK;
            }
        }
        self.peer(pe)?;
        let flow = &self.flows[pe as usize];
        if callback.is_some() {
            self.wait_for_room(pe, ATOMIC)?;
        }
        let (_handles, endpoint, address, key) = self.reach(pe, place, offset)?;
        // Count the atomic before it starts, because UCX may call back before its function returns.
        if callback.is_some() {
            flow.count(buffered::WEIGHT);
        }
        let code = operation_code(operation);
        // SAFETY: the caller promises that both pointers stay valid. `_handles` holds the lock that protects
        // UCX's handles.
        let pointer = unsafe {
            (self.library.atomic)(endpoint.handle, code, operand.cast(), 1, address, key, &parameters)
        };
        let started = self.started(pointer, pe, ATOMIC);
        if callback.is_some() && !matches!(started, Ok(Some(_))) {
            flow.uncount(buffered::WEIGHT);
        }
        started
    }

    /// Waits until all started operations are complete at their targets.
    fn flush(&self) -> Result<()> {
        if self.broken.load(Ordering::Acquire) {
            self.check()?;
            return Err(self.lost(self.me));
        }
        let handles = self.handles();
        let started = self.started.load(Ordering::Relaxed);
        let mut requests = Vec::new();
        // Flush each endpoint separately. In UCX 1.13, a flush of the worker does not wait for operations
        // that the peer's processor executes.
        for (pe, endpoint) in (0..).zip(&handles.endpoints) {
            let Some(endpoint) = endpoint else { continue };
            // SAFETY: the lock of the handles is held.
            let pointer = unsafe { (self.library.ep_flush)(endpoint.handle, &OperationParameters::NONE) };
            if !pointer.is_null() {
                requests.push((pe, pointer));
            }
        }
        drop(handles);
        requests.into_iter().try_for_each(|(pe, pointer)| self.finish(pointer, pe, true, "a quiet"))?;
        self.flushed.fetch_max(started, Ordering::AcqRel);
        self.check()
    }

    /// Returns true if an operation was started that no flush has completed.
    pub(super) fn is_in_flight(&self) -> bool {
        self.started.load(Ordering::Relaxed) != self.flushed.load(Ordering::Acquire)
    }

    /// Executes one atomic on `pe`'s memory through UCX, and waits for it. Returns the previous value.
    fn atomic_once(&self, pe: u32, atomic: &Atomic) -> Result<u64> {
        // Allocate the words on the heap, because UCX may access them after this function has returned an
        // error.
        let operands = Box::into_raw(Box::new([0u64; 2])).cast::<u64>();
        // SAFETY: both words are freed only after UCX has completed the operation.
        unsafe {
            let result = operands.add(1);
            let started = self.start_atomic(pe, atomic, operands, result.cast(), None);
            let request = started.inspect_err(|_| drop(Box::from_raw(operands.cast::<[u64; 2]>())))?;
            request.map_or(Ok(()), |request| self.complete(request, pe, ATOMIC))?;
            let before = *result;
            drop(Box::from_raw(operands.cast::<[u64; 2]>()));
            Ok(if atomic.width == 4 { before & 0xFFFF_FFFF } else { before })
        }
    }

    /// Executes an atomic operation with an instruction of this processor. Returns the previous value.
    /// Returns `None` if the word is not mapped in this process, or if UCX would not use the processor for
    /// it.
    #[inline]
    fn atomic_directly(&self, pe: u32, atomic: &Atomic) -> Result<Option<u64>> {
        let (peer, place) = (self.peer(pe)?, self.place(atomic.offset, atomic.width)?);
        let base = self.mapped_base(pe, peer)?;
        let direct = peer.direct_atomics.load(Ordering::Relaxed) && !self.broken.load(Ordering::Relaxed);
        if base.is_null() || !direct || matches!(place, Place::Statics) {
            return Ok(None);
        }
        // SAFETY: the word lies in mapped symmetric memory. The program accesses it only by atomics.
        let before = unsafe { word::apply(base.wrapping_add(atomic.offset), atomic) };
        before.map(Some).ok_or(Error::Refused { peer: pe, what: ATOMIC })
    }

    /// Carries out an AND, OR or XOR on a word of `pe`: fetches the word, and sends compare-and-swaps until one
    /// succeeds. Returns the previous value.
    fn atomic_by_swaps(&self, pe: u32, atomic: &Atomic) -> Result<u64> {
        let mut seen = self.atomic_once(pe, &Atomic { operation: Operation::Fetch, ..*atomic })?;
        loop {
            let operand = match atomic.operation {
                Operation::And => seen & atomic.operand,
                Operation::Or => seen | atomic.operand,
                _ => seen ^ atomic.operand,
            };
            let swap = Atomic { operation: Operation::CompareSwap, operand, comparand: seen, ..*atomic };
            let before = self.atomic_once(pe, &swap)?;
            if before == seen {
                return Ok(before);
            }
            seen = before;
        }
    }

    /// Returns the worker that carries out atomics on the memory of `pe`: the default context's for this PE's own memory,
    /// because UCX's transport `self` connects a worker only to itself.
    fn for_atomics(&self, pe: u32) -> &Worker {
        self.default.as_deref().filter(|_| pe == self.me).unwrap_or(self)
    }

    fn notification(&self, pe: u32) -> &AtomicU64 {
        // SAFETY: `self.memory` begins with an aligned word for each PE, before the symmetric memory. Peers
        // write these words, so they are accessed only as atomics.
        unsafe { AtomicU64::from_ptr(self.memory.add(pe as usize * NOTIFICATION).cast()) }
    }
}

impl Transport for Ucx {
    fn me(&self) -> u32 {
        self.worker.me
    }

    fn pes(&self) -> u32 {
        self.worker.peers.len() as u32
    }

    fn symmetric(&self) -> (*mut u8, usize) {
        let worker = &*self.worker;
        (worker.memory.wrapping_add(worker.private_bytes), worker.symmetric_bytes)
    }

    fn context(&self) -> Option<Self> {
        let default = self.worker.default.as_ref().unwrap_or(&self.worker);
        let mut contexts = default.contexts();
        // Only the list holds the worker of an ended context.
        let ended = contexts.iter().find(|worker| Arc::strong_count(worker) == 1);
        let worker = match ended {
            Some(worker) => worker.clone(),
            None if contexts.len() == MOST_CONTEXTS => return None,
            None => {
                let worker = Arc::new(Worker::new(default.shared.clone(), Some(default.clone())));
                contexts.push(worker.clone());
                worker
            }
        };
        Some(Self { worker, service: Mutex::new(None) })
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn direct(&self, pe: u32, offset: usize) -> Option<*mut u8> {
        let worker = &*self.worker;
        let place = worker.place(offset, 1).ok()?;
        worker.mapped_address(pe, worker.peer(pe).ok()?, place, offset).ok()?
    }

    fn capabilities(&self) -> Capabilities {
        let worker = &*self.worker;
        // Count the PEs whose heaps this PE accesses through a pointer. Count this PE, too. Its own pointer
        // is null until it has connected to itself.
        let mapped =
            |(pe, peer): &(u32, &Peer)| *pe == worker.me || !peer.direct.load(Ordering::Relaxed).is_null();
        Capabilities {
            name: "ucx".into(),
            methods: worker.methods(),
            mapped_pes: (0..).zip(&worker.peers).filter(mapped).count() as u32,
            atomics: "the calling PE's processor on mapped heaps, if UCX would use it, too; otherwise UCX \
                      (UCX_ATOMIC_MODE chooses the processor or the network device)"
                .into(),
            nonblocking: true,
        }
    }

    #[inline]
    unsafe fn put(&self, pe: u32, offset: usize, source: *const u8, length: usize) -> Result<()> {
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.worker.copy_to(pe, offset, source, length, true) }
    }

    unsafe fn put_nbi(&self, pe: u32, offset: usize, source: *const u8, length: usize) -> Result<()> {
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.worker.copy_to(pe, offset, source, length, false) }
    }

    unsafe fn get(&self, pe: u32, offset: usize, destination: *mut u8, length: usize) -> Result<()> {
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.worker.copy_from(pe, offset, destination, length, true) }
    }

    unsafe fn get_nbi(&self, pe: u32, offset: usize, destination: *mut u8, length: usize) -> Result<()> {
        // SAFETY: the caller keeps the promises that this call needs.
        unsafe { self.worker.copy_from(pe, offset, destination, length, false) }
    }

    fn atomic(&self, pe: u32, atomic: Atomic) -> Result<u64> {
        if let Some(before) = self.worker.atomic_directly(pe, &atomic)? {
            return Ok(before);
        }
        let worker = self.worker.for_atomics(pe);
        match needs_swaps(atomic.operation) {
            true => worker.atomic_by_swaps(pe, &atomic),
            false => worker.atomic_once(pe, &atomic),
        }
    }

    fn atomic_nbi(&self, pe: u32, atomic: Atomic) -> Result<()> {
        let worker = &*self.worker;
        if worker.atomic_directly(pe, &atomic)?.is_some() {
            return Ok(());
        }
        if !std::ptr::eq(worker.for_atomics(pe), worker) {
            return self.atomic(pe, atomic).map(drop);
        }
        worker.peer(pe)?;
        let flow = &raw const worker.flows[pe as usize];
        let operands = Box::into_raw(Box::new(Operands { flow, operand: 0, result: 0 }));
        // UCX requires memory for the result of every fetch and swap. Provide this memory, although nobody
        // reads it.
        let with_result =
            matches!(atomic.operation, Operation::Swap | Operation::CompareSwap | Operation::Fetch);
        // SAFETY: the operands are freed once: by the callback, or below if UCX has completed the operation
        // at once.
        unsafe {
            let result =
                if with_result { (&raw mut (*operands).result).cast() } else { std::ptr::null_mut() };
            let callback = Some((atomic_completed as library::SendCallback, operands.cast()));
            let operand = &raw mut (*operands).operand;
            let started = worker.start_atomic(pe, &atomic, operand, result, callback);
            if !matches!(started, Ok(Some(_))) {
                drop(Box::from_raw(operands));
            }
            started.map(drop)
        }
    }

    unsafe fn atomic_fetch_nbi(&self, pe: u32, atomic: Atomic, result: *mut u8) -> Result<()> {
        let worker = &*self.worker;
        let before = match worker.atomic_directly(pe, &atomic)? {
            None if needs_swaps(atomic.operation) || !std::ptr::eq(worker.for_atomics(pe), worker) => {
                Some(self.atomic(pe, atomic)?)
            }
            before => before,
        };
        if let Some(before) = before.map(u64::to_le_bytes) {
            // SAFETY: the caller promises the result. The width was checked for the atomic.
            unsafe { std::ptr::copy_nonoverlapping(before.as_ptr(), result, atomic.width) };
            return Ok(());
        }
        worker.peer(pe)?;
        let flow = &raw const worker.flows[pe as usize];
        let operands = Box::into_raw(Box::new(Operands { flow, operand: 0, result: 0 }));
        // SAFETY: the caller keeps the result until the next quiet. `atomic_completed` frees the operands
        // when the atomic completes. If UCX never calls it, they are freed below.
        unsafe {
            let callback = Some((atomic_completed as library::SendCallback, operands.cast()));
            let operand = &raw mut (*operands).operand;
            let started = worker.start_atomic(pe, &atomic, operand, result.cast(), callback);
            if !matches!(started, Ok(Some(_))) {
                drop(Box::from_raw(operands));
            }
            started.map(drop)
        }
    }

    fn order(&self) -> Result<()> {
        let worker = &*self.worker;
        fence(Ordering::SeqCst);
        if !worker.is_in_flight() {
            return Ok(());
        }
        let flushed = worker.flushed.load(Ordering::Acquire);
        if worker.flows.iter().any(|flow| flow.overtakable.load(Ordering::Relaxed) > flushed) {
            return worker.flush();
        }
        let handles = worker.handles();
        // SAFETY: the lock of the handles is held.
        let status = unsafe { (worker.library.worker_fence)(handles.worker) };
        worker.library.check(status, "a fence")
    }

    fn fence(&self) -> Result<()> {
        self.order()
    }

    fn quiet(&self) -> Result<()> {
        let worker = &*self.worker;
        fence(Ordering::SeqCst);
        if worker.is_in_flight() {
            worker.flush()?;
        }
        for flow in &worker.flows {
            flow.delivered.store(flow.issued.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    }

    fn quiet_all(&self) -> Result<()> {
        let in_flight = |worker: &&Arc<Worker>| worker.is_in_flight();
        let contexts: Vec<_> = self.worker.contexts().iter().filter(in_flight).cloned().collect();
        contexts.iter().try_for_each(|worker| worker.flush())?;
        self.quiet()
    }

    fn notify(&self, pe: u32) -> Result<()> {
        let worker = &*self.worker;
        let peer = worker.peer(pe)?;
        let count = u64::from(peer.notified.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        self.order()?;
        let at = worker.me as usize * NOTIFICATION;
        if pe == worker.me {
            worker.notification(pe).store(count, Ordering::Release);
            return Ok(());
        }
        if let Some(base) = worker.mapped_address(pe, peer, Place::Memory, 0)? {
            // SAFETY: the word lies before the peer's symmetric memory, in the same mapping.
            let word = unsafe { AtomicU64::from_ptr(base.sub(worker.private_bytes).add(at).cast()) };
            word.store(count, Ordering::Release);
            return Ok(());
        }
        worker.wait_for_room(pe, "a notification")?;
        let (handles, endpoint, _, key) = worker.reach(pe, Place::Memory, 0)?;
        let reached = (handles, endpoint, peer.memory.wrapping_add(at as u64), key);
        let source = (&raw const count).cast();
        // SAFETY: `count` lives until `put_reached` returns. If `put_reached` fails, UCX does not read the 8
        // bytes later: either it has copied them, or this process does not call UCX again.
        unsafe { worker.put_reached(pe, reached, source, 8, true, "a notification") }
    }

    fn take_notification(&self, pe: u32, check: Check<'_>) -> Result<()> {
        let worker = &*self.worker;
        let expected = worker.peer(pe)?.taken.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let word = worker.notification(pe);
        let arrived = || (word.load(Ordering::Acquire) as u32).wrapping_sub(expected) as i32 >= 0;
        worker.wait_in(worker.settings.completion, Some(pe), None, arrived, check)
    }

    fn wait(&self, _awaited: Awaited, done: &mut dyn FnMut() -> bool, check: Check<'_>) -> Result<()> {
        self.worker.wait_in(self.worker.settings.completion, None, None, done, check)
    }

    fn progress(&self) {
        let _ = self.worker.progress_once();
    }

    fn shares_processors(&self) -> bool {
        self.worker.settings.yields
    }

    fn yield_if_idle(&self) {
        let worker = &*self.worker;
        if worker.settings.yields {
            let bytes: u64 = worker.flows.iter().map(|flow| flow.issued.load(Ordering::Relaxed)).sum();
            let issued = bytes + worker.started.load(Ordering::Relaxed);
            if worker.ordered.swap(issued, Ordering::Relaxed) == issued {
                worker.progress_once();
                std::thread::yield_now();
            }
        }
    }

    fn leave(&self) -> Result<()> {
        self.quiet()?;
        // Wait for all PEs before ending the service thread: it may still have to progress UCX for a peer's
        // operation.
        self.worker.exchange.gather(&[])?;
        self.stop_service();
        Ok(())
    }
}
