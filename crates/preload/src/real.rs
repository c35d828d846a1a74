//! Calls the C library's own versions of the functions for which the preloaded library has replacements.

use inlane_offload_protocol::name::Asking;
use libc::{
    aiocb, c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr,
    nfds_t, off_t, pid_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Returns the address of the function `name` in the libraries that were loaded after this one (RTLD_NEXT).
/// It usually is in the C library. Returns null if no library has the function.
pub fn look_up(name: &CStr, cache: &AtomicPtr<c_void>) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a terminated string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    cache.store(found, Ordering::Relaxed);
    found
}

/// The result of a function that the C library lacks: the given value, or -1.
macro_rules! missing {
    () => {
        crate::fail(libc::ENOSYS)
    };
    ($value:expr) => {{
        crate::set_errno(libc::ENOSYS);
        $value
    }};
}

/// Defines the functions. A value behind `=` is the result if the C library lacks the function. Without a value, the
/// function returns -1 then.
macro_rules! real {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty $(= $missing:expr)?;)*) => {
        /// The functions that were found, each under its name.
        #[allow(non_upper_case_globals, reason = "the names of functions")]
        mod found {
            use super::{AtomicPtr, c_void};
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        /// Looks up all functions. A later look-up in a signal handler could block, because dlsym takes a lock.
        fn find_all() {
            $(
                // musl lacks some functions.
                let name = concat!(stringify!($name), "\0").as_bytes();
                if let Ok(name) = CStr::from_bytes_with_nul(name) {
                    let _ = look_up(name, &found::$name);
                }
            )*
        }

        $(
        #[doc = concat!("Calls the C library's `", stringify!($name), "`. Fails with ENOSYS if the C library lacks it.")]
        ///
        /// # Safety
        /// As for the C library's function.
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("the string has one zero byte, at its end"),
            };
            let found = look_up(NAME, &found::$name);
            if found.is_null() {
                return missing!($($missing)?);
            }
            // SAFETY: `found` is the C library's function of this name, which has this type. The caller
            // upholds the function's contract.
            unsafe {
                let function: unsafe extern "C-unwind" fn($($type),*) -> $result = std::mem::transmute(found);
                function($($argument),*)
            }
        }
        )*
    };
}

real! {
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    close(fd: c_int) -> c_int;
    chroot(path: *const c_char) -> c_int;
    fclose(file: *mut c_void) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, file: *mut c_void) -> isize = 0;
    // Newer versions of musl lack freopen64. File offsets of musl always have 64 bits.
    // SAFETY: the program's arguments.
    freopen64(path: *const c_char, mode: *const c_char, file: *mut c_void) -> isize = unsafe { freopen(path, mode, file) };
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    epoll_wait(epoll: c_int, events: *mut epoll_event, room: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epoll: c_int, events: *mut epoll_event, room: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(descriptors: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawn(process: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int = libc::ENOSYS;
    posix_spawnp(process: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int = libc::ENOSYS;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> isize = 0;
    fdopen(fd: c_int, mode: *const c_char) -> isize = 0;
    vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint) -> ssize_t;
    pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    aio_write(request: *mut aiocb) -> c_int;
    lio_listio(mode: c_int, requests: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int;
    syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
}

/// True if the program's C library is musl, false if it is glibc.
static MUSL: AtomicBool = AtomicBool::new(false);

/// Finds out which C library the program uses, and finds its functions. Called before the program's `main`, because a
/// failed look-up allocates memory, and each look-up changes what dlerror(3) returns.
pub fn find_c_library() {
    find_all();
    let version = look_up(c"gnu_get_libc_version", &AtomicPtr::new(std::ptr::null_mut()));
    MUSL.store(version.is_null(), Ordering::Relaxed);
    // Clear the error of the look-up if it failed, so that the program does not read this error.
    // SAFETY: the call has no preconditions.
    unsafe { libc::dlerror() };
}

/// Returns true if the program's C library is musl.
pub fn is_musl() -> bool {
    MUSL.load(Ordering::Relaxed)
}

/// Returns the length that the program has stored in `field`: the `msg_iovlen`, `msg_controllen` or
/// `cmsg_len` of a structure. In musl these lengths have 32 bits, and the upper half of the field is padding
/// with any value.
pub fn length(field: usize) -> usize {
    if is_musl() { field as u32 as usize } else { field }
}

/// Registers functions for every later fork: `prepare` is called before it, and `child` in the new process after it.
pub fn at_fork(prepare: Option<extern "C" fn()>, child: Option<extern "C" fn()>) {
    type Register = unsafe extern "C" fn(
        prepare: Option<extern "C" fn()>,
        parent: *const c_void,
        child: Option<extern "C" fn()>,
        library: *const c_void,
    ) -> c_int;
    let nothing = AtomicPtr::new(std::ptr::null_mut());
    // glibc links pthread_atfork statically into each program. It calls __register_atfork of libc.so.6, so
    // look up that function.
    let name = if is_musl() { c"pthread_atfork" } else { c"__register_atfork" };
    let register = look_up(name, &nothing);
    if !register.is_null() {
        // SAFETY: glibc's function has this type, and accepts null for a library that is never unloaded. musl's
        // function has no argument `library`, and x86-64 and AArch64 allow further arguments.
        unsafe {
            let register: Register = std::mem::transmute(register);
            register(prepare, std::ptr::null(), child, std::ptr::null());
        }
    }
}

/// Ends the program with glibc's message about a buffer overflow. `__poll_chk` and `__ppoll_chk` call this.
/// Only programs built for glibc call those two.
pub fn fail_check() -> ! {
    static CACHE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let found = look_up(c"__chk_fail", &CACHE);
    // SAFETY: glibc's function has this type and no preconditions.
    unsafe {
        if !found.is_null() {
            let fail: unsafe extern "C" fn() -> ! = std::mem::transmute(found);
            fail()
        }
        libc::abort()
    }
}

/// Returns true if the process has only one thread, as reported by the C library. Always returns false with
/// musl, because musl does not report this.
pub fn is_single_threaded() -> bool {
    if is_musl() {
        return false;
    }
    static CACHE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let variable = look_up(c"__libc_single_threaded", &CACHE);
    // SAFETY: glibc defines this variable as one byte, which stays mapped.
    !variable.is_null() && unsafe { variable.cast::<c_char>().read_volatile() } != 0
}

/// Asks the kernel for the names of sockets. Calls the functions of the C library, not the functions by which
/// this library replaces them.
pub const ASKING: Asking = Asking { own: ask_own, peer: ask_peer };

unsafe extern "C" fn ask_own(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { getsockname(fd, address, len) }
}

unsafe extern "C" fn ask_peer(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { getpeername(fd, address, len) }
}

/// Returns the value of the numeric option `name` of the kernel's socket `fd`. Returns `None` if the socket
/// does not have this option.
pub fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len): (c_int, socklen_t) = (0, 4);
    // SAFETY: value and length outlive the call.
    let code = unsafe { getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
    (code == 0).then_some(value)
}

/// Sets a number option of the kernel's socket `fd`.
pub fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) -> bool {
    // SAFETY: the value lives through the call.
    unsafe { setsockopt(fd, level, name, (&raw const value).cast(), 4) == 0 }
}
