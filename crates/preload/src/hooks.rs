//! The functions that replace functions of the C library in the program, such as `connect` and `sendto`.
//!
//! Each function is written so that it costs least for sockets that are not offloaded. For example, `sendto`
//! calls the C library first. It checks for an offloaded socket only if that call fails.

use crate::convert::{self, Conversion};
use crate::epoll::{self, deferred};
use crate::socket::{local_of, name_of};
use crate::{
    datagram, direct, duplicates, errno, exec, fail, memory, real, receive, send, set_errno, socket,
    unconnected, wait,
};
use inlane_offload_protocol::address::is_possible;
use inlane_offload_protocol::name::{Local, SocketName};
use inlane_offload_protocol::rules::Use;
use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t,
    pid_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::{null, null_mut};

/// The most buffers that one call sends through shared memory. Calls with more buffers use the kernel.
const MOST_PARTS: usize = 64;

/// Linux's ioctl for the number of bytes that TCP has not sent yet.
const SIOCOUTQNSD: c_ulong = 0x894b;

macro_rules! hooks {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {$(
        #[doc = concat!("Replaces the C library's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the C library's function.
        // "C-unwind", because pthread_cancel of glibc unwinds a waiting thread through this function.
        // SAFETY: the name is meant to replace the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the program passes valid arguments for the C library's function.
            #[allow(unused_unsafe, reason = "some bodies call no unsafe function")]
            unsafe { $body }
        }
    )*};
}

/// Ends the program if an array of `count` descriptors does not fit `room` bytes, as the C library's checks do.
fn check_room(count: nfds_t, room: size_t) {
    if count > (room / size_of::<pollfd>()) as nfds_t {
        real::fail_check()
    }
}

hooks! {
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        if let Ok(Some(wanted)) = memory::read_address(address, len) {
            let local = local_of(fd);
            if let Local::Offloaded(_) = local {
                return fail(libc::EINVAL);
            }
            match convert::offer(fd, local, Use::Listen, wanted) {
                Conversion::Kernel => {}
                Conversion::Engine => {
                    unconnected::note_bound(fd);
                    return 0;
                }
                Conversion::Failed(error) => return fail(error),
            }
        }
        real::bind(fd, address, len)
    }

    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        if let Ok(Some(remote)) = memory::read_address(address, len) {
            let mut local = local_of(fd);
            if let Local::Offloaded(name) = local
                && socket::may_connect_again(fd, &name)
                && convert::renew(fd, name.kind.is_v6())
            {
                local = local_of(fd);
            }
            if let Local::Offloaded(name) = local {
                return match name.kind.is_datagram() {
                    true => datagram::connect(fd, &name, remote),
                    false => socket::connect(fd, &name, remote),
                };
            }
            match convert::offer(fd, local, Use::Connect, remote) {
                Conversion::Kernel => {}
                Conversion::Engine => return convert::finish_connect(fd),
                Conversion::Failed(error) => return fail(error),
            }
        } else if let Some(name) = name_of(fd) {
            if is_unspecified(address, len) {
                return disconnect(fd, &name);
            }
            return fail(socket::reason_of_refusal(fd, &name, address, len));
        }
        real::connect(fd, address, len)
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        // For a socket that was never bound, `listen` chooses a port. Offer such a socket to the engine now.
        let local = local_of(fd);
        let any = match local {
            Local::Offloaded(_) => return socket::listen(fd, backlog),
            Local::Kernel { v6: false, port: 0 } => Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
            Local::Kernel { v6: true, port: 0 } => Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
            Local::Kernel { .. } | Local::Other => None,
        };
        if let Some(any) = any.filter(|_| convert::is_stream(fd)) {
            match convert::offer(fd, local, Use::Listen, any) {
                Conversion::Kernel => {}
                Conversion::Engine => return socket::listen(fd, backlog),
                Conversion::Failed(error) => return fail(error),
            }
        }
        real::listen(fd, backlog)
    }

    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if let Some(accepted) = accept_from_engine(fd, address, len, 0) {
            return accepted;
        }
        let result = real::accept(fd, address, len);
        after_accept(result, fd, address, len, 0)
    }

    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        if let Some(accepted) = accept_from_engine(fd, address, len, flags) {
            return accepted;
        }
        let result = real::accept4(fd, address, len, flags);
        after_accept(result, fd, address, len, flags)
    }

    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        match name_of(fd) {
            Some(name) => socket::getsockname(fd, &name, address, len),
            None => real::getsockname(fd, address, len),
        }
    }

    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        match name_of(fd) {
            Some(name) => socket::getpeername(fd, &name, address, len),
            None => real::getpeername(fd, address, len),
        }
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        match name_of(fd) {
            Some(socket) if socket.kind.is_datagram() => datagram::getsockopt(fd, &socket, level, name, value, len),
            Some(socket) => socket::getsockopt(fd, &socket, level, name, value, len),
            None => real::getsockopt(fd, level, name, value, len),
        }
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        match local_of(fd) {
            Local::Offloaded(socket) if socket.kind.is_datagram() => datagram::setsockopt(fd, level, name, value, len),
            Local::Offloaded(socket) => socket::setsockopt(fd, &socket, level, name, value, len),
            Local::Kernel { port: 0, .. } => convert::set_option(fd, level, name, value, len),
            Local::Kernel { .. } | Local::Other => real::setsockopt(fd, level, name, value, len),
        }
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        match name_of(fd) {
            Some(name) if name.kind.is_datagram() => datagram::shutdown(fd, how),
            Some(name) => socket::shutdown(fd, &name, how),
            None => real::shutdown(fd, how),
        }
    }

    fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        // Pass a read of 0 bytes to the kernel, because such a read must leave the datagram in the queue.
        if len > 0 && let Some(name) = datagram::name_of(fd) {
            return datagram::receive_from(fd, &name, &[datagram::part(buffer, len)], 0, null_mut(), null_mut());
        }
        if unconnected::is_unconnected(fd) {
            return fail(libc::ENOTCONN);
        }
        let result = direct::receive(fd, buffer, len).unwrap_or_else(|| real::read(fd, buffer, len));
        receive::finish(fd, len, result)
    }

    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        read(fd, buffer, bounded(len, room))
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        if let Some(name) = datagram::name_of(fd) && bytes(parts, count.max(0) as usize) > 0 {
            let parts = std::slice::from_raw_parts(parts, count as usize);
            return datagram::receive_from(fd, &name, parts, 0, null_mut(), null_mut());
        }
        if unconnected::is_unconnected(fd) {
            return fail(libc::ENOTCONN);
        }
        if let Some(result) = receive_offered(fd, parts, count.max(0) as usize, 0) {
            return result;
        }
        let result = real::readv(fd, parts, count);
        receive::finish(fd, if result == 0 { bytes(parts, count.max(0) as usize) } else { 1 }, result)
    }

    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        if let Some(name) = datagram::name_of(fd) {
            return datagram::receive_from(fd, &name, &[datagram::part(buffer, len)], flags, null_mut(), null_mut());
        }
        if receive::asks_for_errors(fd, flags) {
            return fail(libc::EAGAIN);
        }
        if unconnected::is_unconnected(fd) {
            return fail(libc::ENOTCONN);
        }
        let direct = match flags {
            0 => direct::receive(fd, buffer, len),
            _ => receive_offered(fd, &datagram::part(buffer, len), 1, flags),
        };
        receive::finish(fd, len, direct.unwrap_or_else(|| real::recv(fd, buffer, len, flags)))
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        recv(fd, buffer, bounded(len, room), flags)
    }

    fn recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t {
        if let Some(name) = datagram::name_of(fd) {
            let part = datagram::part(buffer, len);
            return datagram::receive_from(fd, &name, &[part], flags, address, address_len);
        }
        if receive::asks_for_errors(fd, flags) {
            return fail(libc::EAGAIN);
        }
        if unconnected::is_unconnected(fd) {
            return fail(libc::ENOTCONN);
        }
        if flags == 0 && address.is_null() && let Some(result) = direct::receive(fd, buffer, len) {
            return receive::finish(fd, len, result);
        }
        if !address.is_null() && !is_possible(address_len, size_of::<socklen_t>()) {
            // `address_len` is invalid. Withdraw offered bytes from shared memory to the socket pair. The
            // receive below then finds them there, and the kernel reports the invalid pointer.
            direct::withdraw(fd);
        } else if let Some(result) = receive_offered(fd, &datagram::part(buffer, len), 1, flags) {
            if !address.is_null() {
                address_len.write_unaligned(0);
            }
            return result;
        }
        let result = real::recvfrom(fd, buffer, len, flags, address, address_len);
        receive::hide_name(fd, result, address, address_len);
        receive::finish(fd, len, result)
    }

    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t {
        recvfrom(fd, buffer, bounded(len, room), flags, address, address_len)
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if !memory::is_readable(message) {
            return real::recvmsg(fd, message, flags);
        }
        if let Some(name) = datagram::name_of(fd) {
            return datagram::receive(fd, &name, &mut *message, flags);
        }
        if receive::asks_for_errors(fd, flags) {
            return fail(libc::EAGAIN);
        }
        if unconnected::is_unconnected(fd) {
            return fail(libc::ENOTCONN);
        }
        let count = real::length((*message).msg_iovlen as _);
        if let Some(result) = receive_offered(fd, (*message).msg_iov, count, flags) {
            ((*message).msg_namelen, (*message).msg_controllen, (*message).msg_flags) = (0, 0, 0);
            return result;
        }
        let result = real::recvmsg(fd, message, flags);
        if result >= 0 {
            receive::note_passed(&*message);
        }
        receive::hide_name(fd, result, (*message).msg_name.cast(), &raw mut (*message).msg_namelen);
        let len = if result == 0 { bytes((*message).msg_iov, count) } else { 1 };
        receive::finish(fd, len, result)
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        match datagram::name_of(fd) {
            Some(name) => datagram::receive_many(fd, &name, messages, count, flags, timeout),
            None if receive::asks_for_errors(fd, flags) => fail(libc::EAGAIN),
            None if unconnected::is_unconnected(fd) => fail(libc::ENOTCONN),
            None => {
                direct::withdraw(fd);
                real::recvmmsg(fd, messages, count, flags, timeout)
            }
        }
    }

    fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        if let Some(sent) = direct::send(fd, &[datagram::part(buffer, len)], 0) {
            return sent;
        }
        match datagram::name_of(fd) {
            Some(name) => datagram::send_to(fd, &name, &[datagram::part(buffer, len)], 0, null(), 0),
            None if unconnected::is_unconnected(fd) => send::refuse(0),
            None => send::after_write(fd, real::write(fd, buffer, len)),
        }
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        if let Some(sent) = send_directly(fd, parts, count.max(0) as usize, 0) {
            return sent;
        }
        match datagram::name_of(fd) {
            Some(name) if !parts.is_null() && count >= 0 => {
                let parts = std::slice::from_raw_parts(parts, count as usize);
                datagram::send_to(fd, &name, parts, 0, null(), 0)
            }
            _ if unconnected::is_unconnected(fd) => send::refuse(0),
            _ => send::after_write(fd, real::writev(fd, parts, count)),
        }
    }

    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        if let Some(sent) = send_directly(fd, &datagram::part(buffer, len), 1, flags) {
            return sent;
        }
        match datagram::name_of(fd) {
            Some(name) => datagram::send_to(fd, &name, &[datagram::part(buffer, len)], flags, null(), 0),
            None if unconnected::is_unconnected(fd) => send::refuse(flags),
            None => {
                send::prepare(fd, flags, || len);
                send::finish(fd, flags, real::send(fd, buffer, len, flags | libc::MSG_NOSIGNAL))
            }
        }
    }

    fn sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t {
        if address.is_null() && let Some(sent) = send_directly(fd, &datagram::part(buffer, len), 1, flags) {
            return sent;
        }
        match before_send(fd, address, address_len) {
            Ok(Some(name)) => {
                let part = datagram::part(buffer, len);
                return datagram::send_to(fd, &name, &[part], flags, address, address_len);
            }
            Ok(None) if unconnected::is_unconnected(fd) => return send::refuse(flags),
            Ok(None) => {}
            Err(error) => return fail(error),
        }
        send::prepare(fd, flags, || len);
        let before = errno();
        let mut result = real::sendto(fd, buffer, len, flags | libc::MSG_NOSIGNAL, address, address_len);
        if result == -1 && refuses_addresses(address.cast()) && name_of(fd).is_some() {
            // Send again without the address. A connected TCP socket ignores an address, but the UNIX socket
            // of the socket pair refuses it.
            set_errno(before);
            result = real::sendto(fd, buffer, len, flags | libc::MSG_NOSIGNAL, std::ptr::null(), 0);
        }
        send::finish(fd, flags, result)
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        let is_message = memory::is_readable(message);
        if is_message {
            if (*message).msg_name.is_null()
                && real::length((*message).msg_controllen as _) == 0
                && let Some(sent) = send_directly(fd, (*message).msg_iov, real::length((*message).msg_iovlen as _), flags)
            {
                return sent;
            }
            match before_send(fd, (*message).msg_name.cast(), (*message).msg_namelen) {
                Ok(Some(name)) => return datagram::send(fd, &name, &*message, flags),
                Ok(None) if unconnected::is_unconnected(fd) => return send::refuse(flags),
                Ok(None) => {}
                Err(error) => return fail(error),
            }
        }
        if is_message {
            if passes_descriptors(&*message) {
                deferred::share_all();
            }
            send::prepare(fd, flags, || memory::total((*message).msg_iov, real::length((*message).msg_iovlen as _)));
        }
        let before = errno();
        let mut result = real::sendmsg(fd, message, flags | libc::MSG_NOSIGNAL);
        if result == -1 && is_message && refuses_addresses((*message).msg_name) && name_of(fd).is_some() {
            set_errno(before);
            let mut without = message.read();
            (without.msg_name, without.msg_namelen) = (std::ptr::null_mut(), 0);
            result = real::sendmsg(fd, &without, flags | libc::MSG_NOSIGNAL);
        }
        send::finish(fd, flags, result)
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if count > 0 && memory::is_readable(messages) {
            let first = &(*messages).msg_hdr;
            match before_send(fd, first.msg_name.cast(), first.msg_namelen) {
                Ok(Some(name)) => {
                    return datagram::send_many(messages, count, |message| datagram::send(fd, &name, message, flags));
                }
                Ok(None) if name_of(fd).is_some() => {
                    return datagram::send_many(messages, count, |message| sendmsg(fd, message, flags));
                }
                Ok(None) => {}
                Err(error) => return fail(error),
            }
        }
        deferred::share_all();
        real::sendmmsg(fd, messages, count, flags)
    }

    // The C library's `ioctl` is variadic. One fixed argument works too, because x86-64 and AArch64 pass
    // variadic and fixed arguments alike.
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        // Compare only the lower half. The kernel ignores the upper half, which can have any value in
        // programs of musl.
        let kind = c_ulong::from(request as c_uint);
        if kind == libc::FIONREAD {
            let bytes = match datagram::name_of(fd) {
                Some(name) => Some(datagram::next_length(fd, &name)),
                None => direct::offered(fd).map(|bytes| bytes as c_int),
            };
            if let Some(bytes) = bytes {
                return if memory::write_bytes(argument.cast(), &bytes.to_ne_bytes()) { 0 } else { fail(libc::EFAULT) };
            }
        }
        if matches!(kind, libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD) && unconnected::is_listener(fd) {
            return fail(libc::EINVAL);
        }
        if kind == SIOCOUTQNSD && name_of(fd).is_some() {
            return real::ioctl(fd, libc::TIOCOUTQ, argument);
        }
        real::ioctl(fd, request, argument)
    }

    fn close(fd: c_int) -> c_int {
        deferred::note_closing(fd);
        real::close(fd)
    }

    // Older versions of the C libraries lack these two functions, so make the system call.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        deferred::forget_all();
        deferred::share_all();
        real::syscall(libc::SYS_close_range, first.into(), last.into(), flags.into(), 0, 0, 0) as c_int
    }

    fn closefrom(first: c_int) -> c_int {
        close_range(first.max(0) as c_uint, c_uint::MAX, 0)
    }

    fn fclose(file: *mut c_void) -> c_int {
        deferred::forget_all();
        real::fclose(file)
    }

    fn freopen(path: *const c_char, mode: *const c_char, file: *mut c_void) -> isize {
        deferred::forget_all();
        real::freopen(path, mode, file)
    }

    // glibc's name of freopen in programs with 64-bit file offsets.
    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut c_void) -> isize {
        deferred::forget_all();
        real::freopen64(path, mode, file)
    }

    fn dup(fd: c_int) -> c_int {
        deferred::share(fd);
        duplicates::note(fd, real::dup(fd))
    }

    fn dup2(fd: c_int, to: c_int) -> c_int {
        deferred::share(fd);
        deferred::note_closing(to);
        duplicates::note(fd, real::dup2(fd, to))
    }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        deferred::share(fd);
        deferred::note_closing(to);
        duplicates::note(fd, real::dup3(fd, to, flags))
    }

    // The C library's `fcntl` is variadic. One fixed argument works too, as explained at `ioctl`.
    fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
            deferred::share(fd);
        }
        let result = real::fcntl(fd, command, argument);
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicates::note(fd, result),
            _ => result,
        }
    }

    // glibc's name of fcntl in programs with 64-bit file offsets.
    fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        fcntl(fd, command, argument)
    }

    fn epoll_ctl(instance: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        epoll::control(instance, operation, fd, event)
    }

    fn epoll_create(size: c_int) -> c_int {
        epoll::note_created(real::epoll_create(size))
    }

    fn epoll_create1(flags: c_int) -> c_int {
        epoll::note_created(real::epoll_create1(flags))
    }

    fn epoll_wait(instance: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int {
        wait::epoll(instance, events, room, timeout, null())
    }

    fn epoll_pwait(instance: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        wait::epoll(instance, events, room, timeout, mask)
    }

    fn epoll_pwait2(instance: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        deferred::share(instance);
        // Older versions of the C libraries lack this function, so make the system call. The kernel's signal set has 8 bytes.
        real::syscall(libc::SYS_epoll_pwait2, instance.into(), events as c_long, room.into(), timeout as c_long, mask as c_long, 8) as c_int
    }

    fn poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        wait::poll(descriptors, count, timeout)
    }

    fn __poll_chk(descriptors: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        check_room(count, room);
        wait::poll(descriptors, count, timeout)
    }

    fn ppoll(descriptors: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        wait::ppoll(descriptors, count, timeout, mask)
    }

    fn __ppoll_chk(descriptors: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int {
        check_room(count, room);
        wait::ppoll(descriptors, count, timeout, mask)
    }

    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        wait::select(count, [read, write, except], timeout)
    }

    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        wait::pselect(count, [read, write, except], timeout, mask)
    }

    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        deferred::share_all();
        let mut room = exec::EMPTY;
        real::execve(path, arguments, exec::environment(environment, &mut room))
    }

    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
        deferred::share_all();
        real::execv(path, arguments)
    }

    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
        deferred::share_all();
        real::execvp(file, arguments)
    }

    fn execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        deferred::share_all();
        let mut room = exec::EMPTY;
        real::execvpe(file, arguments, exec::environment(environment, &mut room))
    }

    fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        deferred::share_all();
        let mut room = exec::EMPTY;
        real::fexecve(fd, arguments, exec::environment(environment, &mut room))
    }

    fn posix_spawn(process: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        deferred::share_all();
        let mut room = exec::EMPTY;
        let environment = exec::environment(environment, &mut room);
        real::posix_spawn(process, path, actions, attributes, arguments, environment)
    }

    fn posix_spawnp(process: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        deferred::share_all();
        let mut room = exec::EMPTY;
        let environment = exec::environment(environment, &mut room);
        real::posix_spawnp(process, file, actions, attributes, arguments, environment)
    }

    // The C library's function is variadic. Six fixed arguments work too, because x86-64 and AArch64 pass
    // variadic and fixed arguments alike.
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long {
        let fd = a as c_int;
        match number {
            libc::SYS_bind => bind(fd, b as *const _, c as socklen_t) as c_long,
            libc::SYS_connect => connect(fd, b as *const _, c as socklen_t) as c_long,
            libc::SYS_listen => listen(fd, b as c_int) as c_long,
            libc::SYS_accept => accept(fd, b as *mut _, c as *mut _) as c_long,
            libc::SYS_accept4 => accept4(fd, b as *mut _, c as *mut _, d as c_int) as c_long,
            libc::SYS_getsockname => getsockname(fd, b as *mut _, c as *mut _) as c_long,
            libc::SYS_getpeername => getpeername(fd, b as *mut _, c as *mut _) as c_long,
            libc::SYS_getsockopt => getsockopt(fd, b as c_int, c as c_int, d as *mut _, e as *mut _) as c_long,
            libc::SYS_setsockopt => setsockopt(fd, b as c_int, c as c_int, d as *const _, e as socklen_t) as c_long,
            libc::SYS_shutdown => shutdown(fd, b as c_int) as c_long,
            libc::SYS_read => read(fd, b as *mut _, c as size_t) as c_long,
            libc::SYS_readv => readv(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_recvfrom => recvfrom(fd, b as *mut _, c as size_t, d as c_int, e as *mut _, f as *mut _) as c_long,
            libc::SYS_recvmsg => recvmsg(fd, b as *mut _, c as c_int) as c_long,
            libc::SYS_sendto => sendto(fd, b as *const _, c as size_t, d as c_int, e as *const _, f as socklen_t) as c_long,
            libc::SYS_sendmsg => sendmsg(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_recvmmsg => recvmmsg(fd, b as *mut _, c as c_uint, d as c_int, e as *mut _) as c_long,
            libc::SYS_sendmmsg => sendmmsg(fd, b as *mut _, c as c_uint, d as c_int) as c_long,
            libc::SYS_write => write(fd, b as *const _, c as size_t) as c_long,
            libc::SYS_writev => writev(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_ioctl => ioctl(fd, b as c_ulong, c as *mut _) as c_long,
            libc::SYS_dup => dup(fd) as c_long,
            // AArch64 has no system call dup2.
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => dup2(fd, b as c_int) as c_long,
            libc::SYS_dup3 => dup3(fd, b as c_int, c as c_int) as c_long,
            libc::SYS_fcntl => fcntl(fd, b as c_int, c as *mut _) as c_long,
            libc::SYS_epoll_create1 => epoll_create1(fd) as c_long,
            libc::SYS_epoll_ctl => epoll_ctl(fd, b as c_int, c as c_int, d as *mut _) as c_long,
            libc::SYS_close => close(fd) as c_long,
            _ => {
                // The system call may use an epoll instance, or create a process that does.
                match number {
                    libc::SYS_clone | libc::SYS_clone3 => deferred::share_all(),
                    #[cfg(target_arch = "x86_64")]
                    libc::SYS_fork | libc::SYS_vfork => deferred::share_all(),
                    _ => deferred::flush(),
                }
                real::syscall(number, a, b, c, d, e, f)
            }
        }
    }
}

/// Accepts a connection from the engine if the library has already used `fd` as a listener of the engine.
/// This saves a call of the kernel's accept, which would fail. Returns `None` for other descriptors.
unsafe fn accept_from_engine(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Option<c_int> {
    let name = if unconnected::may_be_unconnected(fd) { name_of(fd) } else { None };
    name.map(|name| socket::accept(fd, &name, address, len, flags))
}

/// Sends `count` buffers through the memory that is shared with the engine. Returns the number of sent bytes.
/// Returns `None` if the socket or the flags do not allow shared memory, so that the kernel must send the
/// buffers.
unsafe fn send_directly(fd: c_int, parts: *const iovec, count: usize, flags: c_int) -> Option<ssize_t> {
    if flags & !(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) != 0 || !is_possible(parts, 0) || count > MOST_PARTS
    {
        return None;
    }
    // SAFETY: the program's arguments.
    unsafe { direct::send(fd, std::slice::from_raw_parts(parts, count), flags) }
}

/// Receives bytes that the engine has already offered in shared memory into `count` buffers. Returns the
/// number of bytes. Returns `None` if no bytes are offered, or if only the kernel can handle `flags`.
unsafe fn receive_offered(fd: c_int, parts: *const iovec, count: usize, flags: c_int) -> Option<ssize_t> {
    let simple = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_PEEK | libc::MSG_CMSG_CLOEXEC;
    if flags & !simple != 0 || count > MOST_PARTS {
        direct::withdraw(fd);
        return None;
    }
    // SAFETY: the program's arguments.
    let received = unsafe { direct::receive_offered(fd, parts, count, flags & libc::MSG_PEEK == 0) };
    if received.is_none() && flags & libc::MSG_DONTWAIT == 0 {
        direct::note_kernel_receives(fd);
    }
    received
}

/// Corrects `result`, the result of the kernel's accept. On the program's end of a socket pair, the kernel's
/// accept fails with EINVAL. In that case, accepts a connection from the engine. Otherwise returns `result`.
unsafe fn after_accept(
    result: c_int,
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if result != -1 || errno() != libc::EINVAL {
        return result;
    }
    match name_of(fd) {
        Some(name) => socket::accept(fd, &name, address, len, flags),
        None => result,
    }
}

/// Offers a UDP socket without a port to the engine, because the send will give the socket a port. Call this
/// before a datagram is sent to `address`, which may be null. Returns the socket's name if it is a UDP socket
/// of the engine, otherwise `None`. If the send must fail, returns the errno.
unsafe fn before_send(
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> Result<Option<SocketName>, c_int> {
    if let Some(name) = datagram::name_of(fd) {
        return Ok(Some(name));
    }
    // SAFETY: the program's arguments.
    let Ok(Some(remote)) = (unsafe { memory::read_address(address, len) }) else { return Ok(None) };
    match convert::offer_unbound(fd, remote) {
        Conversion::Kernel => Ok(None),
        Conversion::Engine => Ok(datagram::name_of(fd)),
        Conversion::Failed(error) => Err(error),
    }
}

/// Returns true if the first control message of `message` may pass descriptors.
unsafe fn passes_descriptors(message: &msghdr) -> bool {
    if real::length(message.msg_controllen as _) < size_of::<libc::cmsghdr>() {
        return false;
    }
    // SAFETY: the program's pointer.
    unsafe { memory::read(message.msg_control.cast::<libc::cmsghdr>()) }
        .is_some_and(|first| first.cmsg_level == libc::SOL_SOCKET)
}

/// Returns true for an address of family AF_UNSPEC, which disconnects a UDP socket.
unsafe fn is_unspecified(address: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: the program's arguments.
    len >= 2 && unsafe { memory::read(address.cast::<u16>()) } == Some(libc::AF_UNSPEC as u16)
}

/// Implements connect(2) with an address of family AF_UNSPEC. Such a call disconnects an offloaded socket.
fn disconnect(fd: c_int, name: &SocketName) -> c_int {
    if name.kind.is_datagram() {
        return datagram::disconnect(fd);
    }
    socket::reset_on_close(fd, name);
    if convert::renew(fd, name.kind.is_v6()) { 0 } else { fail(libc::ENOBUFS) }
}

/// Returns true if a send to `address` failed because a connected UNIX socket, such as the program's end of a
/// socket pair, accepts no address. Call this right after the send, because it reads errno.
fn refuses_addresses(address: *const c_void) -> bool {
    !address.is_null() && matches!(errno(), libc::EISCONN | libc::EOPNOTSUPP)
}

/// Returns the total length of the `count` buffers in `parts`, in bytes.
unsafe fn bytes(parts: *const iovec, count: usize) -> usize {
    if parts.is_null() {
        return 0;
    }
    // SAFETY: the caller guarantees that `parts` has `count` elements, and the kernel has just read them.
    unsafe { std::slice::from_raw_parts(parts, count).iter().map(|part| part.iov_len).sum() }
}

/// Returns the number of bytes to read: `len`, but at most the buffer size `room`. Called by `__read_chk` and
/// similar functions, which replace `read` in programs compiled with `_FORTIFY_SOURCE`.
fn bounded(len: size_t, room: size_t) -> size_t {
    len.min(room)
}
