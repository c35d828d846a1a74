//! A pipe or terminal whose reads and writes do not block for long.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

/// How long a read or write waits. The transfer then sends its keep-alives, and sees a signal.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The bytes that every pipe takes at once if it can be written (POSIX `PIPE_BUF` on Linux).
const PIPE_BUF: usize = 4096;

/// A stream whose reads and writes fail with [`ErrorKind::WouldBlock`] if the other side is not ready within 100 ms.
/// Does not use `O_NONBLOCK`, because other processes may share the open file.
#[derive(Debug)]
pub struct TimedStream(File);

impl TimedStream {
    /// Wraps a descriptor.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor.into())
    }

    fn wait(&self, events: PollFlags) -> io::Result<()> {
        match poll(&mut [PollFd::new(&self.0, events)], Some(&TICK))? {
            0 => Err(ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }

    /// Returns how many bytes a write takes at once if the stream can be written. An empty pipe takes as many as its
    /// capacity. How much fits into any other pipe is unknown, because its pages may be filled partly.
    fn room(&self) -> usize {
        // SAFETY: the call returns a number.
        let capacity = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETPIPE_SZ) };
        match rustix::io::ioctl_fionread(&self.0) {
            Ok(0) => usize::try_from(capacity).unwrap_or(0).max(PIPE_BUF),
            _ => PIPE_BUF,
        }
    }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(PollFlags::IN)?;
        self.0.read(buffer)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(PollFlags::OUT)?;
        self.0.write(&bytes[..bytes.len().min(self.room())])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
