//! Sends requests to the engine and receives the replies.
//!
//! A process keeps one connection to the engine, and one thread at a time uses it. If a thread finds the
//! connection in use, it opens another connection for its one request. Waiting could deadlock, because the
//! thread may run a signal handler that has interrupted the user of the connection. A child of vfork also
//! opens another connection, because it shares the variables of its parent.

use crate::time::now_ns;
use crate::{descriptor, parked, polling, real, settings};
use inlane_offload_protocol::message::{self, MOST_AHEAD, Message, Operation};
use inlane_offload_protocol::slots::{Area, Slot};
use libc::c_int;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The descriptor of this process's permanent connection to the engine, or -1 if there is none.
static CONNECTION: AtomicI32 = AtomicI32::new(-1);
/// The inode of the socket in `CONNECTION`. The program may close this descriptor, and get its number for
/// another file. So the library compares the inode before each use.
static INODE: AtomicU64 = AtomicU64::new(0);
/// The id of the process to which the variables of this library belong. 0 before the initialisation. A child of vfork
/// finds the id of its parent here.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// True while a thread uses the connection in `CONNECTION`.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// The number of requests that this process has sent to the engine since the engine's last reply. Counted for
/// the connection in `CONNECTION`.
static UNANSWERED: AtomicU32 = AtomicU32::new(0);

/// The lowest descriptor number for the connection to the engine, because programs expect low numbers for
/// their own descriptors. Test suites use round numbers for descriptors that are not open.
const LOWEST_NUMBER: c_int = 417;
/// The longest wait for a reply, in seconds.
pub const REPLY_SECONDS: i64 = 10;

/// A word that the kernel sets to 0 in each new process that gets a copy of this process's memory (MADV_WIPEONFORK). Null
/// if the kernel does not support that. In a child of vfork, the word keeps its value. Such a child shares its parent's
/// memory, so it must not change `OWNER` and `CONNECTION`. Other processes created by a raw system call find 0.
static UNCOPIED: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Makes a forked child open its own connection. Two processes must not mix their replies.
pub fn forget_after_fork() {
    const WORD: usize = size_of::<AtomicU32>();
    // SAFETY: the system chooses a free address for the mapping, which is never unmapped. The kernel rounds its length up
    // to whole pages. MADV_WIPEONFORK has no effect in this process.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), WORD, access, private, -1, 0);
        if page != libc::MAP_FAILED && libc::madvise(page, WORD, libc::MADV_WIPEONFORK) == 0 {
            (*page.cast::<AtomicU32>()).store(1, Ordering::Relaxed);
            UNCOPIED.store(page.cast(), Ordering::Relaxed);
        }
    }
    // SAFETY: has no preconditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    // Ignore a failure to register the function. Each use of the connection also compares `OWNER` with the process
    // ID. A forked child therefore never uses its parent's connection.
    real::at_fork(None, Some(forget));
}

/// Closes this process's copy of its parent's connection, and makes the variables of this library this process's.
extern "C" fn forget() {
    let fd = CONNECTION.swap(-1, Ordering::Relaxed);
    if fd >= 0 && inode(fd) == Some(INODE.load(Ordering::Relaxed)) {
        // SAFETY: the inode shows that the descriptor is this library's.
        unsafe { libc::close(fd) };
    }
    MAPPED.store(false, Ordering::Relaxed);
    parked::forget_in_child();
    IN_USE.store(false, Ordering::Relaxed);
    // SAFETY: has no preconditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    // SAFETY: null, or a word that stays mapped.
    if let Some(word) = unsafe { UNCOPIED.load(Ordering::Relaxed).as_ref() } {
        word.store(1, Ordering::Relaxed);
    }
}

/// Opens the connection that this process keeps, if it has none yet. The program can then still use the engine when the
/// path of the control socket no longer leads to it. Leaves errno unchanged.
pub fn keep() {
    let before = crate::errno();
    without_cancellation(|| {
        if !is_shared_by_vfork() && !IN_USE.swap(true, Ordering::Acquire) {
            kept();
            IN_USE.store(false, Ordering::Release);
        }
    });
    crate::set_errno(before);
}

/// Returns true if the variables of this library belong to another process. A child of vfork shares them with its parent,
/// and must not store a connection of its own in them.
pub fn is_shared_by_vfork() -> bool {
    // SAFETY: null, or a word that stays mapped.
    let word = unsafe { UNCOPIED.load(Ordering::Relaxed).as_ref() };
    // Check the word before the process ID. In another PID namespace, the process may have its parent's ID.
    if word.is_some_and(|word| word.load(Ordering::Relaxed) == 0) {
        // A raw system call has started this process, so the C library has not called `forget`.
        forget();
        return false;
    }
    // SAFETY: has no preconditions.
    OWNER.load(Ordering::Relaxed) != unsafe { libc::getpid() }
}

/// Returns the id of the process to which the variables of this library belong. A child of vfork gets the id of its parent.
pub fn owner() -> u32 {
    OWNER.load(Ordering::Relaxed).unsigned_abs()
}

fn inode(fd: RawFd) -> Option<u64> {
    descriptor::identity(fd).map(|(inode, _)| inode)
}

/// Opens a connection to the engine. `flags` are those of the socket's type. Returns `None` if no engine listens.
fn open(flags: c_int) -> Option<RawFd> {
    // SAFETY: an all-zero sockaddr_un is valid. All structures outlive the calls.
    unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let path = settings::socket();
        if path.len() >= address.sun_path.len() {
            return None;
        }
        for (to, from) in address.sun_path.iter_mut().zip(path) {
            *to = *from as libc::c_char;
        }
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags, 0);
        if fd < 0 {
            return None;
        }
        let limit = libc::timeval { tv_sec: REPLY_SECONDS, tv_usec: 0 };
        for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let len = size_of_val(&limit) as libc::socklen_t;
            real::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const limit).cast(), len);
        }
        let len = size_of_val(&address) as libc::socklen_t;
        if real::connect(fd, (&raw const address).cast(), len) != 0 {
            libc::close(fd);
            return None;
        }
        Some(fd)
    }
}

/// Sends a request without a reply, with the descriptors `ends`, over the control connection. `expected` is
/// the inode of that connection's socket. Returns false, without sending, if the connection is in use, gone,
/// or another process's. Also returns false if the engine has not answered for [`MOST_AHEAD`] requests.
pub fn send_ends(message: &mut Message, ends: &[RawFd], expected: u64) -> bool {
    debug_assert!(!message.operation.has_reply());
    name_program(message);
    without_cancellation(|| {
        if is_shared_by_vfork() || IN_USE.swap(true, Ordering::Acquire) {
            return false;
        }
        let fd = CONNECTION.load(Ordering::Relaxed);
        let sent =
            fd >= 0 && may_send_ahead() && inode(fd) == Some(expected) && send(fd, &message.encode(), ends);
        if sent {
            UNANSWERED.fetch_add(1, Ordering::Relaxed);
        }
        IN_USE.store(false, Ordering::Release);
        sent
    })
}

/// Returns true if the engine has answered recently enough for a request without a reply.
pub fn may_send_ahead() -> bool {
    UNANSWERED.load(Ordering::Relaxed) < MOST_AHEAD
}

/// Sends a question to the engine over a new connection, and does not wait. Returns the descriptor of this connection,
/// which is readable once the engine has answered. The caller closes it. Returns `None` if no engine listens, or if it has
/// not accepted as many connections as the kernel keeps. Leaves errno unchanged.
pub fn ask() -> Option<RawFd> {
    let before = crate::errno();
    let mut message = Message::new(Operation::Addresses);
    name_program(&mut message);
    let question = without_cancellation(|| {
        open(libc::SOCK_NONBLOCK).filter(|&fd| {
            let sent = send(fd, &message.encode(), &[]);
            if !sent {
                // SAFETY: the descriptor was just opened.
                unsafe { libc::close(fd) };
            }
            sent
        })
    });
    crate::set_errno(before);
    question
}

/// Returns the inode of this process's open control connection, or `None` without such a connection. In a
/// child of vfork, this is the parent's connection.
pub fn kept_inode() -> Option<u64> {
    (CONNECTION.load(Ordering::Relaxed) >= 0).then(|| INODE.load(Ordering::Relaxed))
}

/// Writes this program's name into a request.
fn name_program(message: &mut Message) {
    let program = settings::program();
    let len = program.len().min(message.program.len());
    message.program[..len].copy_from_slice(&program[..len]);
}

/// Sends a request to the engine, with the descriptor `attached` unless it is negative. Returns the reply and
/// the descriptor that came with the reply. If the operation has no reply, returns the request itself.
/// Returns `None` if there is no engine, or if the engine does not answer.
///
/// Leaves errno unchanged.
pub fn request(message: &mut Message, attached: RawFd) -> Option<(Message, Option<RawFd>)> {
    request_within(message, attached, LONGEST_WAIT).ok()
}

/// Why a request has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// There is no engine, or it has closed the connection.
    Gone,
    /// The engine has not answered in time.
    Silent,
}

/// The longest wait for a reply, in milliseconds.
pub const LONGEST_WAIT: c_int = 1000 * REPLY_SECONDS as c_int;

/// Like [`request`], but waits at most `limit` milliseconds for the reply.
///
/// # Errors
/// If there is no reply.
pub fn request_within(
    message: &mut Message,
    attached: RawFd,
    limit: c_int,
) -> Result<(Message, Option<RawFd>), Unanswered> {
    let before = crate::errno();
    name_program(message);
    let reply = without_cancellation(|| send_request(message, attached, limit));
    crate::set_errno(before);
    reply
}

/// Calls `exchange`, and defers a pthread_cancel of this thread until `exchange` has returned. If the thread
/// ended within `exchange`, the connection to the engine would stay in use forever.
pub fn without_cancellation<T>(exchange: impl FnOnce() -> T) -> T {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    /// PTHREAD_CANCEL_DISABLE of glibc and of musl.
    const DISABLE: c_int = 1;
    let mut before = 0;
    // SAFETY: the number lives through both calls.
    unsafe { pthread_setcancelstate(DISABLE, &mut before) };
    let outcome = exchange();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, &mut before) };
    outcome
}

/// The protocol version of an engine that has refused this library's version. 0 if no engine has refused it.
static OTHER_VERSION: AtomicU8 = AtomicU8::new(0);

/// Returns the protocol version of an engine that has refused this library's version. Returns `None` if no
/// engine has.
pub fn other_version() -> Option<u8> {
    Some(OTHER_VERSION.load(Ordering::Relaxed)).filter(|&version| version != 0)
}

fn send_request(
    message: &Message,
    attached: RawFd,
    limit: c_int,
) -> Result<(Message, Option<RawFd>), Unanswered> {
    if is_shared_by_vfork() || IN_USE.swap(true, Ordering::Acquire) {
        let fd = open(0).ok_or(Unanswered::Gone)?;
        let reply = exchange(fd, message, attached, limit);
        // SAFETY: the descriptor was opened here.
        unsafe { libc::close(fd) };
        return reply;
    }
    let reply = kept().ok_or(Unanswered::Gone).and_then(|(fd, fresh)| {
        let reply = exchange(fd, message, attached, limit);
        if fresh || reply != Err(Unanswered::Gone) {
            return reply;
        }
        // The engine may have been restarted since the connection was opened, so try once more over a new
        // connection.
        drop_kept();
        let (fd, _) = kept().ok_or(Unanswered::Gone)?;
        exchange(fd, message, attached, limit)
    });
    if reply.is_err() {
        // Close the connection, because the reply to this request may still arrive on it. The next request
        // must not read that reply.
        drop_kept();
    }
    IN_USE.store(false, Ordering::Release);
    reply
}

/// Returns the connection to the engine's control socket that this process keeps open. The bool is true if
/// this call opened the connection.
fn kept() -> Option<(RawFd, bool)> {
    let fd = CONNECTION.load(Ordering::Relaxed);
    if fd >= 0 && inode(fd) == Some(INODE.load(Ordering::Relaxed)) {
        return Some((fd, false));
    }
    let low = open(0)?;
    // SAFETY: this function has just opened `low`. If a high number is available, the copy replaces `low`,
    // which is closed. Otherwise `low` is kept.
    let fd = unsafe {
        match libc::fcntl(low, libc::F_DUPFD_CLOEXEC, LOWEST_NUMBER) {
            -1 => low,
            high => {
                libc::close(low);
                high
            }
        }
    };
    INODE.store(inode(fd)?, Ordering::Relaxed);
    UNANSWERED.store(0, Ordering::Relaxed);
    CONNECTION.store(fd, Ordering::Relaxed);
    Some((fd, true))
}

/// The start of the memory that the engine shares with this process. Null while no memory is shared.
static AREA: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// The inode of the control connection over which the engine shared `AREA`. A new control connection gets a
/// new area.
static AREA_INODE: AtomicU64 = AtomicU64::new(0);
/// True if this process has mapped `AREA`. False in a forked child, whose area belongs to its parent.
static MAPPED: AtomicBool = AtomicBool::new(false);

/// Asks the engine for a slot of shared memory for the offloaded connection `fd`. Returns the slot, and the
/// number of microseconds for which a receive polls before it sleeps. Leaves errno unchanged.
///
/// # Errors
/// EOPNOTSUPP if the engine never shares memory. Any other errno if only this connection gets no slot now.
pub fn adopt(fd: RawFd) -> Result<(Slot, i32), c_int> {
    let reply = ask_for_memory(fd)?;
    let slot = area().ok_or(libc::ENOMEM)?.slot(usize::try_from(reply.number).unwrap_or(usize::MAX));
    slot.map(|slot| (slot, reply.name)).ok_or(libc::EPROTO)
}

/// Asks the engine for shared memory without a slot, and for slots for new connections. Leaves errno unchanged.
///
/// # Errors
/// As [`adopt`].
pub fn share() -> Result<(), c_int> {
    ask_for_memory(-1).map(|_| ())
}

fn ask_for_memory(fd: RawFd) -> Result<Message, c_int> {
    let before = crate::errno();
    let reply = without_cancellation(|| {
        // Give up if another thread uses the kept control connection, or if it belongs to another process, such
        // as the parent of a vfork. Slots of the shared memory can be requested only over this connection.
        if is_shared_by_vfork() || IN_USE.swap(true, Ordering::Acquire) {
            return Err(libc::EBUSY);
        }
        let reply = kept().ok_or(libc::ENOTCONN).and_then(|(control, _)| ask_on(control, fd));
        if reply == Err(libc::ENOTCONN) {
            drop_kept();
        }
        IN_USE.store(false, Ordering::Release);
        reply
    });
    crate::set_errno(before);
    reply
}

fn ask_on(control: RawFd, fd: RawFd) -> Result<Message, c_int> {
    let inode = INODE.load(Ordering::Relaxed);
    let mut message = Message::new(Operation::Adopt);
    message.number = i32::from(AREA_INODE.load(Ordering::Relaxed) == inode);
    let (reply, passed) = exchange(control, &message, fd, LONGEST_WAIT).map_err(|_| libc::ENOTCONN)?;
    if let Some(passed) = passed {
        // SAFETY: the system chooses a free address, so the mapping replaces no memory of this process.
        // `passed` was just received, and is closed once.
        let start = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let start = match usize::try_from(reply.level).ok().and_then(Area::len) {
                Some(len) => libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, passed, 0),
                None => libc::MAP_FAILED,
            };
            libc::close(passed);
            start
        };
        AREA_INODE.store(inode, Ordering::Relaxed);
        let start = if start == libc::MAP_FAILED { std::ptr::null_mut() } else { start };
        AREA.store(start.cast(), Ordering::Release);
        MAPPED.store(true, Ordering::Relaxed);
        area().iter().for_each(|area| {
            area.from_start().store(1, Ordering::Relaxed);
            area.keeps().store(u64::from(!parked::is_stopped()), Ordering::SeqCst);
        });
    }
    if reply.status == 0 { Ok(reply) } else { Err(reply.status) }
}

/// Returns the memory that the engine shares with this process. Returns `None` if the engine has not shared
/// it yet.
pub fn area() -> Option<Area> {
    let start = NonNull::new(AREA.load(Ordering::Acquire))?;
    // SAFETY: the engine has created the area, and it was mapped before its address was stored in `AREA`. Areas are never
    // unmapped.
    unsafe { Area::mapped(start) }
}

/// Returns true if the engine shares memory with this process over the present control connection.
pub fn has_present_area() -> bool {
    has_mapped_area() && AREA_INODE.load(Ordering::Relaxed) == INODE.load(Ordering::Relaxed)
}

/// Returns true if this process has mapped the memory that [`area`] returns. A forked child finds its parent's memory, and
/// must not leave the receive rings of the parent.
pub fn has_mapped_area() -> bool {
    MAPPED.load(Ordering::Relaxed)
}

fn drop_kept() {
    let fd = CONNECTION.swap(-1, Ordering::Relaxed);
    if fd >= 0 && inode(fd) == Some(INODE.load(Ordering::Relaxed)) {
        // SAFETY: the inode shows that the descriptor is this library's.
        unsafe { libc::close(fd) };
    }
}

fn exchange(
    fd: RawFd,
    message: &Message,
    attached: RawFd,
    limit: c_int,
) -> Result<(Message, Option<RawFd>), Unanswered> {
    let attached = [attached];
    if !send(fd, &message.encode(), if attached[0] >= 0 { &attached } else { &[] }) {
        return Err(Unanswered::Gone);
    }
    let is_kept = fd == CONNECTION.load(Ordering::Relaxed);
    if !message.operation.has_reply() {
        UNANSWERED.fetch_add(u32::from(is_kept), Ordering::Relaxed);
        return Ok((*message, None));
    }
    let mut bytes = [0; message::LEN];
    let start = if limit < LONGEST_WAIT { now_ns() } else { 0 };
    let early = poll_reply(fd, &mut bytes);
    let (len, passed) = loop {
        if early.is_none() && limit < LONGEST_WAIT && !is_readable_within(fd, start, limit) {
            return Err(Unanswered::Silent);
        }
        match early.unwrap_or_else(|| receive(fd, &mut bytes, libc::MSG_CMSG_CLOEXEC)) {
            (len, _) if len < 0 && crate::errno() == libc::EINTR => {}
            (len, _) if len < 0 && crate::errno() == libc::EAGAIN => return Err(Unanswered::Silent),
            outcome => break outcome,
        }
    };
    if is_kept {
        UNANSWERED.store(0, Ordering::Relaxed);
    }
    let received = usize::try_from(len).map_or(&bytes[..0], |len| &bytes[..len]);
    OTHER_VERSION.store(message::other_version(received).unwrap_or(0), Ordering::Relaxed);
    let reply = Message::decode(received);
    match reply {
        Some(reply) if reply.operation == message.operation => Ok((reply, passed)),
        _ => {
            if let Some(passed) = passed {
                // SAFETY: the descriptor was just received, and no other code uses it.
                unsafe { libc::close(passed) };
            }
            Err(Unanswered::Gone)
        }
    }
}

/// Waits until `fd` is readable. Returns false if it is not readable `limit` milliseconds after the time `start`.
#[cold]
fn is_readable_within(fd: RawFd, start: u64, limit: c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        let passed = now_ns().saturating_sub(start) / 1_000_000;
        let rest = limit - c_int::try_from(passed).unwrap_or(limit).min(limit);
        // SAFETY: the structure outlives the call.
        match unsafe { real::poll(&mut poll, 1, rest) } {
            -1 if crate::errno() == libc::EINTR => {}
            count => return count == 1,
        }
    }
}

/// Receives a reply by polling, because the engine would have to wake a sleeping thread. Returns `None` if no
/// reply arrives within the polling time of waits for sockets.
fn poll_reply(fd: RawFd, bytes: &mut [u8]) -> Option<(isize, Option<RawFd>)> {
    let limit = polling::time_ns();
    let start = if limit > 0 { now_ns() } else { 0 };
    while limit > 0 && now_ns().saturating_sub(start) < limit {
        match receive(fd, bytes, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) {
            // Yield, because the engine may be waiting for this processor.
            // SAFETY: has no preconditions.
            (-1, _) if crate::errno() == libc::EAGAIN => drop(unsafe { libc::sched_yield() }),
            (-1, _) => return None,
            reply => return Some(reply),
        }
    }
    None
}

/// The space for up to two descriptors in a message's control data.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// Sends a message with at most two descriptors.
fn send(fd: RawFd, bytes: &[u8], attached: &[RawFd]) -> bool {
    debug_assert!(attached.len() <= 2);
    let len = size_of_val(attached) as u32;
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is valid. The structures outlive the call, and the control data has room for
    // the descriptors.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        if !attached.is_empty() {
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(len) as _;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(len) as _;
            let place = libc::CMSG_DATA(first);
            place.copy_from_nonoverlapping(attached.as_ptr().cast(), len as usize);
        }
        loop {
            if real::sendmsg(fd, &header, libc::MSG_NOSIGNAL) == bytes.len() as isize {
                return true;
            }
            if crate::errno() != libc::EINTR {
                return false;
            }
        }
    }
}

/// Receives a message of at most `bytes.len()` bytes. Returns the result of recvmsg, and the descriptor that
/// came with the message.
pub fn receive(fd: RawFd, bytes: &mut [u8], flags: c_int) -> (isize, Option<RawFd>) {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: as in `send`. The kernel writes whole control messages, which the returned length covers.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(4) as _;
        let len = real::recvmsg(fd, &mut header, flags);
        if len < 0 {
            return (len, None);
        }
        let first = libc::CMSG_FIRSTHDR(&header);
        let passed = !first.is_null()
            && (*first).cmsg_level == libc::SOL_SOCKET
            && (*first).cmsg_type == libc::SCM_RIGHTS
            && (*first).cmsg_len as usize >= libc::CMSG_LEN(4) as usize;
        (len, passed.then(|| libc::CMSG_DATA(first).cast::<c_int>().read_unaligned()))
    }
}

/// Asks the engine for a socket's addresses.
pub fn addresses(fd: RawFd) -> Option<Message> {
    let (reply, _) = request(&mut Message::new(Operation::Addresses), fd)?;
    (reply.status == 0).then_some(reply)
}

/// Tells the engine that a socket stays with the kernel, and why.
pub fn report_kernel(mut message: Message, reason: &[u8]) {
    message.operation = Operation::Kernel;
    message.set_value(reason);
    request(&mut message, -1);
}
