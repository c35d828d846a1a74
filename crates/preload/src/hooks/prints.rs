//! The functions `dprintf` and `__dprintf_chk`, by which the C library writes formatted text to a descriptor.
//!
//! The functions are variadic, and stable Rust cannot define such functions. So each function is a few machine instructions:
//! they keep all registers that may hold arguments, call a function of Rust with the descriptor, and then jump to the C
//! library's function.

use crate::{direct, real};
use libc::{c_char, c_int, c_void};
use std::arch::naked_asm;
use std::sync::atomic::AtomicPtr;

/// The names of this module's hooks.
pub(super) const NAMES: &[&str] = &["dprintf", "__dprintf_chk"];

/// Defines the variadic function `$name`, which calls `$note` with the descriptor and jumps to the address that it returns.
macro_rules! print_hook {
    ($name:ident, $note:ident, $found:literal) => {
        extern "C" fn $note(fd: c_int) -> *mut c_void {
            static CACHE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            direct::note_unseen(fd);
            real::look_up($found, &CACHE)
        }

        #[doc = concat!("Replaces the C library's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the C library's function.
        // SAFETY: the name is meant to replace the C library's. The instructions keep to the calling convention.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        #[cfg(target_arch = "x86_64")]
        pub unsafe extern "C" fn $name(fd: c_int, format: *const c_char) -> c_int {
            naked_asm!(
                // The stack pointer is a multiple of 16 after these.
                "push rax",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "sub rsp, 128",
                "movups [rsp], xmm0",
                "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2",
                "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4",
                "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6",
                "movups [rsp + 112], xmm7",
                "call {note}",
                "mov r11, rax",
                "movups xmm0, [rsp]",
                "movups xmm1, [rsp + 16]",
                "movups xmm2, [rsp + 32]",
                "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]",
                "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]",
                "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "pop rax",
                "jmp r11",
                note = sym $note,
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
        pub unsafe extern "C" fn $name(fd: c_int, format: *const c_char) -> c_int {
            naked_asm!(
                "stp x29, x30, [sp, #-208]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #80]",
                "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]",
                "stp q6, q7, [sp, #176]",
                "bl {note}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp q0, q1, [sp, #80]",
                "ldp q2, q3, [sp, #112]",
                "ldp q4, q5, [sp, #144]",
                "ldp q6, q7, [sp, #176]",
                "ldp x29, x30, [sp], #208",
                "br x16",
                note = sym $note,
            )
        }
    };
}

print_hook!(dprintf, note_dprintf, c"dprintf");
print_hook!(__dprintf_chk, note_dprintf_chk, c"__dprintf_chk");
