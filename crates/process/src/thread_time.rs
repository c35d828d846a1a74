//! The time that threads spend on processors and in the scheduler's queue.

use inlane_core::clock::thread_cpu_ns;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// How long threads ran, and how long they waited for a processor. In the remaining time, they slept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// Nanoseconds on a processor.
    pub cpu_ns: u64,
    /// The nanoseconds in which the thread was ready to run but other threads occupied the processor. 0 if
    /// the kernel does not report it.
    pub queued_ns: u64,
}

impl ThreadTime {
    /// Returns the times of the calling thread since it started.
    pub fn of_this_thread() -> Self {
        Self { cpu_ns: thread_cpu_ns(), queued_ns: queued_ns(Path::new("/proc/thread-self")) }
    }
}

impl std::ops::AddAssign for ThreadTime {
    fn add_assign(&mut self, other: Self) {
        self.cpu_ns += other.cpu_ns;
        self.queued_ns += other.queued_ns;
    }
}

/// Returns how long the threads of this process have waited for a processor so far, all together. Returns zero if
/// the kernel does not report it.
pub fn queued_so_far() -> Duration {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    Duration::from_nanos(threads.map(|thread| queued_ns(&thread.path())).sum())
}

/// Reads how long a thread has waited for a processor. `thread` is its folder in /proc.
fn queued_ns(thread: &Path) -> u64 {
    // The file has three numbers: nanoseconds on a processor, nanoseconds in a run queue, time slices.
    let text = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    text.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}
