//! The time that the threads of this process spend in the scheduler's queue.

use inlane_core::clock::ThreadTime;
use std::fs;
use std::time::Duration;

/// Returns how long the threads of this process have waited for a processor so far, all together. Returns zero if
/// the kernel does not report it.
pub fn queued_so_far() -> Duration {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ids = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    Duration::from_nanos(ids.filter_map(ThreadTime::of).map(|time| time.queued_ns).sum())
}
