//! Tests of a bench as a load.

use super::*;
use crate::initiator::session_tests::{options, target};
use inlane_core::clock::Clock;
use inlane_core::load::{Sample, Sampler};
use inlane_result::Row;
use std::ops::RangeInclusive;
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(60);

fn workload(pattern: Pattern, jobs: u32) -> Workload {
    Workload {
        pattern,
        block_bytes: 4096,
        depth: 8,
        jobs,
        read_percent: 50,
        cores: Vec::new(),
        once: false,
        offset: 0,
        size: None,
        verify: false,
        seed: 1,
    }
}

/// Stops a run when it is dropped, so that a failed assertion ends the test.
struct Stop<'a>(&'a Running);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Runs a bench until `watch` returns. `watch` gets a sampler of the bench and the bench's pace.
fn run(bench: &mut Bench, watch: impl FnOnce(&Sampler, &Pace) + Send) -> Result<(), LoadError> {
    let (sampler, pace) = (Sampler::new(&Clock::new(), vec![bench.meters()]), bench.pace());
    let run = Running::new(bench.threads());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stop = Stop(&run);
            run.start.wait();
            watch(&sampler, &pace);
        });
        bench.run(&run)
    })
}

/// Waits until the rate of a bench lies in `expected`. Other programs on the cores can delay the bench for a while.
fn await_rate(sampler: &Sampler, expected: RangeInclusive<f64>) {
    let (start, mut found) = (Instant::now(), Vec::new());
    while start.elapsed() < PATIENCE {
        let before: Sample = sampler.take();
        std::thread::sleep(Duration::from_millis(300));
        let rate = sampler.take().operations_per_second(&before, 0).unwrap();
        if expected.contains(&rate) {
            return;
        }
        found.push(rate);
    }
    panic!("{found:?} instead of {expected:?} operations per second");
}

#[test]
fn the_pace_of_a_bench_may_change_while_it_runs() {
    let target = target("127.0.0.1:0", "memory:16M");
    let options = options(target.subsystem().listeners[0]);
    let mut bench = Bench::open(&workload(Pattern::RandRw, 2), &options).unwrap();
    bench.pace().set(500.0);
    run(&mut bench, |sampler, pace| {
        for (rate, expected) in [
            (500.0, 400.0..=600.0),
            (1500.0, 1200.0..=1700.0),
            (0.0, 0.0..=0.0),
            (f64::INFINITY, 2000.0..=f64::INFINITY),
        ] {
            pace.set(rate);
            await_rate(sampler, expected);
        }
    })
    .unwrap();
    let rows = bench.rows();
    assert!(rows.len() == 2 && rows.iter().all(|row| row.operations > 0 && row.error.is_none()), "{rows:?}");
    let counted: u64 = bench.meters().iter().map(|meter| meter.read().operations).sum();
    assert_eq!(counted, rows.iter().map(|row| row.operations).sum::<u64>());
    target.stop().unwrap();
}

#[test]
fn the_operations_and_the_rate_of_a_row_are_of_one_repeat() {
    let target = target("127.0.0.1:0", "memory:16M");
    let options = options(target.subsystem().listeners[0]);
    let mut bench = Bench::open(&workload(Pattern::RandRead, 1), &options).unwrap();
    run(&mut bench, |sampler, _| await_rate(sampler, 100.0..=f64::INFINITY)).unwrap();
    let measured = bench.rows().remove(0);
    let repeat = |operations_per_second: f64| IoResult {
        operations_per_second,
        bytes_per_second: 4096.0 * operations_per_second,
        ..measured.clone()
    };
    let row = result::merge(vec![repeat(1000.0), repeat(3000.0)]);
    let shown =
        |name: &str| row.figures().into_iter().find(|cell| cell.name == name).unwrap().value.to_string();
    assert_eq!((shown("IOPS"), shown("rate")), ("3000".into(), "12.29 MB/s".into()));
    target.stop().unwrap();
}

#[test]
fn a_failed_assertion_ends_the_bench() {
    let target = target("127.0.0.1:0", "memory:16M");
    let options = options(target.subsystem().listeners[0]);
    let mut bench = Bench::open(&workload(Pattern::RandRead, 2), &options).unwrap();
    let assertion = || run(&mut bench, |_, _| panic!("a failure of a test"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(assertion)).is_err());
    target.stop().unwrap();
}

#[test]
fn a_thread_whose_commands_are_all_in_flight_follows_a_pace() {
    let target = target("127.0.0.1:0", "memory:16M");
    let options = options(target.subsystem().listeners[0]);
    let mut one = workload(Pattern::RandRead, 1);
    one.depth = 1;
    let mut bench = Bench::open(&one, &options).unwrap();
    bench.pace().set(200.0);
    run(&mut bench, |sampler, _| await_rate(sampler, 120.0..=240.0)).unwrap();
    target.stop().unwrap();
}

/// A proxy in front of a target that forwards nothing any more once `stalled` is set, but keeps its connections.
fn stalling(target: std::net::SocketAddr, stalled: Arc<AtomicBool>) -> std::net::SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for host in listener.incoming() {
            let (host, controller) = (host.unwrap(), std::net::TcpStream::connect(target).unwrap());
            for (mut from, mut to) in [(&host, &controller), (&controller, &host)]
                .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
            {
                let stalled = stalled.clone();
                std::thread::spawn(move || {
                    let mut buffer = [0; 65536];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        while stalled.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(10));
                        }
                        if to.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                });
            }
        }
    });
    address
}

/// Returns how long a bench runs on after a stop. Its target may have stalled, and its pace may have parked it.
fn time_to_stop(is_stalled: bool, is_parked: bool) -> Duration {
    let target = target("127.0.0.1:0", "memory:16M");
    let stalled = Arc::<AtomicBool>::default();
    let address = stalling(target.subsystem().listeners[0], stalled.clone());
    let mut bench = Bench::open(&workload(Pattern::RandRead, 2), &options(address)).unwrap();
    let mut stopped = None;
    run(&mut bench, |sampler, pace| {
        let start = Instant::now();
        while sampler.take().loads[0].operations < 20 {
            assert!(start.elapsed() < PATIENCE, "the bench does not run");
            std::thread::sleep(Duration::from_millis(1));
        }
        if is_parked {
            pace.set(0.0);
            std::thread::sleep(Duration::from_millis(50));
        }
        stalled.store(is_stalled, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(100));
        stopped = Some(Instant::now());
    })
    .unwrap();
    let time = stopped.unwrap().elapsed();
    assert!(bench.rows()[0].operations >= 20);
    stalled.store(false, Ordering::Relaxed);
    target.stop().unwrap();
    time
}

/// A stop must not wait for commands that the target does not answer, nor for the shutdown of its controller.
#[test]
fn a_stop_returns_the_partial_result_within_200_ms() {
    for (is_stalled, is_parked) in [(false, false), (true, false), (true, true)] {
        // Other programs on the cores can delay the end, but not each time.
        let in_time = (0..5).any(|_| time_to_stop(is_stalled, is_parked) <= Duration::from_millis(200));
        assert!(in_time, "stalled: {is_stalled}, parked: {is_parked}");
    }
}

#[test]
fn a_target_that_vanishes_ends_only_its_load_and_leaves_the_partial_result() {
    let (stays, vanishes) = (target("127.0.0.1:0", "memory:16M"), target("127.0.0.1:0", "memory:16M"));
    let open = |target: &crate::target::Target| {
        let mut options = options(target.subsystem().listeners[0]);
        options.reconnect = Duration::ZERO;
        Bench::open(&workload(Pattern::RandRead, 2), &options).unwrap()
    };
    let mut benches = [open(&stays), open(&vanishes)];
    let sampler = Sampler::new(&Clock::new(), benches.iter().map(|bench| bench.meters()).collect());
    let run = Running::new(benches.iter().map(|bench| bench.threads()).sum());
    let [first, second] = &mut benches;
    let (mut vanishes, mut at_end) = (Some(vanishes), 0);
    let start = Instant::now();
    let outcomes = load::run_together(&mut [first, second], &run, |ended| {
        let unless_it_returns = Stop(&run);
        let loads = sampler.take().loads;
        assert!(start.elapsed() < Duration::from_secs(60), "{loads:?}");
        assert!(!ended[0] || run.stopping(), "the other load ended, too");
        if loads[1].operations > 100
            && let Some(target) = vanishes.take()
        {
            target.stop().unwrap();
        }
        if ended[1] && at_end == 0 {
            at_end = loads[0].operations;
        } else if ended[1] && loads[0].operations > at_end + 1000 {
            run.stop();
        }
        std::mem::forget(unless_it_returns);
        Duration::from_millis(5)
    });
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    assert!(outcomes[1].is_err());
    let rows = benches[1].rows();
    assert!(rows[0].operations > 100 && rows[0].error.is_some(), "{rows:?}");
    assert!(benches[1].meters().iter().map(|meter| meter.read().errors).sum::<u64>() > 0);
    stays.stop().unwrap();
}

#[test]
fn an_interrupted_verification_is_an_error() {
    let target = target("127.0.0.1:0", "memory:16M");
    let verified = Workload { verify: true, ..workload(Pattern::Write, 1) };
    let mut bench = Bench::open(&verified, &options(target.subsystem().listeners[0])).unwrap();
    let stop = AtomicBool::new(false);
    let rows = measure(&mut bench, None, &stop, |_, counts| {
        stop.store(counts().writes > 100, Ordering::Relaxed);
    });
    let error = rows[0].error.as_ref().expect("an error");
    assert!(error.to_string().contains("written blocks were read back"), "{error}");
    target.stop().unwrap();
}
