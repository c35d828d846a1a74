//! Connects an offloaded TCP socket, and waits until it is connected.

use super::{Flags, blocks, name_of, names::is_opened, poll, take_error};
use crate::{control, convert, direct, errno, fail, memory, real, set_errno, unconnected};
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::{End, SocketName};
use libc::{c_int, sockaddr, socklen_t};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// Waits until the connection is established, but at most for the socket's send timeout (SO_SNDTIMEO), or
/// without limit if that is 0. Returns 0, or -1 with errno. If the library has opened the connection, and the engine does
/// not answer any more, the kernel connects the socket instead.
pub fn wait_connected(fd: RawFd) -> c_int {
    let timeout = send_limit(fd).unwrap_or(-1);
    let outcome = match name_of(fd).filter(is_opened) {
        Some(name) => match poll_opened(fd, timeout) {
            Some(outcome) => outcome,
            None => return convert::leave_engine(fd, &name),
        },
        None => poll(fd, libc::POLLOUT, timeout),
    };
    if outcome.is_err() {
        // SAFETY: has no preconditions.
        GAVE_UP.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    }
    match outcome {
        Err(libc::ETIMEDOUT) => fail(libc::EINPROGRESS),
        Err(error) => fail(error),
        Ok(_) => match take_error(fd) {
            0 if Flags::of(fd).has(Flags::CONNECTING) => fail(libc::ECONNRESET),
            0 => 0,
            error => fail(error),
        },
    }
}

/// Returns the socket's send timeout (SO_SNDTIMEO) in milliseconds, or `None` without one.
pub fn send_limit(fd: RawFd) -> Option<c_int> {
    // SAFETY: an all-zero timeval is valid, and the structures outlive the call.
    let limit = unsafe {
        let mut limit: libc::timeval = std::mem::zeroed();
        let mut len = size_of_val(&limit) as socklen_t;
        real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, (&raw mut limit).cast(), &mut len);
        limit
    };
    let milliseconds = limit.tv_sec.saturating_mul(1000).saturating_add(limit.tv_usec.div_euclid(1000));
    let unlimited = milliseconds == 0 && limit.tv_usec == 0;
    (!unlimited).then(|| milliseconds.clamp(1, c_int::MAX as i64) as c_int)
}

/// Polls a connection that the library has opened until it is established or has failed, for at most `timeout`
/// milliseconds, or without limit if that is negative. Asks the engine at times whether it still runs. Returns `None` if
/// the engine does not answer.
fn poll_opened(fd: RawFd, timeout: c_int) -> Option<Result<i16, c_int>> {
    const STEP: c_int = 1000 * control::REPLY_SECONDS as c_int;
    let start = direct::now_ns();
    let rest = || {
        let passed = c_int::try_from((direct::now_ns() - start) / 1_000_000).unwrap_or(c_int::MAX);
        if timeout < 0 { c_int::MAX } else { timeout.saturating_sub(passed).max(0) }
    };
    loop {
        let limit = rest();
        match poll(fd, libc::POLLOUT, limit.min(STEP)) {
            Err(libc::ETIMEDOUT) if limit > STEP => {}
            outcome => return Some(outcome),
        }
        let limit = rest();
        let answers = match control::ask() {
            Some(question) => {
                // Wait for the connection, too, so that the program's limit and its signals end the wait.
                let answers = poll_two(fd, question, limit.min(STEP));
                // SAFETY: the descriptor was just opened.
                unsafe { libc::close(question) };
                answers
            }
            None => Ok((0, false)),
        };
        match answers {
            Err(libc::ETIMEDOUT) if limit <= STEP => return Some(Err(libc::ETIMEDOUT)),
            Ok((0, true)) => {}
            Ok((0, false)) | Err(libc::ETIMEDOUT) => return poll(fd, libc::POLLOUT, 0).ok().map(Ok),
            Ok((events, _)) => return Some(Ok(events)),
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Waits until `fd` is writable or `question` readable, for at most `timeout` milliseconds. Returns the events of `fd`,
/// and whether `question` has events.
fn poll_two(fd: RawFd, question: RawFd, timeout: c_int) -> Result<(i16, bool), c_int> {
    let mut polls = [(fd, libc::POLLOUT), (question, libc::POLLIN)].map(|(fd, events)| libc::pollfd {
        fd,
        events,
        revents: 0,
    });
    // SAFETY: the structures outlive the call.
    match unsafe { real::poll(polls.as_mut_ptr(), 2, timeout) } {
        -1 => Err(errno()),
        0 => Err(libc::ETIMEDOUT),
        _ => Ok((polls[0].revents, polls[1].revents & libc::POLLIN != 0)),
    }
}

/// Duplicates of a descriptor are looked for below this number.
const MOST_CHECKED: RawFd = 1024;

/// The process in which a wait for a connection that the library has opened has ended early, or 0. The engine may not
/// have received the request for the connection yet.
static GAVE_UP: AtomicI32 = AtomicI32::new(0);

/// Withdraws the connection of `fd`, which the program is about to close, if the program has given up waiting for it. The
/// engine would otherwise open it later, if it has stopped meanwhile.
#[inline]
pub fn note_closing(fd: RawFd) {
    if GAVE_UP.load(Ordering::Relaxed) != 0 {
        withdraw(fd);
    }
}

#[cold]
fn withdraw(fd: RawFd) {
    // A child of fork or vfork closes only its own descriptor.
    // SAFETY: has no preconditions.
    let own = GAVE_UP.load(Ordering::Relaxed) == unsafe { libc::getpid() };
    if !own || name_of(fd).filter(is_opened).is_none() || !Flags::of(fd).has(Flags::CONNECTING) {
        return;
    }
    let identity = direct::identity(fd);
    let shared = (0..MOST_CHECKED).any(|other| other != fd && direct::identity(other) == identity);
    if !shared {
        let before = errno();
        // SAFETY: has no preconditions.
        unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
        set_errno(before);
    }
}

/// Returns true if a connection attempt of `fd` has failed and the program has read the error. As in Linux, the program
/// may then connect the socket again.
pub fn may_connect_again(fd: RawFd, name: &SocketName) -> bool {
    let flags = Flags::of(fd);
    !name.kind.is_bound()
        && flags.has(Flags::CONNECTING)
        && flags.has(Flags::ERROR_READ)
        && matches!(End::of(fd, real::ASKING), End::Failed(_))
}

/// Implements connect(2) for a socket that is already offloaded. Blocks until the connection is established,
/// unless the descriptor is non-blocking. Returns 0, or -1 with errno set.
pub fn connect(fd: RawFd, name: &SocketName, remote: SocketAddr) -> c_int {
    if !name.kind.is_bound() || Flags::of(fd).has(Flags::CONNECTING) {
        return match poll(fd, libc::POLLOUT, 0) {
            Err(_) if Flags::of(fd).has(Flags::CONNECTING) && blocks(fd) => wait_connected(fd),
            Err(_) if Flags::of(fd).has(Flags::CONNECTING) => fail(libc::EALREADY),
            Ok(_) if Flags::of(fd).has(Flags::CONNECTING) => match take_error(fd) {
                0 => fail(libc::ECONNABORTED),
                error => fail(error),
            },
            _ => fail(libc::EISCONN),
        };
    }
    let mut message = Message::new(Operation::Connect);
    message.remote = Some(remote);
    message.v6 = name.kind.is_v6();
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status == 0 => match blocks(fd) {
            true => wait_connected(fd),
            false => fail(libc::EINPROGRESS),
        },
        Some((reply, _)) if reply.status > 0 => fail(reply.status),
        _ => fail(libc::ENETUNREACH),
    }
}

/// Returns the errno for a connect of the offloaded socket `fd` to an address that is not an internet
/// address.
///
/// # Safety
/// As for [`memory::read_bytes`].
pub unsafe fn reason_of_refusal(
    fd: RawFd,
    name: &SocketName,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    let lengths = size_of::<libc::sa_family_t>()..=size_of::<libc::sockaddr_storage>();
    // SAFETY: the caller's promise.
    let family = unsafe { memory::read(address.cast::<libc::sa_family_t>()) };
    match name.kind {
        _ if !lengths.contains(&(len as usize)) => libc::EINVAL,
        _ if family.is_none() => libc::EFAULT,
        _ if name.kind.is_datagram() => libc::EAFNOSUPPORT,
        _ if may_connect_again(fd, name) => libc::EAFNOSUPPORT,
        _ if Flags::of(fd).has(Flags::CONNECTING) => libc::EALREADY,
        _ if unconnected::is_unconnected(fd) && !unconnected::listens(fd) => libc::EAFNOSUPPORT,
        _ => libc::EISCONN,
    }
}
