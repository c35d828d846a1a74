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
    assert!((99..=101).contains(&stalled), "{stalled} due after a stall: those of 10 ms");
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
fn a_stop_reaches_flags_of_the_loads() {
    let run = Running::new(0);
    let flags = [(); 2].map(|()| Arc::<AtomicBool>::default());
    let act = |flag: &Arc<AtomicBool>| {
        let flag = flag.clone();
        move || flag.store(true, Relaxed)
    };
    run.at_stop(act(&flags[0]));
    assert!(!flags[0].load(Relaxed));
    run.stop();
    run.at_stop(act(&flags[1]));
    assert!(flags.iter().all(|flag| flag.load(Relaxed)));
}

/// A load of one thread that counts an operation each millisecond.
struct Ticks {
    meter: Arc<Meter>,
    pace: Arc<Pace>,
    /// Fails or panics after this many operations.
    fails_after: u64,
    panics: bool,
    drops_privileges: bool,
    started: Option<Instant>,
}

impl Ticks {
    fn new(fails_after: u64) -> Self {
        let (meter, pace) = Default::default();
        Self { meter, pace, fails_after, panics: false, drops_privileges: false, started: None }
    }
}

impl Load for Ticks {
    fn name(&self) -> String {
        "ticks".into()
    }

    fn meters(&self) -> Vec<Arc<Meter>> {
        vec![self.meter.clone()]
    }

    fn pace(&self) -> Arc<Pace> {
        self.pace.clone()
    }

    fn threads(&self) -> usize {
        1
    }

    fn drops_privileges(&self) -> bool {
        self.drops_privileges
    }

    fn run(&mut self, run: &Running) -> Result<(), LoadError> {
        let member = run.start.member();
        let (meter, fails_after, panics) = (self.meter.clone(), self.fails_after, self.panics);
        let body = move || -> Result<Option<Instant>, LoadError> {
            let Some(started) = member.ready() else { return Ok(None) };
            while !run.stopping() {
                if meter.read().operations == fails_after {
                    assert!(!panics, "as asked");
                    return Err("the device is gone".into());
                }
                std::thread::sleep(Duration::from_millis(1));
                meter.add(1, 10);
            }
            Ok(Some(started))
        };
        self.started = std::thread::scope(|scope| {
            let thread = spawn(scope, "ticks".into(), None, &self.meter, body)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        Ok(())
    }
}

#[test]
fn a_load_that_fails_or_panics_ends_only_itself() {
    let (mut fails, mut panics, mut goes_on) = (Ticks::new(3), Ticks::new(2), Ticks::new(u64::MAX));
    panics.panics = true;
    let meters = [&fails, &panics, &goes_on].map(|load| load.meter.clone());
    let run = Running::new(3);
    let mut loads: [&mut dyn Load; 3] = [&mut fails, &mut panics, &mut goes_on];
    let outcomes = run_together(&mut loads, &run, |ended| {
        assert!(!ended[2], "the third load runs until it is stopped");
        if ended[0] && ended[1] && meters[2].read().operations > 10 {
            run.stop();
        }
        Duration::from_millis(5)
    });
    assert_eq!(outcomes[0].as_ref().unwrap_err().to_string(), "the device is gone");
    assert!(outcomes[1].as_ref().unwrap_err().to_string().ends_with("panicked: as asked"), "{outcomes:?}");
    assert!(outcomes[2].is_ok());
    assert_eq!(meters[0].read().bytes, 30, "the partial result is kept");
    assert!(goes_on.started.is_some());
}

/// A load whose thread takes a moment to end after the load has returned.
struct EndsLate(Arc<AtomicBool>);

/// Sets its flag when its thread ends.
struct AtEnd(Arc<AtomicBool>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(100));
        self.0.store(true, Relaxed);
    }
}

thread_local! {
    static AT_END: std::cell::OnceCell<AtEnd> = const { std::cell::OnceCell::new() };
}

impl Load for EndsLate {
    fn name(&self) -> String {
        "ends late".into()
    }

    fn meters(&self) -> Vec<Arc<Meter>> {
        Vec::new()
    }

    fn pace(&self) -> Arc<Pace> {
        Arc::default()
    }

    fn threads(&self) -> usize {
        0
    }

    fn run(&mut self, _run: &Running) -> Result<(), LoadError> {
        AT_END.with(|cell| cell.set(AtEnd(self.0.clone())).map_err(|_| "the thread is new".into()))
    }
}

#[test]
fn the_threads_of_loads_have_ended_when_the_run_has() {
    let ended = Arc::<AtomicBool>::default();
    let outcomes = run_together(&mut [&mut EndsLate(ended.clone())], &Running::new(0), |_| Duration::MAX);
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    assert!(ended.load(Relaxed), "the thread still runs");
}

#[test]
fn privileges_are_dropped_once_and_only_if_a_load_asks() {
    let (mut one, mut two) = (Ticks::new(0), Ticks::new(0));
    let mut dropped = 0;
    let mut count = |loads: &mut [&mut dyn Load]| {
        let prepared = prepare(loads, || {
            dropped += 1;
            Ok::<(), ()>(())
        });
        assert!(prepared.unwrap().iter().all(Result::is_ok));
        dropped
    };
    assert_eq!(count(&mut [&mut one, &mut two]), 0);
    (one.drops_privileges, two.drops_privileges) = (true, true);
    assert_eq!(count(&mut [&mut one, &mut two]), 1);
    assert!(prepare(&mut [&mut one], || Err::<(), _>("no")).is_err());
}

#[test]
fn a_meter_has_the_times_of_its_thread() {
    let meter = Arc::new(Meter::default());
    std::thread::scope(|scope| {
        let spins = || {
            let begun = crate::clock::thread_cpu_ns();
            while crate::clock::thread_cpu_ns() - begun < 20_000_000 {
                std::hint::spin_loop();
            }
        };
        let thread = spawn(scope, "spins".into(), None, &meter, spins).unwrap();
        while meter.read().on_cpu_ns < 5_000_000 {
            std::thread::sleep(Duration::from_millis(1));
        }
        thread.join().unwrap();
    });
    let ended = meter.read();
    assert!(ended.on_cpu_ns >= 20_000_000, "{ended:?}");
    assert_eq!(meter.read(), ended, "the times stay when the thread has ended");
}
