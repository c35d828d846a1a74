//! Waits for events of offloaded sockets in epoll_wait, poll and select.
//!
//! Sleeping is expensive, because the engine must wake a sleeping thread for each event. So the library first
//! polls: for a short time, it asks the kernel for events repeatedly without sleeping. The kernel alone
//! decides which events there are. Therefore all of its rules hold, such as those of edge-triggered and
//! one-shot registrations.

use crate::direct::now_ns;
use crate::epoll::{deferred, ready};
use crate::signals::BlockedSignals;
use crate::{direct, errno, real, set_errno};
use inlane_offload_protocol::address::is_possible;
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::os::fd::RawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The number of descriptors in the table. Waits for events of higher descriptors do not poll.
const MOST: usize = 1024;
/// The most descriptors for which a thread polls before it sleeps in poll(2) or select(2). With more
/// descriptors, each polling call takes too long.
const MOST_POLLED: usize = 64;
/// A thread that polls looks at shared memory in each round. It also asks the kernel for events once in this
/// many rounds.
const LOOKS: u32 = 16;
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

struct Entry {
    /// A hint. True if the library, when it last used the descriptor, found an offloaded socket or an epoll
    /// instance that watches one. The program may have closed the descriptor since.
    offloaded: AtomicBool,
    patience: Patience,
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

fn entry(fd: RawFd) -> Option<&'static Entry> {
    usize::try_from(fd).ok().and_then(|fd| ENTRIES.get(fd))
}

/// Returns the entry of `fd` if `fd` is an offloaded socket, or an epoll instance that watches an offloaded
/// socket. Returns `None` for other descriptors.
fn offloaded(fd: RawFd) -> Option<&'static Entry> {
    entry(fd).filter(|entry| entry.offloaded.load(Ordering::Relaxed))
}

/// Returns true if `fd` was an offloaded socket when the library last used it.
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
/// Signals are blocked while the thread polls. `sleep` must unblock them in the same system call in which it
/// sleeps. A signal that arrives while the thread polls then interrupts the program's call, as it does
/// without this library.
fn poll_then_sleep(
    patience: &Patience,
    timeout_ns: u64,
    mut look: impl FnMut() -> c_int,
    sleep: impl FnOnce(&sigset_t, u64) -> c_int,
) -> c_int {
    let found = look();
    if found != 0 {
        return found;
    }
    let signals = BlockedSignals::new();
    let start = now_ns();
    let limit = time_ns().min(timeout_ns);
    let (mut found, mut passed) = (0, 0);
    while found == 0 && passed < limit {
        std::hint::spin_loop();
        found = look();
        passed = now_ns().saturating_sub(start);
    }
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

/// Returns the nanoseconds of a timeout in milliseconds. A negative timeout has no limit.
fn of_milliseconds(timeout: c_int) -> u64 {
    u64::try_from(timeout).map_or(u64::MAX, |timeout| timeout * 1_000_000)
}

/// Returns the nanoseconds of `seconds` and `nanoseconds`, or `None` if the kernel refuses such a timeout.
fn of_parts(seconds: i64, nanoseconds: i64) -> Option<u64> {
    let nanoseconds = u64::try_from(nanoseconds).ok().filter(|&part| part < 1_000_000_000)?;
    Some(u64::try_from(seconds).ok()?.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

/// Converts a timeout to nanoseconds. Returns `u64::MAX` for a null pointer, which means no limit. Returns
/// `None` if the kernel would refuse the timeout.
unsafe fn of_timespec(timeout: *const timespec) -> Option<u64> {
    if timeout.is_null() {
        return Some(u64::MAX);
    }
    if !is_possible(timeout, size_of::<timespec>()) {
        return None;
    }
    // SAFETY: the program's pointer, which is not null.
    let timeout = unsafe { timeout.read_unaligned() };
    of_parts(timeout.tv_sec, timeout.tv_nsec)
}

fn to_timespec(nanoseconds: u64) -> timespec {
    timespec { tv_sec: (nanoseconds / 1_000_000_000) as i64, tv_nsec: (nanoseconds % 1_000_000_000) as i64 }
}

/// Implements epoll_wait(2), and epoll_pwait(2) if `mask` is not null.
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn epoll(
    instance: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let wait = |timeout, mask: *const sigset_t| {
        let _entered = deferred::enter();
        // SAFETY: the program's arguments.
        unsafe {
            match mask.is_null() {
                true => real::epoll_wait(instance, events, room, timeout),
                false => real::epoll_pwait(instance, events, room, timeout, mask),
            }
        }
    };
    // Leave calls with an invalid array to the kernel, because the kernel refuses them. This function must
    // not write to such an array.
    let usable = room > 0 && is_possible(events, room as usize * size_of::<epoll_event>());
    let Some(entry) = offloaded(instance).filter(|_| usable) else { return wait(timeout, mask) };
    // SAFETY: the program passes an array of `room` events for this call to fill.
    let shared = unsafe { ready::begin(instance, events, room, timeout != 0) };
    // Look at shared memory first. Then ask the kernel, if `asks` is true or shared memory had no event. In
    // the reverse order, this could miss bytes that the engine moves from a slot to the socket pair between
    // both steps.
    let look = |asks: bool, mask| {
        let found = shared.map_or(0, |shared| shared.look());
        if found > 0 && !asks {
            return found;
        }
        if let Some(shared) = shared {
            shared.note_kernel();
        }
        match wait(0, mask) {
            // The kernel has found nothing, so the events of shared memory are still in the program's array.
            0 => found,
            result => result,
        }
    };
    let asks = shared.is_some_and(|shared| shared.needs_kernel());
    if timeout == 0 {
        return look(asks, mask);
    }
    let stop = || shared.map_or(0, |shared| shared.stop());
    if let Some(shared) = shared {
        let found = if asks { look(true, null()) } else { shared.look() };
        if found != 0 {
            return found;
        }
    }
    if time_ns() == 0 || entry.patience.skips() {
        let found = stop();
        return if found > 0 { found } else { wait(timeout, mask) };
    }
    let mut looks = 0u32;
    poll_then_sleep(
        &entry.patience,
        of_milliseconds(timeout),
        || {
            // Ask the kernel only once in LOOKS rounds, because a look at shared memory costs far less than a
            // system call.
            let asks = looks.is_multiple_of(LOOKS);
            looks = looks.wrapping_add(1);
            match shared {
                Some(shared) if !asks => shared.look(),
                _ => look(asks, null()),
            }
        },
        |before, passed| {
            let found = stop();
            if found > 0 {
                return found;
            }
            let rest = of_milliseconds(timeout).saturating_sub(passed).div_ceil(1_000_000);
            wait(
                if timeout > 0 { rest as c_int } else { timeout },
                if mask.is_null() { before } else { mask },
            )
        },
    )
}

/// Returns the entry of the first offloaded socket among the polled descriptors. Returns `None` if there is
/// none. Also returns `None` if the wait must sleep without polling first, for example because polling rarely
/// helped before.
unsafe fn polled(descriptors: *const pollfd, count: nfds_t) -> Option<&'static Entry> {
    if time_ns() == 0 || count as usize > MOST_POLLED || !is_array(descriptors, count) {
        return None;
    }
    // SAFETY: the caller guarantees `count` readable structures.
    let descriptors = unsafe { std::slice::from_raw_parts(descriptors, count as usize) };
    let entry = descriptors.iter().find_map(|descriptor| offloaded(descriptor.fd))?;
    (!entry.patience.skips()).then_some(entry)
}

/// Returns false if the kernel certainly refuses these arguments of a poll.
fn is_array(descriptors: *const pollfd, count: nfds_t) -> bool {
    let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(size_of::<pollfd>()));
    bytes.is_some_and(|bytes| is_possible(descriptors, bytes))
}

/// Lets the engine move all received bytes of the polled descriptors from shared memory to their socket
/// pairs. The kernel's poll sees only the bytes in the pairs.
unsafe fn withdraw_polled(descriptors: *const pollfd, count: nfds_t) {
    if time_ns() > 0 && is_array(descriptors, count) {
        // SAFETY: the caller guarantees `count` readable structures.
        let descriptors = unsafe { std::slice::from_raw_parts(descriptors, count as usize) };
        descriptors.iter().for_each(|descriptor| direct::withdraw(descriptor.fd));
    }
}

/// Implements poll(2).
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let _entered = deferred::enter();
    // SAFETY: the program's arguments. The timeout of ppoll lives through its call.
    unsafe {
        withdraw_polled(descriptors, count);
        let entry = if timeout == 0 { None } else { polled(descriptors, count) };
        let Some(entry) = entry else { return real::poll(descriptors, count, timeout) };
        let timeout_ns = of_milliseconds(timeout);
        poll_then_sleep(
            &entry.patience,
            timeout_ns,
            || real::poll(descriptors, count, 0),
            |before, passed| {
                let rest = to_timespec(timeout_ns.saturating_sub(passed));
                let rest = if timeout < 0 { null() } else { &raw const rest };
                real::ppoll(descriptors, count, rest, before)
            },
        )
    }
}

/// Implements ppoll(2).
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn ppoll(
    descriptors: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let _entered = deferred::enter();
    // SAFETY: the program's arguments. The timeout of ppoll lives through its call.
    unsafe {
        withdraw_polled(descriptors, count);
        let timeout_ns = of_timespec(timeout).filter(|&limit| limit > 0);
        let (Some(limit), Some(entry)) = (timeout_ns, timeout_ns.and_then(|_| polled(descriptors, count)))
        else {
            return real::ppoll(descriptors, count, timeout, mask);
        };
        poll_then_sleep(
            &entry.patience,
            limit,
            || real::poll(descriptors, count, 0),
            |before, passed| {
                let rest = to_timespec(limit.saturating_sub(passed));
                let rest = if timeout.is_null() { null() } else { &raw const rest };
                real::ppoll(descriptors, count, rest, if mask.is_null() { before } else { mask })
            },
        )
    }
}

/// The three descriptor sets of a select: for reading, for writing, and for exceptions.
type Sets = [*mut fd_set; 3];

/// Returns false if a set has an address at which no program has memory. The kernel refuses such a call with
/// EFAULT. Sets may be null.
fn are_possible(sets: Sets) -> bool {
    sets.iter().all(|&set| set.is_null() || is_possible(set, size_of::<u64>()))
}

/// Ends the posted receives of all descriptors in the sets of a select. Bytes for a posted receive arrive in
/// shared memory, and the kernel cannot report them.
unsafe fn withdraw_selected(count: c_int, sets: Sets) {
    if time_ns() == 0 || !are_possible(sets) {
        return;
    }
    for fd in 0..count.clamp(0, libc::FD_SETSIZE as c_int) {
        // SAFETY: the caller guarantees that each set that is not null has at least `count` bits.
        if sets.iter().any(|&set| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }) {
            direct::withdraw(fd);
        }
    }
}

/// Returns the entry of the first offloaded socket in the sets of a select. Returns `None` if the wait must
/// not poll.
unsafe fn selected(count: c_int, sets: Sets) -> Option<&'static Entry> {
    let few = usize::try_from(count).is_ok_and(|count| count <= MOST_POLLED);
    if time_ns() == 0 || !few || !are_possible(sets) {
        return None;
    }
    // SAFETY: the caller guarantees that each set that is not null has at least `count` bits.
    let contains = |fd| sets.iter().any(|&set| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) });
    let entry = (0..count).filter(|&fd| contains(fd)).find_map(offloaded)?;
    (!entry.patience.skips()).then_some(entry)
}

/// Waits like select(2), but for at most `timeout_ns`. Uses the signal mask `mask` unless it is null. Stores
/// the nanoseconds that the call took in `passed`.
unsafe fn wait_selected(
    entry: &Entry,
    count: c_int,
    sets: Sets,
    timeout_ns: u64,
    mask: *const sigset_t,
) -> c_int {
    // The kernel accesses whole words of the sets. Descriptors below MOST_POLLED need one word of 64 bits.
    const { assert!(MOST_POLLED == 64) };
    // SAFETY: the kernel reads and writes whole words, so each set that is not null has at least one word of
    // 64 bits.
    let words = sets.map(|set| (!set.is_null()).then(|| unsafe { set.cast::<u64>().read() }));
    let restore = || {
        for (set, word) in sets.iter().zip(words) {
            if let Some(word) = word {
                // SAFETY: as above.
                unsafe { set.cast::<u64>().write(word) };
            }
        }
    };
    let [read, write, except] = sets;
    poll_then_sleep(
        &entry.patience,
        timeout_ns,
        || {
            restore();
            let mut none = timeval { tv_sec: 0, tv_usec: 0 };
            // SAFETY: the program's sets. The timeout lives through the call.
            unsafe { real::select(count, read, write, except, &mut none) }
        },
        |before, passed| {
            restore();
            let rest = to_timespec(timeout_ns.saturating_sub(passed));
            let rest = if timeout_ns == u64::MAX { null() } else { &raw const rest };
            let mask = if mask.is_null() { before } else { mask };
            // SAFETY: the program's sets and mask. The timeout lives through the call.
            unsafe { real::pselect(count, read, write, except, rest, mask) }
        },
    )
}

/// Implements select(2). Subtracts the elapsed time from the program's timeout, as Linux does. In programs
/// that use musl, leaves the timeout unchanged, as musl does.
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn select(count: c_int, sets: Sets, timeout: *mut timeval) -> c_int {
    let [read, write, except] = sets;
    let _entered = deferred::enter();
    // SAFETY: the program's arguments.
    unsafe {
        withdraw_selected(count, sets);
        let limit = match timeout.is_null() {
            true => Some(u64::MAX),
            false if !is_possible(timeout, size_of::<timeval>()) => None,
            false => of_parts((*timeout).tv_sec, (*timeout).tv_usec.saturating_mul(1000)),
        };
        let limit = limit.filter(|&limit| limit > 0);
        let (Some(limit), Some(entry)) = (limit, limit.and_then(|_| selected(count, sets))) else {
            return real::select(count, read, write, except, timeout);
        };
        let start = now_ns();
        let result = wait_selected(entry, count, sets, limit, null_mut());
        if !timeout.is_null() && !real::is_musl() {
            let rest = limit.saturating_sub(now_ns().saturating_sub(start));
            (*timeout).tv_sec = (rest / 1_000_000_000) as i64;
            (*timeout).tv_usec = (rest % 1_000_000_000 / 1000) as i64;
        }
        result
    }
}

/// Implements pselect(2).
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn pselect(count: c_int, sets: Sets, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    let [read, write, except] = sets;
    let _entered = deferred::enter();
    // SAFETY: the program's arguments.
    unsafe {
        withdraw_selected(count, sets);
        let limit = of_timespec(timeout).filter(|&limit| limit > 0);
        match limit.and_then(|limit| Some((limit, selected(count, sets)?))) {
            Some((limit, entry)) => wait_selected(entry, count, sets, limit, mask),
            None => real::pselect(count, read, write, except, timeout, mask),
        }
    }
}
