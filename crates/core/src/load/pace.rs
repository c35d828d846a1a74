//! The rate that a load follows, which may change while it runs.

use super::Schedule;
use crate::units::Rate;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most nanoseconds that a paced thread may be behind its schedule, or the time of two operations if that is more.
/// So it makes up the time in which other threads had its processor, but a longer pause does not turn into a long burst.
const MAX_BACKLOG_NS: u64 = 10_000_000;

/// The rate that all threads of a load keep together, in operations per second. Any thread may change it at any time.
#[derive(Debug)]
pub struct Pace {
    /// The bits of an `f64`. 0 parks the load, and infinity lets it run as fast as possible.
    per_second: AtomicU64,
}

impl Pace {
    /// Creates a pace of `per_second` operations per second. 0 parks the load; infinity does not limit it.
    pub fn new(per_second: f64) -> Self {
        let pace = Self { per_second: AtomicU64::new(0) };
        pace.set(per_second);
        pace
    }

    /// Changes the pace. Threads follow within the time of one operation, and parked threads within a millisecond.
    ///
    /// # Panics
    /// If `per_second` is negative or not a number.
    pub fn set(&self, per_second: f64) {
        assert!(per_second >= 0.0, "a pace is not negative: {per_second}");
        self.per_second.store(per_second.to_bits(), Relaxed);
    }

    /// Returns the operations per second: 0 if the load is parked, infinity if nothing limits it.
    #[inline]
    pub fn get(&self) -> f64 {
        f64::from_bits(self.per_second.load(Relaxed))
    }
}

impl Default for Pace {
    /// Does not limit the load.
    fn default() -> Self {
        Self::new(f64::INFINITY)
    }
}

/// Tells one thread of a load how many operations are due at its share of the pace.
#[derive(Debug)]
pub struct Pacer {
    pace: Arc<Pace>,
    share: f64,
    /// The pace that `schedule` follows, in operations per second of the whole load.
    followed: f64,
    max_backlog_ns: u64,
    schedule: Option<Schedule>,
}

impl Pacer {
    /// Creates the pacer of a thread that does `share` of the load's operations. `share` is from 0 to 1.
    pub fn new(pace: Arc<Pace>, share: f64) -> Self {
        Self { pace, share, followed: f64::INFINITY, max_backlog_ns: MAX_BACKLOG_NS, schedule: None }
    }

    /// Returns true if nothing limits the load. Then [`Pacer::due`] needs no time.
    #[inline]
    pub fn is_unlimited(&self) -> bool {
        self.pace.get() == f64::INFINITY
    }

    /// Returns true if the load is parked.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.pace.get() == 0.0
    }

    /// Returns how many operations are due at `now_ns`, at most `most`: 0 while the load is parked, `most` if nothing
    /// limits it. Call [`Pacer::did`] with the number of operations that were begun.
    #[inline]
    pub fn due(&mut self, now_ns: u64, most: usize) -> usize {
        let pace = self.pace.get();
        if pace == f64::INFINITY {
            (self.followed, self.schedule) = (pace, None);
            return most;
        }
        self.due_at(pace, now_ns, most)
    }

    fn due_at(&mut self, pace: f64, now_ns: u64, most: usize) -> usize {
        if pace == 0.0 {
            (self.followed, self.schedule) = (pace, None);
            return 0;
        }
        if pace != self.followed {
            self.followed = pace;
            self.schedule = Some(Schedule::new(Rate::Packets(pace), self.share));
            self.max_backlog_ns = MAX_BACKLOG_NS.max((2e9 / (pace * self.share)) as u64);
        }
        let Some(schedule) = &mut self.schedule else { return most };
        schedule.limit_backlog(now_ns, self.max_backlog_ns);
        schedule.due_at_most(now_ns, most, 1.0)
    }

    /// Returns how many operations of this thread become due in `ns` nanoseconds. 0 unless a pace limits the load.
    #[inline]
    pub fn due_within(&self, ns: u64) -> usize {
        match self.schedule {
            Some(_) => (self.followed * self.share * ns as f64 / 1e9) as usize,
            None => 0,
        }
    }

    /// Counts operations that were begun.
    #[inline]
    pub fn did(&mut self, operations: usize) {
        if let Some(schedule) = &mut self.schedule {
            schedule.advance_packets(operations as u64);
        }
    }

    /// Returns how many nanoseconds after `now_ns` to ask again, if nothing is due before: a millisecond if the load is
    /// parked, and 0 if nothing limits it. Use it to sleep instead of polling.
    pub fn wait_ns(&self, now_ns: u64) -> u64 {
        const PARKED_NS: u64 = 1_000_000;
        match &self.schedule {
            Some(schedule) => schedule.due_ns().saturating_sub(now_ns).min(PARKED_NS),
            None if self.followed == 0.0 => PARKED_NS,
            None => 0,
        }
    }
}
