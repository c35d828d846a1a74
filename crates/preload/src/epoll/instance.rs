//! The table of epoll instances: which slots of shared memory they watch, and which thread waits for their events.

#[cfg(doc)]
use inlane_offload_protocol::slots::Sleepers;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The number of descriptors in the table. Epoll instances with higher descriptors get all their events from
/// the kernel.
const MOST: usize = 1024;

/// An epoll instance. Bit n of its masks belongs to slot n.
pub struct Instance {
    /// A mask of the slots whose connections are watched for input.
    pub readers: AtomicU64,
    /// The slots of connections that are watched for output.
    pub writers: AtomicU64,
    /// The only thread that has waited for events of this instance so far. 0 if no thread has waited,
    /// [`SEVERAL`] if more than one thread has waited.
    waiter: AtomicUsize,
    /// The approximate number of waits since the last wait that asked the kernel for events.
    pub calls: AtomicU32,
    /// True if the last events came from the kernel, and false if they came from shared memory.
    pub kernel: AtomicBool,
    /// The number of the slot of shared memory whose event is reported first. It changes, because a program
    /// may ask for few events. All connections then get their turn.
    pub first: AtomicU32,
    /// The number of the instance among [`Sleepers`], plus 1. 0 if it has none.
    sleeper: AtomicU32,
}

/// The number of instances that have a number among [`Sleepers`].
static SLEEPERS: AtomicU32 = AtomicU32::new(0);
/// The most such instances.
const MOST_SLEEPERS: u32 = 64;

/// The value of `Instance::waiter` if several threads have waited on the epoll instance.
const SEVERAL: usize = usize::MAX;

static INSTANCES: [Instance; MOST] = [const {
    Instance {
        readers: AtomicU64::new(0),
        writers: AtomicU64::new(0),
        waiter: AtomicUsize::new(0),
        calls: AtomicU32::new(0),
        kernel: AtomicBool::new(false),
        first: AtomicU32::new(0),
        sleeper: AtomicU32::new(0),
    }
}; MOST];

/// Returns the entry of the epoll instance `fd`, or `None` if the descriptor is too high. The descriptor need
/// not be an epoll instance.
#[inline]
pub fn of(fd: RawFd) -> Option<&'static Instance> {
    usize::try_from(fd).ok().and_then(|fd| INSTANCES.get(fd))
}

/// Returns a number that identifies the calling thread among the running threads of the process.
#[inline]
fn thread() -> usize {
    // SAFETY: has no preconditions. Each thread has an errno of its own.
    unsafe { libc::__errno_location() as usize }
}

/// Sets or clears `bit` in a mask of an instance.
pub fn set(mask: &AtomicU64, bit: u64, value: bool) {
    // If the bit already has this value, skip the locked operation. This is the frequent case.
    if (mask.load(Ordering::Relaxed) & bit != 0) != value {
        match value {
            true => mask.fetch_or(bit, Ordering::Relaxed),
            false => mask.fetch_and(!bit, Ordering::Relaxed),
        };
    }
}

impl Instance {
    /// Begins a new instance, which the process has just created with this descriptor.
    pub fn begin(&self) {
        self.readers.store(0, Ordering::Relaxed);
        self.writers.store(0, Ordering::Relaxed);
        self.waiter.store(0, Ordering::Relaxed);
    }

    /// Returns true if the calling thread, and no other, waits for the events of the instance.
    #[inline]
    pub fn waits_alone(&self) -> bool {
        self.waiter.load(Ordering::Relaxed) == thread()
    }

    /// Returns the number of the instance among [`Sleepers`]. `None` if other instances have all numbers. The calling thread is the
    /// only one that waits for the instance's events.
    pub fn sleeper(&self) -> Option<usize> {
        if self.sleeper.load(Ordering::Relaxed) == 0 {
            let next = |given| (given < MOST_SLEEPERS).then_some(given + 1);
            let given = SLEEPERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
            self.sleeper.store(given + 1, Ordering::Relaxed);
        }
        self.known_sleeper()
    }

    /// Returns the number that [`Instance::sleeper`] has returned. `None` if it has returned none.
    pub fn known_sleeper(&self) -> Option<usize> {
        (self.sleeper.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// Returns true if other threads than the calling one have waited for the events of the instance.
    #[inline]
    pub fn others_wait(&self) -> bool {
        self.waiter.load(Ordering::Relaxed) != 0 && !self.waits_alone()
    }

    /// Records that the calling thread waits for events of the instance.
    pub fn note_waiter(&self) {
        let waiter = if self.waiter.load(Ordering::Relaxed) == 0 { thread() } else { SEVERAL };
        self.waiter.store(waiter, Ordering::Relaxed);
    }

    /// Returns true if the instance watches a slot.
    #[inline]
    pub fn is_watching(&self) -> bool {
        self.readers.load(Ordering::Relaxed) | self.writers.load(Ordering::Relaxed) != 0
    }

    /// Stops watching a slot for input and output. `bit` is the slot's bit of the masks.
    pub fn stop_watching(&self, bit: u64) {
        set(&self.readers, bit, false);
        set(&self.writers, bit, false);
    }
}
