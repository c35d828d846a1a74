//! Reports bytes in shared memory as events of epoll_wait.
//!
//! The engine offers received bytes to the posted receive of a slot of shared memory
//! ([`inlane_offload_protocol::lease`]). The kernel then does not know that the descriptor is readable. This
//! module keeps copies of the registrations whose events it can find itself: level-triggered registrations of
//! connections with a slot. The kernel also has all registrations and finds all other events. `deferred`
//! updates the kernel's registrations before the kernel is asked for events.
//!
//! ```text
//! epoll_wait:  offers in slots, and room in send rings ---> events, without a system call
//!              otherwise, and in each 8th call          ---> the kernel's events
//!              before the thread sleeps                 ---> stop all posted receives
//! ```
//!
//! One call returns either the module's events or the kernel's, so that no descriptor is in its result twice.
//! A copy can become outdated by calls that the library does not see. So an event is reported only if the
//! descriptor's inode equals the inode in the slot. Only one thread can use the posted receives of an epoll
//! instance. If several threads used them, the engine could offer bytes to one thread while another thread
//! waits for them.

use crate::{control, deferred, direct, epoll, errno, set_errno};
use inlane_offload_protocol::lease::{SEND, SLOTS, Slot};
use libc::{c_int, epoll_event};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// The number of descriptors in the table of instances. Epoll instances with higher descriptors get all their
/// events from the kernel.
const MOST: usize = 1024;
/// The number of consecutive calls that may return only events from shared memory. The next call also asks
/// the kernel, because other descriptors may have events.
const CALLS: u32 = 8;
/// The flags of registrations whose events the library can find: level-triggered, and not one-shot or exclusive.
pub const SUPPORTED: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI | libc::EPOLLRDHUP | libc::EPOLLERR | libc::EPOLLHUP)
        as u32;

/// A copy of one connection's epoll registration. `WATCHED[n]` is for the connection that uses slot n of
/// shared memory.
struct Watched {
    /// The descriptor that the program registered, plus 1. It is 0 if this entry holds no registration.
    fd: AtomicI32,
    instance: AtomicI32,
    data: AtomicU64,
    /// The inode of the connection, or 0 while the other fields change. It identifies the connection, because
    /// numbers of descriptors and slots are reused soon, but inodes of sockets only after 2^32 other sockets.
    inode: AtomicU64,
}

static WATCHED: [Watched; SLOTS] = [const {
    Watched {
        fd: AtomicI32::new(0),
        instance: AtomicI32::new(0),
        data: AtomicU64::new(0),
        inode: AtomicU64::new(0),
    }
}; SLOTS];

impl Watched {
    /// Returns the program's registration in the epoll instance `epoll` for the connection that uses `slot`:
    /// its descriptor and data. Returns `None` if this entry holds no such registration.
    fn of(&self, epoll: RawFd, slot: Slot) -> Option<(RawFd, u64)> {
        let inode = self.inode.load(Ordering::Acquire);
        let fd = self.fd.load(Ordering::Relaxed) - 1;
        let instance = self.instance.load(Ordering::Relaxed);
        let data = self.data.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // A writer first sets the inode to 0, and inodes are not reused soon. If the inode is unchanged, no
        // other thread has therefore changed the fields while they were read.
        let whole = inode != 0 && inode == self.inode.load(Ordering::Relaxed);
        let same = inode == slot.header().inode.load(Ordering::Acquire);
        (whole && same && fd >= 0 && instance == epoll).then_some((fd, data))
    }
}

/// An epoll instance. Bit n of its masks belongs to slot n.
struct Instance {
    /// A mask of the slots whose connections are watched for input.
    readers: AtomicU64,
    /// The slots of connections that are watched for output.
    writers: AtomicU64,
    /// The only thread that has waited for events of this instance so far. 0 if no thread has waited,
    /// [`SEVERAL`] if more than one thread has waited.
    waiter: AtomicUsize,
    /// The approximate number of waits since the last wait that asked the kernel for events.
    calls: AtomicU32,
    /// The number of the slot of shared memory whose event is reported first. It changes, because a program
    /// may ask for few events. All connections then get their turn.
    first: AtomicU32,
}

/// The value of `Instance::waiter` if several threads have waited on the epoll instance.
const SEVERAL: usize = usize::MAX;

static INSTANCES: [Instance; MOST] = [const {
    Instance {
        readers: AtomicU64::new(0),
        writers: AtomicU64::new(0),
        waiter: AtomicUsize::new(0),
        calls: AtomicU32::new(0),
        first: AtomicU32::new(0),
    }
}; MOST];

fn instance(fd: RawFd) -> Option<&'static Instance> {
    usize::try_from(fd).ok().and_then(|fd| INSTANCES.get(fd))
}

/// Returns a number that identifies the calling thread among the running threads of the process.
pub fn thread() -> usize {
    // SAFETY: has no preconditions. Each thread has an errno of its own.
    unsafe { libc::__errno_location() as usize }
}

/// Returns the index of `slot` in the shared memory of the current control connection. Returns `None` if the
/// slot lies in the shared memory of an earlier one.
pub fn index_of(slot: Slot) -> Option<usize> {
    control::area()?.index_of(slot)
}

fn set(mask: &AtomicU64, bit: u64, value: bool) {
    // If the bit already has this value, skip the locked operation. This is the frequent case.
    if (mask.load(Ordering::Relaxed) & bit != 0) != value {
        match value {
            true => mask.fetch_or(bit, Ordering::Relaxed),
            false => mask.fetch_and(!bit, Ordering::Relaxed),
        };
    }
}

/// Clears the copied registrations that belong to an earlier epoll instance with the number `fd`. Call this
/// when the program has created an instance with this number.
pub fn forget_instance(fd: RawFd) {
    for watched in &WATCHED {
        if watched.instance.load(Ordering::Relaxed) == fd {
            watched.inode.store(0, Ordering::Relaxed);
            fence(Ordering::Release);
            watched.fd.store(0, Ordering::Relaxed);
        }
    }
    if let Some(instance) = instance(fd) {
        instance.readers.store(0, Ordering::Relaxed);
        instance.writers.store(0, Ordering::Relaxed);
        instance.waiter.store(0, Ordering::Relaxed);
    }
}

/// Records that the program registered `fd` in the epoll instance `epoll`, or changed its registration.
pub fn note_registered(epoll: RawFd, fd: RawFd, event: epoll_event) {
    if let Some(slot) = direct::slot(fd)
        && let Some(index) = index_of(slot)
    {
        register(epoll, fd, event, slot, index);
    }
}

fn register(epoll: RawFd, fd: RawFd, event: epoll_event, slot: Slot, index: usize) {
    let (watched, bit) = (&WATCHED[index], 1u64 << index);
    let inode = slot.header().inode.load(Ordering::Acquire);
    let same = watched.of(epoll, slot).is_some_and(|(watched, _)| watched == fd);
    if !same {
        if !direct::is_same_quietly(fd, slot) {
            return;
        }
        remove(index);
    }
    let Some(instance) = instance(epoll).filter(|_| event.events & !SUPPORTED == 0) else {
        remove(index);
        // The library cannot find the events of this registration, so only the kernel reports them. Let the
        // engine move the bytes offered in shared memory to the socket pair, because the kernel sees only the
        // pair.
        return direct::withdraw_from(fd, slot);
    };
    watched.data.store(event.u64, Ordering::Relaxed);
    watched.instance.store(epoll, Ordering::Relaxed);
    watched.fd.store(fd + 1, Ordering::Relaxed);
    watched.inode.store(inode, Ordering::Release);
    let reads = event.events & libc::EPOLLIN as u32 != 0;
    set(&instance.readers, bit, reads);
    set(&instance.writers, bit, event.events & libc::EPOLLOUT as u32 != 0);
    if reads && !same {
        post(instance, slot);
    }
}

/// Removes the library's copy of an epoll registration. From now on, the program learns of the connection's
/// events from the kernel alone.
fn remove(index: usize) {
    let (watched, bit) = (&WATCHED[index], 1u64 << index);
    if watched.fd.load(Ordering::Relaxed) == 0 {
        return;
    }
    deferred::note_removed(index);
    watched.inode.store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    let fd = watched.fd.swap(0, Ordering::Relaxed) - 1;
    if let Some(slot) = control::area().and_then(|area| area.slot(index)) {
        direct::withdraw_from(fd, slot);
    }
    if let Some(instance) = instance(watched.instance.load(Ordering::Relaxed)) {
        set(&instance.readers, bit, false);
        set(&instance.writers, bit, false);
    }
}

/// Records that `fd` was removed from the epoll instance `epoll`.
pub fn note_removed(epoll: RawFd, fd: RawFd) {
    let index = direct::slot(fd).and_then(index_of);
    if let Some(index) = index
        && WATCHED[index].fd.load(Ordering::Relaxed) == fd + 1
        && WATCHED[index].instance.load(Ordering::Relaxed) == epoll
        && let Some(instance) = instance(epoll)
    {
        // Keep the library's copy of the registration and only stop reporting events, because many programs
        // register the descriptor again.
        set(&instance.readers, 1 << index, false);
        set(&instance.writers, 1 << index, false);
    }
}

/// Removes the copied epoll registration for `slot` of the shared memory, if it belongs to an earlier
/// connection. Call this when a new connection has got the slot.
pub fn forget_outdated(slot: Slot) {
    if let Some(index) = index_of(slot)
        && WATCHED[index].inode.load(Ordering::Relaxed) != slot.header().inode.load(Ordering::Acquire)
    {
        remove(index);
    }
}

/// Records that the connection `fd` now has the slot `slot` of shared memory.
pub fn note_adopted(fd: RawFd, slot: Slot) {
    let before = errno();
    if let Some(index) = index_of(slot)
        && let Some((instance, event)) = epoll::registered(fd, SUPPORTED)
    {
        register(instance, fd, event, slot, index);
        deferred::note_kernel(instance, fd, Some(event));
    }
    set_errno(before);
}

/// Returns true if this module has a copy of the registration of `fd` in the epoll instance `epoll`.
pub fn watches(epoll: RawFd, fd: RawFd) -> bool {
    direct::slot(fd).is_some_and(|slot| {
        index_of(slot)
            .and_then(|index| WATCHED[index].of(epoll, slot))
            .is_some_and(|(watched, _)| watched == fd)
    })
}

/// Returns true if the calling thread, and no other, waits for the events of the epoll instance `fd`.
pub fn waits_alone(fd: RawFd) -> bool {
    instance(fd).is_some_and(|instance| instance.waiter.load(Ordering::Relaxed) == thread())
}

/// Posts a receive in `slot` of the shared memory. Does nothing unless the calling thread is the one that
/// waits for events of the epoll instance.
fn post(instance: &Instance, slot: Slot) {
    let header = slot.header();
    let inode = header.inode.load(Ordering::Acquire);
    if instance.waiter.load(Ordering::Relaxed) != thread()
        || inode == 0
        || header.low_water.load(Ordering::Relaxed) != 0
        || !slot.receive().post()
    {
        return;
    }
    direct::check_post(slot, inode);
}

/// Posts a new receive for a connection that the calling thread watches for input. Call this when the
/// kernel's receive on `fd` has returned bytes.
pub fn note_received(fd: RawFd, slot: Slot) {
    if let Some(index) = index_of(slot)
        && WATCHED[index].fd.load(Ordering::Relaxed) == fd + 1
        && let Some(instance) = instance(WATCHED[index].instance.load(Ordering::Relaxed))
        && instance.readers.load(Ordering::Relaxed) & 1 << index != 0
        && slot.receive().is_idle()
        && instance.waiter.load(Ordering::Relaxed) == thread()
        && direct::is_same_quietly(fd, slot)
    {
        post(instance, slot);
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
    let instance = instance(fd)?;
    let thread = thread();
    let waiter = instance.waiter.load(Ordering::Relaxed);
    if waiter != thread {
        if !sleeps {
            return None;
        }
        let waiter = if waiter == 0 { thread } else { SEVERAL };
        instance.waiter.store(waiter, Ordering::Relaxed);
    }
    let used = instance.readers.load(Ordering::Relaxed) | instance.writers.load(Ordering::Relaxed) != 0;
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
            let Some((fd, data)) = WATCHED[index].of(self.fd, slot) else { continue };
            let mut found = 0;
            if ready & bit != 0 {
                let mut readable = is_readable(fd, slot);
                if !readable {
                    area.ready().fetch_and(!bit, Ordering::AcqRel);
                    // Check again after clearing the slot's ready bit. Between the first check and the
                    // clearing, the engine may have offered bytes in the slot.
                    readable = is_readable(fd, slot);
                    if readable {
                        area.ready().fetch_or(bit, Ordering::AcqRel);
                    }
                }
                if readable {
                    found |= libc::EPOLLIN as u32;
                }
            }
            if writers & bit != 0 && has_room(slot) {
                found |= libc::EPOLLOUT as u32;
            }
            if found == 0 {
                continue;
            }
            if direct::slot(fd) != Some(slot) || !direct::is_same(fd, slot) {
                remove(index);
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
        }
        count as c_int
    }

    /// Stops the posted receives of all watched connections. Call it before the thread sleeps in the kernel,
    /// because offers do not wake a sleeping thread. Stores the events of connections that already have an
    /// offer, and returns the number of events.
    pub fn stop(self) -> c_int {
        let Some(area) = control::area() else { return 0 };
        let mut rest = self.instance.readers.load(Ordering::Relaxed);
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if let Some(slot) = area.slot(index)
                && !slot.receive().stop()
            {
                // The engine has offered bytes in this slot, but may not have set the slot's ready bit yet.
                // `look` checks only slots with a set ready bit, so set the bit here.
                area.ready().fetch_or(1 << index, Ordering::AcqRel);
            }
        }
        self.look()
    }
}

/// Returns true if a slot offers bytes, or if the engine is copying the slot's offered bytes into the socket
/// pair. May change errno.
fn is_readable(fd: RawFd, slot: Slot) -> bool {
    slot.receive().offered().is_some() || direct::is_moving(fd, slot)
}

/// Returns true if a thread may write into the send ring of `slot` now, and at least half of the ring is
/// free.
fn has_room(slot: Slot) -> bool {
    let header = slot.header();
    let Some(position) = slot.send().granted() else { return false };
    let used = position.wrapping_sub(header.copied.0.load(Ordering::Acquire));
    used <= SEND as u64 / 2 && header.shut.load(Ordering::Relaxed) == 0 && direct::is_alive(slot)
}
