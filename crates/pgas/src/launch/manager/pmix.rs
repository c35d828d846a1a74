//! PMIx, version 2 and newer. Loads libpmix at run time. The types in this file are those of `pmix_common.h`.

use super::ProcessManager;
use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// File names of the library. They are tried in this order.
const NAMES: [&str; 2] = ["libpmix.so.2", "libpmix.so"];
/// `PMIX_RANK_WILDCARD`: stands for the whole job.
const WHOLE_JOB: u32 = u32::MAX - 1;
/// `PMIX_GLOBAL`: all processes see the text.
const GLOBAL: u8 = 3;
/// `PMIX_STRING`, the type of a value that points to a text.
const STRING: u16 = 3;
/// `PMIX_UINT32`, the type of a value that is a 32-bit number.
const UINT32: u16 = 14;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone)]
struct Process {
    namespace: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`: a type and a union, whose largest member has 24 bytes.
#[repr(C)]
struct Value {
    kind: u16,
    data: [u64; 3],
}

type Init = unsafe extern "C" fn(*mut Process, *mut c_void, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const c_void, usize) -> c_int;
type Get =
    unsafe extern "C" fn(*const Process, *const c_char, *const c_void, usize, *mut *mut Value) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// A connection to a process manager through libpmix.
pub struct Pmix {
    process: Process,
    size: u32,
    finalize: Finalize,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    error_string: ErrorString,
    /// Keeps the loaded functions valid. The library is never unloaded, because it has its own threads.
    _library: &'static Library,
}

fn failed(what: &str, why: impl Into<String>) -> Error {
    Error::Failed { what: format!("process manager (PMIx): {what}"), why: why.into() }
}

impl Pmix {
    /// Loads libpmix and connects to the process manager.
    ///
    /// # Errors
    /// [`Error::Failed`] if the library is missing or the manager refuses.
    pub fn connect() -> Result<Self> {
        // SAFETY: libpmix's initialisers have no requirements.
        let loaded = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        let library = loaded
            .ok_or_else(|| failed("libpmix.so.2 is missing", "install it: apt-get install libpmix2"))?;
        let library: &'static Library = Box::leak(Box::new(library));
        let lacks = |error: libloading::Error| failed("libpmix lacks a function", error.to_string());
        macro_rules! function {
            ($name:literal, $type:ty) => {
                // SAFETY: the type is that of the function's declaration in pmix.h.
                *unsafe { library.get::<$type>($name) }.map_err(lacks)?
            };
        }
        let init = function!(b"PMIx_Init\0", Init);
        let mut pmix = Self {
            process: Process { namespace: [0; 256], rank: 0 },
            size: 0,
            finalize: function!(b"PMIx_Finalize\0", Finalize),
            put: function!(b"PMIx_Put\0", Put),
            commit: function!(b"PMIx_Commit\0", Commit),
            fence: function!(b"PMIx_Fence\0", Fence),
            get: function!(b"PMIx_Get\0", Get),
            error_string: function!(b"PMIx_Error_string\0", ErrorString),
            _library: library,
        };
        // SAFETY: the function writes this process's identity to `process`. It gets no attributes.
        let status = unsafe { init(&mut pmix.process, std::ptr::null_mut(), 0) };
        pmix.check("PMIx_Init", status)?;
        let job = Process { rank: WHOLE_JOB, ..pmix.process.clone() };
        let size = pmix.value(&job, "pmix.job.size")?;
        match (size.kind, size.data[0] as u32) {
            (UINT32, size) if pmix.process.rank < size => pmix.size = size,
            (kind, size) => {
                let why = format!("type {kind}, {size} processes, and this is rank {}", pmix.process.rank);
                return Err(failed("a job size that does not fit", why));
            }
        }
        Ok(pmix)
    }

    fn check(&self, what: &str, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a constant text for every number.
        let text = unsafe { CStr::from_ptr((self.error_string)(status)) };
        Err(failed(what, text.to_string_lossy()))
    }

    /// Returns the value that a process has stored under the key. Never frees the library's memory for the
    /// value, because versions of libpmix differ in how to free it. A job gets only few values.
    fn value(&self, process: &Process, key: &str) -> Result<&'static Value> {
        let name = CString::new(key).map_err(|_| failed(key, "the key has a zero byte"))?;
        let mut value = std::ptr::null_mut();
        // SAFETY: the pointers are valid, and the function sets `value` if it succeeds.
        let status = unsafe { (self.get)(process, name.as_ptr(), std::ptr::null(), 0, &mut value) };
        self.check(key, status)?;
        // SAFETY: the library allocated the value, and nothing frees it.
        unsafe { value.as_ref() }.ok_or_else(|| failed(key, "no value"))
    }
}

impl ProcessManager for Pmix {
    fn rank(&self) -> u32 {
        self.process.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn local_size(&self) -> Option<u32> {
        let job = Process { rank: WHOLE_JOB, ..self.process.clone() };
        let value = self.value(&job, "pmix.local.size").ok().filter(|value| value.kind == UINT32)?;
        Some(value.data[0] as u32)
    }

    fn put(&mut self, key: &str, text: &str) -> Result<()> {
        let zero = |_| failed(key, "the text has a zero byte");
        let (name, text) = (CString::new(key).map_err(zero)?, CString::new(text).map_err(zero)?);
        let mut value = Value { kind: STRING, data: [text.as_ptr() as u64, 0, 0] };
        // SAFETY: the pointers are valid during the call, and the library copies the text.
        let status = unsafe { (self.put)(GLOBAL, name.as_ptr(), &mut value) };
        self.check("PMIx_Put", status)?;
        // SAFETY: the function has no arguments.
        let status = unsafe { (self.commit)() };
        self.check("PMIx_Commit", status)
    }

    fn fence(&mut self) -> Result<()> {
        // SAFETY: both arrays are empty. Without an array of processes, the fence applies to all processes of
        // the job.
        let status = unsafe { (self.fence)(std::ptr::null(), 0, std::ptr::null(), 0) };
        self.check("PMIx_Fence", status)
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<String> {
        let value = self.value(&Process { rank, ..self.process.clone() }, key)?;
        if value.kind != STRING || value.data[0] == 0 {
            return Err(failed(key, format!("a value of type {} instead of a text", value.kind)));
        }
        // SAFETY: the value's type was checked above. A value of this type points to a C string, which the
        // library keeps alive.
        Ok(unsafe { CStr::from_ptr(value.data[0] as *const c_char) }.to_string_lossy().into())
    }

    fn finish(&mut self) -> Result<()> {
        // SAFETY: the array of attributes is empty.
        let status = unsafe { (self.finalize)(std::ptr::null(), 0) };
        self.check("PMIx_Finalize", status)
    }
}
