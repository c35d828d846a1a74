//! Injects faults: drops, duplicates, reorders, corrupts and delays packets with given probabilities, and
//! counts them. The same seed causes the same faults.

use crate::field::FAULTS;
use crate::generate::require_cpu_memory;
use crate::generate::traffic::mix;
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::units::parse_time;
use inlane_core::{Error, Packet, Pool, Result, Rx};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long a reordered packet waits for later packets, in nanoseconds.
const REORDER_TIMEOUT_NS: u64 = 10_000_000;
/// The longest run of dropped packets, in nanoseconds. A longer run could drop all retransmissions of a
/// sender.
const RUN_TIMEOUT_NS: u64 = 10_000_000;
/// While this many packets wait to be returned, the wrapper receives no more packets from the inner queue.
const MAX_READY: usize = 1024;

/// The faults to inject. Probabilities are from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability that a packet begins a run of dropped packets.
    pub drop: f64,
    /// The number of packets dropped in a row. 0 and 1 drop a single packet. A run also ends after 10 ms.
    pub drop_run: u64,
    /// Probability that a packet is duplicated.
    pub duplicate: f64,
    /// Probability that a packet is held back. It is returned after `reorder_by` later packets.
    pub reorder: f64,
    /// Number of later packets that overtake a reordered packet.
    pub reorder_by: u64,
    /// The probability that one bit of a packet is flipped.
    pub corrupt: f64,
    /// Probability that a packet is delayed.
    pub delay: f64,
    /// The delay, in nanoseconds.
    pub delay_ns: u64,
    /// The seed of the random numbers that select the affected packets.
    pub seed: u64,
}

impl Faults {
    /// Returns true if no fault is ever injected, whatever the other settings are. Leave the wrapper out then.
    pub fn are_none(&self) -> bool {
        [self.drop, self.duplicate, self.reorder, self.corrupt, self.delay]
            .iter()
            .all(|&probability| probability == 0.0)
    }

    /// Parses `drop=1%:8,duplicate=0.1%,reorder=1%:3,corrupt=0.01,delay=5%:50us,seed=7`. Percentages are
    /// probabilities. The value after a colon is:
    /// - for `drop`, the number of packets dropped in a row
    /// - for `reorder`, the number of later packets that overtake the packet
    /// - for `delay`, the delay
    ///
    /// # Errors
    /// If a fault is unknown, or a probability is outside 0 % to 100 %.
    pub fn parse(text: &str) -> Result<Self> {
        let mut faults = Self { seed: 1, reorder_by: 3, delay_ns: 100_000, ..Self::default() };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let wrong = |why: &str| Error::Invalid {
                what: FAULTS.with(part).into(),
                why: format!(
                    "{why}; give for example drop=1%:8,duplicate=0.1%,reorder=1%:3,corrupt=0.1%,delay=5%:50us,seed=7"
                ),
            };
            let (key, value) = part.split_once('=').ok_or_else(|| wrong("it has no value"))?;
            let (share, more) =
                value.split_once(':').map_or((value, None), |(share, more)| (share, Some(more)));
            let probability = || {
                let (number, scale) = share.strip_suffix('%').map_or((share, 1.0), |number| (number, 0.01));
                let value = number.parse::<f64>().ok().map(|number| number * scale);
                value
                    .filter(|value| (0.0..=1.0).contains(value))
                    .ok_or_else(|| wrong("a probability is 0 % to 100 %"))
            };
            if more.is_some() && !matches!(key, "drop" | "reorder" | "delay") {
                return Err(wrong("only drop, reorder and delay have a second value"));
            }
            if key == "delay" && more.is_none() && parse_time(share).is_ok() && share != "0" {
                let why = format!("the probability is missing; give delay=5%:{share}");
                return Err(Error::invalid(FAULTS.with(part), why));
            }
            match key {
                "drop" => {
                    faults.drop = probability()?;
                    if let Some(run) = more {
                        let run = run.parse().ok().filter(|run| (1..=1000).contains(run));
                        faults.drop_run =
                            run.ok_or_else(|| wrong("1 to 1000 packets are dropped in a row"))?;
                    }
                }
                "duplicate" => faults.duplicate = probability()?,
                "corrupt" => faults.corrupt = probability()?,
                "reorder" => {
                    faults.reorder = probability()?;
                    if let Some(by) = more {
                        let by = by.parse().ok().filter(|by| (1..=64).contains(by));
                        faults.reorder_by =
                            by.ok_or_else(|| wrong("a packet is moved behind 1 to 64 others"))?;
                    }
                }
                "delay" => {
                    faults.delay = probability()?;
                    if let Some(time) = more {
                        let time = parse_time(time).map_err(|error| wrong(&error.to_string()))?;
                        faults.delay_ns = time.as_nanos() as u64;
                    }
                }
                "seed" => faults.seed = value.parse().map_err(|_| wrong("a seed is a whole number"))?,
                _ => return Err(wrong("there is no such fault")),
            }
        }
        Ok(faults)
    }

    /// Wraps a receive queue whose packets come from `pool`.
    ///
    /// # Errors
    /// If the CPU cannot write the packets.
    pub fn rx(self, inner: Box<dyn Rx>, pool: &Arc<dyn Pool>, clock: &Clock) -> Result<FaultyRx> {
        let counters = Counters::default();
        Ok(FaultyRx { inner, link: FaultyLink::new(self, pool, clock)?, counters })
    }
}

/// The numbers of injected faults, by kind.
#[derive(Debug, Default)]
pub struct FaultCounts {
    dropped: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    corrupted: AtomicU64,
    delayed: AtomicU64,
}

impl FaultCounts {
    /// Returns the number of dropped, duplicated, reordered, corrupted and delayed packets, in this order.
    pub fn read(&self) -> [u64; 5] {
        [&self.dropped, &self.duplicated, &self.reordered, &self.corrupted, &self.delayed]
            .map(|count| count.load(Ordering::Relaxed))
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The faults to inject, and the packets received from the inner queue and not yet returned.
struct FaultyLink {
    faults: Faults,
    /// State of the pseudo-random generator.
    random: u64,
    pool: Arc<dyn Pool>,
    clock: Clock,
    /// The number of packets to drop until the current run of dropped packets ends.
    run_left: u64,
    /// The latest end of the current run of dropped packets, in nanoseconds.
    run_until_ns: u64,
    /// The number of packets passed on so far, without duplicates and reordered packets. A reordered packet
    /// is held until this number reaches its [`Reordered::behind`], or until its time limit has passed.
    passed: u64,
    reordered: VecDeque<Reordered>,
    /// Delayed packets with their due times, the earliest first. Packets arrive in this order because all
    /// delays are equal.
    delayed: VecDeque<(u64, Packet)>,
    /// The packets that wait to be returned by the next `receive`.
    ready: VecDeque<Packet>,
    /// The most reordered and delayed packets that may be held at the same time.
    max_held: usize,
    counts: Arc<FaultCounts>,
}

struct Reordered {
    /// The packet is released when `FaultyLink::passed`, the number of packets passed on, reaches this value.
    behind: u64,
    /// When the packet is released at the latest, in nanoseconds, because too few packets may follow to reach
    /// `behind`.
    until_ns: u64,
    packet: Packet,
}

impl FaultyLink {
    fn new(faults: Faults, pool: &Arc<dyn Pool>, clock: &Clock) -> Result<Self> {
        require_cpu_memory("faults", pool)?;
        Ok(Self {
            faults,
            random: faults.seed,
            pool: pool.clone(),
            clock: clock.clone(),
            run_left: 0,
            run_until_ns: 0,
            passed: 0,
            reordered: VecDeque::new(),
            delayed: VecDeque::new(),
            ready: VecDeque::with_capacity(2 * MAX_READY),
            max_held: pool.capacity() / 4,
            counts: Arc::default(),
        })
    }

    /// Returns true with `probability`. Draws a random number even if `probability` is 0. So a change of one
    /// fault's probability does not change which packets the other faults hit.
    fn happens(&mut self, probability: f64) -> bool {
        (mix(&mut self.random) >> 11) as f64 / (1u64 << 53) as f64 <= probability && probability > 0.0
    }

    /// Injects faults into a received packet. Then adds the packet to `ready`, holds it or drops it.
    fn accept(&mut self, packet: Packet, now_ns: u64) {
        let faults = self.faults;
        let chances = [faults.drop, faults.corrupt, faults.duplicate, faults.reorder, faults.delay];
        let [drop, corrupt, duplicate, reorder, delay] = chances.map(|chance| self.happens(chance));
        let bit = mix(&mut self.random);
        if drop {
            self.run_left = faults.drop_run.max(1);
            self.run_until_ns = now_ns.saturating_add(RUN_TIMEOUT_NS);
        }
        if self.run_left > 0 && (drop || now_ns < self.run_until_ns) {
            self.run_left -= 1;
            count(&self.counts.dropped);
            // SAFETY: `self` holds the packet and does not use it again. The packet is from this pool.
            unsafe { self.pool.free(&[packet]) };
            return;
        }
        if corrupt && packet.length > 0 {
            count(&self.counts.corrupted);
            let bit = bit % (packet.length as u64 * 8);
            // SAFETY: `self` holds the packet. `new` checked that the CPU maps the pool.
            let bytes = unsafe { packet.bytes_mut() };
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
        let holds = self.reordered.len() + self.delayed.len() < self.max_held;
        if reorder && holds {
            count(&self.counts.reordered);
            let behind = self.passed + faults.reorder_by;
            self.reordered.push_back(Reordered { behind, until_ns: now_ns + REORDER_TIMEOUT_NS, packet });
            return;
        }
        if delay && holds {
            count(&self.counts.delayed);
            self.delayed.push_back((now_ns + faults.delay_ns, packet));
            return;
        }
        let copy = if duplicate { self.copy(&packet) } else { None };
        self.pass(packet);
        if let Some(copy) = copy {
            count(&self.counts.duplicated);
            self.ready.push_back(copy);
        }
    }

    /// Adds a packet to `ready`, and then each reordered packet that enough packets have overtaken.
    fn pass(&mut self, packet: Packet) {
        self.ready.push_back(packet);
        self.passed += 1;
        self.release(|held, passed| held.behind <= passed);
    }

    /// Moves reordered packets to `ready`, the oldest first, until one is not `due`.
    fn release(&mut self, due: impl Fn(&Reordered, u64) -> bool) {
        while let Some(held) = self.reordered.front()
            && due(held, self.passed)
        {
            self.ready.extend(self.reordered.pop_front().map(|held| held.packet));
        }
    }

    /// Moves all held packets that are due at `now_ns` to `ready`. If `ending` is set, moves all reordered
    /// packets there, because no packets follow.
    fn catch_up(&mut self, now_ns: u64, ending: bool) {
        while let Some(&(due_ns, packet)) = self.delayed.front()
            && due_ns <= now_ns
        {
            self.delayed.pop_front();
            self.pass(packet);
        }
        self.release(|held, _| ending || held.until_ns <= now_ns);
    }

    /// Returns a copy of a packet in one segment. Returns `None` if the pool has no buffer large enough.
    fn copy(&self, packet: &Packet) -> Option<Packet> {
        // SAFETY: `self` owns the packet, and the packet is from `self.pool`.
        let length = unsafe { self.pool.length(packet) };
        let mut copy = [Packet::EMPTY];
        if length > self.pool.room() || self.pool.allocate(&mut copy) == 0 {
            return None;
        }
        let [mut copy] = copy;
        copy.length = length as u32;
        copy.port = packet.port;
        let mut at = 0;
        // SAFETY: `self` holds the packet, and the copy has room for it. `new` checked that the CPU maps the
        // pool.
        unsafe {
            self.pool.for_each_part(packet, &mut |part| {
                copy.bytes_mut()[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            });
        }
        // SAFETY: `self` holds both packets, and they are from this pool.
        unsafe { self.pool.set_meta(&copy, self.pool.meta(packet)) };
        Some(copy)
    }

    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.reordered.is_empty() && self.delayed.is_empty()
    }
}

impl Drop for FaultyLink {
    fn drop(&mut self) {
        // Packets that this wrapper still holds will never be sent on, so they count as dropped.
        let held = self
            .reordered
            .drain(..)
            .map(|held| held.packet)
            .chain(self.delayed.drain(..).map(|(_, packet)| packet));
        let left: Vec<Packet> = held.chain(self.ready.drain(..)).collect();
        self.counts.dropped.fetch_add(left.len() as u64, Ordering::Relaxed);
        // SAFETY: the packets are from this pool. `self` owns them and does not use them afterwards.
        unsafe { self.pool.free(&left) };
    }
}

/// A receive queue with injected faults.
pub struct FaultyRx {
    inner: Box<dyn Rx>,
    link: FaultyLink,
    counters: Counters,
}

impl FaultyRx {
    /// Returns the counts of injected faults. The counts grow while the queue is used.
    pub fn fault_counts(&self) -> Arc<FaultCounts> {
        self.link.counts.clone()
    }
}

// SAFETY: each packet was received from the inner queue or allocated for a copy, and leaves `ready` once.
unsafe impl Rx for FaultyRx {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let now_ns = self.link.clock.now_ns();
        if self.link.ready.len() < packets.len().min(MAX_READY) {
            let count = self.inner.receive(packets)?;
            for &packet in &packets[..count] {
                self.link.accept(packet, now_ns);
            }
            let ending = count == 0 && self.inner.exhausted();
            self.link.catch_up(now_ns, ending);
        }
        let count = self.link.ready.len().min(packets.len());
        for (place, packet) in packets.iter_mut().zip(self.link.ready.drain(..count)) {
            self.counters.bytes += packet.length as u64;
            *place = packet;
        }
        self.counters.packets += count as u64;
        Ok(count)
    }

    fn begin_sleep(&mut self) -> bool {
        // Packets that were held back become due without an event.
        self.link.is_empty() && self.inner.begin_sleep()
    }

    fn end_sleep(&mut self) {
        self.inner.end_sleep();
    }

    fn exhausted(&self) -> bool {
        self.inner.exhausted() && self.link.is_empty()
    }

    fn counters(&self) -> Counters {
        let inner = self.inner.counters();
        let dropped = self.link.counts.dropped.load(Ordering::Relaxed);
        Counters { missed: inner.missed + dropped, errors: inner.errors, ..self.counters }
    }
}
