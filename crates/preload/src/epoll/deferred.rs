//! Defers changes of epoll registrations until the library asks the kernel for events.
//!
//! Event-driven programs change registrations often: redis-benchmark calls epoll_ctl five times for each
//! request. While shared memory has events (module `ready`), the kernel's registrations are not used. Most
//! changes cancel each other. So this module changes only the table, and later passes the result to the
//! kernel:
//!
//! ```text
//! epoll_ctl MOD, DEL, and ADD after a deferred DEL ---> the table
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

use super::instance::{self, Instance, thread};
use super::table::{self, ADDED, Entry, KNOWN, REGISTERED};
use super::{ready, watched_entries};
use crate::{direct, errno, memory, real, set_errno};
use libc::{c_int, epoll_event};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// The number of times that a thread yields while another thread is flushing. Afterwards it continues without
/// waiting.
const YIELDS: u32 = 1000;

/// Bit n is set if the watched registration of slot n may have a deferred change.
static CHANGED: AtomicU64 = AtomicU64::new(0);
/// The thread that is flushing, or 0.
static FLUSHING: AtomicUsize = AtomicUsize::new(0);
/// True if the process had several threads at the last epoll_ctl of the kernel.
static THREADED: AtomicBool = AtomicBool::new(false);
/// True while the process's only thread is in a call that may look at the kernel's registrations.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Flushes the deferred changes. If `fd` is an epoll instance, defers none of its changes from now on. Call
/// this before `fd` is duplicated, or before another instance watches it.
pub fn share(fd: RawFd) {
    if let Some(instance) = instance::of(fd).filter(|instance| instance.is_created()) {
        flush();
        instance.share();
    }
}

/// Flushes, and defers no further changes of the existing epoll instances. Call this before the process passes
/// descriptors to another process.
pub fn share_all() {
    flush();
    instance::share_all();
}

/// Flushes, and forgets what the kernel has. Call this before a function of the C library closes descriptors
/// that the caller does not know.
pub fn forget_all() {
    flush();
    watched_entries().for_each(|(_, _, entry)| entry.kernel.store(0, Ordering::Relaxed));
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

/// Returns true if the library must forget something when `fd` is closed.
#[inline]
pub fn is_known(fd: RawFd) -> bool {
    direct::slot(fd).is_some() || instance::of(fd).is_some_and(Instance::is_used)
}

/// Forgets what the kernel has for `fd`. If `fd` is an epoll instance, defers none of its changes from now on. Call this
/// after a flush, and before `fd` is closed.
pub fn forget(fd: RawFd) {
    if let Some(entry) = table::entry(fd) {
        entry.kernel.store(0, Ordering::Relaxed);
    }
    if let Some(instance) = instance::of(fd) {
        instance.share();
    }
}

/// Records that the kernel has the registration in `entry`, if its changes may be deferred. Call this after a
/// successful epoll_ctl of the kernel.
pub fn note_kernel(entry: &Entry) {
    // Threads do not use what the kernel has, and would slow each other by writes to it.
    let threaded = !real::is_single_threaded();
    if threaded != THREADED.load(Ordering::Relaxed) {
        THREADED.store(threaded, Ordering::Relaxed);
        forget_all();
    }
    if threaded {
        return;
    }
    // The end of a watch also forgets what the kernel has.
    if entry.inode.load(Ordering::Relaxed) == 0 {
        return;
    }
    let wanted = entry.wanted.load(Ordering::Relaxed);
    entry.kernel_data.store(entry.data.load(Ordering::Relaxed), Ordering::Relaxed);
    let kernel = if wanted & REGISTERED != 0 { KNOWN | wanted } else { 0 };
    entry.kernel.store(kernel, Ordering::Relaxed);
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
    let Some((slot, index)) = ready::slot(fd) else { return false };
    let (Some(entry), Some(of_instance)) = (table::entry(fd), instance::of(instance)) else { return false };
    let wanted = entry.wanted.load(Ordering::Relaxed);
    let expected = operation != libc::EPOLL_CTL_ADD;
    if entry.kernel.load(Ordering::Relaxed) & REGISTERED == 0
        || entry.instance.load(Ordering::Relaxed) != instance
        || !table::is_watched(index, fd)
        || entry.inode.load(Ordering::Relaxed) != slot.header().inode.load(Ordering::Relaxed)
        || (wanted & REGISTERED != 0) != expected
        || ENTERED.load(Ordering::Relaxed)
        || !of_instance.is_private()
        || !of_instance.waits_alone()
    {
        return false;
    }
    match operation {
        libc::EPOLL_CTL_DEL => {
            entry.wanted.store(0, Ordering::Relaxed);
            of_instance.stop_watching(1 << index);
        }
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            // SAFETY: the caller promises the program's pointer.
            let Some(event) = (unsafe { memory::read(event) }) else { return false };
            if event.events & !ready::SUPPORTED != 0 {
                return false;
            }
            let added = if operation == libc::EPOLL_CTL_ADD { ADDED } else { wanted & ADDED };
            entry.data.store(event.u64, Ordering::Relaxed);
            entry.wanted.store(REGISTERED | added | u64::from(event.events), Ordering::Relaxed);
            ready::set_events(of_instance, index, event.events);
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
    let thread = thread();
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
        if let Some((fd, entry)) = table::watched(changed.trailing_zeros() as usize) {
            pass_on(fd, entry);
        }
    }
    if claimed {
        FLUSHING.store(0, Ordering::Release);
    }
    set_errno(before);
}

/// Makes the kernel's registration of `fd` equal to the wanted one in `entry`. May change errno.
fn pass_on(fd: RawFd, entry: &Entry) {
    // Repeat, because a signal handler may change the wanted registration meanwhile.
    loop {
        let wanted = entry.wanted.load(Ordering::Relaxed);
        let data = entry.data.load(Ordering::Relaxed);
        let kernel = entry.kernel.load(Ordering::Relaxed);
        let exists = wanted & REGISTERED != 0;
        let same = kernel == KNOWN | wanted & !ADDED
            && (!exists || data == entry.kernel_data.load(Ordering::Relaxed));
        if kernel & KNOWN == 0 || same {
            return;
        }
        let instance = entry.instance.load(Ordering::Relaxed);
        let mut event = epoll_event { events: wanted as u32, u64: data };
        let mut control = |operation| {
            // SAFETY: the event outlives the call.
            unsafe { real::epoll_ctl(instance, operation, fd, &mut event) == 0 }
        };
        let mut done = control(if exists { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_DEL });
        if !done && exists && wanted & ADDED != 0 && errno() == libc::ENOENT {
            // The program removed the registration and then closed the descriptor. This library did not see
            // the close. The registration that the program added later is for a new file.
            done = control(libc::EPOLL_CTL_ADD);
        }
        if !done {
            // The descriptor was closed unseen.
            return entry.kernel.store(0, Ordering::Relaxed);
        }
        entry.kernel_data.store(data, Ordering::Relaxed);
        entry.kernel.store(KNOWN | wanted & !ADDED, Ordering::Relaxed);
        let _ = entry.wanted.compare_exchange(wanted, wanted & !ADDED, Ordering::Relaxed, Ordering::Relaxed);
    }
}
