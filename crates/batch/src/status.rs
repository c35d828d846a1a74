//! What the functions return, and the message of the last error of a thread.

use inlane_core::error::Class;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a function returns. The numbers are those of `enum inlane_status`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub enum Status {
    Ok = 0,
    Failed = 1,
    Usage = 2,
    Unavailable = 3,
    Timeout = 4,
    End = 5,
}

/// A status of an error with its message.
#[derive(Debug)]
pub struct Failure {
    status: Status,
    message: String,
}

impl Failure {
    /// Returns the failure for an argument that is wrong.
    pub fn usage(what: &str, why: impl std::fmt::Display) -> Self {
        Self { status: Status::Usage, message: format!("{what}: {why}") }
    }
}

impl From<inlane_forward::Error> for Failure {
    fn from(error: inlane_forward::Error) -> Self {
        let status = match error.class() {
            Class::Usage => Status::Usage,
            Class::Environment => Status::Unavailable,
            Class::Failed => Status::Failed,
        };
        Self { status, message: error.to_string() }
    }
}

impl From<inlane_ports::Error> for Failure {
    fn from(error: inlane_ports::Error) -> Self {
        inlane_forward::Error::from(error).into()
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function. Stores the message of a failure for [`inlane_error`]. A panic must not unwind into C,
/// so it becomes a failure.
pub fn status_of(body: impl FnOnce() -> Result<Status, Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => return status as c_int,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let why = panic.downcast_ref::<String>().map(String::as_str);
            let why = why.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            let message = format!("the library panicked: {why}; this is a defect, please report it");
            Failure { status: Status::Failed, message }
        }
    };
    // A thread that ends has no message any more.
    let _ = MESSAGE.try_with(|message| message.replace(c_text(failure.message)));
    failure.status as c_int
}

/// Runs the body of an exported function that returns no status. Returns `otherwise` if it panics.
pub fn value_of<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Returns a text for C. It ends at the first zero byte, if it has one.
pub fn c_text(text: String) -> CString {
    let mut bytes = text.into_bytes();
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    CString::new(bytes).unwrap_or_default()
}

/// Returns the text of an argument.
///
/// # Safety
/// `text` is null or a C string that lives as long as the result.
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::usage(what, "it is NULL; give a text"));
    }
    // SAFETY: the caller passes a C string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::usage(what, "it is not UTF-8"))
}

/// Returns the message of the last error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn inlane_error() -> *const c_char {
    // The text stays where it is until the next error of this thread replaces it.
    value_of(c"".as_ptr(), || MESSAGE.with(|message| message.borrow().as_ptr()))
}

/// Returns the version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn inlane_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
