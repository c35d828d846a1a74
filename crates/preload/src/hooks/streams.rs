//! Functions by which the C library or the kernel itself sends on a descriptor. These sends go through the socket pair, and the
//! library does not see them.

use crate::{direct, real};
use inlane_offload_protocol::address::is_possible;
use libc::{aiocb, c_char, c_int, c_uint, c_void, iovec, off_t, size_t, ssize_t};

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> isize {
        direct::note_unseen(fd);
        real::fdopen(fd, mode)
    }

    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        direct::note_unseen(fd);
        real::vdprintf(fd, format, arguments)
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        direct::note_unseen(fd);
        real::__vdprintf_chk(fd, flag, format, arguments)
    }

    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        direct::note_unseen(to);
        real::sendfile(to, from, offset, count)
    }

    // glibc's name of sendfile in programs with 64-bit file offsets.
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        sendfile(to, from, offset, count)
    }

    fn splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint) -> ssize_t {
        direct::note_unseen(to);
        real::splice(from, from_offset, to, to_offset, len, flags)
    }

    fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        direct::note_unseen(fd);
        real::pwritev2(fd, parts, count, offset, flags)
    }

    // glibc's name of pwritev2 in programs with 64-bit file offsets.
    fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        pwritev2(fd, parts, count, offset, flags)
    }

    fn aio_write(request: *mut aiocb) -> c_int {
        if is_possible(request, size_of::<aiocb>()) {
            direct::note_unseen((*request).aio_fildes);
        }
        real::aio_write(request)
    }

    // glibc's name of aio_write in programs with 64-bit file offsets.
    fn aio_write64(request: *mut aiocb) -> c_int {
        aio_write(request)
    }

    fn lio_listio(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int {
        direct::note_all_shared();
        real::lio_listio(mode, requests, count, event)
    }

    // glibc's name of lio_listio in programs with 64-bit file offsets.
    fn lio_listio64(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int {
        lio_listio(mode, requests, count, event)
    }
}
