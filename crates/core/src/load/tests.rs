use super::*;
use crate::clock::Clock;
use std::time::{Duration, Instant};

#[test]
fn rates_divide_by_the_time_between_samples() {
    let meter = Arc::new(Meter::default());
    let second = |bytes, at_ns| {
        meter.add(1, bytes);
        Sample { at_ns, loads: vec![meter.read()] }
    };
    let (a, b) = (second(100, 1_000_000), second(500, 3_000_000));
    assert_eq!(b.bytes_per_second(&a, 0), Some(250_000.0));
    assert_eq!(b.operations_per_second(&a, 0), Some(500.0));
    assert_eq!(a.bytes_per_second(&a, 0), None, "no time passed");
    assert_eq!(a.bytes_per_second(&b, 0), None, "the samples are in the wrong order");
}

#[test]
fn a_sample_adds_up_the_threads_of_each_load() {
    let [a, b, c] = [(); 3].map(|()| Arc::new(Meter::default()));
    a.add(1, 10);
    b.add(2, 20);
    b.add_error();
    c.set(5, 50);
    c.set_times(7, 8);
    let sample = Sampler::new(&Clock::new(), vec![vec![a, b], vec![c]]).take();
    assert_eq!(sample.loads[0], Counts { operations: 3, bytes: 30, errors: 1, ..Counts::default() });
    let expected = Counts { operations: 5, bytes: 50, busy_ns: 7, blocked_ns: 8, ..Counts::default() };
    assert_eq!(sample.loads[1], expected);
}

/// Simulates a thread that asks every microsecond for `ns` nanoseconds, and returns what it did.
fn simulate(pacer: &mut Pacer, from_ns: u64, ns: u64) -> u64 {
    let mut done = 0;
    for now in (from_ns..from_ns + ns).step_by(1000) {
        let due = pacer.due(now, 32);
        pacer.did(due);
        done += due as u64;
    }
    done
}

#[test]
fn a_pace_may_change_while_threads_follow_it() {
    let pace = Arc::new(Pace::default());
    let mut pacer = Pacer::new(pace.clone(), 0.5);
    assert_eq!(pacer.due(0, 32), 32, "without a limit, everything is due");
    assert_eq!(pacer.wait_ns(0), 0);

    pace.set(100_000.0);
    let done = simulate(&mut pacer, 0, 1_000_000_000);
    assert!((49_900..=50_100).contains(&done), "{done} operations in a second at half of 100,000");
    assert!(pacer.wait_ns(999_999_000) <= 20_000, "the next one is due within an interval");

    pace.set(0.0);
    assert_eq!(simulate(&mut pacer, 1_000_000_000, 1_000_000_000), 0, "parked");
    assert_eq!(pacer.wait_ns(2_000_000_000), 1_000_000);

    // After the parking, nothing is made up.
    pace.set(20_000.0);
    let done = simulate(&mut pacer, 2_000_000_000, 1_000_000_000);
    assert!((9_900..=10_100).contains(&done), "{done}");

    // A thread that stalls for half a second makes up at most the backlog.
    let stalled = pacer.due(3_500_000_000, 1_000_000);
    assert!(stalled <= 3, "{stalled} due after a stall");
    pace.set(f64::INFINITY);
    assert_eq!(pacer.due(3_500_000_000, 7), 7);
}

#[test]
#[should_panic(expected = "not negative")]
fn a_negative_pace_is_refused() {
    Pace::default().set(-1.0);
}

#[test]
fn all_threads_start_at_one_instant() {
    let line = StartLine::new(3);
    let instants: Vec<Option<Instant>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|index| {
                let member = line.member();
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(index * 5));
                    member.ready()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(instants[0].is_some() && instants.iter().all(|instant| *instant == instants[0]));
    assert_eq!(line.wait(), instants[0], "who comes later learns the same instant");
}

#[test]
fn a_thread_that_fails_before_the_start_does_not_hold_up_the_others() {
    let line = StartLine::new(2);
    std::thread::scope(|scope| {
        let (ready, fails) = (line.member(), line.member());
        let waits = scope.spawn(move || ready.ready());
        let panics = scope.spawn(move || {
            let _fails = fails;
            panic!("cannot open");
        });
        assert!(panics.join().is_err());
        assert!(waits.join().unwrap().is_some());
    });
}

#[test]
fn a_stop_before_the_start_releases_all_threads() {
    let run = Running::new(2);
    std::thread::scope(|scope| {
        let member = run.start.member();
        let waits = scope.spawn(move || member.ready());
        run.stop();
        assert_eq!(waits.join().unwrap(), None);
    });
    assert!(run.stopping());
}

#[test]
fn a_meter_names_its_thread() {
    let meter = Meter::default();
    assert_eq!(meter.thread(), None);
    meter.set_thread();
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    assert_eq!(own.file_name().unwrap().to_str(), Some(meter.thread().unwrap().to_string().as_str()));
}
