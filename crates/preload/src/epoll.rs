//! Keeps epoll registrations when the socket of a descriptor is replaced.
//!
//! A registration belongs to the socket, not to the descriptor. It is lost when the socket is replaced.
//! Programs such as nginx register a socket before they connect it. So this module remembers the last
//! registration of each descriptor: epoll instance, events and data.

use crate::{deferred, real, wait};
use libc::{c_int, epoll_event};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// The number of entries in the table. Descriptors that are equal modulo this number share an entry. The
/// entry holds the later registration.
const MOST: usize = 1 << 16;

/// What the program last registered with epoll for a descriptor.
struct Entry {
    /// The descriptor plus 1; 0 if nothing is remembered.
    fd: AtomicI32,
    epoll: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
}

/// The last registration of each descriptor. Descriptor n has index n modulo the number of entries.
static ENTRIES: [Entry; MOST] = [const {
    Entry {
        fd: AtomicI32::new(0),
        epoll: AtomicI32::new(0),
        events: AtomicU32::new(0),
        data: AtomicU64::new(0),
    }
}; MOST];

fn entry(fd: c_int) -> Option<&'static Entry> {
    usize::try_from(fd).ok().map(|fd| &ENTRIES[fd % MOST])
}

/// Remembers the epoll registration of `fd`. If the socket of `fd` is replaced, the library must repeat the
/// registration. Call this when the program has added or changed a registration.
pub fn remember(epoll: c_int, fd: c_int, event: epoll_event) {
    if let Some(entry) = entry(fd) {
        entry.epoll.store(epoll, Ordering::Relaxed);
        entry.events.store(event.events, Ordering::Relaxed);
        entry.data.store(event.u64, Ordering::Relaxed);
        entry.fd.store(fd.saturating_add(1), Ordering::Release);
    }
}

/// Forgets the registration of `fd` in `epoll`. Call this when the program has removed it.
pub fn forget(epoll: c_int, fd: c_int) {
    if let Some(entry) = entry(fd)
        && entry.fd.load(Ordering::Relaxed) == fd.saturating_add(1)
        && entry.epoll.load(Ordering::Relaxed) == epoll
    {
        entry.fd.store(0, Ordering::Relaxed);
    }
}

/// Returns the epoll instance in which `fd` is registered, with the events and data of the registration.
/// Returns `None` if `fd` is not registered, or if the registration has event flags that `supported` lacks.
pub fn registered(fd: c_int, supported: u32) -> Option<(c_int, epoll_event)> {
    let entry = entry(fd)?;
    let plain = entry.events.load(Ordering::Relaxed) & !supported == 0;
    // Check the flags first. `of` writes the registration to the kernel again, with the same value. This
    // would make a one-shot registration report again.
    let registration = if plain { Registration::of(fd) } else { None };
    registration.map(|registration| (registration.epoll, registration.event))
}

/// A registration.
pub struct Registration {
    epoll: c_int,
    fd: c_int,
    event: epoll_event,
}

impl Registration {
    /// Returns the epoll registration of `fd`, or `None` if `fd` has none.
    pub fn of(fd: c_int) -> Option<Self> {
        let entry = entry(fd)?;
        deferred::flush();
        if entry.fd.load(Ordering::Acquire) != fd.saturating_add(1) {
            return None;
        }
        let event = epoll_event {
            events: entry.events.load(Ordering::Relaxed),
            u64: entry.data.load(Ordering::Relaxed),
        };
        let mut registration = Self { epoll: entry.epoll.load(Ordering::Relaxed), fd, event };
        // The entry may be outdated, because the descriptor or the epoll instance may have been closed since.
        // EPOLL_CTL_MOD fails if the registration no longer exists. It also fails for registrations with
        // EPOLLEXCLUSIVE, so `of` returns `None` for these, too.
        let exists = registration.control(libc::EPOLL_CTL_MOD);
        exists.then_some(registration)
    }

    fn control(&mut self, operation: c_int) -> bool {
        // SAFETY: the event outlives the call. A descriptor that is no epoll instance is refused.
        unsafe { real::epoll_ctl(self.epoll, operation, self.fd, &mut self.event) == 0 }
    }

    /// Registers the descriptor again.
    pub fn restore(mut self) {
        if self.control(libc::EPOLL_CTL_ADD) {
            wait::note_watched(self.epoll, self.fd);
        }
    }
}
