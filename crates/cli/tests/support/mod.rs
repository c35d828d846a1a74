//! Helpers that wait for an event in another process. Tests wait for events instead of fixed times, because
//! other jobs on the machine may delay a process for a long time.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// How long a test waits for an expected event before it fails.
const LONGEST: Duration = Duration::from_secs(300);

/// Waits until `condition` holds.
///
/// # Panics
/// If the condition does not hold within five minutes.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONGEST, "{what}: not within {LONGEST:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes the program of `command` handle SIGHUP also if these tests ignore it, as under nohup: programs inherit that.
#[allow(dead_code, reason = "each test program uses a part of this module")]
pub fn with_hang_ups(command: &mut Command) -> &mut Command {
    // SAFETY: `signal` may be called between fork and exec, and the default action needs no handler.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        })
    }
}

/// Waits until `child` has a thread whose name begins with `name`, and each such thread has used the processor for `least`.
///
/// The thread `inlane-signals` exists once signals are handled. Threads `inlane-0` move packets.
#[allow(dead_code, reason = "each test program uses a part of this module")]
pub fn until_thread_runs(child: &Child, name: &str, least: Duration) {
    until(name, || used_by_threads(child, name).iter().min().is_some_and(|used| *used >= least));
}

/// Waits until the threads of `child` whose names begin with `name` have together used the processor for `least`.
#[allow(dead_code, reason = "each test program uses a part of this module")]
pub fn until_threads_used(child: &Child, name: &str, least: Duration) {
    until(name, || used_by_threads(child, name).iter().sum::<Duration>() >= least);
}

/// Returns the processor time that each thread of `child` has used whose name begins with `name`.
#[allow(dead_code, reason = "each test program uses a part of this module")]
fn used_by_threads(child: &Child, name: &str) -> Vec<Duration> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten().flatten();
    let used = tasks.map(|task| task.path()).filter_map(|task| {
        let text = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        let used = text("schedstat").split(' ').next().and_then(|number| number.parse().ok());
        text("comm").starts_with(name).then(|| Duration::from_nanos(used.unwrap_or(0)))
    });
    used.collect()
}
