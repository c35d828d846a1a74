//! Closes descriptors that programs have sent, on threads of its own, because such a close can block: that of a TCP
//! socket with `SO_LINGER` and unsent data, of a file of a FUSE file system, or of a UNIX socket in whose queue such
//! descriptors wait.
//!
//! Descriptors that wait here count towards the engine's limit of open files. So a program can make the closer
//! [full](Closer::is_full). The engine then leaves descriptors in the queues of their sockets, and removes these sockets.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most threads that close descriptors at the same time.
const MOST_THREADS: usize = 16;
/// How long a thread waits for further descriptors before it ends.
const IDLE: Duration = Duration::from_secs(10);
/// The most descriptors that the engine keeps free for the closer.
const MOST_RESERVED: usize = 8192;

/// Descriptors that are closed together.
struct Batch {
    descriptors: Vec<OwnedFd>,
    /// Is dropped once the descriptors are closed.
    place: Option<Box<dyn Send>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Batch>,
    threads: usize,
    idle: usize,
}

/// Closes descriptors on threads of its own. Starts a thread when there is something to close and no thread is idle.
pub struct Closer {
    state: Mutex<State>,
    filled: Condvar,
    /// The number of descriptors that are not closed yet.
    held: AtomicUsize,
    /// The number of descriptors at which the closer is full.
    full_at: usize,
    /// Descriptors from this number on are reserved for the closer.
    reserved_from: i32,
    /// The cores on which the process may run. The engine's threads may be pinned, and new threads inherit that.
    cores: libc::cpu_set_t,
}

impl Closer {
    /// Creates a closer without threads. Call this before the engine's threads are pinned, and after the limit of open
    /// files is raised.
    pub fn new() -> Arc<Self> {
        let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
        // SAFETY: an all-zero cpu_set_t is a valid, empty set. The structures outlive the calls.
        let cores = unsafe {
            let mut cores: libc::cpu_set_t = std::mem::zeroed();
            libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut cores);
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
            cores
        };
        let limit = limit.rlim_cur.min(i32::MAX as libc::rlim_t) as usize;
        let reserved = (limit / 4).min(MOST_RESERVED);
        Arc::new(Self {
            state: Mutex::default(),
            filled: Condvar::new(),
            held: AtomicUsize::new(0),
            // Each thread of the engine may receive one message with 253 descriptors beyond this number.
            full_at: reserved / 8,
            reserved_from: (limit - reserved) as i32,
            cores,
        })
    }

    /// Returns true if so many descriptors wait to be closed that the engine must receive no further ones.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= self.full_at
    }

    /// Creates a closer that is full if `full_at` descriptors wait.
    #[cfg(test)]
    pub fn with_room(full_at: usize) -> Arc<Self> {
        let closer = Arc::into_inner(Self::new()).expect("the closer has no thread");
        Arc::new(Self { full_at, ..closer })
    }

    /// Returns the number of descriptors that are not closed yet.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns true if a new descriptor has a number that is reserved for descriptors of the closer. Then the engine must
    /// not keep it: the kernel closes a descriptor at once that a program sends to a process without a free number.
    pub fn is_reserved(&self, descriptor: &OwnedFd) -> bool {
        descriptor.as_raw_fd() >= self.reserved_from
    }

    /// Closes descriptors on another thread, then drops `place`.
    #[cold]
    pub fn close(self: &Arc<Self>, descriptors: Vec<OwnedFd>, place: Option<Box<dyn Send>>) {
        if descriptors.is_empty() {
            return;
        }
        self.held.fetch_add(descriptors.len(), Ordering::Relaxed);
        let mut state = self.lock();
        state.waiting.push_back(Batch { descriptors, place });
        if state.waiting.len() > state.idle && state.threads < MOST_THREADS {
            let this = self.clone();
            let thread = std::thread::Builder::new().name("inlane-closer".into());
            // If no thread can be started, the next call tries again.
            if thread.spawn(move || this.run()).is_ok() {
                state.threads += 1;
            }
        }
        drop(state);
        self.filled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // SAFETY: the set lives through the call, and 0 is the calling thread.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.cores) };
        let mut state = self.lock();
        loop {
            if let Some(Batch { descriptors, place }) = state.waiting.pop_front() {
                drop(state);
                for descriptor in descriptors {
                    drop(descriptor);
                    self.held.fetch_sub(1, Ordering::Relaxed);
                }
                drop(place);
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let (guard, timeout) =
                self.filled.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if timeout.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
