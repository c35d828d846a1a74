//! A pipe or terminal whose reads and writes do not block for long.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;

/// How long a read or write waits. The transfer then sends its keep-alives, and sees a signal.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The bytes that every pipe takes at once if it can be written (POSIX `PIPE_BUF` on Linux).
const PIPE_BUF: usize = 4096;
/// The capacity of a pipe on Linux, less four pages for pages that are partly filled.
const PIPE_CAPACITY: usize = (64 << 10) - 4 * PIPE_BUF;

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
        let queued = rustix::io::ioctl_fionread(&self.0).map_or(PIPE_CAPACITY, |queued| queued as usize);
        let room = PIPE_CAPACITY.saturating_sub(queued).max(PIPE_BUF);
        self.0.write(&bytes[..bytes.len().min(room)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
