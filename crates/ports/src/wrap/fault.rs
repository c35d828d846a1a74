//! A faulty wire by choice: drops, duplicates, reorders, corrupts and delays packets, each with a probability, in a way that a
//! seed repeats. What it does is counted, so that a checker's findings can be compared with it.

use crate::generate::require_cpu_memory;
use crate::generate::traffic::mix;
use inlane_core::clock::Clock;
use inlane_core::port::Counters;
use inlane_core::units::parse_time;
use inlane_core::{Error, Packet, Pool, Result, Rx};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a reordered packet waits for at most when nothing follows it.
const PATIENCE_NS: u64 = 10_000_000;
/// Most packets on hand to be sent.
const MOST_READY: usize = 1024;

/// How faulty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability that a packet is dropped.
    pub drop: f64,
    /// Probability that a packet comes twice.
    pub duplicate: f64,
    /// Probability that a packet comes behind `reorder_by` later ones.
    pub reorder: f64,
    /// Behind how many.
    pub reorder_by: u64,
    /// Probability that a bit of a packet is flipped.
    pub corrupt: f64,
    /// Probability that a packet is delayed.
    pub delay: f64,
    /// By how much.
    pub delay_ns: u64,
    /// Which faults.
    pub seed: u64,
}

impl Faults {
    /// Reads `drop=1%,duplicate=0.1%,reorder=1%:3,corrupt=0.01,delay=5%:50us,seed=7`.
    ///
    /// # Errors
    /// For anything else, and probabilities outside 0 to 1.
    pub fn parse(text: &str) -> Result<Self> {
        let mut faults = Self { seed: 1, reorder_by: 3, delay_ns: 100_000, ..Self::default() };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let wrong = |why: &str| Error::Invalid {
                what: format!("fault '{part}'"),
                why: format!(
                    "{why}; write for example drop=1%,duplicate=0.1%,reorder=1%:3,corrupt=0.1%,delay=5%:50us,seed=7"
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
                    .ok_or_else(|| wrong("a share is 0 % to 100 %"))
            };
            if more.is_some() && !matches!(key, "reorder" | "delay") {
                return Err(wrong("only reorder and delay have a second value"));
            }
            match key {
                "drop" => faults.drop = probability()?,
                "duplicate" => faults.duplicate = probability()?,
                "corrupt" => faults.corrupt = probability()?,
                "reorder" => {
                    faults.reorder = probability()?;
                    if let Some(by) = more {
                        let by = by.parse().ok().filter(|by| (1..=64).contains(by));
                        faults.reorder_by = by.ok_or_else(|| wrong("behind 1 to 64 packets"))?;
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

    /// `inner`, whose packets are of `pool`, with faults behind it.
    ///
    /// # Errors
    /// When the CPU cannot write those packets.
    pub fn rx(self, inner: Box<dyn Rx>, pool: &Arc<dyn Pool>, clock: &Clock) -> Result<FaultyRx> {
        let counters = Counters::default();
        Ok(FaultyRx { inner, wire: Wire::new(self, pool, clock)?, counters })
    }
}

/// What was done to packets.
#[derive(Debug, Default)]
pub struct Done {
    dropped: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    corrupted: AtomicU64,
    delayed: AtomicU64,
}

impl Done {
    /// Dropped, duplicated, reordered, corrupted, delayed.
    pub fn counts(&self) -> [u64; 5] {
        [&self.dropped, &self.duplicated, &self.reordered, &self.corrupted, &self.delayed]
            .map(|count| count.load(Ordering::Relaxed))
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Packets on the faulty wire.
struct Wire {
    faults: Faults,
    random: u64,
    pool: Arc<dyn Pool>,
    clock: Clock,
    /// Packets that have passed, to know when a reordered one is due.
    passed: u64,
    reordered: VecDeque<Reordered>,
    /// Due times and packets, in order: every delay is as long.
    delayed: VecDeque<(u64, Packet)>,
    ready: VecDeque<Packet>,
    /// Packets that may be held back at once.
    most_held: usize,
    done: Arc<Done>,
}

struct Reordered {
    behind: u64,
    until_ns: u64,
    packet: Packet,
}

impl Wire {
    fn new(faults: Faults, pool: &Arc<dyn Pool>, clock: &Clock) -> Result<Self> {
        require_cpu_memory("faults", pool)?;
        Ok(Self {
            faults,
            random: faults.seed,
            pool: pool.clone(),
            clock: clock.clone(),
            passed: 0,
            reordered: VecDeque::new(),
            delayed: VecDeque::new(),
            ready: VecDeque::with_capacity(2 * MOST_READY),
            most_held: pool.capacity() / 4,
            done: Arc::default(),
        })
    }

    /// True with `probability`; always takes one step of the generator, so that faults do not depend on each other.
    fn happens(&mut self, probability: f64) -> bool {
        (mix(&mut self.random) >> 11) as f64 / (1u64 << 53) as f64 <= probability && probability > 0.0
    }

    fn accept(&mut self, packet: Packet, now_ns: u64) {
        let faults = self.faults;
        let chances = [faults.drop, faults.corrupt, faults.duplicate, faults.reorder, faults.delay];
        let [drop, corrupt, duplicate, reorder, delay] = chances.map(|chance| self.happens(chance));
        let bit = mix(&mut self.random);
        if drop {
            count(&self.done.dropped);
            // SAFETY: these packets are held here, are of this pool, and are not used again.
            unsafe { self.pool.free(&[packet]) };
            return;
        }
        if corrupt && packet.length > 0 {
            count(&self.done.corrupted);
            let bit = bit % (packet.length as u64 * 8);
            // SAFETY: the wire holds the packet, in memory that the CPU maps (checked at set-up).
            let bytes = unsafe { packet.bytes_mut() };
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
        let holds = self.reordered.len() + self.delayed.len() < self.most_held;
        if reorder && holds {
            count(&self.done.reordered);
            let behind = self.passed + faults.reorder_by;
            self.reordered.push_back(Reordered { behind, until_ns: now_ns + PATIENCE_NS, packet });
            return;
        }
        if delay && holds {
            count(&self.done.delayed);
            self.delayed.push_back((now_ns + faults.delay_ns, packet));
            return;
        }
        let copy = if duplicate { self.copy(&packet) } else { None };
        self.pass(packet);
        if let Some(copy) = copy {
            count(&self.done.duplicated);
            self.ready.push_back(copy);
        }
    }

    fn pass(&mut self, packet: Packet) {
        self.ready.push_back(packet);
        self.passed += 1;
        self.release(|held, passed| held.behind <= passed);
    }

    /// Sends on the reordered packets that are due, the first held first.
    fn release(&mut self, due: impl Fn(&Reordered, u64) -> bool) {
        while let Some(held) = self.reordered.front()
            && due(held, self.passed)
        {
            self.ready.extend(self.reordered.pop_front().map(|held| held.packet));
        }
    }

    /// Sends on what has waited long enough; all that waits for others, when none will come.
    fn catch_up(&mut self, now_ns: u64, ending: bool) {
        while let Some(&(due_ns, packet)) = self.delayed.front()
            && due_ns <= now_ns
        {
            self.delayed.pop_front();
            self.pass(packet);
        }
        self.release(|held, _| ending || held.until_ns <= now_ns);
    }

    /// A copy of a packet in one segment, where there is a buffer that it fits into.
    fn copy(&self, packet: &Packet) -> Option<Packet> {
        let mut length = 0;
        // SAFETY: the packet is held here and of this pool.
        unsafe { self.pool.for_each_segment(packet, &mut |_, bytes| length += bytes as usize) };
        let mut copy = [Packet::EMPTY];
        if length > self.pool.room() || self.pool.allocate(&mut copy) == 0 {
            return None;
        }
        let [mut copy] = copy;
        copy.length = length as u32;
        copy.port = packet.port;
        let mut at = 0;
        // SAFETY: the wire holds the packet, and the copy has room for all its segments. Both lie in memory that the CPU maps
        // (checked at set-up).
        unsafe {
            self.pool.for_each_segment(packet, &mut |address, bytes| {
                let bytes = bytes as usize;
                let segment = std::slice::from_raw_parts(address as *const u8, bytes);
                copy.bytes_mut()[at..at + bytes].copy_from_slice(segment);
                at += bytes;
            });
        }
        // SAFETY: the packet is held here and of this pool.
        unsafe { self.pool.set_meta(&copy, self.pool.meta(packet)) };
        Some(copy)
    }

    fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.reordered.is_empty() && self.delayed.is_empty()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // What is on the wire when it is cut is lost, and counted.
        let held = self
            .reordered
            .drain(..)
            .map(|held| held.packet)
            .chain(self.delayed.drain(..).map(|(_, packet)| packet));
        let left: Vec<Packet> = held.chain(self.ready.drain(..)).collect();
        self.done.dropped.fetch_add(left.len() as u64, Ordering::Relaxed);
        // SAFETY: these packets are held here, are of this pool, and are not used again.
        unsafe { self.pool.free(&left) };
    }
}

/// A receive queue with faults behind it.
pub struct FaultyRx {
    inner: Box<dyn Rx>,
    wire: Wire,
    counters: Counters,
}

impl FaultyRx {
    /// What it does, counted while it does it.
    pub fn done(&self) -> Arc<Done> {
        self.wire.done.clone()
    }
}

// SAFETY: each packet is received from the inner port or allocated for a copy, and leaves `ready` once.
unsafe impl Rx for FaultyRx {
    fn receive(&mut self, packets: &mut [Packet]) -> Result<usize> {
        let now_ns = self.wire.clock.now_ns();
        if self.wire.ready.len() < packets.len().min(MOST_READY) {
            let count = self.inner.receive(packets)?;
            for &packet in &packets[..count] {
                self.wire.accept(packet, now_ns);
            }
            let ending = count == 0 && self.inner.exhausted();
            self.wire.catch_up(now_ns, ending);
        }
        let count = self.wire.ready.len().min(packets.len());
        for (place, packet) in packets.iter_mut().zip(self.wire.ready.drain(..count)) {
            self.counters.bytes += packet.length as u64;
            *place = packet;
        }
        self.counters.packets += count as u64;
        Ok(count)
    }

    fn exhausted(&self) -> bool {
        self.inner.exhausted() && self.wire.is_empty()
    }

    fn counters(&self) -> Counters {
        let inner = self.inner.counters();
        let dropped = self.wire.done.dropped.load(Ordering::Relaxed);
        Counters { missed: inner.missed + dropped, errors: inner.errors, ..self.counters }
    }
}
