//! Reports the failure of a connection as POLLERR.
//!
//! The kernel reports POLLERR for a UNIX socket only if its peer was closed with unread bytes. The engine's end of a pair seldom has
//! such bytes when a connection fails, for example by a reset. So the kernel reports POLLHUP only, and this module adds POLLERR.

use crate::polling::is_offloaded;
use crate::{epoll, flags};
use libc::{c_int, epoll_event, nfds_t, pollfd};
use std::os::fd::RawFd;

/// Adds POLLERR to the events of failed connections. `found` is the result of poll(2) for these descriptors, and the return value.
///
/// # Safety
/// If `found` is above 0, `descriptors` points to `count` structures that the kernel has filled. They may be unaligned.
#[inline]
pub unsafe fn report_polled(found: c_int, descriptors: *mut pollfd, count: nfds_t) -> c_int {
    const HANGUP: i16 = libc::POLLHUP;
    const ERROR: i16 = libc::POLLERR;
    let count = if found > 0 { count as usize } else { 0 };
    for index in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let place = descriptors.add(index);
            let mut descriptor = place.read_unaligned();
            if descriptor.revents & (HANGUP | ERROR) == HANGUP && has_failed(descriptor.fd) {
                descriptor.revents |= ERROR;
                place.write_unaligned(descriptor);
            }
        }
    }
    found
}

/// Adds EPOLLERR to the events of failed connections. `found` is the number of `events` that the kernel has stored for the
/// epoll instance `instance`, or -1. Returns `found`.
///
/// # Safety
/// If `found` is above 0, `events` points to that many structures. They may be unaligned.
#[inline]
pub unsafe fn report_events(found: c_int, instance: RawFd, events: *mut epoll_event) -> c_int {
    const HANGUP: u32 = libc::EPOLLHUP as u32;
    const ERROR: u32 = libc::EPOLLERR as u32;
    for index in 0..usize::try_from(found).unwrap_or(0) {
        // SAFETY: the caller's promise.
        unsafe {
            let place = events.add(index);
            let mut event = place.read_unaligned();
            if event.events & (HANGUP | ERROR) == HANGUP
                && epoll::descriptor_of(instance, event.u64).is_some_and(has_failed)
            {
                event.events |= ERROR;
                place.write_unaligned(event);
            }
        }
    }
    found
}

/// Returns true if `fd` is a connection that has failed, and the program has not read the error yet. Leaves errno unchanged.
#[cold]
fn has_failed(fd: RawFd) -> bool {
    is_offloaded(fd) && flags::has_unread_error(fd)
}
