//! Epoll registrations of offloaded sockets.
//!
//! One table ([`table`]) has the last registration of each descriptor. Three parts of the library need it:
//!
//! * A registration belongs to the socket, not to the descriptor, so it is lost when the library replaces the
//!   socket. Programs such as nginx register a socket before they connect it. [`Registration`] then repeats
//!   the registration for the new socket.
//! * [`ready`] finds events of connections in shared memory, without a system call.
//! * [`deferred`] passes changes of registrations to the kernel only before the kernel is asked for events.
//!
//! ```text
//! epoll_ctl ---> deferred: may the kernel's change wait? --- yes ---> table
//!                            no: real epoll_ctl --------------------> table
//! epoll_wait --> ready: slots of watched registrations <------------- table
//!                nothing found: deferred::flush <-------------------- table
//!                               real epoll_wait
//! ```

pub mod deferred;
mod instance;
pub mod ready;
mod table;

use crate::{real, wait};
use inlane_offload_protocol::lease::SLOTS;
use libc::{c_int, epoll_event};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use table::Entry;

/// Implements epoll_ctl(2).
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn control(instance: RawFd, operation: c_int, fd: RawFd, event: *mut epoll_event) -> c_int {
    // SAFETY: the program's arguments.
    unsafe {
        if deferred::control(instance, operation, fd, event) {
            return 0;
        }
        deferred::flush();
        deferred::share(fd);
        let result = real::epoll_ctl(instance, operation, fd, event);
        if result == 0
            && let Some(entry) = table::entry(fd)
        {
            match operation {
                libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD if !event.is_null() => {
                    wait::note_watched(instance, fd);
                    ready::register(entry, instance, fd, event.read_unaligned());
                    deferred::note_kernel(entry);
                }
                libc::EPOLL_CTL_DEL if entry.is_of(fd, instance) => {
                    entry.wanted.store(0, Ordering::Relaxed);
                    ready::note_removed(instance, fd);
                    deferred::note_kernel(entry);
                }
                _ => {}
            }
        }
        result
    }
}

/// Records that the process has created the epoll instance `instance`, which is -1 after a failure. Forgets an
/// earlier instance with this descriptor. Returns `instance`.
pub fn note_created(instance: RawFd) -> RawFd {
    if instance >= 0 {
        for (index, _, entry) in watched_entries() {
            if entry.instance.load(Ordering::Relaxed) == instance {
                table::unwatch(index);
            }
        }
        if let Some(instance) = instance::of(instance) {
            instance.begin();
        }
    }
    instance
}

/// Returns the registrations that `ready` watches: the number of the slot, the descriptor, and the entry.
fn watched_entries() -> impl Iterator<Item = (usize, RawFd, &'static Entry)> {
    (0..SLOTS).filter_map(|index| table::watched(index).map(|(fd, entry)| (index, fd, entry)))
}

/// A registration that the kernel has.
pub struct Registration {
    instance: c_int,
    fd: c_int,
    event: epoll_event,
}

impl Registration {
    /// Returns the epoll registration of `fd`, or `None` if `fd` has none.
    pub fn of(fd: c_int) -> Option<Self> {
        let entry = table::entry(fd)?;
        deferred::flush();
        let (instance, event) = entry.requested(fd)?;
        let mut registration = Self { instance, fd, event };
        // The entry may be outdated, because the descriptor or the epoll instance may have been closed since.
        // EPOLL_CTL_MOD fails if the registration no longer exists. It also fails for registrations with
        // EPOLLEXCLUSIVE, so `of` returns `None` for these, too.
        let exists = registration.control(libc::EPOLL_CTL_MOD);
        exists.then_some(registration)
    }

    fn control(&mut self, operation: c_int) -> bool {
        // SAFETY: the event outlives the call. A descriptor that is no epoll instance is refused.
        unsafe { real::epoll_ctl(self.instance, operation, self.fd, &mut self.event) == 0 }
    }

    /// Registers the descriptor again.
    pub fn restore(mut self) {
        if self.control(libc::EPOLL_CTL_ADD) {
            wait::note_watched(self.instance, self.fd);
        }
    }
}
