//! Polls for events before a thread sleeps.
//!
//! Sleeping is expensive, because the engine must wake a sleeping thread for each event. So the library first
//! polls: for a short time, it asks for events repeatedly without sleeping.

use crate::signals::BlockedSignals;
use crate::time::now_ns;
use crate::{errno, set_errno};
use libc::{c_int, sigset_t};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The number of descriptors in the table. Waits for events of higher descriptors do not poll.
const MOST: usize = 32768;

/// A thread polls for this many nanoseconds before it blocks signals, because blocking and unblocking them costs two system
/// calls. A signal in this time has the effect of a signal just before the program's call.
pub const BRIEF_NS: u64 = 10_000;

/// Limits how many waits skip polling after polling found nothing: at most 2 to this power, minus 1, which is
/// 63.
const MOST_SKIPPED: u32 = 6;

/// Decides whether a thread polls before it sleeps. Each time polling finds nothing, about twice as many of
/// the next waits as before skip the polling.
pub struct Patience {
    /// The number of consecutive waits whose polling found nothing, at most `MOST_SKIPPED`.
    vain: AtomicU32,
    /// The number of coming waits that must sleep in the kernel without polling first.
    skip: AtomicU32,
}

impl Patience {
    /// Creates the state for a new descriptor. Its first wait polls before it sleeps.
    pub const fn new() -> Self {
        Self { vain: AtomicU32::new(0), skip: AtomicU32::new(0) }
    }

    /// Returns true if this wait must sleep in the kernel at once, because polling found nothing in earlier
    /// waits. Call this once for each wait: each call counts as one wait.
    #[inline]
    pub fn skips(&self) -> bool {
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
        }
        skip > 0
    }

    /// Records the end of an active wait. `arrived` is true if polling found something.
    #[inline]
    pub fn note(&self, arrived: bool) {
        let vain = if arrived { 0 } else { (self.vain.load(Ordering::Relaxed) + 1).min(MOST_SKIPPED) };
        self.vain.store(vain, Ordering::Relaxed);
        self.skip.store((1 << vain) - 1, Ordering::Relaxed);
    }
}

pub struct Entry {
    /// A hint. True if the library, when it last used the descriptor, found an offloaded socket or an epoll
    /// instance that watches one. The program may have closed the descriptor since.
    offloaded: AtomicBool,
    pub patience: Patience,
}

static ENTRIES: [Entry; MOST] =
    [const { Entry { offloaded: AtomicBool::new(false), patience: Patience::new() } }; MOST];

/// How long a thread polls before it sleeps in the kernel, in nanoseconds. The engine chooses this time. If
/// it is 0, threads do not poll.
static WAIT_NS: AtomicU64 = AtomicU64::new(0);

/// Sets how long a thread polls before it sleeps: `microseconds`, at most 1,000.
pub fn set_time(microseconds: i32) {
    WAIT_NS.store(microseconds.clamp(0, 1000) as u64 * 1000, Ordering::Relaxed);
}

/// Returns the time for which a thread polls before it sleeps, in nanoseconds. 0 if it must not poll.
pub fn time_ns() -> u64 {
    WAIT_NS.load(Ordering::Relaxed)
}

#[inline]
fn entry(fd: RawFd) -> Option<&'static Entry> {
    usize::try_from(fd).ok().and_then(|fd| ENTRIES.get(fd))
}

/// Returns the entry of `fd` if `fd` is an offloaded socket, or an epoll instance that watches an offloaded
/// socket. Returns `None` for other descriptors.
#[inline]
pub fn offloaded(fd: RawFd) -> Option<&'static Entry> {
    entry(fd).filter(|entry| entry.offloaded.load(Ordering::Relaxed))
}

/// Returns true if `fd` was an offloaded socket when the library last used it.
#[inline]
pub fn is_offloaded(fd: RawFd) -> bool {
    offloaded(fd).is_some()
}

/// Records that `fd` is an offloaded socket.
pub fn note_offloaded(fd: RawFd) {
    if let Some(entry) = entry(fd) {
        entry.offloaded.store(true, Ordering::Relaxed);
    }
}

/// Records that the epoll instance `instance` watches `fd`. If `fd` is an offloaded socket, waits on the
/// instance may poll like waits on the socket.
#[inline]
pub fn note_watched(instance: RawFd, fd: RawFd) {
    if offloaded(fd).is_some() {
        note_offloaded(instance);
    }
}

/// Calls `look` until it finds events or fails. `look` asks the kernel for events without sleeping. Polls for
/// at most `timeout_ns`, and at most for the time that the engine asks programs to poll. If nothing was
/// found, calls `sleep` with the thread's signal mask and the nanoseconds that have passed. Returns the last
/// result.
///
/// Signals are blocked while the thread polls, except in the first [`BRIEF_NS`]. `sleep` must unblock them in the same system call in which it
/// sleeps. A signal that arrives while the thread polls then interrupts the program's call, as it does
/// without this library.
pub fn poll_then_sleep(
    patience: &Patience,
    timeout_ns: u64,
    mut look: impl FnMut() -> c_int,
    sleep: impl FnOnce(&sigset_t, u64) -> c_int,
) -> c_int {
    let found = look();
    if found != 0 {
        return found;
    }
    let start = now_ns();
    let limit = time_ns().min(timeout_ns);
    let (mut found, mut passed) = (0, 0);
    let mut poll_until = |limit| {
        while found == 0 && passed < limit {
            std::hint::spin_loop();
            found = look();
            passed = now_ns().saturating_sub(start);
        }
        (found, passed)
    };
    let (found, _) = poll_until(limit.min(BRIEF_NS));
    if found != 0 {
        patience.note(true);
        return found;
    }
    let signals = BlockedSignals::new();
    let (mut found, passed) = poll_until(limit);
    patience.note(found != 0);
    if found == 0 {
        signals.discard_ignored();
        found = sleep(signals.before(), passed);
    }
    let failure = errno();
    signals.release(false);
    set_errno(failure);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_in_vain_lets_more_and_more_waits_sleep() {
        let patience = Patience::new();
        let mut skipped = Vec::new();
        for _ in 0..9 {
            patience.note(false);
            skipped.push(std::iter::repeat_with(|| patience.skips()).take_while(|&skips| skips).count());
        }
        assert_eq!(skipped, [1, 3, 7, 15, 31, 63, 63, 63, 63]);
        patience.note(true);
        assert!(!patience.skips());
    }
}
