//! The counters of a load's threads, and the rates between two readings of them.

use crate::clock::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

/// The counters of one thread of a load. Only that thread writes them, so it needs no atomic addition. Any thread may
/// read them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Meter {
    operations: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    busy_ns: AtomicU64,
    blocked_ns: AtomicU64,
    /// The kernel's id of the thread. 0 if the thread has not told it.
    thread: AtomicI32,
}

/// A reading of one or several meters. While threads run, the fields may be from slightly different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Completed operations: packets, transfers, commands.
    pub operations: u64,
    /// Bytes of the completed operations.
    pub bytes: u64,
    /// Operations that failed. They are not among the completed ones.
    pub errors: u64,
    /// Nanoseconds in which the threads had work.
    pub busy_ns: u64,
    /// Nanoseconds in which the threads waited for a full port or queue.
    pub blocked_ns: u64,
}

impl Meter {
    /// Records the calling thread as the thread of this meter, so that the kernel's times of the thread can be read.
    pub fn set_thread(&self) {
        // SAFETY: the call has no arguments and returns a number.
        self.thread.store(unsafe { libc::gettid() }, Relaxed);
    }

    /// Returns the kernel's id of the meter's thread. `None` before the thread has called [`Meter::set_thread`].
    pub fn thread(&self) -> Option<i32> {
        Some(self.thread.load(Relaxed)).filter(|thread| *thread != 0)
    }

    /// Adds completed operations with `bytes` bytes in total. Only the meter's thread calls it.
    #[inline]
    pub fn add(&self, operations: u64, bytes: u64) {
        self.operations.store(self.operations.load(Relaxed) + operations, Relaxed);
        self.bytes.store(self.bytes.load(Relaxed) + bytes, Relaxed);
    }

    /// Sets the totals of completed operations and their bytes. For a thread that already keeps them. Only the meter's
    /// thread calls it.
    #[inline]
    pub fn set(&self, operations: u64, bytes: u64) {
        self.operations.store(operations, Relaxed);
        self.bytes.store(bytes, Relaxed);
    }

    /// Adds a failed operation. Only the meter's thread calls it.
    pub fn add_error(&self) {
        self.errors.store(self.errors.load(Relaxed) + 1, Relaxed);
    }

    /// Sets how long the thread has had work, and how long it has waited for a full port or queue. Only the meter's
    /// thread calls it.
    #[inline]
    pub fn set_times(&self, busy_ns: u64, blocked_ns: u64) {
        self.busy_ns.store(busy_ns, Relaxed);
        self.blocked_ns.store(blocked_ns, Relaxed);
    }

    /// Reads the counters.
    pub fn read(&self) -> Counts {
        Counts {
            operations: self.operations.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
            busy_ns: self.busy_ns.load(Relaxed),
            blocked_ns: self.blocked_ns.load(Relaxed),
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.busy_ns += other.busy_ns;
        self.blocked_ns += other.blocked_ns;
    }
}

impl std::ops::Sub for Counts {
    type Output = Self;

    /// Returns what was counted after the reading `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            operations: self.operations.saturating_sub(earlier.operations),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            errors: self.errors.saturating_sub(earlier.errors),
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            blocked_ns: self.blocked_ns.saturating_sub(earlier.blocked_ns),
        }
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |mut sum, counts| {
            sum += counts;
            sum
        })
    }
}

/// One reading of all loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When the meters were read, in nanoseconds of the sampler's clock.
    pub at_ns: u64,
    /// The counts of each load, in the order in which the sampler was given the loads.
    pub loads: Vec<Counts>,
}

impl Sample {
    /// Returns the bytes per second of load `index` since the reading `earlier`. Divides by the time that really
    /// passed between the two readings. `None` if no time passed.
    pub fn bytes_per_second(&self, earlier: &Self, index: usize) -> Option<f64> {
        self.rate(earlier, (self.loads[index] - earlier.loads[index]).bytes)
    }

    /// Returns the operations per second of load `index` since the reading `earlier`. `None` if no time passed.
    pub fn operations_per_second(&self, earlier: &Self, index: usize) -> Option<f64> {
        self.rate(earlier, (self.loads[index] - earlier.loads[index]).operations)
    }

    fn rate(&self, earlier: &Self, count: u64) -> Option<f64> {
        let passed = self.at_ns.checked_sub(earlier.at_ns).filter(|passed| *passed > 0)?;
        Some(count as f64 / passed as f64 * 1e9)
    }
}

/// Reads the meters of several loads.
pub struct Sampler {
    clock: Clock,
    loads: Vec<Vec<Arc<Meter>>>,
}

impl Sampler {
    /// Creates a sampler of the loads whose threads have the meters `loads`.
    pub fn new(clock: &Clock, loads: Vec<Vec<Arc<Meter>>>) -> Self {
        Self { clock: clock.clone(), loads }
    }

    /// Reads all meters now.
    pub fn take(&self) -> Sample {
        let at_ns = self.clock.now_ns();
        let loads = self.loads.iter().map(|meters| meters.iter().map(|meter| meter.read()).sum()).collect();
        Sample { at_ns, loads }
    }
}
