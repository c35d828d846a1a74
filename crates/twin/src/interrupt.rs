//! An interrupt line as an eventfd, as VFIO delivers a device's interrupts.

use inlane_core::{Error, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

/// An interrupt line. One side raises it, and the other side waits for it. Several raises in a row count as
/// one.
#[derive(Debug)]
pub struct Interrupt {
    file: File,
}

impl Interrupt {
    /// Creates a line that is not raised.
    ///
    /// # Errors
    /// [`Error::Os`] if the process has no file descriptor left.
    pub fn new() -> Result<Self> {
        // SAFETY: the call accesses no memory of this process.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::Os {
                what: "creating an eventfd".into(),
                source: std::io::Error::last_os_error(),
            });
        }
        // SAFETY: the descriptor was just created, and nothing else owns it.
        Ok(Self { file: unsafe { File::from_raw_fd(fd) } })
    }

    /// Raises the line.
    pub fn raise(&self) {
        // The write fails only if the counter is full. The line is then raised already.
        let _ = (&self.file).write(&1u64.to_ne_bytes());
    }

    /// Sleeps until the line is raised, and lowers it. Returns false if the line was not raised within
    /// `limit`.
    pub fn wait(&self, limit: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = limit.as_millis().clamp(1, i32::MAX as u128) as i32;
        // SAFETY: `poll` is one valid pollfd.
        let ready = unsafe { libc::poll(&mut poll, 1, milliseconds) };
        ready > 0 && self.lower()
    }

    /// Lowers the line. Returns true if it was raised.
    pub fn lower(&self) -> bool {
        (&self.file).read(&mut [0u8; 8]).is_ok()
    }
}
