//! Makes a descriptor refer to another socket.

use super::Conversion;
use super::refusal::stays;
use crate::epoll::Registration;
use crate::{control, datagram, direct, duplicates, errno, options, polling, real, set_errno, unconnected};
use inlane_offload_protocol::address::write_sockaddr;
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::{Local, SocketName};
use inlane_offload_protocol::rules::Use;
use libc::{c_int, socklen_t};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// Makes the descriptor `fd` refer to the socket `new`. Keeps the flags, timeouts and epoll registration of
/// the old socket. Closes the descriptor `new`. Returns false if the replacement failed. If `plain` is set, the
/// program has set no option of the old socket.
pub(super) fn replace(fd: RawFd, new: RawFd, datagrams: bool, plain: bool) -> bool {
    let duplicates = duplicates::of(fd);
    if !plain {
        options::copy(fd, new);
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
            direct::note_unseen(fd);
            direct::note_unseen(duplicate);
        }
    }
    // SAFETY: the caller gives the descriptor `new` to this function, which closes it exactly once.
    unsafe { libc::close(new) };
    replaced
}

/// Makes the descriptor `fd` refer to the socket `new`, too. Keeps the descriptor's flag FD_CLOEXEC and its epoll
/// registration. Returns false if that failed.
fn substitute(fd: RawFd, new: RawFd) -> bool {
    let registration = Registration::take(fd);
    direct::note_new(fd);
    polling::note_offloaded(fd);
    // SAFETY: both descriptors are open; dup3 replaces `fd` atomically.
    let replaced = unsafe {
        let close_on_exec = libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        real::dup3(new, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 }) == fd
    };
    if let Some(registration) = registration {
        registration.restore();
    }
    replaced
}

/// Makes the descriptor of a listener whose engine has ended refer to `new`: its stand-in, or the program's end of another
/// listener. Closes the descriptor `new`. Returns false if that failed.
pub fn replace_listener(fd: RawFd, new: RawFd) -> bool {
    replace(fd, new, false, false)
}

/// Replaces an offloaded TCP socket by a new, unbound kernel socket under the same descriptor. The program
/// can then connect it again. Keeps the flags and the options of the old socket. Returns false if this
/// failed.
pub fn renew(fd: RawFd, v6: bool) -> bool {
    let before = errno();
    let renewed = successor(fd, v6).is_ok_and(|new| replace(fd, new, false, true));
    set_errno(before);
    renewed
}

/// Creates a TCP socket of the kernel with the options of the offloaded TCP socket `fd`. Fails with an errno.
fn successor(fd: RawFd, v6: bool) -> Result<RawFd, c_int> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: has no preconditions.
    let new = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if new < 0 {
        return Err(libc::ENOBUFS);
    }
    real::set_option(new, libc::SOL_SOCKET, options::MARK, 1);
    options::keep(fd, new);
    options::copy(fd, new);
    Ok(new)
}

/// Replaces an offloaded TCP socket whose connection attempt has failed by a new one, which the program can connect. If the program had
/// bound the socket, binds the new one to the same address. If another socket has taken the port meanwhile, and the program
/// had let the engine choose it, chooses another port, as Linux does. Fails with an errno, and leaves the socket as it is.
pub fn renew_after_failure(fd: RawFd, name: &SocketName) -> Result<(), c_int> {
    let (before, v6) = (errno(), name.kind.is_v6());
    let new = successor(fd, v6)?;
    let chosen = options::has_chosen_port(fd);
    let bound = match name.kind.is_bound() {
        true => match bind_again(new, v6, name.local) {
            Err(libc::EADDRINUSE) if !chosen => bind_again(new, v6, SocketAddr::new(name.local.ip(), 0)),
            result => result,
        },
        false => Ok(()),
    };
    let outcome = match bound {
        Ok(()) if chosen => {
            options::note_chosen_port(new);
            replace(fd, new, false, true)
        }
        Ok(()) => replace(fd, new, false, true),
        // SAFETY: the descriptor is this function's.
        Err(_) => unsafe { libc::close(new) == 0 },
    };
    if name.kind.is_bound() && bound.is_ok() {
        unconnected::note_bound(fd);
    }
    set_errno(before);
    if outcome { bound } else { Err(libc::ENOBUFS) }
}

/// Binds a socket of [`renew`] to `local`, the address of the socket that it replaces. Fails with an errno.
pub fn bind_again(fd: RawFd, v6: bool, local: SocketAddr) -> Result<(), c_int> {
    let wanted = match local.ip() {
        IpAddr::V4(ip) if v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), local.port()),
        _ => local,
    };
    match super::offer(fd, Local::Kernel { v6, port: 0 }, Use::Listen, wanted) {
        Conversion::Engine => {
            unconnected::note_bound(fd);
            Ok(())
        }
        Conversion::Failed(error) => Err(error),
        Conversion::Kernel => Err(libc::EADDRNOTAVAIL),
    }
}

/// Replaces an offloaded UDP socket by a new kernel socket with its options, if a disconnect has freed its port. The program may
/// then bind it again. Returns `None` for other sockets, and on failure.
pub fn unbind(fd: RawFd, name: &SocketName) -> Option<Local> {
    let v6 = name.kind.is_v6();
    let unbound = name.kind.is_datagram()
        && control::addresses(fd).is_some_and(|reply| reply.local.is_some_and(|local| local.port() == 0));
    if !unbound {
        return None;
    }
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: has no preconditions.
    let new = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if new < 0 {
        return None;
    }
    options::keep_of_datagrams(fd, new, v6);
    replace(fd, new, true, false).then_some(Local::Kernel { v6, port: 0 })
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
        // Withdraw the connection, because the engine may still receive the request for it.
        real::shutdown(fd, libc::SHUT_RDWR);
        if !replace(fd, new, false, false) {
            return crate::fail(libc::ENETDOWN);
        }
        let mut address = [0u8; size_of::<libc::sockaddr_in6>()];
        let mut len = address.len() as socklen_t;
        write_sockaddr(remote, v6, address.as_mut_ptr().cast(), &mut len);
        real::connect(fd, address.as_ptr().cast(), len)
    }
}
