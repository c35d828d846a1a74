//! The C library's `syscall`, which makes any system call.

use super::descriptors::{close, close_range, dup, dup3, fcntl, ioctl};
use super::roots::chroot;
use super::receives::{read, readv, recvfrom, recvmmsg, recvmsg};
use super::sends::{sendmmsg, sendmsg, sendto, write, writev};
use super::sockets::{
    accept, accept4, bind, connect, getpeername, getsockname, getsockopt, listen, setsockopt, shutdown,
};
use super::waits::{epoll_create1, epoll_ctl};
use crate::{direct, real};
use libc::{c_int, c_long, c_uint, c_ulong, size_t, socklen_t};

hooks! {
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
            libc::SYS_dup2 => super::descriptors::dup2(fd, b as c_int) as c_long,
            libc::SYS_dup3 => dup3(fd, b as c_int, c as c_int) as c_long,
            libc::SYS_fcntl => fcntl(fd, b as c_int, c as *mut _) as c_long,
            libc::SYS_epoll_create1 => epoll_create1(fd) as c_long,
            libc::SYS_epoll_ctl => epoll_ctl(fd, b as c_int, c as c_int, d as *mut _) as c_long,
            libc::SYS_close => close(fd) as c_long,
            libc::SYS_close_range => close_range(a as c_uint, b as c_uint, c as c_int) as c_long,
            libc::SYS_chroot => chroot(a as *const _) as c_long,
            _ => {
                match number {
                    libc::SYS_sendfile | libc::SYS_pwritev2 => direct::note_unseen(fd),
                    libc::SYS_splice => direct::note_unseen(c as c_int),
                    libc::SYS_clone | libc::SYS_clone3 | libc::SYS_execve | libc::SYS_execveat
                    | libc::SYS_io_uring_setup | libc::SYS_io_submit => direct::note_all_shared(),
                    #[cfg(target_arch = "x86_64")]
                    libc::SYS_fork | libc::SYS_vfork => direct::note_all_shared(),
                    _ => {}
                }
                real::syscall(number, a, b, c, d, e, f)
            }
        }
    }
}
