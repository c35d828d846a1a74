//! Receives with MSG_WAITALL. With MSG_PEEK, see [`peek`](super::peek).
//!
//! ```text
//! bytes arrive        ---> copied from the receive ring, or placed into a posted buffer
//! no bytes for long   ---> sleeps in ppoll until the pair has bytes
//! ```

use super::leave::{leave, stop};
use super::post::WHOLE_NS;
use super::receive::{receive_available, receive_from};
use super::rest::Rest;
use super::same::Same;
use super::{Entry, blocks, buffers, entry, now_ns, slot, using_for};
use crate::signals::BlockedSignals;
use crate::{errno, fail, real, set_errno, signals, socket, wait};
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
        // SAFETY: the caller's promise.
        if let Some(bytes) = unsafe { self.receive_at_once(start) } {
            self.rest.advance(bytes as usize);
        }
        // Block signals before the first part, because the handler of one that arrives between two parts must end the call.
        let mut limits = (self.rest.len > 0).then(|| Limits::new(self.fd, start));
        let mut end = None;
        while let Some(limits) = &mut limits
            && self.rest.len > 0
            && end.is_none()
        {
            if !self.same.holds() {
                break;
            }
            let is_first = self.rest.len == len;
            // SAFETY: the caller's promise.
            end = match limits.look().and_then(|()| unsafe { self.receive_part(limits, is_first) }) {
                Ok(0) => Some(0),
                Ok(bytes) => {
                    self.rest.advance(bytes);
                    None
                }
                // Another thread was faster, or the ring has bytes.
                Err(0) => None,
                Err(libc::EINTR) if is_first && limits.restarts() => None,
                Err(error) => Some(error),
            };
        }
        if let Some(limits) = limits {
            limits.signals.release(false);
        }
        match (len - self.rest.len, end) {
            (0, None) => None,
            (0, Some(0)) => Some(0),
            (0, Some(error)) => Some(fail(error)),
            // The next receive finds the same end or error.
            (received, _) => Some(received as ssize_t),
        }
    }

    /// Receives the whole message if it is in the ring, or arrives there soon in one part. Signals are not blocked meanwhile.
    ///
    /// # Safety
    /// The buffers are writable.
    #[inline]
    unsafe fn receive_at_once(&self, start: u64) -> Option<ssize_t> {
        loop {
            if let Some(received) = self.slot.received() {
                let parts = self.rest.parts();
                let is_whole = received.len >= self.rest.len as u64;
                // SAFETY: the caller's promise.
                return is_whole
                    .then(|| unsafe { receive_available(self.fd, parts.as_ptr(), parts.len(), true) })?;
            }
            // A posted buffer needs blocked signals.
            if self.slot.receive().is_idle() || buffers::are_used() || now_ns() >= start + wait::BRIEF_NS {
                return None;
            }
            std::hint::spin_loop();
        }
    }

    /// Receives a part, or sleeps until there is one. Returns the number of its bytes, or the errno that ends the call. That is 0 if the
    /// caller must try again.
    ///
    /// # Safety
    /// The buffers are writable.
    unsafe fn receive_part(&self, limits: &mut Limits, is_first: bool) -> Result<usize, c_int> {
        let Some(iovec { iov_base, iov_len }) = self.rest.first() else { return Err(0) };
        // The engine gives the slot to another connection if it is not used for long.
        let has_slot = self.same.has_slot();
        let patience = if is_first { &self.entry.patience } else { &self.entry.later_patience };
        let received = match has_slot {
            // SAFETY: the caller's promise.
            true => unsafe {
                receive_from(self.fd, patience, self.slot, iov_base, iov_len, Some(&self.same))
            },
            false => None,
        };
        let received = match received {
            Some(received) => received,
            None if has_slot && !stop(self.fd, self.slot) => return Err(0),
            None => {
                limits.sleep()?;
                self.same.receive(iov_base, iov_len)
            }
        };
        match usize::try_from(received) {
            Ok(bytes) => Ok(bytes),
            Err(_) if errno() == libc::EAGAIN => Err(0),
            Err(_) => Err(errno()),
        }
    }
}

/// What ends a call before all bytes are there.
pub(super) struct Limits {
    fd: RawFd,
    /// Signals are blocked, because the handler of one that arrives between two parts must end the call.
    pub signals: BlockedSignals,
    /// The time of the next look for such signals.
    look_at: u64,
    start: u64,
    /// The end of SO_RCVTIMEO, which is asked for only once.
    end: Option<Option<u64>>,
}

impl Limits {
    pub fn new(fd: RawFd, start: u64) -> Self {
        Self { fd, signals: BlockedSignals::new(), look_at: now_ns() + WHOLE_NS, start, end: None }
    }

    /// Lets the handlers of signals run at times. Fails if one has run, or if the time limit is over.
    #[inline]
    fn look(&mut self) -> Result<(), c_int> {
        let now = now_ns();
        if now < self.look_at {
            return Ok(());
        }
        self.look_at = now + WHOLE_NS;
        match self.poll(libc::POLLIN, Some(0)) {
            -1 => Err(errno()),
            _ if self.left() == Some(0) => Err(libc::EAGAIN),
            _ => Ok(()),
        }
    }

    /// Sleeps until the pair has bytes. Fails if the call must end.
    #[cold]
    pub fn sleep(&mut self) -> Result<(), c_int> {
        // Ask the kernel, because another process may have changed the descriptor.
        if !socket::blocks(self.fd) {
            return Err(libc::EAGAIN);
        }
        let left = self.left();
        match self.poll(libc::POLLIN, left) {
            -1 => Err(errno()),
            0 => Err(libc::EAGAIN),
            _ => Ok(()),
        }
    }

    /// Returns true if the signals whose handlers have run let a call without bytes go on.
    #[cold]
    pub fn restarts(&mut self) -> bool {
        self.left().is_none() && signals::restart_outside(self.signals.before())
    }

    /// Returns the rest of the time limit in nanoseconds.
    pub fn left(&mut self) -> Option<u64> {
        let (fd, start) = (self.fd, self.start);
        let end = self
            .end
            .get_or_insert_with(|| socket::receive_limit(fd).map(|limit| start + limit as u64 * 1_000_000));
        end.map(|end| end.saturating_sub(now_ns()))
    }

    /// Waits in the kernel until the pair has `events`, for at most `limit` nanoseconds. Returns 1 if it has them, and -1 if a handler has
    /// run.
    pub fn poll(&self, events: i16, limit: Option<u64>) -> c_int {
        let mut pair = libc::pollfd { fd: self.fd, events, revents: 0 };
        let limit = limit.map(wait::to_timespec);
        let limit = limit.as_ref().map_or(null(), std::ptr::from_ref);
        // SAFETY: the structures live through the call.
        using_for(self.fd, || unsafe { real::ppoll(&mut pair, 1, limit, self.signals.before()) })
    }
}
