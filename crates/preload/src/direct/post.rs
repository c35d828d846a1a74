//! Posts the buffer of a receive that waits, so that the engine places the bytes there ([`inlane_offload_protocol::slots::Post`]).
//!
//! The buffer is taken back before the receive returns or makes any call that may end the thread. Signals and cancellation are
//! blocked meanwhile.

use super::buffers;
use crate::control;
use crate::descriptor::{is_hung_up, is_polled_readable};
use crate::signals::BlockedSignals;
use crate::slots::{Entry, SEEN, is_alive};
use crate::time::now_ns;
use inlane_offload_protocol::slots::{Posted, Slot};
use libc::c_void;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// The length in bytes of the shortest receive that posts its buffer. For shorter ones, blocking the signals costs more than the copy.
const LEAST: usize = 4096;
/// The longest wait for the end of a write of the engine, in nanoseconds. It usually takes some microseconds, unless the engine is stopped.
const WRITE_NS: u64 = 200_000_000;

/// The longest time for which a receive keeps its buffer posted, in nanoseconds. Signals are blocked meanwhile.
pub(super) const WHOLE_NS: u64 = 5_000_000;

/// During an active wait, the time in nanoseconds between two checks whether the socket pair has bytes.
pub(super) const LOOK_NS: u64 = 1000;

/// The longest time for which a fork or exec waits until no buffer is posted, in nanoseconds.
const END_NS: u64 = 10_000_000;

/// The number of buffers that threads of this process have posted.
static POSTS: AtomicU32 = AtomicU32::new(0);

/// Waits until no buffer is posted. Call this once no thread posts another one: each thread then soon takes its buffer back.
pub(super) fn await_end() {
    let end = now_ns() + END_NS;
    while POSTS.load(Ordering::SeqCst) != 0 && now_ns() < end {
        // SAFETY: has no preconditions.
        unsafe { libc::sched_yield() };
    }
}

/// Forgets the buffers that other threads of the parent have posted, in a new process.
pub(super) fn forget_in_child() {
    POSTS.store(0, Ordering::SeqCst);
}

/// A receive that may post its buffer.
pub(super) struct Receive<'a> {
    pub fd: RawFd,
    pub entry: &'a Entry,
    pub slot: Slot,
    pub buffer: *mut c_void,
    pub len: usize,
    /// True if the buffer stays posted until it is full, as long as bytes arrive.
    pub whole: bool,
}

impl Receive<'_> {
    /// Posts the buffer, and waits until it has bytes, until other bytes or events are there, or until the time `end`. Returns the
    /// number of received bytes, and the blocked signals. Returns `None` if the buffer cannot be posted. `is_unchanged` returns true while
    /// the slot belongs to the same socket. May change errno.
    #[inline(never)]
    pub fn wait(&self, end: u64, is_unchanged: impl Fn() -> bool) -> Option<(u64, BlockedSignals)> {
        let Self { entry, slot, buffer, len, .. } = *self;
        let offset = buffers::offset_of(buffer, len, slot)?;
        // Other descriptors and processes may receive on the same socket.
        if len < LEAST || !self.may_post() || entry.post_patience.skips() {
            return None;
        }
        let position = slot.receive().position_if_empty()?;
        let signals = BlockedSignals::new();
        let placed = control::without_cancellation(|| {
            POSTS.fetch_add(1, Ordering::SeqCst);
            let placed = self.post(offset, position, end, is_unchanged);
            POSTS.fetch_sub(1, Ordering::SeqCst);
            placed
        });
        if let Some(placed) = placed {
            // Short messages into long buffers are better copied.
            entry.post_patience.note(placed >= LEAST as u64);
            return Some((placed, signals));
        }
        signals.release(false);
        None
    }

    /// Posts the buffer until it has bytes. Returns their number.
    fn post(&self, offset: u64, position: u64, end: u64, is_unchanged: impl Fn() -> bool) -> Option<u64> {
        // Look again, because a fork and the end of placing wait only for posts that are counted.
        if !self.may_post() {
            return None;
        }
        let posted = self.slot.post().post(offset, self.len as u64, position)?;
        self.poll(&posted, end, is_unchanged);
        Some(self.take_back(&posted))
    }

    /// Returns true unless another process may use the socket, or the buffers are plain memory.
    #[inline]
    fn may_post(&self) -> bool {
        self.entry.sight.load(Ordering::SeqCst) == SEEN && !buffers::are_stopped()
    }

    fn poll(&self, posted: &Posted, end: u64, is_unchanged: impl Fn() -> bool) {
        let start = now_ns();
        let wait_ns = end.saturating_sub(start);
        let (mut looked, mut end, mut placed) = (start, end, 0);
        let wanted = if self.whole { self.len as u64 } else { 1 };
        while self.slot.receive().position_if_empty().is_some() {
            let now = now_ns();
            match self.slot.post().placed(posted) {
                Some(bytes) if bytes >= wanted => return,
                Some(bytes) if bytes > placed => {
                    placed = bytes;
                    end = now + wait_ns;
                }
                _ => {}
            }
            if now >= end || now >= start + WHOLE_NS || !is_unchanged() || !self.may_post() {
                return;
            }
            if now >= looked + LOOK_NS {
                looked = now;
                if is_polled_readable(self.fd) {
                    return;
                }
                // Yield, because the thread that sends the bytes may be waiting for this processor.
                // SAFETY: has no preconditions.
                unsafe { libc::sched_yield() };
            }
            std::hint::spin_loop();
        }
    }

    #[inline]
    fn take_back(&self, posted: &Posted) -> u64 {
        self.slot.post().take_back(posted).unwrap_or_else(|| self.await_write(posted))
    }

    /// Waits until the engine does not write into the buffer any more. Takes the memory away from an engine that is stopped.
    #[cold]
    fn await_write(&self, posted: &Posted) -> u64 {
        let limit = now_ns() + WRITE_NS;
        loop {
            if let Some(placed) = self.slot.post().take_back(posted) {
                return placed;
            }
            if now_ns() >= limit {
                // Nobody writes after the end of the engine, so without memory for a copy, the buffer can stay as it is.
                let has_ended = is_hung_up(self.fd) && !is_alive(self.slot);
                let seize = || self.slot.post().seize(posted);
                let detached = buffers::detach(self.buffer, self.len, || {
                    let placed = seize()?;
                    self.await_others();
                    Some(placed)
                });
                if let Some(placed) = detached.or_else(|| has_ended.then(seize)?) {
                    return placed;
                }
            }
            // SAFETY: has no preconditions.
            unsafe { libc::sched_yield() };
        }
    }

    /// Ends placing, and waits until all other threads have taken their buffers back or seized them. Their bytes may lie in the same
    /// pages as this buffer.
    fn await_others(&self) {
        buffers::stop_placing();
        POSTS.fetch_sub(1, Ordering::SeqCst);
        while POSTS.load(Ordering::SeqCst) != 0 {
            // SAFETY: has no preconditions.
            unsafe { libc::sched_yield() };
        }
        POSTS.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_offload_protocol::slots::Area;
    use std::ptr::{NonNull, null_mut};

    const RING: usize = Area::LEAST_RING;
    const LEN: usize = 10_000;

    /// Maps an area.
    fn map(file: RawFd) -> Area {
        let (access, len) = (libc::PROT_READ | libc::PROT_WRITE, Area::len(RING).unwrap());
        // SAFETY: the system chooses the address. The mapping stays for the whole test.
        unsafe {
            let start = libc::mmap(null_mut(), len, access, libc::MAP_SHARED, file, 0);
            assert_ne!(start, libc::MAP_FAILED);
            Area::new(NonNull::new(start.cast()).unwrap(), RING)
        }
    }

    /// The engine is stopped while it writes, and continues after the receive has returned.
    #[test]
    fn a_stopped_engine_writes_to_memory_that_the_program_sees_no_longer() {
        // SAFETY: a new file of the area's length, of which this test has two views.
        let (program, engine) = unsafe {
            let file = libc::memfd_create(c"test".as_ptr(), 0);
            assert_eq!(libc::ftruncate(file, Area::len(RING).unwrap() as i64), 0);
            (map(file), map(file))
        };
        let [slot, at_engine] = [program, engine].map(|area| area.slot(2).unwrap());
        let buffer = program.arena().wrapping_add(5000);
        let posted = slot.post().post(5000, LEN as u64, 7).unwrap();
        let placing = at_engine.post().claim(7).unwrap();
        let write = |byte| {
            // SAFETY: the bytes lie in the arena of the engine's view.
            unsafe { engine.arena().add(placing.offset as usize).write_bytes(byte, LEN) }
        };
        write(1);
        let entry = crate::slots::entry(0).unwrap();
        let receive = Receive { fd: -1, entry, slot, buffer: buffer.cast(), len: LEN, whole: false };
        POSTS.fetch_add(1, Ordering::SeqCst);
        assert_eq!(receive.take_back(&posted), 0);
        // SAFETY: the program's view of the buffer stays mapped.
        let bytes = unsafe {
            buffer.write_bytes(9, LEN);
            write(2);
            std::slice::from_raw_parts(buffer, LEN)
        };
        assert!(bytes.iter().all(|&byte| byte == 9));
        assert!(!at_engine.post().commit(&placing, 100), "the engine puts the bytes into the ring");
        let next = slot.post().post(0, 1, 8).expect("the post is free again");
        assert_eq!(slot.post().take_back(&next), Some(0));
    }
}
