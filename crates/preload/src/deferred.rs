//! Defers changes of epoll registrations until the library asks the kernel for events.
//!
//! Event-driven programs change registrations often: redis-benchmark calls epoll_ctl five times for each
//! request. While shared memory has events (module `ready`), the kernel's registrations are not used. Most
//! changes cancel each other. So this module remembers the changes, and later passes only their result to the
//! kernel:
//!
//! ```text
//! epoll_ctl MOD, DEL, and ADD after a deferred DEL ---> remembered
//! epoll_wait that asks the kernel, poll, close,
//! dup, fork, exec, and any other epoll_ctl         ---> flush: one epoll_ctl for each changed registration
//! ```
//!
//! A change is deferred only under these conditions. Then only this library can notice the difference:
//!
//! * The process has one thread, and this thread waits for the events of the epoll instance.
//! * The process has created the instance, and has not passed it on by fork, dup or SCM_RIGHTS, or added it
//!   to another instance.
//! * The kernel has the registration, so the deferred call cannot fail.

use crate::{direct, epoll, errno, memory, ready, real, set_errno};
use inlane_offload_protocol::lease::SLOTS;
use libc::{c_int, epoll_event};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Changes in epoll instances with higher descriptors are never deferred.
const MOST: usize = 1024;
/// The flag of `wanted` and `kernel` for a registration that exists. The lower half holds its events.
const REGISTERED: u64 = 1 << 63;
/// The flag in `wanted` for a registration that the program has removed and then added again.
const ADDED: u64 = 1 << 62;
/// The number of times that a thread yields while another thread is flushing. Afterwards it continues without
/// waiting.
const YIELDS: u32 = 1000;

/// The epoll registration of one connection: what the program has requested, and what the kernel has.
struct Registration {
    /// The descriptor plus 1; 0 if nothing is remembered.
    fd: AtomicI32,
    instance: AtomicI32,
    /// The inode of the connection.
    inode: AtomicU64,
    wanted: AtomicU64,
    wanted_data: AtomicU64,
    kernel: AtomicU64,
    kernel_data: AtomicU64,
}

/// The registrations. Element n belongs to the connection that uses slot n of shared memory.
static REGISTRATIONS: [Registration; SLOTS] = [const {
    Registration {
        fd: AtomicI32::new(0),
        instance: AtomicI32::new(0),
        inode: AtomicU64::new(0),
        wanted: AtomicU64::new(0),
        wanted_data: AtomicU64::new(0),
        kernel: AtomicU64::new(0),
        kernel_data: AtomicU64::new(0),
    }
}; SLOTS];

/// Bit n is set if the registration of slot n may have a deferred change.
static CHANGED: AtomicU64 = AtomicU64::new(0);
/// The thread that is flushing, or 0.
static FLUSHING: AtomicUsize = AtomicUsize::new(0);
/// True if the process had several threads at the last epoll_ctl of the kernel.
static THREADED: AtomicBool = AtomicBool::new(false);
/// True while the process's only thread is in a call that may look at the kernel's registrations.
static ENTERED: AtomicBool = AtomicBool::new(false);
/// The current epoch. A new one begins when the process passes on descriptors.
static EPOCH: AtomicU32 = AtomicU32::new(1);
/// The epoch in which the process created the epoll instance with descriptor n, or 0. The instance is private while
/// this is the current epoch.
static CREATED: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];

fn created(instance: RawFd) -> Option<&'static AtomicU32> {
    usize::try_from(instance).ok().and_then(|instance| CREATED.get(instance))
}

/// Returns true if no other process or descriptor can reach the epoll instance.
fn is_private(instance: RawFd) -> bool {
    created(instance).is_some_and(|created| created.load(Ordering::Relaxed) == EPOCH.load(Ordering::Relaxed))
}

/// Records that the process has created the epoll instance `instance`, which may be -1 after a failure. Forgets the
/// registrations of an earlier instance with this descriptor.
pub fn note_created(instance: RawFd) {
    for registration in &REGISTRATIONS {
        if registration.instance.load(Ordering::Relaxed) == instance {
            registration.fd.store(0, Ordering::Relaxed);
        }
    }
    if let Some(created) = created(instance) {
        created.store(EPOCH.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Flushes the deferred changes. If `fd` is an epoll instance, defers none of its changes from now on. Call
/// this before `fd` is duplicated, or before another instance watches it.
pub fn share(fd: RawFd) {
    if let Some(created) = created(fd)
        && created.load(Ordering::Relaxed) != 0
    {
        flush();
        created.store(0, Ordering::Relaxed);
    }
}

/// Flushes, and defers no further changes of the existing epoll instances. Call this before the process passes
/// descriptors to another process.
pub fn share_all() {
    flush();
    // 0 stands for instances that were not created here.
    let next = EPOCH.load(Ordering::Relaxed).checked_add(1).unwrap_or(1);
    EPOCH.store(next, Ordering::Relaxed);
}

/// Flushes, and forgets all registrations. Call this before a function of the C library closes descriptors that the
/// caller does not know.
pub fn forget_all() {
    flush();
    for registration in &REGISTRATIONS {
        registration.fd.store(0, Ordering::Relaxed);
    }
}

/// While this value lives, all changes go to the kernel at once.
pub struct Entered {
    before: bool,
}

/// Flushes, and begins a call that may look at the kernel's registrations. Drop the result after the call. A signal
/// handler may change a registration after the flush, and the call must see this change.
#[inline]
pub fn enter() -> Option<Entered> {
    let entered = real::is_single_threaded().then(|| {
        let before = ENTERED.load(Ordering::Relaxed);
        ENTERED.store(true, Ordering::Relaxed);
        Entered { before }
    });
    flush();
    entered
}

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.store(self.before, Ordering::Relaxed);
    }
}

/// Shares all epoll instances before each fork of the process.
pub fn share_at_fork() {
    extern "C" fn prepare() {
        share_all();
    }
    real::at_fork(Some(prepare), None);
}

/// Flushes, and forgets the registration of `fd`. Call this before `fd` is closed.
#[inline]
pub fn note_closing(fd: RawFd) {
    flush();
    if let Some((_, registration)) = remembered(fd) {
        registration.fd.store(0, Ordering::Relaxed);
    }
    if let Some(created) = created(fd) {
        created.store(0, Ordering::Relaxed);
    }
}

/// Returns the stored registration of the descriptor, with the index of its slot in shared memory.
#[inline]
fn remembered(fd: RawFd) -> Option<(usize, &'static Registration)> {
    let slot = direct::slot(fd)?;
    let index = ready::index_of(slot)?;
    let registration = &REGISTRATIONS[index];
    let same = registration.fd.load(Ordering::Relaxed) == fd + 1
        && registration.inode.load(Ordering::Relaxed) == slot.header().inode.load(Ordering::Relaxed);
    same.then_some((index, registration))
}

/// Records the kernel's registration of `fd` in `instance`. `event` is `None` if the program has removed the
/// registration. Call this after a successful epoll_ctl of the kernel, and after `ready` has recorded the
/// event.
pub fn note_kernel(instance: RawFd, fd: RawFd, event: Option<epoll_event>) {
    // Threads do not use the table, and would slow each other by writes to it.
    let threaded = !real::is_single_threaded();
    if threaded != THREADED.load(Ordering::Relaxed) {
        THREADED.store(threaded, Ordering::Relaxed);
        forget_all();
    }
    if threaded {
        return;
    }
    let Some(event) = event.filter(|_| ready::watches(instance, fd)) else {
        return forget(instance, fd);
    };
    let Some(slot) = direct::slot(fd) else { return };
    let Some(index) = ready::index_of(slot) else { return };
    let registration = &REGISTRATIONS[index];
    registration.fd.store(0, Ordering::Relaxed);
    registration.instance.store(instance, Ordering::Relaxed);
    registration.inode.store(slot.header().inode.load(Ordering::Relaxed), Ordering::Relaxed);
    for (state, data) in
        [(&registration.wanted, &registration.wanted_data), (&registration.kernel, &registration.kernel_data)]
    {
        state.store(REGISTERED | u64::from(event.events), Ordering::Relaxed);
        data.store(event.u64, Ordering::Relaxed);
    }
    registration.fd.store(fd + 1, Ordering::Relaxed);
}

/// Flushes deferred changes. Then forgets the registration of the connection in slot `index` of shared
/// memory.
pub fn note_removed(index: usize) {
    flush();
    REGISTRATIONS[index].fd.store(0, Ordering::Relaxed);
}

/// Forgets the registration of `fd` in `instance`.
fn forget(instance: RawFd, fd: RawFd) {
    if let Some((_, registration)) = remembered(fd)
        && registration.instance.load(Ordering::Relaxed) == instance
    {
        registration.fd.store(0, Ordering::Relaxed);
    }
}

/// Defers a change of a registration: `operation`, `fd` and `event` are those of epoll_ctl(2). Returns false if the
/// kernel must make the change.
///
/// # Safety
/// The arguments are those of the program's call.
#[inline]
pub unsafe fn control(instance: RawFd, operation: c_int, fd: RawFd, event: *const epoll_event) -> bool {
    if !real::is_single_threaded() {
        return false;
    }
    let Some((index, registration)) = remembered(fd) else { return false };
    let wanted = registration.wanted.load(Ordering::Relaxed);
    let expected = operation != libc::EPOLL_CTL_ADD;
    if registration.instance.load(Ordering::Relaxed) != instance
        || registration.kernel.load(Ordering::Relaxed) & REGISTERED == 0
        || (wanted & REGISTERED != 0) != expected
        || ENTERED.load(Ordering::Relaxed)
        || !is_private(instance)
        || !ready::waits_alone(instance)
    {
        return false;
    }
    match operation {
        libc::EPOLL_CTL_DEL => {
            registration.wanted.store(0, Ordering::Relaxed);
            epoll::forget(instance, fd);
            ready::note_removed(instance, fd);
        }
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            // SAFETY: the caller promises the program's pointer.
            let Some(event) = (unsafe { memory::read(event) }) else { return false };
            if event.events & !ready::SUPPORTED != 0 {
                return false;
            }
            let added = if operation == libc::EPOLL_CTL_ADD { ADDED } else { wanted & ADDED };
            registration.wanted_data.store(event.u64, Ordering::Relaxed);
            registration.wanted.store(REGISTERED | added | u64::from(event.events), Ordering::Relaxed);
            epoll::remember(instance, fd, event);
            ready::note_registered(instance, fd, event);
        }
        _ => return false,
    }
    // Store the change before its bit, because a signal handler that finds the bit also flushes the change.
    fence(Ordering::Release);
    let bit = 1 << index;
    if CHANGED.load(Ordering::Relaxed) & bit == 0 {
        CHANGED.fetch_or(bit, Ordering::Relaxed);
    }
    true
}

/// Passes all deferred changes to the kernel. Call this before the kernel or another process uses an epoll instance.
/// Leaves errno unchanged.
#[inline]
pub fn flush() {
    if CHANGED.load(Ordering::Relaxed) != 0 || FLUSHING.load(Ordering::Relaxed) != 0 {
        flush_changed();
    }
}

fn flush_changed() {
    let before = errno();
    // The process may have started its second thread since a change was deferred. Both threads may then run
    // this function at the same time.
    let thread = ready::thread();
    let mut claimed = false;
    for _ in 0..YIELDS {
        match FLUSHING.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => claimed = true,
            // A signal handler has interrupted this thread while it was flushing.
            Err(flushing) if flushing == thread => {}
            Err(_) => {
                // SAFETY: has no preconditions.
                unsafe { libc::sched_yield() };
                continue;
            }
        }
        break;
    }
    loop {
        // Clear one bit at a time, because a signal handler may flush the rest, or leave this function by longjmp.
        let changed = CHANGED.load(Ordering::Acquire);
        if changed == 0 {
            break;
        }
        CHANGED.fetch_and(!(changed & changed.wrapping_neg()), Ordering::Acquire);
        pass_on(&REGISTRATIONS[changed.trailing_zeros() as usize]);
    }
    if claimed {
        FLUSHING.store(0, Ordering::Release);
    }
    set_errno(before);
}

/// Makes the kernel's registration equal to the wanted one. May change errno.
fn pass_on(registration: &Registration) {
    // Repeat, because a signal handler may change the wanted registration meanwhile.
    loop {
        let fd = registration.fd.load(Ordering::Relaxed) - 1;
        let wanted = registration.wanted.load(Ordering::Relaxed);
        let data = registration.wanted_data.load(Ordering::Relaxed);
        let kernel = registration.kernel.load(Ordering::Relaxed);
        let same = wanted & !ADDED == kernel
            && (kernel == 0 || data == registration.kernel_data.load(Ordering::Relaxed));
        if fd < 0 || same {
            return;
        }
        let instance = registration.instance.load(Ordering::Relaxed);
        let mut event = epoll_event { events: wanted as u32, u64: data };
        let mut control = |operation| {
            // SAFETY: the event outlives the call.
            unsafe { real::epoll_ctl(instance, operation, fd, &mut event) == 0 }
        };
        let exists = wanted & REGISTERED != 0;
        let mut done = control(if exists { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_DEL });
        if !done && exists && wanted & ADDED != 0 && errno() == libc::ENOENT {
            // The program removed the registration and then closed the descriptor. This library did not see
            // the close. The registration that the program added later is for a new file.
            done = control(libc::EPOLL_CTL_ADD);
        }
        if !done {
            // The descriptor was closed unseen.
            return registration.fd.store(0, Ordering::Relaxed);
        }
        registration.kernel_data.store(data, Ordering::Relaxed);
        registration.kernel.store(wanted & !ADDED, Ordering::Relaxed);
        let _ = registration.wanted.compare_exchange(
            wanted,
            wanted & !ADDED,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}
