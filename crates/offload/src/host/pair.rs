//! The engine's side of the socket pairs. Each pair of UNIX sockets stands for one offloaded socket.

mod ending;
mod filled;
mod kept;
mod messages;
mod waiting;

pub use ending::*;
pub use filled::*;
pub use kept::*;
pub use messages::*;
pub use waiting::*;

use crate::stack::arena::Key;
use crate::stack::options::SocketOptions;
use crate::stack::ring::Span;
use inlane_offload_protocol::message::NumberOption;
use inlane_offload_protocol::name::{Asking, End, SocketKind, SocketName, UnixAddress};
use rustix::event::epoll;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
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

/// Returns true if a descriptor is a UNIX socket. SO_DOMAIN needs no lock of the socket, so this does not wait for it.
pub(super) fn is_unix(fd: &OwnedFd) -> bool {
    option(fd, libc::SO_DOMAIN).is_ok_and(|domain| domain == libc::AF_UNIX)
}

pub(super) fn option(fd: &OwnedFd, name: i32) -> io::Result<i32> {
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

pub(super) fn result(code: isize) -> io::Result<usize> {
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

pub(super) fn to_iovec(span: Span) -> libc::iovec {
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

/// Returns the cookie (SO_COOKIE) of an end of a pair, a number that identifies the socket on this system. Unlike an inode number,
/// it is never used again.
///
/// # Errors
/// Errors of the system.
pub fn cookie(end: &OwnedFd) -> io::Result<u64> {
    Ok(rustix::net::sockopt::socket_cookie(end)?)
}

/// Returns the events of a pair that epoll reports. `awaits_room` is true if room in the pair is one of them.
pub fn events(awaits_room: bool) -> epoll::EventFlags {
    use epoll::EventFlags as Flags;
    let room = if awaits_room { Flags::OUT } else { Flags::empty() };
    Flags::IN | Flags::PRI | Flags::RDHUP | Flags::ET | room
}

/// Lets epoll report room in the pair while it is `full`. At other times, epoll must not report room, because every receive of
/// the program would then wake the engine. `awaits_room` is true if epoll reports room now. Returns false if the
/// kernel has refused the change. Try again then.
#[inline]
pub fn watch_room(epoll: &OwnedFd, end: &OwnedFd, key: Key, awaits_room: &mut bool, full: bool) -> bool {
    if *awaits_room != full {
        let token = epoll::EventData::new_u64(key.to_u64());
        if epoll::modify(epoll, end, token, events(full)).is_err() {
            return false;
        }
        *awaits_room = full;
    }
    true
}

/// Returns the [`cookie`] of a descriptor that a program has sent.
///
/// # Errors
/// `EBADF` if the descriptor is not a UNIX socket. Errors of the system.
pub fn checked_cookie(fd: &OwnedFd) -> io::Result<u64> {
    // Ask for the domain first, because only the pairs' ends can be meant.
    if !is_unix(fd) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    cookie(fd)
}

/// Sets the limit of SO_RCVBUF for the socket pair, through `end`, the engine's end of the pair. The program has set the
/// option; the stack limits the rings.
pub fn limit(options: &SocketOptions, end: Option<&OwnedFd>) {
    if let (Some(bytes), Some(end)) = (options.receive_buffer, end) {
        // The ring gets half of `bytes`, and the socket pair the other half. Pass a quarter of `bytes`,
        // because setsockopt doubles the number. If the call fails, the pair keeps its size.
        let _ = set_option(end, libc::SO_SNDBUF, bytes / 4);
    }
}

#[cfg(test)]
mod tests;
