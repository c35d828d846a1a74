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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::Instant;

    #[test]
    fn threads_that_share_a_core_wait_for_it() {
        if ThreadTime::of(std::process::id() as i32).is_none() {
            eprintln!("SKIPPED threads_that_share_a_core_wait_for_it: the kernel does not report waiting");
            return;
        }
        let (core, done) = (inlane_core::cores::allowed()[0], AtomicBool::new(false));
        let (before, start) = (queued_so_far(), Instant::now());
        let waited = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    inlane_core::cores::bind(&[core]).unwrap();
                    while !done.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            // The times of threads that have ended no longer count, so look while they run.
            let waited = || queued_so_far().saturating_sub(before);
            while waited() < Duration::from_millis(20) && start.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let waited = waited();
            done.store(true, Relaxed);
            waited
        });
        assert!(waited >= Duration::from_millis(20), "{waited:?}");
    }
}
