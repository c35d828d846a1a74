//! DPDK's lcore ids of threads. A thread with an id has a cache in every mempool; without one, each of its allocations uses the shared
//! ring. A thread gets an id when it first uses a queue or a pool, and returns it when it ends.

use crate::{pool, sys};
use std::cell::RefCell;

thread_local! {
    static REGISTERED: RefCell<Option<ThreadGuard>> = const { RefCell::new(None) };
}

/// The lcore id of this thread. Dropping it returns the contents of the thread's caches to the pools.
///
/// Use it only to get the id before the first burst: queues and pools register the threads that use them.
#[derive(Debug)]
pub struct ThreadGuard {
    // Keeps the guard on the thread that made it.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl ThreadGuard {
    /// Registers the calling thread. Returns `None` if DPDK has not started, if the thread is registered already, or if none
    /// of the 128 ids is free. Without an id everything works, but more slowly.
    pub fn new() -> Option<Self> {
        // SAFETY: reads a thread-local; LCORE_ID_ANY is u32::MAX.
        if !crate::eal::is_started() || unsafe { sys::inlane_lcore() } != u32::MAX {
            return None;
        }
        // SAFETY: the environment is up. The call concerns this thread alone.
        let outcome = unsafe { sys::rte_thread_register() };
        if outcome < 0 {
            tracing::warn!(
                error = sys::error_text(sys::last_error()),
                "all lcore ids are in use: this thread allocates packets without a cache, which is slower"
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

/// Registers the calling thread. `burst.c` calls it for a burst of a thread that has no lcore id.
#[unsafe(no_mangle)]
extern "C" fn inlane_dpdk_register_thread() {
    // A thread whose locals are being destroyed stays without an id.
    let _ = REGISTERED.try_with(|registered| {
        let mut registered = registered.borrow_mut();
        if registered.is_none() {
            *registered = ThreadGuard::new();
        }
    });
}
