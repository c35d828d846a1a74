//! Injected faults: what a window in shared memory hides.
//!
//! A [`Wire`] stands between a port and one peer. Stores become pieces that arrive late, torn and in any order, but never
//! across a fence, which is what posted write-combining stores promise. Doorbells travel behind the stores, unless the plan
//! says that they are lost, doubled or early. All of it is drawn from a seed.

use crate::error::{Error, Result};
use inlane_core::region::Region;
use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Which faults to inject, and how often. Probabilities are from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Each piece of a store arrives up to this much later.
    pub delay: Duration,
    /// Pieces between two fences arrive in any order.
    pub reorder: bool,
    /// Stores arrive in pieces of 8 bytes instead of 64.
    pub torn: bool,
    /// Probability that a doorbell is lost.
    pub lose: f64,
    /// Probability that a doorbell rings twice.
    pub duplicate: f64,
    /// Probability that a doorbell overtakes the stores before it.
    pub early: f64,
    /// Probability that a scratchpad keeps its old value for some milliseconds after a write.
    pub stale: f64,
    /// The link goes down about this often, for a few milliseconds.
    pub flap: Duration,
    /// The process is killed when it passes the step of this name (see [`Faults::step`]).
    pub die: Option<String>,
    /// Seed of all the randomness.
    pub seed: u64,
}

/// The steps of the protocol that `die` can name.
const STEPS: [&str; 9] =
    ["attach", "hello", "ready", "connected", "request", "reply", "notify", "quiet", "sleep"];

impl Faults {
    /// True when stores and doorbells pass undisturbed.
    pub fn wire_is_clean(&self) -> bool {
        self.delay.is_zero()
            && !self.reorder
            && !self.torn
            && [self.lose, self.duplicate, self.early, self.stale].iter().all(|p| *p == 0.0)
    }

    /// A step of the protocol that `die` can name: kills the process there.
    pub fn step(&self, name: &str) {
        debug_assert!(STEPS.contains(&name));
        if self.die.as_deref() == Some(name) {
            // SAFETY: sends a signal to this process; nothing after it runs.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

impl FromStr for Faults {
    type Err = Error;

    /// Reads `delay=50us,reorder,torn,lose=0.1,duplicate=0.1,early=0.2,stale=0.1,flap=20ms,die=hello,seed=7`; every part may
    /// be left out.
    fn from_str(text: &str) -> Result<Self> {
        let mut faults = Faults { seed: 1, ..Faults::default() };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let probability = || match value.parse::<f64>() {
                Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
                _ => Err(Error::invalid(
                    format!("fault '{part}'"),
                    format!("write a probability, for example {key}=0.1"),
                )),
            };
            match key {
                "delay" => faults.delay = inlane_core::units::parse_time(value)?,
                "reorder" => faults.reorder = true,
                "torn" => faults.torn = true,
                "lose" => faults.lose = probability()?,
                "duplicate" => faults.duplicate = probability()?,
                "early" => faults.early = probability()?,
                "stale" => faults.stale = probability()?,
                "flap" => faults.flap = inlane_core::units::parse_time(value)?,
                "die" if STEPS.contains(&value) => faults.die = Some(value.to_string()),
                "die" => {
                    let why = format!("choose a step: {}", STEPS.join(", "));
                    return Err(Error::invalid(format!("fault '{part}'"), why));
                }
                "seed" => {
                    faults.seed = value.parse().map_err(|_| {
                        Error::invalid(format!("fault '{part}'"), "write a number, for example seed=7")
                    })?
                }
                _ => {
                    return Err(Error::invalid(
                        format!("fault '{key}'"),
                        "choose from delay, reorder, torn, lose, duplicate, early, stale, flap, die, seed",
                    ));
                }
            }
        }
        Ok(faults)
    }
}

/// A small pseudo-random generator (xorshift64*) for faults and tests.
pub struct Random(u64);

impl Random {
    /// Starts a sequence that depends on `seed` alone.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns the next 64 bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next() >> 11) as f64 / (1u64 << 53) as f64) < probability
    }

    fn up_to(&mut self, limit: Duration) -> Duration {
        Duration::from_nanos(self.next() % (limit.as_nanos() as u64 + 1))
    }
}

enum Action {
    Store { to: usize, bytes: [u8; 64], length: usize },
    Call(Box<dyn FnOnce() + Send>),
}

struct Piece {
    due: Instant,
    action: Action,
}

struct State {
    /// Pieces between fences; those of the front may arrive in any order, the others wait.
    epochs: VecDeque<Vec<Piece>>,
    random: Random,
    keep: Vec<Region>,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The faulty way from this port to one peer.
pub struct Wire {
    plan: Faults,
    shared: Arc<Shared>,
    pump: Option<std::thread::JoinHandle<()>>,
}

impl Wire {
    /// A wire with the faults of `plan`; `stream` tells the wires of one seed apart.
    pub fn new(plan: Faults, stream: u64) -> Self {
        let state = State {
            epochs: VecDeque::from([Vec::new()]),
            random: Random::new(plan.seed.wrapping_add(stream << 32)),
            keep: Vec::new(),
            closed: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (theirs, reorder) = (shared.clone(), plan.reorder);
        let pump =
            std::thread::Builder::new().name("ntb-wire".into()).spawn(move || theirs.run(reorder)).ok();
        Self { plan, shared, pump }
    }

    /// Keeps memory mapped that pieces under way lead to.
    pub(crate) fn keep(&self, region: Region) {
        self.shared.lock().keep.push(region);
    }

    /// Sends a store on its way.
    ///
    /// # Safety
    /// `to` is writable for `length` bytes within a region given to `keep`, `source` readable.
    pub(crate) unsafe fn store(&self, to: *mut u8, source: *const u8, length: usize) {
        let mut state = self.shared.lock();
        let granule = if self.plan.torn { 8 } else { 64 };
        let mut done = 0;
        while done < length {
            let address = to as usize + done;
            // Pieces end at multiples of the granule, as bursts and naturally aligned words do.
            let piece = (granule - address % granule).min(length - done);
            let mut bytes = [0; 64];
            // SAFETY: `done + piece` is at most `length`.
            unsafe { std::ptr::copy_nonoverlapping(source.add(done), bytes.as_mut_ptr(), piece) };
            let due = Instant::now() + state.random.up_to(self.plan.delay);
            state.push(Piece { due, action: Action::Store { to: address, bytes, length: piece } });
            done += piece;
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Sends a doorbell behind the stores before it.
    pub(crate) fn doorbell(&self, ring: impl Fn() + Send + Sync + 'static) {
        let mut state = self.shared.lock();
        if state.random.happens(self.plan.lose) {
            return;
        }
        if state.random.happens(self.plan.duplicate) {
            ring();
        }
        if state.random.happens(self.plan.early) {
            return ring();
        }
        // The register is not write-combining: it travels in order with what a fence has let go, not with what it has not.
        let due = Instant::now() + state.random.up_to(self.plan.delay);
        state.push(Piece { due, action: Action::Call(Box::new(ring)) });
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Sends a register write that may arrive late, in order with the others.
    pub(crate) fn register(&self, write: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        let late =
            if state.random.happens(self.plan.stale) { Duration::from_millis(3) } else { Duration::ZERO };
        state.fence();
        state.push(Piece { due: Instant::now() + late, action: Action::Call(Box::new(write)) });
        state.fence();
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Nothing sent later arrives before what was sent earlier.
    pub(crate) fn fence(&self) {
        self.shared.lock().fence();
    }

    /// Waits until all that was sent has arrived.
    pub(crate) fn drain(&self) {
        let mut state = self.shared.lock();
        while state.epochs.iter().any(|epoch| !epoch.is_empty()) && !state.closed {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Loses all that is under way, as a link that goes down does.
    pub(crate) fn lose_all(&self) {
        self.shared.lock().epochs = VecDeque::from([Vec::new()]);
        self.shared.changed.notify_all();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(pump) = self.pump.take() {
            let _ = pump.join();
        }
    }
}

impl State {
    fn push(&mut self, piece: Piece) {
        match self.epochs.back_mut() {
            Some(epoch) => epoch.push(piece),
            None => self.epochs.push_back(vec![piece]),
        }
    }

    fn fence(&mut self) {
        if self.epochs.back().is_some_and(|epoch| !epoch.is_empty()) {
            self.epochs.push_back(Vec::new());
        }
    }

    /// The next piece that may arrive now, or how long until there may be one.
    fn next(&mut self, reorder: bool) -> Result<Piece, Duration> {
        while self.epochs.len() > 1 && self.epochs[0].is_empty() {
            self.epochs.pop_front();
        }
        let now = Instant::now();
        let count = self.epochs[0].len();
        let start = if reorder && count > 0 { self.random.next() as usize % count } else { 0 };
        let epoch = &mut self.epochs[0];
        let choices = if reorder { count } else { count.min(1) };
        let due = (0..choices).map(|i| (start + i) % count).find(|i| epoch[*i].due <= now);
        match due {
            // Order inside the epoch only matters where it is kept.
            Some(index) if reorder => Ok(epoch.swap_remove(index)),
            Some(index) => Ok(epoch.remove(index)),
            None => Err(epoch
                .iter()
                .map(|piece| piece.due.saturating_duration_since(now))
                .min()
                .unwrap_or(Duration::from_secs(3600))),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, reorder: bool) {
        let mut state = self.lock();
        loop {
            match state.next(reorder) {
                // Carried out under the lock: who finds the queue empty knows that everything has arrived.
                Ok(Piece { action: Action::Store { to, bytes, length }, .. }) => {
                    // SAFETY: promised to `store`; the region is in `keep`. Whole words are stored as such, so that a
                    // piece of 8 aligned bytes does not tear any further.
                    unsafe { crate::store::store_device(to as *mut u8, bytes.as_ptr(), length) };
                    crate::store::store_fence();
                    self.changed.notify_all();
                }
                Ok(Piece { action: Action::Call(call), .. }) => {
                    call();
                    self.changed.notify_all();
                }
                Err(_) if state.closed => return,
                Err(wait) => {
                    state = self
                        .changed
                        .wait_timeout(state, wait.max(Duration::from_micros(1)))
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read() {
        let plan: Faults = "delay=50us,reorder,torn,lose=0.5,seed=7".parse().unwrap();
        assert_eq!(plan.delay, Duration::from_micros(50));
        assert!(plan.reorder && plan.torn && plan.seed == 7 && !plan.wire_is_clean());
        assert!("".parse::<Faults>().unwrap().wire_is_clean());
        for bad in ["lose=2", "lose", "delay=5", "tear", "seed=x", "die", "die=soon"] {
            assert!(bad.parse::<Faults>().is_err(), "{bad}");
        }
    }

    #[test]
    fn fences_hold_under_reordering() {
        let plan: Faults = "delay=20us,reorder,torn,seed=3".parse().unwrap();
        let wire = Wire::new(plan, 0);
        let region = Region::host(4096).unwrap();
        wire.keep(region.clone());
        let flag = region.as_ptr().wrapping_add(4088).cast::<u64>();
        for round in 1..20u64 {
            let data = [round as u8; 1000];
            // SAFETY: inside the region, which is kept.
            unsafe { wire.store(region.as_ptr(), data.as_ptr(), data.len()) };
            wire.fence();
            // SAFETY: as above.
            unsafe { wire.store(flag.cast(), round.to_ne_bytes().as_ptr(), 8) };
            // SAFETY: inside the region.
            while unsafe { flag.read_volatile() } != round {
                std::thread::yield_now();
            }
            // SAFETY: the pump wrote it before the flag, and writes no more.
            let seen = unsafe { std::slice::from_raw_parts(region.as_ptr(), 1000) };
            assert!(seen.iter().all(|byte| *byte == round as u8));
            wire.fence();
        }
    }
}
