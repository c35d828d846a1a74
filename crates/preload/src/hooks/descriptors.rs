//! Functions that close, duplicate and control descriptors.

use crate::descriptor::name_of;
use crate::direct::kept;
use crate::{
    datagram, direct, duplicates, epoll, errno, fail, memory, parked, real, set_errno, slots, socket, unconnected,
};
use libc::{c_char, c_int, c_uint, c_ulong, c_void};

/// Linux's ioctl for the number of bytes that TCP has not sent yet.
const SIOCOUTQNSD: c_ulong = 0x894b;

hooks! {
    // The C library's `ioctl` is variadic. One fixed argument works too, because x86-64 and AArch64 pass
    // variadic and fixed arguments alike.
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        // Compare only the lower half. The kernel ignores the upper half, which can have any value in
        // programs of musl.
        let kind = c_ulong::from(request as c_uint);
        if kind == libc::FIONREAD {
            let bytes = match datagram::name_of(fd) {
                Some(name) => Some(datagram::next_length(fd, &name)),
                None => direct::available(fd).map(|bytes| bytes as c_int),
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
        if !matches!(kind, libc::FIONREAD | libc::TIOCOUTQ) {
            parked::forbid(fd);
        }
        let _using = direct::using(fd);
        let result = real::ioctl(fd, request, argument);
        if kind == libc::FIONBIO {
            slots::note_flags();
        }
        match result {
            -1 if errno() == libc::ENOTTY => socket::ask_internet(fd, request, argument),
            result => result,
        }
    }

    fn close(fd: c_int) -> c_int {
        if kept::close(fd) {
            return 0;
        }
        epoll::note_closing(fd);
        socket::note_closing(fd);
        let _closing = direct::closing(fd);
        real::close(fd)
    }

    // Older versions of the C libraries lack these two functions, so make the system call.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        epoll::note_closing_range(first, last);
        // Any flag means that the descriptors stay open, or that only this thread closes them.
        if flags == 0 {
            let last = last.min(c_int::MAX as c_uint) as c_int;
            socket::note_closing_range(first.min(c_int::MAX as c_uint) as c_int, last);
        }
        kept::note_closing_range(first, if flags == 0 { last } else { 0 });
        direct::note_closing_all();
        let result = real::syscall(libc::SYS_close_range, first.into(), last.into(), flags.into(), 0, 0, 0) as c_int;
        direct::note_closing_all();
        result
    }

    fn closefrom(first: c_int) -> c_int {
        close_range(first.max(0) as c_uint, c_uint::MAX, 0)
    }

    fn fclose(file: *mut c_void) -> c_int {
        note_closing_file(file);
        real::fclose(file)
    }

    fn freopen(path: *const c_char, mode: *const c_char, file: *mut c_void) -> isize {
        note_closing_file(file);
        real::freopen(path, mode, file)
    }

    // glibc's name of freopen in programs with 64-bit file offsets.
    fn freopen64(path: *const c_char, mode: *const c_char, file: *mut c_void) -> isize {
        note_closing_file(file);
        real::freopen64(path, mode, file)
    }

    fn dup(fd: c_int) -> c_int {
        duplicates::note(fd, real::dup(fd))
    }

    fn dup2(fd: c_int, to: c_int) -> c_int {
        epoll::note_closing(to);
        socket::note_replacing(fd, to);
        kept::note_closing(to);
        let _closing = direct::closing(to);
        duplicates::note(fd, real::dup2(fd, to))
    }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        epoll::note_closing(to);
        if flags & !libc::O_CLOEXEC == 0 {
            socket::note_replacing(fd, to);
        }
        kept::note_closing(to);
        let _closing = direct::closing(to);
        duplicates::note(fd, real::dup3(fd, to, flags))
    }

    // The C library's `fcntl` is variadic. One fixed argument works too, as explained at `ioctl`.
    fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        let harmless = matches!(
            command,
            libc::F_GETFL | libc::F_GETFD | libc::F_SETFD | libc::F_DUPFD | libc::F_DUPFD_CLOEXEC
        );
        if !harmless {
            parked::forbid(fd);
        }
        let _using = if harmless { None } else { Some(direct::using(fd)) };
        let result = real::fcntl(fd, command, argument);
        match command {
            libc::F_SETFL => {
                slots::note_flags();
                result
            }
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicates::note(fd, result),
            _ => result,
        }
    }

    // glibc's name of fcntl in programs with 64-bit file offsets.
    fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
        fcntl(fd, command, argument)
    }
}

/// Calls [`socket::note_closing`] for the descriptor of the stream `file`, which the program is about to close.
unsafe fn note_closing_file(file: *mut c_void) {
    direct::note_closing_all();
    if socket::may_have_given_up() && !file.is_null() {
        let before = errno();
        // SAFETY: the program's stream.
        let fd = unsafe { libc::fileno(file.cast()) };
        set_errno(before);
        socket::note_closing(fd);
    }
}
