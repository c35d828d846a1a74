//! The table that maps descriptors to their slots of shared memory, and the receive rings in these slots.
//!
//! Calls that the library does not intercept can make an entry of the table outdated. So the library compares the descriptor's
//! inode with the slot's inode: before the first use, and before the next use after each call that may close or replace the
//! descriptor. Even an outdated entry points to valid memory, because slots are never unmapped.

use crate::descriptor::is_hung_up;
use crate::polling::Patience;
use crate::time::now_ns;
use crate::{descriptor, errno, set_errno};
use inlane_offload_protocol::slots::Slot;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The number of descriptors in the table. Sockets with higher descriptors always use the socket pair.
const MOST: usize = 32768;

/// The library relies on the engine for this many nanoseconds after its last heartbeat. After that, the
/// engine may have ended.
const ALIVE_NS: u64 = 20_000_000;

/// What the library has found out about a descriptor.
pub struct Entry {
    pub slot: AtomicPtr<u8>,
    /// The inode of the socket to which the descriptor was found to refer, and the value of [`CLOSED_RANGES`] at that time
    /// in the upper half. 0 once a call may have closed or replaced the descriptor.
    pub known: AtomicU64,
    /// The number of calls that may have closed or replaced the descriptor.
    pub changes: AtomicU32,
    /// Whether the library sees all sends on the socket: [`UNKNOWN`], [`SEEN`] or [`UNSEEN`].
    pub sight: AtomicU32,
    /// The number of threads that use the descriptor in the kernel, in ways that could change its pair.
    pub users: AtomicU32,
    /// Whether the descriptor blocks, in the lowest bit. The other bits are those of [`blocking_key`] at the time of the
    /// kernel's answer.
    pub blocking: AtomicU64,
    /// The approximate number of sends through the kernel. Concurrent threads may miss some.
    pub sends: AtomicU32,
    /// The approximate number of receives through the kernel that returned at least `LEAST_COUNTED` bytes.
    pub receives: AtomicU32,
    /// How many more times the library looks for a slot that the connection may have got from the start.
    pub lookups: AtomicU32,
    pub patience: Patience,
    /// Decides whether a receive posts its buffer.
    pub post_patience: Patience,
    /// Decides whether a large send waits until the engine has read the pair.
    pub send_patience: Patience,
}

/// The library does not know whether it has seen all sends on the socket.
pub const UNKNOWN: u32 = 0;
/// The library sees all sends on the socket: no other descriptor and no other program has had it.
pub const SEEN: u32 = 1;
/// There are sends on the descriptor that the library does not see, also if the descriptor gets another socket: a stream of the C
/// library uses it, for example.
pub const UNSEEN: u32 = 2;

impl Entry {
    /// Returns the slot that the table holds for the descriptor. It may be outdated, so check it with [`is_same`].
    #[inline]
    pub fn slot(&self) -> Option<Slot> {
        // SAFETY: all slots in the table lie in shared memory that stays mapped.
        unsafe { Slot::from_ptr(self.slot.load(Ordering::Acquire)) }
    }

    /// Makes the next use of the slot ask the kernel for the descriptor's socket. See [`ask_same`] for the order.
    pub fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.known.store(0, Ordering::SeqCst);
    }

    /// Removes the outdated slot `slot` from the table, because each later call would check it again. Does nothing if
    /// another thread has stored another slot meanwhile.
    pub fn remove(&self, slot: Slot) {
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

/// Returns the entry of a descriptor, or `None` if it is too high for the table.
#[inline]
pub fn entry(fd: RawFd) -> Option<&'static Entry> {
    usize::try_from(fd).ok().and_then(|fd| ENTRIES.get(fd))
}

/// Returns the slot that the table holds for `fd`. It may be outdated, so check it with [`is_same`].
#[inline]
pub fn of(fd: RawFd) -> Option<Slot> {
    entry(fd)?.slot()
}

/// Returns true if a connection with the descriptor `fd` can use a slot.
pub fn may_have(fd: RawFd) -> bool {
    entry(fd).is_some()
}

/// The number of calls that may have closed a range of descriptors.
pub static CLOSED_RANGES: AtomicU32 = AtomicU32::new(0);

/// Returns a number that changes with each call that may close or replace the descriptor, before and after the call.
#[inline]
pub fn closes(fd: RawFd) -> u64 {
    let changes = entry(fd).map_or(0, |entry| entry.changes.load(Ordering::SeqCst));
    u64::from(CLOSED_RANGES.load(Ordering::SeqCst)) << 32 | u64::from(changes)
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
pub fn blocks(fd: RawFd, entry: &Entry, slot: Slot) -> bool {
    let key = blocking_key(slot);
    let known = entry.blocking.load(Ordering::Relaxed);
    if known & !1 == key {
        return known & 1 != 0;
    }
    let blocks = descriptor::blocks(fd);
    entry.blocking.store(key | u64::from(blocks), Ordering::Relaxed);
    blocks
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
pub fn is_recent(alive_ns: u64) -> bool {
    now_ns() < alive_ns.wrapping_add(ALIVE_NS)
}

/// Returns true if the engine is awake.
pub fn is_alive(slot: Slot) -> bool {
    is_recent(slot.doorbell().alive_ns.load(Ordering::Relaxed))
}

/// The longest wait until the engine has moved bytes of the ring to the pair, in nanoseconds. The engine usually
/// needs a few microseconds, but may wait for a processor.
const MOVE_NS: u64 = 200_000_000;

/// Leaves the receive ring of `fd`, which lies in `slot`. Lets the engine move the bytes that are there to the socket pair.
#[inline]
pub fn leave(fd: RawFd, slot: Slot) {
    if slot.receive().leave() {
        await_move(fd, slot);
    }
}

/// Waits briefly while the engine moves bytes of `fd` from shared memory to the socket pair. If the
/// slot is outdated or the engine does not finish, removes the slot from the table, because each later call
/// would wait again. Leaves errno unchanged.
#[cold]
pub fn await_move(fd: RawFd, slot: Slot) {
    let before = errno();
    let start = now_ns();
    let mut ends = is_same(fd, slot);
    while ends && is_moving(fd, slot) {
        ends = now_ns() < start + MOVE_NS;
        // Yield, because the engine may be waiting for this processor.
        // SAFETY: has no preconditions.
        unsafe { libc::sched_yield() };
    }
    if let Some(entry) = entry(fd)
        && (!ends || slot.receive().is_moving())
    {
        entry.remove(slot);
    }
    set_errno(before);
}

/// Returns true if the engine is copying bytes of `fd` from shared memory into the socket pair.
/// Returns false if the engine has ended. May change errno.
pub fn is_moving(fd: RawFd, slot: Slot) -> bool {
    slot.receive().is_moving() && (is_alive(slot) || !is_hung_up(fd))
}

/// Asks the engine for the receive ring of `slot`, unless that was already done. Returns false if the slot does not
/// belong to the connection with this inode any more.
pub fn ask(slot: Slot, inode: u64) -> bool {
    if !slot.receive().ask() {
        return true;
    }
    // The engine clears the inode before it gives the slot to another connection. So if this thread has asked for the ring
    // of another connection, it finds another inode.
    let same = slot.header().inode.load(Ordering::Acquire) == inode;
    if !same {
        slot.receive().leave();
    }
    same
}

/// Leaves the receive ring of `slot` before the calling thread sleeps in the kernel. Returns false if bytes are there.
pub fn stop(fd: RawFd, slot: Slot) -> bool {
    slot.receive().stop() || {
        await_move(fd, slot);
        slot.received().is_none() && !slot.receive().is_at_end()
    }
}
