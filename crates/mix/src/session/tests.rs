use super::*;
use crate::scenario::Draft;
use inlane_core::cores::allowed;
use inlane_core::load::{Load, LoadError, Meter, Pace, Running};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A plan of one short block.
fn short() -> Plan {
    Plan {
        duration: Duration::from_millis(60),
        settle: Duration::from_millis(20),
        limit: Duration::ZERO,
        ..Plan::default()
    }
}

fn opened(loads: &[&str]) -> Session {
    let mut draft = Draft::default();
    loads.iter().try_for_each(|load| draft.add_load(load)).unwrap();
    let opened = open::all(&draft.scenario(&[]).unwrap()).unwrap();
    Session { opened, users: loads.len() }
}

fn measure(session: Session, plan: &Plan) -> Measured {
    session.measure(plan, Vec::new(), &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn median(measured: &Measured, phase: Phase, load: usize) -> f64 {
    Estimate::of(&measured.operations(phase, load)).unwrap().median
}

#[test]
fn two_computing_loads_on_one_core_halve_each_other() {
    let core = allowed()[0];
    let load = format!("cpu cores={core}");
    let measured = measure(opened(&[&load, &load]), &short());
    assert_eq!(measured.cut, Some(Cut::TimeLimit), "six values are needed for an interval");
    for observation in measured.observations.iter().filter(|it| it.phase == Phase::Together) {
        let shares = observation.loads.iter().map(|load| load.on_processor.unwrap()).sum::<f64>();
        // Two cores have twice the time. If the sampler is delayed between its clock and the counters, it sees more of one core.
        assert!(shares < 1.8, "one core has no more time: {observation:?}");
    }
    let resources: Vec<_> = measured.loads.iter().filter_map(|load| load.antagonist_of.clone()).collect();
    assert_eq!(resources, [inlane_core::load::Resource::Core(core)]);
    let beside = measured.operations(Phase::Beside { load: 1, antagonist: 2, share: 1.0 }, 1);
    assert!(!beside.is_empty());
    for observation in &measured.observations {
        for (load, rate) in observation.loads.iter().enumerate() {
            let parked = observation.phase.level(load, 2) == Level::Parked;
            // A load may end an operation that it began before it was parked.
            let operations = rate.operations_per_second * observation.duration_ns as f64 / 1e9;
            assert!(!parked || operations < 1.5, "{observation:?}");
        }
    }
}

#[test]
fn a_paced_load_keeps_its_rate_and_a_rate_out_of_reach_is_not_reached() {
    let paced = "memory name=paced operation=read buffer=1M rate=500op/s";
    let fast = "memory name=fast operation=read buffer=1M rate=1Top/s";
    let plan = Plan { duration: Duration::from_millis(200), ..short() };
    let measured = measure(opened(&[paced, fast]), &plan);
    let alone = measured.observations.iter().filter(|of| of.phase == Phase::Alone { load: 0 });
    assert!(alone.clone().next().is_some());
    for alone in alone {
        // A thread cannot keep its pace while it waits for a processor. A delayed sampler sees more in one phase.
        let (share, queued) = (alone.loads[0].operations_per_second / 500.0, alone.loads[0].queued);
        assert!(share + queued.unwrap_or(1.0) > 0.6 && share < 1.5, "500 operations per second: {alone:?}");
    }
    assert_eq!(measured.loads[1].asked, Some(1e12));
    assert!(median(&measured, Phase::Alone { load: 1 }, 1) < 1e9);
    assert!(measured.loads.iter().any(|load| load.name == "memory-antagonist"));
    let uses: Vec<_> = measured.loads[0].uses.iter().map(|used| used.resource.clone()).collect();
    use inlane_core::load::Resource;
    assert_eq!(uses, [Resource::HostMemory, Resource::Processors]);
}

#[test]
fn phases_of_a_slow_pace_last_for_several_operations() {
    let measured = measure(opened(&["memory name=slow operation=read buffer=1M rate=16op/s"]), &short());
    let alone = measured.observations.iter().find(|of| of.phase == Phase::Alone { load: 0 }).unwrap();
    assert!(alone.duration_ns > 100_000_000, "half of 4 operations at least: {alone:?}");
    let mut running = measured.observations.iter().filter(|of| of.phase.level(0, 1) != Level::Parked);
    assert!(running.all(|of| of.loads[0].operations_per_second > 0.0), "{:?}", measured.observations);
}

/// A load that fails after some operations.
struct Failing {
    meter: Arc<Meter>,
    pace: Arc<Pace>,
    after: Duration,
    panics: bool,
}

impl Load for Failing {
    fn name(&self) -> String {
        "failing".into()
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

    fn run(&mut self, run: &Running) -> Result<(), LoadError> {
        if self.after.is_zero() {
            return Err("the device is missing".into());
        }
        let started = run.start.member().ready();
        while !run.stopping() && started.is_some_and(|start| start.elapsed() < self.after) {
            self.meter.add(1, 100);
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.panics && !run.stopping() {
            // A panic without a backtrace, which takes seconds on a busy machine.
            std::panic::resume_unwind(Box::new("the load panics"));
        }
        if run.stopping() { Ok(()) } else { Err("the device has gone".into()) }
    }
}

fn with_failing(after: Duration, panics: bool, is_antagonist: bool) -> Session {
    let mut session = opened(&["cpu"]);
    let mut one = opened(&["cpu"]).opened.remove(0);
    one.loaded.name = "failing".into();
    one.load = Box::new(Failing { meter: Arc::default(), pace: Arc::default(), after, panics });
    if is_antagonist {
        one.loaded.antagonist_of = Some(inlane_core::load::Resource::Processors);
        one.beside = vec![0];
        session.opened.truncate(1);
        session.opened.push(one);
    } else {
        session.opened.insert(1, one);
        session.users = 2;
    }
    session
}

#[test]
fn what_was_measured_before_a_load_failed_is_kept() {
    // The session must not end before the load fails, also if other programs delay the load.
    let plan = Plan { limit: Duration::from_secs(60), ..short() };
    for panics in [false, true] {
        let measured = measure(with_failing(Duration::from_secs(3), panics, false), &plan);
        let Some(Cut::LoadFailed { load: 1, error }) = &measured.cut else { panic!("{:?}", measured.cut) };
        assert_eq!(error, if panics { "it panicked" } else { "the device has gone" });
        assert!(!measured.observations.is_empty());
    }
}

#[test]
fn an_antagonist_that_fails_ends_only_its_own_phases() {
    let measured = measure(with_failing(Duration::from_millis(250), false, true), &short());
    assert_eq!(measured.cut, Some(Cut::TimeLimit));
    let alone = measured.observations.iter().filter(|it| it.phase == Phase::Alone { load: 0 });
    assert!(alone.count() >= 2);
}

#[test]
fn a_load_that_fails_before_the_start_fails_the_session() {
    let session = with_failing(Duration::ZERO, false, false);
    let error = session.measure(&short(), Vec::new(), &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "load failing: the device is missing");
}

#[test]
fn an_interruption_keeps_what_was_measured() {
    let interrupted = AtomicBool::new(false);
    let mut watch = |progress: Progress<'_>| {
        if progress.block == Some(0) && progress.index == 3 {
            interrupted.store(true, Relaxed);
        }
    };
    let session = opened(&["cpu", "cpu"]);
    let measured = session.measure(&short(), Vec::new(), &interrupted, &mut watch).unwrap();
    assert_eq!((measured.cut.clone(), measured.observations.len()), (Some(Cut::Interrupted), 3));

    let earlier = measured.observations;
    let session = opened(&["cpu", "cpu"]);
    let measured = session.measure(&short(), earlier, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(measured.observations[2].block, 0);
    assert_eq!(measured.observations[3].block, 1, "a continued session goes on with another block");
    let times: Vec<u64> = measured.observations.iter().map(|observation| observation.at_ns).collect();
    assert!(times.is_sorted(), "times go on, too: {times:?}");
}

#[test]
fn a_session_that_is_complete_measures_nothing_more() {
    let session = opened(&["cpu"]);
    let loads = session.loads().len();
    let rate = LoadRate { operations_per_second: 5.0, ..LoadRate::default() };
    let observation = |phase, block| Observation {
        phase,
        block,
        at_ns: 0,
        duration_ns: 1,
        loads: vec![rate; loads],
        signals: Default::default(),
        void: None,
    };
    let mut phases = session.phases(&short());
    let of_blocks = |phases: &[Phase]| -> Vec<Observation> {
        (0..3).flat_map(|block| phases.iter().map(move |phase| observation(*phase, block))).collect()
    };
    let complete = of_blocks(&phases);
    let go_on = |session: Session, earlier| {
        session.measure(&short(), earlier, &AtomicBool::new(false), &mut |_| {}).unwrap()
    };
    let measured = go_on(session, complete.clone());
    assert_eq!((measured.cut, measured.observations), (None, complete));
    phases.retain(|phase| *phase != Phase::Alone { load: 0 });
    let without = of_blocks(&phases);
    let measured = go_on(opened(&["cpu"]), without.clone());
    assert!(measured.observations.len() > without.len(), "a phase was never measured");
}

#[test]
fn a_load_that_stood_still_before_is_slowed_in_relation_to_its_rate_now() {
    let session = opened(&["cpu"]);
    let loads = vec![LoadRate::default(); session.loads().len()];
    let still = |phase: &Phase| Observation {
        phase: *phase,
        block: 0,
        at_ns: 0,
        duration_ns: 1,
        loads: loads.clone(),
        signals: Default::default(),
        void: None,
    };
    let earlier: Vec<Observation> = session.phases(&short()).iter().map(still).collect();
    let measured = session.measure(&short(), earlier, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let now = measured.observations.iter().filter(|observation| observation.block == 1);
    let slowed: Vec<_> =
        now.filter(|observation| matches!(observation.phase, Phase::ThrottledAlone { .. })).collect();
    assert!(!slowed.is_empty());
    for observation in slowed {
        assert!(observation.loads[0].operations_per_second > 0.0, "{observation:?}");
    }
}

/// A thread whose port blocks in system calls counts the time as work, but does not run meanwhile.
#[test]
fn work_that_sleeps_in_system_calls_counts_as_blocked() {
    let loaded = Loaded { threads: 1, ..Loaded::default() };
    let counts = |busy_ns, on_cpu_ns, queued_ns| inlane_core::load::Counts {
        busy_ns,
        on_cpu_ns,
        queued_ns,
        ..Default::default()
    };
    let of = |counts| {
        let first = Sample { at_ns: 0, loads: vec![Default::default()] };
        rate(&loaded, &first, &Sample { at_ns: 1000, loads: vec![counts] }, 0)
    };
    let sleeping = of(counts(900, 100, 50));
    assert!((sleeping.busy.unwrap() - 0.15).abs() < 1e-9 && (sleeping.blocked.unwrap() - 0.75).abs() < 1e-9);
    let polling = of(counts(300, 1000, 0));
    assert_eq!((polling.busy, polling.blocked), (Some(0.3), Some(0.0)));
    // Without the kernel's times, nothing is known of sleep.
    assert_eq!(of(counts(900, 0, 0)).busy, Some(0.9));
}
