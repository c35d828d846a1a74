//! Functions that wait for events.

use crate::socket::relisten;
use crate::{direct, epoll, real, wait};
use libc::{
    c_int, c_long, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval,
};
use std::ptr::null;

/// Ends the program if an array of `count` descriptors does not fit `room` bytes, as the C library's checks do.
fn check_room(count: nfds_t, room: size_t) {
    if count > (room / size_of::<pollfd>()) as nfds_t {
        real::fail_check()
    }
}

hooks! {
    fn epoll_ctl(instance: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if operation != libc::EPOLL_CTL_DEL {
            // The connection may have got a slot since it was opened. `epoll` watches it only if the table has the slot.
            direct::slot(fd);
        }
        epoll::change(instance, operation, fd, event)
    }

    fn epoll_create(size: c_int) -> c_int {
        epoll::note_created(real::epoll_create(size))
    }

    fn epoll_create1(flags: c_int) -> c_int {
        epoll::note_created(real::epoll_create1(flags))
    }

    fn epoll_wait(instance: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int {
        relisten::wait_milliseconds(timeout, |timeout| wait::epoll(instance, events, room, timeout, null()))
    }

    fn epoll_pwait(instance: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        relisten::wait_milliseconds(timeout, |timeout| wait::epoll(instance, events, room, timeout, mask))
    }

    fn epoll_pwait2(instance: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        // Older versions of the C libraries lack this function, so make the system call. The kernel's signal set has 8 bytes.
        relisten::wait_timespec(timeout, |timeout| {
            let found = real::syscall(libc::SYS_epoll_pwait2, instance.into(), events as c_long, room.into(), timeout as c_long, mask as c_long, 8) as c_int;
            wait::report_events(found, instance, events)
        })
    }

    fn poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        relisten::wait_milliseconds(timeout, |timeout| wait::poll(descriptors, count, timeout))
    }

    fn __poll_chk(descriptors: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        check_room(count, room);
        relisten::wait_milliseconds(timeout, |timeout| wait::poll(descriptors, count, timeout))
    }

    fn ppoll(descriptors: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        relisten::wait_timespec(timeout, |timeout| wait::ppoll(descriptors, count, timeout, mask))
    }

    fn __ppoll_chk(descriptors: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int {
        check_room(count, room);
        relisten::wait_timespec(timeout, |timeout| wait::ppoll(descriptors, count, timeout, mask))
    }

    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        let sets = [read, write, except];
        relisten::wait_select(count, sets, timeout, |timeout| wait::select(count, sets, timeout))
    }

    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let sets = [read, write, except];
        relisten::wait_selected(count, sets, timeout, |timeout| wait::pselect(count, sets, timeout, mask))
    }
}
