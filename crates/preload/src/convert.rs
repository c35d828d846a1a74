//! Replaces a kernel socket by an offloaded one, when the program binds or connects it.

use crate::epoll::Registration;
use crate::{control, errno, real, set_errno, settings, socket};
use inlane_offload_protocol::address::read_sockaddr;
use inlane_offload_protocol::message::{KERNEL, Message, NumberOption, Operation, write_options};
use inlane_offload_protocol::rules::{Action, Use};
use libc::{c_int, socklen_t};
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// What became of a socket that the program binds or connects.
pub enum Outcome {
    /// The socket stays with the kernel.
    Kernel,
    /// The socket is offloaded now.
    Engine,
    /// The call fails with this errno.
    Failed(c_int),
}

/// The options that the engine must know when it creates a socket: level, name, and the value that a new
/// socket of the kernel has. Only options with another value are sent to the engine.
const OPTIONS: [NumberOption; 10] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, 0),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 0),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, 0),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 7200),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 75),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 9),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 536),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0),
];

/// Linux's option SO_BUF_LOCK: bit 0 is set if the program has set SO_SNDBUF, bit 1 for SO_RCVBUF. Linux before 5.14
/// lacks it; buffers that are set before bind or connect are then ignored.
const BUFFERS_SET: c_int = 72;

/// Returns true if `fd` is a TCP socket of the kernel over IPv6, false over IPv4, and `None` if it is
/// neither.
fn kernel_tcp(fd: RawFd) -> Option<bool> {
    let option = |name| real::option(fd, libc::SOL_SOCKET, name);
    if option(libc::SO_TYPE)? != libc::SOCK_STREAM || option(libc::SO_PROTOCOL)? != libc::IPPROTO_TCP {
        return None;
    }
    match option(libc::SO_DOMAIN)? {
        libc::AF_INET => Some(false),
        libc::AF_INET6 => Some(true),
        _ => None,
    }
}

/// Returns true if the kernel's socket `fd` has a local port.
pub fn has_port(fd: RawFd) -> bool {
    // SAFETY: an all-zero structure is valid; structures live through the call.
    unsafe {
        let mut address: libc::sockaddr_storage = std::mem::zeroed();
        let mut len = size_of_val(&address) as socklen_t;
        let pointer = (&raw mut address).cast();
        real::getsockname(fd, pointer, &mut len) == 0
            && read_sockaddr(pointer, len).is_some_and(|address| address.port() != 0)
    }
}

/// Offers the kernel's socket `fd` to the engine.
pub fn offer(fd: RawFd, usage: Use, address: SocketAddr) -> Outcome {
    let before = errno();
    let outcome = offer_socket(fd, usage, address);
    set_errno(before);
    outcome
}

fn offer_socket(fd: RawFd, usage: Use, address: SocketAddr) -> Outcome {
    let Some(v6) = kernel_tcp(fd) else { return Outcome::Kernel };
    if address.is_ipv6() != v6 || has_port(fd) {
        return Outcome::Kernel;
    }
    let mut message = Message::new(Operation::Bind);
    message.v6 = v6;
    match usage {
        Use::Listen => message.local = Some(address),
        Use::Connect => (message.operation, message.remote) = (Operation::Connect, Some(address)),
    }
    if settings::decide(address, usage) == Some(Action::Kernel) {
        return stays(&message, b"a rule keeps it there", false);
    }
    add_options(&mut message, fd);
    let Some((reply, passed)) = control::request(&mut message, -1) else {
        return stays(&message, b"the engine does not answer", true);
    };
    match (reply.status, passed) {
        (0, Some(new)) => match replace(fd, new) {
            true => {
                if usage == Use::Connect {
                    control::request(&mut Message::new(Operation::Start), fd);
                }
                Outcome::Engine
            }
            false => stays(&message, b"the descriptor could not be replaced", true),
        },
        (KERNEL, _) => {
            let required = settings::require();
            if required { stays(&message, reply.value(), true) } else { Outcome::Kernel }
        }
        (error, _) if error > 0 => Outcome::Failed(error),
        _ => stays(&message, b"the engine's reply was invalid", true),
    }
}

/// Leaves a socket with the kernel and reports this to the engine. If `matters` is set and the user demands
/// offloading, prints `reason` and fails the program's call instead.
fn stays(message: &Message, reason: &[u8], matters: bool) -> Outcome {
    if !matters || !settings::require() {
        control::report_kernel(*message, reason);
        return Outcome::Kernel;
    }
    for text in [
        &b"inlane: "[..],
        settings::program(),
        b": a socket is not offloaded, and --require is set: ",
        reason,
        b"\n",
    ] {
        // SAFETY: the text lives through the call. A failure changes nothing.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
    Outcome::Failed(libc::ENETDOWN)
}

fn add_options(message: &mut Message, fd: RawFd) {
    let mut found = [(0, 0, 0); OPTIONS.len() + 3];
    let mut count = 0;
    for (level, name, usual) in OPTIONS {
        if level == libc::IPPROTO_IPV6 && !message.v6 {
            continue;
        }
        if let Some(value) = real::option(fd, level, name).filter(|&value| value != usual) {
            found[count] = (level, name, value);
            count += 1;
        }
    }
    // Which buffers the program has set (Linux's SO_BUF_LOCK).
    let set = real::option(fd, libc::SOL_SOCKET, BUFFERS_SET).unwrap_or(0);
    for (bit, name) in [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)] {
        if set & bit != 0
            && let Some(bytes) = real::option(fd, libc::SOL_SOCKET, name)
        {
            found[count] = (libc::SOL_SOCKET, name, bytes);
            count += 1;
        }
    }
    // SAFETY: an all-zero structure is valid; structures live through the call.
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

/// Makes the descriptor `fd` refer to the socket `new`. The flags, timeouts and epoll registration of the old
/// socket are kept. Closes the descriptor `new`. Returns false if the replacement failed.
fn replace(fd: RawFd, new: RawFd) -> bool {
    let registration = Registration::of(fd);
    copy_options(fd, new);
    // SAFETY: both descriptors are open; dup3 replaces `fd` atomically.
    let replaced = unsafe {
        let status = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(new, libc::F_SETFL, status & (libc::O_NONBLOCK | libc::O_ASYNC));
        if status & libc::O_ASYNC != 0 {
            libc::fcntl(new, libc::F_SETOWN, libc::fcntl(fd, libc::F_GETOWN));
        }
        let close_on_exec = libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        let replaced = libc::dup3(new, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 }) == fd;
        libc::close(new);
        replaced
    };
    if replaced && let Some(registration) = registration {
        registration.restore();
    }
    replaced
}

/// Copies socket options from `fd` to `new`: those whose values the kernel keeps with a UNIX socket.
fn copy_options(fd: RawFd, new: RawFd) {
    const NAMES: [c_int; 5] =
        [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_KEEPALIVE, libc::SO_LINGER, libc::SO_REUSEADDR];
    for name in NAMES {
        let mut value = [0u64; 2];
        let mut len = size_of_val(&value) as socklen_t;
        // SAFETY: the value lives through the calls, and `len` is what the kernel wrote.
        unsafe {
            if real::getsockopt(fd, libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &mut len) == 0
                && value != [0, 0]
            {
                real::setsockopt(new, libc::SOL_SOCKET, name, value.as_ptr().cast(), len);
            }
        }
    }
}

/// Call this after [`offer`] has begun a connection. If `fd` is blocking, waits until the connection is
/// established or fails, for at most the socket's send timeout. Returns the result of the program's
/// `connect`.
pub fn finish_connect(fd: RawFd) -> c_int {
    match socket::blocks(fd) {
        true => socket::wait_connected(fd),
        false => crate::fail(libc::EINPROGRESS),
    }
}
