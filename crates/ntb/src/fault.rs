//! Fault injection: makes shared memory behave like a real link with posted writes, or worse.
//!
//! A [`Wire`] carries a port's stores to one peer. It cuts stores into pieces. The pieces can arrive late and
//! in any order, but not across a fence. Posted write-combining stores have the same guarantees. A doorbell
//! arrives after all stores that precede the last fence. The chosen [`Faults`] can lose a doorbell, ring it
//! twice or ring it too early.

use crate::error::{Error, Result};
use crate::field::FAULTS;
use inlane_core::region::Region;
use std::collections::{BinaryHeap, VecDeque};
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The faults to inject. Probabilities are from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// The longest delay of a piece of a store. Stores are cut into pieces of 64 or 8 bytes.
    pub delay: Duration,
    /// True if pieces between two fences arrive in random order.
    pub reorder: bool,
    /// True if stores are cut into pieces of 8 bytes instead of 64.
    pub torn: bool,
    /// Probability that a doorbell is lost.
    pub lose: f64,
    /// Probability that a doorbell rings twice: immediately, ahead of all stores, and again in order.
    pub duplicate: f64,
    /// Probability that a doorbell rings immediately, before earlier stores have arrived.
    pub early: f64,
    /// Probability that a scratchpad keeps its old value for 3 ms after a write.
    pub stale: f64,
    /// The mean time between two failures of the link. Each failure lasts 2 ms. Zero: the link does not fail.
    pub flap: Duration,
    /// The protocol step at which the process is killed (see [`Faults::step`]).
    pub die: Option<String>,
    /// Seed of the random choices.
    pub seed: u64,
}

/// The protocol steps that `die` can name.
const STEPS: [&str; 9] =
    ["attach", "hello", "ready", "connected", "request", "reply", "notify", "quiet", "sleep"];

impl Faults {
    /// Returns true if stores, doorbells and scratchpads pass undisturbed.
    pub fn wire_is_clean(&self) -> bool {
        self.delay.is_zero()
            && !self.reorder
            && !self.torn
            && [self.lose, self.duplicate, self.early, self.stale].iter().all(|p| *p == 0.0)
    }

    /// Returns true if no fault is injected.
    pub fn are_none(&self) -> bool {
        self.wire_is_clean() && self.flap.is_zero() && self.die.is_none()
    }

    /// Kills the process if `die` names this protocol step.
    pub fn step(&self, name: &str) {
        debug_assert!(STEPS.contains(&name));
        if self.die.as_deref() == Some(name) {
            // SAFETY: the call sends a signal to this process and accesses no memory.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

impl FromStr for Faults {
    type Err = Error;

    /// Parses a list such as
    /// `delay=50us,reorder,torn,lose=0.1,duplicate=0.1,early=0.2,stale=0.1,flap=20ms,die=hello,seed=7`. Every
    /// part is optional.
    fn from_str(text: &str) -> Result<Self> {
        let mut faults = Faults { seed: 1, ..Faults::default() };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let probability = || match value.parse::<f64>() {
                Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
                _ => Err(Error::invalid(
                    FAULTS.with(part),
                    format!("give a probability between 0 and 1, for example {key}=0.1"),
                )),
            };
            let time = || {
                inlane_core::units::parse_time(value).map_err(|_| {
                    Error::invalid(FAULTS.with(part), format!("give a time, for example {key}=50us"))
                })
            };
            match key {
                "delay" => faults.delay = time()?,
                "reorder" => faults.reorder = true,
                "torn" => faults.torn = true,
                "lose" => faults.lose = probability()?,
                "duplicate" => faults.duplicate = probability()?,
                "early" => faults.early = probability()?,
                "stale" => faults.stale = probability()?,
                "flap" => faults.flap = time()?,
                "die" if STEPS.contains(&value) => faults.die = Some(value.to_string()),
                "die" => {
                    let why = format!("there is no such step; choose one of {}", STEPS.join(", "));
                    return Err(Error::invalid(FAULTS.with(part), why));
                }
                "seed" => {
                    faults.seed = value
                        .parse()
                        .map_err(|_| Error::invalid(FAULTS.with(part), "give a number, for example seed=7"))?
                }
                _ => {
                    return Err(Error::invalid(
                        FAULTS.with(key),
                        "there is no such fault; choose one of delay, reorder, torn, lose, duplicate, early, stale, flap, die, seed",
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
    /// Starts a sequence of random numbers that depends only on `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && ((self.next_u64() >> 11) as f64 / (1u64 << 53) as f64) < probability
    }

    fn up_to(&mut self, limit: Duration) -> Duration {
        Duration::from_nanos(self.next_u64() % (limit.as_nanos() as u64 + 1))
    }
}

enum Action {
    Store { to: usize, bytes: [u8; 64], length: usize },
    Call(Box<dyn FnOnce() + Send>),
}

/// A piece of a store, or a register write, on its way to the peer.
struct Piece {
    due: Instant,
    /// The order in which the pieces between the same two fences arrive: the lowest rank first. `State::push`
    /// chooses the rank.
    rank: (Instant, u64),
    action: Action,
}

impl PartialEq for Piece {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl Eq for Piece {}

impl PartialOrd for Piece {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Piece {
    /// Compares in reverse, because [`BinaryHeap`] pops its greatest element.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.rank.cmp(&self.rank)
    }
}

struct State {
    /// One heap of pieces for each epoch. A fence ends an epoch. Pieces are delivered only from the first
    /// epoch. When its heap is empty, the next epoch becomes the first.
    epochs: VecDeque<BinaryHeap<Piece>>,
    random: Random,
    /// The time at which the wire was created. Some pieces have an order that does not depend on the time at
    /// which they are due. All these pieces have this time as the first part of [`Piece::rank`]. The second
    /// part then decides: the piece's number, or a random number.
    start: Instant,
    sent: u64,
    mapped: Vec<Region>,
    closed: bool,
}

struct WireShared {
    plan: Faults,
    state: Mutex<State>,
    changed: Condvar,
}

/// The faulty path from this port to one peer.
pub struct Wire {
    shared: Arc<WireShared>,
    pump: Option<std::thread::JoinHandle<()>>,
}

impl Wire {
    /// Creates a wire with the faults of `plan` and starts its thread, which delivers the pieces. Give each
    /// wire a different `stream`. Wires with the same seed then make different random choices.
    pub fn new(plan: Faults, stream: u64) -> Self {
        let state = State {
            epochs: VecDeque::from([BinaryHeap::new()]),
            random: Random::new(plan.seed.wrapping_add(stream << 32)),
            start: Instant::now(),
            sent: 0,
            mapped: Vec::new(),
            closed: false,
        };
        let shared = Arc::new(WireShared { plan, state: Mutex::new(state), changed: Condvar::new() });
        let pumped = shared.clone();
        let pump = std::thread::Builder::new().name("ntb-wire".into()).spawn(move || pumped.pump()).ok();
        Self { shared, pump }
    }

    /// Keeps `region` mapped while pieces of stores may still be on their way to it.
    pub(crate) fn keep(&self, region: Region) {
        self.shared.lock().mapped.push(region);
    }

    /// Cuts a store into pieces and queues them for delivery.
    ///
    /// # Safety
    /// `to` is writable for `length` bytes inside a region that was given to [`Wire::keep`]. `source` is
    /// readable for `length` bytes.
    pub(crate) unsafe fn store(&self, to: *mut u8, source: *const u8, length: usize) {
        let mut state = self.shared.lock();
        let granule = if self.shared.plan.torn { 8 } else { 64 };
        let mut done = 0;
        while done < length {
            let address = to as usize + done;
            // Cut at multiples of the granule, so an aligned word of 8 bytes is never split.
            let piece = (granule - address % granule).min(length - done);
            let mut bytes = [0; 64];
            // SAFETY: `done + piece` is at most `length`, and `bytes` has room for a piece.
            unsafe { std::ptr::copy_nonoverlapping(source.add(done), bytes.as_mut_ptr(), piece) };
            let due = Instant::now() + state.random.up_to(self.shared.plan.delay);
            state.push(&self.shared.plan, due, Action::Store { to: address, bytes, length: piece });
            done += piece;
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Sends a doorbell. It rings when all stores before the last fence have been delivered. A fault may lose
    /// the doorbell or let it ring early.
    pub(crate) fn doorbell(&self, ring: impl Fn() + Send + Sync + 'static) {
        let mut state = self.shared.lock();
        if state.random.happens(self.shared.plan.lose) {
            return;
        }
        if state.random.happens(self.shared.plan.duplicate) {
            ring();
        }
        if state.random.happens(self.shared.plan.early) {
            return ring();
        }
        // Queue the doorbell behind the stores that precede the last fence, but not behind later stores. A
        // real doorbell may overtake later stores, because its register is not write-combining.
        let due = Instant::now() + state.random.up_to(self.shared.plan.delay);
        state.push(&self.shared.plan, due, Action::Call(Box::new(ring)));
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Sends a register write. It arrives after all earlier stores and before all later ones, and possibly
    /// late.
    pub(crate) fn register(&self, write: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.lock();
        let late = if state.random.happens(self.shared.plan.stale) {
            Duration::from_millis(3)
        } else {
            Duration::ZERO
        };
        state.fence();
        state.push(&self.shared.plan, Instant::now() + late, Action::Call(Box::new(write)));
        state.fence();
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Orders the wire: all stores, doorbells and register writes before this call arrive before all later
    /// stores and register writes.
    pub(crate) fn fence(&self) {
        self.shared.lock().fence();
    }

    /// Blocks until all stores, doorbells and register writes that were sent have arrived.
    pub(crate) fn drain(&self) {
        let mut state = self.shared.lock();
        while state.epochs.iter().any(|epoch| !epoch.is_empty()) && !state.closed {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Discards all stores, doorbells and register writes that have not arrived yet, like a link that goes
    /// down.
    pub(crate) fn lose_all(&self) {
        self.shared.lock().epochs = VecDeque::from([BinaryHeap::new()]);
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
    fn push(&mut self, plan: &Faults, due: Instant, action: Action) {
        self.sent += 1;
        let rank = match (plan.reorder, plan.delay.is_zero()) {
            (false, _) => (self.start, self.sent),
            // Without delays, all pieces are due at once, so a random number decides the order.
            (true, true) => (self.start, self.random.next_u64()),
            (true, false) => (due, self.random.next_u64()),
        };
        if self.epochs.is_empty() {
            self.epochs.push_back(BinaryHeap::new());
        }
        if let Some(epoch) = self.epochs.back_mut() {
            epoch.push(Piece { due, rank, action });
        }
    }

    fn fence(&mut self) {
        if self.epochs.back().is_some_and(|epoch| !epoch.is_empty()) {
            self.epochs.push_back(BinaryHeap::new());
        }
    }

    /// Returns the next piece if it is due. If not, returns the time until it is due as the error. That time
    /// is one hour if there is no piece.
    fn next(&mut self) -> Result<Piece, Duration> {
        while self.epochs.len() > 1 && self.epochs[0].is_empty() {
            self.epochs.pop_front();
        }
        let Some(first) = self.epochs[0].peek() else { return Err(Duration::from_secs(3600)) };
        match first.due.checked_duration_since(Instant::now()) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => self.epochs[0].pop().ok_or(Duration::ZERO),
        }
    }
}

impl WireShared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers pieces until the wire is closed. Then delivers pieces that are already due, and drops the
    /// rest.
    fn pump(&self) {
        let mut state = self.lock();
        loop {
            match state.next() {
                // Deliver under the lock, so that an empty queue means that everything has arrived.
                Ok(Piece { action: Action::Store { to, bytes, length }, .. }) => {
                    // SAFETY: the caller of `store` guarantees that the destination is valid, and `mapped`
                    // keeps it mapped. `store_device` stores aligned words whole, so a piece of 8 aligned
                    // bytes does not tear further.
                    unsafe { inlane_core::access::store_device(to as *mut u8, bytes.as_ptr(), length) };
                    inlane_core::access::store_fence();
                }
                Ok(Piece { action: Action::Call(call), .. }) => call(),
                Err(_) if state.closed => return,
                Err(wait) => {
                    // No piece is due now. Wake the threads in `drain`, which check whether all pieces have
                    // arrived.
                    self.changed.notify_all();
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
    fn lists_of_faults_are_parsed() {
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
            // SAFETY: the bytes lie inside `region`, which `wire` keeps mapped.
            unsafe { wire.store(region.as_ptr(), data.as_ptr(), data.len()) };
            wire.fence();
            // SAFETY: the bytes lie inside `region`, which `wire` keeps mapped.
            unsafe { wire.store(flag.cast(), round.to_ne_bytes().as_ptr(), 8) };
            // SAFETY: the bytes lie inside `region`, which `wire` keeps mapped.
            while unsafe { flag.read_volatile() } != round {
                std::thread::yield_now();
            }
            // SAFETY: the pump wrote the bytes before the flag and writes no more.
            let seen = unsafe { std::slice::from_raw_parts(region.as_ptr(), 1000) };
            assert!(seen.iter().all(|byte| *byte == round as u8));
            wire.fence();
        }
    }

    /// Checks that the time of a store grows only with its length. An earlier version also slowed down with
    /// the number of queued pieces: 1 MiB in pieces of 8 bytes took 13.7 s. The limit of 60 s detects such a
    /// slowdown, and leaves room for a slow machine.
    #[test]
    fn the_time_of_a_store_grows_with_its_length_only() {
        for plan in ["torn", "torn,reorder", "torn,delay=1ms", "torn,reorder,delay=1ms"] {
            let wire = Wire::new(plan.parse().unwrap(), 0);
            let region = Region::host(4 << 20).unwrap();
            wire.keep(region.clone());
            let data = vec![7u8; region.len()];
            let start = Instant::now();
            // SAFETY: the bytes lie inside `region`, which `wire` keeps mapped.
            unsafe { wire.store(region.as_ptr(), data.as_ptr(), data.len()) };
            wire.drain();
            assert!(start.elapsed() < Duration::from_secs(60), "{plan}: {:?}", start.elapsed());
            // SAFETY: the bytes lie inside the region. The wire is empty, so nothing writes them.
            assert!(unsafe { std::slice::from_raw_parts(region.as_ptr(), region.len()) } == data, "{plan}");
        }
    }

    #[test]
    fn pieces_between_fences_arrive_in_another_order() {
        let plan: Faults = "reorder,seed=5".parse().unwrap();
        let wire = Wire::new(plan, 0);
        let order = Arc::new(Mutex::new(Vec::new()));
        {
            // Hold the lock while queueing. The pump thread needs the lock to deliver, so no piece arrives
            // before all are queued.
            let mut state = wire.shared.lock();
            for index in 0..100 {
                let order = order.clone();
                let call = Action::Call(Box::new(move || order.lock().unwrap().push(index)));
                state.push(&wire.shared.plan, Instant::now(), call);
            }
        }
        wire.shared.changed.notify_all();
        wire.drain();
        let mut order = order.lock().unwrap().clone();
        assert!(!order.is_sorted());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
