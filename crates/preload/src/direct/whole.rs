//! Receives with MSG_WAITALL.
//!
//! ```text
//! the first part      ---> as a receive without the flag; sleeps in the kernel's recv
//! further parts       ---> copied from the receive ring or placed into a posted buffer, as long as bytes arrive
//! no bytes for long   ---> sleeps in ppoll until the pair has bytes
//! ```

use super::leave::{leave, stop};
use super::post::WHOLE_NS;
use super::receive::{Part, receive_available, receive_from};
use super::rest::Rest;
use super::same::Same;
use super::{Entry, blocks, entry, now_ns, slot, using_for};
use crate::signals::BlockedSignals;
use crate::{errno, real, set_errno, socket, wait};
use inlane_offload_protocol::address::is_possible;
use inlane_offload_protocol::slots::Slot;
use libc::{c_int, iovec, ssize_t};
use std::os::fd::RawFd;
use std::ptr::null;
use std::sync::atomic::Ordering;

/// Implements a receive with MSG_WAITALL into `count` buffers. Returns the result of the program's call, or `None` if the caller must
/// receive through the kernel. Leaves errno unchanged unless it returns -1.
///
/// # Safety
/// `parts` points to `count` buffers. Each buffer is writable for the length that it states.
pub unsafe fn receive_whole(fd: RawFd, parts: *const iovec, count: usize) -> Option<ssize_t> {
    let (slot, entry) = (slot(fd)?, entry(fd)?);
    let before = errno();
    let blocks = blocks(fd, entry, slot);
    let same = Same::new(fd, entry, slot);
    let usable =
        wait::time_ns() != 0 && slot.header().low_water.load(Ordering::Relaxed) == 0 && same.has_slot();
    set_errno(before);
    if !blocks {
        // SAFETY: the caller's promises.
        return unsafe { receive_available(fd, parts, count, true) };
    }
    if usable && is_possible(parts, 0) {
        // SAFETY: the caller promises `count` buffers.
        let rest = Rest::new(unsafe { std::slice::from_raw_parts(parts, count) });
        let whole = rest.map(|rest| Whole { fd, entry, slot, same, rest });
        // SAFETY: the caller promises writable buffers.
        if let Some(result) = whole.and_then(|mut whole| unsafe { whole.run() }) {
            if result != -1 {
                set_errno(before);
            }
            return Some(result);
        }
    }
    leave(fd);
    None
}

/// A receive of a whole message.
struct Whole<'a> {
    fd: RawFd,
    entry: &'static Entry,
    slot: Slot,
    same: Same,
    /// The buffers without the received bytes.
    rest: Rest<'a>,
}

impl Whole<'_> {
    /// # Safety
    /// The buffers are writable.
    unsafe fn run(&mut self) -> Option<ssize_t> {
        let (start, len) = (now_ns(), self.rest.len);
        let part = self.rest.first()?;
        // SAFETY: the caller's promise.
        let first = match unsafe { self.receive(Part::First) } {
            None if !self.same.holds() => return None,
            // SAFETY: the kernel checks the buffer.
            None => using_for(self.fd, || unsafe { real::recv(self.fd, part.iov_base, part.iov_len, 0) }),
            Some(result) => result,
        };
        if first <= 0 {
            return Some(first);
        }
        self.rest.advance(first as usize);
        if self.rest.len > 0 {
            let mut limits = Limits::new(self.fd, start);
            // SAFETY: the caller's promise.
            while self.rest.len > 0 && limits.allow_more() && unsafe { self.receive_more(&mut limits) } {}
            limits.signals.release(false);
        }
        Some((len - self.rest.len) as ssize_t)
    }

    /// Receives into the first of the remaining buffers, and does not sleep.
    ///
    /// # Safety
    /// The buffers are writable.
    unsafe fn receive(&self, part: Part) -> Option<ssize_t> {
        let iovec { iov_base, iov_len } = self.rest.first()?;
        // SAFETY: the caller's promise.
        unsafe { receive_from(self.fd, self.entry, self.slot, iov_base, iov_len, part) }
    }

    /// Receives a further part, or sleeps until there is one. Returns false if the call must end.
    ///
    /// # Safety
    /// The buffers are writable.
    unsafe fn receive_more(&mut self, limits: &mut Limits) -> bool {
        if !self.same.holds() {
            return false;
        }
        // The engine gives the slot to another connection if it is not used for long.
        let has_slot = self.same.has_slot();
        // SAFETY: the caller's promise.
        let received = if has_slot { unsafe { self.receive(Part::Later(&self.same)) } } else { None };
        let result = match received {
            Some(result) => result,
            None if has_slot && !stop(self.fd, self.slot) => return true,
            None if !limits.sleep() => return false,
            None => {
                let Some(part) = self.rest.first() else { return false };
                match self.same.receive(part.iov_base, part.iov_len) {
                    // Another thread was faster.
                    -1 if errno() == libc::EAGAIN => return true,
                    result => result,
                }
            }
        };
        // The next receive finds the same end or error.
        self.rest.advance(result.max(0) as usize);
        result > 0
    }
}

/// What ends a call that has received a part.
struct Limits {
    fd: RawFd,
    /// Signals are blocked, because the handler of one that arrives between two parts must end the call.
    signals: BlockedSignals,
    /// The time of the next look for such signals.
    look_at: u64,
    start: u64,
    /// The end of SO_RCVTIMEO, which is asked for only once.
    end: Option<Option<u64>>,
}

impl Limits {
    fn new(fd: RawFd, start: u64) -> Self {
        Self { fd, signals: BlockedSignals::new(), look_at: now_ns() + WHOLE_NS, start, end: None }
    }

    /// Lets the handlers of signals run at times. Returns false if one has run, or if the time limit is over.
    #[inline]
    fn allow_more(&mut self) -> bool {
        let now = now_ns();
        if now < self.look_at {
            return true;
        }
        self.look_at = now + WHOLE_NS;
        self.poll(Some(0)) != -1 && self.left() != Some(0)
    }

    /// Sleeps until the pair has bytes. Returns false if the call must end.
    #[cold]
    fn sleep(&mut self) -> bool {
        let left = self.left();
        // The answer of the kernel, because another process may have changed the descriptor.
        socket::blocks(self.fd) && self.poll(left) == 1
    }

    /// Returns the rest of the time limit in nanoseconds.
    fn left(&mut self) -> Option<u64> {
        let (fd, start) = (self.fd, self.start);
        let end = self
            .end
            .get_or_insert_with(|| socket::receive_limit(fd).map(|limit| start + limit as u64 * 1_000_000));
        end.map(|end| end.saturating_sub(now_ns()))
    }

    /// Waits in the kernel until the pair has bytes, for at most `limit` nanoseconds. Returns 1 if it has, and -1 if a handler has run.
    fn poll(&self, limit: Option<u64>) -> c_int {
        let mut pair = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
        let limit = limit.map(wait::to_timespec);
        let limit = limit.as_ref().map_or(null(), std::ptr::from_ref);
        // SAFETY: the structures live through the call.
        using_for(self.fd, || unsafe { real::ppoll(&mut pair, 1, limit, self.signals.before()) })
    }
}
