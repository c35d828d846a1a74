//! Waits in select(2) and pselect(2).

use super::MOST_POLLED;
use crate::polling::{Entry, offloaded, poll_then_sleep, time_ns};
use crate::time::{now_ns, of_parts, of_timespec, to_timespec};
use crate::{direct, real};
use inlane_offload_protocol::address::is_possible;
use libc::{c_int, fd_set, sigset_t, timespec, timeval};
use std::ptr::{null, null_mut};

/// The three descriptor sets of a select: for reading, for writing, and for exceptions.
pub type Sets = [*mut fd_set; 3];

/// Returns false if a set has an address at which no program has memory. The kernel refuses such a call with
/// EFAULT. Sets may be null.
fn are_possible(sets: Sets) -> bool {
    sets.iter().all(|&set| set.is_null() || is_possible(set, size_of::<u64>()))
}

/// Leaves the receive rings of all descriptors in the sets of a select, because the kernel cannot report bytes that are
/// there.
unsafe fn leave_selected(count: c_int, sets: Sets) {
    if time_ns() == 0 || !are_possible(sets) {
        return;
    }
    for fd in 0..count.clamp(0, libc::FD_SETSIZE as c_int) {
        // SAFETY: the caller guarantees that each set that is not null has at least `count` bits.
        if sets.iter().any(|&set| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }) {
            direct::leave(fd);
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
    // SAFETY: the program's arguments.
    unsafe {
        leave_selected(count, sets);
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
    // SAFETY: the program's arguments.
    unsafe {
        leave_selected(count, sets);
        let limit = of_timespec(timeout).filter(|&limit| limit > 0);
        match limit.and_then(|limit| Some((limit, selected(count, sets)?))) {
            Some((limit, entry)) => wait_selected(entry, count, sets, limit, mask),
            None => real::pselect(count, read, write, except, timeout, mask),
        }
    }
}
