//! Lets listeners listen again on another engine after their own has ended.
//!
//! The program's end of a lost listener would stay readable forever. So the library replaces it by a stand-in
//! ([`StandIn`]), which reports no events, as soon as the program calls accept. From then on, it looks for an engine about
//! once a second: while the program waits in accept, poll, select or epoll_wait. The new listener gets the same
//! descriptor.
//!
//! ```text
//! program's end --- accept finds the engine gone ---> stand-in --- an engine answers ---> new program's end
//! ```
//!
//! Processes may share a lost listener. Each of them then gets a listener of its own. The engine lets them share the port,
//! and spreads connections over them. A process that never calls accept does not listen again.

use crate::convert::replace_listener;
use crate::descriptor::{blocks, name_of, receive_limit};
use crate::flags::Flags;
use crate::hint::Hint;
use crate::time::{self, now_ns};
use crate::{control, errno, options, real, set_errno, signals, unconnected, wait};
use inlane_offload_protocol::address::is_possible;
use inlane_offload_protocol::message::{Message, NumberOption, Operation};
use inlane_offload_protocol::name::{End, KEPT_OPTIONS, SocketName, StandIn};
use libc::{c_int, timespec, timeval};
use std::os::fd::RawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering};

/// How long a wait sleeps before the library looks for an engine again, in nanoseconds.
const STEP_NS: u64 = 1_000_000_000;

/// The descriptors of stand-ins that this process has created.
static STAND_INS: Hint = Hint::new();
/// The ID of the process that set the hints in `STAND_INS`. 0 if no hint is set. A forked child inherits the hints, and
/// ignores them because of this ID: it listens only if it calls accept itself.
static WAITING: AtomicI32 = AtomicI32::new(0);
/// The ID of the process in which a thread replaces a listener now, or 0. A forked child may inherit the parent's ID,
/// which then means 0: the parent's thread does not exist in the child.
static REPLACING: AtomicI32 = AtomicI32::new(0);

fn process() -> i32 {
    // SAFETY: has no preconditions.
    unsafe { libc::getpid() }
}

/// What has become of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It listens on an engine.
    Listens,
    /// A stand-in waits for an engine, or another thread replaces the listener now.
    Waits,
    /// The program has shut the listener down, or it cannot be replaced.
    Ended,
}

/// Replaces the listener `fd`, whose engine has ended, or its stand-in. `name` is the socket's name. May change errno.
pub fn again(fd: RawFd, name: &SocketName) -> Outcome {
    let own = process();
    let holder = REPLACING.load(Ordering::Relaxed);
    if holder == own || REPLACING.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        return Outcome::Waits;
    }
    // Another thread may have replaced the listener in the meantime. A thread that was cancelled here would never reset
    // `REPLACING`.
    let outcome = control::without_cancellation(|| match name_of(fd) {
        Some(found) if found == *name => replace(fd, name),
        Some(found) if found.kind.is_stand_in() => Outcome::Waits,
        Some(found) if found.kind.is_bound() => Outcome::Listens,
        _ => Outcome::Ended,
    });
    REPLACING.store(0, Ordering::Release);
    outcome
}

/// Returns true if a receive on `fd` failed because another thread has replaced the lost listener by a stand-in. Keeps
/// errno otherwise.
pub fn was_replaced(fd: RawFd) -> bool {
    let error = errno();
    let replaced = error == libc::EINVAL && name_of(fd).is_some_and(|name| name.kind.is_stand_in());
    set_errno(error);
    replaced
}

fn replace(fd: RawFd, name: &SocketName) -> Outcome {
    // Another thread that waited for the same engine may have renewed the listener already. Its new pair has not hung up.
    if !name.kind.is_stand_in() && !has_hung_up(fd) {
        return Outcome::Listens;
    }
    let End::Listening(backlog) = End::of(fd, real::ASKING) else { return Outcome::Ended };
    if Flags::of(fd).has(Flags::READ_SHUT) {
        return Outcome::Ended;
    }
    if let Some(new) = listen(fd, name, backlog) {
        if !replace_listener(fd, new) {
            return Outcome::Ended;
        }
        STAND_INS.set(fd, false);
        unconnected::note_listening(fd);
        return Outcome::Listens;
    }
    if name.kind.is_stand_in() {
        drop_connection(fd);
        note_waiting(fd);
        return Outcome::Waits;
    }
    match stand_in(fd, name, backlog) {
        Some(new) if replace_listener(fd, new) => {
            note_waiting(fd);
            Outcome::Waits
        }
        _ => Outcome::Ended,
    }
}

/// Returns true if the other end of the pair of `fd` is closed.
fn has_hung_up(fd: RawFd) -> bool {
    super::poll(fd, 0, 0).is_ok_and(|events| events & libc::POLLHUP != 0)
}

/// Records that `fd` is a stand-in.
fn note_waiting(fd: RawFd) {
    if WAITING.swap(process(), Ordering::Relaxed) != process() {
        STAND_INS.iter().for_each(|other| STAND_INS.set(other, false));
    }
    STAND_INS.set(fd, true);
    unconnected::note_listening(fd);
}

/// Asks the engine for a listener in place of the lost one `fd`. Returns the program's end of its pair. Returns `None` if no
/// engine answers, or if the engine cannot take the listener.
fn listen(fd: RawFd, name: &SocketName, backlog: c_int) -> Option<RawFd> {
    let mut bind = Message::new(Operation::Bind);
    (bind.v6, bind.local) = (name.kind.is_v6(), Some(name.local));
    options::add_those_of_listener(&mut bind, fd)?;
    let (reply, passed) = control::request(&mut bind, fd)?;
    let new = passed?;
    let mut listen = Message::new(Operation::Listen);
    listen.number = backlog;
    let listens =
        reply.status == 0 && control::request(&mut listen, new).is_some_and(|(reply, _)| reply.status == 0);
    if !listens {
        // SAFETY: the descriptor was just received.
        unsafe { libc::close(new) };
    }
    listens.then_some(new)
}

/// Creates a stand-in for the lost listener `fd`. Returns `None` if that failed.
fn stand_in(fd: RawFd, name: &SocketName, backlog: c_int) -> Option<RawFd> {
    let mut kept: [NumberOption; KEPT_OPTIONS.len()] = [(0, 0, 0); KEPT_OPTIONS.len()];
    let mut count = 0;
    End::for_options(fd, real::ASKING, |option| {
        kept[count.min(KEPT_OPTIONS.len() - 1)] = option;
        count += 1;
    });
    let kept = &kept[..count.min(KEPT_OPTIONS.len())];
    // SAFETY: has no preconditions.
    let new = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if new < 0 {
        return None;
    }
    // Another process may have a stand-in for the same listener, so try different tags.
    let first = (now_ns() as u32).wrapping_add(process() as u32);
    let bound = (0..64).any(|tag| {
        let tag = first.wrapping_add(tag);
        let address = StandIn { listener: *name, backlog, tag }.to_address(kept);
        // SAFETY: the address outlives the call.
        unsafe { real::bind(new, (&raw const address.raw).cast(), address.len) == 0 }
    });
    // SAFETY: the descriptor is this function's.
    unsafe {
        if bound && real::listen(new, 0) == 0 {
            return Some(new);
        }
        libc::close(new);
    }
    None
}

/// Looks for an engine for all stand-ins of this process. Leaves errno unchanged.
#[cold]
fn look() {
    let before = errno();
    let mut left = false;
    for fd in STAND_INS.iter() {
        match name_of(fd).filter(|name| name.kind.is_stand_in()) {
            Some(name) => left |= again(fd, &name) == Outcome::Waits,
            None => STAND_INS.set(fd, false),
        }
    }
    if !left {
        WAITING.store(0, Ordering::Relaxed);
    }
    set_errno(before);
}

/// Calls `wait` with the program's `timeout` in milliseconds. If a stand-in of this process waits for an engine, calls
/// `wait` with parts of the timeout, and looks for an engine in between. Returns the last result: 0 if the whole timeout
/// has passed.
#[inline]
pub fn wait_milliseconds(timeout: c_int, mut wait: impl FnMut(c_int) -> c_int) -> c_int {
    if WAITING.load(Ordering::Relaxed) == 0 || timeout == 0 {
        return wait(timeout);
    }
    in_steps(time::of_milliseconds(timeout), &mut |rest| {
        wait(if rest == u64::MAX { -1 } else { rest.div_ceil(1_000_000) as c_int })
    })
}

/// Like [`wait_milliseconds`], with a timeout that may be null for no limit.
///
/// # Safety
/// `timeout` is the program's argument.
#[inline]
pub unsafe fn wait_timespec(
    timeout: *const timespec,
    mut wait: impl FnMut(*const timespec) -> c_int,
) -> c_int {
    if WAITING.load(Ordering::Relaxed) == 0 {
        return wait(timeout);
    }
    // SAFETY: the caller's promise.
    match unsafe { time::of_timespec(timeout) } {
        None | Some(0) => wait(timeout),
        Some(limit) => in_steps(limit, &mut |rest| match rest {
            u64::MAX => wait(null()),
            rest => wait(&time::to_timespec(rest)),
        }),
    }
}

/// Like [`wait_timespec`], for a wait that changes the descriptor sets `sets` of `count` bits.
///
/// # Safety
/// The arguments are those of the program's call of pselect(2).
pub unsafe fn wait_selected(
    count: c_int,
    sets: wait::Sets,
    timeout: *const timespec,
    mut wait: impl FnMut(*const timespec) -> c_int,
) -> c_int {
    /// The most bytes of a set that are restored, for 8,192 descriptors.
    const MOST: usize = 1024;
    let bytes = usize::try_from(count).unwrap_or(0).div_ceil(64) * 8;
    let possible = bytes <= MOST && sets.iter().all(|&set| set.is_null() || is_possible(set, bytes));
    if WAITING.load(Ordering::Relaxed) == 0 || !possible {
        return wait(timeout);
    }
    let mut before = [[0u8; MOST]; 3];
    // SAFETY: the kernel, too, accesses whole words of the sets that are not null.
    unsafe {
        for (copy, set) in before.iter_mut().zip(sets).filter(|(_, set)| !set.is_null()) {
            copy.as_mut_ptr().copy_from_nonoverlapping(set.cast(), bytes);
        }
        wait_timespec(timeout, |timeout| {
            for (copy, set) in before.iter().zip(sets).filter(|(_, set)| !set.is_null()) {
                set.cast::<u8>().copy_from_nonoverlapping(copy.as_ptr(), bytes);
            }
            wait(timeout)
        })
    }
}

/// Like [`wait_selected`], with the timeout of select(2). Subtracts the elapsed time from it, unless the program uses musl.
///
/// # Safety
/// The arguments are those of the program's call of select(2).
pub unsafe fn wait_select(
    count: c_int,
    sets: wait::Sets,
    timeout: *mut timeval,
    mut wait: impl FnMut(*mut timeval) -> c_int,
) -> c_int {
    let limited = !timeout.is_null();
    if WAITING.load(Ordering::Relaxed) == 0 || limited && !is_possible(timeout, size_of::<timeval>()) {
        return wait(timeout);
    }
    // SAFETY: the program's arguments. The timeouts live through the calls.
    unsafe {
        let (seconds, part) = if limited { ((*timeout).tv_sec, (*timeout).tv_usec) } else { (0, 0) };
        let limit = timespec { tv_sec: seconds, tv_nsec: part.saturating_mul(1000) };
        let start = now_ns();
        let result = wait_selected(count, sets, if limited { &limit } else { null() }, |rest| {
            if rest.is_null() {
                return wait(null_mut());
            }
            wait(&mut timeval { tv_sec: (*rest).tv_sec, tv_usec: (*rest).tv_nsec / 1000 })
        });
        if limited
            && !real::is_musl()
            && let Some(limit) = time::of_timespec(&limit)
        {
            let rest = time::to_timespec(limit.saturating_sub(now_ns().saturating_sub(start)));
            ((*timeout).tv_sec, (*timeout).tv_usec) = (rest.tv_sec, rest.tv_nsec / 1000);
        }
        result
    }
}

#[cold]
fn in_steps(limit_ns: u64, wait: &mut dyn FnMut(u64) -> c_int) -> c_int {
    let start = now_ns();
    loop {
        let rest = match limit_ns {
            u64::MAX => u64::MAX,
            limit => limit.saturating_sub(now_ns().saturating_sub(start)),
        };
        if WAITING.load(Ordering::Relaxed) != process() {
            return wait(rest);
        }
        let result = wait(rest.min(STEP_NS));
        if result != 0 || rest <= STEP_NS {
            return result;
        }
        look();
    }
}

/// Makes the lost listener `fd` listen again for a call of accept. If no engine answers, waits if the socket is blocking, and
/// looks for an engine about once a second.
///
/// # Errors
/// The errno with which accept fails: EAGAIN if no engine answers now, or within the socket's receive timeout; EINVAL if the
/// program has shut the listener down; EINTR.
pub fn wait_for_engine(fd: RawFd) -> Result<(), c_int> {
    let start = now_ns();
    loop {
        let outcome = name_of(fd).map_or(Outcome::Ended, |name| again(fd, &name));
        match outcome {
            Outcome::Listens => return Ok(()),
            Outcome::Ended => return Err(libc::EINVAL),
            Outcome::Waits if !blocks(fd) => return Err(libc::EAGAIN),
            Outcome::Waits => {}
        }
        let limit = receive_limit(fd).map(|limit| limit as u64 * 1_000_000);
        let rest = limit.map(|limit| limit.saturating_sub(now_ns().saturating_sub(start)));
        if rest == Some(0) {
            return Err(libc::EAGAIN);
        }
        let milliseconds = rest.unwrap_or(STEP_NS).min(STEP_NS).div_ceil(1_000_000) as c_int;
        // SAFETY: the call gets no descriptors.
        let slept = unsafe { real::poll(null_mut(), 0, milliseconds) };
        if slept == -1 && errno() == libc::EINTR && (limit.is_some() || !signals::restarts()) {
            return Err(libc::EINTR);
        }
    }
}

/// Drops a connection that another program has made to the stand-in `fd`, because `fd` would stay readable.
fn drop_connection(fd: RawFd) {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the structure outlives the call. A descriptor of accept4 is closed once.
    unsafe {
        if real::poll(&mut poll, 1, 0) == 1 {
            let stranger = real::accept4(fd, null_mut(), null_mut(), libc::SOCK_CLOEXEC);
            if stranger >= 0 {
                libc::close(stranger);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `test` while this process seems to wait for an engine. Only one test may do so at a time.
    fn waiting<T>(test: impl FnOnce() -> T) -> T {
        static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _one = ONE.lock().unwrap();
        WAITING.store(process(), Ordering::Relaxed);
        let result = test();
        WAITING.store(0, Ordering::Relaxed);
        result
    }

    #[test]
    fn a_wait_has_one_step_unless_a_stand_in_waits() {
        let mut limits = Vec::new();
        let mut wait = |limit| {
            limits.push(limit);
            0
        };
        waiting(|| {
            wait_milliseconds(0, &mut wait);
            WAITING.store(0, Ordering::Relaxed);
            wait_milliseconds(5000, &mut wait);
        });
        assert_eq!(limits, [0, 5000]);
    }

    #[test]
    fn a_wait_continues_without_limit_once_no_stand_in_waits() {
        for end in [-1, 3] {
            let mut limits = Vec::new();
            let result = waiting(|| {
                wait_milliseconds(-1, |limit| {
                    limits.push(limit);
                    if limits.len() == 2 { end } else { 0 }
                })
            });
            assert_eq!((result, limits), (end, vec![1000, -1]));
        }
        let mut limits = Vec::new();
        waiting(|| {
            wait_milliseconds(700, |limit| {
                limits.push(limit);
                0
            })
        });
        assert_eq!(limits, [700], "a shorter limit is one step");
    }

    #[test]
    fn the_sets_of_a_select_are_whole_in_each_step() {
        // SAFETY: an all-zero set is valid. The sets have more than 70 bits.
        unsafe {
            let mut read: libc::fd_set = std::mem::zeroed();
            libc::FD_SET(5, &mut read);
            libc::FD_SET(69, &mut read);
            let sets = [&raw mut read, null_mut(), null_mut()];
            let mut steps = 0;
            let result = waiting(|| {
                wait_selected(70, sets, null(), |_| {
                    assert!(libc::FD_ISSET(5, sets[0]) && libc::FD_ISSET(69, sets[0]));
                    libc::FD_ZERO(sets[0]);
                    steps += 1;
                    c_int::from(steps == 2)
                })
            });
            assert_eq!((result, steps), (1, 2));
        }
    }
}
