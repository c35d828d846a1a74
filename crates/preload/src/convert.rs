//! Replaces a kernel socket by an offloaded one, when the program binds or connects it.

mod refusal;
mod replace;

pub use replace::{bind_again, leave_engine, renew, renew_after_failure, replace_listener, unbind};

use crate::control::Unanswered;
use crate::direct::kept;
use crate::{
    control, datagram, descriptor, direct, errno, open, options, polling, real, set_errno, settings,
};
use inlane_offload_protocol::address::read_sockaddr;
use inlane_offload_protocol::message::{KERNEL, Message, Operation};
use inlane_offload_protocol::name::Local;
use inlane_offload_protocol::rules::{Action, Use};
use libc::{c_int, socklen_t};
use refusal::{NO_ANSWER, refused_version, stays};
use replace::replace;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

/// What became of a socket that the program binds or connects.
pub enum Conversion {
    /// The socket stays with the kernel.
    Kernel,
    /// The socket is offloaded now.
    Engine,
    /// The call fails with this errno.
    Failed(c_int),
}

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
    let plain = connects && real::option(fd, libc::SOL_SOCKET, options::MARK) == Some(0);
    if !plain {
        options::add(&mut message, fd);
    }
    // In a single-threaded process, the connection may begin before the engine's socket replaces the
    // kernel's, because no other thread can use `fd` meanwhile.
    let alone = connects && real::is_single_threaded();
    if alone
        && plain
        && let Some(new) = open::connect(fd, address, socket.v6)
    {
        return match replace(fd, new.end, false, plain) {
            true => {
                direct::expect_slot(fd);
                kept::opened::note_opened(fd, new.was_kept);
                Conversion::Engine
            }
            false => stays(&message, b"the descriptor could not be replaced", true),
        };
    }
    message.number = c_int::from(alone);
    // Read the limit only of a socket on which the program has set an option.
    let limit = if connects && !plain && descriptor::blocks(fd) { descriptor::send_limit(fd) } else { None };
    let reply = match limit {
        Some(limit) => control::request_within(&mut message, -1, limit),
        None => control::request(&mut message, -1).ok_or(Unanswered::Gone),
    };
    let (reply, passed) = match reply {
        Ok(reply) => reply,
        // The program's limit is shorter than the library's. The kernel fails with EINPROGRESS, and goes on connecting.
        // Here nothing goes on: `fd` is still the kernel's socket, which has sent no SYN.
        Err(Unanswered::Silent) if limit.is_some_and(|limit| limit < control::LONGEST_WAIT) => {
            return Conversion::Failed(libc::ETIMEDOUT);
        }
        Err(_) => {
            return match control::other_version() {
                Some(engine) => refused_version(engine),
                None => stays(&message, NO_ANSWER, true),
            };
        }
    };
    if reply.status == 0 {
        polling::set_time(reply.name);
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
                // A limit of received bytes (SO_RCVLOWAT) may have been set on a socket with options.
                if connects && plain {
                    direct::expect_slot(fd);
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
