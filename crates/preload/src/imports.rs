//! Functions that Rust's standard library calls, under which a library of glibc would not load into a program
//! of musl.
//!
//! One file serves both C libraries. musl's dynamic linker takes itself for `libc.so.6` and ignores versions of
//! symbols. So this library may need no other file, and only functions that both C libraries have. But the
//! standard library's unwinder is in libgcc_s.so.1, and the linker would also add glibc's dynamic linker. The
//! functions here take the place of those imports, and look up the real functions when they are called. They
//! are hidden, so the program does not see them.
//!
//! They are called after a panic, and when pthread_cancel of glibc unwinds a thread through this library.

use crate::real::look_up;
use libc::c_void;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

macro_rules! imports {
    ($(fn $name:ident;)*) => {$(
        /// Calls the unwinder's or the C library's function of this name. Ends the program if there is none.
        // SAFETY: the name is meant for the linker, which takes this function for that of another library.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the names of the unwinder's functions")]
        unsafe extern "C-unwind" fn $name(a: usize, b: usize, c: usize) -> usize {
            static CACHE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("the string has one zero byte, at its end"),
            };
            let function = find(NAME, &CACHE);
            // SAFETY: these functions have at most three arguments of a register each, and return at most one.
            // x86-64 and AArch64 allow further arguments. The caller upholds the function's contract.
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

/// Returns the function `name` of the program's libraries, or of the unwinder's library, which it loads if
/// needed. Ends the program if there is none.
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
