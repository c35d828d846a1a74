//! UDP sockets that the engine runs.
//!
//! Each datagram in the socket pair begins with a header ([`inlane_offload_protocol::datagram`]). The
//! kernel's functions would not add or remove this header. So every function must know beforehand whether its
//! descriptor is a UDP socket of the engine. The name of the UNIX socket behind the descriptor shows this, so
//! the function asks the kernel for the name. In processes without a UDP socket of the engine, [`PRESENT`] is
//! false, which saves this system call.

mod ancillary;
mod many;
mod options;
mod routes;

pub use many::{receive_many, send_many};
pub use options::{getsockopt, setsockopt};

use crate::{control, descriptor, errno, fail, memory, real, set_errno};
use inlane_offload_protocol::address::read_sockaddr;
use inlane_offload_protocol::datagram::{self, Header, MOST_V4, MOST_V6};
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::SocketName;
use libc::{c_int, c_void, iovec, msghdr, sockaddr, socklen_t, ssize_t};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if this process may have a UDP socket of the engine. Never becomes false again.
static PRESENT: AtomicBool = AtomicBool::new(false);

/// How many descriptors, from 0 on, are examined when a program starts, to find inherited sockets.
const MOST_INHERITED: usize = 1024;
/// The length of the `iovec` array on the stack. It holds the header's buffer and the program's buffers.
/// Calls with too many buffers use a longer array.
const FEW: usize = 16;
/// The most buffers that the kernel accepts in one call.
const MOST_PARTS: usize = 1024;

/// Records that this process has a UDP socket on the engine. Until this is called, [`name_of`] returns `None`
/// without a system call.
pub fn note() {
    PRESENT.store(true, Ordering::Relaxed);
}

/// Returns the name of `fd` if `fd` is a UDP socket of the engine. Leaves errno unchanged.
#[inline]
pub fn name_of(fd: RawFd) -> Option<SocketName> {
    match PRESENT.load(Ordering::Relaxed) {
        true => descriptor::name_of(fd).filter(|name| name.kind.is_datagram()),
        false => None,
    }
}

/// Sets [`PRESENT`] if `fd` is a UDP socket of the engine. Call this for each descriptor that the process
/// received or inherited.
pub fn note_passed(fd: RawFd) {
    if !PRESENT.load(Ordering::Relaxed) && descriptor::name_of(fd).is_some_and(|name| name.kind.is_datagram())
    {
        note();
    }
}

/// Looks for UDP sockets of the engine among the descriptors that the program was started with.
pub fn find_inherited() {
    let mut polls = [libc::pollfd { fd: 0, events: 0, revents: 0 }; MOST_INHERITED];
    for (poll, fd) in polls.iter_mut().zip(0..) {
        poll.fd = fd;
    }
    // Ask for at most RLIMIT_NOFILE entries, because poll(2) fails if it is given more.
    // SAFETY: the structures outlive the calls.
    let asked = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let asked = polls.len().min(limit.rlim_cur as usize);
        if libc::poll(polls.as_mut_ptr(), asked as libc::nfds_t, 0) < 0 {
            return;
        }
        asked
    };
    for poll in polls[..asked].iter().filter(|poll| poll.revents & libc::POLLNVAL == 0) {
        note_passed(poll.fd);
    }
}

/// The flags of a UDP socket. They are stored in the option SO_PRIORITY of the program's end of the socket
/// pair. There they survive fork and a transfer to another process.
struct Flags;

impl Flags {
    /// The socket is connected.
    const CONNECTED: c_int = 1;
    /// The program has shut down reading.
    const READ_SHUT: c_int = 2;
    /// The program has shut down writing.
    const WRITE_SHUT: c_int = 4;

    fn of(fd: RawFd) -> c_int {
        real::option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY).unwrap_or(0)
    }

    /// Replaces the flags in SO_PRIORITY. If all three flags are set, stores only the two shutdown flags (6),
    /// because the kernel reserves the value 7 for privileged processes.
    fn set(fd: RawFd, flags: c_int) {
        real::set_option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, flags.min(6));
    }
}

/// Reads and removes the engine's error messages at the head of the queue of the socket pair. Returns the
/// errno of the last message, or 0 if there was no message.
pub fn take_error(fd: RawFd, name: &SocketName) -> c_int {
    let before = errno();
    let mut bytes = [0u8; datagram::LEN];
    let mut error = 0;
    loop {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: the buffer outlives the call.
        let len = unsafe { real::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) };
        let header = usize::try_from(len).ok().and_then(|len| Header::decode(name.engine, &bytes[..len]));
        match header {
            Some(header) if header.error != 0 => error = header.error,
            _ => break,
        }
        // Remove the error message. If another thread removes it first, this call drops a datagram instead.
        // That is allowed, because any network may drop datagrams.
        // SAFETY: the buffer lives through the call.
        unsafe { real::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
    }
    set_errno(before);
    error
}

/// Returns the total length of buffers, or `None` if it overflows.
fn total(parts: &[iovec]) -> Option<usize> {
    parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))
}

/// Passes `call` the array of buffers `[header, parts...]` and its length. Fails with EMSGSIZE if the array
/// is longer than the kernel accepts.
///
/// # Safety
/// `header` points to `datagram::LEN` bytes, and `parts` are valid buffers, for the accesses that `call`
/// makes.
#[inline]
unsafe fn with_header(
    header: *mut u8,
    parts: &[iovec],
    call: impl FnOnce(*mut iovec, usize) -> ssize_t,
) -> ssize_t {
    const EMPTY: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    fn fill(room: &mut [iovec], header: *mut u8, parts: &[iovec]) {
        room[0] = iovec { iov_base: header.cast(), iov_len: datagram::LEN };
        room[1..].copy_from_slice(parts);
    }
    #[inline(never)]
    fn large(header: *mut u8, parts: &[iovec], call: impl FnOnce(*mut iovec, usize) -> ssize_t) -> ssize_t {
        let mut room = [EMPTY; MOST_PARTS];
        fill(&mut room[..=parts.len()], header, parts);
        call(room.as_mut_ptr(), parts.len() + 1)
    }
    if parts.len() >= MOST_PARTS {
        return fail(libc::EMSGSIZE);
    }
    if parts.len() >= FEW {
        return large(header, parts, call);
    }
    let mut room = [EMPTY; FEW];
    fill(&mut room[..=parts.len()], header, parts);
    call(room.as_mut_ptr(), parts.len() + 1)
}

/// Returns the buffers of a message.
///
/// # Safety
/// As for sendmsg and recvmsg. The slice must not outlive the program's call.
unsafe fn parts_of<'a>(message: &msghdr) -> &'a [iovec] {
    let count = real::length(message.msg_iovlen as _);
    if message.msg_iov.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the program's arguments.
    unsafe { std::slice::from_raw_parts(message.msg_iov, count) }
}

/// Returns the destination address of a message. Returns `None` if the message has no address, and an errno
/// if its address is invalid.
unsafe fn destination(name: &SocketName, message: &msghdr) -> Result<Option<SocketAddr>, c_int> {
    if message.msg_name.is_null() || message.msg_namelen == 0 {
        return Ok(None);
    }
    let len = message.msg_namelen;
    if (len as c_int) < size_of::<libc::sa_family_t>() as c_int {
        return Err(libc::EINVAL);
    }
    let v6 = name.kind.is_v6();
    // SAFETY: the program's arguments.
    let (family, mut address) = unsafe {
        let family = memory::read(message.msg_name.cast::<libc::sa_family_t>()).ok_or(libc::EFAULT)?;
        (c_int::from(family), memory::read_address(message.msg_name.cast(), len)?)
    };
    if !v6 && (len as usize) < size_of::<libc::sockaddr_in>() {
        return Err(libc::EINVAL);
    }
    if family == libc::AF_UNSPEC {
        // Handle AF_UNSPEC as Linux does. On an IPv6 socket, ignore the address. On an IPv4 socket, read it
        // as an IPv4 address.
        if v6 {
            return Ok(None);
        }
        // SAFETY: the program's arguments.
        let mut bytes = unsafe { memory::read(message.msg_name.cast::<[u8; 16]>()) }.ok_or(libc::EFAULT)?;
        bytes[..2].copy_from_slice(&(libc::AF_INET as libc::sa_family_t).to_ne_bytes());
        // SAFETY: the array has the size of an IPv4 address and lives through the call.
        address = unsafe { read_sockaddr(bytes.as_ptr().cast(), 16) };
    }
    match address {
        Some(address) if address.is_ipv6() && !name.kind.is_v6() => Err(libc::EAFNOSUPPORT),
        Some(address) if address.port() == 0 => Err(libc::EINVAL),
        Some(address) => Ok(Some(SocketAddr::new(address.ip().to_canonical(), address.port()))),
        None if matches!(family, libc::AF_INET | libc::AF_INET6) => Err(libc::EINVAL),
        None => Err(libc::EAFNOSUPPORT),
    }
}

/// Sends a datagram, as sendmsg does.
///
/// # Safety
/// As for sendmsg.
pub unsafe fn send(fd: RawFd, name: &SocketName, message: &msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's arguments.
    match unsafe { prepare(fd, name, message, flags) } {
        // SAFETY: the program's arguments.
        Ok(header) => unsafe { send_with(fd, &header, message, flags) },
        Err(error) => fail(error),
    }
}

/// Returns the header for a datagram, or the errno with which sending it fails.
unsafe fn prepare(fd: RawFd, name: &SocketName, message: &msghdr, flags: c_int) -> Result<Header, c_int> {
    let mut header = Header::new(name.engine);
    if flags & libc::MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if flags & libc::MSG_MORE != 0 {
        header.flags |= datagram::send::MORE;
    }
    // SAFETY: the program's arguments.
    unsafe {
        header.remote = destination(name, message)?;
        ancillary::read(message, &mut header)?;
    }
    if Flags::of(fd) & Flags::CONNECTED != 0 {
        match take_error(fd, name) {
            0 => {}
            error => return Err(error),
        }
    } else if header.remote.is_none() {
        // WRITE_SHUT without `CONNECTED` means a connected socket that was shut down in both directions.
        // `Flags::set` cannot store all three flags.
        let shut = Flags::of(fd) & Flags::WRITE_SHUT != 0;
        return Err(if shut { libc::EPIPE } else { libc::EDESTADDRREQ });
    }
    if let Some(remote) = header.remote {
        routes::check(fd, name, remote)?;
    }
    let v4 = !name.kind.is_v6() || header.remote.is_some_and(|remote| remote.is_ipv4());
    let most = if v4 { MOST_V4 } else { MOST_V6 };
    // SAFETY: the program's arguments.
    match total(unsafe { parts_of(message) }) {
        Some(len) if len <= most => Ok(header),
        _ => Err(libc::EMSGSIZE),
    }
}

unsafe fn send_with(fd: RawFd, header: &Header, message: &msghdr, flags: c_int) -> ssize_t {
    let mut bytes = header.encode();
    // SAFETY: the program passes valid arguments. An all-zero msghdr is valid, and the structures outlive the
    // call.
    let sent = unsafe {
        with_header(bytes.as_mut_ptr(), parts_of(message), |parts, count| {
            let mut own: msghdr = std::mem::zeroed();
            (own.msg_iov, own.msg_iovlen) = (parts, count as _);
            real::sendmsg(fd, &own, flags & libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        })
    };
    match sent {
        -1 if errno() == libc::EPIPE && Flags::of(fd) & Flags::WRITE_SHUT == 0 => fail(libc::ENETDOWN),
        -1 => -1,
        sent => sent - datagram::LEN as ssize_t,
    }
}

/// Sends one buffer to `address`, which may be null.
///
/// # Safety
/// The same as for sendto(2).
pub unsafe fn send_to(
    fd: RawFd,
    name: &SocketName,
    parts: &[iovec],
    flags: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> ssize_t {
    // SAFETY: an all-zero msghdr is valid. The structures outlive the call, which only reads the address.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (parts.as_ptr().cast_mut(), parts.len() as _);
        (message.msg_name, message.msg_namelen) = (address.cast_mut().cast(), len);
        send(fd, name, &message, flags)
    }
}

/// Receives a datagram, as recvmsg does.
///
/// # Safety
/// As for recvmsg.
pub unsafe fn receive(fd: RawFd, name: &SocketName, message: &mut msghdr, flags: c_int) -> ssize_t {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return fail(libc::EAGAIN);
    }
    if !message.msg_name.is_null() && (message.msg_namelen as c_int) < 0 {
        return fail(libc::EINVAL);
    }
    let mut bytes = [0u8; datagram::LEN];
    // SAFETY: an all-zero msghdr is valid.
    let mut own: msghdr = unsafe { std::mem::zeroed() };
    own.msg_control = message.msg_control;
    own.msg_controllen = real::length(message.msg_controllen as _) as _;
    // SAFETY: the program passes valid arguments, and the structures outlive the call.
    let received = unsafe {
        with_header(bytes.as_mut_ptr(), parts_of(message), |parts, count| {
            (own.msg_iov, own.msg_iovlen) = (parts, count as _);
            // UDP has no urgent data and ignores this flag.
            real::recvmsg(fd, &mut own, flags & !libc::MSG_OOB)
        })
    };
    let Ok(len @ 1..) = usize::try_from(received) else { return without_datagram(fd, received, flags) };
    let Some(header) = Header::decode(name.engine, &bytes[..len.min(datagram::LEN)]) else {
        return fail(libc::EIO);
    };
    if header.error != 0 {
        if flags & libc::MSG_PEEK != 0 {
            // SAFETY: the buffer outlives the call.
            unsafe { real::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        }
        return fail(header.error);
    }
    // SAFETY: the program's arguments.
    unsafe {
        if let Some(remote) = header.remote
            && !message.msg_name.is_null()
        {
            let v6 = name.kind.is_v6();
            let address = message.msg_name.cast();
            if let Err(error) = memory::write_address(remote, v6, address, &mut message.msg_namelen) {
                return fail(error);
            }
        }
        message.msg_flags = own.msg_flags & !libc::MSG_EOR;
        ancillary::write(message, own.msg_controllen as usize, &header);
    }
    (len - datagram::LEN) as ssize_t
}

/// Returns what the program gets from a receive with `flags` without a datagram. `result` is the kernel's result: 0 at the
/// end of the socket pair, or -1 for an error.
#[cold]
fn without_datagram(fd: RawFd, result: ssize_t, flags: c_int) -> ssize_t {
    let waits = || flags & libc::MSG_DONTWAIT == 0 && descriptor::blocks(fd);
    match result {
        // As in Linux.
        0 if Flags::of(fd) & Flags::READ_SHUT != 0 && !waits() => fail(libc::EAGAIN),
        0 if Flags::of(fd) & Flags::READ_SHUT != 0 => 0,
        // The engine has ended.
        0 => fail(libc::ENETDOWN),
        _ if errno() == libc::ECONNRESET => fail(libc::ENETDOWN),
        _ => result,
    }
}

/// Receives a datagram into the buffers `parts`. Otherwise does the same as recvfrom(2). Stores the sender's
/// address in `address`, and the length of the address in `len`. Both pointers may be null.
///
/// # Safety
/// The same as for recvfrom(2).
pub unsafe fn receive_from(
    fd: RawFd,
    name: &SocketName,
    parts: &[iovec],
    flags: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: an all-zero msghdr is valid, and the program passes valid arguments.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (parts.as_ptr().cast_mut(), parts.len() as _);
        let room = if address.is_null() { Ok(0) } else { memory::read_length(len) };
        if !address.is_null() {
            (message.msg_name, message.msg_namelen) = (address.cast(), room.unwrap_or(0) as socklen_t);
        }
        let received = receive(fd, name, &mut message, flags);
        // If a pointer is bad, the call removes the datagram before it fails, as in Linux.
        match room {
            Err(error) if received >= 0 => fail(error),
            _ if received < 0 || address.is_null() => received,
            _ if memory::write_bytes(len.cast(), &message.msg_namelen.to_ne_bytes()) => received,
            _ => fail(libc::EFAULT),
        }
    }
}

/// Returns the `iovec` for `len` bytes at `buffer`.
pub fn part(buffer: *const c_void, len: usize) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: len }
}

/// Connects a UDP socket, or connects it to another address.
///
/// # Safety
/// As for connect.
pub unsafe fn connect(fd: RawFd, name: &SocketName, remote: SocketAddr) -> c_int {
    if remote.is_ipv6() && !name.kind.is_v6() {
        return fail(libc::EAFNOSUPPORT);
    }
    let mut message = Message::new(Operation::Connect);
    (message.remote, message.v6, message.datagrams) = (Some(remote), name.kind.is_v6(), true);
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status == 0 => {
            set_connected(fd);
            0
        }
        Some((reply, _)) if reply.status > 0 => fail(reply.status),
        _ => fail(libc::ENETUNREACH),
    }
}

/// Sets the socket's flag `CONNECTED`.
pub fn set_connected(fd: RawFd) {
    Flags::set(fd, Flags::of(fd) | Flags::CONNECTED);
}

/// Makes a connected UDP socket unconnected, as a connect to an address of family AF_UNSPEC does.
pub fn disconnect(fd: RawFd) -> c_int {
    match control::request(&mut Message::new(Operation::Disconnect), fd) {
        Some((reply, _)) if reply.status == 0 => {
            Flags::set(fd, Flags::of(fd) & !Flags::CONNECTED);
            0
        }
        Some((reply, _)) if reply.status > 0 => fail(reply.status),
        _ => fail(libc::ENETDOWN),
    }
}

/// Shuts down one or both directions.
pub fn shutdown(fd: RawFd, how: c_int) -> c_int {
    let before = Flags::of(fd);
    let flags = match how {
        libc::SHUT_RD => Flags::READ_SHUT,
        libc::SHUT_WR => Flags::WRITE_SHUT,
        libc::SHUT_RDWR => Flags::READ_SHUT | Flags::WRITE_SHUT,
        _ => return fail(libc::EINVAL),
    };
    if before & Flags::CONNECTED == 0 {
        return fail(libc::ENOTCONN);
    }
    Flags::set(fd, before | flags);
    // SAFETY: has no preconditions.
    unsafe { real::shutdown(fd, how) }
}

/// Returns the length of the next datagram like FIONREAD: 0 if there is no datagram.
pub fn next_length(fd: RawFd, name: &SocketName) -> c_int {
    let before = errno();
    let mut bytes = [0u8; datagram::LEN];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the buffer outlives the call.
    let len = unsafe { real::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    set_errno(before);
    let Ok(len) = usize::try_from(len) else { return 0 };
    match Header::decode(name.engine, &bytes[..len.min(datagram::LEN)]) {
        Some(header) if header.error == 0 => (len - datagram::LEN) as c_int,
        _ => 0,
    }
}
