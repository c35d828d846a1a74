//! Closes descriptors that programs have sent, on threads of its own, because such a close can block: that of a TCP
//! socket with `SO_LINGER` and unsent data, of a file of a FUSE file system, or of a UNIX socket in whose queue such
//! descriptors wait.
//!
//! A user may send descriptors whose close blocks for as long as they like. So each user has a queue of their own, which
//! at most [`MOST_OF_USER`] threads serve. Received descriptors count towards the engine's limit of open files until they are
//! closed. A user may hold at most as many of them as are free for the other users. Beyond that the closer is
//! [full](UserCloser::is_full) for the user: the engine leaves the user's descriptors in the queues of their sockets, and
//! removes these sockets. Other users notice nothing.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The most threads that close descriptors at the same time.
const MOST_THREADS: usize = 64;
/// The most threads that close descriptors of one user at the same time.
const MOST_OF_USER: usize = 4;
/// How long a thread waits for further descriptors before it ends.
const IDLE: Duration = Duration::from_secs(10);
/// The most descriptors that the engine keeps free for the closer.
const MOST_RESERVED: usize = 8192;

/// Descriptors that are closed together.
struct Batch {
    user: Arc<UserCloser>,
    descriptors: Vec<OwnedFd>,
    /// Is dropped once the descriptors are closed. It counts them elsewhere. `None` if the closer counts them itself.
    place: Option<Box<dyn Send>>,
}

/// The batches of one user.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Batch>,
    /// The number of threads that are closing a batch of this user.
    threads: usize,
    /// True if the user is in [`State::ready`].
    ready: bool,
}

#[derive(Default)]
struct State {
    /// The users whose descriptors wait or are being closed.
    queues: HashMap<u32, Queue>,
    /// The users whose next batch a thread may take, in turns.
    ready: VecDeque<u32>,
    threads: usize,
    idle: usize,
}

impl State {
    /// Lets a thread take the next batch of a user, unless the user occupies [`MOST_OF_USER`] threads. Forgets a user
    /// without batches.
    fn schedule(&mut self, user: u32) {
        let Some(queue) = self.queues.get_mut(&user) else { return };
        if !queue.waiting.is_empty() && queue.threads < MOST_OF_USER && !queue.ready {
            queue.ready = true;
            self.ready.push_back(user);
        } else if queue.waiting.is_empty() && queue.threads == 0 {
            self.queues.remove(&user);
        }
    }

    /// Takes the next batch of the next user.
    fn take(&mut self) -> Option<Batch> {
        let user = self.ready.pop_front()?;
        let queue = self.queues.get_mut(&user)?;
        queue.ready = false;
        let batch = queue.waiting.pop_front()?;
        queue.threads += 1;
        self.schedule(user);
        Some(batch)
    }

    /// Notes that a thread has closed a batch of a user.
    fn finish(&mut self, user: u32) {
        if let Some(queue) = self.queues.get_mut(&user) {
            queue.threads -= 1;
        }
        self.schedule(user);
    }
}

/// Closes descriptors on threads of its own. Starts a thread when there is something to close and no thread is idle.
pub struct Closer {
    state: Mutex<State>,
    filled: Condvar,
    /// The users that have a [`UserCloser`].
    users: Mutex<HashMap<u32, Weak<UserCloser>>>,
    /// The number of received descriptors of all users that are not closed yet.
    held: AtomicUsize,
    /// The number of all descriptors that are not closed yet, with those that are counted elsewhere.
    unclosed: AtomicUsize,
    /// The number of received descriptors at which the closer is full.
    full_at: usize,
    /// Descriptors from this number on are reserved for the closer.
    reserved_from: usize,
    /// The cores on which the process may run. The engine's threads may be pinned, and new threads inherit that.
    cores: libc::cpu_set_t,
}

/// Closes the descriptors that the programs of one user have sent.
pub struct UserCloser {
    closer: Arc<Closer>,
    user: u32,
    /// The number of the user's received descriptors that are not closed yet.
    held: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
            users: Mutex::default(),
            held: AtomicUsize::new(0),
            unclosed: AtomicUsize::new(0),
            // Each thread of the engine may receive one message with 253 descriptors beyond this number.
            full_at: reserved / 4,
            reserved_from: limit - reserved,
            cores,
        })
    }

    /// Creates a closer that is full if `full_at` received descriptors wait, and keeps descriptors from the number
    /// `reserved_from` on for itself.
    #[cfg(test)]
    pub fn with_room(full_at: usize, reserved_from: usize) -> Arc<Self> {
        let closer = Arc::into_inner(Self::new()).expect("the closer has no thread");
        Arc::new(Self { full_at, reserved_from, ..closer })
    }

    /// Returns the closer for the descriptors of one user.
    pub fn of_user(self: &Arc<Self>, user: u32) -> Arc<UserCloser> {
        let mut users = lock(&self.users);
        let known = users.get(&user).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let new = Arc::new(UserCloser { closer: self.clone(), user, held: AtomicUsize::new(0) });
            users.insert(user, Arc::downgrade(&new));
            new
        })
    }

    /// Returns the number of descriptors of all users that are not closed yet.
    pub fn unclosed(&self) -> usize {
        self.unclosed.load(Ordering::Relaxed)
    }

    /// Returns true if the received descriptors of all users together fill the closer.
    pub fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= self.full_at
    }

    /// Returns how many descriptors the engine may still keep after the new descriptor `descriptor`, or 0 if it must not
    /// keep this one: its number is then reserved for descriptors of the closer. The kernel closes a descriptor at once
    /// that a program sends to a process without a free number.
    pub fn free_after(&self, descriptor: &OwnedFd) -> usize {
        // The kernel chooses the lowest free number.
        self.reserved_from.saturating_sub(descriptor.as_raw_fd() as usize)
    }

    fn close(self: &Arc<Self>, batch: Batch) {
        let user = batch.user.user;
        self.unclosed.fetch_add(batch.descriptors.len(), Ordering::Relaxed);
        let mut state = lock(&self.state);
        state.queues.entry(user).or_default().waiting.push_back(batch);
        state.schedule(user);
        self.provide_thread(&mut state);
    }

    /// Wakes or starts a thread if a thread may take a batch.
    fn provide_thread(self: &Arc<Self>, state: &mut State) {
        if state.ready.len() > state.idle && state.threads < MOST_THREADS {
            let this = self.clone();
            let thread = std::thread::Builder::new().name("inlane-closer".into());
            // If no thread can be started, the next call tries again.
            if thread.spawn(move || this.run()).is_ok() {
                state.threads += 1;
            }
        } else if !state.ready.is_empty() {
            self.filled.notify_one();
        }
    }

    fn run(self: &Arc<Self>) {
        // SAFETY: the set lives through the call, and 0 is the calling thread.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.cores) };
        let mut state = lock(&self.state);
        loop {
            if let Some(Batch { user, descriptors, place }) = state.take() {
                // The same user may have a further batch.
                self.provide_thread(&mut state);
                drop(state);
                for descriptor in descriptors {
                    drop(descriptor);
                    self.unclosed.fetch_sub(1, Ordering::Relaxed);
                    if place.is_none() {
                        user.held.fetch_sub(1, Ordering::Relaxed);
                        self.held.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                drop(place);
                state = lock(&self.state);
                state.finish(user.user);
                continue;
            }
            state.idle += 1;
            let (guard, timeout) =
                self.filled.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if timeout.timed_out() && state.ready.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl UserCloser {
    /// Returns the user's ID.
    pub fn user(&self) -> u32 {
        self.user
    }

    /// Returns true if so many received descriptors of the user wait to be closed that the engine must receive no further
    /// ones from the user.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.exceeds(0)
    }

    /// Returns true if the user also holds the descriptors that a full closer may still get: duplicates of descriptors in
    /// requests, which the engine gets to see what they are.
    pub fn is_overfull(&self) -> bool {
        let margin = self.closer.full_at / 16 + 1;
        self.held.load(Ordering::Relaxed) >= margin && self.exceeds(margin)
    }

    /// Returns true if the user holds at least as many descriptors as are free, or up to `margin` fewer.
    #[inline]
    fn exceeds(&self, margin: usize) -> bool {
        let all = self.closer.held.load(Ordering::Relaxed);
        self.held.load(Ordering::Relaxed) + all >= self.closer.full_at + margin
    }

    /// Closes descriptors on another thread, then drops `place`, which counts them until then. Without a place, they count
    /// as received descriptors.
    #[cold]
    pub fn close(self: &Arc<Self>, descriptors: Vec<OwnedFd>, place: Option<Box<dyn Send>>) {
        if descriptors.is_empty() {
            return;
        }
        if place.is_none() {
            self.held.fetch_add(descriptors.len(), Ordering::Relaxed);
            self.closer.held.fetch_add(descriptors.len(), Ordering::Relaxed);
        }
        self.closer.close(Batch { user: self.clone(), descriptors, place });
    }
}

impl Drop for UserCloser {
    fn drop(&mut self) {
        let mut users = lock(&self.closer.users);
        // Another thread may have created a new closer for the user meanwhile.
        if users.get(&self.user).is_some_and(|known| known.strong_count() == 0) {
            users.remove(&self.user);
        }
    }
}
