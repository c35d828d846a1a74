//! Waits in epoll_wait(2) and epoll_pwait(2).

use super::failed::report_events;
use crate::epoll::ready;
use crate::polling::{offloaded, poll_then_sleep, time_ns};
use crate::real;
use crate::time::of_milliseconds;
use inlane_offload_protocol::address::is_possible;
use libc::{c_int, epoll_event, sigset_t};
use std::ptr::null;

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
        // SAFETY: the program's arguments.
        unsafe {
            let found = match mask.is_null() {
                true => real::epoll_wait(instance, events, room, timeout),
                false => real::epoll_pwait(instance, events, room, timeout, mask),
            };
            report_events(found, instance, events)
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
        let result = wait(0, mask);
        if let Some(shared) = shared {
            shared.note_source(result > 0);
        }
        match result {
            // The kernel has found nothing, so the events of shared memory are still in the program's array.
            0 => found,
            result => result,
        }
    };
    let asks = shared.is_some_and(|shared| shared.needs_kernel());
    if timeout == 0 {
        return look(asks, mask);
    }
    let sleep = |timeout, mask| {
        let _asleep = match shared.map(|shared| shared.fall_asleep()) {
            Some(Err(found)) => return found,
            Some(Ok(asleep)) => asleep,
            None => None,
        };
        wait(timeout, mask)
    };
    if let Some(shared) = shared {
        let found = if asks { look(true, null()) } else { shared.look() };
        if found != 0 {
            return found;
        }
    }
    if time_ns() == 0 || entry.patience.skips() {
        return sleep(timeout, mask);
    }
    let mut looks = 1u32;
    poll_then_sleep(
        &entry.patience,
        of_milliseconds(timeout),
        || {
            // Ask the kernel only once in several rounds, because a look at shared memory costs far less than a
            // system call.
            let asks = looks.is_multiple_of(shared.map_or(1, |shared| shared.rounds()));
            looks = looks.wrapping_add(1);
            match shared {
                Some(shared) if !asks => shared.look(),
                _ => look(asks, null()),
            }
        },
        |before, passed| {
            let rest = of_milliseconds(timeout).saturating_sub(passed).div_ceil(1_000_000);
            sleep(
                if timeout > 0 { rest as c_int } else { timeout },
                if mask.is_null() { before } else { mask },
            )
        },
    )
}
