//! Sends through shared memory.
//!
//! ```text
//! room in the ring, the pair is empty  ---> copy into the ring, commit
//! the ring is full                     ---> a blocking send sleeps until half of it is free
//! bytes in the pair                    ---> a large blocking send sleeps until the engine has read them
//! otherwise                            ---> the kernel sends the rest through the pair
//! ```

use super::{are_possible, sending, slot};
use crate::descriptor::{identity, is_hung_up};
use crate::slots::{Entry, closes, entry, is_recent, is_same};
use crate::time::now_ns;
use crate::{descriptor, errno, fail, real, set_errno, signals};
use inlane_offload_protocol::slots::Slot;
use libc::{c_int, c_long, iovec, ssize_t};
use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

/// The most bytes that a send writes before it commits them. The engine sends the first part of a large send while the
/// program copies the rest.
const CHUNK: usize = 32 << 10;

/// How long a send spins before it sleeps until the ring has room, in nanoseconds.
const SPIN_NS: u64 = 2_000;
/// The longest sleep until the thread looks at the ring again, in nanoseconds. It is about the time in which an engine sends half
/// of a ring, because the engine may miss a sleeper that has only just begun to sleep.
const SLEEP_NS: i64 = 200_000;
/// How long a send waits for room in the ring, in nanoseconds. After this time it sends the rest through the kernel, where the
/// thread sleeps at no cost and notices the end of the engine.
const ROOM_NS: u64 = 100_000_000;
/// How long a send waits until the engine has read the pair, in nanoseconds. The engine needs about a millisecond to read what
/// fits into the pair.
const PAIR_NS: u64 = 20_000_000;

/// Returns true if the engine has read all bytes that the program has sent through the pair. Returns false if
/// some bytes are unread, or if the kernel gives no answer. `claims` is true if this thread has claimed the ring.
fn pair_is_empty(fd: RawFd, slot: Slot, claims: bool) -> bool {
    slot.pair().is_empty(claims, || {
        let mut bytes: c_int = 1;
        // SAFETY: the kernel writes one c_int to `bytes`, which outlives the call.
        unsafe { real::ioctl(fd, libc::TIOCOUTQ, (&raw mut bytes).cast()) == 0 && bytes == 0 }
    })
}

/// Sends the bytes of `parts` through shared memory. `flags` are flags of send(2). Only MSG_DONTWAIT and
/// MSG_NOSIGNAL are supported. Returns the result of the program's call, or `None` if the caller must send the bytes
/// through the kernel. Leaves errno unchanged unless it returns -1.
///
/// # Safety
/// Each element of `parts` points to as many readable bytes as its length says.
#[inline]
pub unsafe fn send(fd: RawFd, parts: &[iovec], flags: c_int) -> Option<ssize_t> {
    let slot = slot(fd)?;
    let len = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))?;
    if len == 0 || !are_possible(parts) {
        return None;
    }
    let before = errno();
    let mut send = Send {
        fd,
        slot,
        entry: entry(fd)?,
        inode: slot.header().inode.load(Ordering::Acquire),
        closes: closes(fd),
        flags,
        rest: Rest { parts, skipped: 0, len },
        total: len,
        checked: false,
        may_sleep: None,
    };
    // SAFETY: the caller promises that the buffers in `parts` are readable.
    let sent = unsafe { send.run() };
    if sent != Some(-1) {
        set_errno(before);
    }
    sent
}

/// The bytes of a send that are not sent yet.
struct Rest<'a> {
    parts: &'a [iovec],
    /// The number of bytes of the first part that are sent.
    skipped: usize,
    len: usize,
}

impl Rest<'_> {
    /// Returns the unsent bytes of the first part.
    fn first(&self) -> Option<iovec> {
        let part = self.parts.first()?;
        Some(iovec {
            iov_base: part.iov_base.wrapping_byte_add(self.skipped),
            iov_len: part.iov_len - self.skipped,
        })
    }

    /// Counts `len` bytes of the first part as sent.
    fn advance(&mut self, len: usize) {
        self.skipped += len;
        self.len -= len;
        while let [part, parts @ ..] = self.parts
            && self.skipped == part.iov_len
        {
            (self.parts, self.skipped) = (parts, 0);
        }
    }
}

/// How a wait for the ring has ended.
enum Waited {
    /// The next attempt will probably find room in the ring and an empty pair.
    Ready,
    /// The send may not wait, or has waited for too long.
    InVain,
    /// A signal handler has run.
    Interrupted,
}

/// A send through shared memory.
struct Send<'a> {
    fd: RawFd,
    slot: Slot,
    entry: &'static Entry,
    /// The inode of the slot's socket. During this call, another thread may close the connection. The slot may then belong
    /// to another connection.
    inode: u64,
    /// The number of closes of the descriptor at the start. The next connection may have the same socket.
    closes: u64,
    flags: c_int,
    rest: Rest<'a>,
    total: usize,
    /// True if the descriptor belongs to the slot, and the pair holds no bytes that this call or an earlier one has sent.
    checked: bool,
    /// Whether the call may sleep. `None` until it is known.
    may_sleep: Option<bool>,
}

impl Send<'_> {
    /// # Safety
    /// The buffers are readable.
    unsafe fn run(&mut self) -> Option<ssize_t> {
        while self.rest.len > 0 {
            // SAFETY: the caller's promise.
            let (written, stays) = unsafe { self.write() };
            if written > 0 {
                continue;
            }
            match if stays { self.wait() } else { Waited::InVain } {
                Waited::Ready => {}
                Waited::Interrupted if self.sent() > 0 => break,
                Waited::Interrupted if signals::restarts() => {}
                Waited::Interrupted => return Some(fail(libc::EINTR)),
                // SAFETY: the caller's promise.
                Waited::InVain => return unsafe { self.send_rest() },
            }
        }
        Some(self.sent() as ssize_t)
    }

    fn sent(&self) -> usize {
        self.total - self.rest.len
    }

    /// Claims the ring, and copies as many bytes into it as fit, at most [`CHUNK`]. Returns their number, and whether a
    /// later attempt may succeed if there are none.
    ///
    /// # Safety
    /// The buffers are readable.
    unsafe fn write(&mut self) -> (usize, bool) {
        let stays = self.sent() > 0 || self.total > CHUNK;
        let Some(claim) = self.slot.send().claim() else { return (0, stays) };
        let same =
            self.slot.header().inode.load(Ordering::Acquire) == self.inode && closes(self.fd) == self.closes;
        let most = self.slot.room(claim.index).min(self.rest.len).min(CHUNK);
        // Ring first, because the engine then finds the bytes before it falls asleep.
        let alive_ns = self.slot.ring_doorbell();
        if !same || most == 0 || alive_ns == 0 || !(self.checked || self.may_send(alive_ns)) {
            let _ = self.slot.send().commit(claim, 0);
            return (0, same && (most == 0 || stays));
        }
        self.checked = true;
        let rest = Rest { ..self.rest };
        let (start, mut at) = (claim.index, claim.index);
        while let Some(part) = self.rest.first()
            && at - start < most as u64
        {
            let len = part.iov_len.min(most - (at - start) as usize);
            // SAFETY: the caller promises that the parts are readable. This thread has claimed the ring, and the bytes fit.
            unsafe { self.slot.write_send(at, part.iov_base.cast(), len) };
            self.rest.advance(len);
            at += len as u64;
        }
        if self.slot.send().commit(claim, most as u64) {
            return (most, true);
        }
        // The engine has closed the ring, so it has none of these bytes.
        self.rest = rest;
        (0, false)
    }

    /// Returns true if a thread that has claimed the send ring may write into it. Sending must not be shut down,
    /// the engine must run, and the socket pair must be empty. The descriptor must still belong to the slot.
    fn may_send(&self, alive_ns: u64) -> bool {
        self.slot.header().shut.load(Ordering::Relaxed) == 0
            && (is_recent(alive_ns) || !is_hung_up(self.fd))
            && is_same(self.fd, self.slot)
            && pair_is_empty(self.fd, self.slot, true)
    }

    /// Waits until half of the ring is free and the engine has read the pair, if the program's call may sleep. Does not wait
    /// for an engine that sleeps: bytes in the pair wake it.
    fn wait(&mut self) -> Waited {
        let is_full = self.checked || pair_is_empty(self.fd, self.slot, false);
        let limit = if is_full { ROOM_NS } else { PAIR_NS };
        if !self.may_sleep() || !is_full && (self.entry.send_patience.skips() || !is_same(self.fd, self.slot))
        {
            return Waited::InVain;
        }
        let start = now_ns();
        let mut now = start;
        while now < start + limit {
            if self.slot.header().inode.load(Ordering::Acquire) != self.inode
                || is_full && self.slot.doorbell().alive_ns.load(Ordering::Relaxed) == 0
            {
                return Waited::InVain;
            }
            if self.is_ready() {
                self.entry.send_patience.note(true);
                return Waited::Ready;
            }
            if now < start + SPIN_NS {
                std::hint::spin_loop();
            } else if self.sleep() {
                return Waited::Interrupted;
            }
            now = now_ns();
        }
        self.entry.send_patience.note(false);
        Waited::InVain
    }

    /// Returns true if the program's call may sleep without a time limit.
    fn may_sleep(&mut self) -> bool {
        let (fd, flags) = (self.fd, self.flags);
        *self.may_sleep.get_or_insert_with(|| {
            flags & libc::MSG_DONTWAIT == 0 && descriptor::blocks(fd) && descriptor::send_limit(fd).is_none()
        })
    }

    /// Returns true if enough of the ring is free, and the engine has read the pair.
    fn is_ready(&self) -> bool {
        self.slot.send().next().is_some_and(|index| {
            let enough = self.rest.len.min(self.slot.limit() as usize / 2).max(1);
            self.slot.room(index) >= enough && (self.checked || pair_is_empty(self.fd, self.slot, false))
        })
    }

    /// Sleeps until the engine reports room, at most [`SLEEP_NS`]. Returns true if a signal handler has run.
    fn sleep(&self) -> bool {
        let sleeper = &self.slot.header().sleeper;
        sleeper.store(1, Ordering::Relaxed);
        // Either the engine sees the sleeper, or this thread sees the room that the engine has published before. If the
        // engine publishes room at the same moment, the sleep ends by its time limit.
        fence(Ordering::SeqCst);
        if self.is_ready() {
            return false;
        }
        let limit = libc::timespec { tv_sec: 0, tv_nsec: SLEEP_NS };
        // SAFETY: the word lies in shared memory that stays mapped, and the time limit lives through the call.
        let code = unsafe {
            let (word, limit) = (sleeper.as_ptr() as c_long, &raw const limit as c_long);
            real::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT.into(), 1, limit, 0, 0)
        };
        code == -1 && errno() == libc::EINTR
    }

    /// Sends the rest through the kernel. Returns the result of the program's call, or `None` if nothing is sent yet.
    ///
    /// The kernel is asked even if the descriptor is non-blocking. With edge-triggered epoll, a program gets the next
    /// EPOLLOUT only after a send that the kernel could not accept as a whole.
    ///
    /// # Safety
    /// The buffers are readable.
    unsafe fn send_rest(&mut self) -> Option<ssize_t> {
        let device = self.slot.header().device.load(Ordering::Relaxed);
        if self.sent() == 0 {
            return None;
        }
        while let Some(part) = self.rest.first() {
            let _sending = sending(self.fd);
            // A kept pair has the same inode for its next connection.
            if closes(self.fd) != self.closes || identity(self.fd) != Some((self.inode, device)) {
                break;
            }
            // SAFETY: the kernel checks the program's buffer.
            let sent =
                unsafe { real::send(self.fd, part.iov_base, part.iov_len, self.flags | libc::MSG_NOSIGNAL) };
            let Ok(sent) = usize::try_from(sent) else { break };
            self.rest.advance(sent);
            if sent < part.iov_len {
                break;
            }
        }
        Some(self.sent() as ssize_t)
    }
}

/// Makes later sends on `fd` bypass shared memory and go to the kernel, which refuses them. Call this before
/// the program shuts down the sending direction of the socket.
pub fn shut(fd: RawFd) {
    if let Some(slot) = slot(fd).filter(|&slot| is_same(fd, slot)) {
        slot.header().shut.store(1, Ordering::Relaxed);
    }
}
