//! Checks the options of sockets, and copies those of a socket when another one replaces it.

use crate::{control, errno, real, set_errno};
use inlane_offload_protocol::message::{Message, NumberOption, Operation, read_options, write_options};
use inlane_offload_protocol::name::{End, SocketName};
use libc::{c_int, c_void, socklen_t};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// The options that the engine must know when it creates a socket: level, name, and default value of a kernel
/// socket. An option is sent to the engine only if its value differs from the default.
const STREAM_OPTIONS: [NumberOption; 24] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, 0),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 0),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, 0),
    (libc::IPPROTO_TCP, libc::TCP_CORK, 0),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 7200),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 75),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 9),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 536),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2, 60),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 0),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT, 6),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 0),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 0),
    (libc::IPPROTO_IP, libc::IP_TOS, 0),
    (libc::IPPROTO_IP, libc::IP_TTL, 64),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_WANT),
    (libc::IPPROTO_IP, libc::IP_RECVERR, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 64),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 0),
];

/// Linux's socket option SO_BUF_LOCK. Bit 0 of its value is set if the program has set SO_SNDBUF, and bit 1
/// if it has set SO_RCVBUF. Linux before 5.14 does not have this option. Without it, the engine does not get
/// buffer sizes that a program sets before bind or connect.
const BUFFERS_SET: c_int = 72;

/// The options that the engine must know when it creates a UDP socket. Each entry has the level, the name,
/// and the value that a new socket of the kernel has. If the socket has another value, the library sends the
/// option to the engine.
const DATAGRAM_OPTIONS: [NumberOption; 13] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, 0),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT, 0),
    (libc::IPPROTO_IP, libc::IP_TOS, 0),
    (libc::IPPROTO_IP, libc::IP_TTL, 64),
    (libc::IPPROTO_IP, libc::IP_PKTINFO, 0),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, 0),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, 64),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 0),
];

/// The most options that are sent with a request.
const MOST_OPTIONS: usize = STREAM_OPTIONS.len() + 3;

/// Linux's socket option SO_NOFCS, which has no effect on TCP and UDP sockets. The library uses it as a mark:
/// it sets SO_NOFCS if the program sets an option of a socket that has no port yet. When the program connects
/// a TCP socket, the library reads the options only if the socket is marked.
pub const MARK: c_int = 43;

/// Records that the program has chosen the port of `fd`, which it has just bound. `fd` is the program's end of a pair, on which [`MARK`]
/// has no other meaning.
pub fn note_chosen_port(fd: RawFd) {
    real::set_option(fd, libc::SOL_SOCKET, MARK, 1);
}

/// Returns true if the program has chosen the port of the offloaded socket `fd`.
pub fn has_chosen_port(fd: RawFd) -> bool {
    real::option(fd, libc::SOL_SOCKET, MARK) == Some(1)
}

/// True if the program has set a time limit of any socket. Accepted connections get the time limits of their listener only
/// then, because asking for them costs two system calls.
static TIMEOUTS_USED: AtomicBool = AtomicBool::new(false);

/// Records that the program sets the option `name` of `level`. Call this for each option of a TCP socket.
#[inline]
pub fn note(level: c_int, name: c_int) {
    if level == libc::SOL_SOCKET && matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) {
        TIMEOUTS_USED.store(true, Ordering::Relaxed);
    }
}

/// Returns true if the program has set a time limit of any socket.
pub fn timeouts_are_used() -> bool {
    TIMEOUTS_USED.load(Ordering::Relaxed)
}

/// Sets an option of the kernel's socket `fd`, which has no port yet. On success, also sets [`MARK`]
/// on the socket. It records that the program has set an option. Returns the result of setsockopt(2) for the
/// program's option.
///
/// # Safety
/// `value` is null or points to `len` readable bytes.
pub unsafe fn set(fd: RawFd, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    let code = unsafe { real::setsockopt(fd, level, name, value, len) };
    let before = errno();
    if code == 0 {
        note(level, name);
        real::set_option(fd, libc::SOL_SOCKET, MARK, 1);
    }
    set_errno(before);
    code
}

/// Adds those options of the kernel's socket `fd` to a request that the engine must know.
pub fn add(message: &mut Message, fd: RawFd) {
    let options = if message.datagrams { &DATAGRAM_OPTIONS[..] } else { &STREAM_OPTIONS[..] };
    let mut found = [(0, 0, 0); MOST_OPTIONS];
    let mut count = 0;
    for &(level, name, usual) in options {
        if level == libc::IPPROTO_IPV6 && !message.v6 {
            continue;
        }
        if let Some(value) = real::option(fd, level, name).filter(|&value| value != usual) {
            found[count] = (level, name, value);
            count += 1;
        }
    }
    for option in buffers(fd) {
        found[count] = option;
        count += 1;
    }
    // SAFETY: an all-zero structure is valid, and the structures outlive the call.
    unsafe {
        let mut linger: libc::linger = std::mem::zeroed();
        let mut len = size_of_val(&linger) as socklen_t;
        real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut linger).cast(), &mut len);
        if linger.l_onoff != 0 {
            found[count] = (libc::SOL_SOCKET, libc::SO_LINGER, linger.l_linger);
            count += 1;
        }
    }
    write_options(message, &found[..count]);
}

/// Copies options to the kernel socket `new`: those that the program set on the offloaded TCP socket `fd`.
/// Their values come from the engine. After a failed connection, they come from the name of the engine's end
/// of the socket pair.
pub fn keep(fd: RawFd, new: RawFd) {
    let set = |option| set_kept(new, option);
    match control::addresses(fd) {
        Some(reply) => read_options(reply.value()).for_each(set),
        // After a failed connection, the engine no longer has the socket. Read the options from the name of
        // the engine's end of the socket pair, which contains them.
        None => End::for_options(fd, real::ASKING, set),
    }
}

/// Sets an option of the kernel's socket `new` to the value that the engine keeps.
fn set_kept(new: RawFd, (level, name, value): NumberOption) {
    // The kernel doubles the sizes of buffers, and the engine keeps the doubled sizes.
    let doubled = level == libc::SOL_SOCKET && matches!(name, libc::SO_SNDBUF | libc::SO_RCVBUF);
    real::set_option(new, level, name, if doubled { value / 2 } else { value });
}

/// Adds the options of the listener `fd`, whose engine has ended, to a request. They come from the name of the engine's end, or
/// from that of the listener's stand-in. Returns `None` if the process has no free descriptor.
pub fn add_those_of_listener(message: &mut Message, fd: RawFd) -> Option<()> {
    let family = if message.v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: has no preconditions.
    let model = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if model < 0 {
        return None;
    }
    End::for_options(fd, real::ASKING, |option| set_kept(model, option));
    copy(fd, model);
    add(message, model);
    // SAFETY: the descriptor is this function's.
    unsafe { libc::close(model) };
    Some(())
}

/// Copies the options of the offloaded UDP socket `fd` to the kernel socket `new`.
pub fn keep_of_datagrams(fd: RawFd, new: RawFd, v6: bool) {
    for (level, name, usual) in DATAGRAM_OPTIONS {
        if level == libc::IPPROTO_IPV6 && !v6 {
            continue;
        }
        let mut message = Message::new(Operation::GetOption);
        (message.level, message.name) = (level, name);
        let reply = control::request(&mut message, fd).filter(|(reply, _)| reply.status == 0);
        let value = reply.and_then(|(reply, _)| Some(c_int::from_ne_bytes(*reply.value().first_chunk()?)));
        if let Some(value) = value.filter(|&value| value != usual) {
            real::set_option(new, level, name, value);
        }
    }
    buffers(fd).for_each(|option| set_kept(new, option));
}

/// Returns those of SO_SNDBUF and SO_RCVBUF that the program has set on `fd`, with their values.
fn buffers(fd: RawFd) -> impl Iterator<Item = NumberOption> {
    let set = real::option(fd, libc::SOL_SOCKET, BUFFERS_SET).unwrap_or(0);
    let names =
        [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)].into_iter().filter(move |(bit, _)| set & bit != 0);
    names.filter_map(move |(_, name)| {
        Some((libc::SOL_SOCKET, name, real::option(fd, libc::SOL_SOCKET, name)?))
    })
}

/// Returns the value that an option has on a new TCP socket, or `None` if this module does not know the option.
pub fn usual(level: c_int, name: c_int) -> Option<c_int> {
    STREAM_OPTIONS.iter().find(|option| (option.0, option.1) == (level, name)).map(|option| option.2)
}

/// Copies from `fd` to `new` the socket options that the kernel can also store in a UNIX socket.
pub fn copy(fd: RawFd, new: RawFd) {
    copy_timeouts(fd, new);
    copy_values(
        fd,
        new,
        [libc::SO_KEEPALIVE, libc::SO_LINGER, libc::SO_REUSEADDR, libc::SO_OOBINLINE, libc::SO_RCVLOWAT],
    );
}

/// Copies the time limits of receives and sends from `fd` to `new`.
pub fn copy_timeouts(fd: RawFd, new: RawFd) {
    copy_values(fd, new, [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO]);
}

fn copy_values<const N: usize>(fd: RawFd, new: RawFd, names: [c_int; N]) {
    for name in names {
        let mut value = [0u64; 2];
        let mut len = size_of_val(&value) as socklen_t;
        // SAFETY: the value outlives the calls, and `len` is what the kernel wrote.
        unsafe {
            if real::getsockopt(fd, libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &mut len) == 0
                && value != [0, 0]
            {
                real::setsockopt(new, libc::SOL_SOCKET, name, value.as_ptr().cast(), len);
            }
        }
    }
}

/// Returns true if `socket` has options of `level`. If it has none, getsockopt(2) must fail with EOPNOTSUPP.
pub fn has_level(socket: &SocketName, level: c_int) -> bool {
    let own = if socket.kind.is_datagram() { libc::IPPROTO_UDP } else { libc::IPPROTO_TCP };
    socket.kind.is_v6() || matches!(level, libc::SOL_SOCKET | libc::IPPROTO_IP) || level == own
}

/// Returns true if Linux accepts the value of an option of TCP, IPv4 or IPv6. `bound` is true if the socket was bound before it
/// was connected.
pub fn is_in_range(level: c_int, name: c_int, value: &[u8], bound: bool) -> bool {
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        return value.split(|&byte| byte == 0).next() == Some(b"cubic");
    }
    let number = match value {
        [a, b, c, d, ..] => c_int::from_ne_bytes([*a, *b, *c, *d]),
        [a, ..] => c_int::from(*a),
        [] => return true,
    };
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL) => (1..=32767).contains(&number),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_SYNCNT) => (1..=127).contains(&number),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => number >= 0,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => number == 0 || (88..=32767).contains(&number),
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => number != 0 || bound,
        (libc::IPPROTO_IP, libc::IP_TTL) => number == -1 || (1..=255).contains(&number),
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) | (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => {
            (0..=5).contains(&number)
        }
        (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL)
        | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS | libc::IPV6_MULTICAST_HOPS) => {
            (-1..=255).contains(&number)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::is_in_range;

    #[test]
    fn values_outside_of_linux_ranges_are_refused() {
        let accepts = |level, name, value: i32| is_in_range(level, name, &value.to_ne_bytes(), false);
        let (tcp, ip, ip6) = (libc::IPPROTO_TCP, libc::IPPROTO_IP, libc::IPPROTO_IPV6);
        for (level, name, good, bad) in [
            (tcp, libc::TCP_KEEPIDLE, vec![1, 32767], vec![i32::MIN, -1, 0, 32768]),
            (tcp, libc::TCP_KEEPINTVL, vec![1, 32767], vec![0, 32768]),
            (tcp, libc::TCP_KEEPCNT, vec![1, 127], vec![0, 128]),
            (tcp, libc::TCP_USER_TIMEOUT, vec![0, i32::MAX], vec![-1]),
            (tcp, libc::TCP_MAXSEG, vec![0, 88, 32767], vec![-1, 1, 87, 32768]),
            (tcp, libc::TCP_NODELAY, vec![-1, 0, 1, 7], vec![]),
            (ip, libc::IP_TTL, vec![-1, 1, 255], vec![-2, 0, 256]),
            (ip, libc::IP_MTU_DISCOVER, vec![0, 5], vec![-1, 6]),
            (ip6, libc::IPV6_MTU_DISCOVER, vec![0, 5], vec![-1, 6]),
            (ip, libc::IP_MULTICAST_TTL, vec![-1, 0, 255], vec![-2, 256]),
            (ip6, libc::IPV6_UNICAST_HOPS, vec![-1, 0, 255], vec![-2, 256]),
            (ip6, libc::IPV6_MULTICAST_HOPS, vec![-1, 0, 255], vec![-2, 256]),
        ] {
            for value in good {
                assert!(accepts(level, name, value), "{level} {name} {value}");
            }
            for value in bad {
                assert!(!accepts(level, name, value), "{level} {name} {value}");
            }
        }
        assert!(is_in_range(ip, libc::IP_TTL, &[64], false) && !is_in_range(ip, libc::IP_TTL, &[0], false));
        let congestion = |name: &[u8]| is_in_range(tcp, libc::TCP_CONGESTION, name, false);
        assert!(
            congestion(b"cubic")
                && congestion(b"cubic\0rest")
                && !congestion(b"cubi")
                && !congestion(b"reno")
        );
    }
}
