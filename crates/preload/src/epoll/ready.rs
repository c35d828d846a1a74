//! Reports bytes in shared memory as events of epoll_wait.
//!
//! The engine puts received bytes into the receive ring of a slot of shared memory
//! ([`inlane_offload_protocol::slots`]) if the program has asked for it. The kernel then does not know that the descriptor is readable. This
//! module watches the registrations whose events it can find itself: level-triggered registrations of
//! connections with a slot. The kernel also has all registrations and finds all other events.
//!
//! ```text
//! epoll_wait:  bytes in receive rings, room in send rings -> events, without a system call
//!              otherwise, and in each 8th call          ---> the kernel's events
//!              before the thread sleeps                 ---> ask the engine to wake it through the pair of one connection
//! ```
//!
//! One call returns either the module's events or the kernel's, so that no descriptor is in its result twice.
//! An entry of the table can become outdated by calls that the library does not see. So an event is reported
//! only if the descriptor's inode equals the inode in the slot. Only one thread can use the receive rings of an epoll
//! instance. If several threads used them, the engine could give bytes to one thread while another thread
//! waits for them.

use super::Registration;
use super::instance::{self, Instance, set};
use super::table::{self, Entry};
use crate::{control, errno, set_errno, slots};
use inlane_offload_protocol::slots::{Area, SLOTS, Slot};
use libc::{c_int, epoll_event};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

/// The number of consecutive calls that may return only events from shared memory. The next call also asks
/// the kernel, because other descriptors may have events.
const CALLS: u32 = 8;
/// A thread that polls looks at shared memory in each round. It also asks the kernel for events once in this many rounds, if
/// the last events came from shared memory.
const ROUNDS: u32 = 64;
/// The same if the last events came from the kernel.
const ROUNDS_AFTER_KERNEL: u32 = 2;
/// The flags of registrations whose events the library can find: level-triggered, and not one-shot or exclusive.
const SUPPORTED: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLERR | libc::EPOLLHUP)
        as u32;

/// Returns the slot of shared memory that the table of slots holds for `fd`, and its number. Returns `None` if
/// there is none, or if the slot lies in the shared memory of an earlier control connection. The slot may be outdated.
#[inline]
fn slot(fd: RawFd) -> Option<(Slot, usize)> {
    let slot = slots::of(fd)?;
    Some((slot, index_of(slot)?))
}

/// Returns the index of `slot` in the shared memory of the current control connection. Returns `None` if the
/// slot lies in the shared memory of an earlier one.
fn index_of(slot: Slot) -> Option<usize> {
    control::area()?.index_of(slot)
}

/// Stores the program's registration of `fd` in its entry of the table. Watches it if this module can find its
/// events.
pub fn register(entry: &Entry, instance: RawFd, fd: RawFd, event: epoll_event) {
    let found = slot(fd);
    let is_watched = found.is_some_and(|(slot, index)| {
        table::is_watched(index, fd) && entry.watched_data(instance, slot).is_some()
    });
    if !is_watched && entry.is_watched() {
        // The watched registration is that of an earlier socket, of an earlier slot, or in another epoll instance.
        forget(fd);
    }
    entry.store(fd, instance, event);
    if let Some((slot, index)) = found {
        watch(entry, instance, fd, event.events, slot, index, is_watched);
    }
}

/// Watches the registration in `entry`. `is_watched` is true if it is watched already, and the program has only
/// changed its events.
fn watch(entry: &Entry, instance: RawFd, fd: RawFd, events: u32, slot: Slot, index: usize, is_watched: bool) {
    let inode = slot.header().inode.load(Ordering::Acquire);
    if !is_watched {
        if !slots::is_same_quietly(fd, slot) {
            return;
        }
        unwatch(index);
    }
    let Some(instance) = instance::of(instance).filter(|_| events & !SUPPORTED == 0) else {
        unwatch(index);
        // The library cannot find the events of this registration, so only the kernel reports them. Let the
        // engine move the bytes in shared memory to the socket pair, because the kernel sees only the
        // pair.
        return slots::leave(fd, slot);
    };
    if !is_watched {
        table::watch(index, fd, entry, inode);
    }
    set_events(instance, index, events);
    if events & libc::EPOLLIN as u32 != 0 {
        if instance.others_wait() {
            // The thread that waits may sleep in the kernel, where bytes in shared memory do not wake it.
            slots::leave(fd, slot);
        } else if !is_watched {
            ask(instance, slot);
        }
    }
}

/// Looks for these events of the connection in slot `index` from now on.
#[inline]
fn set_events(instance: &Instance, index: usize, events: u32) {
    set(&instance.readers, 1 << index, events & libc::EPOLLIN as u32 != 0);
    if events & libc::EPOLLIN as u32 == 0 {
        wake_no_more(instance, index);
    }
    set(&instance.writers, 1 << index, events & libc::EPOLLOUT as u32 != 0);
}

/// Ends the watch of the registration of `fd`, if there is one.
pub fn forget(fd: RawFd) {
    if let Some(index) = table::slot_of(fd) {
        unwatch(index);
    }
}

/// Ends the watch of the slot `index`. From now on, the program learns of the connection's events from the
/// kernel alone.
pub fn unwatch(index: usize) {
    let Some((_, entry)) = table::watched(index) else { return };
    // If the slot belongs to a later connection by now, its receive ring stays as it is.
    let slot = control::area().and_then(|area| area.slot(index)).filter(|&slot| entry.is_watched_for(slot));
    let Some((fd, instance)) = table::unwatch(index) else { return };
    slot.iter().for_each(|&slot| slots::leave(fd, slot));
    if let Some(instance) = instance::of(instance) {
        stop_watching(instance, index);
    }
}

/// Stops reporting events of `fd`, which the program has removed from the epoll instance `instance`. Keeps watching the
/// registration, because many programs register the descriptor again.
pub fn note_removed(entry: &Entry, instance: RawFd, fd: RawFd) {
    if entry.is_watched()
        && let Some(index) = table::slot_of(fd)
        && let Some(instance) = instance::of(instance)
    {
        stop_watching(instance, index);
    }
}

/// Ends the watch of `slot` if it belongs to an earlier connection. Call this when a new connection has got
/// the slot.
pub fn forget_outdated(slot: Slot) {
    if let Some(index) = index_of(slot)
        && let Some((_, entry)) = table::watched(index)
        && !entry.is_watched_for(slot)
    {
        unwatch(index);
    }
}

/// Watches the registration of the connection `fd`, whose slot `slot` the library has just found. The library has seen the
/// registration, because it was made for this connection.
pub fn note_found(fd: RawFd, slot: Slot) {
    if index_of(slot).is_some()
        && let Some(entry) = table::entry(fd)
        && let Some((instance, event)) = entry.requested(fd)
    {
        let before = errno();
        register(entry, instance, fd, event);
        set_errno(before);
    }
}

/// Watches the registration of the connection `fd`, which has just got the slot `slot` of shared memory.
pub fn note_adopted(fd: RawFd, slot: Slot) {
    let before = errno();
    // Check the flags first. `Registration::of` writes the registration to the kernel again, with the same
    // value. This would make a one-shot registration report again.
    if index_of(slot).is_some()
        && let Some(entry) = table::entry(fd)
        && entry.wanted.load(Ordering::Relaxed) as u32 & !SUPPORTED == 0
        && let Some(registration) = Registration::of(fd)
    {
        register(entry, registration.instance, fd, registration.event);
    }
    set_errno(before);
}

/// Asks for the receive ring of `slot`. Does nothing unless the calling thread is the one that
/// waits for events of the epoll instance.
fn ask(instance: &Instance, slot: Slot) {
    let header = slot.header();
    let inode = header.inode.load(Ordering::Acquire);
    if !instance.waits_alone() || inode == 0 || header.low_water.load(Ordering::Relaxed) != 0 {
        return;
    }
    slots::ask(slot, inode);
}

/// Asks for the receive ring of a connection that the calling thread watches for input. Call this when the
/// kernel's receive on `fd` has returned bytes.
pub fn note_received(fd: RawFd, slot: Slot) {
    if let Some(index) = index_of(slot)
        && table::is_watched(index, fd)
        && let Some(entry) = table::entry(fd)
        && let Some(instance) = instance::of(entry.instance.load(Ordering::Relaxed))
        && instance.readers.load(Ordering::Relaxed) & 1 << index != 0
        && slot.receive().is_idle()
        && instance.waits_alone()
        && slots::is_same_quietly(fd, slot)
    {
        ask(instance, slot);
    }
}

/// A wait for events of an epoll instance. The library can find some of these events in shared memory.
#[derive(Clone, Copy)]
pub struct Waiting {
    instance: &'static Instance,
    fd: RawFd,
    events: *mut epoll_event,
    room: usize,
}

/// Begins a wait for at most `room` events of the epoll instance `fd`. Returns `None` if the program must get
/// all events from the kernel.
///
/// If `sleeps` is false, also returns `None` if any other thread has slept on the instance. The reason:
/// another epoll instance may watch this instance and would get only the kernel's events.
///
/// # Safety
/// `events` has room for `room` events during the program's call.
pub unsafe fn begin(fd: RawFd, events: *mut epoll_event, room: c_int, sleeps: bool) -> Option<Waiting> {
    let instance = instance::of(fd)?;
    if !instance.waits_alone() {
        if !sleeps {
            return None;
        }
        instance.note_waiter();
    }
    let used = instance.is_watching();
    let room = usize::try_from(room).ok().filter(|&room| room > 0 && used && !events.is_null())?;
    Some(Waiting { instance, fd, events, room })
}

impl Waiting {
    /// Returns true if this wait must also ask the kernel. This is so if the last [`CALLS`] waits have only
    /// reported events of shared memory.
    pub fn needs_kernel(self) -> bool {
        self.instance.calls.load(Ordering::Relaxed) >= CALLS
    }

    /// Records that the kernel was asked for events. The next calls then need not ask the kernel.
    pub fn note_kernel(self) {
        self.instance.calls.store(0, Ordering::Relaxed);
    }

    /// Records whether the kernel, which was asked just now, had events.
    #[inline]
    pub fn note_source(self, kernel: bool) {
        if kernel {
            self.instance.kernel.store(true, Ordering::Relaxed);
        }
    }

    /// Returns after how many looks at shared memory a thread that polls asks the kernel.
    #[inline]
    pub fn rounds(self) -> u32 {
        if self.instance.kernel.load(Ordering::Relaxed) { ROUNDS_AFTER_KERNEL } else { ROUNDS }
    }

    /// Stores the events that shared memory shows. Returns their number. Leaves errno unchanged.
    pub fn look(self) -> c_int {
        let Some(area) = control::area() else { return 0 };
        let ready = area.ready().load(Ordering::Acquire) & self.instance.readers.load(Ordering::Relaxed);
        let writers = self.instance.writers.load(Ordering::Relaxed);
        let mut rest = ready | writers;
        if rest == 0 {
            return 0;
        }
        let before = errno();
        let first = self.instance.first.load(Ordering::Relaxed) % SLOTS as u32;
        rest = rest.rotate_right(first);
        let mut count = 0;
        while rest != 0 && count < self.room {
            let index = (rest.trailing_zeros() + first) as usize % SLOTS;
            rest &= rest - 1;
            let Some(slot) = area.slot(index) else { continue };
            let bit = 1u64 << index;
            let Some((fd, entry)) = table::watched(index) else { continue };
            let Some(data) = entry.watched_data(self.fd, slot) else { continue };
            let mut found = 0;
            if ready & bit != 0 {
                let mut readable = is_readable(fd, slot);
                if !readable {
                    area.ready().fetch_and(!bit, Ordering::AcqRel);
                    // Check again after clearing the slot's ready bit. Between the first check and the
                    // clearing, the engine may have added bytes.
                    readable = is_readable(fd, slot);
                    if readable {
                        area.ready().fetch_or(bit, Ordering::AcqRel);
                    }
                }
                if readable {
                    found |= libc::EPOLLIN as u32;
                    if slot.receive().has_end() {
                        found |= entry.wanted.load(Ordering::Relaxed) as u32 & libc::EPOLLRDHUP as u32;
                    }
                }
            }
            if writers & bit != 0 && has_room(slot) {
                found |= libc::EPOLLOUT as u32;
            }
            if found == 0 {
                continue;
            }
            if slots::of(fd) != Some(slot) || !slots::is_same(fd, slot) {
                unwatch(index);
                continue;
            }
            let event = epoll_event { events: found, u64: data };
            // SAFETY: `count` is below the room that the caller of `begin` has promised. The program's array may
            // be unaligned on architectures where the structure is packed.
            unsafe { self.events.add(count).write_unaligned(event) };
            count += 1;
            self.instance.first.store(index as u32 + 1, Ordering::Relaxed);
        }
        set_errno(before);
        if count > 0 {
            let calls = self.instance.calls.load(Ordering::Relaxed);
            self.instance.calls.store(calls.saturating_add(1), Ordering::Relaxed);
            self.instance.kernel.store(false, Ordering::Relaxed);
        }
        count as c_int
    }

    /// Prepares the thread to sleep in the kernel, where bytes in a ring do not wake it. Lets the engine wake it, or leaves the receive rings of all
    /// watched connections. After the sleep, drop the returned value.
    ///
    /// # Errors
    /// If there are events of connections whose rings have bytes. They are stored, and this is their number. The thread must not sleep.
    pub fn fall_asleep(self) -> Result<Option<Asleep>, c_int> {
        let Some(area) = control::area() else { return Ok(None) };
        let readers = self.instance.readers.load(Ordering::Relaxed);
        let number = self.sleeper();
        if let Some(number) = number {
            area.sleepers().fall_asleep(number, readers);
        }
        let mut rest = if number.is_some() { 0 } else { readers };
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if let Some(slot) = area.slot(index)
                && !slot.receive().stop()
            {
                // The engine has put bytes into this slot, but may not have set the slot's ready bit yet.
                // `look` checks only slots with a set ready bit, so set the bit here.
                area.ready().fetch_or(1 << index, Ordering::AcqRel);
            }
        }
        let asleep = number.map(|number| Asleep { area, number });
        match self.look() {
            0 => Ok(asleep),
            found => Err(found),
        }
    }

    /// Returns the number by which the engine knows that the calling thread sleeps. `None` if it must leave the receive rings: other threads wait for
    /// events of the instance, other instances have all numbers, or the memory belongs to the parent of this process or an earlier control connection.
    fn sleeper(self) -> Option<usize> {
        let alone = self.instance.waits_alone() && control::has_present_area();
        if alone { self.instance.sleeper() } else { None }
    }
}

/// The calling thread sleeps, and the engine knows it.
pub struct Asleep {
    area: Area,
    number: usize,
}

impl Drop for Asleep {
    fn drop(&mut self) {
        self.area.sleepers().wake_up(self.number);
    }
}

/// Stops looking for events of the connection in slot `index`.
pub fn stop_watching(instance: &Instance, index: usize) {
    instance.stop_watching(1 << index);
    wake_no_more(instance, index);
}

/// Records that bytes in slot `index` need not wake the thread any more that sleeps until the instance has events.
fn wake_no_more(instance: &Instance, index: usize) {
    if instance.others_wait()
        && let (Some(area), Some(number)) = (control::area(), instance.known_sleeper())
    {
        area.sleepers().watched[number].fetch_and(!(1 << index), Ordering::Relaxed);
    }
}

/// Returns true if a slot has received bytes or the end of the stream, or if the engine is copying them into the socket
/// pair. May change errno.
fn is_readable(fd: RawFd, slot: Slot) -> bool {
    slot.received().is_some() || slot.receive().is_at_end() || slots::is_moving(fd, slot)
}

/// Returns true if a thread may write into the send ring of `slot` now, and at least half of the ring is
/// free.
fn has_room(slot: Slot) -> bool {
    let header = slot.header();
    let Some(index) = slot.send().next() else { return false };
    slot.room(index) >= slot.ring() / 2 && header.shut.load(Ordering::Relaxed) == 0 && slots::is_alive(slot)
}
