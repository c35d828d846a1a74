//! Waits in poll(2) and ppoll(2).

use super::MOST_POLLED;
use super::failed::report_polled;
use crate::polling::{Entry, offloaded, poll_then_sleep, time_ns};
use crate::time::{of_milliseconds, of_timespec, to_timespec};
use crate::{direct, real};
use inlane_offload_protocol::address::is_possible;
use libc::{c_int, nfds_t, pollfd, sigset_t, timespec};
use std::ptr::null;

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
unsafe fn leave_polled(descriptors: *const pollfd, count: nfds_t) {
    if time_ns() > 0 && is_array(descriptors, count) {
        // SAFETY: the caller guarantees `count` readable structures.
        let descriptors = unsafe { std::slice::from_raw_parts(descriptors, count as usize) };
        descriptors.iter().for_each(|descriptor| direct::leave(descriptor.fd));
    }
}

/// Implements poll(2).
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's arguments. The timeout of ppoll lives through its call.
    unsafe {
        leave_polled(descriptors, count);
        let entry = if timeout == 0 { None } else { polled(descriptors, count) };
        let Some(entry) = entry else {
            return report_polled(real::poll(descriptors, count, timeout), descriptors, count);
        };
        let timeout_ns = of_milliseconds(timeout);
        let found = poll_then_sleep(
            &entry.patience,
            timeout_ns,
            || real::poll(descriptors, count, 0),
            |before, passed| {
                let rest = to_timespec(timeout_ns.saturating_sub(passed));
                let rest = if timeout < 0 { null() } else { &raw const rest };
                real::ppoll(descriptors, count, rest, before)
            },
        );
        report_polled(found, descriptors, count)
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
    // SAFETY: the program's arguments. The timeout of ppoll lives through its call.
    unsafe {
        leave_polled(descriptors, count);
        let timeout_ns = of_timespec(timeout).filter(|&limit| limit > 0);
        let (Some(limit), Some(entry)) = (timeout_ns, timeout_ns.and_then(|_| polled(descriptors, count)))
        else {
            return report_polled(real::ppoll(descriptors, count, timeout, mask), descriptors, count);
        };
        let found = poll_then_sleep(
            &entry.patience,
            limit,
            || real::poll(descriptors, count, 0),
            |before, passed| {
                let rest = to_timespec(limit.saturating_sub(passed));
                let rest = if timeout.is_null() { null() } else { &raw const rest };
                real::ppoll(descriptors, count, rest, if mask.is_null() { before } else { mask })
            },
        );
        report_polled(found, descriptors, count)
    }
}
