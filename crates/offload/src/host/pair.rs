//! The engine's side of the socket pairs. Each pair of UNIX sockets stands for one offloaded socket.

use crate::host::Permit;
use crate::host::closer::{Closer, UserCloser};
use crate::stack::ring::Span;
use inlane_offload_protocol::filler;
use inlane_offload_protocol::message::NumberOption;
use inlane_offload_protocol::name::{Asking, End, SocketKind, SocketName, UnixAddress};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const ASKING: Asking = Asking { own: libc::getsockname, peer: libc::getpeername };

/// Creates a socket pair. Returns the engine's end first, then the program's end. The program's end is bound
/// to `name`.
#[cfg(test)]
pub fn create(name: &SocketName) -> io::Result<(OwnedFd, OwnedFd)> {
    let (engine, program) = create_unnamed(name.kind)?;
    set_name(&program, name)?;
    Ok((engine, program))
}

/// Creates the socket pair of a socket of the kind `kind`. Returns the engine's end first, then the program's end. The program's
/// end has no name yet.
///
/// # Errors
/// Errors of the system: too many descriptors, too little memory.
pub fn create_unnamed(kind: SocketKind) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SOCK_SEQPACKET keeps datagrams apart as SOCK_DGRAM does, and also reports a closed end.
    let kind = if kind.is_datagram() { libc::SOCK_SEQPACKET } else { libc::SOCK_STREAM };
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
    Ok((engine, program))
}

fn bind(end: &OwnedFd, address: &UnixAddress) -> io::Result<()> {
    // SAFETY: the structure outlives the call.
    match unsafe { libc::bind(end.as_raw_fd(), (&raw const address.raw).cast(), address.len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds the engine's end of the socket pair to a name that tells the preloaded library how the connection
/// ended. Only the first call has an effect, because a socket can be bound only once. `local` is the
/// connection's local address. `options` are the options of the offloaded socket.
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

/// Binds the program's end of a pair to `name`.
///
/// # Errors
/// Errors of the system.
pub fn set_name(program_end: &OwnedFd, name: &SocketName) -> io::Result<()> {
    bind(program_end, &name.to_address())
}

/// Returns true if the program's end of a pair has a name. `engine_end` is the other end.
pub fn is_named(engine_end: RawFd) -> bool {
    SocketName::of_peer(engine_end, ASKING).is_some()
}

/// Returns true if two descriptors from a program are the ends of a socket pair that the library has created
/// and named. The engine must check this. Other descriptors could block the engine when it closes them. If
/// `engine_end` were the program's end of another socket, the engine would keep that socket open itself.
pub fn are_ends(engine_end: &OwnedFd, program_end: &OwnedFd) -> bool {
    SocketName::of(program_end.as_raw_fd(), ASKING).is_some_and(|name| {
        name.local.port() == 0 && SocketName::of_peer(engine_end.as_raw_fd(), ASKING) == Some(name)
    })
}

/// Returns true if a descriptor that a program sent is an end of a pair that the library has created and named, and nothing
/// says that its connection has ended.
pub fn is_opened(program_end: &OwnedFd) -> bool {
    let fd = program_end.as_raw_fd();
    // Ask for the domain first, because getsockname of a TCP socket waits for a send of the program, which may block.
    is_unix(program_end)
        && SocketName::of(fd, ASKING).is_some_and(|name| name.local.port() == 0 && !name.kind.is_bound())
        && End::of(fd, ASKING) == End::Unnamed
}

/// Returns the name of the listener if a descriptor that a program sent is the program's end of a listener, or its stand-in.
pub fn lost_listener(program_end: &OwnedFd) -> Option<SocketName> {
    // Ask for the domain first, because getsockname of a TCP socket waits for a send of the program, which may block.
    let name = is_unix(program_end).then(|| SocketName::of(program_end.as_raw_fd(), ASKING))?;
    name.filter(|name| name.kind.is_bound())
}

/// The program's end of a socket pair. It is kept full, so that it is not writable during the handshake.
#[derive(Debug)]
pub struct Filled {
    program: Arc<OwnedFd>,
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
        Ok(Self { program, bytes, capacity, _permit: permit })
    }

    /// Takes over the program's end of a socket pair. The preloaded library has already filled it with
    /// `bytes` filler bytes.
    ///
    /// # Errors
    /// Errors of the system. `InvalidInput` if `bytes` is negative or too large.
    pub fn prepared(program: Arc<OwnedFd>, bytes: i32) -> io::Result<Self> {
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= 2 * filler::LEN => {
                Ok(Self { program, bytes, capacity: usual_capacity()?, _permit: None })
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
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
        // SO_PRIORITY tells the preloaded library that the connection is being established. Clear it before
        // the program's end becomes writable, because the program may then act at once.
        let _ = set_option(&self.program, libc::SO_PRIORITY, 0);
        // Set half of the original value, because the kernel doubles the value that is set.
        let _ = set_option(&self.program, libc::SO_SNDBUF, self.capacity / 2);
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
fn fill_behind(program: &OwnedFd) -> io::Result<u64> {
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

/// Returns true if a descriptor is a UNIX socket. SO_DOMAIN needs no lock of the socket, so this does not wait for it.
fn is_unix(fd: &OwnedFd) -> bool {
    option(fd, libc::SO_DOMAIN).is_ok_and(|domain| domain == libc::AF_UNIX)
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

/// Sets the options SO_KEEPALIVE and SO_LINGER of a program's end, because programs read them from there. `linger` is a
/// number of seconds, or `None` if SO_LINGER is off. Does nothing for an option that is off, because new sockets have it
/// off. Ignores errors, because both options have no effect on a UNIX socket.
pub fn keep_options(program: &OwnedFd, keepalive: bool, linger: Option<i32>) {
    if keepalive {
        let _ = set_option(program, libc::SO_KEEPALIVE, 1);
    }
    if let Some(seconds) = linger {
        let time = Some(Duration::from_secs(seconds.max(0).unsigned_abs().into()));
        let _ = rustix::net::sockopt::set_socket_linger(program, time);
    }
}

fn result(code: isize) -> io::Result<usize> {
    usize::try_from(code).map_err(|_| io::Error::last_os_error())
}

/// Sends bytes without blocking: first the bytes of `first`, then the bytes of `second`. Returns the number
/// of bytes sent.
///
/// # Errors
/// Errors of the system; `WouldBlock` if the socket pair is full.
pub fn send(fd: RawFd, first: &[u8], second: &[u8]) -> io::Result<usize> {
    let spans = [first, second].map(|part| Span { start: part.as_ptr().cast_mut(), len: part.len() });
    // SAFETY: the spans are slices.
    unsafe { send_spans(fd, spans) }
}

/// Sends the bytes of two spans of a ring, as [`send`] does.
///
/// # Errors
/// As [`send`].
///
/// # Safety
/// The spans are readable.
pub unsafe fn send_spans(fd: RawFd, spans: [Span; 2]) -> io::Result<usize> {
    let mut parts = spans.map(to_iovec);
    // SAFETY: an all-zero msghdr is valid. The parts outlive the call and are only read.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (parts.as_mut_ptr(), 1 + usize::from(parts[1].iov_len > 0));
        result(libc::sendmsg(fd, &header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT))
    }
}

fn to_iovec(span: Span) -> libc::iovec {
    libc::iovec { iov_base: span.start.cast(), iov_len: span.len }
}

/// Receives bytes as a program that ignores descriptors, without blocking. Returns their number, which is 0 at the end of
/// the stream. The kernel closes the descriptors at once.
///
/// # Errors
/// Errors of the system; `WouldBlock` if there is nothing to receive.
#[cfg(test)]
pub fn receive(fd: RawFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most as many bytes as there are.
    result(unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) })
}

/// Receives bytes that a program has written to a pair, without blocking. Returns
/// their number, which is 0 at the end of the stream. Also returns true if the program had sent descriptors with the
/// bytes, which are passed to `closer`. Such a read stops early, so the pair may hold more bytes although there was room
/// for them.
///
/// # Errors
/// Errors of the system; `WouldBlock` if there is nothing to receive; `InvalidData` if the closer is full and the
/// program has sent descriptors. These then stay in the pair.
pub fn take(fd: RawFd, bytes: &mut [u8], closer: &Arc<UserCloser>) -> io::Result<(usize, bool)> {
    let span = Span { start: bytes.as_mut_ptr(), len: bytes.len() };
    // SAFETY: the span is a slice.
    unsafe { take_spans(fd, [span, Span { len: 0, ..span }], closer) }
}

/// Receives bytes into two spans of a ring, as [`take`] does.
///
/// # Errors
/// As [`take`].
///
/// # Safety
/// The spans are writable.
pub unsafe fn take_spans(
    fd: RawFd,
    mut spans: [Span; 2],
    closer: &Arc<UserCloser>,
) -> io::Result<(usize, bool)> {
    if closer.is_full() {
        let (len, descriptors) = peek(fd, &mut to_iovec(spans[0]))?;
        if descriptors {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Receive only the bytes that were peeked, because descriptors may have arrived behind them.
        (spans[0].len, spans[1].len) = (len, 0);
        if len == 0 {
            return Ok((0, false));
        }
    }
    let mut parts = spans.map(to_iovec);
    let count = 1 + usize::from(parts[1].iov_len > 0);
    let mut room = MaybeUninit::<Room>::uninit();
    // SAFETY: the parts and the room outlive the call, and nothing else accesses them.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (parts.as_mut_ptr(), count);
        (header.msg_control, header.msg_controllen) = (room.as_mut_ptr().cast(), size_of::<Room>() as _);
        let len = result(libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC))?;
        if header.msg_controllen > 0 {
            closer.close(received(&header), None);
        }
        Ok((len, header.msg_controllen > 0 || header.msg_flags & libc::MSG_CTRUNC != 0))
    }
}

/// The space for the descriptors of a message. The kernel closes descriptors at once for which there is no room, which
/// could block. A message has at most 253 descriptors (SCM_MAX_FD).
#[repr(C, align(8))]
struct Room([u8; 16 + 4 * 254]);

/// Takes the descriptors out of the control data that `recvmsg` has written.
///
/// # Safety
/// The control data is valid, its descriptors have no other owner, and this is called once for it.
#[cold]
unsafe fn received(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel writes whole control messages within the length that it returns. The length of a message says
    // how many descriptors it holds.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(header);
        while let Some(message) = part.as_ref() {
            if (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let count = ((*part).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
                let first = libc::CMSG_DATA(part).cast::<i32>();
                descriptors
                    .extend((0..count).map(|index| OwnedFd::from_raw_fd(first.add(index).read_unaligned())));
            }
            part = libc::CMSG_NXTHDR(header, part);
        }
    }
    descriptors
}

fn slice(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// Reads bytes of a socket, which stay there. Returns their number, and true if descriptors come with them.
///
/// # Errors
/// Errors of the system; `WouldBlock` if there is nothing to receive.
#[cold]
fn peek(fd: RawFd, part: &mut libc::iovec) -> io::Result<(usize, bool)> {
    // SAFETY: the structures outlive the call. The callers pass writable bytes.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (part, 1);
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        let len = result(libc::recvmsg(fd, &mut header, flags))?;
        Ok((len, header.msg_flags & libc::MSG_CTRUNC != 0))
    }
}

/// Peeks at the next message. Returns true if it comes with more than two descriptors, or with one that is not a UNIX
/// socket. Passes duplicates of such descriptors to `closer`: a file system may block each close of a file, even while
/// the queue holds the file, too. If the closer has no room for duplicates, either, returns true for each message with
/// descriptors.
#[cold]
fn has_unexpected_descriptors(fd: RawFd, closer: &Arc<UserCloser>) -> io::Result<bool> {
    let mut byte = [0u8];
    if closer.is_overfull() {
        return peek(fd, &mut slice(&mut byte)).map(|(_, descriptors)| descriptors);
    }
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = Control([0; 32]);
    // SAFETY: the structures outlive the call, and no other code owns the descriptors.
    let (descriptors, more) = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(4 * 2) as _;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        result(libc::recvmsg(fd, &mut header, flags))?;
        (received(&header), header.msg_flags & libc::MSG_CTRUNC != 0)
    };
    let others: Vec<OwnedFd> = descriptors.into_iter().filter(|fd| !is_unix(fd)).collect();
    let unexpected = more || !others.is_empty();
    closer.close(others, None);
    Ok(unexpected)
}

/// Reads at most 64 messages of the program from the socket pair, and drops them with their descriptors.
/// Returns true if more messages may wait. An unread message could hold a descriptor of the program's end,
/// and that end would then never close.
///
/// # Errors
/// `InvalidData` if the closer is full and the program has sent descriptors. These then stay in the pair.
pub fn discard(fd: RawFd, closer: &Arc<UserCloser>) -> io::Result<bool> {
    let mut scrap = [0; 4096];
    for _ in 0..64 {
        match take(fd, &mut scrap, closer) {
            Ok((len, _)) if len > 0 => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Returns true if no descriptors wait at the engine's end `end` of a pair of stream sockets, and nothing can arrive any
/// more. Its close then does not block. Shuts down the receiving direction if `shuts` is true. Otherwise the caller knows
/// that the program has closed its end. Leaves bytes there: the program's next call fails if the engine closes its end
/// with unread bytes.
pub fn has_no_descriptors(end: &OwnedFd, shuts: bool) -> bool {
    let fd = end.as_raw_fd();
    if shuts {
        // Leave the sending direction to the close. Otherwise the program would see that the socket has hung up before it
        // sees the error that the close with unread bytes causes.
        // SAFETY: has no preconditions.
        unsafe { libc::shutdown(fd, libc::SHUT_RD) };
    }
    // A message of a stream socket has at least one byte.
    match unread(fd) {
        Some(0) => true,
        Some(bytes) => has_only_bytes(end, bytes),
        None => false,
    }
}

/// Returns true if `bytes` bytes without descriptors wait at a stream socket that has been shut down. Leaves them there.
#[cold]
fn has_only_bytes(end: &OwnedFd, bytes: u64) -> bool {
    // Each call then peeks at the bytes behind those of the call before.
    if set_option(end, libc::SO_PEEK_OFF, 0).is_err() {
        return false;
    }
    let mut scrap = [0u8; 2 * filler::LEN];
    let mut seen = 0;
    while seen < bytes {
        match peek(end.as_raw_fd(), &mut slice(&mut scrap)) {
            Ok((len, false)) if len > 0 => seen += len as u64,
            _ => return false,
        }
    }
    seen == bytes
}

/// Returns true if no messages wait at a socket that keeps messages apart, and nothing can arrive any more. Its close then
/// does not block. Shuts down both directions.
pub fn has_no_messages(end: &OwnedFd) -> bool {
    let fd = end.as_raw_fd();
    // With this option, every message has control data, also an empty one. The end of the stream has none.
    // SAFETY: has no preconditions.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
    set_option(end, libc::SO_PASSCRED, 1).is_ok()
        // The first call may return an error of the socket instead.
        && (0..2).any(|_| matches!(peek(fd, &mut slice(&mut [0])), Ok((0, false))))
}

/// Shuts down a socket that keeps messages apart, and drops up to 64 messages without descriptors that wait there. Returns
/// true if no message is left. The close of the socket then does not block.
pub fn drop_messages(end: &OwnedFd) -> bool {
    let fd = end.as_raw_fd();
    // With this option, every message has credentials, also an empty one. The end of the stream has none.
    // SAFETY: has no preconditions.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
    if set_option(end, libc::SO_PASSCRED, 1).is_err() {
        return false;
    }
    for _ in 0..64 {
        let mut byte = [0u8];
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut control = Control([0; 32]);
        // SAFETY: the structures outlive the calls. There is no room for descriptors, so none is received.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) as _;
            match result(libc::recvmsg(fd, &mut header, libc::MSG_PEEK | libc::MSG_DONTWAIT)) {
                Ok(0) if header.msg_controllen == 0 => return true,
                Ok(_) if header.msg_flags & libc::MSG_CTRUNC == 0 => {}
                _ => return false,
            }
            libc::recv(fd, byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT);
        }
    }
    false
}

/// Returns true if a descriptor that a program sent is an end of a pair whose other end is closed, and nothing waits there.
/// Its close then does not block.
pub fn is_ended(program_end: &OwnedFd) -> bool {
    let fd = program_end.as_raw_fd();
    is_unix(program_end)
        && option(program_end, libc::SO_TYPE).is_ok_and(|kind| kind == libc::SOCK_STREAM)
        && hung_up(fd)
        && unread(fd) == Some(0)
}

/// Returns the number of bytes that wait at the engine's end `fd`, or `None` if the kernel gives no answer.
pub fn unread(fd: RawFd) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one c_int to `bytes`, which outlives the call.
    let code = unsafe { libc::ioctl(fd, libc::FIONREAD, &mut bytes) };
    (code == 0).then_some(bytes.max(0) as u64)
}

/// Returns true if the program has closed its end of the socket pair, or shut down both directions. `fd` is
/// the engine's end.
pub fn hung_up(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & (libc::POLLHUP | libc::POLLERR) != 0 }
}

/// Returns true if no process has the program's end of the socket pair open. [`hung_up`] cannot distinguish a
/// closed end from an end whose two directions are shut down. This function costs several system calls.
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
        // Try to bind the probe to the name of the program's end of the socket pair. This succeeds only if
        // that end is closed in all processes, because the kernel then frees the name.
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
/// As [`receive_descriptors`].
pub fn receive_descriptor(fd: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    receive_descriptors(fd, bytes, &Closer::new(1).of_user(0)).map(|(len, [first, _])| (len, first))
}

/// Receives a message and the two descriptors that may come with it, without blocking.
///
/// # Errors
/// Errors of the system; `WouldBlock` if there is no message; `InvalidData` if it has more descriptors. These are then
/// passed to `closer`, or stay with the socket if the closer is full.
pub fn receive_descriptors(
    fd: RawFd,
    bytes: &mut [u8],
    closer: &Arc<UserCloser>,
) -> io::Result<(usize, [Option<OwnedFd>; 2])> {
    if closer.is_full() && has_unexpected_descriptors(fd, closer)? {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut room = MaybeUninit::<Room>::uninit();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the structures live through the call, and no other code owns the descriptors.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        (header.msg_control, header.msg_controllen) = (room.as_mut_ptr().cast(), size_of::<Room>() as _);
        let len = result(libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC))?;
        if header.msg_controllen == 0 {
            return Ok((len, [None, None]));
        }
        let mut descriptors = received(&header);
        if descriptors.len() > 2 {
            closer.close(descriptors, None);
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut next = descriptors.drain(..);
        Ok((len, [next.next(), next.next()]))
    }
}

/// Returns a socket's cookie (SO_COOKIE), a number that identifies the socket on this system. Unlike an inode number, it is never
/// used again.
///
/// # Errors
/// `EBADF` if the descriptor is not a UNIX socket. Errors of the system.
pub fn cookie(fd: &OwnedFd) -> io::Result<u64> {
    // Ask for the domain first, because only the pairs' ends can be meant.
    if !is_unix(fd) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    Ok(rustix::net::sockopt::socket_cookie(fd)?)
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
    fn bytes_of_a_program_are_no_filler() {
        let (end, program) = UnixStream::pair().unwrap();
        let (end, program) = (OwnedFd::from(end), OwnedFd::from(program));
        // A thread of the program sends after the engine has dropped all bytes, and before it fills the pair.
        send_descriptor(program.as_raw_fd(), b"x", Some(program.as_raw_fd())).unwrap();
        let filled = fill_behind(&program).unwrap();
        assert_eq!(unread(end.as_raw_fd()), Some(filled + 1));
        let closer = Closer::with_room(1000, 1 << 20).of_user(1);
        let filled = fill_listener(end.as_raw_fd(), &program, &closer).unwrap();
        assert_eq!(unread(end.as_raw_fd()), Some(filled));
    }

    #[test]
    fn a_listener_is_not_filled_behind_too_much() {
        let (end, program) = UnixStream::pair().unwrap();
        let (end, program) = (OwnedFd::from(end), OwnedFd::from(program));
        let full = Closer::with_room(0, 1 << 20).of_user(1);
        send_descriptor(program.as_raw_fd(), b"x", Some(program.as_raw_fd())).unwrap();
        let error = fill_listener(end.as_raw_fd(), &program, &full).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENFILE));
        let closer = Closer::with_room(1000, 1 << 20).of_user(1);
        // A read of a stream ends behind a descriptor.
        for _ in 0..100 {
            send_descriptor(program.as_raw_fd(), b"x", Some(program.as_raw_fd())).unwrap();
        }
        let error = fill_listener(end.as_raw_fd(), &program, &closer).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
    }

    #[test]
    fn only_unix_sockets_have_a_cookie_that_identifies_them() {
        let (one, other) = UnixStream::pair().unwrap();
        let (one, other) = (OwnedFd::from(one), OwnedFd::from(other));
        assert_ne!(cookie(&one).unwrap(), cookie(&other).unwrap());
        assert_eq!(cookie(&one).unwrap(), cookie(&one.try_clone().unwrap()).unwrap());
        // The kernel gives the inode number of a closed socket to other sockets once its numbers wrap.
        let mut known: Vec<u64> = [&one, &other].map(|end| cookie(end).unwrap()).into();
        for _ in 0..100 {
            known.push(cookie(&UnixStream::pair().unwrap().0.into()).unwrap());
        }
        known.sort_unstable();
        known.dedup();
        assert_eq!(known.len(), 102);
        let tcp = OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        assert_eq!(cookie(&tcp).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        assert_eq!(cookie(&file).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let named = OwnedFd::from(
            std::fs::OpenOptions::new().custom_flags(libc::O_PATH).read(true).open(path).unwrap(),
        );
        assert_eq!(cookie(&named).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
