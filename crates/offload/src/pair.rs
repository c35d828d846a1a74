//! The engine's side of the pairs of UNIX sockets that stand for offloaded sockets.

use inlane_offload_protocol::message::NumberOption;
use inlane_offload_protocol::name::{Asking, End, SocketName, UnixAddress};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

/// The value of SO_PRIORITY of a program's end whose connection is being established (`inlane_preload::socket::Flags::CONNECTING`).
const CONNECTING: i32 = 4;

/// Creates a pair. Returns the engine's end, and the program's end, which is bound to `name`.
///
/// # Errors
/// Errors of the system: too many descriptors, too little memory.
pub fn create(name: &SocketName) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SOCK_SEQPACKET keeps datagrams apart as SOCK_DGRAM does, and also reports a closed end.
    let kind = if name.kind.is_datagram() { libc::SOCK_SEQPACKET } else { libc::SOCK_STREAM };
    // SAFETY: the call writes the two descriptors, and no other code owns them.
    let (engine, program) = unsafe {
        if libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    // Receive urgent data like other data. Ignore an error, because old kernels have no urgent data on UNIX
    // sockets.
    let _ = set_option(&engine, libc::SO_OOBINLINE, 1);
    bind(&program, &name.to_address())?;
    Ok((engine, program))
}

fn bind(end: &OwnedFd, address: &UnixAddress) -> io::Result<()> {
    // SAFETY: the structure outlives the call.
    match unsafe { libc::bind(end.as_raw_fd(), (&raw const address.raw).cast(), address.len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds the engine's end to a name from which the preloaded library reads how the connection ended. Only the
/// first call has an effect, because a socket can be bound only once. `local` is the connection's local address, and
/// `options` are the socket's.
pub fn set_end(
    engine_end: &OwnedFd,
    end: End,
    engine: u64,
    socket: u64,
    local: Option<SocketAddr>,
    options: &[NumberOption],
) {
    let _ = bind(engine_end, &end.to_address(engine, socket, local, options));
}

/// Returns true if two descriptors that a program sent are the ends of a pair that the library has created and named.
/// Other descriptors could block the engine when it closes them. If `engine_end` were the program's end of another
/// socket, the engine would keep that socket open itself.
pub fn are_ends(engine_end: &OwnedFd, program_end: &OwnedFd) -> bool {
    const ASKING: Asking = Asking { own: libc::getsockname, peer: libc::getpeername };
    SocketName::of(program_end.as_raw_fd(), ASKING).is_some_and(|name| {
        name.local.port() == 0 && SocketName::of_peer(engine_end.as_raw_fd(), ASKING) == Some(name)
    })
}

/// The most bytes that one system call writes to fill a pair, or discards from it. A pair is filled to keep
/// its program's end unwritable during the handshake. One call fills the smallest send buffer.
const FILLER: usize = 8192;

/// A program's end that is kept full, so that it is not writable during the handshake.
#[derive(Debug)]
pub struct Filled {
    program: Arc<OwnedFd>,
    /// The number of filler bytes in the pair. They are not the program's data. [`Self::release`] discards
    /// them.
    bytes: usize,
    /// The SO_SNDBUF that [`Self::release`] gives the program's end: its original value, unless changed
    /// since.
    capacity: i32,
}

impl Filled {
    /// Fills the pair from the program's end, so that the program's end is not writable. Keeps that end open, to
    /// restore its SO_SNDBUF later. `usual` is true if SO_SNDBUF still has the system's default.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(program: Arc<OwnedFd>, usual: bool) -> io::Result<Self> {
        let capacity = if usual { usual_capacity()? } else { option(&program, libc::SO_SNDBUF)? };
        set_option(&program, libc::SO_SNDBUF, 1)?;
        set_option(&program, libc::SO_PRIORITY, CONNECTING)?;
        let mut bytes = 0;
        loop {
            match send(program.as_raw_fd(), &[0; FILLER], &[]) {
                Ok(sent) => {
                    bytes += sent;
                    if sent < FILLER {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Self { program, bytes, capacity })
    }

    /// Takes over a program's end that the preloaded library has already filled with `bytes` filler bytes.
    ///
    /// # Errors
    /// Errors of the system; `InvalidInput` if the number of bytes is impossible.
    pub fn prepared(program: Arc<OwnedFd>, bytes: i32) -> io::Result<Self> {
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= 2 * FILLER => Ok(Self { program, bytes, capacity: usual_capacity()? }),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Returns the value of SO_SNDBUF that the program's end gets once the connection is established. Until
    /// then, the end has a small, full buffer, so that it is not writable.
    pub fn capacity(&self) -> i32 {
        self.capacity
    }

    /// Changes the value of SO_SNDBUF that the program's end gets when it becomes writable.
    pub fn set_capacity(&mut self, capacity: i32) {
        self.capacity = capacity;
    }

    /// Makes the program's end writable. Call this when the connection is established. Restores SO_SNDBUF,
    /// and discards the filler bytes that wait at `engine_end`.
    pub fn release(self, engine_end: &OwnedFd) {
        // The value of SO_PRIORITY tells the preloaded library that the connection is being established.
        // Clear it before the end becomes writable, because the program may then act at once.
        let _ = set_option(&self.program, libc::SO_PRIORITY, 0);
        // Set half of the original value, because the kernel doubles the value that is set.
        let _ = set_option(&self.program, libc::SO_SNDBUF, self.capacity / 2);
        let mut rest = self.bytes;
        let mut scrap = [0; FILLER];
        while rest > 0 {
            let part = rest.min(scrap.len());
            match receive(engine_end.as_raw_fd(), &mut scrap[..part], &mut []) {
                Ok(len) if len > 0 => rest -= len,
                _ => break,
            }
        }
    }
}

/// Returns the SO_SNDBUF of new UNIX sockets. Reads it once, because an administrator seldom changes it while the
/// engine runs.
fn usual_capacity() -> io::Result<i32> {
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

fn option(fd: &OwnedFd, name: i32) -> io::Result<i32> {
    let (mut value, mut len) = (0i32, 4);
    // SAFETY: value and length outlive the call.
    match unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &mut len)
    } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets an option of SOL_SOCKET.
///
/// # Errors
/// Errors of the system.
pub fn set_option(fd: &OwnedFd, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the value outlives the call.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const value).cast(), 4) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn result(code: isize) -> io::Result<usize> {
    usize::try_from(code).map_err(|_| io::Error::last_os_error())
}

/// Sends the bytes of `first` and then those of `second`, without blocking. Returns how many bytes were sent.
///
/// # Errors
/// Errors of the system; `WouldBlock` if the pair is full.
pub fn send(fd: RawFd, first: &[u8], second: &[u8]) -> io::Result<usize> {
    let mut parts = [first, second]
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: an all-zero msghdr is valid. The parts outlive the call and are only read.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (parts.as_mut_ptr(), 1 + usize::from(!second.is_empty()));
        result(libc::sendmsg(fd, &header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT))
    }
}

/// Receives bytes into `first` and then into `second`, without blocking. Returns their number, which is 0 at
/// the end of the stream.
///
/// # Errors
/// Errors of the system; `WouldBlock` if there is nothing to receive.
pub fn receive(fd: RawFd, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
    receive_with_flags(fd, first, second).map(|(len, _)| len)
}

/// Like [`receive`]. Also returns true if the program had sent descriptors with the bytes, which the kernel
/// has closed. Such a read stops early, so the pair may hold more bytes although there was room for them.
///
/// # Errors
/// As [`receive`].
pub fn receive_with_flags(fd: RawFd, first: &mut [u8], second: &mut [u8]) -> io::Result<(usize, bool)> {
    let mut parts =
        [first, second].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
    let count = 1 + usize::from(parts[1].iov_len > 0);
    // SAFETY: the parts outlive the call, and nothing else accesses them.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (parts.as_mut_ptr(), count);
        let len = result(libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT))?;
        Ok((len, header.msg_flags & libc::MSG_CTRUNC != 0))
    }
}

/// Reads at most 64 messages that the program has written, and drops them with their descriptors. Returns
/// true if more may wait. An unread message could hold a descriptor of the program's end itself, which then
/// never closes.
pub fn discard(fd: RawFd) -> bool {
    let mut scrap = [0; 4096];
    (0..64).all(|_| receive(fd, &mut scrap, &mut []).is_ok_and(|len| len > 0))
}

/// Returns the number of bytes that wait at the engine's end `fd`, or 0 if the kernel gives no answer.
pub fn unread(fd: RawFd) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one c_int to `bytes`, which outlives the call.
    let code = unsafe { libc::ioctl(fd, libc::FIONREAD, &mut bytes) };
    if code == 0 { bytes.max(0) as u64 } else { 0 }
}

/// Returns true if the program has closed its end, or shut down both directions.
pub fn hung_up(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 }
}

/// Returns true if no process has the program's end any more. [`hung_up`] does not tell a closed end from one
/// whose two directions are shut down. This function costs several system calls.
pub fn is_closed(engine_end: RawFd) -> bool {
    // SAFETY: an all-zero address is valid. The address and its length live through the calls.
    unsafe {
        let mut name: libc::sockaddr_un = std::mem::zeroed();
        let mut len = size_of_val(&name) as libc::socklen_t;
        if libc::getpeername(engine_end, (&raw mut name).cast(), &mut len) != 0 {
            return true;
        }
        let probe = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if probe < 0 {
            return false;
        }
        // Binding the probe to the name of the program's end succeeds only if that end is closed in all
        // processes, because the kernel then frees the name.
        let probe = OwnedFd::from_raw_fd(probe);
        libc::bind(probe.as_raw_fd(), (&raw const name).cast(), len) == 0
    }
}

/// The space for one descriptor in a message's control data.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// Sends the message `bytes`, with `descriptor` if given, without blocking.
///
/// # Errors
/// Errors of the system; `WouldBlock` if the socket is full.
pub fn send_descriptor(fd: RawFd, bytes: &[u8], descriptor: Option<RawFd>) -> io::Result<usize> {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the structures outlive the call, and the control data has room for one descriptor.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        if let Some(descriptor) = descriptor {
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(4) as _;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(first).cast::<i32>().write_unaligned(descriptor);
        }
        result(libc::sendmsg(fd, &header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT))
    }
}

/// Receives a message and the descriptor that came with it, without blocking.
///
/// # Errors
/// Errors of the system; `WouldBlock` if there is no message; `InvalidData` if it is longer than `bytes`.
pub fn receive_descriptor(fd: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    receive_descriptors(fd, bytes).map(|(len, [first, _])| (len, first))
}

/// Receives a message and the first two descriptors that came with it, without blocking. Closes further ones.
///
/// # Errors
/// As [`receive_descriptor`].
pub fn receive_descriptors(fd: RawFd, bytes: &mut [u8]) -> io::Result<(usize, [Option<OwnedFd>; 2])> {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the structures live through the call. The kernel writes whole control messages within the
    // length that it returns, and closes descriptors that do not fit. No other code owns the descriptor.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(4) as _;
        let len = result(libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC))?;
        let first = libc::CMSG_FIRSTHDR(&header);
        let mut descriptors = [None, None];
        if !first.is_null()
            && (*first).cmsg_level == libc::SOL_SOCKET
            && (*first).cmsg_type == libc::SCM_RIGHTS
        {
            // The length says how many descriptors the control data holds.
            let count = ((*first).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
            for index in 0..count {
                let passed = libc::CMSG_DATA(first).cast::<i32>().add(index).read_unaligned();
                let passed = OwnedFd::from_raw_fd(passed);
                if let Some(place) = descriptors.get_mut(index) {
                    *place = Some(passed);
                }
            }
        }
        if header.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((len, descriptors))
    }
}

/// Returns a socket's inode number, which identifies it among the sockets of this system.
///
/// # Errors
/// `EBADF` if the descriptor is no UNIX socket: a file of another file system may have the same inode number.
/// Errors of the system.
pub fn inode(fd: &OwnedFd) -> io::Result<u64> {
    static SOCKETS: OnceLock<u64> = OnceLock::new();
    let sockets = match SOCKETS.get() {
        Some(device) => *device,
        None => {
            let (socket, _) = UnixStream::pair()?;
            *SOCKETS.get_or_init(|| rustix::fs::fstat(&socket).map_or(u64::MAX, |status| status.st_dev))
        }
    };
    // Ask for the domain first, because `fstat` of a file in user space (FUSE) may block.
    if !option(fd, libc::SO_DOMAIN).is_ok_and(|domain| domain == libc::AF_UNIX) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    let status = rustix::fs::fstat(fd)?;
    match status.st_dev == sockets {
        true => Ok(status.st_ino),
        false => Err(io::Error::from_raw_os_error(libc::EBADF)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_offload_protocol::name::SocketKind;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn an_end_is_closed_when_its_last_descriptor_is() {
        let local = "10.0.0.1:80".parse().unwrap();
        let name = SocketName {
            engine: 0x1234_5678,
            socket: 9,
            kind: SocketKind::StreamV4,
            local,
            remote: Some(local),
        };
        let (engine, program) = create(&name).unwrap();
        let fd = engine.as_raw_fd();
        // SAFETY: has no preconditions.
        assert_eq!(unsafe { libc::shutdown(program.as_raw_fd(), libc::SHUT_RDWR) }, 0);
        let other = program.try_clone().unwrap();
        drop(program);
        assert!(hung_up(fd) && !is_closed(fd));
        drop(other);
        assert!(hung_up(fd) && is_closed(fd) && is_closed(fd));
    }

    #[test]
    fn only_sockets_have_an_inode_that_identifies_them() {
        let (one, other) = UnixStream::pair().unwrap();
        let (one, other) = (OwnedFd::from(one), OwnedFd::from(other));
        assert_ne!(inode(&one).unwrap(), inode(&other).unwrap());
        assert_eq!(inode(&one).unwrap(), inode(&one.try_clone().unwrap()).unwrap());
        let tcp = OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        assert_eq!(inode(&tcp).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        assert_eq!(inode(&file).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let named = OwnedFd::from(
            std::fs::OpenOptions::new().custom_flags(libc::O_PATH).read(true).open(path).unwrap(),
        );
        assert_eq!(inode(&named).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
