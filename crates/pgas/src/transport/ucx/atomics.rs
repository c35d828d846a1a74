//! Atomics of the UCX transport: by this processor on mapped memory, else by UCX.

use super::library::{self, OperationParameters, RequestPointer, Status};
use super::release;
use super::{Flow, Segment, Worker, buffered};
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::transport::Transport;
use crate::transport::{Atomic, Operation, word};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

/// The name of an atomic operation in error messages.
const ATOMIC: &str = "an atomic";

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

impl Worker {
    /// Carries out an atomic as [`Transport::atomic`] does.
    pub(super) fn atomic(&self, pe: u32, atomic: &Atomic) -> Result<u64> {
        if let Some(before) = self.atomic_directly(pe, atomic)? {
            return Ok(before);
        }
        let worker = self.for_atomics(pe);
        match needs_swaps(atomic.operation) {
            true => worker.atomic_by_swaps(pe, atomic),
            false => worker.atomic_once(pe, atomic),
        }
    }

    /// Starts an atomic as [`Transport::atomic_nbi`] does.
    pub(super) fn atomic_nbi(&self, pe: u32, atomic: &Atomic) -> Result<()> {
        if self.atomic_directly(pe, atomic)?.is_some() {
            return Ok(());
        }
        if !std::ptr::eq(self.for_atomics(pe), self) {
            return self.atomic(pe, atomic).map(drop);
        }
        // SAFETY: null stands for no result.
        unsafe { self.start_unawaited(pe, atomic, std::ptr::null_mut()) }
    }

    /// Starts an atomic as [`Transport::atomic_fetch_nbi`] does.
    ///
    /// # Safety
    /// As for [`Transport::atomic_fetch_nbi`].
    pub(super) unsafe fn atomic_fetch_nbi(&self, pe: u32, atomic: &Atomic, result: *mut u8) -> Result<()> {
        let before = match self.atomic_directly(pe, atomic)? {
            None if needs_swaps(atomic.operation) || !std::ptr::eq(self.for_atomics(pe), self) => {
                Some(self.atomic(pe, atomic)?)
            }
            before => before,
        };
        if let Some(before) = before.map(u64::to_le_bytes) {
            // SAFETY: the caller promises the result. The width was checked for the atomic.
            unsafe { std::ptr::copy_nonoverlapping(before.as_ptr(), result, atomic.width) };
            return Ok(());
        }
        // SAFETY: the caller keeps the result until the next quiet.
        unsafe { self.start_unawaited(pe, atomic, result.cast()) }
    }

    /// Starts an atomic for which no thread waits. `result` is null if nobody reads the result.
    ///
    /// # Safety
    /// `result` is valid for the width of the atomic until the next quiet, or null.
    unsafe fn start_unawaited(&self, pe: u32, atomic: &Atomic, result: *mut c_void) -> Result<()> {
        self.peer(pe)?;
        let flow = &raw const self.flows[pe as usize];
        let operands = Box::into_raw(Box::new(Operands { flow, operand: 0, result: 0 }));
        // UCX requires memory for the result of every fetch and swap, also if nobody reads it.
        let needs_result =
            matches!(atomic.operation, Operation::Swap | Operation::CompareSwap | Operation::Fetch);
        // SAFETY: the operands are freed once: by `atomic_completed`, or below if UCX never calls it.
        unsafe {
            let result = match result.is_null() && needs_result {
                true => (&raw mut (*operands).result).cast(),
                false => result,
            };
            let callback = Some((atomic_completed as library::SendCallback, operands.cast()));
            let operand = &raw mut (*operands).operand;
            let started = self.start_atomic(pe, atomic, operand, result, callback);
            if !matches!(started, Ok(Some(_))) {
                drop(Box::from_raw(operands));
            }
            started.map(drop)
        }
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
        let segment = self.segment_of(offset, width)?;
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
        let (_handles, endpoint, address, key) = self.reach(pe, segment, offset)?;
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
        let (peer, segment) = (self.peer(pe)?, self.segment_of(atomic.offset, atomic.width)?);
        let base = self.mapped_base(pe, peer)?;
        let direct = peer.direct_atomics.load(Ordering::Relaxed) && !self.broken.load(Ordering::Relaxed);
        if base.is_null() || !direct || matches!(segment, Segment::Statics) {
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
}
