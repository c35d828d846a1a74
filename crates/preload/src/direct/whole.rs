//! Receives with MSG_WAITALL.

use super::post::{LOOK_NS, Receive, WHOLE_NS};
use super::receive::take_available;
use super::{buffers, slot, using};
use crate::descriptor::{self, is_polled_readable};
use crate::signals::BlockedSignals;
use crate::slots::{Entry, ask, blocks, closes, entry, is_same, leave};
use crate::time::now_ns;
use crate::{errno, fail, polling, real, set_errno};
use inlane_offload_protocol::slots::Slot;
use libc::{c_void, iovec, ssize_t};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

/// Implements recv(2) with MSG_WAITALL: receives through shared memory as long as bytes arrive, and the rest through the kernel.
/// Returns `None` if the caller must receive all bytes through the kernel.
///
/// Blocks signals while it polls. Otherwise a handler could run between two parts, and the call would go on instead of returning. A handler
/// with SA_RESTART does not end the call, whereas the kernel's TCP returns the bytes that it has.
///
/// # Safety
/// `buffer` points to `len` writable bytes.
pub unsafe fn receive_whole(fd: RawFd, buffer: *mut c_void, len: usize) -> Option<ssize_t> {
    let (slot, entry) = (slot(fd)?, entry(fd)?);
    let before = errno();
    let inode = slot.header().inode.load(Ordering::Acquire);
    // Count this use first: a close that the checks below miss then finds it, and does not keep the pair.
    let _using = using(fd);
    let closes = closes(fd);
    if len == 0 || inode == 0 || !is_same(fd, slot) {
        set_errno(before);
        return None;
    }
    let mut whole = Whole { fd, entry, slot, inode, closes, buffer, len, total: 0 };
    // SAFETY: the program's arguments.
    let end = unsafe { whole.receive() };
    set_errno(before);
    match end {
        End::Kernel if whole.total == 0 => None,
        End::Kernel => {
            // SAFETY: the program's arguments.
            unsafe { whole.receive_rest() };
            set_errno(before);
            Some(whole.total as ssize_t)
        }
        End::Failed(error) if whole.total == 0 => Some(fail(error)),
        End::Complete | End::Failed(_) => Some(whole.total as ssize_t),
    }
}

/// How the receive through shared memory ends.
enum End {
    /// The buffer is full, or there will be no more bytes.
    Complete,
    /// No bytes arrive any more. The rest comes through the kernel.
    Kernel,
    /// The call fails with this error if it has no bytes.
    Failed(i32),
}

struct Whole {
    fd: RawFd,
    entry: &'static Entry,
    slot: Slot,
    inode: u64,
    /// The result of [`closes`] at the beginning.
    closes: u64,
    buffer: *mut c_void,
    len: usize,
    /// The number of received bytes.
    total: usize,
}

impl Whole {
    /// Returns true if the descriptor was not closed since the beginning. If another thread closes it, another file may get its number. The next
    /// part of the message must not come from there. The check cannot rule that out: a close between it and the receive is not noticed.
    fn is_open(&self) -> bool {
        closes(self.fd) == self.closes
    }

    /// Returns true if the slot still belongs to the connection. The engine takes it away when the connection ends.
    fn has_slot(&self) -> bool {
        self.slot.header().inode.load(Ordering::Acquire) == self.inode
    }

    fn is_unchanged(&self) -> bool {
        self.has_slot() && self.is_open()
    }

    fn rest(&self) -> (*mut c_void, usize) {
        (self.buffer.wrapping_byte_add(self.total), self.len - self.total)
    }

    /// Takes bytes that are in shared memory, as [`take_available`].
    unsafe fn take(&self) -> Option<ssize_t> {
        let (iov_base, iov_len) = self.rest();
        let part = iovec { iov_base, iov_len };
        // SAFETY: the rest of the program's buffer.
        unsafe { take_available(self.fd, self.slot, &part, 1, true, || self.is_unchanged()) }
    }

    /// Receives until the buffer is full or no bytes arrive for some time. May change errno.
    unsafe fn receive(&mut self) -> End {
        // SAFETY: the program's arguments.
        match unsafe { self.take() } {
            Some(bytes) if bytes as usize == self.len => {
                self.total = self.len;
                return End::Complete;
            }
            Some(0) => return End::Complete,
            Some(bytes) => self.total = bytes as usize,
            None => {}
        }
        if !blocks(self.fd, self.entry, self.slot) {
            // The kernel knows whether the descriptor blocks.
            let complete = self.total > 0 && !descriptor::blocks(self.fd);
            return if complete { End::Complete } else { End::Kernel };
        }
        let waits = polling::time_ns() > 0
            && self.slot.header().low_water.load(Ordering::Relaxed) == 0
            && !self.entry.patience.skips()
            // The limit is that of the whole call.
            && descriptor::receive_limit(self.fd).is_none();
        // SAFETY: the program's arguments.
        if waits { unsafe { self.poll() } } else { End::Kernel }
    }

    unsafe fn poll(&mut self) -> End {
        let (mut signals, mut blocked_at) = (BlockedSignals::new(), now_ns());
        let (mut last, mut looked) = (blocked_at, blocked_at);
        let end = loop {
            // SAFETY: the program's arguments.
            let part = unsafe { self.take().or_else(|| self.post()) };
            let now = now_ns();
            match part {
                Some(0) => break End::Complete,
                Some(bytes) => (self.total, last) = (self.total + bytes as usize, now),
                None => {}
            }
            if self.total == self.len {
                break End::Complete;
            }
            if now >= blocked_at + WHOLE_NS {
                if signals.release(true) {
                    return End::Failed(libc::EINTR);
                }
                (signals, blocked_at) = (BlockedSignals::new(), now);
            }
            if part.is_some() {
                continue;
            }
            if now >= looked + LOOK_NS {
                looked = now;
                if is_polled_readable(self.fd) {
                    // SAFETY: the program's arguments.
                    match unsafe { self.receive_from_pair() } {
                        Ok(0) => break End::Complete,
                        Ok(bytes) => (self.total, last) = (self.total + bytes, now),
                        Err(libc::EAGAIN) => {}
                        Err(error) => break End::Failed(error),
                    }
                }
                // Yield, because the thread that sends the bytes may be waiting for this processor.
                // SAFETY: has no preconditions.
                unsafe { libc::sched_yield() };
            }
            let waits = now < last + polling::time_ns() && self.is_unchanged();
            if !waits || self.slot.receive().is_idle() && !ask(self.slot, self.inode) {
                break End::Kernel;
            }
            std::hint::spin_loop();
        };
        let sleeps = matches!(end, End::Kernel);
        self.entry.patience.note(!sleeps);
        if sleeps {
            self.leave();
        }
        match signals.release(sleeps) {
            true => End::Failed(libc::EINTR),
            false => end,
        }
    }

    /// Posts the rest of the buffer for some time. Returns the number of bytes that were placed there.
    unsafe fn post(&self) -> Option<ssize_t> {
        if !buffers::are_used() {
            return None;
        }
        let Self { fd, entry, slot, .. } = *self;
        let (buffer, len) = self.rest();
        let receive = Receive { fd, entry, slot, buffer, len, whole: true };
        let (placed, signals) = receive.wait(now_ns() + polling::time_ns(), || self.is_unchanged())?;
        signals.release(false);
        (placed > 0).then_some(placed as ssize_t)
    }

    /// Receives bytes that are in the socket pair. Returns their number, 0 at the end of the stream, or the error.
    unsafe fn receive_from_pair(&self) -> Result<usize, i32> {
        if !self.is_open() {
            return Err(libc::EAGAIN);
        }
        let (rest, len) = self.rest();
        // SAFETY: the rest of the program's buffer.
        let received = unsafe { real::recv(self.fd, rest, len, libc::MSG_DONTWAIT) };
        usize::try_from(received).map_err(|_| errno())
    }

    /// Leaves the ring, if the connection still has it.
    fn leave(&self) {
        if self.has_slot() {
            leave(self.fd, self.slot);
        }
    }

    /// Receives the rest through the kernel. May change errno.
    unsafe fn receive_rest(&mut self) {
        self.leave();
        if !self.is_open() {
            return;
        }
        let (rest, len) = self.rest();
        // SAFETY: the rest of the program's buffer.
        let more = unsafe { real::recv(self.fd, rest, len, libc::MSG_WAITALL) };
        self.total += more.max(0) as usize;
    }
}
