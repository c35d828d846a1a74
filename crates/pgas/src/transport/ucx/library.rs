//! The functions of UCX's protocol layer (libucp) that the transport calls. The library is loaded at run
//! time, so a machine without UCX can use windows.
//!
//! The declarations follow the C interface of UCX 1.13, which later versions keep.

use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The oldest supported version of UCX: major, minor.
const OLDEST: (c_uint, c_uint) = (1, 13);
/// The library's file name. The 0 is the version of its binary interface.
const FILE: &str = "libucp.so.0";

/// C's `ucs_status_t`, which is one byte wide: 0 for success, 1 for an operation in progress, else an error.
pub type Status = i8;
/// The operation was completed.
pub const OK: Status = 0;
/// UCX's status of an operation that is not complete yet.
pub const IN_PROGRESS: Status = 1;
/// UCX's status if a worker cannot be armed, because it still has events to progress.
pub const BUSY: Status = -15;
/// A [`RequestPointer`] at or above this address is an error code, cast to a pointer. C's `UCS_ERR_LAST` is
/// -100.
const FIRST_ERROR_POINTER: usize = (-100isize) as usize;

/// C's `ucp_context_h`.
pub type ContextHandle = *mut c_void;
/// C's `ucp_worker_h`.
pub type WorkerHandle = *mut c_void;
/// C's `ucp_ep_h`.
pub type EndpointHandle = *mut c_void;
/// C's `ucp_mem_h`.
pub type MemoryHandle = *mut c_void;
/// C's `ucp_rkey_h`.
pub type KeyHandle = *mut c_void;
/// C's `ucs_status_ptr_t`: null for success, an error, or the address of a request.
pub type RequestPointer = *mut c_void;

/// Bits of C's `enum ucp_feature`: one-sided access, atomics on 4 and on 8 bytes, and events.
pub const FEATURES: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4;
/// Bits of `ContextParameters::fields`: the features, whether workers of several threads share the context, and the number
/// of endpoints.
pub const CONTEXT_FIELDS: u64 = 1 << 0 | 1 << 5 | 1 << 6;

/// C's `ucp_params_t`.
#[repr(C)]
pub struct ContextParameters {
    pub fields: u64,
    pub features: u64,
    pub request_size: usize,
    pub request_init: *const c_void,
    pub request_cleanup: *const c_void,
    pub tag_sender_mask: u64,
    pub workers_shared: c_int,
    pub endpoints: usize,
    pub endpoints_per_node: usize,
    pub name: *const c_char,
}

/// Bit of `WorkerParameters::fields`: the thread mode.
pub const WORKER_FIELDS: u64 = 1 << 0;
/// UCX's thread mode for workers that several threads call, but only one thread at a time.
pub const SERIALIZED: c_int = 1;

/// C's `ucp_worker_params_t`. `processors` is its `cpu_mask`, a set of 1024 bits.
#[repr(C)]
pub struct WorkerParameters {
    pub fields: u64,
    pub thread_mode: c_int,
    pub processors: [u64; 16],
    pub events: c_uint,
    pub user_data: *mut c_void,
    pub event_fd: c_int,
    pub flags: u64,
    pub name: *const c_char,
    pub am_alignment: usize,
    pub client_id: u64,
}

/// C's `ucs_sock_addr_t`.
#[repr(C)]
pub struct SocketAddress {
    pub address: *const c_void,
    pub length: u32,
}

/// Bit of `EndpointParameters::fields`: the peer's address. The bit for error handling is not set, because
/// UCX 1.13 does not support that over shared memory. The launcher reports the failure of a peer.
pub const ENDPOINT_FIELDS: u64 = 1 << 0;

/// C's `ucp_ep_params_t`.
#[repr(C)]
pub struct EndpointParameters {
    pub fields: u64,
    pub address: *const c_void,
    pub error_mode: c_int,
    pub error_callback: *const c_void,
    pub error_argument: *mut c_void,
    pub user_data: *mut c_void,
    pub flags: c_uint,
    pub socket_address: SocketAddress,
    pub connection_request: *mut c_void,
    pub name: *const c_char,
    pub local_socket_address: SocketAddress,
}

/// Bits of `MapParameters::fields`: address, length and flags.
pub const MAP_FIELDS: u64 = 1 << 0 | 1 << 1 | 1 << 2;
/// UCX allocates the memory.
pub const MAP_ALLOCATE: c_uint = 1 << 1;
/// Flag of `MapParameters`: UCX need not allocate pages at once. They are allocated when they are first
/// accessed.
pub const MAP_NONBLOCK: c_uint = 1 << 0;

/// C's `ucp_mem_map_params_t`.
#[repr(C)]
pub struct MapParameters {
    pub fields: u64,
    pub address: *mut c_void,
    pub length: usize,
    pub flags: c_uint,
    pub protection: c_uint,
    pub memory_type: c_int,
}

/// Bits of `MemoryAttributes::fields`: the address and the length.
pub const MEMORY_SPAN: u64 = 1 << 0 | 1 << 1;

/// C's `ucp_mem_attr_t`.
#[repr(C)]
pub struct MemoryAttributes {
    pub fields: u64,
    pub address: *mut c_void,
    pub length: usize,
    pub memory_type: c_int,
}

/// A function that UCX calls when an operation is complete.
pub type SendCallback = extern "C" fn(request: *mut c_void, status: Status, user_data: *mut c_void);

/// Bit of `OperationParameters::fields`: the callback.
pub const WITH_CALLBACK: u32 = 1 << 1;
/// Bit of `OperationParameters::fields`: the user data for the callback.
pub const WITH_USER_DATA: u32 = 1 << 2;
/// Bit of `OperationParameters::fields`: the data type of the elements.
pub const WITH_DATATYPE: u32 = 1 << 3;
/// Bit of `OperationParameters::fields`: the buffer for the result of an atomic.
pub const WITH_REPLY: u32 = 1 << 5;
/// Bit of `OperationParameters::fields`: UCX calls back even if it completes the operation at once, and
/// returns a request. It may call back before its function returns. If the callback frees the request, the
/// returned pointer is invalid.
pub const ALWAYS_CALL_BACK: u32 = 1 << 16;

/// Returns C's `ucp_datatype_t` of contiguous elements of `width` bytes.
pub const fn contiguous(width: usize) -> u64 {
    (width as u64) << 3
}

/// C's `ucp_request_param_t`.
#[repr(C)]
pub struct OperationParameters {
    pub fields: u32,
    pub flags: u32,
    pub request: *mut c_void,
    pub callback: Option<SendCallback>,
    pub datatype: u64,
    pub user_data: *mut c_void,
    pub reply: *mut c_void,
    pub memory_type: c_int,
    pub receive_info: *mut c_void,
    pub memory: MemoryHandle,
}

impl OperationParameters {
    /// The parameters of an operation with no options.
    pub const NONE: Self = Self {
        fields: 0,
        flags: 0,
        request: std::ptr::null_mut(),
        callback: None,
        datatype: 0,
        user_data: std::ptr::null_mut(),
        reply: std::ptr::null_mut(),
        memory_type: 0,
        receive_info: std::ptr::null_mut(),
        memory: std::ptr::null_mut(),
    };
}

macro_rules! functions {
    ($($field:ident = $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The loaded library's functions, named as in C without the prefix `ucp_`.
        pub struct Library {
            $(pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            _file: libloading::Library,
        }

        impl Library {
            fn from_file(file: libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: each type above is the type of the C function with the same name.
                unsafe {
                    Ok(Self {
                        $($field: *file.get(concat!(stringify!($name), "\0").as_bytes())?,)*
                        _file: file,
                    })
                }
            }
        }
    };
}

functions! {
    get_version = ucp_get_version(*mut c_uint, *mut c_uint, *mut c_uint);
    status_string = ucs_status_string(Status) -> *const c_char;
    init_version = ucp_init_version(c_uint, c_uint, *const ContextParameters, *const c_void, *mut ContextHandle) -> Status;
    cleanup = ucp_cleanup(ContextHandle);
    context_print_info = ucp_context_print_info(ContextHandle, *mut libc::FILE);
    worker_create = ucp_worker_create(ContextHandle, *const WorkerParameters, *mut WorkerHandle) -> Status;
    worker_destroy = ucp_worker_destroy(WorkerHandle);
    worker_get_address = ucp_worker_get_address(WorkerHandle, *mut *mut c_void, *mut usize) -> Status;
    worker_release_address = ucp_worker_release_address(WorkerHandle, *mut c_void);
    worker_progress = ucp_worker_progress(WorkerHandle) -> c_uint;
    worker_get_efd = ucp_worker_get_efd(WorkerHandle, *mut c_int) -> Status;
    worker_arm = ucp_worker_arm(WorkerHandle) -> Status;
    worker_fence = ucp_worker_fence(WorkerHandle) -> Status;
    ep_flush = ucp_ep_flush_nbx(EndpointHandle, *const OperationParameters) -> RequestPointer;
    ep_create = ucp_ep_create(WorkerHandle, *const EndpointParameters, *mut EndpointHandle) -> Status;
    ep_print_info = ucp_ep_print_info(EndpointHandle, *mut libc::FILE);
    mem_map = ucp_mem_map(ContextHandle, *const MapParameters, *mut MemoryHandle) -> Status;
    mem_unmap = ucp_mem_unmap(ContextHandle, MemoryHandle) -> Status;
    mem_query = ucp_mem_query(MemoryHandle, *mut MemoryAttributes) -> Status;
    rkey_pack = ucp_rkey_pack(ContextHandle, MemoryHandle, *mut *mut c_void, *mut usize) -> Status;
    rkey_buffer_release = ucp_rkey_buffer_release(*mut c_void);
    rkey_unpack = ucp_ep_rkey_unpack(EndpointHandle, *const c_void, *mut KeyHandle) -> Status;
    rkey_ptr = ucp_rkey_ptr(KeyHandle, u64, *mut *mut c_void) -> Status;
    rkey_destroy = ucp_rkey_destroy(KeyHandle);
    put = ucp_put_nbx(EndpointHandle, *const c_void, usize, u64, KeyHandle, *const OperationParameters) -> RequestPointer;
    get = ucp_get_nbx(EndpointHandle, *mut c_void, usize, u64, KeyHandle, *const OperationParameters) -> RequestPointer;
    atomic = ucp_atomic_op_nbx(EndpointHandle, c_int, *const c_void, usize, u64, KeyHandle, *const OperationParameters) -> RequestPointer;
    request_check_status = ucp_request_check_status(*mut c_void) -> Status;
    request_free = ucp_request_free(*mut c_void);
}

impl Library {
    /// Loads the library at the first call. Later calls return the same library.
    ///
    /// # Errors
    /// An error of class Environment if the library is missing or older than UCX 1.13. It names the package
    /// to install.
    pub fn load() -> Result<&'static Library> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        LOADED.get_or_init(open).as_ref().map_err(|why| {
            let why =
                format!("{why}; install UCX 1.13 or newer (Debian and Ubuntu: apt-get install libucx0)");
            inlane_core::Error::device_environment("UCX", why).into()
        })
    }

    /// Returns the version of the loaded UCX library: major, minor, release.
    pub fn version(&self) -> (u32, u32, u32) {
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: the pointers lead to local variables.
        unsafe { (self.get_version)(&mut major, &mut minor, &mut release) };
        (major, minor, release)
    }

    /// Returns an error unless `status` is [`OK`]. `what` names the failed operation.
    pub fn check(&self, status: Status, what: &str) -> Result<()> {
        match status {
            OK => Ok(()),
            status => Err(self.error(status, what)),
        }
    }

    /// Returns the error for a failed operation.
    pub fn error(&self, status: Status, what: &str) -> Error {
        Error::Ucx { what: what.into(), why: self.text(status) }
    }

    /// Returns the error of an operation on `pe`, or of the connection to it.
    pub fn unreachable(&self, status: Status, pe: u32) -> Error {
        Error::Unreachable { peer: pe, why: self.text(status) }
    }

    fn text(&self, status: Status) -> String {
        // SAFETY: the function returns a static string for every number.
        let text = unsafe { CStr::from_ptr((self.status_string)(status)) };
        text.to_string_lossy().into_owned()
    }

    /// Returns the request that `pointer` stands for, or `None` if the operation is complete.
    ///
    /// # Errors
    /// If `pointer` stands for an error.
    pub fn request(&self, pointer: RequestPointer, what: &str) -> Result<Option<*mut c_void>> {
        match pointer as usize {
            0 => Ok(None),
            error if error >= FIRST_ERROR_POINTER => Err(self.error(error as isize as Status, what)),
            _ => Ok(Some(pointer)),
        }
    }
}

fn open() -> Result<Library, String> {
    // SAFETY: loading the library runs UCX's initialisers. They only read the environment and the
    // configuration of the machine, and install handlers for fatal signals.
    let file =
        unsafe { libloading::Library::new(FILE) }.map_err(|error| format!("cannot load it: {error}"))?;
    let library = Library::from_file(file).map_err(|error| format!("{FILE} lacks a function: {error}"))?;
    let (major, minor, _) = library.version();
    match (major, minor) >= OLDEST {
        true => Ok(library),
        false => Err(format!("{FILE} has version {major}.{minor}")),
    }
}

/// The version of the interface that these declarations follow: major, minor.
pub const INTERFACE: (c_uint, c_uint) = OLDEST;
