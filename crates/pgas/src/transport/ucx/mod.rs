//! The transport over UCX, for PEs on several machines. UCX chooses shared memory, TCP or RDMA.
//!
//! UCX allocates symmetric memory, because PEs of one machine can then map each other's memory. The words for
//! notifications between PEs lie before it. The program's static objects also have symmetric offsets. They
//! stay where the program has them, and are registered as a second segment:
//!
//! ```text
//! allocated by UCX    | notification words | workspace | unused |  heap  |
//! symmetric offset                         0             |
//!                                                        v
//! the program's own memory                       | static objects |
//! ```
//!
//! * **Puts and gets** between PEs of one machine are plain copies if UCX can map the peer's memory. All
//!   others are UCX's operations.
//! * **Short puts by TCP** are copied, and return before UCX has sent them (module `buffered`).
//! * **Non-blocking operations** wait while too many operations on the same PE are unfinished, because UCX
//!   needs memory for each (module `buffered`).
//! * **Atomics**: UCX decides whether the processor or a network device executes them. This also applies to
//!   the PE's own memory, because the two must not mix on one word. If UCX uses the calling processor for
//!   mapped memory, this transport executes them on that processor without UCX.
//! * **Progress.** Over TCP, an access to a PE's memory completes only if a thread of that PE calls UCX's
//!   progress function. Waiting threads call it. If no thread waits, the service thread does.
//!
//! **Workers.** A worker of UCX runs one call at a time, so a lock serialises its calls. The default context has a worker,
//! by which other PEs also reach this PE's memory. Each other context has a worker of its own, which is made at the first
//! operation that needs it. So threads with a context each do not wait for each other.

mod atomics;
mod buffered;
pub mod card;
mod connect;
pub(crate) mod files;
mod fork;
mod library;
mod network;
mod operations;
mod room;
mod service;
#[cfg(test)]
mod tests;
mod transfers;

use super::Statics;
use super::bootstrap::Exchange;
use super::poll_limit::PollLimit;
use crate::error::{Error, Lost, Result};
use inlane_core::completion::CompletionMode;
use library::{EndpointHandle, KeyHandle, Library, MemoryHandle, OK, Status};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Distance in bytes between two notification words. Each word has a cache line of its own.
const NOTIFICATION: usize = 64;

/// The alignment of symmetric memory in bytes. A program cannot allocate an object with a larger alignment.
const ALIGNMENT: usize = 64 << 20;

/// The settings of the transport.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The completion mode of waits.
    pub completion: CompletionMode,
    /// How long an operation may take while its target PE is alive, before it fails. `None`: without limit.
    pub request_timeout: Option<Duration>,
    /// True if there are more PEs than processors. Polling then yields the processor.
    pub yields: bool,
    /// True if this PE may use only one processor. Its service thread then does not poll, because that would
    /// stop the program.
    pub one_processor: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            completion: CompletionMode::Adaptive,
            request_timeout: None,
            yields: false,
            one_processor: false,
        }
    }
}

/// The most contexts with a worker of their own. Further contexts use the worker of the default context.
const MOST_CONTEXTS: usize = 64;

/// The transport over UCX, for one context. Any thread may use it.
pub struct Ucx {
    worker: Arc<Worker>,
    /// The service thread. `None` for contexts other than the default one.
    service: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// A worker of UCX, and the operations of the context that uses it.
struct Worker {
    shared: Arc<Shared>,
    /// The worker of the default context. `None` for that worker itself.
    default: Option<Arc<Worker>>,
    handles: Mutex<Handles>,
    /// The state of this worker's operations on each PE's memory, in the order of the PEs.
    flows: Vec<Flow>,
    /// What threads other than the service thread do with this worker.
    activity: service::Activity,
    /// The number of UCX operations started so far. It changes only under the lock of the handles. A flush
    /// takes the same lock and then completes all operations that were started before.
    started: AtomicU64,
    /// The number of started operations that a flush has completed. If it equals `started`, fence and quiet
    /// need not call UCX. A flag that a flush clears would not be enough, because another thread may start
    /// operations during the flush.
    flushed: AtomicU64,
    /// The counted bytes and operations that were issued before the last fence or quiet; see
    /// [`crate::transport::Transport::yield_if_idle`]. Used only if PEs share processors.
    ordered: AtomicU64,
}

/// The state of a PE, shared by all its workers.
struct Shared {
    library: &'static Library,
    exchange: Arc<dyn Exchange>,
    me: u32,
    settings: Settings,
    context: library::ContextHandle,
    peers: Vec<Peer>,
    /// The workers of contexts other than the default one. If nobody else holds such a worker, its context has ended,
    /// and another context may use it.
    contexts: Mutex<Vec<Arc<Worker>>>,
    registered: Registered,
    /// Address of the memory that UCX allocated. It begins with the notification words.
    memory: *mut u8,
    /// The length in bytes of the memory for the notification words. Symmetric memory follows it.
    private_bytes: usize,
    symmetric_bytes: usize,
    statics: Option<Statics>,
    /// The identifier of the process that made the transport. A forked child has another identifier, and must
    /// not use the transport.
    process: u32,
    /// Wakes the service thread when it must stop.
    stop_fd: OwnedFd,
    stop: AtomicBool,
    /// True after an error. UCX is then not called any more. It could still access the buffers of unfinished
    /// operations, but the program may reuse these buffers after the error.
    broken: AtomicBool,
    poll_limit: PollLimit,
    /// UCX's folder for files of shared memory, which UCX may use until its end. Keep it the last field, because Rust drops
    /// fields in this order.
    _folder: Option<files::Folder>,
}

// SAFETY: `memory` stays mapped until the value is dropped. Other processes write it, so its words are
// accessed as atomics, and bulk data through raw pointers. UCX allows all threads to use its context at the same time.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}
// SAFETY: UCX's handles are used only under their lock.
unsafe impl Send for Worker {}
// SAFETY: as for `Send`.
unsafe impl Sync for Worker {}

/// The memory that is registered with UCX.
struct Registered {
    memory: MemoryHandle,
    statics: Option<MemoryHandle>,
}

/// UCX's objects of a worker. Only the thread that holds their lock uses them.
struct Handles {
    /// Null until the worker is first used.
    worker: library::WorkerHandle,
    /// UCX's file descriptor of the worker's events, which UCX closes. If the worker is armed, the descriptor
    /// becomes readable at the next event. -1 until the worker is first used.
    event_fd: RawFd,
    endpoints: Vec<Option<Endpoint>>,
}

/// A connection to a peer, with the keys of its memory.
#[derive(Clone, Copy)]
struct Endpoint {
    handle: EndpointHandle,
    memory: KeyHandle,
    statics: Option<KeyHandle>,
}

/// A PE's addresses and keys, and the state of the connection to it.
struct Peer {
    /// The address of the PE's worker, for UCX.
    address: Vec<u8>,
    /// The address of the PE's symmetric memory in the PE's own process.
    memory: u64,
    key: Vec<u8>,
    /// The address of the PE's static objects in the PE's own process.
    statics: u64,
    statics_key: Vec<u8>,
    /// The address at which this process has mapped the PE's symmetric memory. Null if it is not mapped.
    direct: AtomicPtr<u8>,
    /// True if UCX allows this process to carry out atomics on the mapped memory by processor instructions.
    /// The transport then carries them out itself, without a call of UCX.
    direct_atomics: AtomicBool,
    /// True if UCX reaches the PE by TCP only. Short puts are then copied, so they return before UCX has sent
    /// the data; see [`buffered`].
    only_tcp: AtomicBool,
    /// True once this process has connected to the PE, so the fields above are known.
    connected: AtomicBool,
    notified: AtomicU32,
    taken: AtomicU32,
}

/// The state of one worker's operations on one PE's memory.
#[derive(Default)]
struct Flow {
    /// For a PE whose memory is mapped: the value of `Worker::started` at the last operation through UCX.
    /// Stores by this processor could overtake that operation. So a fence flushes until `Worker::flushed`
    /// reaches this value.
    overtakable: AtomicU64,
    /// UCX's status code for the first non-blocking operation that failed. 0 if none has failed.
    failed: AtomicI32,
    /// The weight in bytes of the operations for which no thread waits and which UCX has not completed yet;
    /// see [`buffered`]. Changes only under the lock of the handles.
    unfinished: AtomicUsize,
    /// The issued bytes, and those of them that a quiet has delivered.
    issued: AtomicU64,
    delivered: AtomicU64,
}

/// Frees the request of an operation that UCX has completed with `status`, and notes a failure in `flow`.
fn release(request: *mut std::ffi::c_void, status: Status, flow: &Flow) {
    if status != OK {
        flow.fail(status);
    }
    if let Ok(library) = Library::load() {
        // SAFETY: the request is complete, and only this call frees it. UCX runs this callback inside one of
        // its own calls for the worker of the request. These are made under one lock.
        unsafe { (library.request_free)(request) };
    }
}

/// What a span of symmetric memory lies in: the memory that UCX allocated, or the program's static objects.
#[derive(Clone, Copy)]
enum Segment {
    Memory,
    Statics,
}

impl std::ops::Deref for Worker {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Worker {
    /// Makes a worker without objects of UCX. `default` is the worker of the default context.
    fn new(shared: Arc<Shared>, default: Option<Arc<Worker>>) -> Self {
        let pes = shared.peers.len();
        let handles = Handles { worker: std::ptr::null_mut(), event_fd: -1, endpoints: vec![None; pes] };
        Self {
            shared,
            default,
            handles: Mutex::new(handles),
            flows: (0..pes).map(|_| Flow::default()).collect(),
            activity: service::Activity::default(),
            started: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            ordered: AtomicU64::new(u64::MAX),
        }
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if a PE has ended, or if an operation of this worker has failed.
    fn check(&self) -> Result<()> {
        if let Some(peer) = self.exchange.lost() {
            return Err(self.broken(self.lost(peer)));
        }
        for (pe, flow) in (0..).zip(&self.flows) {
            let status = flow.failed.load(Ordering::Relaxed);
            if status != i32::from(OK) && (pe == self.me || self.is_in_flight()) {
                return Err(self.failed(pe, status as Status));
            }
        }
        Ok(())
    }

    fn lost(&self, peer: u32) -> Error {
        let known = &self.flows[peer as usize];
        Error::LinkLost {
            peer,
            lost: Lost {
                issued_bytes: known.issued.load(Ordering::Relaxed),
                delivered_bytes: known.delivered.load(Ordering::Relaxed),
                unanswered: 0,
            },
        }
    }

    /// Returns the error of a failed operation.
    fn failed(&self, pe: u32, status: Status) -> Error {
        // Report the PE as lost if UCX's status code shows that the connection to the PE has failed. The
        // codes below stand for a reset, missing, rejected or cancelled connection. They also stand for an
        // unreachable peer, an I/O error, and a failed endpoint (-89 to -60).
        let error = match status {
            -25 | -24 | -23 | -16 | -6 | -3 | -89..=-60 => self.lost(pe),
            _ => self.library.unreachable(status, pe),
        };
        self.broken(error)
    }
}

impl Shared {
    /// Returns the workers of contexts other than the default one.
    fn contexts(&self) -> MutexGuard<'_, Vec<Arc<Worker>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(&self, pe: u32) -> Result<&Peer> {
        match self.peers.get(pe as usize) {
            Some(peer) => Ok(peer),
            None => Err(super::no_such_pe(pe, self.peers.len() as u32)),
        }
    }

    /// Returns whether the `length` bytes at symmetric `offset` lie in the allocated memory or in the static
    /// objects. Fails if the range crosses the border between the two, or ends beyond symmetric memory.
    fn segment_of(&self, offset: usize, length: usize) -> Result<Segment> {
        let end = offset.checked_add(length).filter(|end| *end <= self.symmetric_bytes);
        let Some(end) = end else {
            return Err(Error::invalid(
                format!("{length} bytes at symmetric offset {offset}"),
                format!("symmetric memory has {} bytes", self.symmetric_bytes),
            ));
        };
        match &self.statics {
            Some(statics) if offset < statics.offset + statics.bytes && end > statics.offset => {
                match offset >= statics.offset && end <= statics.offset + statics.bytes {
                    true => Ok(Segment::Statics),
                    false => Err(Error::invalid(
                        format!("{length} bytes at symmetric offset {offset}"),
                        "they cross the end of the static objects",
                    )),
                }
            }
            _ => Ok(Segment::Memory),
        }
    }

    /// Returns this process's address for the symmetric offset `offset`, which lies in `segment`.
    fn own_address(&self, segment: Segment, offset: usize) -> *mut u8 {
        match (segment, &self.statics) {
            (Segment::Statics, Some(statics)) => (statics.address + (offset - statics.offset)) as *mut u8,
            _ => self.memory.wrapping_add(self.private_bytes + offset),
        }
    }

    /// Returns the address and the key that UCX needs to reach the memory of `peer` at symmetric offset
    /// `offset`.
    fn remote(&self, peer: &Peer, endpoint: &Endpoint, segment: Segment, offset: usize) -> (u64, KeyHandle) {
        match (segment, &self.statics, endpoint.statics) {
            (Segment::Statics, Some(statics), Some(key)) => {
                (peer.statics.wrapping_add((offset - statics.offset) as u64), key)
            }
            _ => (peer.memory.wrapping_add((self.private_bytes + offset) as u64), endpoint.memory),
        }
    }

    fn broken(&self, error: Error) -> Error {
        self.broken.store(true, Ordering::Release);
        error
    }
}

impl Ucx {
    /// Returns the names of the transports that UCX uses, such as `tcp` and `sysv`. Includes only the
    /// transports to PEs to which this PE has already connected.
    pub fn methods(&self) -> Vec<String> {
        self.worker.methods()
    }

    /// Returns UCX's version.
    ///
    /// # Errors
    /// An error of class Environment if UCX cannot be loaded.
    pub fn version() -> Result<String> {
        let (major, minor, release) = Library::load()?.version();
        Ok(format!("{major}.{minor}.{release}"))
    }
}

impl Drop for Ucx {
    fn drop(&mut self) {
        if self.worker.default.is_some() {
            return;
        }
        self.stop_service();
        let shared = &self.worker.shared;
        let library = shared.library;
        if shared.broken.load(Ordering::Acquire) {
            return;
        }
        let contexts = std::mem::take(&mut *shared.contexts());
        // SAFETY: the service thread has ended, and no other thread uses the transport. UCX's objects are
        // released in the reverse order of their creation.
        unsafe {
            for worker in contexts.iter().chain([&self.worker]) {
                let handles = worker.handles();
                for endpoint in handles.endpoints.iter().flatten() {
                    (library.rkey_destroy)(endpoint.memory);
                    endpoint.statics.iter().for_each(|key| (library.rkey_destroy)(*key));
                }
                if !handles.worker.is_null() {
                    (library.worker_destroy)(handles.worker);
                }
            }
            for memory in shared.registered.statics.into_iter().chain([shared.registered.memory]) {
                (library.mem_unmap)(shared.context, memory);
            }
            (library.cleanup)(shared.context);
        }
    }
}
