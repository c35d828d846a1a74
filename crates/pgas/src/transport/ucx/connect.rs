//! Connects a PE through UCX: creates UCX's objects and exchanges addresses and keys. The endpoint to a peer
//! is created when the PE first accesses that peer.

use super::card::Card;
use super::files::Folder;
use super::library::{self, Library, OperationParameters, Status};
use super::{
    ALIGNMENT, Endpoint, Flow, Handles, NOTIFICATION, Peer, Registered, Settings, Shared, Ucx, Worker,
};
use super::{fork, room};
use crate::error::{Error, Result};
use crate::field::HEAP;
use crate::transport::Statics;
use crate::transport::bootstrap::Exchange;
use crate::transport::poll_limit::PollLimit;
use rustix::event::{EventfdFlags, eventfd};
use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// UCX's objects during [`Ucx::connect`]. Dropping this value releases them if connecting has failed. Handles that were
/// not made, or that belong to the transport, are null.
struct Unfinished {
    library: &'static Library,
    context: library::ContextHandle,
    worker: library::WorkerHandle,
    memory: library::MemoryHandle,
    statics: Option<library::MemoryHandle>,
    /// `None` once the folder belongs to the transport.
    folder: Option<Folder>,
}

impl Unfinished {
    fn new(library: &'static Library, pes: u32) -> Result<Self> {
        let parameters = library::ContextParameters {
            fields: library::CONTEXT_FIELDS,
            features: library::FEATURES,
            request_size: 0,
            request_init: null_mut(),
            request_cleanup: null_mut(),
            tag_sender_mask: 0,
            workers_shared: 1,
            endpoints: pes as usize,
            endpoints_per_node: 0,
            name: null_mut(),
        };
        let (major, minor) = library::INTERFACE;
        let mut context = null_mut();
        let folder = Folder::new();
        // SAFETY: the parameters are valid during the call. Null means UCX's configuration from the
        // environment.
        let status = folder.used_by(|| unsafe {
            (library.init_version)(major, minor, &parameters, null_mut(), &mut context)
        });
        library.check(status, "cannot start").map_err(|error| match error {
            Error::Ucx { what, why } => {
                let advice = "check UCX_TLS and UCX_NET_DEVICES; `ucx_info -d` lists what UCX can use";
                Error::Ucx { what, why: format!("{why}; {advice}") }
            }
            error => error,
        })?;
        let (worker, memory) = (null_mut(), null_mut());
        let mut unfinished = Self { library, context, worker, memory, statics: None, folder: Some(folder) };
        unfinished.worker = make_worker(library, context)?;
        Ok(unfinished)
    }

    /// Returns the names of UCX's memory domains, such as `sysv` and `tcp`.
    fn domains(&self) -> Vec<String> {
        let text = text_of(|stream| {
            // SAFETY: the context was made, and the stream is open during the call.
            unsafe { (self.library.context_print_info)(self.context, stream) }
        });
        // UCX prints a line such as `#   md 2  :  component 2  sysv` for each domain.
        let names = text.lines().filter_map(|line| {
            let (number, name) = line.trim_start_matches(['#', ' ']).strip_prefix("md ")?.split_once(':')?;
            number.trim().parse::<u32>().ok()?;
            name.split_whitespace().last().map(String::from)
        });
        names.collect()
    }

    /// Registers `length` bytes at `address` with UCX. If `address` is null, UCX allocates the memory.
    fn map(&self, address: *mut c_void, length: usize) -> Result<library::MemoryHandle> {
        let allocate = if address.is_null() { library::MAP_ALLOCATE } else { 0 };
        let parameters = library::MapParameters {
            fields: library::MAP_FIELDS,
            address,
            length,
            flags: allocate | library::MAP_NONBLOCK,
            protection: 0,
            memory_type: 0,
        };
        let mut memory = null_mut();
        // SAFETY: the caller's span is mapped, or UCX allocates it.
        let status = unsafe { (self.library.mem_map)(self.context, &parameters, &mut memory) };
        let what = format!("{length} bytes of symmetric memory; give a smaller {HEAP}");
        self.library.check(status, &what)?;
        Ok(memory)
    }

    /// Returns the address and the length in bytes of registered memory. Memory that UCX allocated may be
    /// longer than requested, because UCX rounds it up to whole pages. These may be huge pages.
    fn span_of(&self, memory: library::MemoryHandle) -> Result<(*mut u8, usize)> {
        let mut attributes = library::MemoryAttributes {
            fields: library::MEMORY_SPAN,
            address: null_mut(),
            length: 0,
            memory_type: 0,
        };
        // SAFETY: the memory was registered, and the attributes are a local variable.
        let status = unsafe { (self.library.mem_query)(memory, &mut attributes) };
        self.library.check(status, "the address of symmetric memory")?;
        Ok((attributes.address.cast(), attributes.length))
    }

    /// Returns the packed remote key of registered memory. Other PEs need the key to access the memory.
    fn key(&self, memory: library::MemoryHandle) -> Result<Vec<u8>> {
        let (mut key, mut length) = (null_mut(), 0);
        // SAFETY: the memory was registered. The key is copied before it is released.
        unsafe {
            let status = (self.library.rkey_pack)(self.context, memory, &mut key, &mut length);
            self.library.check(status, "the key of symmetric memory")?;
            let copy = std::slice::from_raw_parts(key.cast::<u8>(), length).to_vec();
            (self.library.rkey_buffer_release)(key);
            Ok(copy)
        }
    }

    /// Returns the worker's address, to which other PEs make endpoints.
    fn address(&self) -> Result<Vec<u8>> {
        let (mut address, mut length) = (null_mut(), 0);
        // SAFETY: the worker was made. The address is copied before it is released.
        unsafe {
            let worker = self.worker;
            let status = (self.library.worker_get_address)(worker, &mut address, &mut length);
            self.library.check(status, "the address of a worker")?;
            let copy = std::slice::from_raw_parts(address.cast::<u8>(), length).to_vec();
            (self.library.worker_release_address)(worker, address);
            Ok(copy)
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // SAFETY: each object was made or is null. They are released in the reverse order.
        unsafe {
            if self.context.is_null() {
                return;
            }
            if !self.worker.is_null() {
                (self.library.worker_destroy)(self.worker);
            }
            for memory in self.statics.into_iter().chain([self.memory]).filter(|one| !one.is_null()) {
                (self.library.mem_unmap)(self.context, memory);
            }
            (self.library.cleanup)(self.context);
        }
    }
}

/// Makes a worker of UCX. Several threads may call it, but only one thread at a time.
fn make_worker(library: &Library, context: library::ContextHandle) -> Result<library::WorkerHandle> {
    let parameters = library::WorkerParameters {
        fields: library::WORKER_FIELDS,
        thread_mode: library::SERIALIZED,
        processors: [0; 16],
        events: 0,
        user_data: null_mut(),
        event_fd: 0,
        flags: 0,
        name: null_mut(),
        am_alignment: 0,
        client_id: 0,
    };
    let mut worker = null_mut();
    // SAFETY: the context was made, and the parameters are valid during the call.
    let status = unsafe { (library.worker_create)(context, &parameters, &mut worker) };
    library.check(status, "making a worker").map_err(|error| match error {
        // UCX itself prints which memory it could not allocate.
        Error::Ucx { what, why } => {
            let advice = "look at UCX's messages; a worker takes about 5 MiB in /dev/shm (`df /dev/shm`), \
                          unless UCX_TLS leaves out shared memory";
            Error::Ucx { what, why: format!("{why}; {advice}") }
        }
        error => error,
    })?;
    Ok(worker)
}

/// Returns the descriptor of a worker's events.
fn event_fd(library: &Library, worker: library::WorkerHandle) -> Result<RawFd> {
    let mut event_fd = -1;
    // SAFETY: the worker was made with the feature of events.
    let status = unsafe { (library.worker_get_efd)(worker, &mut event_fd) };
    library.check(status, "the descriptor of a worker's events")?;
    Ok(event_fd)
}

impl Ucx {
    /// Allocates `bytes` bytes of symmetric memory and exchanges addresses and keys with all PEs. Offsets in
    /// the span of `statics` refer to the program's static objects. All other offsets refer to the allocated
    /// memory.
    ///
    /// # Errors
    /// An error of class Environment if UCX cannot be loaded. [`Error::Ucx`] for errors of UCX.
    /// [`Error::Invalid`] if the PEs' sizes differ, or if the machine has too little memory. Also errors of the
    /// exchange.
    ///
    /// # Safety
    /// The memory of `statics` stays mapped and writable as long as the transport exists.
    pub unsafe fn connect(
        exchange: Arc<dyn Exchange>,
        bytes: usize,
        statics: Option<Statics>,
        settings: Settings,
    ) -> Result<Self> {
        let library = Library::load()?;
        let (me, pes) = (exchange.me(), exchange.pes());
        let mut unfinished = Unfinished::new(library, pes)?;
        let private_bytes = (pes as usize * NOTIFICATION).next_multiple_of(4096);
        let length = bytes.saturating_add(private_bytes).saturating_add(ALIGNMENT);
        let folder = unfinished.folder.as_ref().expect("the folder is taken at the end").path();
        room::check(&*exchange, length, &unfinished.domains(), folder)?;
        unfinished.memory = unfinished.map(null_mut(), length)?;
        let (allocated, allocated_bytes) = unfinished.span_of(unfinished.memory)?;
        let padding = allocated.wrapping_add(private_bytes).align_offset(ALIGNMENT);
        let memory = allocated.wrapping_add(padding);
        // SAFETY: UCX has just allocated the memory, and no peer has its key yet.
        unsafe { std::ptr::write_bytes(memory, 0, private_bytes) };
        if let Some(statics) = &statics {
            unfinished.statics = Some(unfinished.map(statics.address as *mut c_void, statics.bytes)?);
        }
        fork::let_children_inherit(allocated as usize, allocated_bytes);
        if let Some(statics) = &statics {
            fork::let_children_inherit(statics.address, statics.bytes);
        }
        let card = Card {
            symmetric_bytes: bytes as u64,
            statics_bytes: statics.map_or(0, |statics| statics.bytes as u64),
            memory: memory as u64,
            statics: statics.map_or(0, |statics| statics.address as u64),
            address: unfinished.address()?,
            key: unfinished.key(unfinished.memory)?,
            statics_key: unfinished.statics.map_or(Ok(Vec::new()), |memory| unfinished.key(memory))?,
        };
        let cards = exchange.gather(&card.encode())?;
        let peers =
            (0..).zip(&cards).map(|(pe, bytes)| peer(pe, bytes, &card)).collect::<Result<Vec<_>>>()?;
        let event_fd = event_fd(library, unfinished.worker)?;
        let stop_fd =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| Error::os("making an eventfd", error))?;
        let shared = Arc::new(Shared {
            library,
            exchange,
            me,
            settings,
            context: std::mem::replace(&mut unfinished.context, null_mut()),
            peers,
            contexts: Mutex::default(),
            registered: Registered { memory: unfinished.memory, statics: unfinished.statics },
            memory,
            private_bytes,
            symmetric_bytes: bytes,
            statics,
            process: std::process::id(),
            stop_fd,
            stop: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            poll_limit: PollLimit::default(),
            _folder: unfinished.folder.take(),
        });
        let worker = Arc::new(Worker::new(shared, None));
        let mut handles = worker.handles();
        (handles.worker, handles.event_fd) = (unfinished.worker, event_fd);
        drop(handles);
        stop_at_exit(&worker);
        let theirs = worker.clone();
        let service = std::thread::Builder::new()
            .name("ucx-service".into())
            .spawn(move || theirs.service())
            .map_err(|error| Error::os("the service thread", error))?;
        Ok(Self { worker, service: Mutex::new(Some(service)) })
    }
}

/// Decodes the card of PE `pe`: the sizes, addresses and keys that this PE sent. Returns an error unless the
/// sizes in the card equal the sizes in `ours`.
fn peer(pe: u32, bytes: &[u8], ours: &Card) -> Result<Peer> {
    let invalid = |why: String| Error::invalid(format!("PE {pe}"), why);
    let Some(card) = Card::decode(bytes) else {
        return Err(invalid(
            "its addresses are invalid; start all PEs with the same version of inlane".into(),
        ));
    };
    if (card.symmetric_bytes, card.statics_bytes) != (ours.symmetric_bytes, ours.statics_bytes) {
        return Err(invalid(format!(
            "it has {} bytes of symmetric memory and {} of static objects, but this PE has {} and {}; give all PEs the same program and {HEAP}",
            card.symmetric_bytes, card.statics_bytes, ours.symmetric_bytes, ours.statics_bytes
        )));
    }
    Ok(Peer {
        address: card.address,
        memory: card.memory,
        key: card.key,
        statics: card.statics,
        statics_key: card.statics_key,
        direct: AtomicPtr::new(null_mut()),
        direct_atomics: AtomicBool::new(false),
        only_tcp: AtomicBool::new(false),
        connected: AtomicBool::new(false),
        notified: AtomicU32::new(0),
        taken: AtomicU32::new(0),
    })
}

/// Registers an exit handler that stops this process's calls of UCX. It must run before UCX's own exit
/// handlers, because they free objects that the service thread uses. The service thread could otherwise
/// crash.
fn stop_at_exit(worker: &Arc<Worker>) {
    static RUNNING: Mutex<Vec<Weak<Worker>>> = Mutex::new(Vec::new());
    extern "C" fn stop() {
        // Do nothing if the lock is held, because waiting could block forever. A forked child inherits the
        // lock in the state at the fork, and nobody may unlock it. Such a child has nothing to stop.
        let Ok(running) = RUNNING.try_lock() else { return };
        let own = |worker: &Arc<Worker>| worker.process == std::process::id();
        for worker in running.iter().filter_map(Weak::upgrade).filter(own) {
            worker.stop.store(true, Ordering::Release);
            worker.broken.store(true, Ordering::Release);
            // Wait until no thread is inside UCX. Each thread holds the lock of a worker's handles while it calls
            // UCX, so it is enough to take each of these locks once.
            worker.contexts().iter().chain([&worker]).for_each(|worker| drop(worker.handles()));
        }
    }
    let mut running = RUNNING.lock().unwrap_or_else(|poison| poison.into_inner());
    running.retain(|one| one.strong_count() > 0);
    if running.is_empty() {
        // SAFETY: `stop` has the type that the C library calls at exit.
        unsafe { libc::atexit(stop) };
    }
    running.push(Arc::downgrade(worker));
}

impl Flow {
    /// Records the first error.
    pub(super) fn fail(&self, status: Status) {
        let _ = self.failed.compare_exchange(0, status.into(), Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl Worker {
    /// Returns the endpoint of `pe`. Makes it at the first call.
    pub(super) fn endpoint(&self, handles: &mut Handles, pe: u32) -> Result<Endpoint> {
        if let Some(endpoint) = handles.endpoints[pe as usize] {
            return Ok(endpoint);
        }
        let peer = self.peer(pe)?;
        if handles.worker.is_null() {
            handles.worker = make_worker(self.library, self.context)?;
            handles.event_fd = event_fd(self.library, handles.worker)?;
        }
        let none = library::SocketAddress { address: null_mut(), length: 0 };
        let parameters = library::EndpointParameters {
            fields: library::ENDPOINT_FIELDS,
            address: peer.address.as_ptr().cast(),
            error_mode: 0,
            error_callback: null_mut(),
            error_argument: null_mut(),
            user_data: null_mut(),
            flags: 0,
            socket_address: library::SocketAddress { ..none },
            connection_request: null_mut(),
            name: null_mut(),
            local_socket_address: none,
        };
        let mut handle = null_mut();
        // SAFETY: the caller holds the lock of the handles, and the parameters are valid during the call.
        let status = unsafe { (self.library.ep_create)(handles.worker, &parameters, &mut handle) };
        self.reached(status, pe)?;
        let memory = self.unpack(handle, pe, &peer.key)?;
        let statics = match peer.statics_key.is_empty() {
            true => None,
            false => Some(self.unpack(handle, pe, &peer.statics_key)?),
        };
        let endpoint = Endpoint { handle, memory, statics };
        handles.endpoints[pe as usize] = Some(endpoint);
        if self.default.is_none() {
            let description = self.describe(&endpoint);
            peer.direct_atomics.store(atomics_use_processor(&description), Ordering::Relaxed);
            peer.only_tcp.store(uses_only_tcp(&description), Ordering::Relaxed);
            peer.direct.store(self.mapped(pe, peer, memory), Ordering::Release);
            peer.connected.store(true, Ordering::Release);
        }
        Ok(endpoint)
    }

    /// Returns an error unless `status` is that of a successful operation.
    fn reached(&self, status: Status, pe: u32) -> Result<()> {
        match status {
            library::OK => Ok(()),
            status => Err(self.broken(self.library.unreachable(status, pe))),
        }
    }

    fn unpack(&self, endpoint: library::EndpointHandle, pe: u32, key: &[u8]) -> Result<library::KeyHandle> {
        let mut handle = null_mut();
        // SAFETY: a PE of the job packed the key, whose contents include its length.
        let status = unsafe { (self.library.rkey_unpack)(endpoint, key.as_ptr().cast(), &mut handle) };
        self.reached(status, pe)?;
        Ok(handle)
    }

    /// Returns the address at which this process has mapped the symmetric memory of `pe`. Null if it is not
    /// mapped.
    fn mapped(&self, pe: u32, peer: &Peer, key: library::KeyHandle) -> *mut u8 {
        if pe == self.me {
            return self.memory.wrapping_add(self.private_bytes);
        }
        let mut address = null_mut();
        // SAFETY: the key belongs to the memory at this address of the peer.
        match unsafe { (self.library.rkey_ptr)(key, peer.memory, &mut address) } {
            library::OK => address.cast::<u8>().wrapping_add(self.private_bytes),
            _ => null_mut(),
        }
    }

    /// Returns the names of the transports that UCX uses for the endpoints, in UCX's notation.
    pub(super) fn methods(&self) -> Vec<String> {
        let handles = self.handles();
        let mut methods = Vec::new();
        for endpoint in handles.endpoints.iter().flatten() {
            let text = self.describe(endpoint);
            // UCX prints a line such as `lane[0]: 2:tcp/eth0.0 md[1] -> md[1]/tcp` for each lane.
            for line in text.lines().filter(|line| line.contains("lane[")) {
                if let Some(name) =
                    transport_of_lane(line).filter(|name| !methods.iter().any(|known| known == name))
                {
                    methods.push(name.to_string());
                }
            }
        }
        methods
    }

    /// Returns UCX's description of an endpoint, as text with a line for each lane.
    fn describe(&self, endpoint: &Endpoint) -> String {
        // SAFETY: the caller holds the lock of the handles. The stream is open during the call.
        text_of(|stream| unsafe { (self.library.ep_print_info)(endpoint.handle, stream) })
    }
}

/// Returns the text that `print` prints to a stream of C.
fn text_of(print: impl FnOnce(*mut libc::FILE)) -> String {
    let (mut text, mut length) = (null_mut(), 0);
    // SAFETY: the stream is closed before the text is read. The text is freed once.
    unsafe {
        let stream = libc::open_memstream(&mut text, &mut length);
        if stream.is_null() {
            return String::new();
        }
        print(stream);
        libc::fclose(stream);
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        libc::free(text.cast());
        copy
    }
}

/// Reads UCX's description of an endpoint. Returns true if the calling processor carries out atomics: all
/// lanes for atomics are then transports over shared memory. UCX prints a line for each lane, such as
/// `lane[0]: 0:sysv/memory.0 md[0] -> md[0]/sysv amo#0 am`.
fn atomics_use_processor(description: &str) -> bool {
    let lanes = description.lines().filter(|line| line.contains("lane[") && line.contains(" amo#"));
    let mut transports = lanes.map(transport_of_lane).peekable();
    transports.peek().is_some()
        && transports.all(|name| matches!(name, Some("self" | "sysv" | "posix" | "xpmem")))
}

/// Returns true if UCX's description of an endpoint lists at least one lane, and all listed lanes are TCP
/// connections.
fn uses_only_tcp(description: &str) -> bool {
    let mut lanes = description.lines().filter(|line| line.contains("lane[")).peekable();
    lanes.peek().is_some() && lanes.all(|line| transport_of_lane(line) == Some("tcp"))
}

/// Returns the name of the transport in UCX's description of a lane.
fn transport_of_lane(line: &str) -> Option<&str> {
    line.split_once("]:")?.1.trim_start().split_once(':')?.1.split('/').next()
}

const _: () = assert!(size_of::<OperationParameters>() == 72);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_carries_out_atomics_only_over_shared_memory() {
        let shared = "# lane[0]:  0:sysv/memory.0 md[0] -> md[0]/sysv/sysdev[255] amo#0 am am_bw#0\n\
                      # lane[1]:  1:posix/memory.0 md[1] -> md[1]/posix/sysdev[255] amo#1\n";
        assert!(atomics_use_processor(shared));
        let device = "# lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> md[4]/ib/sysdev[0] amo#1\n";
        assert!(!atomics_use_processor(device));
        assert!(!atomics_use_processor(&format!("{shared}{device}")), "one of several lanes is a device");
        assert!(!atomics_use_processor("# lane[0]:  2:tcp/lo.0 md[2] -> md[2]/tcp/sysdev[255] am am_bw#0\n"));
        assert!(!atomics_use_processor(""));
    }

    #[test]
    fn only_descriptions_with_all_lanes_over_tcp_say_so() {
        let network = "# lane[0]:  2:tcp/eth0.0 md[2] -> md[2]/tcp/sysdev[255] am am_bw#0\n";
        assert!(uses_only_tcp(network));
        assert!(uses_only_tcp(&format!("# endpoint\n{network}{network}")));
        let shared = "# lane[1]:  0:sysv/memory.0 md[0] -> md[0]/sysv/sysdev[255] rma_bw#0\n";
        assert!(!uses_only_tcp(&format!("{network}{shared}")));
        assert!(!uses_only_tcp(""));
    }
}
