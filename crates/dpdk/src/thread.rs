//! Assigns DPDK's lcore ids to threads. A thread with an id has a cache in every mempool. Without an id, each
//! allocation uses the mempool's shared ring, which is slower. A thread gets an id at its first use of a
//! queue or a pool.

use crate::{pool, sys};
use std::cell::RefCell;

thread_local! {
    static REGISTERED: RefCell<Option<ThreadGuard>> = const { RefCell::new(None) };
}

/// Holds the lcore id of this thread. Create it before the first use of a queue or a pool. Dropping it
/// returns the thread's cached buffers to their pools, and frees the id.
#[derive(Debug)]
pub struct ThreadGuard {
    // A raw pointer is not `Send`, so the guard stays on the thread that created it.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl ThreadGuard {
    /// Registers the calling thread. Returns `None` if DPDK has not started, the thread is already
    /// registered, or none of the 128 ids is free. A thread without an id works, but more slowly.
    pub fn new() -> Option<Self> {
        // SAFETY: the call reads a thread-local value. LCORE_ID_ANY is u32::MAX.
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
        // SAFETY: the call reads a thread-local value.
        pool::flush_caches(unsafe { sys::inlane_lcore() });
        // SAFETY: this thread registered itself, because the guard is not `Send`.
        unsafe { sys::rte_thread_unregister() }
    }
}

/// Registers the calling thread. The C files call this function for a thread without an lcore id.
#[unsafe(no_mangle)]
extern "C" fn inlane_dpdk_register_thread() {
    // Do nothing if the thread is ending and its thread-local values are already destroyed. The thread then
    // gets no lcore id.
    let _ = REGISTERED.try_with(|registered| {
        let mut registered = registered.borrow_mut();
        if registered.is_none() {
            *registered = ThreadGuard::new();
        }
    });
}
