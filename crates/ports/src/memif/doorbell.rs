//! The descriptors by which the readers of rings are woken.
//!
//! A client creates them and shares them with the server. Each process can then change the descriptor's mode and its counter
//! at any time, so no call here relies on them.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, preadv2, read, write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// An eventfd that wakes the reader of a ring.
pub(super) struct Doorbell(OwnedFd);

impl Doorbell {
    /// Creates a doorbell to share with the server.
    ///
    /// # Errors
    /// Why the system refuses.
    pub(super) fn new() -> Result<Self, String> {
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        doorbell.map(Self).map_err(|error| format!("eventfd: {error}"))
    }

    /// Takes the descriptor that a client has sent. Returns `None` if it has another type than an eventfd has, because to write
    /// to a pipe, a socket or a file could block.
    pub(super) fn received(descriptor: OwnedFd) -> Option<Self> {
        // The files of anonymous inodes, such as eventfds, have no type.
        let mode = fstat(&descriptor).ok()?.st_mode;
        (FileType::from_raw_mode(mode) == FileType::Unknown).then_some(Self(descriptor))
    }

    /// Wakes the reader if it waits for the descriptor.
    pub(super) fn ring(&self) {
        // The write would block if the peer had filled the counter and removed the flag O_NONBLOCK. A full counter wakes the
        // reader, too.
        let mut poll_fd = [PollFd::new(&self.0, PollFlags::OUT)];
        if poll(&mut poll_fd, Some(&Timespec::default())) == Ok(1) {
            let _ = write(&self.0, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable until the next ring. Does not wait for one, even if the peer has removed the flag
    /// O_NONBLOCK.
    pub(super) fn clear(&self) {
        clear_eventfd(self.0.as_fd());
    }
}

/// Makes an eventfd unreadable until its counter is increased. Does not wait for that, even if another process that shares the
/// eventfd has removed the flag O_NONBLOCK.
pub(crate) fn clear_eventfd(eventfd: BorrowedFd<'_>) {
    let mut counter = [0; 8];
    // An offset of -1 stands for none, because an eventfd has no positions.
    let cleared = preadv2(eventfd, &mut [IoSliceMut::new(&mut counter)], u64::MAX, ReadWriteFlags::NOWAIT);
    if cleared == Err(Errno::OPNOTSUPP) {
        // Linux before 5.8 has no such read of an eventfd.
        let _ = read(eventfd, &mut counter);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
