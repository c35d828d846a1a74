//! Waiting: by polling, asleep until a doorbell, or adaptively, chosen for each wait.

use super::windows::{Shared, WAKE, WAKE_VECTOR};
use crate::error::{Error, Result};
use crate::transport::wakeup::{BACKSTOP, GRACE, Napper, Wanted};
use inlane_core::completion::{CompletionMode, Expectation, sleep_precisely};
use inlane_ntb::device::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Whose loss ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// That of one peer.
    Peer(u32),
    /// That of any peer.
    Any,
}

/// How to wait, and for what size of operation (0: not known).
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Poll, sleep, or both.
    pub completion: CompletionMode,
    /// Bytes of the operation awaited, for adaptive waits to expect its time by.
    pub bytes: u64,
    /// Which stores can end the wait: peers ring a sleeper for those alone.
    pub wanted: Wanted,
    /// Gives up after this long.
    pub timeout: Option<Duration>,
    /// What is awaited, for the message.
    pub what: &'static str,
}

/// What the waits of one PE share.
#[derive(Default)]
pub(super) struct Waits {
    napper: Mutex<Napper>,
    /// Some thread sleeps until words of own memory change.
    on_memory: AtomicBool,
    expectation: Mutex<Expectation>,
    /// Held by the one thread that sleeps on the doorbell; others sleep on `woken`.
    doorkeeper: Mutex<()>,
    others: Mutex<()>,
    woken: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// However long an operation is expected to take, an adaptive wait does not sleep longer than this at first.
const LONGEST: Duration = Duration::from_millis(20);
/// Looks between two readings of the clock.
const LOOKS: u32 = 64;
/// How long an adaptive wait polls beyond the time it expects before it sleeps until rung: about what a sleep and a wake-up cost twice over.
const POLL_FOR: Duration = Duration::from_micros(50);

impl Shared {
    /// Waits until `done`.
    pub(super) fn wait_for(
        &self,
        manner: Manner,
        watch: Watch,
        mut done: impl FnMut() -> bool,
    ) -> Result<()> {
        // Most waits are over at the first looks: no clock, no bookkeeping.
        for _ in 0..LOOKS {
            if done() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        let adaptive = manner.completion == CompletionMode::Adaptive && manner.bytes > 0;
        let mut poll_for = POLL_FOR;
        if adaptive {
            let sleep = {
                let expectation = lock(&self.waits.expectation);
                poll_for += expectation.expected(manner.bytes).unwrap_or_default().min(LONGEST);
                expectation.sleep(manner.bytes).min(LONGEST)
            };
            if !sleep.is_zero() {
                sleep_precisely(sleep);
                let over = done();
                let mut expectation = lock(&self.waits.expectation);
                expectation.learn_overshoot(start.elapsed().saturating_sub(sleep));
                expectation.woke(manner.bytes, over);
                if over {
                    // It was over before the sleep was: the true time is unknown, and shorter. Two sides that wait for each
                    // other would otherwise learn each other's sleep, and sleep ever longer.
                    expectation.learn(manner.bytes, start.elapsed().as_nanos() as u64 / 2);
                    return Ok(());
                }
            }
        }
        let mut backstop = BACKSTOP.0;
        let outcome = loop {
            if (0..LOOKS).any(|_| {
                std::hint::spin_loop();
                done()
            }) {
                break Ok(());
            }
            self.serve(false);
            if let Err(error) = self.check(watch) {
                // What arrived before the link went down counts.
                break if done() { Ok(()) } else { Err(error) };
            }
            let waited = start.elapsed();
            if manner.timeout.is_some_and(|timeout| waited > timeout) {
                let peer = if let Watch::Peer(peer) = watch { peer } else { self.me };
                let lost = self.peers[peer as usize].lost();
                break Err(Error::Timeout { peer, what: manner.what, seconds: waited.as_secs(), lost });
            }
            match manner.completion {
                CompletionMode::Poll if self.yields => std::thread::yield_now(),
                CompletionMode::Poll => {}
                CompletionMode::Adaptive if !self.yields && waited < poll_for => {}
                CompletionMode::Adaptive | CompletionMode::Interrupt => {
                    self.nap(backstop, manner.wanted, &mut done);
                    backstop = (backstop * 2).min(BACKSTOP.1);
                }
            }
        };
        if adaptive && outcome.is_ok() {
            lock(&self.waits.expectation).learn(manner.bytes, start.elapsed().as_nanos() as u64);
        }
        outcome
    }

    /// Sleeps until a peer rings, or for `backstop`. See [`crate::transport::wakeup`].
    fn nap(&self, backstop: Duration, wanted: Wanted, done: &mut impl FnMut() -> bool) {
        self.faults.step("sleep");
        self.ntb.doorbell_clear(WAKE);
        // Announced under the lock: peers must see the numbers of all threads in order.
        {
            let mut napper = lock(&self.waits.napper);
            let number = napper.announce(wanted);
            self.waits.on_memory.store(napper.sleeps_on_memory(), Ordering::Relaxed);
            for (pe, peer) in self.peers.iter().enumerate().filter(|(pe, _)| *pe as u32 != self.me) {
                // Inside the window: its size was checked when it was mapped.
                let _ = peer.window.store_word(self.layout.nap(self.me), number);
                debug_assert!(pe < self.pes as usize);
            }
        }
        fence(Ordering::SeqCst);
        inlane_ntb::store::store_fence();
        self.sleep(backstop, done);
        let mut napper = lock(&self.waits.napper);
        napper.woke(wanted);
        self.waits.on_memory.store(napper.sleeps_on_memory(), Ordering::Relaxed);
    }

    /// Wakes those of this PE who wait for words of its own memory: a peer's atomic or another thread has changed some.
    pub(super) fn changed_own_memory(&self) {
        fence(Ordering::SeqCst);
        if self.waits.on_memory.load(Ordering::Relaxed) {
            // The own port exists.
            let _ = self.ntb.peer_doorbell_set(self.me, WAKE);
        }
    }

    fn sleep(&self, backstop: Duration, done: &mut impl FnMut() -> bool) {
        let announced = Instant::now();
        while announced.elapsed() < GRACE {
            if done() {
                return;
            }
        }
        // A request that came meanwhile has rung the service thread, if nobody else.
        match self.waits.doorkeeper.try_lock() {
            Ok(_keeper) => {
                if let Ok(event) = self.ntb.event(Event::Doorbell(WAKE_VECTOR)) {
                    let time = Timespec { tv_sec: 0, tv_nsec: backstop.subsec_nanos() as _ };
                    let mut fds = [PollFd::new(&event, PollFlags::IN)];
                    if matches!(poll(&mut fds, Some(&time)), Ok(1)) {
                        let _ = rustix::io::read(event, &mut [0u8; 8]);
                    }
                }
                self.waits.woken.notify_all();
            }
            Err(_) => {
                let guard = lock(&self.waits.others);
                drop(self.waits.woken.wait_timeout(guard, BACKSTOP.0));
            }
        }
    }
}
