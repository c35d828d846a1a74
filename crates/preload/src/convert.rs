//! Replaces a kernel socket by an offloaded one, when the program binds or connects it.

use crate::epoll::Registration;
use crate::{control, datagram, direct, duplicates, errno, open, real, set_errno, settings, socket, wait};
use inlane_offload_protocol::address::{read_sockaddr, write_sockaddr};
use inlane_offload_protocol::message::{
    KERNEL, Message, NumberOption, Operation, VERSION, read_options, write_options,
};
use inlane_offload_protocol::name::{End, Local, SocketName};
use inlane_offload_protocol::rules::{Action, Use};
use libc::{c_int, c_void, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// What became of a socket that the program binds or connects.
pub enum Conversion {
    /// The socket stays with the kernel.
    Kernel,
    /// The socket is offloaded now.
    Engine,
    /// The call fails with this errno.
    Failed(c_int),
}

/// The options that the engine must know when it creates a socket: level, name, and default value of a kernel
/// socket. An option is sent to the engine only if its value differs from the default.
const STREAM_OPTIONS: [NumberOption; 11] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, 0),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 0),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, 0),
    (libc::IPPROTO_TCP, libc::TCP_CORK, 0),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 7200),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 75),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 9),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 536),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0),
];

/// Linux's socket option SO_BUF_LOCK. Bit 0 of its value is set if the program has set SO_SNDBUF, and bit 1
/// if it has set SO_RCVBUF. Linux before 5.14 does not have this option. Without it, the engine does not get
/// buffer sizes that a program sets before bind or connect.
const BUFFERS_SET: c_int = 72;

/// The options that the engine must know when it creates a UDP socket. Each entry has the level, the name,
/// and the value that a new socket of the kernel has. If the socket has another value, the library sends the
/// option to the engine.
const DATAGRAM_OPTIONS: [NumberOption; 13] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, 0),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 0),
    (libc::IPPROTO_IP, libc::IP_TOS, 0),
    (libc::IPPROTO_IP, libc::IP_TTL, 64),
    (libc::IPPROTO_IP, libc::IP_PKTINFO, 0),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, 0),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 64),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 0),
];

/// The most options that are sent with a request.
const MOST_OPTIONS: usize = 16;

/// Linux's socket option SO_NOFCS, which has no effect on TCP and UDP sockets. The library uses it as a mark:
/// it sets SO_NOFCS if the program sets an option of a socket that has no port yet. When the program connects
/// a TCP socket, the library reads the options only if the socket is marked.
const OPTIONS_SET: c_int = 43;

/// A socket of the kernel that the engine may run.
#[derive(Clone, Copy)]
struct Candidate {
    v6: bool,
    /// True for UDP, false for TCP.
    datagrams: bool,
}

/// Returns the IP version and the protocol of the kernel's socket `fd`. Returns `None` if the engine cannot
/// run a socket of this type.
fn candidate(fd: RawFd) -> Option<Candidate> {
    let v6 = match real::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)? {
        libc::AF_INET => false,
        libc::AF_INET6 => true,
        _ => return None,
    };
    Some(Candidate { v6, datagrams: has_datagrams(fd)? })
}

/// Returns true for a UDP socket and false for a TCP socket. `fd` is a socket of the kernel, of family AF_INET
/// or AF_INET6. Returns `None` if the engine cannot run such sockets.
fn has_datagrams(fd: RawFd) -> Option<bool> {
    let option = |name| real::option(fd, libc::SOL_SOCKET, name);
    match (option(libc::SO_TYPE)?, option(libc::SO_PROTOCOL)?) {
        (libc::SOCK_STREAM, libc::IPPROTO_TCP) => Some(false),
        (libc::SOCK_DGRAM, libc::IPPROTO_UDP) => Some(true),
        _ => None,
    }
}

/// Returns true if `fd` is a TCP socket. `fd` is a socket of the kernel, of family AF_INET or AF_INET6.
pub fn is_stream(fd: RawFd) -> bool {
    has_datagrams(fd) == Some(false)
}

/// Sets an option of the kernel's socket `fd`, which has no port yet. On success, also sets [`OPTIONS_SET`]
/// on the socket. It records that the program has set an option. Returns the result of setsockopt(2) for the
/// program's option.
///
/// # Safety
/// `value` is null or points to `len` readable bytes.
pub unsafe fn set_option(
    fd: RawFd,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let code = unsafe { real::setsockopt(fd, level, name, value, len) };
    let before = errno();
    if code == 0 {
        real::set_option(fd, libc::SOL_SOCKET, OPTIONS_SET, 1);
    }
    set_errno(before);
    code
}

/// Returns true if the kernel's socket `fd` has a local port.
pub fn has_port(fd: RawFd) -> bool {
    // SAFETY: an all-zero structure is valid, and the structures outlive the call.
    unsafe {
        let mut address: libc::sockaddr_storage = std::mem::zeroed();
        let mut len = size_of_val(&address) as socklen_t;
        let pointer = (&raw mut address).cast();
        real::getsockname(fd, pointer, &mut len) == 0
            && read_sockaddr(pointer, len).is_some_and(|address| address.port() != 0)
    }
}

/// Offers the kernel's socket `fd` to the engine because the program makes the call `usage` with `address`.
/// `local` is the result of [`Local::of`] for `fd`. Leaves errno unchanged.
pub fn offer(fd: RawFd, local: Local, usage: Use, address: SocketAddr) -> Conversion {
    let Local::Kernel { v6, port: 0 } = local else { return Conversion::Kernel };
    if address.is_ipv6() != v6 {
        return Conversion::Kernel;
    }
    let before = errno();
    let outcome = match has_datagrams(fd) {
        Some(datagrams) => offer_socket(fd, Candidate { v6, datagrams }, usage, address),
        None => Conversion::Kernel,
    };
    set_errno(before);
    outcome
}

/// Offers the kernel's UDP socket `fd` to the engine. Call this before sending the program's first datagram.
/// `remote` is the destination of this datagram. If the socket already has a port, it stays with the kernel.
pub fn offer_unbound(fd: RawFd, remote: SocketAddr) -> Conversion {
    let before = errno();
    // Check first whether the socket has a port, because most sockets that send have one. A socket with a
    // port stays with the kernel, whatever its kind.
    let unbound = if has_port(fd) { None } else { candidate(fd) };
    let outcome = match unbound {
        Some(socket) if socket.datagrams && remote.is_ipv6() == socket.v6 => {
            let mut message = Message::new(Operation::Bind);
            let any: IpAddr =
                if socket.v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
            (message.local, message.remote) = (Some((any, 0).into()), Some(remote));
            offer_candidate(fd, socket, Use::Connect, remote, message)
        }
        _ => Conversion::Kernel,
    };
    set_errno(before);
    outcome
}

fn offer_socket(fd: RawFd, socket: Candidate, usage: Use, address: SocketAddr) -> Conversion {
    let mut message = Message::new(Operation::Bind);
    match usage {
        Use::Listen => message.local = Some(address),
        Use::Connect => (message.operation, message.remote) = (Operation::Connect, Some(address)),
    }
    offer_candidate(fd, socket, usage, address, message)
}

/// Sends the request `message` to the engine, unless the socket must stay with the kernel. If the engine
/// accepts the socket, replaces the socket of `fd` with the program's end of a socket pair. The engine's
/// reply carries this end.
fn offer_candidate(
    fd: RawFd,
    socket: Candidate,
    usage: Use,
    address: SocketAddr,
    mut message: Message,
) -> Conversion {
    (message.v6, message.datagrams) = (socket.v6, socket.datagrams);
    if settings::decide(socket.datagrams, address, usage) == Some(Action::Kernel) {
        return stays(&message, b"a rule keeps it there", false);
    }
    if socket.datagrams
        && let Some(reason) = kernel_only(fd)
    {
        return stays(&message, reason, true);
    }
    let connects = message.operation == Operation::Connect && !socket.datagrams;
    let plain = connects && real::option(fd, libc::SOL_SOCKET, OPTIONS_SET) == Some(0);
    if !plain {
        add_options(&mut message, fd);
    }
    // In a single-threaded process, the connection may begin before the engine's socket replaces the
    // kernel's, because no other thread can use `fd` meanwhile.
    let alone = connects && real::is_single_threaded();
    if alone
        && plain
        && let Some(new) = open::connect(address, socket.v6)
    {
        return match replace(fd, new, false, plain) {
            true => Conversion::Engine,
            false => stays(&message, b"the descriptor could not be replaced", true),
        };
    }
    message.number = c_int::from(alone);
    let Some((reply, passed)) = control::request(&mut message, -1) else {
        return match control::other_version() {
            Some(engine) => refused_version(engine),
            None => stays(&message, NO_ANSWER, true),
        };
    };
    if reply.status == 0 {
        wait::set_time(reply.name);
    }
    match (reply.status, passed) {
        (0, Some(new)) => match replace(fd, new, socket.datagrams, plain) {
            true => {
                if connects && reply.number == 1 {
                    open::permit(address.ip());
                }
                if let Some(handle) = reply.handle() {
                    let mut start = Message::new(Operation::Start);
                    start.set_handle(handle);
                    control::request(&mut start, -1);
                } else if message.operation == Operation::Connect && socket.datagrams {
                    datagram::set_connected(fd);
                }
                Conversion::Engine
            }
            false => stays(&message, b"the descriptor could not be replaced", true),
        },
        (KERNEL, _) => {
            let required = settings::require();
            if required { stays(&message, reply.value(), true) } else { Conversion::Kernel }
        }
        (error, _) if error > 0 => Conversion::Failed(error),
        _ => stays(&message, b"the engine's reply was invalid", true),
    }
}

/// Why a socket stays with the kernel if no engine answers on the control socket.
const NO_ANSWER: &[u8] = b"no engine answers";

/// Says, once for each process, that the engine refuses this library's version. The socket stays with the
/// kernel, or the call fails if the user demands offloading.
fn refused_version(engine: u8) -> Conversion {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        let (mut engine_digits, mut own_digits) = ([0; 3], [0; 3]);
        print(&[
            b"inlane: ",
            settings::program(),
            b": sockets are not offloaded: the engine has protocol version ",
            digits(engine, &mut engine_digits),
            b", and this program's preloaded library version ",
            digits(VERSION, &mut own_digits),
            b"; start the program again with the 'inlane offload run' of the engine's installation\n",
        ]);
    }
    if settings::require() { Conversion::Failed(libc::ENETDOWN) } else { Conversion::Kernel }
}

/// Writes a number as text into `room`, without allocating.
fn digits(number: u8, room: &mut [u8; 3]) -> &[u8] {
    *room = [b'0' + number / 100, b'0' + number / 10 % 10, b'0' + number % 10];
    &room[if number >= 100 {
        0
    } else if number >= 10 {
        1
    } else {
        2
    }..]
}

fn print(texts: &[&[u8]]) {
    for text in texts {
        // SAFETY: the text outlives the call.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
}

/// Leaves a socket with the kernel and reports this to the engine. If `matters` is set and the user demands
/// offloading, prints `reason` and fails the program's call instead.
fn stays(message: &Message, reason: &[u8], matters: bool) -> Conversion {
    if !matters || !settings::require() {
        control::report_kernel(*message, reason);
        return Conversion::Kernel;
    }
    let remedy: [&[u8]; 3] = match reason == NO_ANSWER {
        true => [b"; start one with 'inlane offload serve --socket ", settings::socket(), b"'"],
        false => [b"; to leave the socket with the kernel, start the program without --require", b"", b""],
    };
    let [before, path, after] = remedy;
    print(&[
        b"inlane: ",
        settings::program(),
        b": cannot offload a socket, as --require demands: ",
        reason,
        before,
        path,
        after,
        b"\n",
    ]);
    Conversion::Failed(libc::ENETDOWN)
}

/// Returns why the kernel must run the UDP socket `fd`, or `None` if the engine may.
fn kernel_only(fd: RawFd) -> Option<&'static [u8]> {
    if real::option(fd, libc::SOL_SOCKET, libc::SO_BROADCAST).is_some_and(|value| value != 0) {
        return Some(b"the engine sends no broadcasts");
    }
    let mut device = [0u8; 16];
    let mut len = device.len() as socklen_t;
    // SAFETY: value and length outlive the call.
    let code = unsafe {
        real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, device.as_mut_ptr().cast(), &mut len)
    };
    (code == 0 && len > 0 && device[0] != 0).then_some(b"it is bound to an interface of the kernel")
}

fn add_options(message: &mut Message, fd: RawFd) {
    let options = if message.datagrams { &DATAGRAM_OPTIONS[..] } else { &STREAM_OPTIONS[..] };
    let mut found = [(0, 0, 0); MOST_OPTIONS];
    let mut count = 0;
    for &(level, name, usual) in options {
        if level == libc::IPPROTO_IPV6 && !message.v6 {
            continue;
        }
        if let Some(value) = real::option(fd, level, name).filter(|&value| value != usual) {
            found[count] = (level, name, value);
            count += 1;
        }
    }
    // Find out which of SO_SNDBUF and SO_RCVBUF the program has set. Only the values that it has set are sent
    // to the engine.
    let set = real::option(fd, libc::SOL_SOCKET, BUFFERS_SET).unwrap_or(0);
    for (bit, name) in [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)] {
        if set & bit != 0
            && let Some(bytes) = real::option(fd, libc::SOL_SOCKET, name)
        {
            found[count] = (libc::SOL_SOCKET, name, bytes);
            count += 1;
        }
    }
    // SAFETY: an all-zero structure is valid, and the structures outlive the call.
    unsafe {
        let mut linger: libc::linger = std::mem::zeroed();
        let mut len = size_of_val(&linger) as socklen_t;
        real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut linger).cast(), &mut len);
        if linger.l_onoff != 0 {
            found[count] = (libc::SOL_SOCKET, libc::SO_LINGER, linger.l_linger);
            count += 1;
        }
    }
    write_options(message, &found[..count]);
}

/// Makes the descriptor `fd` refer to the socket `new`. Keeps the flags, timeouts and epoll registration of
/// the old socket. Closes the descriptor `new`. Returns false if the replacement failed. If `plain` is set, the
/// program has set no option of the old socket.
fn replace(fd: RawFd, new: RawFd, datagrams: bool, plain: bool) -> bool {
    let duplicates = duplicates::of(fd);
    if !plain {
        copy_options(fd, new);
    }
    if datagrams {
        datagram::note();
    }
    // SAFETY: both descriptors are open.
    unsafe {
        let status = libc::fcntl(fd, libc::F_GETFL);
        if status & (libc::O_NONBLOCK | libc::O_ASYNC) != 0 {
            libc::fcntl(new, libc::F_SETFL, status & (libc::O_NONBLOCK | libc::O_ASYNC));
        }
        if status & libc::O_ASYNC != 0 {
            libc::fcntl(new, libc::F_SETOWN, libc::fcntl(fd, libc::F_GETOWN));
        }
    }
    let replaced = substitute(fd, new);
    if replaced {
        for duplicate in duplicates {
            substitute(duplicate, new);
        }
    }
    // SAFETY: the caller gives the descriptor `new` to this function, which closes it exactly once.
    unsafe { libc::close(new) };
    replaced
}

/// Makes the descriptor `fd` refer to the socket `new`, too. Keeps the descriptor's flag FD_CLOEXEC and its epoll
/// registration. Returns false if that failed.
fn substitute(fd: RawFd, new: RawFd) -> bool {
    let registration = Registration::of(fd);
    direct::forget(fd);
    wait::note_offloaded(fd);
    // SAFETY: both descriptors are open; dup3 replaces `fd` atomically.
    let replaced = unsafe {
        let close_on_exec = libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        real::dup3(new, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 }) == fd
    };
    if replaced && let Some(registration) = registration {
        registration.restore();
    }
    replaced
}

/// Replaces an offloaded TCP socket by a new, unbound kernel socket under the same descriptor. The program
/// can then connect it again. Keeps the flags and the options of the old socket. Returns false if this
/// failed.
pub fn renew(fd: RawFd, v6: bool) -> bool {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let before = errno();
    // SAFETY: has no preconditions.
    let new = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if new >= 0 {
        real::set_option(new, libc::SOL_SOCKET, OPTIONS_SET, 1);
        keep_options(fd, new);
    }
    let renewed = new >= 0 && replace(fd, new, false, false);
    set_errno(before);
    renewed
}

/// Makes the descriptor of a connection that the library has opened refer to a new socket of the kernel, and connects it,
/// because the engine does not answer. Returns the result of connect(2). Fails with ENETDOWN if the user demands offloading.
pub fn leave_engine(fd: RawFd, name: &SocketName) -> c_int {
    let Some(remote) = name.remote else { return crate::fail(libc::ENETDOWN) };
    let v6 = name.kind.is_v6();
    let mut message = Message::new(Operation::Connect);
    (message.v6, message.remote) = (v6, Some(remote));
    if let Conversion::Failed(error) = stays(&message, b"the engine does not answer", true) {
        return crate::fail(error);
    }
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: the bytes and the length live through the calls.
    unsafe {
        let new = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if new < 0 {
            return -1;
        }
        if !replace(fd, new, false, false) {
            return crate::fail(libc::ENETDOWN);
        }
        let mut address = [0u8; size_of::<libc::sockaddr_in6>()];
        let mut len = address.len() as socklen_t;
        write_sockaddr(remote, v6, address.as_mut_ptr().cast(), &mut len);
        real::connect(fd, address.as_ptr().cast(), len)
    }
}

/// Copies options to the kernel socket `new`: those that the program set on the offloaded TCP socket `fd`.
/// Their values come from the engine. After a failed connection, they come from the name of the engine's end
/// of the socket pair.
fn keep_options(fd: RawFd, new: RawFd) {
    let set = |(level, name, value): NumberOption| {
        // The kernel doubles the sizes of buffers, and the engine keeps the doubled sizes.
        let doubled = level == libc::SOL_SOCKET && matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF);
        real::set_option(new, level, name, if doubled { value / 2 } else { value });
    };
    match socket::addresses(fd) {
        Some(reply) => read_options(reply.value()).for_each(set),
        // After a failed connection, the engine no longer has the socket. Read the options from the name of
        // the engine's end of the socket pair, which contains them.
        None => End::for_options(fd, real::ASKING, set),
    }
}

/// Copies from `fd` to `new` the socket options that the kernel can also store in a UNIX socket.
fn copy_options(fd: RawFd, new: RawFd) {
    const NAMES: [c_int; 5] =
        [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_KEEPALIVE, libc::SO_LINGER, libc::SO_REUSEADDR];
    for name in NAMES {
        let mut value = [0u64; 2];
        let mut len = size_of_val(&value) as socklen_t;
        // SAFETY: the value outlives the calls, and `len` is what the kernel wrote.
        unsafe {
            if real::getsockopt(fd, libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &mut len) == 0
                && value != [0, 0]
            {
                real::setsockopt(new, libc::SOL_SOCKET, name, value.as_ptr().cast(), len);
            }
        }
    }
}

/// Returns the result of the program's `connect`. Call this after [`offer`] has begun a connection. If `fd`
/// is blocking, first waits until the connection is established or fails. Waits at most for the socket's send
/// timeout.
pub fn finish_connect(fd: RawFd) -> c_int {
    match socket::blocks(fd) {
        _ if datagram::name_of(fd).is_some() => 0,
        true => socket::wait_connected(fd),
        false => crate::fail(libc::EINPROGRESS),
    }
}
