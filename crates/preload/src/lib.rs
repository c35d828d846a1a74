//! The library that `inlane offload run` preloads into programs. It replaces some of the C library's socket
//! functions, and hands TCP and UDP sockets to the offload engine.
//!
//! When the program binds or connects a socket, the library asks the engine. If the engine takes the socket,
//! its reply carries one end of a pair of UNIX sockets. This end replaces the kernel's socket under the same
//! descriptor. From then on, bytes flow through the socket pair. So reads, writes, sendfile, poll, select,
//! epoll, dup, fork, exec and passing to other processes are the kernel's own and need nothing from this
//! library:
//!
//! ```text
//! program:  connect(5) ---> library --- request ---> engine           5 was a kernel TCP socket
//!                              | <---- descriptor -----+              5 is now the program's end of a pair
//!                              +-- dup3(descriptor, 5)
//! program:  write(5) ----------------- pair ---------> engine ---> TCP segments
//! ```
//!
//! The library keeps no table of sockets, because calls that it does not intercept would make a table
//! outdated. It learns about a socket from the names of the pair's ends ([`inlane_offload_protocol::name`])
//! and from `flags::Flags`. The table of slots in shared memory (`slots`) is only a hint that is checked at
//! each use.
//!
//! The library does not allocate and never blocks on a lock, because programs call it in signal handlers and
//! after vfork. If a socket cannot be handed over, the kernel keeps it. The library never ends the program.

mod connect;
mod control;
mod convert;
mod datagram;
mod descriptor;
mod direct;
mod duplicates;
mod epoll;
mod exec;
mod flags;
mod hint;
mod hooks;
#[cfg(not(test))]
mod imports;
mod memory;
mod open;
mod options;
mod parked;
mod passed;
mod polling;
mod real;
mod receive;
mod send;
mod settings;
mod signals;
mod slots;
mod socket;
mod time;
mod unconnected;
mod wait;

/// Runs before the program's `main`.
#[cfg_attr(not(test), used, unsafe(link_section = ".init_array"))]
#[cfg_attr(test, allow(dead_code, reason = "the program of the tests is not offloaded"))]
static INITIALISE: extern "C" fn() = initialise;

extern "C" fn initialise() {
    real::find_c_library();
    settings::read();
    control::forget_after_fork();
    socket::forget_given_up_at_fork();
    direct::watch_forks();
    datagram::find_inherited();
}

/// Returns the calling thread's errno.
fn errno() -> i32 {
    // SAFETY: the location is valid for the thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
fn set_errno(value: i32) {
    // SAFETY: the location is valid for the thread.
    unsafe { *libc::__errno_location() = value }
}

/// Sets errno and returns -1, as the C library's functions do when they fail.
fn fail<T: From<i8>>(value: i32) -> T {
    set_errno(value);
    T::from(-1)
}
