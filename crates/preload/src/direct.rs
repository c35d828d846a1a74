//! Sends and receives the bytes of offloaded connections through memory that the process shares with the
//! engine ([`inlane_offload_protocol::slots`]).
//!
//! In a process with many connections, each gets a slot of this memory from the start ([`from_start`]). Otherwise a connection
//! gets one if it sends often, or if it often receives much with a blocking descriptor. A table maps descriptors to slots
//! ([`slots`](crate::slots)).

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
pub use leave::{has_end, leave, note_kernel_receives, note_low_water};
pub use receive::{available, receive, receive_available};
pub use send::{send, shut};
pub use whole::receive_whole;

use crate::epoll::ready;
use crate::slots::{CLOSED_RANGES, Entry, SEEN, UNKNOWN, UNSEEN, entry, is_same};
use crate::{control, descriptor, polling, real};
use inlane_offload_protocol::address::is_possible;
use inlane_offload_protocol::slots::Slot;
use libc::iovec;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// The number of sends or receives through the kernel before the library asks for a slot of shared memory. It
/// is above 1 because short connections must not cause a request.
const ENOUGH: u32 = 16;

/// The number of bytes for which a send counts once more toward [`ENOUGH`].
const LARGE: usize = 32 << 10;

/// While a connection has no slot of shared memory, its sends and receives go through the kernel. After each
/// this many of them, the library asks for a slot again.
const AGAIN: u32 = 1024;

/// The least length in bytes of a receive that counts toward [`ENOUGH`]. Shorter receives do not count,
/// because programs with only short messages seldom benefit from shared memory.
const LEAST_COUNTED: usize = 4096;

/// True if the engine has answered that it shares no memory with programs. False if the engine shares memory,
/// or was not asked yet.
static UNAVAILABLE: AtomicBool = AtomicBool::new(false);

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

/// Returns the slot of shared memory that the table holds for a descriptor. If it holds none, looks for the slot that the
/// connection may have from the start. The slot may be outdated, so check it with [`is_same`].
#[inline]
pub fn slot(fd: RawFd) -> Option<Slot> {
    let entry = entry(fd)?;
    match entry.slot() {
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

/// Returns false if the kernel certainly refuses one of the buffers.
fn are_possible(parts: &[iovec]) -> bool {
    parts.iter().all(|part| part.iov_len == 0 || is_possible(part.iov_base, part.iov_len))
}
