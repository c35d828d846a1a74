//! The threads and children of this process that could change its symmetric memory.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of threads that this library and UCX have started in this process.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Sets the number of this library's own threads.
pub fn set_own(count: usize) {
    OWN.store(count, Ordering::Relaxed);
}

/// Returns the number of threads of this process. Returns 0 if the system does not list them.
pub fn count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Returns true if the program has only one thread and no child, so nobody else changes memory of this process.
pub fn is_alone() -> bool {
    count() == OWN.load(Ordering::Relaxed) + 1 && !has_children()
}

/// Returns true if this process has a child that has not ended, or whose status was not read.
fn has_children() -> bool {
    let mut found = std::mem::MaybeUninit::<libc::siginfo_t>::uninit();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the call writes only to `found`. WNOWAIT leaves the status of a child to the program.
    unsafe { libc::waitid(libc::P_ALL, 0, found.as_mut_ptr(), options) == 0 }
}
