//! Blocks a thread's signals while a call polls.
//!
//! A signal that arrives while a thread sleeps in recv or poll interrupts the call. A thread that polls is
//! not in such a call. The signal's handler would run, and the thread would then go to sleep instead of
//! returning EINTR. So the library blocks signals while it polls. Afterwards, [`BlockedSignals::release`]
//! returns whether a blocked signal must interrupt the call.

use std::mem::MaybeUninit;

/// Signals that report an error of the thread itself. They are never blocked, because the thread cannot
/// continue before such a signal is handled.
const ERRORS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// A guard: the calling thread's signals are blocked until [`BlockedSignals::release`].
#[must_use]
pub struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    /// Blocks the signals of the calling thread until [`BlockedSignals::release`]. Signals that report the
    /// thread's own errors stay unblocked.
    pub fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `sigfillset` initialises `all`. `before` is all zero, which is a valid set, so it is valid
        // even if the last call fails.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in ERRORS {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init() }
        }
    }

    /// Returns the thread's signal mask as it was before [`BlockedSignals::new`].
    pub fn before(&self) -> &libc::sigset_t {
        &self.before
    }

    /// Restores the mask from before [`BlockedSignals::new`], so the handlers of pending signals run now. If
    /// `asks` is true, returns whether the program's call must fail with EINTR. It must if a pending signal's
    /// handler was installed without SA_RESTART. If `asks` is false, returns false.
    pub fn release(self, asks: bool) -> bool {
        let interrupts = asks && self.interrupts();
        // SAFETY: `new` has initialised `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
        interrupts
    }

    /// Discards the blocked signals that the process ignores, if no other signal is pending.
    ///
    /// The kernel discards an ignored signal when it arrives, unless the thread blocks the signal. A blocked
    /// signal stays pending. Calls such as epoll_pwait(2) then fail with EINTR, although no handler runs.
    pub fn discard_ignored(&self) {
        let mut any = false;
        let only_ignored = self.pending().all(|action| {
            any = true;
            matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
        });
        if any && only_ignored {
            let mut held = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: the masks are initialised: `before` by `new`, and `held` by the first call. The first call sets
            // the mask `before` and stores the present one in `held`. The second call restores it.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, held.as_mut_ptr());
                libc::pthread_sigmask(libc::SIG_SETMASK, held.as_ptr(), std::ptr::null_mut());
            }
        }
    }

    fn interrupts(&self) -> bool {
        self.pending().any(|action| interrupts(&action))
    }

    /// Returns the actions of the pending signals that were not blocked before [`BlockedSignals::new`].
    fn pending(&self) -> impl Iterator<Item = libc::sigaction> {
        let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: sigpending(2) fills the set. If it fails, the set stays all zero, which is an empty set.
        let pending = unsafe {
            libc::sigpending(pending.as_mut_ptr());
            pending.assume_init()
        };
        (1..=libc::SIGRTMAX()).filter_map(move |signal| {
            let mut action = MaybeUninit::<libc::sigaction>::uninit();
            // SAFETY: both sets are initialised. sigaction(2) fills the structure if it succeeds. The
            // structure is read only in that case.
            unsafe {
                let is_held = libc::sigismember(&pending, signal) == 1
                    && libc::sigismember(&self.before, signal) == 0
                    && libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0;
                is_held.then(|| action.assume_init())
            }
        })
    }
}

/// Returns true if a signal with this action makes a receive fail with EINTR. Returns false if the signal is
/// ignored, restarts the call, or has the default action.
fn interrupts(action: &libc::sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) && action.sa_flags & libc::SA_RESTART == 0
}

/// Returns true if the call that a signal has interrupted just now must continue, because the signal's handler was
/// installed with SA_RESTART. The kernel does not tell which signal it was. So all handlers count whose signals the
/// thread does not block. Returns false if one of them was installed without SA_RESTART, or if there is none, because
/// the handler has uninstalled itself.
pub fn restarts() -> bool {
    let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the call stores the mask. An all-zero set is valid, if the call fails.
    let blocked = unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), blocked.as_mut_ptr());
        blocked.assume_init()
    };
    let mut any = false;
    let restart = (1..=libc::SIGRTMAX()).all(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: the set is initialised. sigaction(2) fills the structure if it succeeds. The structure is read only in
        // that case.
        let action = unsafe {
            let is_known = libc::sigismember(&blocked, signal) == 0
                && libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0;
            is_known.then(|| action.assume_init())
        };
        any |= action.is_some_and(|action| !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN));
        !action.is_some_and(|action| interrupts(&action))
    });
    any && restart
}
