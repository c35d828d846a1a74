//! A shared library through which [packetdrill](https://github.com/google/packetdrill) drives the engine:
//! `packetdrill --so_filename=FILE SCRIPT`.
//!
//! ```text
//! packetdrill --- socket calls ---> preloaded library --- control socket, pairs ---> engine
//!             --- netdev_send, netdev_receive: IP packets --------------------------> engine
//! ```
//!
//! The socket calls of a script pass through the preloaded library. So a script tests the library, the engine
//! and the engine's TCP together. Time is virtual and moves only while packetdrill waits. So the times in a
//! script are right on a loaded machine, too.
//!
//! `--so_flags` takes settings separated by commas:
//!
//! * `preload=FILE`: the preloaded library. By default, it is in the parent of this library's folder.
//! * `local=ADDRESS/LENGTH`: the engine's address. Give packetdrill the same address with `--local_ip`.
//! * `gateway=ADDRESS`: the engine's router. Give packetdrill the same address with `--gateway_ip`.
//! * `mtu=BYTES`: the MTU of the engine's link.
//! * `buffer=BYTES`: the size of each ring of a connection.

use inlane_offload::stepped::Stepped;
use inlane_offload::{Settings, Transport};
use inlane_offload_protocol::SOCKET_VARIABLE;
use inlane_offload_protocol::rules::Prefix;
use inlane_wire::ethernet::{self, Frame, Mac};
use libc::{
    c_char, c_int, c_long, c_longlong, c_ulong, c_void, epoll_event, iovec, msghdr, nfds_t, off64_t, pollfd,
    size_t, sockaddr, socklen_t, ssize_t, timeval,
};
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const GATEWAY_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// The nanoseconds by which a call of `gettimeofday` advances the virtual clock. packetdrill calls it
/// repeatedly while it waits. The first call after a socket call does not advance the clock.
const TICK_NS: u64 = 10_000;
/// How long `netdev_receive` waits for a packet in virtual time before it gives up, in nanoseconds.
const LONGEST_WAIT_NS: u64 = 30_000_000_000;
/// The virtual time at which a script begins, in nanoseconds. It is not 0, because packetdrill treats times
/// near 0 as unset.
const START_NS: u64 = 1_000_000_000_000;

/// The engine, the virtual clock, and the threads that are in a socket call.
struct World {
    engine: Stepped,
    now: u64,
    /// The IDs of the threads that are in a socket call.
    calling: Vec<c_int>,
}

// SAFETY: the mutex gives the engine to one thread at a time. Every thread of the process can use its
// mappings.
unsafe impl Send for World {}

static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
static PRELOAD: OnceLock<usize> = OnceLock::new();

thread_local! {
    /// The virtual time at which this thread's last socket call returned, in nanoseconds. The thread's next
    /// call of `gettimeofday` returns this time and clears it. The current time may be later, because another
    /// thread may have moved the clock.
    static RETURNED: Cell<Option<u64>> = const { Cell::new(None) };
}

fn world() -> MutexGuard<'static, World> {
    WORLD
        .get()
        .expect("packetdrill has initialised the library")
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if the thread of this process with the ID `thread` sleeps.
fn sleeps(thread: c_int) -> bool {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // In the `stat` file of a thread, its state follows its name. The name is in parentheses and may contain
    // any character.
    text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

/// Returns true if the engine has events to process, such as data that a program has sent.
fn has_events(engine: &Stepped) -> bool {
    use std::os::fd::AsRawFd;
    let mut poll = pollfd { fd: engine.events().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// Runs the engine until it is idle. Also waits until every other thread in a socket call sleeps in that
/// call.
fn settle() {
    let mut still = 0;
    while still < 2 {
        let mut world = world();
        let now = world.now;
        world.engine.settle(now, 100_000).expect("the engine's epoll works");
        let others =
            world.calling.iter().filter(|&&thread| thread != this_thread()).all(|&thread| sleeps(thread));
        still = if others && !has_events(&world.engine) { still + 1 } else { 0 };
        drop(world);
        if still == 0 {
            std::thread::yield_now();
        }
    }
}

fn this_thread() -> c_int {
    // SAFETY: has no preconditions.
    unsafe { libc::gettid() }
}

/// Moves the clock forward to `to`, in nanoseconds. Runs the engine at each deadline on the way. Stops early
/// once `until` returns true.
fn advance(to: u64, mut until: impl FnMut(&mut World) -> bool) {
    loop {
        settle();
        let mut world = world();
        if until(&mut world) || world.now >= to {
            return;
        }
        let next = world.engine.deadline().unwrap_or(to);
        world.now = next.max(world.now + TICK_NS).min(to);
    }
}

/// Runs `function`, a socket call of packetdrill. Lets the engine work before and after the call, and
/// preserves errno.
fn call<T>(function: impl FnOnce() -> T) -> T {
    settle();
    world().calling.push(this_thread());
    let result = function();
    // SAFETY: every thread has its own valid errno.
    let errno = unsafe { *libc::__errno_location() };
    let mut world = world();
    world.calling.retain(|&thread| thread != this_thread());
    RETURNED.set(Some(world.now));
    drop(world);
    settle();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// Returns the address of the preloaded library's function `name`. If that library has no such function,
/// returns the address of the C library's function.
fn symbol(name: &CStr) -> *mut c_void {
    let library = *PRELOAD.get().expect("packetdrill has initialised the library") as *mut c_void;
    // SAFETY: the library is never closed, and the name is terminated.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "no function {name:?}");
    found
}

/// Defines functions that call the preloaded library's functions of the same names with the same arguments.
macro_rules! forward {
    ($($name:ident / $wanted:literal ($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        extern "C" fn $name(_: *mut c_void, $($argument: $type),*) -> $result {
            let found = symbol($wanted);
            call(|| {
                // SAFETY: the function has this type, and packetdrill passes valid arguments.
                unsafe {
                    let function: unsafe extern "C" fn($($type),*) -> $result = std::mem::transmute(found);
                    function($($argument),*)
                }
            })
        }
    )*};
}

forward! {
    socket / c"socket"(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind / c"bind"(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    listen / c"listen"(fd: c_int, backlog: c_int) -> c_int;
    accept / c"accept"(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    connect / c"connect"(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    read / c"read"(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t;
    readv / c"readv"(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    recv / c"recv"(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom / c"recvfrom"(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
    recvmsg / c"recvmsg"(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    write / c"write"(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t;
    writev / c"writev"(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    send / c"send"(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto / c"sendto"(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t;
    sendmsg / c"sendmsg"(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fcntl / c"fcntl"(fd: c_int, command: c_int, argument: c_long) -> c_int;
    ioctl / c"ioctl"(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    close / c"close"(fd: c_int) -> c_int;
    shutdown / c"shutdown"(fd: c_int, how: c_int) -> c_int;
    getsockopt / c"getsockopt"(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt / c"setsockopt"(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    poll / c"poll"(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    epoll_create / c"epoll_create"(size: c_int) -> c_int;
    epoll_ctl / c"epoll_ctl"(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait / c"epoll_wait"(epoll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    pipe / c"pipe"(ends: *mut c_int) -> c_int;
    splice / c"splice"(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, len: size_t, flags: u32) -> ssize_t;
}

/// The functions that packetdrill calls: `struct packetdrill_interface` of its packetdrill.h, field by field.
#[repr(C)]
pub struct Interface {
    userdata: *mut c_void,
    free: extern "C" fn(*mut c_void),
    socket: extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int,
    bind: extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    listen: extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    accept: extern "C" fn(*mut c_void, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    connect: extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int,
    read: extern "C" fn(*mut c_void, c_int, *mut c_void, size_t) -> ssize_t,
    readv: extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    recv: extern "C" fn(*mut c_void, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    recvfrom: extern "C" fn(
        *mut c_void,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    recvmsg: extern "C" fn(*mut c_void, c_int, *mut msghdr, c_int) -> ssize_t,
    write: extern "C" fn(*mut c_void, c_int, *const c_void, size_t) -> ssize_t,
    writev: extern "C" fn(*mut c_void, c_int, *const iovec, c_int) -> ssize_t,
    send: extern "C" fn(*mut c_void, c_int, *const c_void, size_t, c_int) -> ssize_t,
    sendto: extern "C" fn(
        *mut c_void,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    sendmsg: extern "C" fn(*mut c_void, c_int, *const msghdr, c_int) -> ssize_t,
    /// The C function is variadic. x86-64 and aarch64 Linux pass an integer in the same way.
    fcntl: extern "C" fn(*mut c_void, c_int, c_int, c_long) -> c_int,
    /// The C function is variadic. x86-64 and aarch64 Linux pass a pointer in the same way.
    ioctl: extern "C" fn(*mut c_void, c_int, c_ulong, *mut c_void) -> c_int,
    close: extern "C" fn(*mut c_void, c_int) -> c_int,
    shutdown: extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    getsockopt: extern "C" fn(*mut c_void, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    setsockopt: extern "C" fn(*mut c_void, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    poll: extern "C" fn(*mut c_void, *mut pollfd, nfds_t, c_int) -> c_int,
    netdev_send: extern "C" fn(*mut c_void, *const c_void, size_t) -> c_int,
    netdev_receive: extern "C" fn(*mut c_void, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    usleep: extern "C" fn(*mut c_void, u32) -> c_int,
    gettimeofday: extern "C" fn(*mut c_void, *mut timeval, *mut c_void) -> c_int,
    epoll_create: extern "C" fn(*mut c_void, c_int) -> c_int,
    epoll_ctl: extern "C" fn(*mut c_void, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    epoll_wait: extern "C" fn(*mut c_void, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pipe: extern "C" fn(*mut c_void, *mut c_int) -> c_int,
    splice: extern "C" fn(*mut c_void, c_int, *mut off64_t, c_int, *mut off64_t, size_t, u32) -> ssize_t,
}

/// Hands an IP packet of the script to the engine.
extern "C" fn netdev_send(_: *mut c_void, bytes: *const c_void, len: size_t) -> c_int {
    // SAFETY: packetdrill passes the address of `len` readable bytes.
    let packet = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) };
    let mut bytes = vec![0; ethernet::HEADER + len];
    bytes[ethernet::HEADER..].copy_from_slice(packet);
    let Ok(mut frame) = Frame::new(&mut bytes[..]) else { return -1 };
    frame.set_destination(MAC);
    frame.set_source(GATEWAY_MAC);
    frame.set_ethertype(if packet.first().is_some_and(|byte| byte >> 4 == 6) {
        ethernet::IPV6
    } else {
        ethernet::IPV4
    });
    settle();
    let mut world = world();
    let now = world.now;
    world.engine.receive(now, &bytes);
    drop(world);
    settle();
    0
}

/// Waits in virtual time for the next IP packet that the engine sends, and returns the packet. If none comes
/// within 30 s of virtual time, ends the process, because otherwise packetdrill would wait forever.
extern "C" fn netdev_receive(
    _: *mut c_void,
    bytes: *mut c_void,
    len: *mut size_t,
    time: *mut c_longlong,
) -> c_int {
    let mut found = None;
    let end = world().now + LONGEST_WAIT_NS;
    advance(end, |world| {
        while let Some(frame) = world.engine.sent() {
            let ip = Frame::new(&frame[..])
                .is_ok_and(|frame| matches!(frame.ethertype(), ethernet::IPV4 | ethernet::IPV6));
            if ip {
                found = Some((frame, world.now));
                return true;
            }
        }
        false
    });
    let Some((frame, now)) = found else {
        eprintln!("the engine has sent no packet for {} s of virtual time", LONGEST_WAIT_NS / 1_000_000_000);
        std::process::exit(1);
    };
    let packet = &frame[ethernet::HEADER..];
    // SAFETY: packetdrill passes `*len` writable bytes, and valid addresses of `len` and `time`.
    unsafe {
        let count = packet.len().min(*len);
        bytes.cast::<u8>().copy_from(packet.as_ptr(), count);
        *len = count;
        *time = (now / 1000) as c_longlong;
    }
    0
}

extern "C" fn usleep(_: *mut c_void, microseconds: u32) -> c_int {
    let end = world().now + u64::from(microseconds) * 1000;
    advance(end, |_| false);
    0
}

extern "C" fn gettimeofday(_: *mut c_void, time: *mut timeval, _zone: *mut c_void) -> c_int {
    let now = RETURNED.take().unwrap_or_else(|| {
        let next = world().now + TICK_NS;
        advance(next, |_| false);
        next
    });
    let seconds = (now / 1_000_000_000) as libc::time_t;
    let microseconds = (now % 1_000_000_000 / 1000) as libc::suseconds_t;
    // SAFETY: packetdrill passes the address of a `timeval`.
    unsafe { *time = timeval { tv_sec: seconds, tv_usec: microseconds } };
    0
}

extern "C" fn free(_: *mut c_void) {
    if let Some(world) = WORLD.get() {
        let path = control_socket();
        drop(world.lock());
        let _ = std::fs::remove_file(path);
    }
}

fn control_socket() -> PathBuf {
    std::env::temp_dir().join(format!("inlane-packetdrill-{}", std::process::id()))
}

/// Returns the folder in which cargo places the preloaded library: the parent of the folder that contains
/// this example's library.
fn folder() -> Option<PathBuf> {
    // SAFETY: an all-zero `Dl_info` is valid. `dladdr` fills it with the address of a terminated path.
    let path = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(packetdrill_interface_init as *const c_void, &mut info) == 0 {
            return None;
        }
        CStr::from_ptr(info.dli_fname).to_owned()
    };
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(path.as_bytes()));
    Some(path.canonicalize().ok()?.parent()?.parent()?.to_owned())
}

/// Starts the engine with the settings in `flags`, and writes this library's functions to `interface`.
///
/// # Panics
/// If a setting is wrong, or the engine or the preloaded library cannot be loaded.
///
/// # Safety
/// `flags` is null or a terminated string, and `interface` points to packetdrill's structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, interface: *mut Interface) {
    // SAFETY: the caller passes null or a terminated string.
    let flags = (!flags.is_null()).then(|| unsafe { CStr::from_ptr(flags) });
    let flags = flags.map_or("", |flags| flags.to_str().expect("flags are text"));
    let value = |name: &str| flags.split(',').find_map(|flag| flag.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str, usual: usize| value(name).map_or(usual, |text| text.parse().expect("a number"));
    let local = value("local").unwrap_or("192.168.0.2/16");
    let gateway = value("gateway").unwrap_or("192.168.0.1").parse().expect("gateway=ADDRESS");
    let settings = Settings {
        port: "null".parse().expect("a port"),
        addresses: vec![Prefix::parse(local).expect("local=ADDRESS/LENGTH")],
        gateways: vec![gateway],
        loopback: false,
        socket: control_socket(),
        mode: 0o600,
        group: None,
        rules: String::new(),
        mtu: Some(number("mtu", 1500) as u16),
        mac: Some(MAC),
        buffer: number("buffer", 1 << 20),
        sockets_per_program: 1024,
        transport: Transport::Tcp,
        card: false,
        threads: 1,
        cores: Vec::new(),
        spin: Duration::ZERO,
        faults: Default::default(),
    };
    let mut engine =
        Stepped::open(settings).unwrap_or_else(|error| panic!("the engine does not start: {error}"));
    engine.set_neighbour(START_NS, gateway, GATEWAY_MAC);
    let known = WORLD.set(Mutex::new(World { engine, now: START_NS, calling: Vec::new() }));
    assert!(known.is_ok(), "packetdrill initialises the library once");
    // Run the engine on its own thread. A blocking socket call on this thread waits for the engine's reply.
    std::thread::spawn(|| {
        loop {
            use std::os::fd::{AsFd, AsRawFd};
            let events = world().engine.events().as_fd().try_clone_to_owned();
            let Ok(events) = events else { return };
            let mut poll = pollfd { fd: events.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the structure outlives the call.
            unsafe { libc::poll(&mut poll, 1, -1) };
            let mut world = world();
            let now = world.now;
            if world.engine.settle(now, 1000).is_err() {
                return;
            }
        }
    });
    let library = value("preload")
        .map_or_else(|| folder().unwrap_or_default().join("libinlane_preload.so"), PathBuf::from);
    // SAFETY: packetdrill has not started its threads yet, and the engine's thread reads no environment
    // variables.
    unsafe { std::env::set_var(SOCKET_VARIABLE, control_socket()) };
    let name = CString::new(library.as_os_str().as_bytes()).expect("a path has no zero byte");
    // SAFETY: the library's initialisation has no preconditions.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(
        !handle.is_null(),
        "{}: cannot be loaded; build it with 'cargo build -p inlane-preload'",
        library.display()
    );
    assert!(PRELOAD.set(handle as usize).is_ok());
    let ours = Interface {
        userdata: std::ptr::null_mut(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt,
        setsockopt,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    };
    // SAFETY: the caller passes a pointer to its interface structure, which has the layout of `ours`.
    unsafe { interface.write(ours) };
}
