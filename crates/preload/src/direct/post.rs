//! Posts the buffer of a receive that waits, so that the engine places the bytes there ([`inlane_offload_protocol::slots::Post`]).
//!
//! The buffer is taken back before the receive returns or makes any call that may end the thread. Signals and cancellation are
//! blocked meanwhile.

use super::{Entry, SEEN, buffers, is_polled_readable, now_ns};
use crate::control;
use crate::signals::BlockedSignals;
use inlane_offload_protocol::slots::{Posted, Slot};
use libc::c_void;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

/// The length in bytes of the shortest receive that posts its buffer. For shorter ones, blocking the signals costs more than the copy.
const LEAST: usize = 4096;
/// The longest wait for the end of a write of the engine, in nanoseconds. It usually takes some microseconds, unless the engine is stopped.
const WRITE_NS: u64 = 200_000_000;

/// The longest time for which a receive keeps its buffer posted, in nanoseconds. Signals are blocked meanwhile.
pub(super) const WHOLE_NS: u64 = 5_000_000;

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
        if len < LEAST || entry.sight.load(Ordering::SeqCst) != SEEN || entry.post_patience.skips() {
            return None;
        }
        let position = slot.receive().position_if_empty()?;
        let signals = BlockedSignals::new();
        let placed = control::without_cancellation(|| {
            let posted = slot.post().post(offset, len as u64, position)?;
            self.poll(&posted, end, is_unchanged);
            Some(self.take_back(&posted))
        });
        if let Some(placed) = placed {
            entry.post_patience.note(placed > 0);
            return Some((placed, signals));
        }
        signals.release(false);
        None
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
            if now >= end || now >= start + WHOLE_NS || !is_unchanged() {
                return;
            }
            if now >= looked + super::receive::LOOK_NS {
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
            if now_ns() >= limit
                && let Some(placed) =
                    buffers::detach(self.buffer, self.len, || self.slot.post().seize(posted))
            {
                return placed;
            }
            // SAFETY: has no preconditions.
            unsafe { libc::sched_yield() };
        }
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
        let entry = super::super::entry(0).unwrap();
        let receive = Receive { fd: -1, entry, slot, buffer: buffer.cast(), len: LEN, whole: false };
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
