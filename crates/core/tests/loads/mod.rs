//! What tests of loads in several crates have in common.

use inlane_core::clock::Clock;
use inlane_core::load::{Counts, Load, LoadError, Running, Sample, Sampler, run_together};
use std::time::{Duration, Instant};

/// Runs loads, and calls `session` on another thread when they have started. Stops them when it returns. Returns the
/// outcome of each load.
pub fn beside<T: Send>(
    loads: &mut [&mut dyn Load],
    session: impl FnOnce(&Sampler, &Running) -> T + Send,
) -> (T, Vec<Result<(), LoadError>>) {
    let run = Running::new(loads.iter().map(|load| load.threads()).sum());
    let sampler = Sampler::new(&Clock::new(), loads.iter().map(|load| load.meters()).collect());
    std::thread::scope(|scope| {
        let session = scope.spawn(|| {
            run.start.wait().expect("the loads start");
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| session(&sampler, &run)));
            run.stop();
            found
        });
        let outcomes = run_together(loads, &run, |_| Duration::from_millis(100));
        let found = session.join().unwrap().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (found, outcomes)
    })
}

/// Samples twice, with `time` in between.
pub fn measure(sampler: &Sampler, time: Duration) -> [Sample; 2] {
    let first = sampler.take();
    std::thread::sleep(time);
    [first, sampler.take()]
}

/// Waits until `condition` holds. Other programs may keep the loads from running for seconds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for a window of 200 ms in which load 0 begins and ends no operation. A thread that was not scheduled when the load was
/// parked ends its operations later. Returns what the load counted in that window.
pub fn await_parked(sampler: &Sampler) -> Counts {
    let mut parked = Counts::default();
    until("a parked load does nothing", || {
        let [first, last] = measure(sampler, Duration::from_millis(200));
        parked = last.loads[0] - first.loads[0];
        (parked.begun, parked.operations) == (0, 0)
    });
    parked
}
