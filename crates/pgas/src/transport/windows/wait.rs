//! Waits for a condition by polling, by sleeping until a doorbell, or adaptively. Each wait chooses its
//! completion mode.

use super::wakeup::{BACKSTOP, Interest, LAST_LOOK, LOOK_EVERY, LostDoorbells, Waiter};
use super::{PeContext, WAKE};
use crate::error::{Error, Result};
use crate::transport::poll_limit::{PollLimit, YIELDS};
use crate::transport::{Check, no_check};
use inlane_core::completion::{CompletionMode, ExpectedDurations, Slept, Wait, WaitPlan};
use inlane_ntb::device::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The peers to watch during a wait. If the link to one of them is lost, the wait fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureScope {
    /// One peer.
    Peer(u32),
    /// All peers.
    AnyPeer,
}

/// The settings of one wait.
#[derive(Clone, Copy, Debug)]
pub struct WaitOptions {
    /// How the wait detects its end: poll, sleep until woken, or both.
    pub mode: CompletionMode,
    /// The size of the awaited operation in bytes; 0 if unknown. An adaptive wait estimates the duration of
    /// the operation from its size.
    pub bytes: u64,
    /// The stores that can end the wait. A peer wakes a sleeping thread only after such a store.
    pub interest: Interest,
    /// How long to wait before giving up. With `None`, only the loss of a peer in the failure scope ends the
    /// wait early.
    pub timeout: Option<Duration>,
    /// The name of the awaited operation, such as "a put". Error messages contain it.
    pub what: &'static str,
}

/// The state that all waits of a PE share.
#[derive(Default)]
pub(super) struct Waits {
    waiter: Mutex<Waiter>,
    /// True while a thread of this PE sleeps until words of this PE's own memory change.
    on_memory: AtomicBool,
    expectation: Mutex<ExpectedDurations>,
    /// Held by the one thread that sleeps on the doorbell. Other waiting threads sleep on `woken`.
    doorbell_sleeper: Mutex<()>,
    others: Mutex<()>,
    woken: Condvar,
    lost: LostDoorbells,
    poll_limit: PollLimit,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The longest first sleep of an adaptive wait. A longer expected duration does not extend it.
const LONGEST: Duration = Duration::from_millis(20);

/// One wait: the steps that [`Wait::run`] of the core crate calls in a loop.
struct OneWait<'a, F> {
    context: &'a PeContext,
    options: WaitOptions,
    scope: FailureScope,
    done: F,
    check: Check<'a>,
    /// How long the next sleep lasts if no doorbell ends it. Doorbells can be lost.
    backstop: Duration,
    /// How long this wait polled before its first sleep, and the time at which the first sleep began. `None`
    /// before the first sleep.
    slept: Option<(Duration, Instant)>,
    /// How long this wait polls before its first sleep, if [`PollLimit`] chose a time above 0. Otherwise
    /// `None`.
    poll_for: Option<Duration>,
    /// How many more polls let other PEs run first, because PEs share processors.
    yields: u32,
}

impl<F: FnMut() -> bool> OneWait<'_, F> {
    fn is_adaptive(&self) -> bool {
        self.options.mode == CompletionMode::Adaptive && self.options.bytes > 0
    }
}

impl<F: FnMut() -> bool> Wait for OneWait<'_, F> {
    type Error = Error;
    // The number of polls after which a wait reads the clock. Most waits end earlier.
    const FIRST_POLLS: u32 = 64;
    const POLLS: u32 = 64;

    #[inline(always)]
    fn poll(&mut self, watched: bool) -> Result<bool> {
        if watched && self.yields > 0 {
            self.yields -= 1;
            std::thread::yield_now();
        }
        Ok((self.done)())
    }

    fn plan(&mut self) -> WaitPlan {
        // If PEs share processors, do not poll any longer, because the other PE may need this processor.
        let limit = if self.context.yields { Duration::ZERO } else { self.context.waits.poll_limit.get() };
        match self.options.mode {
            CompletionMode::Poll => WaitPlan::POLL,
            CompletionMode::Interrupt => WaitPlan::BLOCK,
            CompletionMode::Adaptive if self.is_adaptive() => {
                let expectation = lock(&self.context.waits.expectation);
                let expected = expectation.expected(self.options.bytes).unwrap_or_default();
                WaitPlan {
                    sleep: expectation.sleep(self.options.bytes).min(LONGEST),
                    poll_for: if limit.is_zero() { limit } else { limit + expected.min(LONGEST) },
                }
            }
            CompletionMode::Adaptive => {
                self.poll_for = Some(limit).filter(|limit| !limit.is_zero());
                WaitPlan { sleep: Duration::ZERO, poll_for: limit }
            }
        }
    }

    fn slept(&mut self, slept: &Slept) {
        let mut expectation = lock(&self.context.waits.expectation);
        expectation.slept(self.options.bytes, slept);
        if slept.late {
            // The true duration is unknown, but shorter than the sleep, so record half of the sleep. If two
            // PEs that wait for each other recorded the whole sleep, both would sleep longer each time.
            expectation.learn(self.options.bytes, slept.took.as_nanos() as u64 / 2);
        }
    }

    fn check(&mut self, waited: Duration) -> Result<()> {
        self.context.serve(false);
        self.context.check(self.scope)?;
        (self.check)(waited)?;
        if self.options.timeout.is_some_and(|timeout| waited > timeout) {
            let peer = if let FailureScope::Peer(peer) = self.scope { peer } else { self.context.me };
            let lost = self.context.peers[peer as usize].lost();
            return Err(Error::Timeout { peer, what: self.options.what, waited, lost });
        }
        if self.options.mode == CompletionMode::Poll && self.context.yields {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn block(&mut self) -> Result<()> {
        if self.slept.is_none() {
            self.slept = self.poll_for.map(|polled| (polled, Instant::now()));
        }
        self.context.sleep_announced(self.backstop, (self.options.interest, self.scope), &mut self.done);
        self.backstop = (self.backstop * 2).min(self.context.backstop.1);
        Ok(())
    }
}

impl PeContext {
    /// Blocks until `done` returns true, and serves other PEs' requests meanwhile. If the awaited store
    /// arrived before the link went down, the wait still succeeds.
    ///
    /// # Errors
    /// [`Error::LinkLost`] if the link to a peer of `scope` is lost, [`Error::Timeout`] at the options'
    /// timeout.
    #[inline]
    pub(super) fn wait_for(
        &self,
        options: WaitOptions,
        scope: FailureScope,
        done: impl FnMut() -> bool,
    ) -> Result<()> {
        self.wait_until(options, scope, false, done, &mut no_check)
    }

    /// Waits like [`Self::wait_for`], and calls `check` now and then. Set `answer` if the wait is for another PE's answer
    /// to a request: answers take microseconds, so the first sleep is short.
    #[inline]
    pub(super) fn wait_until(
        &self,
        options: WaitOptions,
        scope: FailureScope,
        answer: bool,
        done: impl FnMut() -> bool,
        check: Check<'_>,
    ) -> Result<()> {
        let backstop = self.waits.lost.first_sleep(self.backstop.0, answer);
        let yields = if self.yields && options.mode != CompletionMode::Interrupt { YIELDS } else { 0 };
        let context = self;
        let mut wait =
            OneWait { context, options, scope, done, check, backstop, slept: None, poll_for: None, yields };
        let waited = wait.run()?;
        if let Some((polled, since)) = wait.slept {
            self.waits.poll_limit.learn(polled, since.elapsed());
        }
        if wait.is_adaptive()
            && let Some(took) = waited.took()
        {
            lock(&self.waits.expectation).learn(options.bytes, took.as_nanos() as u64);
        }
        Ok(())
    }

    /// Announces a sleep to the peers that can end the wait, then sleeps until a peer rings or `backstop` has
    /// passed. [`super::wakeup`] explains the protocol.
    fn sleep_announced(
        &self,
        backstop: Duration,
        (interest, scope): (Interest, FailureScope),
        done: &mut impl FnMut() -> bool,
    ) {
        self.faults.step("sleep");
        self.ntb.doorbell_clear(WAKE);
        // Announce the sleep under the lock, so that peers see the counter of announcements grow in order.
        {
            let mut waiter = lock(&self.waits.waiter);
            let announcement = waiter.announce(interest);
            self.waits.on_memory.store(waiter.sleeps_on_memory(), Ordering::Relaxed);
            // Only one peer sends the awaited notification or answer. Each other peer has the announcements of
            // the other sleeping threads that wait for it.
            let peers = match (interest, scope) {
                (Interest::Control, FailureScope::Peer(pe)) => &self.peers[pe as usize..][..1],
                _ => &self.peers[..],
            };
            for peer in peers.iter().filter(|peer| peer.window.peer() != self.me) {
                // This store cannot fail, because the layout lies inside the window. The window's size was
                // checked when it was mapped.
                let _ = peer.window.store_word(self.layout.announcement(self.me), announcement);
            }
        }
        fence(Ordering::SeqCst);
        inlane_core::access::store_fence();
        let announced = Instant::now();
        let mut over = false;
        while !over && announced.elapsed() < LAST_LOOK {
            over = done();
        }
        if !over {
            if !self.coherent {
                // Read back through each window, so that the announcement arrives before the next check of
                // the awaited condition.
                self.peers.iter().for_each(|peer| peer.window.flush());
            }
            if !done() {
                match interest {
                    Interest::Control => self.waits.lost.record(self.sleep(backstop), &mut *done),
                    _ => self.sleep_looking(backstop, done),
                }
            }
        }
        let mut waiter = lock(&self.waits.waiter);
        waiter.awake(interest);
        self.waits.on_memory.store(waiter.sleeps_on_memory(), Ordering::Relaxed);
    }

    /// Wakes the threads of this PE that wait for words in its own memory. Call this after an atomic has
    /// changed such a word. The atomic may come from a peer or from another thread of this PE.
    pub(super) fn changed_own_memory(&self) {
        fence(Ordering::SeqCst);
        if self.waits.on_memory.load(Ordering::Relaxed) {
            // Ignore the result. Ringing fails only if the port does not exist, and this PE's own port
            // exists.
            let _ = self.ntb.peer_doorbell_set(self.me, WAKE);
        }
    }

    /// Sleeps like [`Self::sleep`], but calls `done` every [`LOOK_EVERY`] and returns once `done` returns
    /// true. This is needed because stores through the program's pointers change awaited words without a
    /// doorbell, and because a notifier may miss this sleep's announcement after a put. If PEs share processors,
    /// calls `done` 16 times less often, so that sleepers take little time from working PEs.
    fn sleep_looking(&self, backstop: Duration, done: &mut impl FnMut() -> bool) {
        let (begun, every) = (Instant::now(), if self.yields { LOOK_EVERY * 16 } else { LOOK_EVERY });
        while begun.elapsed() < backstop && !self.sleep(every) && !done() {}
    }

    /// Sleeps until a doorbell or another thread wakes this thread, or until `backstop` has passed. Returns
    /// false if `backstop` has passed, otherwise true.
    fn sleep(&self, backstop: Duration) -> bool {
        // Only one thread at a time sleeps on the doorbell `WAKE`. The other threads sleep on `woken`. When
        // the first thread wakes, it wakes the others. The doorbell for a request wakes the service thread
        // and none of these.
        match self.waits.doorbell_sleeper.try_lock() {
            Ok(_sleeper) => {
                let mut woken = false;
                if let Ok(event) = self.ntb.event(Event::Doorbell(self.wake_vector)) {
                    let time =
                        Timespec { tv_sec: backstop.as_secs() as _, tv_nsec: backstop.subsec_nanos() as _ };
                    let mut fds = [PollFd::new(&event, PollFlags::IN)];
                    if matches!(poll(&mut fds, Some(&time)), Ok(1)) {
                        let _ = rustix::io::read(event, &mut [0u8; 8]);
                        woken = true;
                    }
                }
                self.waits.woken.notify_all();
                woken
            }
            Err(_) => {
                let guard = lock(&self.waits.others);
                let woken = self.waits.woken.wait_timeout(guard, backstop.min(BACKSTOP.0));
                !woken.unwrap_or_else(PoisonError::into_inner).1.timed_out()
            }
        }
    }
}
