//! Keeps the program's ends of the pairs of connections that the program has accepted and closed. A later accepted connection gets the
//! same pair, so that neither side creates and closes one. In the same way, [`opened`] opens connections over ends of earlier ones.
//!
//! Each slot of shared memory has at most one kept end, under a high number. While a connection lives, only the program's own descriptor
//! refers to its pair: [`close`] moves the end from there to the high number, and [`accept`] moves it back.
//!
//! ```text
//! close(5):   take the send ring, leave epoll, dup(5) -> 448, close 5 ---> the engine ends the connection, and keeps its end
//! accept():   record with the number of the slot  <----------------------- the engine gives the pair to another connection
//!             dup(448) -> 5, close 448
//! ```
//!
//! A pair is kept only if no descriptor but the closed one can refer to it, nothing waits in it, and the program has changed none of its
//! properties. Otherwise the descriptor is closed as usual. After a fork, or after the program has passed a descriptor, no pair is kept any
//! more, because another process may have a descriptor of it, or may accept from the listener.

pub mod opened;

use crate::parked::{INODES, KEEPABLE, NUMBERS, PARKED, STOPPED, close_all, close_kept, is_kept, unpark};
use crate::{control, descriptor, direct, epoll, errno, parked, real, set_errno, slots};
use inlane_offload_protocol::address;
use inlane_offload_protocol::message::{Handle, Message, Operation};
use inlane_offload_protocol::name::SocketName;
use inlane_offload_protocol::slots::{SLOTS, Slot};
use libc::{c_int, c_uint};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The lowest number for kept ends.
const LOWEST_NUMBER: usize = 448;
/// The words that hold the two addresses of a connection.
const WORDS: usize = 2 * address::LEN / 8;

/// The memory with the slots of the kept ends.
static AREA: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// The addresses of each slot's connection. The name of a pair that may be kept contains only those of its first connection.
static ADDRESSES: [[AtomicU64; WORDS]; SLOTS] = [const { [const { AtomicU64::new(0) }; WORDS] }; SLOTS];

/// Returns true if the pairs of accepted connections may be kept.
pub fn is_active() -> bool {
    !STOPPED.load(Ordering::Relaxed) && control::has_present_area()
}

/// Records that the program has accepted the connection `fd`, whose pair may be kept later. `name` has its number and its addresses.
/// `reused` is true if the program has it by [`accept`]. Returns false if the connection has no slot.
pub fn allow(fd: RawFd, name: &SocketName, reused: bool) -> bool {
    let Some((slot, index)) = direct::slot(fd).and_then(|slot| Some((slot, index_of(slot)?))) else {
        return false;
    };
    if !reused && !slot.life().accept(name.socket) {
        return false;
    }
    store_addresses(index, Some(name.local), name.remote);
    if !reused {
        // If the slot had another pair before, the engine has closed that.
        close_kept(index, PARKED[index].swap(0, Ordering::SeqCst) - 1);
    }
    KEEPABLE.set(fd, true);
    true
}

fn store_addresses(index: usize, local: Option<SocketAddr>, remote: Option<SocketAddr>) {
    let mut bytes = [0; 2 * address::LEN];
    bytes[..address::LEN].copy_from_slice(&address::encode(local));
    bytes[address::LEN..].copy_from_slice(&address::encode(remote));
    for (word, bytes) in ADDRESSES[index].iter().zip(bytes.chunks_exact(8)) {
        word.store(u64::from_ne_bytes(bytes.try_into().unwrap_or_default()), Ordering::Relaxed);
    }
}

fn index_of(slot: Slot) -> Option<usize> {
    control::area()?.index_of(slot)
}

/// Forgets the connection `fd`, because its descriptor is closed or gets another socket.
#[inline]
pub fn forget(fd: RawFd) {
    parked::forbid(fd);
    opened::forget(fd);
}

/// Returns the local and the remote address of the accepted connection `fd`. Its pair's name contains no remote address. Returns `None` if
/// only the engine may know them. May change errno.
pub fn addresses(fd: RawFd) -> Option<(SocketAddr, SocketAddr)> {
    let slot = direct::slot(fd).filter(|&slot| slots::is_same(fd, slot))?;
    let [local, remote] = stored_addresses(index_of(slot)?);
    Some((local?, remote?))
}

/// Returns the local and the remote address that are stored for slot `index`.
fn stored_addresses(index: usize) -> [Option<SocketAddr>; 2] {
    let mut bytes = [0; 2 * address::LEN];
    for (word, bytes) in ADDRESSES[index].iter().zip(bytes.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    [address::decode(&bytes), address::decode(&bytes[address::LEN..])]
}

/// Closes `fd` and keeps its pair. Returns false, without effect, if the descriptor must be closed as usual. Leaves errno unchanged.
#[inline]
pub fn close(fd: RawFd) -> bool {
    note_closing(fd);
    KEEPABLE.has(fd) && keep(fd)
}

fn keep(fd: RawFd) -> bool {
    KEEPABLE.set(fd, false);
    let before = errno();
    let kept = match STOPPED.load(Ordering::SeqCst) {
        true => {
            sweep();
            false
        }
        false => direct::slot(fd).is_some_and(|slot| control::without_cancellation(|| keep_with(fd, slot))),
    };
    set_errno(before);
    kept
}

fn keep_with(fd: RawFd, slot: Slot) -> bool {
    let header = slot.header();
    let Some(index) = index_of(slot) else { return false };
    if !direct::is_seen(fd)
        || !slot.pair().is_unused()
        || header.shut.load(Ordering::Relaxed) != 0
        || header.low_water.load(Ordering::Relaxed) != 0
        || slot.received().is_some()
        || slot.receive().is_moving()
        || !slots::is_alive(slot)
        // A child that shares the memory, or has a copy of it, closes its own descriptor only.
        || control::is_shared_by_vfork()
        || !control::has_present_area()
    {
        return false;
    }
    if !adopt_area(slot, index) {
        return false;
    }
    let opened = opened::of(fd, index, header.inode.load(Ordering::Acquire));
    if opened.as_ref().is_some_and(|kept| !kept.is_usable()) {
        return false;
    }
    let Some((parked, inode)) = park(fd, slot, index) else { return false };
    let closing = direct::closing(fd);
    // SAFETY: has no preconditions. The program closes `fd`.
    unsafe { real::close(fd) };
    drop(closing);
    // If a thread still sends through the ring, or the engine has reset the connection, the engine must notice that the end is closed.
    let Some(claim) = slot.send().claim() else {
        parked::close(parked);
        return true;
    };
    // From now on, no thread sends through the ring. A thread that was using the descriptor in the kernel meanwhile has left a mark
    // before it was closed. If the connection was reset, the slot may have another one.
    if header.inode.load(Ordering::Acquire) != inode || !slot.pair().is_unused() || direct::is_used(fd) {
        let _ = slot.send().commit(claim, 0);
        parked::close(parked);
        return true;
    }
    close_kept(index, PARKED[index].swap(0, Ordering::SeqCst) - 1);
    INODES[index].store(inode, Ordering::SeqCst);
    opened::keep(index, opened.as_ref());
    PARKED[index].store(parked + 1, Ordering::SeqCst);
    NUMBERS.set(parked, true);
    let closed = slot.send().end(claim) && slot.life().close();
    // If the engine sleeps or another thread forks, the engine must notice that the end is closed.
    if !closed || (slot.ring_doorbell() == 0 || STOPPED.load(Ordering::SeqCst)) && slot.life().end() {
        unpark(index, parked);
    }
    true
}

/// Removes the epoll registration of `fd`, and duplicates it as a kept end. Returns the duplicate and its inode. Returns `None` if the pair
/// cannot be kept.
fn park(fd: RawFd, slot: Slot, index: usize) -> Option<(RawFd, u64)> {
    if !epoll::end_registration(fd, index) {
        return None;
    }
    // SAFETY: fcntl has no preconditions here.
    let parked = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, LOWEST_NUMBER as *mut _) };
    let inode = (slot.header().inode.load(Ordering::Acquire), slot.header().device.load(Ordering::Relaxed));
    if parked >= 0 && descriptor::identity(parked) != Some(inode) {
        parked::close(parked);
        return None;
    }
    (parked >= 0).then_some((parked, inode.0))
}

/// Closes all kept ends of another area than that of `slot`, which has the number `index`. Returns false if another thread does that now.
fn adopt_area(slot: Slot, index: usize) -> bool {
    let changing = std::ptr::dangling_mut();
    let area = control::area().and_then(|area| area.slot(0)).map_or(std::ptr::null_mut(), Slot::as_ptr);
    debug_assert!(index > 0 || area == slot.as_ptr());
    let known = AREA.load(Ordering::Acquire);
    if known == area {
        return true;
    }
    if known == changing
        || AREA.compare_exchange(known, changing, Ordering::SeqCst, Ordering::Relaxed).is_err()
    {
        return false;
    }
    close_all();
    AREA.store(area, Ordering::Release);
    true
}

/// What [`accept`] finds.
pub enum Found {
    /// A new descriptor of the kept end.
    Connection(RawFd),
    /// The connection has ended.
    Ended,
    /// This process does not have the kept end.
    Missing,
}

/// Takes the kept end of slot `index` for the connection `id`, whose record has the tag `tag`. May change errno.
pub fn accept(index: u8, tag: u8, id: u64, nonblocking: bool, close_on_exec: bool) -> Found {
    let index = usize::from(index);
    let area = control::area().filter(|area| tag != 0 && area.records().tag == tag);
    let Some((slot, first)) = area.and_then(|area| Some((area.slot(index)?, area.slot(0)?))) else {
        return Found::Missing;
    };
    let Some(place) = PARKED.get(index).filter(|_| first.as_ptr() == AREA.load(Ordering::Acquire)) else {
        return Found::Missing;
    };
    let parked = place.load(Ordering::SeqCst) - 1;
    if parked < 0 || !is_kept(index, parked) {
        return Found::Missing;
    }
    // From now on, no other thread takes this end, unless the program closes its number.
    if !slot.life().accept(id)
        || place.compare_exchange(parked + 1, 0, Ordering::SeqCst, Ordering::Relaxed).is_err()
    {
        return Found::Ended;
    }
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: fcntl has no preconditions here.
    let fd = unsafe { real::fcntl(parked, command, std::ptr::null_mut()) };
    parked::close(parked);
    if fd < 0 {
        return Found::Ended;
    }
    if !nonblocking {
        // SAFETY: as above. Only ends of non-blocking descriptors are kept.
        unsafe { libc::fcntl(fd, libc::F_SETFL, 0) };
        slots::note_flags();
    }
    Found::Connection(fd)
}

/// Lets the engine reset a connection that waits to be accepted. `name` is that of its record. This process does not have its kept end.
pub fn refuse(name: &SocketName) {
    let mut message = Message::new(Operation::Refuse);
    message.set_handle(Handle { socket: name.socket, key: 0 });
    control::request(&mut message, -1);
}

/// Ends the keeping of pairs in this process, because another process may get its descriptors. Leaves errno unchanged.
#[inline]
pub fn stop() {
    if !STOPPED.load(Ordering::Relaxed) {
        stop_now();
    }
}

#[cold]
fn stop_now() {
    let before = errno();
    STOPPED.store(true, Ordering::SeqCst);
    if control::has_mapped_area() {
        control::area().iter().for_each(|area| area.keeps().store(0, Ordering::SeqCst));
    }
    sweep();
    set_errno(before);
}

/// Closes the kept ends that no connection has, because the process has no free descriptor. Returns true if there were any. Leaves errno
/// unchanged.
#[cold]
pub fn give_back() -> bool {
    let before = errno();
    let closed = sweep();
    set_errno(before);
    closed
}

/// Closes the kept ends that no connection has. Those of connections that wait to be accepted stay. Returns true if there were any.
fn sweep() -> bool {
    // A child of vfork has copies of the descriptors.
    if control::is_shared_by_vfork() {
        return false;
    }
    let Some(area) = control::area() else { return false };
    let mut closed = false;
    for (index, parked) in PARKED.iter().enumerate() {
        let fd = parked.load(Ordering::SeqCst) - 1;
        let is_free = |slot: Slot| slot.life().end() || is_stale(fd, slot);
        if fd >= 0 && area.slot(index).is_none_or(is_free) {
            unpark(index, fd);
            closed = true;
        }
    }
    closed
}

/// Returns true if the engine has closed its end of the pair of `parked`, and the slot has got a new pair.
fn is_stale(parked: RawFd, slot: Slot) -> bool {
    descriptor::identity(parked).is_none_or(|(inode, _)| inode != slot.header().inode.load(Ordering::Acquire))
}

/// Forgets the kept end `fd`, if it is one, because the program closes or replaces this number.
#[inline]
pub fn note_closing(fd: RawFd) {
    if NUMBERS.has(fd) {
        give_up(fd);
    }
}

/// Does the same as [`note_closing`] for the numbers from `first` to `last`.
pub fn note_closing_range(first: c_uint, last: c_uint) {
    let numbers = NUMBERS.iter().filter(|&fd| (first..=last).contains(&(fd as c_uint)));
    numbers.for_each(give_up);
}

#[cold]
fn give_up(fd: RawFd) {
    // A child of vfork closes its own copy.
    if control::is_shared_by_vfork() {
        return;
    }
    NUMBERS.set(fd, false);
    for (index, parked) in PARKED.iter().enumerate() {
        if parked.compare_exchange(fd + 1, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            && let Some(slot) = control::area().and_then(|area| area.slot(index))
        {
            // If a connection has the pair, the engine resets it.
            let _ = slot.life().end();
        }
    }
}

/// Records that the program sets option `level` of the connection `fd`. The engine has those of TCP.
#[inline]
pub fn note_option(fd: RawFd, level: c_int) {
    if level != libc::IPPROTO_TCP {
        parked::forbid(fd);
        opened::restore(fd);
    }
}

/// Returns the name of the accepted connection `fd` with its addresses, if its pair's name does not contain them.
pub fn complete(fd: RawFd, name: SocketName) -> SocketName {
    if name.remote.is_some() || name.kind.is_bound() || name.kind.is_datagram() {
        return name;
    }
    let known = addresses(fd).or_else(|| {
        let reply = control::addresses(fd)?;
        Some((reply.local?, reply.remote?))
    });
    known.map_or(name, |(local, remote)| SocketName { local, remote: Some(remote), ..name })
}
