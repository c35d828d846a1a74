//! Sends and receives through memory that the process shares with the engine ([`inlane_offload_protocol::lease`]), instead of the pair.
//!
//! A socket that is used often gets a slot. The table from descriptors to slots may be outdated by any call that the library does not see,
//! so it is only a hint: before each use, the library compares the descriptor's inode with the slot's. A slot is never unmapped. So
//! a thread, a forked child or a signal handler may use an outdated entry at any time, and finds that the inode differs.

use crate::signals::Held;
use crate::{control, errno, fail, real, set_errno, socket};
use inlane_offload_protocol::lease::{Post, Posted, SEND, Slot};
use libc::{c_int, c_void, iovec, ssize_t};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The number of descriptors in the table. Higher descriptors use the pair.
const MOST: usize = 1024;
/// The number of sends after which a socket gets a slot, so that short connections do not pay for one.
const ENOUGH: u32 = 16;
/// The count from which the library asks again about a descriptor that got no slot.
const AGAIN: u32 = 1024;
/// A lease is used only if the engine has written the time within this many nanoseconds. The engine of an
/// unused lease may have been killed.
const ALIVE_NS: u64 = 20_000_000;

struct Entry {
    slot: AtomicPtr<u8>,
    /// The number of sends through the kernel, counted roughly.
    sends: AtomicU32,
    /// How many active waits in sequence were in vain.
    vain: AtomicU32,
    /// How many receives to leave to the kernel before the next active wait.
    skip: AtomicU32,
}

static ENTRIES: [Entry; MOST] = [const {
    Entry {
        slot: AtomicPtr::new(std::ptr::null_mut()),
        sends: AtomicU32::new(0),
        vain: AtomicU32::new(0),
        skip: AtomicU32::new(0),
    }
}; MOST];

/// How long a receive waits actively before it sleeps, in nanoseconds: as long as the engine does.
static WAIT_NS: AtomicU64 = AtomicU64::new(0);
/// The most receives that are left to the kernel after active waits in vain, as an exponent of 2.
const MOST_SKIPPED: u32 = 6;
/// How often an active wait looks whether the pair has bytes, in nanoseconds.
const LOOK_NS: u64 = 1000;

/// True if the engine shares no memory.
static UNAVAILABLE: AtomicBool = AtomicBool::new(false);

fn entry(fd: RawFd) -> Option<&'static Entry> {
    usize::try_from(fd).ok().and_then(|fd| ENTRIES.get(fd))
}

/// Forgets what the table has about a descriptor. Call this when a descriptor gets a new socket.
pub fn forget(fd: RawFd) {
    if let Some(entry) = entry(fd) {
        entry.slot.store(std::ptr::null_mut(), Ordering::Relaxed);
        entry.sends.store(0, Ordering::Relaxed);
    }
}

/// Returns the slot that the table has for a descriptor.
fn slot(fd: RawFd) -> Option<Slot> {
    // SAFETY: the table contains only slots of areas that stay mapped.
    unsafe { Slot::from_ptr(entry(fd)?.slot.load(Ordering::Acquire)) }
}

/// Call this after bytes were sent on a descriptor through the kernel. Asks the engine for a slot if the descriptor is an offloaded
/// connection that is used often.
#[inline]
pub fn note_sent(fd: RawFd) {
    let Some(entry) = entry(fd) else { return };
    let sends = entry.sends.load(Ordering::Relaxed).wrapping_add(1);
    entry.sends.store(sends, Ordering::Relaxed);
    if sends == ENOUGH || sends == AGAIN {
        adopt(fd, entry);
    }
}

#[cold]
fn adopt(fd: RawFd, entry: &Entry) {
    entry.sends.store(ENOUGH + 1, Ordering::Relaxed);
    if UNAVAILABLE.load(Ordering::Relaxed)
        || slot(fd).is_some_and(|slot| is_same(fd, slot))
        || socket::name_of(fd).is_none_or(|name| name.kind.is_datagram())
    {
        return;
    }
    match control::adopt(fd) {
        Ok((slot, wait_us)) => {
            WAIT_NS.store(u64::from(wait_us) * 1000, Ordering::Relaxed);
            if real::option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT) != Some(1) {
                slot.header().low_water.store(1, Ordering::Relaxed);
            }
            entry.slot.store(slot.as_ptr(), Ordering::Release);
        }
        Err(libc::EOPNOTSUPP) => UNAVAILABLE.store(true, Ordering::Relaxed),
        Err(_) => {}
    }
}

/// Returns true if `fd` is the socket to which the engine has assigned the slot.
fn is_same(fd: RawFd, slot: Slot) -> bool {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the structure is written if the call succeeds, and read only then.
    let status = unsafe {
        if libc::fstat(fd, status.as_mut_ptr()) != 0 {
            return false;
        }
        status.assume_init()
    };
    let header = slot.header();
    status.st_ino == header.inode.load(Ordering::Acquire)
        && status.st_dev == header.device.load(Ordering::Relaxed)
}

/// Returns true if the pair has no bytes that the engine has not read.
fn pair_is_empty(fd: RawFd) -> bool {
    let mut bytes: c_int = 1;
    // SAFETY: the number lives through the call.
    unsafe { real::ioctl(fd, libc::TIOCOUTQ, (&raw mut bytes).cast()) == 0 && bytes == 0 }
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds.
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns true if the engine ran a short time ago.
fn is_alive(slot: Slot) -> bool {
    now_ns() < slot.header().alive_ns.load(Ordering::Relaxed).wrapping_add(ALIVE_NS)
}

/// Sends the bytes of `parts` through shared memory. Returns their number, or `None` if they must go through the kernel. Leaves errno
/// unchanged.
///
/// # Safety
/// `parts` are the program's arguments.
#[inline]
pub unsafe fn send(fd: RawFd, parts: &[iovec]) -> Option<ssize_t> {
    let slot = slot(fd)?;
    // SAFETY: as for this function.
    unsafe { send_to(fd, slot, parts) }
}

unsafe fn send_to(fd: RawFd, slot: Slot, parts: &[iovec]) -> Option<ssize_t> {
    let len = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))?;
    if len == 0 || len > SEND {
        return None;
    }
    let claim = slot.send().claim()?;
    let (before, position, header) = (errno(), claim.position, slot.header());
    let used = position.wrapping_sub(header.copied.0.load(Ordering::Acquire));
    let possible = used <= (SEND - len) as u64
        && header.shut.load(Ordering::Relaxed) == 0
        && is_alive(slot)
        && is_same(fd, slot)
        && pair_is_empty(fd);
    set_errno(before);
    if !possible {
        let _ = slot.send().commit(claim, 0);
        return None;
    }
    let mut at = position;
    for part in parts {
        // SAFETY: the program's arguments. The thread has claimed the ring, and the bytes fit.
        unsafe { slot.write_send(at, part.iov_base.cast(), part.iov_len) };
        at += part.iov_len as u64;
    }
    slot.send().commit(claim, len as u64).then_some(len as ssize_t)
}

/// Call this before the program shuts down the sending direction of `fd`: later sends must go to the kernel, which refuses them.
pub fn shut(fd: RawFd) {
    if let Some(slot) = slot(fd).filter(|&slot| is_same(fd, slot)) {
        slot.header().shut.store(1, Ordering::Relaxed);
    }
}

/// Call this when the program sets SO_RCVLOWAT.
pub fn note_low_water(fd: RawFd) {
    if let Some(slot) = slot(fd).filter(|&slot| is_same(fd, slot)) {
        slot.header().low_water.store(1, Ordering::Relaxed);
    }
}

/// Receives bytes as recv(2) without flags does. First waits actively for a short time, because a sleep costs more. Returns the result of
/// the program's call, or `None` if the kernel must receive.
///
/// # Safety
/// `buffer` and `len` are the program's arguments.
#[inline]
pub unsafe fn receive(fd: RawFd, buffer: *mut c_void, len: usize) -> Option<ssize_t> {
    let slot = slot(fd)?;
    // SAFETY: as for this function.
    unsafe { receive_from(fd, entry(fd)?, slot, buffer, len) }
}

unsafe fn receive_from(
    fd: RawFd,
    entry: &Entry,
    slot: Slot,
    buffer: *mut c_void,
    len: usize,
) -> Option<ssize_t> {
    let wait_ns = WAIT_NS.load(Ordering::Relaxed);
    let skip = entry.skip.load(Ordering::Relaxed);
    if skip > 0 {
        entry.skip.store(skip - 1, Ordering::Relaxed);
        return None;
    }
    if len == 0 || wait_ns == 0 || slot.header().low_water.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let before = errno();
    // SAFETY: the program's arguments.
    let receive = || unsafe { real::recv(fd, buffer, len, libc::MSG_DONTWAIT) };
    match receive() {
        -1 if errno() == libc::EAGAIN => {}
        -1 if errno() == libc::ENOTSOCK => {
            set_errno(before);
            return None;
        }
        result => return Some(result),
    }
    let signals = Held::new();
    let blocks = socket::blocks(fd);
    let inode = slot.header().inode.load(Ordering::Relaxed);
    if !blocks || !is_same(fd, slot) || inode == 0 {
        signals.release(false);
        set_errno(before);
        return if blocks { None } else { Some(fail(libc::EAGAIN)) };
    }
    let mut post = None;
    let start = now_ns();
    let (mut looked, mut now) = (start, start);
    let received = loop {
        // SAFETY: the program's arguments.
        if let Some(bytes) = unsafe { poll_post(slot, &mut post, buffer, len) } {
            break Some(bytes as ssize_t);
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
            // The bytes may come from a thread that waits for this processor.
            // SAFETY: has no preconditions.
            unsafe { libc::sched_yield() };
        }
        // The engine may have given the slot to another connection before this post.
        if post.is_none() && slot.header().inode.load(Ordering::Relaxed) == inode {
            post = slot.receive().post(len);
            if slot.header().inode.load(Ordering::Acquire) != inode {
                break None;
            }
        }
        std::hint::spin_loop();
        now = now_ns();
    };
    let failure = errno();
    let received = match (post, received) {
        // SAFETY: the program's arguments.
        (Some(post), received) => unsafe { end_post(slot, post, received, buffer, len) },
        (None, received) => received,
    };
    let vain =
        if received.is_some() { 0 } else { (entry.vain.load(Ordering::Relaxed) + 1).min(MOST_SKIPPED) };
    entry.vain.store(vain, Ordering::Relaxed);
    entry.skip.store((1 << vain) - 1, Ordering::Relaxed);
    let interrupts = signals.release(received.is_none());
    set_errno(if received == Some(-1) { failure } else { before });
    match received {
        None if interrupts => Some(fail(libc::EINTR)),
        received => received,
    }
}

/// Copies and takes the bytes that the engine has offered for `post`. Returns their number, or `None` if there are none. Clears `post`
/// if it has ended.
unsafe fn poll_post(slot: Slot, post: &mut Option<Post>, buffer: *mut c_void, len: usize) -> Option<usize> {
    let current = (*post)?;
    match slot.receive().state(current) {
        Posted::Waiting => None,
        Posted::Ended => {
            *post = None;
            None
        }
        Posted::Offered(bytes) => {
            *post = None;
            let bytes = bytes.min(len);
            // SAFETY: the program's arguments: the buffer has room for `len` bytes.
            unsafe { slot.read_received(buffer.cast(), bytes) };
            slot.receive().take(current, bytes).then_some(bytes)
        }
    }
}

/// Ends a posted receive. If the engine has made an offer meanwhile, takes it, unless the program's call has a result already.
unsafe fn end_post(
    slot: Slot,
    post: Post,
    received: Option<ssize_t>,
    buffer: *mut c_void,
    len: usize,
) -> Option<ssize_t> {
    if slot.receive().cancel(post) {
        return received;
    }
    match (received, slot.receive().state(post)) {
        (Some(_), Posted::Offered(bytes)) => slot.receive().decline(post, bytes),
        (None, _) => {
            // SAFETY: as for this function.
            return unsafe { poll_post(slot, &mut Some(post), buffer, len) }.map(|bytes| bytes as ssize_t);
        }
        _ => {}
    }
    received
}
