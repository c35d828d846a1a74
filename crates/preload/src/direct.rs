//! Sends and receives the bytes of offloaded connections through memory that the process shares with the
//! engine ([`inlane_offload_protocol::slots`]).
//!
//! In a process with many connections, each gets a slot of this memory from the start ([`from_start`]). Otherwise a connection
//! gets one if it sends often, or if it often receives much with a blocking descriptor. A table maps descriptors to slots. Calls that the library does not intercept can make an entry
//! of the table outdated. So the library compares the descriptor's inode with the slot's inode: before the first use, and before
//! the next use after each call that may close or replace the descriptor. Even an outdated entry points to valid memory, because slots are never unmapped.

mod buffers;
mod from_start;
pub mod kept;
mod leave;
mod post;
mod receive;
mod send;
pub mod waiting;
mod whole;

pub use from_start::{expect_slot, expect_slot_of_accepted, find_slot};
use leave::is_polled_readable;
pub use leave::{ask, has_end, is_moving, leave, leave_slot, note_kernel_receives, note_low_water};
pub use receive::{available, receive, receive_available};
pub use send::{send, shut};
pub use whole::receive_whole;

use crate::epoll::ready;
use crate::polling::Patience;

use crate::time::now_ns;
use crate::{control, descriptor, errno, polling, real, set_errno};
use inlane_offload_protocol::address::is_possible;
use inlane_offload_protocol::slots::Slot;
use libc::iovec;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The number of descriptors in the table. Sockets with higher descriptors always use the socket pair.
const MOST: usize = 32768;

/// The number of sends or receives through the kernel before the library asks for a slot of shared memory. It
/// is above 1 because short connections must not cause a request.
const ENOUGH: u32 = 16;

/// The number of bytes for which a send counts once more toward [`ENOUGH`].
const LARGE: usize = 32 << 10;

/// While a connection has no slot of shared memory, its sends and receives go through the kernel. After each
/// this many of them, the library asks for a slot again.
const AGAIN: u32 = 1024;

/// The library relies on the engine for this many nanoseconds after its last heartbeat. After that, the
/// engine may have ended.
const ALIVE_NS: u64 = 20_000_000;

/// The least length in bytes of a receive that counts toward [`ENOUGH`]. Shorter receives do not count,
/// because programs with only short messages seldom benefit from shared memory.
const LEAST_COUNTED: usize = 4096;

struct Entry {
    slot: AtomicPtr<u8>,
    /// The inode of the socket to which the descriptor was found to refer, and the value of [`CLOSED_RANGES`] at that time
    /// in the upper half. 0 once a call may have closed or replaced the descriptor.
    known: AtomicU64,
    /// The number of calls that may have closed or replaced the descriptor.
    changes: AtomicU32,
    /// Whether the library sees all sends on the socket: [`UNKNOWN`], [`SEEN`] or [`UNSEEN`].
    sight: AtomicU32,
    /// The number of threads that use the descriptor in the kernel, in ways that could change its pair.
    users: AtomicU32,
    /// Whether the descriptor blocks, in the lowest bit. The other bits are those of [`blocking_key`] at the time of the
    /// kernel's answer.
    blocking: AtomicU64,
    /// The approximate number of sends through the kernel. Concurrent threads may miss some.
    sends: AtomicU32,
    /// The approximate number of receives through the kernel that returned at least `LEAST_COUNTED` bytes.
    receives: AtomicU32,
    /// How many more times the library looks for a slot that the connection may have got from the start.
    lookups: AtomicU32,
    patience: Patience,
    /// Decides whether a receive posts its buffer.
    post_patience: Patience,
    /// Decides whether a large send waits until the engine has read the pair.
    send_patience: Patience,
}

/// The library does not know whether it has seen all sends on the socket.
const UNKNOWN: u32 = 0;
/// The library sees all sends on the socket: no other descriptor and no other program has had it.
const SEEN: u32 = 1;
/// There are sends on the descriptor that the library does not see, also if the descriptor gets another socket: a stream of the C
/// library uses it, for example.
const UNSEEN: u32 = 2;

impl Entry {
    /// Makes the next use of the slot ask the kernel for the descriptor's socket. See [`ask_same`] for the order.
    fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.known.store(0, Ordering::SeqCst);
    }

    /// Removes the outdated slot `slot` from the table, because each later call would check it again. Does nothing if
    /// another thread has stored another slot meanwhile.
    fn remove(&self, slot: Slot) {
        let none = std::ptr::null_mut();
        let _ = self.slot.compare_exchange(slot.as_ptr(), none, Ordering::Relaxed, Ordering::Relaxed);
    }
}

static ENTRIES: [Entry; MOST] = [const {
    Entry {
        slot: AtomicPtr::new(std::ptr::null_mut()),
        known: AtomicU64::new(0),
        changes: AtomicU32::new(0),
        sight: AtomicU32::new(UNKNOWN),
        users: AtomicU32::new(0),
        blocking: AtomicU64::new(0),
        sends: AtomicU32::new(0),
        receives: AtomicU32::new(0),
        lookups: AtomicU32::new(0),
        patience: Patience::new(),
        post_patience: Patience::new(),
        send_patience: Patience::new(),
    }
}; MOST];

/// True if the engine has answered that it shares no memory with programs. False if the engine shares memory,
/// or was not asked yet.
static UNAVAILABLE: AtomicBool = AtomicBool::new(false);

#[inline]
fn entry(fd: RawFd) -> Option<&'static Entry> {
    usize::try_from(fd).ok().and_then(|fd| ENTRIES.get(fd))
}

/// Returns true if a connection with the descriptor `fd` can use a slot.
pub fn may_have_slot(fd: RawFd) -> bool {
    entry(fd).is_some()
}

/// Returns the number of calls that may have closed or replaced the descriptor.
#[inline]
fn changes(fd: RawFd) -> u32 {
    entry(fd).map_or(0, |entry| entry.changes.load(Ordering::SeqCst))
}

/// The number of calls that may have closed a range of descriptors.
static CLOSED_RANGES: AtomicU32 = AtomicU32::new(0);

/// Records that a call closes `fd`, or replaces it by another file. Drop the result after the call. The next use of the slot
/// then asks the kernel whether the descriptor still refers to the same socket. Before the call, because another thread may
/// get the number at once. After the call, because another thread may have used the descriptor meanwhile.
#[inline]
#[must_use]
pub fn closing(fd: RawFd) -> Option<Closing> {
    waiting::forget(fd);
    kept::forget(fd);
    let entry = entry(fd)?;
    if entry.sight.load(Ordering::Relaxed) != UNKNOWN {
        entry.sight.store(UNKNOWN, Ordering::Relaxed);
    }
    if entry.slot.load(Ordering::Relaxed).is_null() {
        return None;
    }
    entry.note_change();
    Some(Closing(entry))
}

/// A call that closes or replaces a descriptor.
pub struct Closing(&'static Entry);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.note_change();
    }
}

/// Does the same as [`closing`] for all descriptors. Call it before and after the call that closes them.
pub fn note_closing_all() {
    waiting::forget_all();
    CLOSED_RANGES.fetch_add(1, Ordering::SeqCst);
}

/// The number of calls that may have made descriptors blocking or non-blocking.
static FLAG_CHANGES: AtomicU32 = AtomicU32::new(0);

/// Records that a call has made a descriptor blocking or non-blocking. Its duplicates share the change.
pub fn note_flags() {
    FLAG_CHANGES.fetch_add(1, Ordering::SeqCst);
}

/// Returns the number of [`note_flags`] calls and the inode of the slot's socket in one word, whose lowest bit is 0.
fn blocking_key(slot: Slot) -> u64 {
    let inode = slot.header().inode.load(Ordering::Acquire) & u64::from(u32::MAX);
    u64::from(FLAG_CHANGES.load(Ordering::SeqCst)) << 33 | inode << 1
}

/// Returns true unless the descriptor is non-blocking. Asks the kernel only after a call of this process that may have
/// changed this. Another process that shares the socket may change it, too. So use the answer only where a wrong one costs
/// no more than time. May change errno.
#[inline]
fn blocks(fd: RawFd, entry: &Entry, slot: Slot) -> bool {
    let key = blocking_key(slot);
    let known = entry.blocking.load(Ordering::Relaxed);
    if known & !1 == key {
        return known & 1 != 0;
    }
    let blocks = descriptor::blocks(fd);
    entry.blocking.store(key | u64::from(blocks), Ordering::Relaxed);
    blocks
}

/// The highest descriptor that ever got a new socket.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// Records that the descriptor gets a new socket, which no other descriptor has. Removes its slot from the table.
pub fn note_new(fd: RawFd) {
    kept::forget(fd);
    if let Some(entry) = entry(fd) {
        let sight = if entry.sight.load(Ordering::Relaxed) == UNSEEN { UNSEEN } else { SEEN };
        drop(closing(fd));
        entry.slot.store(std::ptr::null_mut(), Ordering::Relaxed);
        entry.sends.store(0, Ordering::Relaxed);
        entry.receives.store(0, Ordering::Relaxed);
        entry.lookups.store(0, Ordering::Relaxed);
        entry.sight.store(sight, Ordering::Relaxed);
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
}

/// Records that bytes may be sent on the socket of `fd` in ways that the library does not see: through another descriptor,
/// by another program, by a stream of the C library, or by the kernel itself.
pub fn note_unseen(fd: RawFd) {
    kept::opened::restore(fd);
    let Some(entry) = entry(fd) else { return };
    entry.sight.store(UNSEEN, Ordering::SeqCst);
    slot(fd).iter().for_each(|slot| slot.pair().note_unseen());
}

/// Returns true if the library sees all sends on the socket of `fd`, which no other descriptor has.
pub fn is_seen(fd: RawFd) -> bool {
    entry(fd).is_some_and(|entry| entry.sight.load(Ordering::SeqCst) == SEEN)
}

/// Records that another program may get the socket of `fd`, and send on it.
fn note_shared(fd: RawFd) {
    lose_sight(fd);
    slot(fd).iter().for_each(|slot| slot.pair().note_unseen());
}

/// Records that another process may use the socket of `fd`.
fn lose_sight(fd: RawFd) {
    kept::opened::restore(fd);
    if let Some(entry) = entry(fd) {
        let _ = entry.sight.compare_exchange(SEEN, UNKNOWN, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Records that another program may get the sockets of all descriptors.
pub fn note_all_shared() {
    kept::stop();
    (0..=HIGHEST.load(Ordering::Relaxed)).for_each(note_shared);
    post::await_end();
}

/// Prepares for a fork. The child finds the slots of the connections that have one, and marks its sends there. It cannot mark
/// those on other connections.
extern "C" fn note_fork() {
    kept::stop();
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        match slot(fd) {
            None => note_shared(fd),
            Some(_) => lose_sight(fd),
        }
    }
    post::await_end();
}

extern "C" fn note_forked() {
    post::forget_in_child();
}

/// Lets [`note_fork`] run before each fork.
pub fn watch_forks() {
    real::at_fork(Some(note_fork), Some(note_forked));
}

/// A use of a connection with a slot in the kernel. Create it before the system call, and drop it after that.
pub struct Using(Option<&'static Entry>);

/// Begins a [`Using`] of `fd`. Its pair is then not kept for another connection meanwhile.
#[inline]
pub fn using(fd: RawFd) -> Using {
    let entry = entry(fd).filter(|entry| !entry.slot.load(Ordering::Relaxed).is_null());
    if let Some(entry) = entry {
        entry.users.fetch_add(1, Ordering::SeqCst);
    }
    Using(entry)
}

impl Drop for Using {
    fn drop(&mut self) {
        if let Some(entry) = self.0 {
            entry.users.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Makes the system call `call` on `fd`, as a [`Using`].
#[inline]
pub fn using_for<T>(fd: RawFd, call: impl FnOnce() -> T) -> T {
    let _using = using(fd);
    call()
}

/// Returns true if a thread uses `fd` in the kernel. A thread that begins it after the descriptor was closed does not count.
pub fn is_used(fd: RawFd) -> bool {
    entry(fd).is_some_and(|entry| entry.users.load(Ordering::SeqCst) != 0)
}

/// Records that the program passes `fd` to another process.
pub fn note_passed(fd: RawFd) {
    kept::stop();
    note_unseen(fd);
}

/// A send of the library through the socket pair. Create it before the kernel's send, and drop it after that.
pub struct Sending(Option<Slot>);

/// Begins a [`Sending`] on `fd`.
#[inline]
pub fn sending(fd: RawFd) -> Sending {
    kept::opened::restore(fd);
    let slot = slot(fd);
    slot.iter().for_each(|slot| slot.pair().note_sent());
    Sending(slot)
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.iter().for_each(|slot| slot.pair().note_sent());
    }
}

/// Returns the slot of shared memory that the table holds for a descriptor, or `None` if it holds none. The
/// slot may be outdated, so check it with `is_same`.
#[inline]
pub fn slot(fd: RawFd) -> Option<Slot> {
    let entry = entry(fd)?;
    // SAFETY: all slots in the table lie in shared memory that stays mapped.
    let slot = unsafe { Slot::from_ptr(entry.slot.load(Ordering::Acquire)) };
    match slot {
        None if entry.lookups.load(Ordering::Relaxed) > 0 => from_start::find(fd, entry),
        slot => slot,
    }
}

/// Counts a send of `len` bytes through the kernel, and a large one several times. If the descriptor is an offloaded connection that sends often, asks the
/// engine for a slot of shared memory. Call this after each send through the kernel.
#[inline]
pub fn note_sent(fd: RawFd, len: usize) {
    let Some(entry) = entry(fd) else { return };
    if count(&entry.sends, 1 + (len / LARGE) as u32) {
        adopt(fd, entry);
    }
}

/// Counts a receive through the kernel that returned `len` bytes. If a blocking descriptor of an offloaded
/// connection often receives many bytes at once, asks the engine for a slot of shared memory. Call this after
/// each such receive.
#[inline]
pub fn note_received(fd: RawFd, len: usize) {
    let Some(entry) = entry(fd) else { return };
    if let Some(slot) = slot(fd) {
        ready::note_received(fd, slot);
    }
    if len < LEAST_COUNTED {
        return;
    }
    if count(&entry.receives, 1) && polling::is_offloaded(fd) && descriptor::blocks(fd) {
        adopt(fd, entry);
    }
}

/// Adds `weight` to a counter of calls. Returns true if the library should ask for a slot now.
#[inline]
fn count(calls: &AtomicU32, weight: u32) -> bool {
    let before = calls.load(Ordering::Relaxed);
    let count = before.wrapping_add(weight);
    calls.store(count, Ordering::Relaxed);
    before <= ENOUGH && count > ENOUGH || before / AGAIN != count / AGAIN
}

#[cold]
fn adopt(fd: RawFd, entry: &Entry) {
    if UNAVAILABLE.load(Ordering::Relaxed)
        || slot(fd).is_some_and(|slot| is_same(fd, slot))
        || descriptor::name_of(fd).is_none_or(|name| name.kind.is_datagram())
    {
        return;
    }
    match control::adopt(fd) {
        Ok((slot, wait_us)) => {
            ready::forget_outdated(slot);
            polling::set_time(wait_us);
            if real::option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT) != Some(1) {
                slot.header().low_water.store(1, Ordering::Relaxed);
            }
            entry.slot.store(slot.as_ptr(), Ordering::Release);
            // Look last, because another thread may change this meanwhile.
            if entry.sight.load(Ordering::SeqCst) != SEEN {
                slot.pair().note_unseen();
            }
            ready::note_adopted(fd, slot);
        }
        Err(libc::EOPNOTSUPP) => UNAVAILABLE.store(true, Ordering::Relaxed),
        Err(_) => {}
    }
}

/// Returns true if the slot of shared memory belongs to the socket that `fd` currently refers to. May change
/// errno.
///
/// Asks the kernel only if a call of this process may have closed or replaced the descriptor since the last answer. The
/// library does not see a close by io_uring or by a system call instruction of the program. The slot's inode then changes
/// when the engine notices the close.
#[inline]
pub fn is_same(fd: RawFd, slot: Slot) -> bool {
    let Some(entry) = entry(fd) else { return false };
    let inode = slot.header().inode.load(Ordering::Acquire);
    let known = u64::from(CLOSED_RANGES.load(Ordering::SeqCst)) << 32 | inode;
    inode != 0 && entry.known.load(Ordering::SeqCst) == known || ask_same(fd, entry, slot, known)
}

#[cold]
fn ask_same(fd: RawFd, entry: &Entry, slot: Slot, known: u64) -> bool {
    let header = slot.header();
    let changes = entry.changes.load(Ordering::SeqCst);
    let Some((inode, device)) = descriptor::identity(fd) else { return false };
    if inode != header.inode.load(Ordering::Acquire) || device != header.device.load(Ordering::Relaxed) {
        return false;
    }
    if inode == known & u64::from(u32::MAX) {
        entry.known.store(known, Ordering::SeqCst);
        // Another thread may have closed the descriptor after the kernel's answer.
        if entry.changes.load(Ordering::SeqCst) != changes {
            entry.known.store(0, Ordering::SeqCst);
        }
    }
    true
}

/// Like [`is_same`], but leaves errno unchanged.
pub fn is_same_quietly(fd: RawFd, slot: Slot) -> bool {
    let before = errno();
    let same = is_same(fd, slot);
    set_errno(before);
    same
}

/// Returns true if the engine's heartbeat at the time `alive_ns` is recent. Returns false if the engine sleeps, or may have
/// ended.
fn is_recent(alive_ns: u64) -> bool {
    now_ns() < alive_ns.wrapping_add(ALIVE_NS)
}

/// Returns true if the engine is awake.
pub fn is_alive(slot: Slot) -> bool {
    is_recent(slot.doorbell().alive_ns.load(Ordering::Relaxed))
}

/// Returns false if the kernel certainly refuses one of the buffers.
fn are_possible(parts: &[iovec]) -> bool {
    parts.iter().all(|part| part.iov_len == 0 || is_possible(part.iov_base, part.iov_len))
}
