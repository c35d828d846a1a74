//! The counters of a load's threads, and the rates between two readings of them.

use crate::clock::{Clock, ThreadTime};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

/// The counters of one thread of a load. Only that thread writes them, so it needs no atomic addition. Any thread may
/// read them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Meter {
    begun: AtomicU64,
    operations: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
    errors: AtomicU64,
    busy_ns: AtomicU64,
    blocked_ns: AtomicU64,
    device_ns: AtomicU64,
    /// The times of the threads that wrote this meter and have ended.
    on_cpu_ns: AtomicU64,
    queued_ns: AtomicU64,
    /// The thread that writes this meter; 0 if none does now.
    thread: AtomicI32,
}

/// A reading of one or several meters. While threads run, the fields may be from slightly different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were begun: packets received, transfers submitted, commands sent. 0 if the load counts only
    /// completed operations.
    pub begun: u64,
    /// Completed operations: packets sent, transfers and commands that have ended.
    pub operations: u64,
    /// Bytes of the completed operations.
    pub bytes: u64,
    /// Operations that were given up on purpose, such as packets dropped by the packet function or by a full ring.
    pub dropped: u64,
    /// Operations that failed. They are not among the completed ones.
    pub errors: u64,
    /// Nanoseconds in which the threads had work.
    pub busy_ns: u64,
    /// Nanoseconds in which the threads waited for a full port or queue.
    pub blocked_ns: u64,
    /// Nanoseconds in which the threads waited for a device that had all that it can have in flight for them. 0 if they do
    /// not tell these from other waits.
    pub device_ns: u64,
    /// Nanoseconds in which the threads ran on a processor. 0 if they are not attached to their meters.
    pub on_cpu_ns: u64,
    /// Nanoseconds in which the threads were ready to run while other threads occupied the processors. 0 if the kernel
    /// does not report it.
    pub queued_ns: u64,
}

/// The time for which a thread writes a meter. Dropping this value stores the thread's final times in the meter.
#[derive(Debug)]
pub struct Attached<'a>(&'a Meter);

impl Meter {
    /// Makes the calling thread the meter's writer until the returned value is dropped. Readers then also find how long
    /// this thread ran, and how long it waited for a processor.
    pub fn attach(&self) -> Attached<'_> {
        // SAFETY: the call has no arguments and returns a number.
        self.thread.store(unsafe { libc::gettid() }, Relaxed);
        Attached(self)
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

    /// Sets the number of operations that were begun. Only the meter's thread calls it.
    #[inline]
    pub fn set_begun(&self, operations: u64) {
        self.begun.store(operations, Relaxed);
    }

    /// Sets the number of operations that were given up on purpose. Only the meter's thread calls it.
    #[inline]
    pub fn set_dropped(&self, operations: u64) {
        self.dropped.store(operations, Relaxed);
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

    /// Sets how long the thread has waited for a device. Only the meter's thread calls it.
    #[inline]
    pub fn set_device_time(&self, device_ns: u64) {
        self.device_ns.store(device_ns, Relaxed);
    }

    /// Reads the counters. Also asks the kernel for the times of the meter's thread, which takes some microseconds.
    pub fn read(&self) -> Counts {
        let mut time =
            ThreadTime { cpu_ns: self.on_cpu_ns.load(Relaxed), queued_ns: self.queued_ns.load(Relaxed) };
        match self.thread.load(Relaxed) {
            0 => {}
            thread => time += ThreadTime::of(thread).unwrap_or_default(),
        }
        Counts {
            begun: self.begun.load(Relaxed),
            operations: self.operations.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            errors: self.errors.load(Relaxed),
            busy_ns: self.busy_ns.load(Relaxed),
            blocked_ns: self.blocked_ns.load(Relaxed),
            device_ns: self.device_ns.load(Relaxed),
            on_cpu_ns: time.cpu_ns,
            queued_ns: time.queued_ns,
        }
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let (meter, time) = (self.0, ThreadTime::of_this_thread());
        meter.thread.store(0, Relaxed);
        meter.on_cpu_ns.store(meter.on_cpu_ns.load(Relaxed) + time.cpu_ns, Relaxed);
        meter.queued_ns.store(meter.queued_ns.load(Relaxed) + time.queued_ns, Relaxed);
    }
}

impl Counts {
    /// Combines each field of two readings.
    fn zip(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            begun: combine(self.begun, other.begun),
            operations: combine(self.operations, other.operations),
            bytes: combine(self.bytes, other.bytes),
            dropped: combine(self.dropped, other.dropped),
            errors: combine(self.errors, other.errors),
            busy_ns: combine(self.busy_ns, other.busy_ns),
            blocked_ns: combine(self.blocked_ns, other.blocked_ns),
            device_ns: combine(self.device_ns, other.device_ns),
            on_cpu_ns: combine(self.on_cpu_ns, other.on_cpu_ns),
            queued_ns: combine(self.queued_ns, other.queued_ns),
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, |one, other| one + other);
    }
}

impl std::ops::Sub for Counts {
    type Output = Self;

    /// Returns what was counted after the reading `earlier`.
    fn sub(self, earlier: Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
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
