//! The functions that replace functions of the C library in the program, such as `connect` and `sendto`.
//!
//! Each function is written so that it costs least for sockets that are not offloaded. For example, `sendto`
//! calls the C library first. It checks for an offloaded socket only if that call fails.

/// The most buffers that one call sends or receives through shared memory. Calls with more buffers use the kernel.
const MOST_PARTS: usize = 64;

/// Defines replacements of the C library's functions, and a list of their names.
macro_rules! hooks {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {
        /// The names of this module's hooks.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(
        #[doc = concat!("Replaces the C library's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the C library's function.
        // "C-unwind", because pthread_cancel of glibc unwinds a waiting thread through this function.
        // SAFETY: the name is meant to replace the C library's. A test must call the C library.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the program passes valid arguments for the C library's function.
            #[allow(unused_unsafe, reason = "some bodies call no unsafe function")]
            unsafe { $body }
        }
        )*
    };
}

/// Lists all hooks, by the module that defines them. A hook that is missing in the list or in its module does not compile.
macro_rules! modules {
    ($($module:ident: $($name:ident)*;)*) => {
        $(mod $module;)*

        const _: () = {
            $(
            $(let _ = $module::$name;)*
            assert!($module::NAMES.len() == [$(stringify!($name)),*].len(), "a hook is missing in the list");
            )*
        };
    };
}

modules! {
    sockets: bind connect listen accept accept4 getsockname getpeername getsockopt setsockopt shutdown;
    receives: read __read_chk readv recv __recv_chk recvfrom __recvfrom_chk recvmsg recvmmsg;
    sends: write writev send sendto sendmsg sendmmsg;
    descriptors: ioctl close close_range closefrom fclose freopen freopen64 dup dup2 dup3 fcntl fcntl64;
    waits: epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
        poll __poll_chk ppoll __ppoll_chk select pselect;
    programs: execv execve execvp execvpe fexecve execveat posix_spawn posix_spawnp system popen;
    streams: fdopen vdprintf __vdprintf_chk sendfile sendfile64 splice pwritev2 pwritev64v2 aio_write aio_write64 lio_listio
        lio_listio64;
    prints: dprintf __dprintf_chk;
    lists: execl execlp execle;
    roots: chroot;
    syscall: syscall;
}
