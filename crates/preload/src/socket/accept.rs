//! Listens, accepts connections from the engine, and shuts down a listener.

use super::{note_connecting, relisten};
use crate::descriptor::name_of;
use crate::direct::kept::{self, Found};
use crate::flags::Flags;
use crate::{
    control, convert, datagram, direct, epoll, errno, fail, memory, options, parked, polling, real,
    set_errno, slots, unconnected,
};
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::{SOCKET_LEN, SocketName};
use libc::{c_int, sockaddr, socklen_t};
use std::os::fd::RawFd;

/// Makes a bound socket listen.
pub fn listen(fd: RawFd, backlog: c_int) -> c_int {
    if datagram::name_of(fd).is_some() {
        return fail(libc::EOPNOTSUPP);
    }
    // The library looks for an engine already.
    if name_of(fd).is_some_and(|name| name.kind.is_stand_in()) {
        return 0;
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
        let mut free = real::fcntl(fd, libc::F_DUPFD_CLOEXEC, std::ptr::null_mut());
        if free < 0 && errno() == libc::EMFILE && kept::give_back() {
            free = real::fcntl(fd, libc::F_DUPFD_CLOEXEC, std::ptr::null_mut());
        }
        if free < 0 {
            return -1;
        }
        libc::close(free);
    }
    let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
    let close_on_exec = if flags & libc::SOCK_CLOEXEC != 0 { libc::MSG_CMSG_CLOEXEC } else { 0 };
    let mut record = [0; SOCKET_LEN];
    let mut waits = name.kind.is_stand_in();
    let (connection, reused) = loop {
        let (received, passed) = match std::mem::take(&mut waits) {
            true => (0, None),
            false => control::receive(fd, &mut record, close_on_exec),
        };
        if let Some(connection) = passed {
            break (connection, false);
        }
        match received {
            // ECONNRESET means that the engine has closed its end while bytes that fill the pair were unread there. Either
            // the listener was shut down, or the engine has ended.
            // EINVAL: another thread has just put a stand-in at the descriptor.
            -1 if errno() != libc::ECONNRESET && !relisten::was_replaced(fd) => {
                // Keep the errno of recvmsg, such as EAGAIN or EINTR. accept fails with the same values.
                return -1;
            }
            -1 | 0 => {
                if let Err(error) = relisten::wait_for_engine(fd) {
                    return fail(error);
                }
            }
            _ => match SocketName::from_record(record) {
                Some((name, tag, Some(index))) => {
                    direct::waiting::note_received(fd, tag);
                    match kept::accept(index, tag, name.socket, nonblocking, close_on_exec != 0) {
                        Found::Connection(connection) => break (connection, true),
                        Found::Ended => {}
                        Found::Missing => kept::refuse(&name),
                    }
                }
                // The message came without its file descriptor. Another thread has taken the last free descriptor
                // number, so the kernel dropped the connection.
                lost => {
                    lost.iter().for_each(|(_, tag, _)| direct::waiting::note_received(fd, *tag));
                    return fail(libc::ECONNABORTED);
                }
            },
        }
    };
    direct::note_new(connection);
    epoll::forget_registration(connection);
    note_connecting(connection);
    polling::note_offloaded(connection);
    let limited = options::timeouts_are_used();
    if limited {
        options::copy_timeouts(fd, connection);
    }
    if nonblocking && !reused {
        // SAFETY: the descriptor was just received.
        unsafe { libc::fcntl(connection, libc::F_SETFL, libc::O_NONBLOCK) };
    }
    let keeps = reused || nonblocking && !limited && kept::is_active();
    if reused {
        direct::find_slot(connection);
    } else if keeps {
        direct::expect_slot_of_accepted(connection);
    }
    let named = SocketName::from_record(record).ok_or(libc::ECONNABORTED).and_then(|(accepted, tag, _)| {
        let mut bound = accepted;
        if !reused {
            direct::waiting::note_received(fd, tag);
        }
        if keeps {
            // The pair may be kept for a connection with other addresses.
            if kept::allow(connection, &accepted, reused) {
                bound.remote = None;
            } else if reused && slots::may_have(connection) {
                return Err(libc::ECONNABORTED);
            }
            if reused && (limited || !nonblocking) {
                parked::forbid(connection);
            }
        }
        // The name tells the engine that the connection was accepted.
        let bound = bound.to_address();
        // SAFETY: the name outlives the call.
        match reused || unsafe { real::bind(connection, (&raw const bound.raw).cast(), bound.len) } == 0 {
            true => accepted.remote.ok_or(libc::ECONNABORTED),
            false => Err(libc::ECONNABORTED),
        }
    });
    let stored = match named {
        Ok(remote) if !address.is_null() => {
            // SAFETY: the program's arguments.
            unsafe { memory::write_address(remote, name.kind.is_v6(), address, len) }
        }
        named => named.map(|_| ()),
    };
    if let Err(error) = stored {
        parked::forbid(connection);
        // SAFETY: the descriptor was just received, and nothing else uses it. The kernel, too, drops a
        // connection if it cannot store the address.
        unsafe { libc::close(connection) };
        return fail(error);
    }
    if !keeps {
        direct::expect_slot_of_accepted(connection);
    }
    set_errno(before);
    connection
}

/// Implements shutdown(2) for a listening socket. Like Linux, ignores SHUT_WR. Otherwise ends the listener
/// and gives `fd` a new socket with the same address, because a program may let it listen again.
pub(super) fn shutdown_listener(fd: RawFd, name: &SocketName, how: c_int) -> c_int {
    let local = control::addresses(fd).and_then(|reply| reply.local);
    let (Some(local), false) = (local, how == libc::SHUT_WR) else { return 0 };
    let v6 = name.kind.is_v6();
    let chosen = options::has_chosen_port(fd);
    // SAFETY: fcntl and shutdown have no preconditions here. The duplicate is closed once.
    let renewed = unsafe {
        let old = real::fcntl(fd, libc::F_DUPFD_CLOEXEC, std::ptr::null_mut());
        // Give `fd` a new socket with the listener's options before the shutdown, because the engine forgets
        // the options when the socket pair is shut down.
        let renewed = old >= 0 && convert::renew(fd, v6);
        // Shut the old socket down. Calls of accept that wait on it in other threads then return. The flag tells other
        // processes that the listener was not lost.
        Flags::set(if renewed { old } else { fd }, Flags::READ_SHUT);
        real::shutdown(if renewed { old } else { fd }, libc::SHUT_RDWR);
        if old >= 0 {
            libc::close(old);
        }
        renewed
    };
    // Without the address, the program can still bind the socket to another one.
    if renewed && convert::bind_again(fd, v6, local).is_ok() && chosen {
        options::note_chosen_port(fd);
    }
    0
}
