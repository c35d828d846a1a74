//! Names the packet function if the process crashes in the user's compiled code, which may access any memory.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The signals for faults of the processor: invalid memory accesses, divisions by zero and invalid
/// instructions.
const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// The message that the handler prints. It is allocated before the handler can run.
static MESSAGE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// The action of each signal of [`SIGNALS`] before the handler was installed.
static FORMER: [AtomicPtr<libc::sigaction>; SIGNALS.len()] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS.len()];

/// Installs signal handlers that name the function's `file` if the process crashes. Only the first call has
/// an effect.
pub(super) fn explain(file: &str) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let message = format!(
            "inlane: crashed, most likely in the packet function {file}; check that the function stays within the packet's \
             length and its state, and never divides by zero\n"
        );
        let message: &'static mut [u8] = message.into_bytes().leak();
        LENGTH.store(message.len(), Ordering::Relaxed);
        MESSAGE.store(message.as_mut_ptr(), Ordering::Release);
        for (&signal, former) in SIGNALS.iter().zip(&FORMER) {
            let mut before = MaybeUninit::<libc::sigaction>::uninit();
            // SAFETY: an all-zero sigaction is valid.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = handler as extern "C" fn(c_int) as libc::sighandler_t;
            // Run the handler on another stack, because after a stack overflow, the thread's own stack has no
            // room for it.
            action.sa_flags = libc::SA_ONSTACK;
            // SAFETY: both structures outlive the calls. `before` is written before it is read.
            unsafe {
                if libc::sigaction(signal, std::ptr::null(), before.as_mut_ptr()) == 0 {
                    former.store(Box::leak(Box::new(before.assume_init())), Ordering::Release);
                    libc::sigaction(signal, &action, std::ptr::null_mut());
                }
            }
        }
    });
}

/// Writes the message and restores the signal's former action. The faulting instruction then raises the
/// signal again. Calls only async-signal-safe functions.
extern "C" fn handler(signal: c_int) {
    let (message, length) = (MESSAGE.load(Ordering::Acquire), LENGTH.load(Ordering::Relaxed));
    let former =
        SIGNALS.iter().position(|&one| one == signal).map(|index| FORMER[index].load(Ordering::Acquire));
    // SAFETY: the message is never freed. The former action was stored before this handler was installed.
    unsafe {
        libc::write(libc::STDERR_FILENO, message.cast(), length);
        libc::sigaction(signal, former.unwrap_or(std::ptr::null_mut()), std::ptr::null_mut());
    }
}
