//! Progress of UCX, and waiting. A waiting thread checks its condition and progresses UCX in a loop. After a
//! while it sleeps, for short times or until UCX has events. If no thread waits, the service thread
//! progresses UCX.

use super::library::{BUSY, IN_PROGRESS, OK, RequestPointer, Status};
use super::transfers::PROGRESS_EVERY;
use super::{Handles, Ucx, Worker};
use crate::error::{Error, Lost, Result};
use crate::transport::poll_limit::YIELDS;
use crate::transport::{Check, no_check};
use inlane_core::completion::{CompletionMode, Wait, WaitPlan};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The number of polls of a request before a thread waits by [`Wait::run`], which can also sleep.
const FIRST_POLLS: u32 = 32;
/// The longest single sleep of a waiting thread. Stores of PEs on this machine raise no event, so a waiting
/// thread checks after each sleep. The system's timers are up to 50 us late. It therefore notices a store
/// within 100 us.
const NAP: Duration = Duration::from_micros(30);
/// For this long after an event from UCX, a wait polls instead of sleeping. Without this, a wait would sleep
/// between the messages of a stream. Each wake-up would cost the sender as much as a put.
const AWAKE_AFTER_EVENT: Duration = Duration::from_micros(200);
/// A put first polls at growing intervals, for at most this long. After that, it waits like all other
/// operations, so it may sleep.
const INTERVALS_FOR: Duration = Duration::from_micros(500);
/// The longest interval between two polls of a put that polls at growing intervals.
const LONGEST_INTERVAL: Duration = Duration::from_micros(10);
/// How long the service thread sleeps while other threads use UCX.
const LEAVE: Duration = Duration::from_millis(1);
/// How many operations in [`LEAVE`] are so many that the service thread sleeps, because it would contend with
/// the threads that start them. One in [`PROGRESS_EVERY`] of these operations progresses UCX, that is, one in
/// 8 ms at least.
const MANY: u32 = PROGRESS_EVERY as u32 / 8;
/// How long the service thread progresses UCX after the last event, before it sleeps.
const STAY_AWAKE: Duration = Duration::from_micros(50);

/// Counters of what threads do, except for the service thread, which decides by them what it does itself.
#[derive(Default)]
pub(super) struct Activity {
    /// Operations that were started.
    calls: AtomicU32,
    /// Operations that also progressed UCX, and steps of waits.
    progress: AtomicU32,
}

impl Activity {
    /// Returns the values of both counters.
    fn now(&self) -> (u32, u32) {
        (self.calls.load(Ordering::Relaxed), self.progress.load(Ordering::Relaxed))
    }
}

/// Increments a counter of [`Activity`].
fn increment(counter: &AtomicU32) {
    // Avoid an atomic addition, because it is slow. If two threads count at once, one count is lost, but the
    // counter still changes, which is enough.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

impl Worker {
    /// Calls UCX's progress function. Returns true if UCX progressed any communication. After an error,
    /// returns false without a call.
    pub(super) fn progress_with(&self, handles: &mut Handles) -> bool {
        // A context whose worker was not made yet has nothing to progress.
        let may_call = !self.broken.load(Ordering::Acquire) && !handles.worker.is_null();
        // SAFETY: the caller holds the lock of the handles.
        may_call && unsafe { (self.library.worker_progress)(handles.worker) } != 0
    }

    /// Calls UCX's progress function, unless another thread is using UCX at the moment. Returns true if any
    /// communication progressed. Returns false if none did, or if the function was not called.
    pub(super) fn progress_once(&self) -> bool {
        match self.handles.try_lock() {
            Ok(mut handles) => self.progress_with(&mut handles),
            Err(_) => {
                // The thread that holds the lock may be waiting for this processor.
                std::thread::yield_now();
                false
            }
        }
    }

    /// Records that this thread starts an operation.
    pub(super) fn record_call(&self) {
        increment(&self.activity.calls);
    }

    /// Records that this thread progresses UCX.
    pub(super) fn record_progress(&self) {
        increment(&self.activity.progress);
    }

    /// Returns the status of `request`: in progress, complete, or failed. The caller must not have freed the
    /// request.
    pub(super) fn status(&self, _handles: &mut Handles, request: RequestPointer) -> Status {
        // SAFETY: the caller holds the lock of the handles and has not freed the request.
        unsafe { (self.library.request_check_status)(request) }
    }

    /// Polls until `done` returns true, but at most for [`INTERVALS_FOR`]. The intervals between polls grow
    /// to [`LONGEST_INTERVAL`]. Puts over TCP use this to wait for room in the socket. Because of the
    /// intervals, one system call receives several of the peer's answers.
    pub(super) fn poll_at_intervals(&self, mut done: impl FnMut(&mut Handles) -> bool) {
        // If PEs share processors, leave this processor to the other PE.
        if self.settings.yields {
            return;
        }
        self.record_progress();
        let start = Instant::now();
        loop {
            let mut handles = self.handles();
            self.progress_with(&mut handles);
            let ended = done(&mut handles);
            drop(handles);
            let waited = start.elapsed();
            if ended || waited >= INTERVALS_FOR {
                return;
            }
            let until = waited + (waited / 4).min(LONGEST_INTERVAL);
            while start.elapsed() < until {
                std::hint::spin_loop();
            }
        }
    }

    /// Waits until the operation of `request` is complete, and frees the request.
    pub(super) fn complete(&self, request: RequestPointer, pe: u32, what: &'static str) -> Result<()> {
        let mut status = IN_PROGRESS;
        self.record_progress();
        // First poll without releasing the lock, because most operations complete within microseconds.
        let mut handles = self.handles();
        for _ in 0..if self.settings.yields { 1 } else { FIRST_POLLS } {
            self.progress_with(&mut handles);
            status = self.status(&mut handles, request);
            if status != IN_PROGRESS {
                break;
            }
        }
        drop(handles);
        let limit = self.settings.request_timeout.map(|limit| (limit, what));
        if status == IN_PROGRESS {
            self.wait_for(Some(pe), limit, || {
                status = self.status(&mut self.handles(), request);
                status != IN_PROGRESS
            })
            .map_err(|error| self.broken(error))?;
        }
        let handles = self.handles();
        // SAFETY: the request is complete and is freed once, under the lock of the handles.
        unsafe { (self.library.request_free)(request) };
        drop(handles);
        if status == OK { Ok(()) } else { Err(self.failed(pe, status)) }
    }

    /// Blocks until `done` returns true. If the wait is for an operation, `peer` is its target PE. `limit`
    /// then holds the operation's timeout, and its name for the error message.
    ///
    /// # Errors
    /// [`Error::LinkLost`] if a PE has ended, [`Error::Timeout`] if the timeout has passed.
    pub(super) fn wait_for(
        &self,
        peer: Option<u32>,
        limit: Option<(Duration, &'static str)>,
        done: impl FnMut() -> bool,
    ) -> Result<()> {
        self.wait_in(self.settings.completion, peer, limit, done, &mut no_check)
    }

    /// Waits as [`Self::wait_for`] does, in `mode`, and calls `check` now and then.
    pub(super) fn wait_in(
        &self,
        mode: CompletionMode,
        peer: Option<u32>,
        limit: Option<(Duration, &'static str)>,
        done: impl FnMut() -> bool,
        check: Check<'_>,
    ) -> Result<()> {
        let mut wait = OneWait {
            worker: self,
            mode,
            peer,
            limit,
            done,
            check,
            last_event: None,
            poll_for: None,
            slept: None,
            polls: YIELDS,
        };
        wait.run()?;
        if let Some((polled, since)) = wait.slept {
            self.poll_limit.learn(polled, since.elapsed());
        }
        Ok(())
    }

    /// Runs the service thread, which progresses UCX unless other threads do so, or start many operations:
    /// then it sleeps for [`LEAVE`]. Otherwise, it sleeps until UCX has events.
    pub(super) fn service(&self) {
        let (mut seen, mut looked) = (self.activity.now(), Instant::now());
        while !self.stop.load(Ordering::Acquire) {
            let now = self.activity.now();
            let many = now.0.wrapping_sub(seen.0) >= MANY;
            if many || now.1 != seen.1 || self.broken.load(Ordering::Acquire) {
                (seen, looked) = (now, Instant::now());
                self.sleep_until_event(None, Some(LEAVE));
                self.progress_contexts();
                continue;
            }
            if let Some(event) = self.arm() {
                // Contexts have operations of their own, for whose events this thread does not wait.
                let limit = if self.contexts().is_empty() { None } else { Some(LEAVE) };
                self.sleep_until_event(Some(event), limit);
                self.progress_contexts();
            }
            // Forget operations of long ago.
            if looked.elapsed() >= LEAVE {
                (seen, looked) = (self.activity.now(), Instant::now());
            }
            self.progress_alone();
        }
    }

    /// Progresses UCX until nothing has happened for [`STAY_AWAKE`], or until another thread uses UCX.
    fn progress_alone(&self) {
        let (before, mut last) = (self.activity.now(), Instant::now());
        // Stop at once when another thread uses UCX. On a processor that both share, the scheduler would let
        // this thread keep the lock for milliseconds, while the other thread can only poll for it.
        while last.elapsed() < STAY_AWAKE
            && self.activity.now() == before
            && !self.stop.load(Ordering::Acquire)
        {
            let mut handles = self.handles();
            if self.progress_with(&mut handles) {
                last = Instant::now();
            }
            drop(handles);
            if self.settings.yields || self.settings.one_processor {
                break;
            }
        }
    }

    /// Progresses the workers of contexts with unfinished operations for which no thread waits. A program may put through
    /// a context and then wait for the answer without completing the put.
    fn progress_contexts(&self) {
        let unfinished = |worker: &Arc<Worker>| {
            worker.flows.iter().any(|flow| flow.unfinished.load(Ordering::Relaxed) > 0)
        };
        let contexts: Vec<_> = self.contexts().iter().filter(|worker| unfinished(worker)).cloned().collect();
        for worker in contexts {
            while !self.stop.load(Ordering::Acquire) && unfinished(&worker) {
                if !worker.progress_once() {
                    break;
                }
            }
        }
    }

    /// Asks UCX to signal the next event. Returns the descriptor that becomes readable then, or `None` if there are events
    /// already, or after an error.
    fn arm(&self) -> Option<RawFd> {
        let mut handles = self.handles();
        // Return after the first progress. A peer may send a long stream, and other threads need the lock.
        let may_call = !self.broken.load(Ordering::Acquire) && !handles.worker.is_null();
        if !may_call || self.progress_with(&mut handles) {
            return None;
        }
        // SAFETY: the lock of the handles is held.
        let status = unsafe { (self.library.worker_arm)(handles.worker) };
        (status != BUSY).then_some(handles.event_fd)
    }

    /// Sleeps until the service thread must stop, or until `limit` has passed. If `event` is given, also wakes
    /// when this descriptor of UCX's events is readable.
    fn sleep_until_event(&self, event: Option<RawFd>, limit: Option<Duration>) {
        let stop = PollFd::from_borrowed_fd(self.stop_fd.as_fd(), PollFlags::IN);
        let time =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ });
        // SAFETY: UCX's descriptor stays open as long as UCX's worker exists. `self` keeps the worker.
        let event = event.map(|event| unsafe { BorrowedFd::borrow_raw(event) });
        let event = event.map(|event| PollFd::from_borrowed_fd(event, PollFlags::IN));
        let _ = match event {
            Some(event) => poll(&mut [stop, event], time.as_ref()),
            None => poll(&mut [stop], time.as_ref()),
        };
    }
}

impl Ucx {
    /// Ends the service thread.
    pub(super) fn stop_service(&self) {
        self.worker.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.worker.stop_fd, &1u64.to_ne_bytes());
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(service) = service {
            let _ = service.join();
        }
    }
}

/// One wait. It provides the steps that the loop [`Wait::run`] of the core crate calls.
struct OneWait<'a, F> {
    worker: &'a Worker,
    mode: CompletionMode,
    peer: Option<u32>,
    limit: Option<(Duration, &'static str)>,
    done: F,
    check: Check<'a>,
    /// When a poll last found an event of UCX.
    last_event: Option<Instant>,
    /// The time for which an adaptive wait polls before it sleeps. `None` if the wait blocks at once or only
    /// polls.
    poll_for: Option<Duration>,
    /// How long this wait polled before its first sleep, and the time at which the first sleep began. `None`
    /// before the first sleep.
    slept: Option<(Duration, Instant)>,
    /// If PEs share processors: how many more polls progress UCX before the thread sleeps.
    polls: u32,
}

impl<F: FnMut() -> bool> Wait for OneWait<'_, F> {
    type Error = Error;
    const FIRST_POLLS: u32 = 64;
    const POLLS: u32 = 16;

    fn poll(&mut self, _watched: bool) -> Result<bool> {
        if (self.done)() {
            return Ok(true);
        }
        let shares = self.worker.settings.yields && self.mode != CompletionMode::Poll;
        // After the first polls of a round, only check the condition.
        if shares && self.polls == 0 {
            return Ok(false);
        }
        if self.worker.progress_once() {
            self.last_event = Some(Instant::now());
            // More events often follow, as the pieces of a large get do.
            self.polls = YIELDS;
        } else if shares {
            self.polls -= 1;
            if self.mode == CompletionMode::Adaptive {
                std::thread::yield_now();
            }
        }
        Ok((self.done)())
    }

    fn plan(&mut self) -> WaitPlan {
        // If PEs share processors, do not poll any longer, because the other PE may need this processor.
        if self.worker.settings.yields && self.mode != CompletionMode::Poll {
            return WaitPlan::BLOCK;
        }
        match self.mode {
            CompletionMode::Poll => WaitPlan::POLL,
            CompletionMode::Interrupt => WaitPlan::BLOCK,
            CompletionMode::Adaptive => {
                let poll_for = self.worker.poll_limit.get();
                self.poll_for = Some(poll_for);
                WaitPlan { sleep: Duration::ZERO, poll_for }
            }
        }
    }

    fn check(&mut self, waited: Duration) -> Result<()> {
        let worker = self.worker;
        worker.record_progress();
        worker.check()?;
        (self.check)(waited)?;
        if self.mode == CompletionMode::Poll && worker.settings.yields {
            std::thread::yield_now();
        }
        match self.limit {
            Some((limit, what)) if waited > limit => {
                let peer = self.peer.unwrap_or(worker.me);
                Err(Error::Timeout { peer, what, waited, lost: Lost::default() })
            }
            _ => Ok(()),
        }
    }

    fn block(&mut self) -> Result<()> {
        // After an event, poll on instead of sleeping, because the next event often arrives sooner than a
        // sleeping thread could wake up.
        let awake = self.mode == CompletionMode::Adaptive && !self.worker.settings.yields;
        if awake && self.last_event.is_some_and(|event| event.elapsed() < AWAKE_AFTER_EVENT) {
            return Ok(());
        }
        if self.slept.is_none() {
            self.slept = self.poll_for.map(|polled| (polled, Instant::now()));
        }
        self.polls = 1;
        if let Some(event) = self.worker.arm()
            && !(self.done)()
        {
            let nap = if self.worker.settings.yields { NAP * 16 } else { NAP };
            self.worker.sleep_until_event(Some(event), Some(nap));
        }
        Ok(())
    }
}
