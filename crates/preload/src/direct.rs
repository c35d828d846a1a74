//! Sends and receives the bytes of offloaded connections through memory that the process shares with the
//! engine ([`inlane_offload_protocol::lease`]).
//!
//! A connection gets a slot of this memory if it sends often, or if it often receives much with a blocking
//! descriptor. A table maps descriptors to slots. Calls that the library does not intercept can make an entry
//! of the table outdated. So before each use, the library compares the descriptor's inode with the slot's
//! inode. Even an outdated entry points to valid memory, because slots are never unmapped.

use crate::epoll::ready;
use crate::signals::BlockedSignals;
use crate::wait::{self, Patience};
use crate::{control, errno, fail, real, set_errno, socket};
use inlane_offload_protocol::address::is_possible;
use inlane_offload_protocol::lease::{SEND, Slot};
use libc::{c_int, c_long, c_void, iovec, ssize_t};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};

/// The number of descriptors in the table. Sockets with higher descriptors always use the socket pair.
const MOST: usize = 1024;
/// The number of sends or receives through the kernel before the library asks for a slot of shared memory. It
/// is above 1 because short connections must not cause a request.
const ENOUGH: u32 = 16;
/// While a connection has no slot of shared memory, its sends and receives go through the kernel. After each
/// this many of them, the library asks for a slot again.
const AGAIN: u32 = 1024;
/// The library uses a lease for this many nanoseconds after the engine's last heartbeat. After that, the
/// engine may have ended.
const ALIVE_NS: u64 = 20_000_000;

/// The least length in bytes of a receive that counts toward [`ENOUGH`]. Shorter receives do not count,
/// because programs with only short messages seldom benefit from shared memory.
const LEAST_COUNTED: usize = 4096;

struct Entry {
    slot: AtomicPtr<u8>,
    /// The approximate number of sends through the kernel. Concurrent threads may miss some.
    sends: AtomicU32,
    /// The approximate number of receives through the kernel that returned at least `LEAST_COUNTED` bytes.
    receives: AtomicU32,
    patience: Patience,
}

static ENTRIES: [Entry; MOST] = [const {
    Entry {
        slot: AtomicPtr::new(std::ptr::null_mut()),
        sends: AtomicU32::new(0),
        receives: AtomicU32::new(0),
        patience: Patience::new(),
    }
}; MOST];

/// During an active wait, the time in nanoseconds between two checks whether the socket pair has bytes.
const LOOK_NS: u64 = 1000;

/// True if the engine has answered that it shares no memory with programs. False if the engine shares memory,
/// or was not asked yet.
static UNAVAILABLE: AtomicBool = AtomicBool::new(false);

fn entry(fd: RawFd) -> Option<&'static Entry> {
    usize::try_from(fd).ok().and_then(|fd| ENTRIES.get(fd))
}

/// Removes a descriptor's slot from the table. Call this when the descriptor gets a new socket.
pub fn forget(fd: RawFd) {
    if let Some(entry) = entry(fd) {
        entry.slot.store(std::ptr::null_mut(), Ordering::Relaxed);
        entry.sends.store(0, Ordering::Relaxed);
        entry.receives.store(0, Ordering::Relaxed);
    }
}

/// Returns the slot of shared memory that the table holds for a descriptor, or `None` if it holds none. The
/// slot may be outdated, so check it with `is_same`.
#[inline]
pub fn slot(fd: RawFd) -> Option<Slot> {
    // SAFETY: all slots in the table lie in shared memory that stays mapped.
    unsafe { Slot::from_ptr(entry(fd)?.slot.load(Ordering::Acquire)) }
}

/// Counts a send through the kernel. If the descriptor is an offloaded connection that sends often, asks the
/// engine for a slot of shared memory. Call this after each send through the kernel.
#[inline]
pub fn note_sent(fd: RawFd) {
    let Some(entry) = entry(fd) else { return };
    if count(&entry.sends) {
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
    if count(&entry.receives) && wait::is_offloaded(fd) && socket::blocks(fd) {
        adopt(fd, entry);
    }
}

/// Adds 1 to a counter of calls. Returns true if the library should ask for a slot now.
#[inline]
fn count(calls: &AtomicU32) -> bool {
    let count = calls.load(Ordering::Relaxed);
    calls.store(count.wrapping_add(1), Ordering::Relaxed);
    count == ENOUGH || (count > 0 && count.is_multiple_of(AGAIN))
}

#[cold]
fn adopt(fd: RawFd, entry: &Entry) {
    if UNAVAILABLE.load(Ordering::Relaxed)
        || slot(fd).is_some_and(|slot| is_same(fd, slot))
        || socket::name_of(fd).is_none_or(|name| name.kind.is_datagram())
    {
        return;
    }
    match control::adopt(fd) {
        Ok((slot, wait_us)) => {
            ready::forget_outdated(slot);
            wait::set_time(wait_us);
            if real::option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT) != Some(1) {
                slot.header().low_water.store(1, Ordering::Relaxed);
            }
            entry.slot.store(slot.as_ptr(), Ordering::Release);
            ready::note_adopted(fd, slot);
        }
        Err(libc::EOPNOTSUPP) => UNAVAILABLE.store(true, Ordering::Relaxed),
        Err(_) => {}
    }
}

/// Returns the inode and the device number of a descriptor's file, or `None` if there is none. May change errno.
pub fn identity(fd: RawFd) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat(2) fills the structure if it succeeds. The structure is read only in that case.
    unsafe {
        (libc::fstat(fd, status.as_mut_ptr()) == 0).then(|| {
            let status = status.assume_init();
            (status.st_ino, status.st_dev)
        })
    }
}

/// Returns true if the slot of shared memory belongs to the socket that `fd` currently refers to. May change
/// errno.
pub fn is_same(fd: RawFd, slot: Slot) -> bool {
    let header = slot.header();
    identity(fd).is_some_and(|(inode, device)| {
        inode == header.inode.load(Ordering::Acquire) && device == header.device.load(Ordering::Relaxed)
    })
}

/// Like [`is_same`], but leaves errno unchanged.
pub fn is_same_quietly(fd: RawFd, slot: Slot) -> bool {
    let before = errno();
    let same = is_same(fd, slot);
    set_errno(before);
    same
}

/// Returns true if the engine has read all bytes that the program has sent through the pair. Returns false if
/// some bytes are unread, or if the kernel gives no answer.
fn pair_is_empty(fd: RawFd) -> bool {
    let mut bytes: c_int = 1;
    // SAFETY: the kernel writes one c_int to `bytes`, which outlives the call.
    unsafe { real::ioctl(fd, libc::TIOCOUTQ, (&raw mut bytes).cast()) == 0 && bytes == 0 }
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns true if the engine's last heartbeat is less than `ALIVE_NS` ago. Returns false if the engine may
/// have ended.
pub fn is_alive(slot: Slot) -> bool {
    now_ns() < slot.header().alive_ns.load(Ordering::Relaxed).wrapping_add(ALIVE_NS)
}

/// Sends the bytes of `parts` through shared memory. `flags` are flags of send(2). Only MSG_DONTWAIT and
/// MSG_NOSIGNAL are supported. Returns the number of sent bytes, or `None` if the caller must send the bytes
/// through the kernel. Leaves errno unchanged.
///
/// # Safety
/// Each element of `parts` points to as many readable bytes as its length says.
#[inline]
pub unsafe fn send(fd: RawFd, parts: &[iovec], flags: c_int) -> Option<ssize_t> {
    let slot = slot(fd)?;
    // SAFETY: the caller promises that the buffers in `parts` are readable.
    unsafe { send_to(fd, slot, parts, flags) }
}

/// Returns false if the kernel certainly refuses one of the buffers.
fn are_possible(parts: &[iovec]) -> bool {
    parts.iter().all(|part| part.iov_len == 0 || is_possible(part.iov_base, part.iov_len))
}

unsafe fn send_to(fd: RawFd, slot: Slot, parts: &[iovec], flags: c_int) -> Option<ssize_t> {
    let len = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))?;
    if !are_possible(parts) {
        return None;
    }
    if let ([part], true) = (parts, len > SEND) {
        // SAFETY: the caller promises that the buffer is readable.
        return unsafe { send_large(fd, slot, part.iov_base.cast(), len, flags) };
    }
    if len == 0 || len > SEND {
        return None;
    }
    let claim = slot.send().claim()?;
    if room(slot, claim.position) < len || !may_send(fd, slot) {
        let _ = slot.send().commit(claim, 0);
        return None;
    }
    let mut at = claim.position;
    for part in parts {
        // SAFETY: the caller promises that the parts are readable. This thread has claimed the send ring, and
        // the bytes fit into it.
        unsafe { slot.write_send(at, part.iov_base.cast(), part.iov_len) };
        at += part.iov_len as u64;
    }
    slot.send().commit(claim, len as u64).then_some(len as ssize_t)
}

/// Returns how many more bytes fit into the send ring of `slot` in shared memory. `position` is the end of
/// the bytes in the ring, as returned by a claim of the ring.
fn room(slot: Slot, position: u64) -> usize {
    let used = position.wrapping_sub(slot.header().copied.0.load(Ordering::Acquire));
    (SEND as u64).saturating_sub(used) as usize
}

/// Returns true if a thread that has claimed the send ring may write into it. Sending must not be shut down,
/// the engine must be alive, and the socket pair must be empty. `fd` must still belong to the slot of shared
/// memory. Leaves errno unchanged.
fn may_send(fd: RawFd, slot: Slot) -> bool {
    let before = errno();
    let may = slot.header().shut.load(Ordering::Relaxed) == 0
        && is_alive(slot)
        && is_same(fd, slot)
        && pair_is_empty(fd);
    set_errno(before);
    may
}

/// How long a large send waits for free bytes in the send ring, in nanoseconds. After this time, it sends the
/// remaining bytes through the kernel.
const ROOM_NS: u64 = 20_000;

/// Sends `len` bytes in several parts, because they do not fit into the send ring of the slot in shared
/// memory. If the call may block, it waits briefly for room in the ring. Bytes without room are sent through
/// the kernel. The engine reads these after the bytes in the ring.
///
/// # Safety
/// `from` has `len` readable bytes.
unsafe fn send_large(fd: RawFd, slot: Slot, from: *const u8, len: usize, flags: c_int) -> Option<ssize_t> {
    let header = slot.header();
    let inode = header.inode.load(Ordering::Acquire);
    let device = header.device.load(Ordering::Relaxed);
    let mut sent = 0;
    let mut since = 0;
    while sent < len {
        let Some(claim) = slot.send().claim() else { break };
        // During this call, another thread may close the connection. The slot of shared memory may then
        // belong to another connection.
        let same = header.inode.load(Ordering::Acquire) == inode;
        let part = room(slot, claim.position).min(len - sent);
        let may = same && (part == 0 || sent > 0 || may_send(fd, slot));
        if part == 0 || !may {
            let _ = slot.send().commit(claim, 0);
            let now = now_ns();
            if !may || (since > 0 && now >= since + ROOM_NS) {
                break;
            }
            if since == 0 {
                if flags & libc::MSG_DONTWAIT != 0 || !socket::blocks(fd) {
                    break;
                }
                since = now;
            }
            std::hint::spin_loop();
            continue;
        }
        // SAFETY: the caller promises readable bytes. This thread has claimed the ring, and the bytes fit.
        unsafe { slot.write_send(claim.position, from.add(sent), part) };
        if !slot.send().commit(claim, part as u64) {
            break;
        }
        (sent, since) = (sent + part, 0);
    }
    if sent == 0 {
        return None;
    }
    let before = errno();
    if sent < len && identity(fd) == Some((inode, device)) {
        // Offer the rest to the kernel even if the descriptor is non-blocking. With edge-triggered epoll, a
        // program gets the next EPOLLOUT only after a send that the kernel could not accept as a whole.
        // SAFETY: the caller guarantees readable bytes.
        let rest = unsafe { real::send(fd, from.add(sent).cast(), len - sent, flags | libc::MSG_NOSIGNAL) };
        sent += usize::try_from(rest).unwrap_or(0);
    }
    set_errno(before);
    Some(sent as ssize_t)
}

/// Makes later sends on `fd` bypass shared memory and go to the kernel, which refuses them. Call this before
/// the program shuts down the sending direction of the socket.
pub fn shut(fd: RawFd) {
    if let Some(slot) = slot(fd).filter(|&slot| is_same(fd, slot)) {
        slot.header().shut.store(1, Ordering::Relaxed);
    }
}

/// Makes later receives on `fd` go to the kernel. Call this when the program sets SO_RCVLOWAT, because
/// receives through shared memory ignore that option.
pub fn note_low_water(fd: RawFd) {
    if let Some(slot) = slot(fd).filter(|&slot| is_same(fd, slot)) {
        slot.header().low_water.store(1, Ordering::Relaxed);
        slot.receive().ask();
    }
}

/// The longest wait until the engine has moved offered bytes to the pair, in nanoseconds. The engine usually
/// needs a few microseconds, but may wait for a processor.
const MOVE_NS: u64 = 200_000_000;

/// Ends the posted receive of `fd`. If the engine has offered bytes in shared memory, lets it move these
/// bytes to the socket pair. Call this before a system call that looks at the descriptor's received bytes.
#[inline]
pub fn withdraw(fd: RawFd) {
    if let Some(slot) = slot(fd) {
        withdraw_from(fd, slot);
    }
}

/// Ends the posted receive of `fd` in its slot `slot`. Lets the engine move offered bytes from the slot to
/// the socket pair.
#[inline]
pub fn withdraw_from(fd: RawFd, slot: Slot) {
    if slot.receive().ask() {
        await_move(fd, slot);
    }
}

/// Ends the posted receive of `fd` if the descriptor is blocking. Call this before the kernel's receive, if
/// shared memory has no bytes. The thread may then sleep in the kernel, and the engine can wake it there only
/// through the socket pair.
#[inline]
pub fn note_kernel_receives(fd: RawFd) {
    if let Some(slot) = slot(fd)
        && !slot.receive().is_idle()
    {
        let before = errno();
        if socket::blocks(fd) {
            withdraw(fd);
        }
        set_errno(before);
    }
}

/// Waits briefly while the engine moves offered bytes of `fd` from shared memory to the socket pair. If the
/// slot is outdated or the engine does not finish, removes the slot from the table, because each later call
/// would wait again. Leaves errno unchanged.
#[cold]
fn await_move(fd: RawFd, slot: Slot) {
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
        let slot = slot.as_ptr();
        let none = std::ptr::null_mut();
        let _ = entry.slot.compare_exchange(slot, none, Ordering::Relaxed, Ordering::Relaxed);
    }
    set_errno(before);
}

/// Returns true if the engine is copying the offered bytes of `fd` from shared memory into the socket pair.
/// Returns false if the engine has ended. May change errno.
pub fn is_moving(fd: RawFd, slot: Slot) -> bool {
    slot.receive().is_moving() && (is_alive(slot) || !is_hung_up(fd))
}

/// Returns true if the engine's end of the socket pair is closed.
fn is_hung_up(fd: RawFd) -> bool {
    let mut pair = libc::pollfd { fd, events: 0, revents: 0 };
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Use a raw system call. The C library's function is a cancellation point: pthread_cancel could end the
    // thread in it. SAFETY: the structures live through the call.
    let found = unsafe {
        let (pair, none) = (&raw mut pair as c_long, &raw const none as c_long);
        real::syscall(libc::SYS_ppoll, pair, 1, none, 0, 0, 0)
    };
    found == 1 && pair.revents & (libc::POLLHUP | libc::POLLNVAL) != 0
}

/// Returns the number of received bytes of socket `fd` that are offered in shared memory, or `None` if there
/// are none.
pub fn offered(fd: RawFd) -> Option<usize> {
    let slot = slot(fd)?;
    if slot.receive().is_moving() {
        await_move(fd, slot);
    }
    let offer = slot.receive().offered()?;
    is_same_quietly(fd, slot).then_some(offer.len as usize)
}

/// Receives bytes that the engine has already offered in shared memory. If `takes` is false, only reads the
/// bytes without consuming them (MSG_PEEK). Returns their number, or `None` if there are none. Leaves errno
/// unchanged.
///
/// # Safety
/// `parts` points to `count` buffers. Each buffer is writable for the length that it states.
#[inline]
pub unsafe fn receive_offered(fd: RawFd, parts: *const iovec, count: usize, takes: bool) -> Option<ssize_t> {
    let slot = slot(fd)?;
    // SAFETY: the caller's promises.
    unsafe { take_offered(fd, slot, parts, count, takes, || is_same_quietly(fd, slot)) }
}

/// Implements [`receive_offered`] for a caller that has already found the socket's slot. `is_same` must
/// return true if the slot still belongs to the socket `fd`.
#[inline]
unsafe fn take_offered(
    fd: RawFd,
    slot: Slot,
    parts: *const iovec,
    count: usize,
    takes: bool,
    is_same: impl FnOnce() -> bool,
) -> Option<ssize_t> {
    let Some(offer) = slot.receive().offered() else {
        if slot.receive().is_moving() {
            await_move(fd, slot);
        }
        return None;
    };
    if !is_possible(parts, 0) || !is_same() {
        return None;
    }
    // SAFETY: the caller promises `count` buffers.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    if !are_possible(parts) {
        // Let the receive go to the kernel, which refuses the invalid buffers.
        withdraw(fd);
        return None;
    }
    let mut copied = 0;
    for part in parts {
        let len = part.iov_len.min(offer.len as usize - copied);
        // SAFETY: the caller guarantees that each part of the program's buffer has room for `iov_len` bytes.
        unsafe { slot.read_offered(offer, copied, part.iov_base.cast(), len) };
        copied += len;
    }
    if takes && copied > 0 && !slot.receive().take(offer, copied as u64) {
        // The engine has withdrawn the offer meanwhile. The kernel's receive must find its bytes in the socket pair.
        if slot.receive().is_moving() {
            await_move(fd, slot);
        }
        return None;
    }
    (copied > 0).then_some(copied as ssize_t)
}

/// Checks, after a receive was posted in `slot` of the shared memory, that the slot still belongs to the
/// connection with this inode. If so, returns true. Otherwise ends the posted receive and returns false.
pub fn check_post(slot: Slot, inode: u64) -> bool {
    // Before the engine closes a slot, it clears the slot's inode and then executes a fence. So either this
    // thread reads the cleared inode, or the engine finds the posted receive.
    fence(Ordering::SeqCst);
    let same = slot.header().inode.load(Ordering::Acquire) == inode;
    if !same {
        slot.receive().ask();
    }
    same
}

/// Implements recv(2) without flags. Polls for a short time, because sleeping and waking up costs more.
/// Returns the result of the program's call, or `None` if the caller must receive through the kernel.
///
/// # Safety
/// `buffer` points to `len` writable bytes.
#[inline]
pub unsafe fn receive(fd: RawFd, buffer: *mut c_void, len: usize) -> Option<ssize_t> {
    let slot = slot(fd)?;
    // SAFETY: the caller promises `len` writable bytes at `buffer`.
    unsafe { receive_from(fd, entry(fd)?, slot, buffer, len) }
}

unsafe fn receive_from(
    fd: RawFd,
    entry: &Entry,
    slot: Slot,
    buffer: *mut c_void,
    len: usize,
) -> Option<ssize_t> {
    let part = iovec { iov_base: buffer, iov_len: len };
    // SAFETY: the program's arguments.
    let take = || unsafe { receive_offered(fd, &part, 1, true) };
    if let Some(bytes) = take() {
        return Some(bytes);
    }
    let wait_ns = wait::time_ns();
    if entry.patience.skips() {
        // End the posted receive. The engine wakes a thread that sleeps in the kernel only through the socket
        // pair.
        return if stop(fd, slot) { None } else { take() };
    }
    if len == 0
        || wait_ns == 0
        || !is_possible(buffer, len)
        || slot.header().low_water.load(Ordering::Relaxed) != 0
    {
        return None;
    }
    let before = errno();
    // SAFETY: the program's arguments.
    let receive = || unsafe { real::recv(fd, buffer, len, libc::MSG_DONTWAIT) };
    // If a receive is posted, do not read the socket pair first. Received bytes then usually arrive in the
    // slot of shared memory.
    let waits = !slot.receive().is_idle() && socket::blocks(fd);
    if !waits {
        match receive() {
            -1 if errno() == libc::EAGAIN && !socket::blocks(fd) => return Some(fail(libc::EAGAIN)),
            -1 if errno() == libc::EAGAIN => {}
            -1 if errno() == libc::ENOTSOCK => {
                set_errno(before);
                return None;
            }
            result => return Some(result),
        }
    }
    let signals = BlockedSignals::new();
    let inode = slot.header().inode.load(Ordering::Relaxed);
    if !is_same(fd, slot) || inode == 0 {
        signals.release(false);
        set_errno(before);
        return None;
    }
    // From here on, check only that the slot still belongs to the same socket. Do not check the descriptor,
    // because another thread may close it. Like a receive that sleeps in the kernel, the call must then
    // continue.
    let is_unchanged =
        || slot.header().inode.load(Ordering::Acquire) == inode && self::slot(fd) == Some(slot);
    // SAFETY: the program's arguments.
    let take_known = || unsafe { take_offered(fd, slot, &part, 1, true, is_unchanged) };
    let start = now_ns();
    let (mut looked, mut now) = (start, start);
    let mut received = loop {
        if let Some(bytes) = take_known() {
            break Some(bytes);
        }
        if now >= start + wait_ns {
            break None;
        }
        if now >= looked + LOOK_NS {
            looked = now;
            let result = receive();
            if result != -1 || errno() != libc::EAGAIN {
                break Some(result);
            }
            // Yield, because the thread that sends the bytes may be waiting for this processor.
            // SAFETY: has no preconditions.
            unsafe { libc::sched_yield() };
        }
        // Keep a receive posted while the slot of shared memory belongs to this connection. It stays posted
        // after this call, so that the next call finds bytes without a system call.
        if slot.receive().is_idle() && slot.header().inode.load(Ordering::Relaxed) == inode {
            let posted = slot.receive().post();
            if posted && !check_post(slot, inode) {
                break None;
            }
        }
        std::hint::spin_loop();
        now = now_ns();
    };
    let failure = errno();
    if received.is_none() && !stop(fd, slot) {
        received = take();
    }
    entry.patience.note(received.is_some());
    let interrupts = signals.release(received.is_none());
    set_errno(if received == Some(-1) { failure } else { before });
    match received {
        None if interrupts => Some(fail(libc::EINTR)),
        received => received,
    }
}

/// Ends the posted receive of `slot`, a slot of shared memory, before the calling thread sleeps in the
/// kernel. Returns false if the engine has offered bytes in the slot.
fn stop(fd: RawFd, slot: Slot) -> bool {
    slot.receive().stop() || {
        await_move(fd, slot);
        slot.receive().offered().is_none()
    }
}
