//! Opens connections over kept ends of earlier connections that the program has opened to the same address.
//!
//! While a connection is being established, its program's end is full, has a small send buffer, and is marked as connecting. The engine,
//! which does not have this end, only empties the pair. Small buffer and mark then stay for the next connection, because a program seldom
//! needs to know of them: sends go through shared memory. [`restore`] ends both when they would matter.

use super::AREA;
use crate::hint::Hint;
use crate::parked::{INODES, KEEPABLE, NUMBERS, PARKED};
use crate::{control, descriptor, errno, parked, real, set_errno};
use inlane_offload_protocol::filler;
use inlane_offload_protocol::message::{Message, Operation};
use inlane_offload_protocol::name::End;
use inlane_offload_protocol::slots::Slot;
use libc::c_int;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Bit n is 1 if the kept end of slot n is that of a connection that the program has opened.
static SLOTS_OF_OPENED: AtomicU64 = AtomicU64::new(0);
/// Bit n is 1 if that end has a small send buffer and the mark of a connecting socket.
static SLOTS_OF_MARKED: AtomicU64 = AtomicU64::new(0);
/// The descriptors of connections that the program has opened, and whose pair may be kept.
static OPENED: Hint = Hint::new();
/// The descriptors among them whose end has a small send buffer and the mark of a connecting socket.
static MARKED: Hint = Hint::new();
/// The descriptors among those whose connection was found to be established.
static ESTABLISHED: Hint = Hint::new();
/// The send buffer of new UNIX sockets, in bytes.
static USUAL_BUFFER: AtomicI32 = AtomicI32::new(0);

/// An end for a new connection.
pub struct Opened {
    /// The program's end.
    pub end: RawFd,
    /// True if the end was kept.
    pub was_kept: bool,
}

fn set_bit(mask: &AtomicU64, index: usize, value: bool) {
    match value {
        true => mask.fetch_or(1 << index, Ordering::Relaxed),
        false => mask.fetch_and(!(1 << index), Ordering::Relaxed),
    };
}

/// Returns true if the descriptor is non-blocking and has no other status flag that an end could lack.
fn is_plain(fd: RawFd) -> bool {
    // SAFETY: fcntl has no preconditions here.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags & (libc::O_NONBLOCK | libc::O_ASYNC) == libc::O_NONBLOCK
}

/// Begins a connection of `fd` to `remote` over a kept end. `inode` is that of the control connection. Returns `None`, without effect, if
/// there is no end for it.
pub fn open(fd: RawFd, remote: SocketAddr, v6: bool, inode: u64) -> Option<RawFd> {
    let mut rest = SLOTS_OF_OPENED.load(Ordering::Relaxed);
    if rest == 0
        || !super::is_active()
        || !control::may_send_ahead()
        || control::is_shared_by_vfork()
        || !is_plain(fd)
    {
        return None;
    }
    let area = control::area()?;
    if area.slot(0)?.as_ptr() != AREA.load(Ordering::Acquire) {
        return None;
    }
    while rest != 0 {
        let index = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        let parked = PARKED[index].load(Ordering::SeqCst) - 1;
        let slot = area.slot(index)?;
        let fits = parked >= 0
            && slot.life().is_kept()
            && super::stored_addresses(index)[1] == Some(remote)
            && parked::is_kept(index, parked);
        if fits && slot.life().ask() {
            // The program may close the number at the same time, in a signal handler.
            if PARKED[index].compare_exchange(parked + 1, 0, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                let _ = slot.life().withdraw();
                continue;
            }
            NUMBERS.set(parked, false);
            let sent = fill(parked, index).is_some_and(|filled| {
                let mut message = Message::new(Operation::Open);
                (message.v6, message.remote, message.number) = (v6, Some(remote), filled);
                message.level = index as i32 + 1;
                control::send_ends(&mut message, &[], inode)
            });
            if !sent {
                let _ = slot.life().withdraw();
                parked::close(parked);
            }
            return sent.then_some(parked);
        }
    }
    None
}

/// Fills the kept end of slot `index`. Returns the number of filler bytes.
fn fill(end: RawFd, index: usize) -> Option<c_int> {
    let marked = SLOTS_OF_MARKED.load(Ordering::Relaxed) & 1 << index != 0;
    if !marked && USUAL_BUFFER.load(Ordering::Relaxed) == 0 {
        let bytes = real::option(end, libc::SOL_SOCKET, libc::SO_SNDBUF)?;
        USUAL_BUFFER.store(bytes, Ordering::Relaxed);
    }
    let set = |name, value| {
        (marked || real::set_option(end, libc::SOL_SOCKET, name, value)).then_some(()).ok_or(())
    };
    filler::fill(set, |bytes| fill_from(end, bytes)).ok().map(|filled| filled as c_int)
}

/// Sends bytes from the end `end` without blocking. Returns how many it has sent, or `None` if there is no room.
pub fn fill_from(end: RawFd, bytes: &[u8]) -> Result<Option<usize>, ()> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes outlive the call.
    match unsafe { real::send(end, bytes.as_ptr().cast(), bytes.len(), flags) } {
        sent if sent > 0 => Ok(Some(sent as usize)),
        _ if errno() == libc::EAGAIN => Ok(None),
        _ => Err(()),
    }
}

/// Records that `fd` has a connection that the library has opened, over a kept end if `was_kept` is true. Its pair may be kept later.
pub fn note_opened(fd: RawFd, was_kept: bool) {
    MARKED.set(fd, was_kept);
    if was_kept || super::is_active() && is_plain(fd) {
        KEEPABLE.set(fd, true);
        OPENED.set(fd, true);
    }
}

/// What is kept with the end of a connection that the program has opened.
pub struct Kept {
    remote: Option<SocketAddr>,
    marked: bool,
}

/// Returns what to keep with the end of the connection `fd`, which has slot `index`. Returns `None` if the program has not opened it. Call
/// this before the descriptor is closed. May change errno.
pub fn of(fd: RawFd, index: usize, inode: u64) -> Option<Kept> {
    if !OPENED.has(fd) {
        return None;
    }
    let known = INODES[index].load(Ordering::SeqCst) == inode
        && SLOTS_OF_OPENED.load(Ordering::Relaxed) & 1 << index != 0;
    let remote = match known {
        true => super::stored_addresses(index)[1],
        // The name of a pair that the engine has created contains the local address of its first connection.
        false => descriptor::name_of(fd).filter(|name| name.local.port() == 0).and_then(|name| name.remote),
    };
    Some(Kept { remote, marked: MARKED.has(fd) })
}

impl Kept {
    /// Returns true if another connection can get the end.
    pub fn is_usable(&self) -> bool {
        self.remote.is_some()
    }
}

/// Records the remote address of the kept end of slot `index`, and whether it is marked as connecting. `kept` is `None` if the end is that of an
/// accepted connection.
pub fn keep(index: usize, kept: Option<&Kept>) {
    if let Some(kept) = kept {
        super::store_addresses(index, None, kept.remote);
    }
    set_bit(&SLOTS_OF_MARKED, index, kept.is_some_and(|kept| kept.marked));
    set_bit(&SLOTS_OF_OPENED, index, kept.is_some());
}

/// Forgets the connection `fd`, whose descriptor is closed or gets another socket.
#[inline]
pub fn forget(fd: RawFd) {
    for hint in [&OPENED, &MARKED, &ESTABLISHED] {
        if hint.has(fd) {
            hint.set(fd, false);
        }
    }
}

/// Returns true if the end of `fd` is marked as connecting although its connection is established. Leaves errno unchanged.
#[inline]
pub fn has_stale_mark(fd: RawFd) -> bool {
    MARKED.has(fd) && is_established(fd)
}

#[cold]
fn is_established(fd: RawFd) -> bool {
    if ESTABLISHED.has(fd) {
        return true;
    }
    let before = errno();
    let established = descriptor::identity(fd).is_some_and(|(inode, _)| match find(inode) {
        Some(slot) => !slot.life().is_connecting(),
        // The engine takes the slot only from an idle connection that is established.
        None => !is_requested(inode) && !matches!(End::of(fd, real::ASKING), End::Failed(_)),
    });
    set_errno(before);
    if established {
        ESTABLISHED.set(fd, true);
    }
    established
}

fn find(inode: u64) -> Option<Slot> {
    control::area()?.find(inode)
}

/// Returns true if the program has asked for a connection over the kept end with this inode, and it is not established.
fn is_requested(inode: u64) -> bool {
    let index = INODES.iter().position(|kept| kept.load(Ordering::SeqCst) == inode);
    let slot = index.and_then(|index| control::area()?.slot(index));
    slot.is_some_and(|slot| slot.life().is_asked() || slot.life().is_connecting())
}

/// Gives the end of `fd` its usual send buffer, and removes a stale mark. Call this before bytes are sent through the pair, and before
/// another program may get it. Leaves errno unchanged.
#[inline]
pub fn restore(fd: RawFd) {
    if MARKED.has(fd) {
        restore_marked(fd);
    }
}

#[cold]
fn restore_marked(fd: RawFd) {
    let before = errno();
    let mut message = Message::new(Operation::SetOptionNow);
    (message.level, message.name) = (libc::SOL_SOCKET, libc::SO_PRIORITY);
    // Until the connection is established, the end must stay full. The engine then restores it.
    let engine_restores =
        !is_established(fd) && control::request(&mut message, fd).is_some_and(|(reply, _)| reply.status == 0);
    if engine_restores {
        MARKED.set(fd, false);
    } else if is_established(fd) {
        MARKED.set(fd, false);
        real::set_option(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, 0);
        // The kernel doubles the size.
        let size = USUAL_BUFFER.load(Ordering::Relaxed) / 2;
        real::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, size);
    }
    set_errno(before);
}
