//! Implements the socket calls on offloaded sockets: connect, listen, accept, addresses, options and
//! shutdown.

use crate::convert::Conversion;
use crate::memory::OptionValue;
use crate::{control, convert, datagram, direct, errno, fail, memory, real, set_errno, unconnected, wait};
use inlane_offload_protocol::filler;
use inlane_offload_protocol::message::{Message, Operation, accept};
use inlane_offload_protocol::name::{End, Local, SocketName};
use inlane_offload_protocol::rules::Use;
use libc::{c_int, c_void, sockaddr, socklen_t};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Facts about an offloaded socket. The kernel keeps them with the program's end of the socket pair, as the
/// option SO_PRIORITY. This option has no other effect on a UNIX socket, and every process may set these
/// values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(c_int);

impl Flags {
    /// Flag: the program has read the error of the connection.
    pub const ERROR_READ: c_int = 1;
    /// Flag: the program has shut down reading.
    pub const READ_SHUT: c_int = 2;
    /// Flag: the connection is being established. The engine sets and clears this flag.
    pub const CONNECTING: c_int = filler::CONNECTING;

    fn of(fd: RawFd) -> Self {
        Self(real::option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY).unwrap_or(0))
    }

    fn has(self, flag: c_int) -> bool {
        self.0 & flag != 0
    }

    /// Sets `flag` in the socket's SO_PRIORITY. If all three flags would then be set, stores 6, without
    /// `ERROR_READ`, because the kernel reserves priority 7 for privileged processes.
    fn set(fd: RawFd, flag: c_int) {
        let value = (Self::of(fd).0 | flag).min(6);
        real::set_option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, value);
    }
}

/// Returns the engine's name for the socket `fd`, or `None` if the socket is not offloaded. Leaves errno
/// unchanged.
pub fn name_of(fd: RawFd) -> Option<SocketName> {
    let before = errno();
    let name = SocketName::of(fd, real::ASKING);
    set_errno(before);
    name
}

/// Returns what kind of socket `fd` is, according to its local address. Leaves errno unchanged.
pub fn local_of(fd: RawFd) -> Local {
    let before = errno();
    let local = Local::of(fd, real::ASKING);
    set_errno(before);
    local
}

fn poll(fd: RawFd, events: i16, timeout: c_int) -> Result<i16, c_int> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the structure outlives the call.
    match unsafe { wait::poll(&mut poll, 1, timeout) } {
        -1 => Err(errno()),
        0 => Err(libc::ETIMEDOUT),
        _ => Ok(poll.revents),
    }
}

/// Returns the pending error of the socket `fd` and clears it, like reading SO_ERROR.
pub fn take_error(fd: RawFd) -> c_int {
    let native = real::option(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
    match End::of(fd, real::ASKING) {
        End::Failed(error) if !Flags::of(fd).has(Flags::ERROR_READ) => {
            Flags::set(fd, Flags::ERROR_READ);
            error
        }
        End::Failed(_) | End::Finished => 0,
        End::Unnamed => {
            // The engine has died. Mark the error as read. A program that has read the error of a kernel
            // socket gets the end of the stream from its next receive; offloaded sockets do the same.
            if native != 0 {
                Flags::set(fd, Flags::ERROR_READ);
            }
            native
        }
    }
}

/// Waits until the connection is established, but at most for the socket's send timeout (SO_SNDTIMEO), or
/// without limit if that is 0. Returns 0, or -1 with errno. If the library has opened the connection, and the engine does
/// not answer any more, the kernel connects the socket instead.
pub fn wait_connected(fd: RawFd) -> c_int {
    // SAFETY: an all-zero timeval is valid, and the structures outlive the call.
    let timeout = unsafe {
        let mut limit: libc::timeval = std::mem::zeroed();
        let mut len = size_of_val(&limit) as socklen_t;
        real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, (&raw mut limit).cast(), &mut len);
        match limit.tv_sec.saturating_mul(1000).saturating_add(limit.tv_usec.div_euclid(1000)) {
            0 if limit.tv_usec == 0 => -1,
            milliseconds => milliseconds.clamp(1, c_int::MAX as i64) as c_int,
        }
    };
    let outcome = match name_of(fd).filter(is_opened) {
        Some(name) => match poll_opened(fd, timeout) {
            Some(outcome) => outcome,
            None => return convert::leave_engine(fd, &name),
        },
        None => poll(fd, libc::POLLOUT, timeout),
    };
    match outcome {
        Err(libc::ETIMEDOUT) => fail(libc::EINPROGRESS),
        Err(error) => fail(error),
        Ok(_) => match take_error(fd) {
            0 if Flags::of(fd).has(Flags::CONNECTING) => fail(libc::ECONNRESET),
            0 => 0,
            error => fail(error),
        },
    }
}

/// Polls a connection that the library has opened until it is established or has failed. Asks the engine for the
/// connection's addresses at times. Returns `None` if the engine does not answer.
fn poll_opened(fd: RawFd, timeout: c_int) -> Option<Result<i16, c_int>> {
    const STEP: c_int = 1000 * control::REPLY_SECONDS as c_int;
    let start = direct::now_ns();
    loop {
        let passed = c_int::try_from((direct::now_ns() - start) / 1_000_000).unwrap_or(c_int::MAX);
        let rest = if timeout < 0 { c_int::MAX } else { timeout.saturating_sub(passed).max(0) };
        match poll(fd, libc::POLLOUT, rest.min(STEP)) {
            Err(libc::ETIMEDOUT) if rest > STEP => {}
            outcome => return Some(outcome),
        }
        if control::request(&mut Message::new(Operation::Addresses), fd).is_none() {
            return poll(fd, libc::POLLOUT, 0).ok().map(Ok);
        }
    }
}

/// Returns true if a connection attempt of `fd` has failed and the program has read the error. As in Linux, the program
/// may then connect the socket again.
pub fn may_connect_again(fd: RawFd, name: &SocketName) -> bool {
    let flags = Flags::of(fd);
    !name.kind.is_bound()
        && flags.has(Flags::CONNECTING)
        && flags.has(Flags::ERROR_READ)
        && matches!(End::of(fd, real::ASKING), End::Failed(_))
}

/// Resets the connection of `fd` when the program closes the socket.
pub fn reset_on_close(fd: RawFd, name: &SocketName) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of_val(&linger) as socklen_t;
    // SAFETY: the structure lives through the call.
    unsafe { setsockopt(fd, name, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len) };
}

/// Implements connect(2) for a socket that is already offloaded. Blocks until the connection is established,
/// unless the descriptor is non-blocking. Returns 0, or -1 with errno set.
pub fn connect(fd: RawFd, name: &SocketName, remote: SocketAddr) -> c_int {
    if !name.kind.is_bound() || Flags::of(fd).has(Flags::CONNECTING) {
        return match poll(fd, libc::POLLOUT, 0) {
            Err(_) if Flags::of(fd).has(Flags::CONNECTING) && blocks(fd) => wait_connected(fd),
            Err(_) if Flags::of(fd).has(Flags::CONNECTING) => fail(libc::EALREADY),
            Ok(_) if Flags::of(fd).has(Flags::CONNECTING) => match take_error(fd) {
                0 => fail(libc::ECONNABORTED),
                error => fail(error),
            },
            _ => fail(libc::EISCONN),
        };
    }
    let mut message = Message::new(Operation::Connect);
    message.remote = Some(remote);
    message.v6 = name.kind.is_v6();
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status == 0 => match blocks(fd) {
            true => wait_connected(fd),
            false => fail(libc::EINPROGRESS),
        },
        Some((reply, _)) if reply.status > 0 => fail(reply.status),
        _ => fail(libc::ENETUNREACH),
    }
}

/// Returns the errno for a connect of the offloaded socket `fd` to an address that is not an internet
/// address.
///
/// # Safety
/// As for [`memory::read_bytes`].
pub unsafe fn reason_of_refusal(
    fd: RawFd,
    name: &SocketName,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    let lengths = size_of::<libc::sa_family_t>()..=size_of::<libc::sockaddr_storage>();
    // SAFETY: the caller's promise.
    let family = unsafe { memory::read(address.cast::<libc::sa_family_t>()) };
    match name.kind {
        _ if !lengths.contains(&(len as usize)) => libc::EINVAL,
        _ if family.is_none() => libc::EFAULT,
        _ if name.kind.is_datagram() => libc::EAFNOSUPPORT,
        _ if may_connect_again(fd, name) => libc::EAFNOSUPPORT,
        _ if Flags::of(fd).has(Flags::CONNECTING) => libc::EALREADY,
        _ if unconnected::is_unconnected(fd) && !unconnected::listens(fd) => libc::EAFNOSUPPORT,
        _ => libc::EISCONN,
    }
}

/// Returns true unless the descriptor is non-blocking.
pub fn blocks(fd: RawFd) -> bool {
    // SAFETY: has no preconditions.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK == 0 }
}

/// Makes a bound socket listen.
pub fn listen(fd: RawFd, backlog: c_int) -> c_int {
    if datagram::name_of(fd).is_some() {
        return fail(libc::EOPNOTSUPP);
    }
    let mut message = Message::new(Operation::Listen);
    message.number = backlog;
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status == 0 => {
            unconnected::note_listening(fd);
            0
        }
        Some((reply, _)) if reply.status > 0 => fail(reply.status),
        _ => fail(libc::ENETDOWN),
    }
}

/// Takes a connection from a listener. `flags` are those of accept4.
pub fn accept(
    fd: RawFd,
    name: &SocketName,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if name.kind.is_datagram() {
        return fail(libc::EOPNOTSUPP);
    }
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0
        || !name.kind.is_bound()
        || !unconnected::listens(fd)
    {
        return fail(libc::EINVAL);
    }
    let before = errno();
    // Check that the process has a free descriptor, by duplicating `fd`. Without a free one, the kernel would
    // drop the descriptor in the next message, and the new connection would be lost.
    // SAFETY: fcntl has no preconditions here. The duplicate is closed at once.
    unsafe {
        let free = real::fcntl(fd, libc::F_DUPFD_CLOEXEC, std::ptr::null_mut());
        if free < 0 {
            return -1;
        }
        libc::close(free);
    }
    let close_on_exec = if flags & libc::SOCK_CLOEXEC != 0 { libc::MSG_CMSG_CLOEXEC } else { 0 };
    let mut record = [0; accept::LEN];
    let (received, passed) = control::receive(fd, &mut record, close_on_exec);
    let Some(connection) = passed else {
        return match received {
            // Keep the errno of recvmsg, such as EAGAIN or EINTR. accept fails with the same values.
            -1 => -1,
            // The engine has closed its end: the listener was shut down, or the engine has ended.
            0 => fail(libc::EINVAL),
            // The message came without its file descriptor. Another thread has taken the last free descriptor
            // number, so the kernel dropped the connection.
            _ => fail(libc::ECONNABORTED),
        };
    };
    direct::forget(connection);
    wait::note_offloaded(connection);
    if flags & libc::SOCK_NONBLOCK != 0 {
        // SAFETY: the descriptor was just received.
        unsafe { libc::fcntl(connection, libc::F_SETFL, libc::O_NONBLOCK) };
    }
    if let Some(remote) = accept::decode(&record) {
        let stored = match address.is_null() {
            true => Ok(()),
            // SAFETY: the program's arguments.
            false => unsafe { memory::write_address(remote, name.kind.is_v6(), address, len) },
        };
        if let Err(error) = stored {
            // SAFETY: the descriptor was just received, and nothing else uses it. The kernel, too, drops a
            // connection if it cannot store the address.
            unsafe { libc::close(connection) };
            return fail(error);
        }
    }
    set_errno(before);
    connection
}

/// Asks the engine for a socket's addresses.
pub fn addresses(fd: RawFd) -> Option<Message> {
    let (reply, _) = control::request(&mut Message::new(Operation::Addresses), fd)?;
    (reply.status == 0).then_some(reply)
}

/// Returns true if the library, not the engine, created the socket pair of this connection. The name of such
/// a pair contains no local address.
fn is_opened(name: &SocketName) -> bool {
    !name.kind.is_bound() && !name.kind.is_datagram() && name.local.port() == 0
}

/// Returns true if `fd` was connected and its engine has died. In this case, the engine's end of the socket
/// pair has no name, so the engine has not reported how the connection ended. Call this only if the present
/// engine does not know the socket.
fn is_lost(fd: RawFd) -> bool {
    !Flags::of(fd).has(Flags::CONNECTING) && End::of(fd, real::ASKING) == End::Unnamed
}

/// Implements getsockname(2) for an offloaded socket: stores its local address at `address`. Returns 0. If
/// only the engine knew the address and has died, returns -1 with errno ENOTCONN.
///
/// # Safety
/// `len` points to the number of writable bytes at `address`. Either pointer may be null.
pub unsafe fn getsockname(
    fd: RawFd,
    name: &SocketName,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let mut local = name.local;
    if name.kind.is_bound() || name.kind.is_datagram() || local.port() == 0 {
        let reply = addresses(fd).and_then(|reply| reply.local);
        // If the connection has ended, the engine no longer knows its address. The name of the socket pair
        // still contains the address.
        let known = reply.or_else(|| End::local_address(fd, real::ASKING));
        if known.is_none() && is_opened(name) && is_lost(fd) {
            return fail(libc::ENOTCONN);
        }
        local = known.unwrap_or(local);
    }
    // SAFETY: the program's arguments.
    match unsafe { memory::write_address(local, name.kind.is_v6(), address, len) } {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

/// Implements getpeername(2) for an offloaded socket: stores its remote address at `address`. Returns 0, or
/// -1 with errno ENOTCONN if the socket is not connected.
///
/// # Safety
/// `len` points to the number of writable bytes at `address`. Either pointer may be null.
pub unsafe fn getpeername(
    fd: RawFd,
    name: &SocketName,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let remote = match name.kind.is_bound() || name.kind.is_datagram() {
        true => addresses(fd).and_then(|reply| reply.remote),
        false => name.remote,
    };
    match remote {
        Some(remote) if !Flags::of(fd).has(Flags::CONNECTING) && !is_over(fd) => {
            // SAFETY: the program's arguments.
            match unsafe { memory::write_address(remote, name.kind.is_v6(), address, len) } {
                Ok(()) => 0,
                Err(error) => fail(error),
            }
        }
        _ => fail(libc::ENOTCONN),
    }
}

/// Returns true if the connection has failed, or if both ends have finished sending.
fn is_over(fd: RawFd) -> bool {
    match End::of(fd, real::ASKING) {
        End::Failed(_) => true,
        End::Finished => poll(fd, 0, 0).is_ok_and(|events| events & libc::POLLHUP != 0),
        End::Unnamed => false,
    }
}

/// Options of level SOL_SOCKET that the engine must know. The kernel also keeps them with the program's end
/// of the socket pair.
const SHARED: [c_int; 3] = [libc::SO_KEEPALIVE, libc::SO_LINGER, libc::SO_REUSEADDR];

/// Gives the program the value of an option, cut to the program's buffer, as getsockopt(2) does. Returns 0, or -1 with
/// errno EFAULT or EINVAL.
///
/// # Safety
/// As for [`memory::write_bytes`].
pub unsafe fn put_option(value: *mut c_void, len: *mut socklen_t, bytes: &[u8]) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let count = match memory::read_length(len) {
            Ok(room) => room.min(bytes.len()),
            Err(error) => return fail(error),
        };
        let written = memory::write_bytes(value.cast(), &bytes[..count])
            && memory::write_bytes(len.cast(), &(count as socklen_t).to_ne_bytes());
        if written { 0 } else { fail(libc::EFAULT) }
    }
}

/// Implements getsockopt(2) for an offloaded TCP socket. Stores the option's value at `value`. Returns 0, or
/// -1 with errno set.
///
/// # Safety
/// `len` points to the number of writable bytes at `value`. Either pointer may be null.
pub unsafe fn getsockopt(
    fd: RawFd,
    socket: &SocketName,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the program's arguments.
    if let Err(error) = unsafe { memory::read_length(len) } {
        return fail(error);
    }
    // SAFETY: the program passes `*len` bytes at `value`.
    let put = |bytes: &[u8]| unsafe { put_option(value, len, bytes) };
    // UNIX sockets do not support SO_REUSEPORT, so ask the engine for it. While the connection is being
    // established, the program's end of the socket pair has a small send buffer. Ask the engine for SO_SNDBUF
    // during that time.
    let asks_engine =
        name == libc::SO_REUSEPORT || name == libc::SO_SNDBUF && Flags::of(fd).has(Flags::CONNECTING);
    if level == libc::SOL_SOCKET && !asks_engine {
        let number = match name {
            libc::SO_ERROR => take_error(fd),
            libc::SO_DOMAIN if socket.kind.is_v6() => libc::AF_INET6,
            libc::SO_DOMAIN => libc::AF_INET,
            libc::SO_PROTOCOL => libc::IPPROTO_TCP,
            libc::SO_PRIORITY => 0,
            libc::SO_ACCEPTCONN => addresses(fd).map_or(0, |reply| reply.number),
            // SAFETY: the program's arguments.
            _ => return unsafe { real::getsockopt(fd, level, name, value, len) },
        };
        return put(&number.to_ne_bytes());
    }
    if !has_level(socket, level) {
        return fail(libc::EOPNOTSUPP);
    }
    let mut message = Message::new(Operation::GetOption);
    (message.level, message.name) = (level, name);
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status == 0 => put(reply.value()),
        // If the connection has been established meanwhile, the engine reports no size. Ask the kernel then,
        // because the program's end has its normal send buffer again.
        // SAFETY: the program passes valid arguments.
        Some(_) if level == libc::SOL_SOCKET && name == libc::SO_SNDBUF => unsafe {
            real::getsockopt(fd, level, name, value, len)
        },
        Some((reply, _)) if reply.status > 0 => {
            match may_connect_again(fd, socket) && convert::renew(fd, socket.kind.is_v6()) {
                // SAFETY: the program's arguments.
                true => unsafe { real::getsockopt(fd, level, name, value, len) },
                false => fail(reply.status),
            }
        }
        _ => fail(libc::ENOPROTOOPT),
    }
}

/// Implements setsockopt(2) for an offloaded TCP socket. Returns 0, or -1 with errno.
///
/// # Safety
/// `value` is null or points to `len` readable bytes.
pub unsafe fn setsockopt(
    fd: RawFd,
    socket: &SocketName,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // After a failed connection attempt, the engine no longer has the socket. Replace it with a kernel
    // socket. The kernel socket keeps the option until the next connect.
    if may_connect_again(fd, socket) && convert::renew(fd, socket.kind.is_v6()) {
        // SAFETY: the program's arguments.
        return unsafe { convert::set_option(fd, level, name, value, len) };
    }
    if level == libc::SOL_SOCKET && name != libc::SO_REUSEPORT {
        if name == libc::SO_PRIORITY {
            return 0;
        }
        if name == libc::SO_RCVLOWAT {
            direct::note_low_water(fd);
        }
        if matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF) {
            // SAFETY: the caller promises that `value` is null or points to `len` readable bytes.
            return unsafe { set_buffer(fd, name, value, len) };
        }
        // SAFETY: the program's arguments.
        let code = unsafe { real::setsockopt(fd, level, name, value, len) };
        if code != 0 || !SHARED.contains(&name) {
            return code;
        }
    }
    // SAFETY: the program's arguments.
    let value = match unsafe { OptionValue::read(level, name, value, len) } {
        // Fail like a kernel without the TLS module, because the engine does not implement kernel TLS.
        Ok(_) if (level, name) == (libc::IPPROTO_TCP, libc::TCP_ULP) => return fail(libc::ENOENT),
        Ok(_) if level != libc::SOL_SOCKET && !is_known(level, name) => return fail(libc::ENOPROTOOPT),
        Ok(value) => value,
        Err(error) => return fail(error),
    };
    // Wait for the engine's reply to SO_LINGER, because a close right after this call could overtake the
    // request: the engine notices a close at the socket pair.
    let waits = (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER);
    let mut message = Message::new(if waits { Operation::SetOptionNow } else { Operation::SetOption });
    (message.level, message.name) = (level, name);
    message.set_value(value.bytes());
    control::request(&mut message, fd);
    0
}

/// Sets SO_SNDBUF or SO_RCVBUF. The kernel doubles and limits the value. The engine uses the resulting size
/// for its rings. Returns 0, or -1 with errno.
///
/// # Safety
/// `value` is null or points to `len` readable bytes.
unsafe fn set_buffer(fd: RawFd, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    let connecting = name == libc::SO_SNDBUF && Flags::of(fd).has(Flags::CONNECTING);
    // While the connection is being established, the send buffer of the program's end of the socket pair must
    // stay small. Otherwise, the end would become writable. So set the option on a temporary UNIX socket, and
    // read the value that the kernel computes from it.
    // SAFETY: the program passes valid arguments, and the descriptor is closed below.
    let (code, bytes) = unsafe {
        let asked = if connecting {
            libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)
        } else {
            fd
        };
        let code = real::setsockopt(asked, libc::SOL_SOCKET, name, value, len);
        let bytes = real::option(asked, libc::SOL_SOCKET, name);
        if connecting {
            libc::close(asked);
        }
        (code, bytes)
    };
    if code == 0
        && let Some(bytes) = bytes
    {
        // While the socket is being connected, only the engine changes the buffer, after the handshake. So
        // wait until the engine has the size.
        let operation = if connecting { Operation::SetOptionNow } else { Operation::SetOption };
        let mut message = Message::new(operation);
        (message.level, message.name) = (libc::SOL_SOCKET, name);
        message.set_value(&bytes.to_ne_bytes());
        control::request(&mut message, fd);
    }
    code
}

/// Returns true if `socket` has options of `level`. If it has none, getsockopt(2) must fail with EOPNOTSUPP.
pub fn has_level(socket: &SocketName, level: c_int) -> bool {
    let own = if socket.kind.is_datagram() { libc::IPPROTO_UDP } else { libc::IPPROTO_TCP };
    socket.kind.is_v6() || matches!(level, libc::SOL_SOCKET | libc::IPPROTO_IP) || level == own
}

/// Returns true if the option is one of TCP, IPv4 or IPv6 that programs set on TCP sockets. Some of these
/// options have no effect in the engine.
fn is_known(level: c_int, name: c_int) -> bool {
    match level {
        libc::IPPROTO_TCP => matches!(name, 1..=10 | 12 | 13 | 18 | 23 | 25),
        libc::IPPROTO_IP => {
            matches!(name, libc::IP_TOS | libc::IP_TTL | libc::IP_RECVERR | libc::IP_MTU_DISCOVER)
        }
        libc::IPPROTO_IPV6 => {
            matches!(
                name,
                libc::IPV6_V6ONLY
                    | libc::IPV6_TCLASS
                    | libc::IPV6_UNICAST_HOPS
                    | libc::IPV6_RECVERR
                    | libc::IPV6_MTU_DISCOVER
            )
        }
        _ => false,
    }
}

/// Shuts down one or both directions. Fails with ENOTCONN if the socket has no connection and does not listen.
pub fn shutdown(fd: RawFd, name: &SocketName, how: c_int) -> c_int {
    if !(0..3).contains(&how) {
        return fail(libc::EINVAL);
    }
    if !name.kind.is_bound() && Flags::of(fd).has(Flags::CONNECTING)
        || unconnected::is_unconnected(fd) && !unconnected::listens(fd)
        || is_over(fd)
    {
        return fail(libc::ENOTCONN);
    }
    if unconnected::is_listener(fd) {
        return shutdown_listener(fd, name, how);
    }
    if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
        Flags::set(fd, Flags::READ_SHUT);
        direct::withdraw(fd);
    }
    if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
        direct::shut(fd);
    }
    // SAFETY: has no preconditions.
    unsafe { real::shutdown(fd, how) }
}

/// Implements shutdown(2) for a listening socket. Like Linux, ignores SHUT_WR. Otherwise ends the listener
/// and gives `fd` a new socket with the same address, because a program may let it listen again.
fn shutdown_listener(fd: RawFd, name: &SocketName, how: c_int) -> c_int {
    let local = addresses(fd).and_then(|reply| reply.local);
    let (Some(local), false) = (local, how == libc::SHUT_WR) else { return 0 };
    let v6 = name.kind.is_v6();
    // SAFETY: fcntl and shutdown have no preconditions here. The duplicate is closed once.
    let renewed = unsafe {
        let old = real::fcntl(fd, libc::F_DUPFD_CLOEXEC, std::ptr::null_mut());
        // Give `fd` a new socket with the listener's options before the shutdown, because the engine forgets
        // the options when the socket pair is shut down.
        let renewed = old >= 0 && convert::renew(fd, v6);
        // Shut the old socket down. Calls of accept that wait on it in other threads then return.
        real::shutdown(if renewed { old } else { fd }, libc::SHUT_RDWR);
        if old >= 0 {
            libc::close(old);
        }
        renewed
    };
    if renewed
        && let Conversion::Engine = convert::offer(fd, Local::Kernel { v6, port: 0 }, Use::Listen, local)
    {
        unconnected::note_bound(fd);
    }
    0
}

/// Returns the error of the connection that the program's read must report, or 0. Call this after the
/// kernel's read of the socket pair returned 0 or failed with ECONNRESET. The pair itself cannot carry a TCP
/// error.
pub fn reason_of_end(fd: RawFd) -> c_int {
    if name_of(fd).is_none() {
        return 0;
    }
    match End::of(fd, real::ASKING) {
        End::Finished => 0,
        End::Failed(_) if Flags::of(fd).has(Flags::ERROR_READ) => 0,
        End::Failed(error) => {
            Flags::set(fd, Flags::ERROR_READ);
            error
        }
        End::Unnamed if Flags::of(fd).has(Flags::READ_SHUT) || Flags::of(fd).has(Flags::ERROR_READ) => 0,
        End::Unnamed => {
            Flags::set(fd, Flags::ERROR_READ);
            libc::ECONNRESET
        }
    }
}

/// Returns the connection's error if the program has not read it yet, otherwise 0. Call this after the
/// kernel's send on `fd` has failed with EPIPE.
pub fn reason_of_broken_pipe(fd: RawFd) -> c_int {
    if name_of(fd).is_none() {
        return 0;
    }
    let error = match End::of(fd, real::ASKING) {
        End::Failed(error) => error,
        // The send failed because the program has shut down writing, or because the engine is gone. The
        // socket pair has hung up only if the engine is gone.
        End::Unnamed if poll(fd, 0, 0).is_ok() && !Flags::of(fd).has(Flags::READ_SHUT) => libc::ECONNRESET,
        End::Finished | End::Unnamed => 0,
    };
    if error == 0 || Flags::of(fd).has(Flags::ERROR_READ) {
        return 0;
    }
    Flags::set(fd, Flags::ERROR_READ);
    error
}
