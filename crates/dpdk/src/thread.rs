//! Threads and lcore ids: a thread with an lcore id has a cache in every mempool, without one each allocation goes to the
//! shared ring. Any thread that drives a queue or a pool gets its id at its first burst and gives it back when it ends.

use crate::{pool, sys};
use std::cell::RefCell;

thread_local! {
    static ENROLLED: RefCell<Option<ThreadGuard>> = const { RefCell::new(None) };
}

/// An lcore id held by this thread; dropping it hands the thread's mempool caches back to all.
///
/// Needed only by who wants the id before the first burst: queues and pools enrol the threads that use them.
#[derive(Debug)]
pub struct ThreadGuard {
    // Belongs to the thread that made it.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl ThreadGuard {
    /// Registers the calling thread; `None` when DPDK has not started, has no lcore id left (it has 128) or the
    /// thread has one already. Work goes on without, slower.
    pub fn new() -> Option<Self> {
        // SAFETY: reads a thread-local; LCORE_ID_ANY is u32::MAX.
        if !crate::eal::is_started() || unsafe { sys::inlane_lcore() } != u32::MAX {
            return None;
        }
        // SAFETY: the environment is up; the call concerns this thread alone.
        let outcome = unsafe { sys::rte_thread_register() };
        if outcome < 0 {
            tracing::warn!(
                error = sys::error_text(sys::last_error()),
                "no lcore id left: this thread's mempool calls go uncached"
            );
            return None;
        }
        Some(Self { _not_send: std::marker::PhantomData })
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        // SAFETY: reads a thread-local.
        pool::flush_caches(unsafe { sys::inlane_lcore() });
        // SAFETY: registered by this thread (the guard is not Send).
        unsafe { sys::rte_thread_unregister() }
    }
}

/// Called from `inline.c` when a thread without an lcore id drives a burst.
#[unsafe(no_mangle)]
extern "C" fn inlane_dpdk_enrol_thread() {
    // While the thread's locals are being destroyed it stays without an id: slower, not wrong.
    let _ = ENROLLED.try_with(|enrolled| {
        let mut enrolled = enrolled.borrow_mut();
        if enrolled.is_none() {
            *enrolled = ThreadGuard::new();
        }
    });
}
