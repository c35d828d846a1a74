//! The functions that start programs and take a list of arguments: `execl`, `execlp` and `execle`.
//!
//! The functions are variadic, and any number of arguments may follow the path. Stable Rust cannot define such
//! functions. So each function is a few machine instructions: they store the arguments in registers right below
//! the arguments on the stack. All arguments then form one array, which a function of Rust uses.

use super::programs::{execv, execve, execvp};
use libc::{c_char, c_int};
use std::arch::naked_asm;

/// The names of this module's hooks.
pub(super) const NAMES: &[&str] = &["execl", "execlp", "execle"];

type Array = *const *const c_char;

/// Defines the variadic function `$name`, which calls `$body` with its first argument and the array of the others.
macro_rules! list_hook {
    ($name:ident, $body:ident) => {
        #[doc = concat!("Replaces the C library's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the C library's function.
        // SAFETY: the name is meant to replace the C library's. The instructions keep to the calling convention.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        #[cfg(target_arch = "x86_64")]
        pub unsafe extern "C" fn $name(path: *const c_char) -> c_int {
            naked_asm!(
                // Take the return address from between the arguments, and keep it below them.
                "pop r10",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r10",
                // The stack pointer must be a multiple of 16, as before the caller pushed the return address.
                "call {body}",
                "pop r10",
                "add rsp, 40",
                "push r10",
                "ret",
                body = sym $body,
            )
        }

        #[doc = concat!("Replaces the C library's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the C library's function.
        // SAFETY: the name is meant to replace the C library's. The instructions keep to the calling convention.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        #[cfg(target_arch = "aarch64")]
        pub unsafe extern "C" fn $name(path: *const c_char) -> c_int {
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {body}",
                "ldp x29, x30, [sp], #80",
                "ret",
                body = sym $body,
            )
        }
    };
}

list_hook!(execl, start);
list_hook!(execlp, start_found);
list_hook!(execle, start_with_environment);

unsafe extern "C" fn start(path: *const c_char, arguments: Array) -> c_int {
    // SAFETY: the program's arguments, of which the last is null.
    unsafe { execv(path, arguments) }
}

unsafe extern "C" fn start_found(file: *const c_char, arguments: Array) -> c_int {
    // SAFETY: the program's arguments, of which the last is null.
    unsafe { execvp(file, arguments) }
}

unsafe extern "C" fn start_with_environment(path: *const c_char, arguments: Array) -> c_int {
    // SAFETY: the program's arguments end with null. The environment follows them.
    unsafe {
        let mut count = 0;
        while !(*arguments.add(count)).is_null() {
            count += 1;
        }
        execve(path, arguments, (*arguments.add(count + 1)).cast())
    }
}
