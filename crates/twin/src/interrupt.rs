//! An interrupt line: an eventfd, which is what a device's interrupt is to a process under VFIO too.

use inlane_core::{Error, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

/// Raised by one side, awaited by the other; raises coalesce.
#[derive(Debug)]
pub struct Interrupt {
    file: File,
}

impl Interrupt {
    /// A line that is not raised.
    ///
    /// # Errors
    /// [`Error::Os`] when the process has no file descriptor left.
    pub fn new() -> Result<Self> {
        // SAFETY: no memory involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::Os { what: "eventfd".into(), source: std::io::Error::last_os_error() });
        }
        // SAFETY: just opened, owned by nobody else.
        Ok(Self { file: unsafe { File::from_raw_fd(fd) } })
    }

    /// Raises it.
    pub fn raise(&self) {
        // Fails only when the counter is full, and then the line is raised anyway.
        let _ = (&self.file).write(&1u64.to_ne_bytes());
    }

    /// Sleeps until it is raised, and lowers it; false when `limit` passed first.
    pub fn wait(&self, limit: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = limit.as_millis().clamp(1, i32::MAX as u128) as i32;
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&mut poll, 1, milliseconds) };
        ready > 0 && self.lower()
    }

    /// Lowers it; true when it was raised.
    pub fn lower(&self) -> bool {
        (&self.file).read(&mut [0u8; 8]).is_ok()
    }
}
