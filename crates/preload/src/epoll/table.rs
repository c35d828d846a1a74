//! The table of epoll registrations. It has an entry for each descriptor, with the last registration that the
//! program has requested.
//!
//! | fields | contents | used by |
//! | --- | --- | --- |
//! | `fd`, `instance`, `wanted`, `data` | what the program has requested | all; [`super::Registration`] repeats it when the descriptor gets a new socket |
//! | `inode` | the connection, while `ready` finds events of this registration in shared memory | `ready` |
//!
//! A slot of shared memory has at most one watched registration. [`watched`] finds it.
//!
//! Any thread may read an entry while another thread changes it. Only [`Entry::watched_data`] needs all fields of
//! one registration, and detects a change by the inode.

use inlane_offload_protocol::slots::{SLOTS, Slot};
use libc::{c_int, epoll_event};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

/// The number of entries.
const MOST: usize = 1 << 16;
/// Descriptors below this number have an entry of their own. Connections with a slot of shared memory have
/// such descriptors. All higher descriptors that are equal modulo the number of the other entries share an
/// entry, which holds the latest registration.
const OWN: usize = 32768;

/// The flag of `wanted` for a registration that exists. The lower half holds its events.
const REGISTERED: u64 = 1 << 63;

/// A descriptor's last registration. An entry has a cache line of its own, because threads that change
/// registrations of different descriptors must not slow each other.
#[repr(align(64))]
pub struct Entry {
    /// The descriptor plus 1. 0 if the entry was never used.
    fd: AtomicI32,
    pub instance: AtomicI32,
    /// [`REGISTERED`] and the events, or 0 if the program has removed the registration.
    pub wanted: AtomicU64,
    pub data: AtomicU64,
    /// The connection whose events `ready` finds: the inode of its socket, and above it the number of the watch, because a kept pair
    /// has the same inode for its next connection. 0 if it finds none, and while the fields above get another registration.
    watch: AtomicU64,
}

/// The number of watches.
static WATCHES: AtomicU32 = AtomicU32::new(0);

static ENTRIES: [Entry; MOST] = [const {
    Entry {
        fd: AtomicI32::new(0),
        instance: AtomicI32::new(0),
        wanted: AtomicU64::new(0),
        data: AtomicU64::new(0),
        watch: AtomicU64::new(0),
    }
}; MOST];

/// The number of places in `BY_DATA`.
const PLACES: usize = 1 << 15;

/// The descriptors of registrations, plus 1, by a hash of their data. Registrations whose data have the same hash share a
/// place, which holds the latest of them. 0 if a place was never used.
static BY_DATA: [AtomicI32; PLACES] = [const { AtomicI32::new(0) }; PLACES];

/// Returns the place of registrations with `data`. Programs use descriptors and pointers as data, so all bits count.
#[inline]
fn place(data: u64) -> &'static AtomicI32 {
    &BY_DATA[(data.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - PLACES.trailing_zeros())) as usize]
}

/// Returns the descriptor of the registration in the epoll instance `instance` whose data are `data`. Returns `None` if the
/// table does not have it any more. If a program registers several descriptors with the same data, returns the latest one.
pub fn descriptor_of(instance: RawFd, data: u64) -> Option<RawFd> {
    let fd = place(data).load(Ordering::Relaxed) - 1;
    let (of, event) = entry(fd)?.requested(fd)?;
    let same = of == instance && event.u64 == data;
    same.then_some(fd)
}

/// The descriptor of each slot's watched registration, plus 1. 0 if the slot has none.
static WATCHED: [AtomicI32; SLOTS] = [const { AtomicI32::new(0) }; SLOTS];

/// Returns the entry for the descriptor `fd`. It may hold another descriptor's registration. Returns `None` if
/// `fd` is negative.
#[inline]
pub fn entry(fd: RawFd) -> Option<&'static Entry> {
    let fd = usize::try_from(fd).ok()?;
    Some(&ENTRIES[if fd < MOST { fd } else { OWN + fd % (MOST - OWN) }])
}

/// Returns the watched registration of the slot with number `index`, and its descriptor. Returns `None` if the
/// slot has none.
#[inline]
pub fn watched(index: usize) -> Option<(RawFd, &'static Entry)> {
    let fd = WATCHED[index].load(Ordering::Relaxed) - 1;
    entry(fd).map(|entry| (fd, entry))
}

/// Returns true if the slot with number `index` watches the registration of the descriptor `fd`.
#[inline]
pub fn is_watched(index: usize, fd: RawFd) -> bool {
    WATCHED[index].load(Ordering::Relaxed) == fd.saturating_add(1)
}

/// Returns the number of the slot whose watched registration is that of `fd`.
pub fn slot_of(fd: RawFd) -> Option<usize> {
    (0..SLOTS).find(|&index| is_watched(index, fd))
}

/// Makes the registration of `fd` the watched one of the slot with number `index`. `inode` is that of the
/// connection. The slot has no other watched registration.
pub fn watch(index: usize, fd: RawFd, entry: &Entry, inode: u64) {
    WATCHED[index].store(fd.saturating_add(1), Ordering::Relaxed);
    let number = WATCHES.fetch_add(1, Ordering::Relaxed);
    // Linux numbers sockets by 32 bits.
    entry.watch.store(u64::from(number) << 32 | inode & u64::from(u32::MAX), Ordering::Release);
}

/// Ends the watch of the slot with number `index`. Returns its descriptor and epoll instance, or `None` if the slot
/// has no watched registration.
pub fn unwatch(index: usize) -> Option<(RawFd, RawFd)> {
    let (fd, entry) = watched(index)?;
    let instance = entry.instance.load(Ordering::Relaxed);
    entry.watch.store(0, Ordering::Relaxed);
    // Other fields may change after this. A reader that sees such a change then also sees the inode 0.
    fence(Ordering::Release);
    WATCHED[index].store(0, Ordering::Relaxed);
    Some((fd, instance))
}

impl Entry {
    /// Stores what the program has requested for `fd`. If this changes the descriptor or the instance, the entry must
    /// be unwatched.
    pub fn store(&self, fd: RawFd, instance: RawFd, event: epoll_event) {
        self.instance.store(instance, Ordering::Relaxed);
        self.data.store(event.u64, Ordering::Relaxed);
        self.wanted.store(REGISTERED | u64::from(event.events), Ordering::Relaxed);
        self.fd.store(fd.saturating_add(1), Ordering::Release);
        place(event.u64).store(fd.saturating_add(1), Ordering::Relaxed);
    }

    /// Returns true if the entry holds a registration of `fd` in the epoll instance `instance`, or held one that the
    /// program has removed.
    pub fn is_of(&self, fd: RawFd, instance: RawFd) -> bool {
        self.fd.load(Ordering::Acquire) == fd.saturating_add(1)
            && self.instance.load(Ordering::Relaxed) == instance
    }

    /// Returns the epoll instance and the event that the program has requested for `fd`. Returns `None` if the program
    /// has removed the registration, or if the entry holds another descriptor's.
    pub fn requested(&self, fd: RawFd) -> Option<(RawFd, epoll_event)> {
        let same = self.fd.load(Ordering::Acquire) == fd.saturating_add(1);
        let wanted = self.wanted.load(Ordering::Relaxed);
        let event = epoll_event { events: wanted as u32, u64: self.data.load(Ordering::Relaxed) };
        let instance = self.instance.load(Ordering::Relaxed);
        (same && wanted & REGISTERED != 0).then_some((instance, event))
    }

    /// Returns the data of the watched registration in the epoll instance `instance`, for the connection that uses
    /// `slot`. Returns `None` if the entry holds no such registration.
    #[inline]
    pub fn watched_data(&self, instance: c_int, slot: Slot) -> Option<u64> {
        let watch = self.watch.load(Ordering::Acquire);
        let same = self.instance.load(Ordering::Relaxed) == instance;
        let data = self.data.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // A writer that changes the instance first sets the word to 0, and its next value has another number. If the word is unchanged,
        // no other thread has therefore changed the instance while it was read.
        let whole = watch != 0 && watch == self.watch.load(Ordering::Relaxed);
        (whole && same && is_of_slot(watch, slot)).then_some(data)
    }

    /// Returns true if the registration is watched.
    pub fn is_watched(&self) -> bool {
        self.watch.load(Ordering::Relaxed) != 0
    }

    /// Returns true if the registration is watched for the connection that uses `slot`.
    pub fn is_watched_for(&self, slot: Slot) -> bool {
        is_of_slot(self.watch.load(Ordering::Relaxed), slot)
    }
}

/// Returns true if the word `watch` of an entry names the connection that uses `slot`.
fn is_of_slot(watch: u64, slot: Slot) -> bool {
    watch as u32 == slot.header().inode.load(Ordering::Acquire) as u32
}
