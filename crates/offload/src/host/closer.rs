//! Closes descriptors that programs have sent. It uses threads of its own, because such a close can block. Examples are a
//! TCP socket with `SO_LINGER` and unsent data, a file of a FUSE file system, and a UNIX socket in whose queue such
//! descriptors wait.
//!
//! The program chooses how long such a close blocks. So each user has a queue, which at most [`MOST_OF_USER`] threads
//! serve. Received descriptors count towards the engine's limit of open files until they are closed. A user may hold at
//! most as many of them as are free for the other users. Beyond that, the closer is [full](UserCloser::is_full) for the
//! user: the engine leaves further descriptors in the queues of the user's sockets, and removes these sockets. Other
//! users are not affected.

use crate::lock;
use inlane_core::cores::CoreSet;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The most threads that close descriptors at the same time.
const MOST_THREADS: usize = 64;
/// The most threads that close descriptors of one user at the same time.
const MOST_OF_USER: usize = 4;
/// How long a thread waits for further descriptors before it ends.
const IDLE: Duration = Duration::from_secs(10);
/// The most descriptors that the engine reserves for the closer, without those of [`MOST_OF_MESSAGE`].
const MOST_RESERVED: usize = 8192;
/// The most descriptors that come with one message (SCM_MAX_FD). Each thread of the engine may receive one such message
/// after it has found that the closer is not full.
const MOST_OF_MESSAGE: usize = 253;
/// If the closer is full, it still accepts duplicates. All users together may have as many as this number of users.
const MOST_OVERFULL: usize = 16;

/// Descriptors that are closed together.
struct Batch {
    user: Arc<UserCloser>,
    descriptors: Vec<OwnedFd>,
    /// Is dropped once the descriptors are closed. It counts them elsewhere. `None` if the closer counts them itself.
    permit: Option<Box<dyn Send>>,
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
    cores: Option<CoreSet>,
}

/// Closes the descriptors that the programs of one user have sent.
pub struct UserCloser {
    closer: Arc<Closer>,
    user: u32,
    /// The number of the user's received descriptors that are not closed yet.
    held: AtomicUsize,
}

/// Returns the number of received descriptors at which the closer is full, and the number of descriptors that are reserved
/// for it, for an engine with `threads` threads. `limit` is the limit of open files.
///
/// The received descriptors never exceed the reserve. Beyond a full closer, at most as many duplicates arrive as make it
/// full twice, and one message at each thread.
fn room(limit: usize, threads: usize) -> (usize, usize) {
    let messages = threads * MOST_OF_MESSAGE;
    let least = (2 * messages).min(limit / 2);
    let reserved = least.max(limit / 4).min(MOST_RESERVED + messages);
    // Leave the rest for descriptors that the engine holds for a moment, such as those of refused clients. If no room is
    // left, the closer is always full.
    (reserved.saturating_sub(messages + MOST_OVERFULL) / 4, reserved)
}

impl Closer {
    /// Creates a closer without threads for an engine with `threads` threads. Call this before these are pinned, and after
    /// the limit of open files is raised.
    pub fn new(threads: usize) -> Arc<Self> {
        let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
        // SAFETY: the call only writes `limit`.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
        let limit = limit.rlim_cur.min(i32::MAX as libc::rlim_t) as usize;
        let (full_at, reserved) = room(limit, threads);
        Arc::new(Self {
            state: Mutex::default(),
            filled: Condvar::new(),
            users: Mutex::default(),
            held: AtomicUsize::new(0),
            unclosed: AtomicUsize::new(0),
            full_at,
            reserved_from: limit - reserved,
            cores: CoreSet::current().ok(),
        })
    }

    /// Creates a closer that is full if `full_at` received descriptors wait, and keeps descriptors from the number
    /// `reserved_from` on for itself.
    #[cfg(test)]
    pub fn with_room(full_at: usize, reserved_from: usize) -> Arc<Self> {
        let closer = Arc::into_inner(Self::new(1)).expect("the closer has no thread");
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

    /// Returns how many descriptors the engine may still keep after the new one, `descriptor`. Returns 0 if the engine must
    /// not keep `descriptor`, because its number is reserved for the closer. Without free numbers for the closer, the
    /// kernel itself would close received descriptors, and the engine's thread would wait.
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
        let _ = self.cores.as_ref().map(CoreSet::bind);
        let mut state = lock(&self.state);
        loop {
            if let Some(Batch { user, descriptors, permit }) = state.take() {
                // The same user may have a further batch.
                self.provide_thread(&mut state);
                drop(state);
                for descriptor in descriptors {
                    drop(descriptor);
                    self.unclosed.fetch_sub(1, Ordering::Relaxed);
                    if permit.is_none() {
                        user.held.fetch_sub(1, Ordering::Relaxed);
                        self.held.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                drop(permit);
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
    /// ones of this user.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.exceeds(0)
    }

    /// Returns true if the engine must not even duplicate descriptors of the user to examine them. If the closer is full,
    /// the engine duplicates the descriptors of each request and passes the unexpected ones to the closer. The user may
    /// hold a number of these beyond a full closer, and all users together [`MOST_OVERFULL`] times as many.
    pub fn is_overfull(&self) -> bool {
        let margin = self.closer.full_at / MOST_OVERFULL + 1;
        let most = self.closer.full_at + MOST_OVERFULL * margin;
        self.held.load(Ordering::Relaxed) >= margin && self.exceeds(margin)
            || self.closer.held.load(Ordering::Relaxed) >= most
    }

    /// Returns true if the user holds at least `margin` more descriptors than are free.
    #[inline]
    fn exceeds(&self, margin: usize) -> bool {
        let all = self.closer.held.load(Ordering::Relaxed);
        self.held.load(Ordering::Relaxed) + all >= self.closer.full_at + margin
    }

    /// Closes descriptors on another thread, then drops `permit`. The permit counts the descriptors until they are closed.
    /// Without a permit, they count as received descriptors.
    #[cold]
    pub fn close(self: &Arc<Self>, descriptors: Vec<OwnedFd>, permit: Option<Box<dyn Send>>) {
        if descriptors.is_empty() {
            return;
        }
        if permit.is_none() {
            self.held.fetch_add(descriptors.len(), Ordering::Relaxed);
            self.closer.held.fetch_add(descriptors.len(), Ordering::Relaxed);
        }
        self.closer.close(Batch { user: self.clone(), descriptors, permit });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_descriptors_never_exceed_the_reserve() {
        for threads in 1..=64 {
            for limit in [64, 1024, 4096, 20_000, 65_536, 1 << 20] {
                let (full_at, reserved) = room(limit, threads);
                let duplicates = MOST_OVERFULL * (full_at / MOST_OVERFULL + 1);
                let most = full_at + duplicates + threads * MOST_OF_MESSAGE;
                assert!(reserved <= limit / 2, "{threads} threads, {limit} files");
                assert!(full_at == 0 || most <= reserved, "{threads} threads, {limit} files");
            }
        }
        assert_eq!(room(1 << 20, 64), (2044, 8192 + 64 * 253));
        assert!(room(1024, 1).0 > 50, "one thread needs no high limit");
    }

    #[test]
    fn the_margins_of_many_users_together_are_limited() {
        let closer = Closer::with_room(16, 1 << 20);
        let users: Vec<_> = (0..40).map(|user| closer.of_user(70_000 + user)).collect();
        for user in &users {
            user.held.store(1, Ordering::Relaxed);
        }
        closer.held.store(16 + 31, Ordering::Relaxed);
        assert!(users[0].is_full() && !users[0].is_overfull());
        closer.held.store(16 + 32, Ordering::Relaxed);
        assert!(users[0].is_overfull());
    }
}
