//! Holds signals back while a call waits actively.
//!
//! A signal that arrives while a thread sleeps in recv or poll interrupts the call. During an active wait no such call exists, so the
//! interruption would be lost, and the thread would sleep although the program's handler has run. So signals are blocked
//! during the wait. Afterwards, the caller learns whether a held signal interrupts the call.

use std::mem::MaybeUninit;

/// Signals of errors in the thread itself. They cannot wait.
const ERRORS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// The calling thread's signals are blocked until [`Held::release`].
#[must_use]
pub struct Held {
    before: libc::sigset_t,
}

impl Held {
    /// Blocks the calling thread's signals.
    pub fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `all` is initialised first. An all-zero set is valid, if the second call should fail.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in ERRORS {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init() }
        }
    }

    /// Unblocks the signals, so that handlers of held signals run now. If `asks` is set, returns true if one of them interrupts the
    /// program's call: it has a handler without SA_RESTART.
    pub fn release(self, asks: bool) -> bool {
        let interrupts = asks && self.interrupts();
        // SAFETY: the set was initialised.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
        interrupts
    }

    fn interrupts(&self) -> bool {
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is written if the call succeeds, and read only then.
        let pending = unsafe {
            if libc::sigpending(pending.as_mut_ptr()) != 0 {
                return false;
            }
            pending.assume_init()
        };
        (1..libc::SIGRTMAX()).any(|signal| {
            let mut action = MaybeUninit::<libc::sigaction>::uninit();
            // SAFETY: the sets are initialised. The structure is written if the call succeeds, and read only
            // then.
            unsafe {
                libc::sigismember(&pending, signal) == 1
                    && libc::sigismember(&self.before, signal) == 0
                    && libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
                    && interrupts(&action.assume_init())
            }
        })
    }
}

/// Returns true if a signal with this action makes a receive fail with EINTR.
fn interrupts(action: &libc::sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) && action.sa_flags & libc::SA_RESTART == 0
}
