//! Epoll registrations of offloaded sockets.
//!
//! One table ([`table`]) has the last registration of each descriptor. Two parts of the library need it:
//!
//! * A registration belongs to the socket, not to the descriptor, so it is lost when the library replaces the
//!   socket. Programs such as nginx register a socket before they connect it. [`Registration`] then repeats
//!   the registration for the new socket.
//! * [`ready`] finds events of connections in shared memory, without a system call.

mod instance;
pub mod ready;
mod table;

use crate::{control, errno, parked, polling, real, set_errno};
use inlane_offload_protocol::slots::SLOTS;
use instance::Instance;
use libc::{c_int, c_uint, epoll_event};
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use table::Entry;
pub use table::descriptor_of;

/// Implements epoll_ctl(2).
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn change(instance: RawFd, operation: c_int, fd: RawFd, event: *mut epoll_event) -> c_int {
    // SAFETY: the program's arguments.
    unsafe {
        let result = real::epoll_ctl(instance, operation, fd, event);
        if result == 0
            && let Some(entry) = table::entry(fd)
        {
            match operation {
                libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD if !event.is_null() => {
                    polling::note_watched(instance, fd);
                    if entry.requested(fd).is_some_and(|(other, _)| other != instance) {
                        // The table has only the last registration, so the others could not be removed.
                        parked::forbid(fd);
                    }
                    ready::register(entry, instance, fd, event.read_unaligned());
                }
                libc::EPOLL_CTL_DEL if entry.is_of(fd, instance) => {
                    entry.wanted.store(0, Ordering::Relaxed);
                    ready::note_removed(entry, instance, fd);
                }
                libc::EPOLL_CTL_DEL => note_removed_elsewhere(entry, fd),
                _ => {}
            }
        }
        result
    }
}

/// Ends the watch of `fd` if its registration in `entry` does not exist any more. Call this when the program has removed
/// `fd` through another descriptor than that in `entry`. Both may refer to the same epoll instance.
fn note_removed_elsewhere(entry: &Entry, fd: RawFd) {
    let before = errno();
    if entry.is_watched() && Registration::of(fd).is_none() {
        entry.wanted.store(0, Ordering::Relaxed);
        ready::forget(fd);
    }
    set_errno(before);
}

/// Forgets the registration of an earlier socket with the descriptor `fd`.
pub fn forget_registration(fd: RawFd) {
    if let Some(entry) = table::entry(fd).filter(|entry| entry.requested(fd).is_some()) {
        entry.wanted.store(0, Ordering::Relaxed);
    }
}

/// Removes the registration of the connection `fd`, which has slot `index`, because the program closes `fd` and its pair is kept. Returns
/// false if that failed.
pub fn end_registration(fd: RawFd, index: usize) -> bool {
    let Some(entry) = table::entry(fd) else { return false };
    if let Some((instance, _)) = entry.requested(fd) {
        // SAFETY: the call has no event.
        if unsafe { real::epoll_ctl(instance, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) } != 0 {
            return false;
        }
        entry.wanted.store(0, Ordering::Relaxed);
    }
    if table::is_watched(index, fd)
        && let Some((_, instance)) = table::unwatch(index)
        && let Some(instance) = instance::of(instance)
    {
        ready::stop_watching(instance, index);
    }
    true
}

/// Prepares for the end of the descriptor `fd`, which the program closes or replaces. `fd` may be a connection, an epoll
/// instance, or any other file.
#[inline]
pub fn note_closing(fd: RawFd) {
    if instance::of(fd).is_some_and(Instance::is_watching) {
        forget_instances(fd..=fd);
    }
}

/// Prepares for the end of all descriptors from `first` to `last`.
pub fn note_closing_range(first: c_uint, last: c_uint) {
    if let Ok(first) = RawFd::try_from(first) {
        forget_instances(first..=RawFd::try_from(last).unwrap_or(RawFd::MAX));
    }
}

/// Ends the watches of the epoll instances with these descriptors, because other instances may get their numbers. A
/// child of vfork leaves them, because its parent uses them. A forked child does not touch its parent's receive rings.
#[cold]
fn forget_instances(descriptors: RangeInclusive<RawFd>) {
    for (index, _, entry) in watched_entries() {
        if !descriptors.contains(&entry.instance.load(Ordering::Relaxed)) || control::is_shared_by_vfork() {
            continue;
        }
        if control::has_mapped_area() {
            ready::unwatch(index);
        } else if let Some((_, instance)) =
            table::unwatch(index).and_then(|(fd, number)| Some((fd, instance::of(number)?)))
        {
            instance.stop_watching(1 << index);
        }
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
    /// Returns the last registration that the program has requested for `fd`. The kernel may not have it any more.
    fn requested(fd: c_int) -> Option<Self> {
        let (instance, event) = table::entry(fd)?.requested(fd)?;
        Some(Self { instance, fd, event })
    }

    /// Returns the epoll registration of `fd`, or `None` if `fd` has none.
    pub fn of(fd: c_int) -> Option<Self> {
        let mut registration = Self::requested(fd)?;
        // The entry may be outdated, because the descriptor or the epoll instance may have been closed since.
        // EPOLL_CTL_MOD fails if the registration no longer exists. It also fails for registrations with
        // EPOLLEXCLUSIVE, so `of` returns `None` for these, too.
        let exists = registration.control(libc::EPOLL_CTL_MOD);
        exists.then_some(registration)
    }

    /// Removes the epoll registration of `fd`, and returns it. Returns `None` if `fd` has none. Call this before the
    /// descriptor gets another socket. The kernel would keep the registration of the old socket if another process has
    /// it, too.
    pub fn take(fd: c_int) -> Option<Self> {
        let mut registration = Self::requested(fd)?;
        let exists = registration.control(libc::EPOLL_CTL_DEL);
        if !exists {
            forget_registration(fd);
        }
        exists.then_some(registration)
    }

    fn control(&mut self, operation: c_int) -> bool {
        // SAFETY: the event outlives the call. A descriptor that is no epoll instance is refused.
        unsafe { real::epoll_ctl(self.instance, operation, self.fd, &mut self.event) == 0 }
    }

    /// Registers the descriptor again.
    pub fn restore(mut self) {
        if self.control(libc::EPOLL_CTL_ADD) {
            polling::note_watched(self.instance, self.fd);
        }
    }
}
