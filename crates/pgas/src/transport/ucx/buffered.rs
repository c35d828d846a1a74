//! Limits the memory of operations that UCX has accepted but not completed, and copies the sources of short
//! puts if UCX uses TCP, so that the puts return before UCX has sent them.
//!
//! If the socket has no room, UCX keeps the put and reads its source later. Without a copy, each put would
//! have to wait until the peer has received enough to make room. The two sides would then move one put at a
//! time. With copies, many puts wait for the socket, and both sides move many puts at a time.
//!
//! UCX accepts any number of operations, and needs memory for each. Each operation therefore has a weight in
//! bytes, about the memory that it needs. If the operations on one peer's memory weigh [`MOST_UNFINISHED`]
//! bytes, the next operation on it waits until UCX has completed enough of them.

use super::library::{self, KeyHandle, OperationParameters, RequestPointer, Status};
use super::release;
use super::{Endpoint, Flow, Handles, Worker};
use crate::error::Result;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// The longest put that is copied, in bytes.
pub(super) const LONGEST: usize = 64 << 10;
/// The most bytes that unfinished operations on one peer's memory may weigh. An operation that finds this weight or
/// more waits until half of it is left.
pub(super) const MOST_UNFINISHED: usize = 1 << 20;
/// The weight of an operation without a copied source, in bytes. UCX 1.13 needs about 280 bytes for each.
pub(super) const WEIGHT: usize = 512;
/// The least weight of a copied put, in bytes.
const LEAST_COPIED: usize = 4 << 10;

/// A copy of a put's source. UCX reads the copy until it has sent the put.
struct Buffered {
    flow: *const Flow,
    bytes: Vec<u8>,
}

impl Buffered {
    fn weight(&self) -> usize {
        self.bytes.len().max(LEAST_COPIED)
    }
}

/// Frees the request and the copied source of a put. UCX calls it when it has sent the put.
extern "C" fn sent(request: *mut c_void, status: Status, buffered: *mut c_void) {
    // SAFETY: the argument was made by `Box::into_raw`, and UCX calls this function once.
    let buffered = unsafe { Box::from_raw(buffered.cast::<Buffered>()) };
    // SAFETY: the flow outlives UCX's worker.
    let flow = unsafe { &*buffered.flow };
    flow.uncount(buffered.weight());
    release(request, status, flow);
}

impl Worker {
    /// Copies the source and starts a put of the copy. Returns UCX's result: null if UCX has passed the put
    /// to the socket, a request if the put waits for room in the socket, or an error.
    ///
    /// # Safety
    /// `length` bytes are valid at `source`.
    pub(super) unsafe fn put_buffered(
        &self,
        _handles: &Handles,
        flow: &Flow,
        endpoint: Endpoint,
        source: *const u8,
        length: usize,
        (address, key): (u64, KeyHandle),
    ) -> RequestPointer {
        let mut bytes = Vec::with_capacity(length);
        // SAFETY: the caller promises the source, and the new vector has room for all bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), length);
            bytes.set_len(length);
        }
        let buffered = Box::into_raw(Box::new(Buffered { flow, bytes }));
        let parameters = OperationParameters {
            fields: library::WITH_CALLBACK | library::WITH_USER_DATA,
            callback: Some(sent),
            user_data: buffered.cast(),
            ..OperationParameters::NONE
        };
        // SAFETY: the caller holds the lock of the handles. If UCX returns a request, `sent` frees the copy
        // later. Otherwise UCX does not use the copy any more.
        unsafe {
            let bytes = (*buffered).bytes.as_ptr().cast();
            let pointer = (self.library.put)(endpoint.handle, bytes, length, address, key, &parameters);
            if matches!(self.library.request(pointer, "a put"), Ok(Some(_))) {
                flow.count((*buffered).weight());
            } else {
                drop(Box::from_raw(buffered));
            }
            pointer
        }
    }

    /// Blocks while unfinished operations of this worker on the memory of `pe` weigh [`MOST_UNFINISHED`] bytes or more, until
    /// half of this weight is left. `what` names the operation that waits in error messages.
    ///
    /// # Errors
    /// As for [`Worker::wait_for`].
    #[inline]
    pub(super) fn wait_for_room(&self, pe: u32, what: &'static str) -> Result<()> {
        let flow = &self.flows[pe as usize];
        match flow.unfinished.load(Ordering::Relaxed) < MOST_UNFINISHED {
            true => Ok(()),
            false => self.make_room(pe, flow, what),
        }
    }

    #[cold]
    fn make_room(&self, pe: u32, flow: &Flow, what: &'static str) -> Result<()> {
        // After an error, UCX is not called any more, so the weight never falls. End the wait then: the
        // operation that follows returns the error.
        let has_room = || {
            self.broken.load(Ordering::Acquire)
                || flow.unfinished.load(Ordering::Relaxed) <= MOST_UNFINISHED / 2
        };
        self.poll_at_intervals(|_| has_room());
        let limit = self.settings.request_timeout.map(|limit| (limit, what));
        self.wait_for(Some(pe), limit, has_room).map_err(|error| self.broken(error))
    }
}

impl Flow {
    /// Adds the weight of an operation that UCX has accepted but not completed. The caller holds the lock of
    /// the handles.
    pub(super) fn count(&self, weight: usize) {
        // A plain addition suffices, because all calls of a worker are made under one lock.
        self.unfinished.store(self.unfinished.load(Ordering::Relaxed) + weight, Ordering::Relaxed);
    }

    /// Subtracts the weight of an operation that UCX has completed. The caller holds the lock of the handles.
    pub(super) fn uncount(&self, weight: usize) {
        self.unfinished.store(self.unfinished.load(Ordering::Relaxed) - weight, Ordering::Relaxed);
    }
}
