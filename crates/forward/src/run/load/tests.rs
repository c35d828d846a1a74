#[path = "../../../../core/tests/loads/mod.rs"]
mod loads;

use super::*;
use crate::config::Route;
use inlane_core::load::Sample;
use inlane_core::{PortInfo, Rx, Tx};
use inlane_ports::spec::{Kind, OwnPort, Properties};
use loads::{await_parked, beside, measure, until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

fn config(rx: &str, tx: &str) -> Config {
    let mut config = Config::new(Route::one_way(rx, [tx]).unwrap());
    config.cores = Some(Vec::new());
    config
}

fn load(config: &Config) -> ForwardLoad {
    let mut load = ForwardLoad::open(config, Some(Arc::default())).unwrap();
    load.prepare().unwrap();
    load
}

fn packets_per_second([first, last]: &[Sample; 2]) -> f64 {
    last.operations_per_second(first, 0).unwrap()
}

#[test]
fn a_pace_that_changes_is_followed_and_0_parks() {
    for (rx, tx, function, split) in [
        ("null:64", "null", "io", false),
        ("gen:64", "check", "macswap", false),
        ("gen:64", "check", "macswap", true),
    ] {
        let mut config = config(rx, tx);
        config.function = function.into();
        if split {
            config.executor = Executor::Cpu(CpuMethod::Split { workers: 1 });
        }
        let mut load = load(&config);
        let pace = load.pace();
        pace.set(2000.0);
        let time = Duration::from_millis(200);
        let (_, outcomes) = beside(&mut [&mut load], |sampler, _| {
            for wanted in [2000.0, 500.0, 4000.0] {
                pace.set(wanted);
                std::thread::sleep(Duration::from_millis(50));
                // A thread that other programs keep from running cannot keep its pace, so try several times, and excuse the time
                // for which it waited for a processor.
                let mut found = Vec::new();
                let is_near =
                    |(rate, queued): &(f64, f64)| rate / wanted < 1.03 && rate / wanted + queued > 0.97;
                while found.len() < 20 && !found.last().is_some_and(is_near) {
                    let [first, last] = measure(sampler, time);
                    let queued_ns = (last.loads[0] - first.loads[0]).queued_ns as f64;
                    let queued = queued_ns / (last.at_ns - first.at_ns) as f64;
                    found.push((packets_per_second(&[first, last]), queued));
                }
                assert!(found.last().is_some_and(is_near), "{rx} {split}: {found:?}/s at a pace of {wanted}");
                // After a pause, at most 10 ms are made up. A sampler that other programs delay between its clock and the
                // counters sees more in one window, so allow for half a window.
                assert!(
                    found.iter().all(|(rate, _)| *rate < wanted * 1.58),
                    "{rx}: {found:?} exceed {wanted}"
                );
            }
            pace.set(0.0);
            let parked = await_parked(sampler);
            // Of the 200 ms, each thread may use a tenth.
            let most = 20_000_000 * if split { 2 } else { 1 };
            assert!(parked.on_cpu_ns < most, "{rx}: {parked:?}");
            assert!(parked.busy_ns < most, "{rx}: {parked:?}");
            // Far more than at the paces above: nothing limits the load any more.
            pace.set(f64::INFINITY);
            let before = sampler.take().loads[0].operations;
            // At the last pace, this would take 100 s.
            until("the load is still slow", || sampler.take().loads[0].operations >= before + 400_000);
        });
        assert!(outcomes[0].is_ok(), "{rx}: {outcomes:?}");
        let result = &load.outcome().unwrap().result;
        assert_eq!(result.leaked_buffers, 0);
        assert!(tx != "check" || result.verification.as_ref().unwrap().passed(), "{rx}");
    }
}

/// Tries up to 20 times, because other programs can delay this one. Returns true once `attempt` returns a time below `limit`.
fn is_within(limit: Duration, mut attempt: impl FnMut() -> Duration) -> bool {
    (0..20).any(|_| attempt() < limit)
}

#[test]
fn a_load_stops_at_once_with_its_partial_result() {
    assert!(is_within(Duration::from_millis(200), time_to_stop));
}

/// Returns how long a load runs after it is stopped.
fn time_to_stop() -> Duration {
    let mut load = load(&config("gen:64", "check"));
    let meters = load.meters();
    let (stopped, outcomes) = beside(&mut [&mut load], |sampler, run| {
        while sampler.take().loads[0].operations < 1000 {
            std::thread::sleep(Duration::from_millis(1));
        }
        run.stop();
        Instant::now()
    });
    let took = stopped.elapsed();
    assert!(outcomes[0].is_ok());
    let counts = meters[0].read();
    let outcome = load.into_outcome().unwrap();
    assert!(outcome.result.tx.packets >= 1000);
    assert_eq!((counts.operations, counts.bytes), (outcome.result.tx.packets, outcome.result.tx.bytes));
    assert_eq!(counts.begun, outcome.result.rx.packets);
    assert!(counts.on_cpu_ns > 0);
    assert!(outcome.result.verification.unwrap().passed());
    took
}

/// A receive queue that fails at its third burst, and then sets the flag.
struct Fails(u32, Arc<AtomicBool>);

// SAFETY: the queue returns no packets.
unsafe impl Rx for Fails {
    fn receive(&mut self, _: &mut [inlane_core::Packet]) -> inlane_core::Result<usize> {
        self.0 += 1;
        match self.0 {
            3.. => {
                self.1.store(true, Ordering::Relaxed);
                Err(inlane_core::Error::port_usage("fails", "the cable is unplugged; plug it in"))
            }
            _ => Ok(0),
        }
    }

    fn counters(&self) -> Counters {
        Counters { packets: 2, ..Counters::default() }
    }
}

struct FailingPort(PortInfo, Arc<AtomicBool>);

impl Port for FailingPort {
    fn info(&self) -> &PortInfo {
        &self.0
    }

    fn configure(&mut self, _: &[Arc<dyn Pool>], _: u16) -> inlane_core::Result<()> {
        Ok(())
    }

    fn take_rx(&mut self, _: u16) -> inlane_core::Result<Box<dyn Rx>> {
        Ok(Box::new(Fails(0, Arc::clone(&self.1))))
    }

    fn take_tx(&mut self, _: u16, _: Arc<dyn Pool>) -> inlane_core::Result<Box<dyn Tx>> {
        unreachable!("the test only receives")
    }
}

fn failing_port(failed: &Arc<AtomicBool>) -> PortSpec {
    let failed = Arc::clone(failed);
    let info = PortInfo {
        name: "fails".into(),
        path: "test".into(),
        touches_payload: false,
        max_queues: 1,
        spreads_flows: false,
        link_bits_per_second: None,
        twin: true,
    };
    PortSpec::Own(OwnPort {
        name: "fails".into(),
        properties: Properties { name: "fails", ..*Kind::Null.properties() },
        open: Arc::new(move |_| Ok(Box::new(FailingPort(info.clone(), Arc::clone(&failed))))),
    })
}

#[test]
fn a_load_that_fails_or_whose_source_ends_ends_only_itself() {
    let refused = ForwardLoad::open(&config("pcap:/nowhere/x.pcap", "null"), None).err().unwrap();
    assert!(refused.to_string().contains("/nowhere/x.pcap"), "{refused}");
    let failed = Arc::default();
    let fails = Route::OneWay { rx: failing_port(&failed), tx: vec![PortSpec::parse("null").unwrap()] };
    let mut fails = load(&Config { route: fails, ..config("null", "null") });
    let mut ends = load(&config("gen:64,packets=500", "check"));
    let mut goes_on = load(&config("null:64", "null"));
    let loads: &mut [&mut dyn Load] = &mut [&mut fails, &mut ends, &mut goes_on];
    let (_, outcomes) = beside(loads, |sampler, _| {
        until("the port fails", || failed.load(Ordering::Relaxed));
        until("the source ends", || sampler.take().loads[1].operations == 500);
        let before = sampler.take().loads[2].operations;
        until("the other load goes on", || sampler.take().loads[2].operations > before);
        assert_eq!(sampler.take().loads[1].operations, 500);
    });
    let error = outcomes[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("the cable is unplugged"), "{error}");
    assert!(outcomes[1].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert_eq!(fails.outcome().unwrap().result.rx.packets, 2, "the partial result is kept");
    assert_eq!(ends.outcome().unwrap().result.tx.packets, 500);
}

#[test]
fn loads_start_at_one_instant() {
    assert!(is_within(Duration::from_millis(50), difference_of_durations));
}

/// Runs two loads, one of which arrives late at the start line. Returns by how much their durations differ.
fn difference_of_durations() -> Duration {
    let mut loads = [load(&config("null:64", "null")), load(&config("gen:64", "null"))];
    let [one, two] = &mut loads;
    // One load arrives 50 ms after the other. Neither moves a packet before.
    let run = Running::new(2);
    let meters = [one.meters()[0].clone(), two.meters()[0].clone()];
    std::thread::scope(|scope| {
        let first = scope.spawn(|| one.run(&run));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(meters[0].read().begun, 0, "nothing flows before the start line");
        let second = scope.spawn(|| two.run(&run));
        while meters.iter().any(|meter| meter.read().operations == 0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        run.stop();
        assert!(first.join().unwrap().is_ok() && second.join().unwrap().is_ok());
    });
    let [one, two] = loads.map(|load| load.into_outcome().unwrap().result.duration_ns);
    Duration::from_nanos(one.abs_diff(two))
}

#[test]
fn generated_packets_are_transmitted() {
    let mut config = Config::transmit("64,packets=200", "check").unwrap();
    config.cores = Some(Vec::new());
    let mut load = load(&config);
    assert_eq!(load.name(), "forward gen:64,packets=200 to check");
    let run = Running::new(load.threads());
    load.run(&run).unwrap();
    let result = load.into_outcome().unwrap().result;
    assert_eq!(result.tx.packets, 200);
    assert!(result.verification.unwrap().passed());
    assert!(Config::transmit("nothing", "null").is_err());
}
