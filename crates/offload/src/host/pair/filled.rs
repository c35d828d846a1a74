//! Pairs that are kept full, so that the program's end is not writable.

use super::super::closer::UserCloser;
use super::super::permits::{Duplicate, Permit};
use super::{discard, option, send, set_option, take};
use inlane_offload_protocol::filler;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

/// The program's end of a socket pair. It is kept full, so that it is not writable during the handshake.
#[derive(Debug)]
pub struct Filled {
    /// `None` for a kept pair, unless the preloaded library has sent it. Otherwise, the library restores the end itself.
    program: Option<Arc<OwnedFd>>,
    /// The number of filler bytes in the socket pair. The program did not write them. [`Self::release`]
    /// discards them.
    bytes: usize,
    /// The SO_SNDBUF that [`Self::release`] sets at the program's end of the socket pair. It is the original
    /// value, unless [`Self::set_capacity`] has changed it.
    capacity: i32,
    /// Counts `program` if it is a duplicate. Is dropped after it.
    _permit: Option<Permit>,
}

impl Filled {
    /// Fills the socket pair with bytes from the program's end, so that the program's end is not writable.
    /// Keeps `program` open to restore its SO_SNDBUF later, and `permit` as long. `usual` is true if SO_SNDBUF
    /// still has the system's default.
    ///
    /// # Errors
    /// Errors of the system calls.
    pub fn new(program: Arc<OwnedFd>, permit: Option<Permit>, usual: bool) -> io::Result<Self> {
        let capacity = if usual { usual_capacity()? } else { option(&program, libc::SO_SNDBUF)? };
        let bytes = filler::fill(|name, value| set_option(&program, name, value), fill_from(&program))?;
        Ok(Self { program: Some(program), bytes, capacity, _permit: permit })
    }

    /// Takes over the program's end of a socket pair, which the preloaded library has already filled with `bytes` filler bytes.
    /// `program` is `None` for a kept pair.
    ///
    /// # Errors
    /// Errors of the system. `InvalidInput` if `bytes` is negative or too large.
    pub fn prepared(program: Option<Arc<OwnedFd>>, bytes: i32) -> io::Result<Self> {
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= 2 * filler::LEN => {
                Ok(Self { program, bytes, capacity: usual_capacity()?, _permit: None })
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Returns the program's end, or `None` for a kept pair.
    pub fn program(&self) -> Option<&Arc<OwnedFd>> {
        self.program.as_ref()
    }

    /// Gives a kept pair the program's end, so that [`Self::release`] restores it.
    pub fn give_program(&mut self, end: Duplicate) {
        (self.program, self._permit) = (Some(Arc::new(end.descriptor)), Some(end.permit));
    }

    /// Returns the value of SO_SNDBUF that the program's end of the socket pair gets once the connection is
    /// established. Until then, this end has a small, full send buffer, so that it is not writable.
    pub fn capacity(&self) -> i32 {
        self.capacity
    }

    /// Sets the SO_SNDBUF for the program's end of the socket pair. It takes effect when the program's end
    /// becomes writable.
    pub fn set_capacity(&mut self, capacity: i32) {
        self.capacity = capacity;
    }

    /// Makes the program's end writable. Call this when the connection is established. Restores SO_SNDBUF,
    /// and discards the filler bytes that wait at `engine_end`. Passes descriptors among them to `closer`.
    pub fn release(self, engine_end: &OwnedFd, closer: &Arc<UserCloser>) {
        if let Some(program) = &self.program {
            // SO_PRIORITY tells the preloaded library that the connection is being established. Clear it before
            // the program's end becomes writable, because the program may then act at once.
            let _ = set_option(program, libc::SO_PRIORITY, 0);
            // Set half of the original value, because the kernel doubles the value that is set.
            let _ = set_option(program, libc::SO_SNDBUF, self.capacity / 2);
        }
        let mut rest = self.bytes;
        let mut scrap = [0; filler::LEN];
        while rest > 0 {
            let part = rest.min(scrap.len());
            match take(engine_end.as_raw_fd(), &mut scrap[..part], closer) {
                Ok((len, _)) if len > 0 => rest -= len,
                _ => break,
            }
        }
    }
}

/// Returns a function that sends bytes from the program's end without blocking. It returns `None` if there is no room.
fn fill_from(program: &OwnedFd) -> impl Fn(&[u8]) -> io::Result<Option<usize>> {
    |bytes| match send(program.as_raw_fd(), bytes, &[]) {
        Ok(sent) => Ok(Some(sent)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fills the pair of a socket that begins to listen, because a listener is never writable. First drops what the program
/// has sent. Returns the number of filler bytes, which stay at the engine's end `fd` from now on.
///
/// # Errors
/// Errors of the system calls. `EAGAIN` if the program has sent too much. `ENFILE` if the program has sent descriptors and
/// the closer is full.
pub fn fill_listener(fd: RawFd, program: &OwnedFd, closer: &Arc<UserCloser>) -> io::Result<u64> {
    match discard(fd, closer) {
        Ok(false) => fill_behind(program),
        Ok(true) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        Err(_) => Err(io::Error::from_raw_os_error(libc::ENFILE)),
    }
}

/// Fills the pair from the program's end. Returns the number of filler bytes, without bytes that the program has sent: one
/// of its threads may send at the same time, and the engine must notice these bytes later.
pub(super) fn fill_behind(program: &OwnedFd) -> io::Result<u64> {
    let set = |name, value| match name {
        // This option would mark a connection that is being established.
        libc::SO_PRIORITY => Ok(()),
        _ => set_option(program, name, value),
    };
    filler::fill(set, fill_from(program)).map(|bytes| bytes as u64)
}

/// Returns the SO_SNDBUF of new UNIX sockets. Reads it only once, because an administrator seldom changes it
/// while the engine runs.
pub fn usual_capacity() -> io::Result<i32> {
    static USUAL: OnceLock<i32> = OnceLock::new();
    match USUAL.get() {
        Some(capacity) => Ok(*capacity),
        None => {
            let (end, _other) = UnixStream::pair()?;
            let capacity = option(&end.into(), libc::SO_SNDBUF)?;
            Ok(*USUAL.get_or_init(|| capacity))
        }
    }
}
