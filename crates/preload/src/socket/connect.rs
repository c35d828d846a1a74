//! Connects an offloaded TCP socket, and waits until it is connected.

use super::{names::is_opened, poll, take_error};
use crate::descriptor::{blocks, name_of, send_limit};
use crate::direct::kept;
use crate::flags::Flags;
use crate::hint::Hint;
use crate::time::now_ns;
use crate::{control, convert, descriptor, errno, fail, memory, real, set_errno, signals, unconnected};
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::{End, SocketName};
use libc::{c_int, sockaddr, socklen_t};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// Returns true if a poll has found that a connecting socket is writable, and not that its connection has ended.
fn is_established(events: Result<i16, c_int>) -> bool {
    events.is_ok_and(|events| events & (libc::POLLHUP | libc::POLLERR) == 0)
}

/// The time in milliseconds in which most connections are established.
const SOON: c_int = 1;

/// Waits until the connection is established, but at most for the socket's send timeout (SO_SNDTIMEO), or
/// without limit if that is 0. Returns 0, or -1 with errno. If the library has opened the connection, and the engine does
/// not answer any more, the kernel connects the socket instead. A wait without limit continues after the handler of a
/// signal if [`signals::restarts`] returns true, as in Linux.
pub fn wait_connected(fd: RawFd) -> c_int {
    // Most connections are established at once, so the kernel is asked about the socket only later.
    let first = poll(fd, libc::POLLOUT, SOON);
    if is_established(first) {
        IN_PROGRESS.set(fd, false);
        return 0;
    }
    let timeout = send_limit(fd).unwrap_or(-1);
    let opened = name_of(fd).filter(is_opened);
    let outcome = match &opened {
        _ if first.is_ok() || first == Err(libc::EINTR) && !(timeout < 0 && signals::restarts()) => first,
        Some(name) => match poll_opened(fd, timeout) {
            Some(outcome) => outcome,
            None => return convert::leave_engine(fd, name),
        },
        None => restarting(timeout < 0, timeout, |rest| poll(fd, libc::POLLOUT, rest)),
    };
    if outcome.is_err() && opened.is_some() {
        note_given_up(fd);
    }
    match outcome {
        Err(libc::ETIMEDOUT) => leave_in_progress(fd),
        Err(libc::EINTR) => {
            IN_PROGRESS.set(fd, true);
            fail(libc::EINTR)
        }
        Err(error) => fail(error),
        Ok(_) if is_established(outcome) => {
            IN_PROGRESS.set(fd, false);
            0
        }
        Ok(_) => match take_error(fd) {
            0 if Flags::of(fd).has(Flags::CONNECTING) => fail(libc::ECONNRESET),
            0 => {
                IN_PROGRESS.set(fd, false);
                0
            }
            error => {
                IN_PROGRESS.set(fd, false);
                fail(error)
            }
        },
    }
}

/// Polls a connection that the library has opened until it is established or has failed, for at most `timeout`
/// milliseconds, or without limit if that is negative. Asks the engine at times whether it still runs. Returns `None` if
/// the engine does not answer.
fn poll_opened(fd: RawFd, timeout: c_int) -> Option<Result<i16, c_int>> {
    const STEP: c_int = 1000 * control::REPLY_SECONDS as c_int;
    let restarts = timeout < 0;
    let start = now_ns();
    let rest = || if restarts { c_int::MAX } else { remaining(timeout, start) };
    loop {
        let limit = rest();
        match restarting(restarts, limit.min(STEP), |rest| poll(fd, libc::POLLOUT, rest)) {
            Err(libc::ETIMEDOUT) if limit > STEP => {}
            outcome => return Some(outcome),
        }
        let limit = rest();
        // SAFETY: the descriptor was just opened, and no other code closes it.
        let question = control::ask().map(|question| unsafe { OwnedFd::from_raw_fd(question) });
        let answers = match question {
            Some(question) => {
                // Wait for the connection, too, so that the program's limit and its signals end the wait.
                restarting(restarts, limit.min(STEP), |rest| poll_two(fd, question.as_raw_fd(), rest))
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

/// Returns the rest of `timeout` milliseconds that began at the time `start`. A negative timeout has no limit, and is
/// returned unchanged.
fn remaining(timeout: c_int, start: u64) -> c_int {
    let passed = c_int::try_from((now_ns() - start) / 1_000_000).unwrap_or(c_int::MAX);
    if timeout < 0 { timeout } else { timeout.saturating_sub(passed).max(0) }
}

/// Calls `wait` with `timeout` in milliseconds. If `restarts` is set and a signal has interrupted `wait`, calls it again
/// with the rest of the timeout if [`signals::restarts`] returns true. Returns the last result.
fn restarting<T>(
    restarts: bool,
    timeout: c_int,
    mut wait: impl FnMut(c_int) -> Result<T, c_int>,
) -> Result<T, c_int> {
    let start = if restarts { now_ns() } else { 0 };
    let mut outcome = wait(timeout);
    while restarts && matches!(outcome, Err(libc::EINTR)) && signals::restarts() {
        outcome = wait(remaining(timeout, start));
    }
    outcome
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

/// The descriptors of connections that the library has opened, and for which the program has stopped waiting. The engine
/// may not have received the requests for these connections yet.
static GIVEN_UP: Hint = Hint::new();
/// The process that has set hints in `GIVEN_UP`. 0 if none is set. A child of vfork finds the hints of its parent.
static GIVER: AtomicI32 = AtomicI32::new(0);

#[cold]
fn note_given_up(fd: RawFd) {
    // SAFETY: has no preconditions.
    GIVER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    GIVEN_UP.set(fd, true);
}

/// The descriptors on which a connect has failed with EINPROGRESS. In Linux, one further connect returns 0 once the
/// connection is established, and later ones fail with EISCONN.
static IN_PROGRESS: Hint = Hint::new();

/// Fails a connect with EINPROGRESS.
pub fn leave_in_progress(fd: RawFd) -> c_int {
    IN_PROGRESS.set(fd, true);
    fail(libc::EINPROGRESS)
}

/// Records that `fd` has a new connection, on which no connect was left in progress.
#[inline]
pub fn note_connecting(fd: RawFd) {
    if IN_PROGRESS.has(fd) {
        IN_PROGRESS.set(fd, false);
    }
    if GIVEN_UP.has(fd) {
        GIVEN_UP.set(fd, false);
    }
}

/// Makes [`note_closing`] do nothing for the connections of this process before each fork. Both processes can use
/// them afterwards, so neither may end them for the other.
pub fn forget_given_up_at_fork() {
    extern "C" fn forget() {
        if may_have_given_up() {
            GIVEN_UP.iter().for_each(|fd| GIVEN_UP.set(fd, false));
            GIVER.store(0, Ordering::Relaxed);
        }
    }
    real::at_fork(Some(forget), None);
}

/// Returns true if [`note_closing`] may have an effect for some descriptor.
#[inline]
pub fn may_have_given_up() -> bool {
    GIVER.load(Ordering::Relaxed) != 0
}

/// Withdraws the connection of `fd`, which the program is about to close, if the program has given up waiting for it. The
/// engine would otherwise open it later, if it has stopped meanwhile. Leaves errno unchanged.
#[inline]
pub fn note_closing(fd: RawFd) {
    if GIVEN_UP.has(fd) {
        withdraw(fd, fd..=fd);
    }
}

/// Calls [`note_closing`] for `to` if dup2 or dup3 is about to make it refer to the file of `fd`. Does nothing if that
/// call must fail, or has no effect.
#[inline]
pub fn note_replacing(fd: RawFd, to: RawFd) {
    if fd != to && GIVEN_UP.has(to) && descriptor::is_open(fd) {
        note_closing(to);
    }
}

/// Does the same as [`note_closing`] for the descriptors from `first` to `last`, which the program is about to close.
pub fn note_closing_range(first: RawFd, last: RawFd) {
    if may_have_given_up() {
        GIVEN_UP.iter().filter(|fd| (first..=last).contains(fd)).for_each(|fd| withdraw(fd, first..=last));
    }
}

/// Withdraws the connection of `fd`, unless a descriptor outside `closing` refers to it, too. In that case, the close of
/// that descriptor withdraws it. Leaves errno unchanged.
#[cold]
fn withdraw(fd: RawFd, closing: RangeInclusive<RawFd>) {
    // A child of vfork closes only its own descriptor.
    // SAFETY: has no preconditions.
    if GIVER.load(Ordering::Relaxed) != unsafe { libc::getpid() } {
        return;
    }
    GIVEN_UP.set(fd, false);
    let before = errno();
    if name_of(fd).is_some_and(|name| is_opened(&name)) && Flags::of(fd).has(Flags::CONNECTING) {
        let identity = descriptor::identity(fd);
        let mut others = (0..MOST_CHECKED).filter(|other| !closing.contains(other));
        match others.find(|&other| descriptor::identity(other) == identity) {
            Some(other) => GIVEN_UP.set(other, true),
            // SAFETY: has no preconditions.
            None => drop(unsafe { real::shutdown(fd, libc::SHUT_RDWR) }),
        }
    }
    set_errno(before);
}

/// Returns true if a connection attempt of `fd` has failed and the program has read the error. As in Linux, the program
/// may then connect the socket again.
pub fn may_connect_again(fd: RawFd, name: &SocketName) -> bool {
    let flags = Flags::of(fd);
    !name.kind.is_datagram()
        && flags.has(Flags::CONNECTING)
        && flags.has(Flags::ERROR_READ)
        && matches!(End::of(fd, real::ASKING), End::Failed(_))
}

/// Returns true if a connect of `fd` was left in progress and has failed since, and no connect has reported this. In Linux, the
/// next connect then fails with ECONNABORTED, although the program has read the error, and later ones connect the socket again.
pub fn ends_attempt(fd: RawFd) -> bool {
    let ends = IN_PROGRESS.has(fd);
    if ends {
        IN_PROGRESS.set(fd, false);
    }
    ends
}

/// Fails a connect because the connection was reset, although no connect has completed it. As in Linux, the attempt counts as failed,
/// so the program may connect the socket again.
fn fail_attempt(fd: RawFd) -> c_int {
    let error = take_error(fd);
    // The end of a kept pair can have a stale mark, which counts as none.
    kept::forget(fd);
    Flags::set(fd, Flags::CONNECTING);
    fail(if error == 0 { libc::ECONNABORTED } else { error })
}

/// Implements connect(2) for a socket that is already offloaded. If `waits` is set and the descriptor is blocking, blocks
/// until the connection is established. Returns 0, or -1 with errno set.
pub fn connect(fd: RawFd, name: &SocketName, remote: SocketAddr, waits: bool) -> c_int {
    let waits = waits && blocks(fd);
    if !name.kind.is_bound() || Flags::of(fd).has(Flags::CONNECTING) {
        return match poll(fd, libc::POLLOUT, 0) {
            Err(_) if Flags::of(fd).has(Flags::CONNECTING) && waits => wait_connected(fd),
            Err(_) if Flags::of(fd).has(Flags::CONNECTING) => fail(libc::EALREADY),
            Ok(_) if Flags::of(fd).has(Flags::CONNECTING) => match take_error(fd) {
                0 => fail(libc::ECONNABORTED),
                error => {
                    IN_PROGRESS.set(fd, false);
                    fail(error)
                }
            },
            _ if IN_PROGRESS.has(fd) => {
                IN_PROGRESS.set(fd, false);
                match End::of(fd, real::ASKING) {
                    End::Failed(_) => fail_attempt(fd),
                    _ => 0,
                }
            }
            _ => fail(libc::EISCONN),
        };
    }
    let mut message = Message::new(Operation::Connect);
    message.remote = Some(remote);
    message.v6 = name.kind.is_v6();
    match control::request(&mut message, fd) {
        Some((reply, _)) if reply.status == 0 => match waits {
            true => wait_connected(fd),
            false => leave_in_progress(fd),
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

/// Returns the errno for a send with MSG_FASTOPEN on the offloaded TCP socket `fd`, if its address is not an internet
/// address, or if it has none.
///
/// # Safety
/// As for [`memory::read_bytes`].
pub unsafe fn reason_of_fast_refusal(
    fd: RawFd,
    name: &SocketName,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    if address.is_null() {
        return match Flags::of(fd).has(Flags::CONNECTING) {
            true => libc::EALREADY,
            false if unconnected::is_unconnected(fd) && !unconnected::listens(fd) => libc::EINVAL,
            false => libc::EISCONN,
        };
    }
    // SAFETY: the caller's promise.
    match unsafe { memory::read(address.cast::<libc::sa_family_t>()) } {
        Some(family) if len >= 2 && c_int::from(family) == libc::AF_UNSPEC => libc::EOPNOTSUPP,
        // SAFETY: as above.
        _ => unsafe { reason_of_refusal(fd, name, address, len) },
    }
}
