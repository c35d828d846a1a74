use super::*;
use crate::device::{Device, open};
use crate::open_path::open_path;
use crate::path::Path;
use crate::path_options::{PathChoice, PathOptions};
use crate::path_selector::PathSelector;
use crate::staged::Staged;
use inlane_core::Region;
use inlane_core::mover::{CpuMover, Ticket};
use inlane_result::Reason;
use inlane_twin::{Accelerator, BarCosts, Costs, DmaCosts};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Opens a twin whose costs make tests fast.
fn twin(index: u32) -> Arc<Device> {
    let costs = Costs {
        name: "test".into(),
        link: 4e9,
        dma: DmaCosts {
            to_device: 2e9,
            from_device: 2e9,
            per_transfer: Duration::from_micros(5),
            interrupt: Duration::from_micros(5),
        },
        bar: BarCosts { write: 200e6, read: 400e6 },
        memory: 64 << 20,
    };
    Device::twin(Accelerator::new(index, costs))
}

fn quick() -> Plan {
    Plan { repeats: 2, time: Duration::from_millis(3), warm_up: Duration::from_millis(1), ..Plan::default() }
}

#[test]
fn every_path_between_twins_delivers_what_was_sent() {
    let (from, to) = (twin(0), twin(1));
    let options = PathOptions { largest: 1 << 20, ..PathOptions::default() };
    let mut buffers = Buffers::new(&from, &to, 1 << 20, 2 << 20).unwrap();
    for path in Path::candidates(from.endpoint(), to.endpoint()) {
        let mut mover = open_path(path, &from, &to, &options).unwrap();
        assert!(mover.is_twin(), "{path}");
        for size in [1, 4099, 256 << 10] {
            for completion in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
                let plan = Plan { completion, ..quick() };
                // The CPU always polls, so path `cpu` reports `Poll`. DMA engines support every mode.
                let used = if path == Path::Cpu { CompletionMode::Poll } else { completion };
                assert_eq!(mover.set_completion_mode(completion), used, "{path}");
                let measured = latency(&mut *mover, &mut buffers, size, &plan).unwrap();
                assert!(measured.verification.verified_bytes >= size as u64, "{path} {size} {completion}");
                assert!(measured.latency_ns.unwrap().median > 0.0);
            }
        }
        let measured = stream(&mut *mover, &mut buffers, 64 << 10, &quick()).unwrap();
        assert!(measured.verification.verified_bytes > 0 && measured.bytes_per_second.median > 0.0, "{path}");
        assert_eq!(measured.in_flight, 1, "{path} is synchronous");
    }
}

struct RecordsModes(Box<dyn Mover>, Arc<Mutex<Vec<CompletionMode>>>);

impl Mover for RecordsModes {
    fn name(&self) -> String {
        self.0.name()
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        self.0.reaches(source, destination)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        self.0.submit(source, destination)
    }

    fn done(&mut self) -> Result<Ticket> {
        self.0.done()
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
        self.1.lock().unwrap().push(completion);
        self.0.wait(ticket, completion)
    }
}

#[test]
fn stages_use_the_completion_mode_that_was_set() {
    let (from, to) = (twin(0), twin(1));
    let (crate::device::Kind::Twin(a), crate::device::Kind::Twin(b)) = (from.kind(), to.kind()) else {
        unreachable!()
    };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let stage = |engine: inlane_twin::DmaEngine| -> Box<dyn Mover> {
        Box::new(RecordsModes(Box::new(engine), seen.clone()))
    };
    let host = || Region::host(256 << 10).unwrap();
    let (out, into) = (|| stage(a.dma(false).unwrap()), || stage(b.dma(true).unwrap()));
    let hybrid =
        Staged::in_turn(out(), into(), [host(), host()], CompletionMode::Poll, &Arc::default()).unwrap();
    let staged =
        Staged::overlapping(out(), into(), &host(), 4, CompletionMode::Poll, &Arc::default()).unwrap();
    let mut buffers = Buffers::new(&from, &to, 256 << 10, 256 << 10).unwrap();
    for mut mover in [Box::new(hybrid) as Box<dyn Mover>, Box::new(staged)] {
        for completion in [CompletionMode::Interrupt, CompletionMode::Adaptive, CompletionMode::Poll] {
            assert_eq!(mover.set_completion_mode(completion), completion);
            seen.lock().unwrap().clear();
            latency(&mut *mover, &mut buffers, 256 << 10, &quick()).unwrap();
            let seen = seen.lock().unwrap();
            assert!(
                !seen.is_empty() && seen.iter().all(|used| *used == completion),
                "{completion}: {seen:?}"
            );
        }
    }
    // A wait for a CPU copy always polls. If a DMA engine copies one of the two stages, the wait for this
    // stage can sleep, so the mode must change. If the CPU copies both stages, the mode must stay `Poll`.
    let cpu = || Box::new(CpuMover::widest()) as Box<dyn Mover>;
    let mut half =
        Staged::in_turn(out(), cpu(), [host(), host()], CompletionMode::Poll, &Arc::default()).unwrap();
    assert_eq!(half.set_completion_mode(CompletionMode::Interrupt), CompletionMode::Interrupt);
    let mut none =
        Staged::in_turn(cpu(), cpu(), [host(), host()], CompletionMode::Poll, &Arc::default()).unwrap();
    assert_eq!(none.set_completion_mode(CompletionMode::Interrupt), CompletionMode::Poll);
}

#[test]
fn both_directions_run_at_once() {
    let (from, to) = (twin(0), twin(1));
    let options = PathOptions { largest: 256 << 10, ..PathOptions::default() };
    let mut forth = open_path(Path::Staged, &from, &to, &options).unwrap();
    let mut back = open_path(Path::Staged, &to, &from, &options).unwrap();
    let mut forth_buffers = Buffers::new(&from, &to, 256 << 10, 1 << 20).unwrap();
    let mut back_buffers = Buffers::new(&to, &from, 256 << 10, 1 << 20).unwrap();
    let measured = together(
        vec![(&mut *forth, &mut forth_buffers), (&mut *back, &mut back_buffers)],
        256 << 10,
        &quick(),
    )
    .unwrap();
    assert!(measured.iter().all(|direction| direction.verification.verified_bytes > 0));
}

#[test]
fn a_flipped_bit_fails_the_run() {
    let (host, device) = {
        let mut devices = open(&["host".parse().unwrap()], &inlane_pci::Permission::default()).unwrap();
        (devices.remove(0), twin(0))
    };
    let crate::device::Kind::Twin(accelerator) = device.kind() else { unreachable!() };
    let mut engine = accelerator.dma(true).unwrap();
    let mut buffers = Buffers::new(&host, &device, 64 << 10, 64 << 10).unwrap();
    latency(&mut engine, &mut buffers, 64 << 10, &quick()).unwrap();
    engine.faults().flip_bits(u64::MAX);
    let error = latency(&mut engine, &mut buffers, 64 << 10, &quick()).unwrap_err();
    assert!(error.to_string().contains("1 of 65536 bytes"), "{error}");
    assert_eq!(error.class(), inlane_core::error::Class::Failed);
}

#[test]
fn a_device_lost_during_a_transfer_ends_both_directions() {
    let (from, to) = (twin(0), twin(1));
    let staged = |lost: bool| {
        let (crate::device::Kind::Twin(a), crate::device::Kind::Twin(b)) = (from.kind(), to.kind()) else {
            unreachable!()
        };
        let out = a.dma(false).unwrap();
        if lost {
            out.faults().lose_after(100_000);
        }
        let ring = Region::host(1 << 20).unwrap();
        let into = Box::new(b.dma(true).unwrap());
        Staged::overlapping(Box::new(out), into, &ring, 8, CompletionMode::Poll, &Arc::default()).unwrap()
    };
    let (mut forth, mut back) = (staged(true), staged(false));
    let mut forth_buffers = Buffers::new(&from, &to, 64 << 10, 1 << 20).unwrap();
    let mut back_buffers = Buffers::new(&from, &to, 64 << 10, 1 << 20).unwrap();
    let error =
        together(vec![(&mut forth, &mut forth_buffers), (&mut back, &mut back_buffers)], 64 << 10, &quick())
            .unwrap_err();
    assert!(error.to_string().contains("was lost"), "{error}");
}

/// A mover that panics at its third transfer.
struct Panics(u64);

impl Mover for Panics {
    fn name(&self) -> String {
        "panics".into()
    }

    fn reaches(&self, _: &Region, _: &Region) -> bool {
        true
    }

    fn submit(&mut self, _: &Region, _: &Region) -> Result<Ticket> {
        self.0 += 1;
        assert!(self.0 < 3, "this panic is part of the test");
        Ok(Ticket(self.0))
    }

    fn done(&mut self) -> Result<Ticket> {
        Ok(Ticket(self.0))
    }

    fn wait(&mut self, _: Ticket, _: CompletionMode) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_direction_that_panics_is_not_waited_for() {
    let (from, to) = (twin(0), twin(1));
    let options = PathOptions { largest: 64 << 10, ..PathOptions::default() };
    let mut back = open_path(Path::Staged, &to, &from, &options).unwrap();
    let mut forth_buffers = Buffers::new(&from, &to, 64 << 10, 1 << 20).unwrap();
    let mut back_buffers = Buffers::new(&to, &from, 64 << 10, 1 << 20).unwrap();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut forth = Panics(0);
        let runs: Vec<(&mut dyn Mover, &mut Buffers)> =
            vec![(&mut forth, &mut forth_buffers), (&mut *back, &mut back_buffers)];
        together(runs, 64 << 10, &quick())
    }));
    assert!(outcome.is_err(), "the panic is passed on and no thread hangs");
}

/// Stops runs after 1 to 19 transfers. Each run fails, and the mover stays usable.
#[test]
fn a_run_can_be_stopped_after_any_transfer() {
    struct StopsAfter<'a>(&'a mut dyn Mover, u64, Arc<AtomicBool>);
    impl Mover for StopsAfter<'_> {
        fn name(&self) -> String {
            self.0.name()
        }
        fn reaches(&self, source: &Region, destination: &Region) -> bool {
            self.0.reaches(source, destination)
        }
        fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
            self.1 = self.1.saturating_sub(1);
            self.2.store(self.1 == 0, Ordering::Relaxed);
            self.0.submit(source, destination)
        }
        fn done(&mut self) -> Result<Ticket> {
            self.0.done()
        }
        fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
            self.0.wait(ticket, completion)
        }
    }
    let (host, device) = (open(&["host".parse().unwrap()], &Default::default()).unwrap().remove(0), twin(0));
    let options = PathOptions { largest: 64 << 10, ..PathOptions::default() };
    let mut buffers = Buffers::new(&host, &device, 64 << 10, 1 << 20).unwrap();
    for path in [Path::Dma, Path::Cpu] {
        let mut mover = open_path(path, &host, &device, &options).unwrap();
        for after in 1..20 {
            for streaming in [true, false] {
                let plan = Plan { time: Duration::from_secs(60), stop: Arc::default(), ..quick() };
                let mut stops_after = StopsAfter(&mut *mover, after, plan.stop.clone());
                let outcome = match streaming {
                    true => stream(&mut stops_after, &mut buffers, 64 << 10, &plan),
                    false => latency(&mut stops_after, &mut buffers, 64 << 10, &plan),
                };
                let error = outcome.unwrap_err().to_string();
                assert!(error.contains("interrupted") && error.contains("there is no result"), "{error}");
            }
        }
        assert!(
            latency(&mut *mover, &mut buffers, 64 << 10, &quick()).unwrap().verification.verified_bytes > 0,
            "{path}"
        );
    }
}

#[test]
fn auto_takes_the_cheapest_path_and_says_why() {
    let (from, to) = (twin(0), twin(1));
    let options = PathOptions { largest: 4 << 20, ..PathOptions::default() };
    let curve = |fixed: f64, rate: f64| {
        let points = [4096u64, 1 << 20, 16 << 20].map(|bytes| (bytes, fixed + bytes as f64 / rate));
        crate::cost::Curve { points: points.into() }
    };
    let costs = crate::cost::PathCosts {
        paths: [
            (Path::Cpu, curve(1e3, 0.2)),
            (Path::Hybrid, curve(20e3, 0.7)),
            (Path::Staged, curve(30e3, 1.9)),
        ]
        .into(),
        ..Default::default()
    };
    let required =
        PathSelector::open(&from, &to, PathChoice::Require(Path::Hybrid), &options, Some(costs.clone()))
            .unwrap();
    assert_eq!(required.explain(4 << 20).reason.to_string(), "hybrid: requested", "costs do not matter");
    drop(required);
    let mut selector = PathSelector::open(&from, &to, PathChoice::Auto, &options, Some(costs)).unwrap();
    assert_eq!((selector.path_for(64), selector.path_for(4 << 20)), (Path::Cpu, Path::Staged));
    let explained = selector.explain(4 << 20);
    assert!(explained.reason.to_string().contains("least calibrated time"), "{explained:?}");
    let slower = explained.not_taken.iter().find(|other| other.path == Path::Cpu).unwrap();
    assert!(
        matches!(slower.why, Reason::Slower { calibrated_ns, chosen_ns, .. } if calibrated_ns > chosen_ns),
        "{slower:?}"
    );
    // Submit transfers of mixed sizes. They take different paths and must still complete in order.
    let (source, destination) = (from.allocate(4 << 20).unwrap(), to.allocate(4 << 20).unwrap());
    from.fill(&source, 9).unwrap();
    let mut last = Ticket(0);
    for size in [64, 4 << 20, 4096, 1 << 20, 64] {
        let ticket =
            selector.submit(&source.slice(0, size).unwrap(), &destination.slice(0, size).unwrap()).unwrap();
        assert!(ticket > last);
        last = ticket;
    }
    selector.drain().unwrap();
    assert_eq!(selector.done().unwrap(), last);
    assert_eq!(to.count_wrong(&destination, 9).unwrap(), 0);
    assert!(selector.wait(Ticket(99), CompletionMode::Poll).is_err());
}

#[test]
fn an_unavailable_path_is_replaced_with_a_reason_or_an_error() {
    let (from, to) = (twin(0), twin(1));
    let options = PathOptions { largest: 64 << 10, ..PathOptions::default() };
    let error = PathSelector::open(&from, &to, PathChoice::Require(Path::P2p), &options, None).err().unwrap();
    assert!(error.to_string().contains("path p2p from twin:0 to twin:1: needs two GPUs"), "{error}");
    let selector = PathSelector::open(&from, &to, PathChoice::Prefer(Path::P2p), &options, None).unwrap();
    assert_eq!(selector.fallback(), Some((Path::P2p, "needs two GPUs")));
    let reason = selector.explain(4096).reason.to_string();
    assert!(reason.ends_with("instead: p2p was requested but cannot be used: needs two GPUs"), "{reason}");
}

#[test]
fn another_thread_can_stop_a_run() {
    let (from, to) = (twin(0), twin(1));
    let options = PathOptions { largest: 64 << 10, ..PathOptions::default() };
    let mut mover = open_path(Path::Staged, &from, &to, &options).unwrap();
    let mut buffers = Buffers::new(&from, &to, 64 << 10, 64 << 10).unwrap();
    let plan = Plan { time: Duration::from_secs(3600), ..quick() };
    let stop = plan.stop.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        stop.store(true, Ordering::Relaxed);
    });
    assert!(
        stream(&mut *mover, &mut buffers, 64 << 10, &plan).unwrap_err().to_string().contains("interrupted")
    );
    assert!(latency(&mut *mover, &mut buffers, 64 << 10, &plan).is_err());
    stopper.join().unwrap();
}

#[test]
#[cfg(feature = "dpdk")]
fn dpdks_dma_device_copies_between_host_buffers() {
    let host = open(&["host".parse().unwrap()], &inlane_pci::Permission::default()).unwrap().remove(0);
    let options = PathOptions { largest: 256 << 10, ..PathOptions::default() };
    let mut mover = match open_path(Path::Dma, &host, &host, &options) {
        Ok(mover) => mover,
        Err(error) => return eprintln!("SKIPPED dpdks_dma_device_copies_between_host_buffers: {error}"),
    };
    assert!(mover.is_twin() && mover.name().contains("dma_skeleton"));
    let mut buffers = Buffers::new(&host, &host, 256 << 10, 1 << 20).unwrap();
    for completion in [CompletionMode::Poll, CompletionMode::Adaptive] {
        let plan = Plan { completion, ..quick() };
        assert!(latency(&mut *mover, &mut buffers, 4096, &plan).unwrap().verification.verified_bytes > 0);
        assert!(stream(&mut *mover, &mut buffers, 256 << 10, &plan).unwrap().verification.verified_bytes > 0);
    }
}

#[test]
fn calibration_finds_every_path_and_its_stages() {
    let (from, to) = (twin(0), twin(1));
    let options = PathOptions { largest: 1 << 20, ..PathOptions::default() };
    let costs = crate::cost::PathCosts::calibrate(&from, &to, &options).unwrap();
    assert_eq!(costs.paths.len(), 3, "{costs:?}");
    // Check only the lower bound. A busy machine can make a twin slower than its model, but never faster.
    assert!(costs.time(Path::Cpu, 1 << 20).unwrap() >= (1 << 20) as f64 * (1.0 / 0.4 + 1.0 / 0.2));
    let predicted = costs.predict(Path::Hybrid, 1 << 20).unwrap();
    assert!(predicted >= 2.0 * (1 << 20) as f64 / 2.0, "two stages at 2 bytes per ns: {predicted}");
}

#[test]
fn calibration_both_ways_measures_paths_under_load() {
    let (from, to) = (twin(0), twin(1));
    let options = PathOptions { largest: 1 << 20, both_ways: true, ..PathOptions::default() };
    let costs = crate::cost::PathCosts::calibrate(&from, &to, &options).unwrap();
    assert_eq!(costs.paths.len(), 3, "{costs:?}");
    assert!(costs.paths.values().all(|curve| !curve.points.is_empty()), "{costs:?}");
    let selector = PathSelector::open(&from, &to, PathChoice::Auto, &options, Some(costs)).unwrap();
    assert!(selector.explain(1 << 20).reason.to_string().contains("both directions at once"));
    let without = PathOptions { without: vec![Path::Cpu, Path::Hybrid], ..options };
    let selector = PathSelector::open(&from, &to, PathChoice::Auto, &without, None).unwrap();
    assert_eq!(selector.path_for(64), Path::Staged);
    let excluded = Reason::Excluded { setting: crate::field::WITHOUT };
    assert!(selector.explain(64).not_taken.iter().any(|other| other.why == excluded));
}

/// A mover that copies by the CPU but drops some transfers. `drops` gets the number of a transfer, counted
/// from 0, and returns true to drop it.
struct Drops {
    copier: CpuMover,
    submitted: u64,
    drops: fn(u64) -> bool,
}

impl Drops {
    fn new(drops: fn(u64) -> bool) -> Self {
        Self { copier: CpuMover::widest(), submitted: 0, drops }
    }
}

impl Mover for Drops {
    fn name(&self) -> String {
        "drops".into()
    }

    fn reaches(&self, _: &Region, _: &Region) -> bool {
        true
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        if !(self.drops)(self.submitted) {
            self.copier.submit(source, destination)?;
        }
        self.submitted += 1;
        Ok(Ticket(self.submitted))
    }

    fn done(&mut self) -> Result<Ticket> {
        Ok(Ticket(self.submitted))
    }

    fn wait(&mut self, _: Ticket, _: CompletionMode) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_transfer_dropped_after_its_slots_first_use_is_found() {
    let host = open(&["host".parse().unwrap()], &Default::default()).unwrap().remove(0);
    let mut buffers = Buffers::new(&host, &host, 4096, 64 * 4096).unwrap();
    // Repeat with twice the duration until enough transfers were made. In a short time, a preempted thread
    // may make only a few.
    const ENOUGH: u64 = 10_000;
    let found = |drops: fn(u64) -> bool, buffers: &mut Buffers| {
        [true, false].map(|streaming| {
            let mut plan = quick();
            loop {
                let mut mover = Drops::new(drops);
                let outcome = match streaming {
                    true => stream(&mut mover, buffers, 4096, &plan),
                    false => latency(&mut mover, buffers, 4096, &plan),
                };
                if outcome.is_err() || mover.submitted >= ENOUGH {
                    return outcome.is_err();
                }
                plan.time *= 2;
            }
        })
    };
    let mut none_dropped = Drops::new(|_| false);
    let checked = latency(&mut none_dropped, &mut buffers, 4096, &quick()).unwrap().verification;
    assert!(checked.verified_bytes <= checked.transferred_bytes && checked.verified_bytes > 0, "{checked:?}");
    assert_eq!(found(|_| false, &mut buffers), [false, false], "nothing is dropped");
    assert_eq!(found(|number| number >= 64, &mut buffers), [true, true], "all but each slot's first");
    assert_eq!(found(|number| number % 97 == 96, &mut buffers), [true, true], "about one in a hundred");
}
