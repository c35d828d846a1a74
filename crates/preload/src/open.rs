//! Opens connections over socket pairs that this library creates. The program then does not wait for the
//! engine.
//!
//! The engine permits this for an IP address to which the program has connected before, because the engine
//! then has a route there. The reply to the earlier connect says so ([`Operation::Connect`]). The library
//! opens such connections only in programs with one thread. If another thread forked during this, the child
//! would get a copy of the engine's end of the pair. The program would then not see the end of the
//! connection.

use crate::direct::kept::opened::{self, Opened};
use crate::real;
use crate::{control, duplicates};
use inlane_offload_protocol::filler;
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::{SocketKind, SocketName};
use libc::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// The IP addresses to which the engine lets this library connect over socket pairs that the library creates.
/// One word is a hash of an address and of the control connection's inode. One atomic store replaces it, so
/// an interrupting signal handler sees no half-written entry.
static PERMITTED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// Hashes an IP address and the inode of a control connection into one number. The number is never 0. It is
/// the entry for this address in `PERMITTED`.
fn mix(ip: IpAddr, inode: u64) -> u64 {
    let bits = match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let mut value = inode;
    for word in [bits as u64, (bits >> 64) as u64, u64::from(ip.is_ipv6())] {
        // The constants of splitmix64 (Steele, Lea and Flood 2014).
        value = (value ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    }
    value | 1
}

fn place(mixed: u64) -> &'static AtomicU64 {
    &PERMITTED[(mixed >> 32) as usize % PERMITTED.len()]
}

/// Records that the engine allows this library to create pairs for connections to `ip`. Ignores unspecified
/// and IPv4-mapped addresses, because the engine replaces them.
pub fn permit(ip: IpAddr) {
    if let Some(inode) = control::kept_inode().filter(|_| !ip.is_unspecified() && ip.to_canonical() == ip) {
        let mixed = mix(ip, inode);
        place(mixed).store(mixed, Ordering::Relaxed);
    }
}

/// Begins a connection of `fd` to `remote` over a new socket pair, or over a kept one. Returns the program's end of the pair. Returns
/// `None`, without effect, if the engine must be asked first. Also returns `None` if no pair can be created,
/// for example because the process has too many descriptors.
pub fn connect(fd: RawFd, remote: SocketAddr, v6: bool) -> Option<Opened> {
    let inode = control::kept_inode()?;
    let mixed = mix(remote.ip(), inode);
    if place(mixed).load(Ordering::Relaxed) != mixed || remote.port() == 0 {
        return None;
    }
    if duplicates::of(fd).next().is_none()
        && let Some(end) = opened::open(fd, remote, v6, inode)
    {
        return Some(Opened { end, was_kept: true });
    }
    let mut ends = [-1; 2];
    // SAFETY: the call writes the two descriptors.
    if unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr())
    } != 0
    {
        return None;
    }
    let [engine, program] = ends;
    let sent = prepare(engine, program, remote, v6).is_some_and(|filled| {
        let mut message = Message::new(Operation::Open);
        (message.v6, message.remote, message.number) = (v6, Some(remote), filled);
        control::send_ends(&mut message, &ends, inode)
    });
    // SAFETY: this function created both descriptors. `program` stays open only if it is returned.
    unsafe {
        libc::close(engine);
        if !sent {
            libc::close(program);
        }
    }
    sent.then_some(Opened { end: program, was_kept: false })
}

/// Binds the program's end to the name of the socket. Fills the send buffer of the program's end, because a
/// connecting socket must not be writable. Returns the number of filler bytes.
fn prepare(engine: RawFd, program: RawFd, remote: SocketAddr, v6: bool) -> Option<c_int> {
    // The engine receives urgent data like other data. Ignore an error, because old kernels have no urgent
    // data on UNIX sockets.
    real::set_option(engine, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1);
    let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let name = SocketName {
        engine: unique()?,
        socket: next(),
        kind: if v6 { SocketKind::StreamV6 } else { SocketKind::StreamV4 },
        local: SocketAddr::new(any, 0),
        remote: Some(remote),
    };
    let address = name.to_address();
    // SAFETY: the structure outlives the call.
    if unsafe { real::bind(program, (&raw const address.raw).cast(), address.len) } != 0 {
        return None;
    }
    let set = |name, value| real::set_option(program, libc::SOL_SOCKET, name, value).then_some(()).ok_or(());
    filler::fill(set, |bytes| opened::fill_from(program, bytes)).ok().map(|filled| filled as c_int)
}

/// Returns a random number. The names of the socket pairs that this process creates contain it. `None` if the
/// kernel cannot provide one without blocking.
fn unique() -> Option<u64> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let known = NUMBER.load(Ordering::Relaxed);
    if known != 0 {
        return Some(known);
    }
    let mut number = 0u64;
    // SAFETY: the number outlives the call.
    let len = unsafe { libc::getrandom((&raw mut number).cast(), size_of_val(&number), libc::GRND_NONBLOCK) };
    if len != size_of_val(&number) as isize || number == 0 {
        return None;
    }
    NUMBER.store(number, Ordering::Relaxed);
    Some(number)
}

/// Returns a number that this process has not used before. The number contains the process ID, because a
/// forked child has the same random number as its parent.
fn next() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    u64::from(control::owner()) << 32 | COUNT.fetch_add(1, Ordering::Relaxed) & 0xffff_ffff
}
