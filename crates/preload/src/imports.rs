//! Replacements for functions that Rust's standard library imports but musl lacks. With them, one file of
//! this library works in programs of both C libraries, glibc and musl.
//!
//! musl's dynamic linker loads a library that was built for glibc under two conditions: the library needs no
//! file except `libc.so.6`, and no function that musl lacks. The standard library would need two more files:
//! libgcc_s.so.1, which unwinds the stack, and glibc's dynamic linker. The functions here have the names of
//! the functions in these files, and look up the real functions when they are called. They are hidden from
//! the program.
//!
//! The standard library calls them after a panic. It also calls them when glibc's pthread_cancel unwinds a
//! thread through functions of this library.

use crate::real::look_up;
use libc::c_void;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

macro_rules! imports {
    ($(fn $name:ident;)*) => {$(
        /// Calls the function of this name in the unwinder or the C library. Ends the program if there is
        /// none.
        // SAFETY: the linker is meant to use this function in place of the other library's.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the names of the unwinder's functions")]
        unsafe extern "C-unwind" fn $name(a: usize, b: usize, c: usize) -> usize {
            static CACHE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("the string has one zero byte, at its end"),
            };
            let function = find(NAME, &CACHE);
            // SAFETY: these functions have at most three arguments, and each argument and the result fit a
            // register. Passing unused argument registers is harmless on x86-64 and AArch64. The caller
            // upholds the function's contract.
            unsafe {
                let function: unsafe extern "C-unwind" fn(usize, usize, usize) -> usize =
                    std::mem::transmute(function);
                function(a, b, c)
            }
        }
        std::arch::global_asm!(concat!(".hidden ", stringify!($name)));
    )*};
}

imports! {
    fn _Unwind_Backtrace;
    fn _Unwind_GetDataRelBase;
    fn _Unwind_GetIP;
    fn _Unwind_GetIPInfo;
    fn _Unwind_GetLanguageSpecificData;
    fn _Unwind_GetRegionStart;
    fn _Unwind_GetTextRelBase;
    fn _Unwind_RaiseException;
    fn _Unwind_Resume;
    fn _Unwind_SetGR;
    fn _Unwind_SetIP;
    fn __tls_get_addr;
}

/// Returns the function `name` from the libraries that the program has loaded. If none has the function,
/// loads libgcc_s.so.1. Ends the program if libgcc_s.so.1 is missing.
fn find(name: &CStr, cache: &AtomicPtr<c_void>) -> *mut c_void {
    let mut found = look_up(name, cache);
    if found.is_null() {
        // SAFETY: terminated strings. The library stays loaded, because it is never closed.
        found = unsafe {
            let library = libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW);
            if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
        };
        cache.store(found, Ordering::Relaxed);
    }
    if found.is_null() {
        // SAFETY: has no preconditions.
        unsafe { libc::abort() }
    }
    found
}
