//! A clock for hot paths. Reads the CPU's time stamp counter if it is invariant, else the system's monotonic
//! clock.

use quanta::Clock as Quanta;

/// A clock that takes about 10 ns to read. Clones of a clock have the same zero, so their times can be
/// compared.
#[derive(Clone)]
pub struct Clock {
    inner: Quanta,
    origin: u64,
}

impl Clock {
    /// Creates a clock whose zero is now.
    pub fn new() -> Self {
        let inner = Quanta::new();
        let origin = inner.raw();
        Self { inner, origin }
    }

    /// Returns the nanoseconds since the clock was created.
    pub fn now_ns(&self) -> u64 {
        self.inner.delta_as_nanos(self.origin, self.inner.raw())
    }

    /// Returns a raw reading of the clock. [`Clock::between_ns`] converts two readings to nanoseconds.
    pub fn raw(&self) -> u64 {
        self.inner.raw()
    }

    /// Returns the nanoseconds between two raw readings.
    pub fn between_ns(&self, start: u64, end: u64) -> u64 {
        self.inner.delta_as_nanos(start, end)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    read_clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// Returns the CPU time of all threads of this process, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    read_clock(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// Reads a clock of the kernel, in nanoseconds. `None` if there is no such clock.
fn read_clock(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only the struct.
    let read = unsafe { libc::clock_gettime(clock, &mut time) };
    (read == 0).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// How long a thread ran, and how long it waited for a processor. In the remaining time, it slept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// Nanoseconds on a processor.
    pub cpu_ns: u64,
    /// The nanoseconds in which the thread was ready to run but other threads occupied the processor. 0 if the kernel
    /// does not report it.
    pub queued_ns: u64,
}

impl ThreadTime {
    /// Returns the times of the calling thread since it started.
    pub fn of_this_thread() -> Self {
        Self { cpu_ns: thread_cpu_ns(), queued_ns: queued_ns("/proc/thread-self/schedstat").unwrap_or(0) }
    }

    /// Returns the times of thread `id` of this process since it started. `None` if there is no such thread.
    pub fn of(id: libc::pid_t) -> Option<Self> {
        // The clock's number is that of pthread_getcpuclockid: the inverted thread id, and bits for "thread" and "CPU
        // time". The kernel refuses threads of other processes.
        let clock = (!id << 3) | 0b110;
        let cpu_ns = read_clock(clock)?;
        Some(Self { cpu_ns, queued_ns: queued_ns(&format!("/proc/self/task/{id}/schedstat")).unwrap_or(0) })
    }
}

impl std::ops::AddAssign for ThreadTime {
    fn add_assign(&mut self, other: Self) {
        self.cpu_ns += other.cpu_ns;
        self.queued_ns += other.queued_ns;
    }
}

/// Reads the second number of a `schedstat` file: the nanoseconds in a run queue. The first number is the time on a
/// processor, which the kernel updates only at its ticks.
fn queued_ns(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_threads_of_the_process_can_be_timed() {
        let (name, names) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while thread_cpu_ns() < 5_000_000 {
                std::hint::spin_loop();
            }
            // SAFETY: the call only returns a number.
            name.send(unsafe { libc::gettid() }).unwrap();
            let _ = ends.recv();
            ThreadTime::of_this_thread()
        });
        let id = names.recv().unwrap();
        let seen = ThreadTime::of(id).unwrap();
        drop(end);
        let own = thread.join().unwrap();
        assert!((5_000_000..=own.cpu_ns).contains(&seen.cpu_ns), "{seen:?} {own:?}");
        assert!(seen.queued_ns <= own.queued_ns);
        assert_eq!(ThreadTime::of(1 << 23), None, "Linux numbers threads below 1 << 22");
    }
}
