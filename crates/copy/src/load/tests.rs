#[path = "../../../core/tests/loads/mod.rs"]
mod loads;

use super::*;
use inlane_core::Region;
use inlane_core::mover::{Mover, Ticket};
use inlane_twin::{Accelerator, BarCosts, Costs, DmaCosts};
use loads::{await_parked, beside, measure, until};
use std::time::Instant;

/// Opens a twin whose engine copies 1 GB/s.
fn twin(index: u32) -> Arc<Device> {
    let costs = Costs {
        name: "test".into(),
        link: 4e9,
        dma: DmaCosts {
            to_device: 1e9,
            from_device: 1e9,
            per_transfer: Duration::from_micros(5),
            interrupt: Duration::from_micros(5),
        },
        bar: BarCosts { write: 1e6, read: 1e6 },
        memory: 64 << 20,
    };
    Device::twin(Accelerator::new(index, costs))
}

fn host() -> Arc<Device> {
    crate::open(&[Endpoint::Host], &Permission::default()).unwrap().remove(0)
}

fn config(path: crate::Path, size: usize) -> CopyLoadConfig {
    let ends = ["host", "twin:0"].map(|end| end.parse().unwrap());
    let [from, to] = ends;
    CopyLoadConfig {
        choice: PathChoice::Require(path),
        rotate: 1 << 20,
        ..CopyLoadConfig::new(from, to, size)
    }
}

fn load(path: crate::Path, size: usize) -> CopyLoad {
    prepared(CopyLoad::between(&host(), &twin(0), config(path, size)).unwrap())
}

fn prepared(mut load: CopyLoad) -> CopyLoad {
    load.prepare().unwrap();
    load
}

#[test]
fn a_pace_that_changes_is_followed_and_0_parks() {
    let by_cpu = |threads| CopyLoadConfig { threads, to: Endpoint::Host, ..config(crate::Path::Cpu, 4096) };
    // The twin's engine is a thread, too. On a busy machine it takes milliseconds for a transfer, so it gets a low pace.
    let by_engine =
        CopyLoadConfig { completion: CompletionMode::Interrupt, ..config(crate::Path::Dma, 4096) };
    let (host, twin) = (host(), twin(0));
    for (to, config, paces, time, tolerance) in [
        (&host, by_cpu(1), [1000.0, 300.0, 2000.0], 200, 0.03),
        (&host, by_cpu(2), [1000.0, 300.0, 2000.0], 200, 0.03),
        (&twin, by_engine, [20.0, 40.0, 10.0], 1000, 0.1),
    ] {
        let (threads, has_engine) = (config.threads as u64, config.to != Endpoint::Host);
        let mut load = prepared(CopyLoad::between(&host, to, config).unwrap());
        let name = load.name();
        let pace = load.pace();
        pace.set(paces[0]);
        let (_, outcomes) = beside(&mut [&mut load], |sampler, _| {
            for wanted in paces {
                pace.set(wanted);
                std::thread::sleep(Duration::from_millis(50));
                // A thread that other programs keep from running cannot keep its pace, so try several times, and excuse the time
                // for which it waited for a processor.
                let mut found = Vec::new();
                let is_near = |(rate, queued): &(f64, f64)| {
                    rate / wanted <= 1.0 + tolerance && rate / wanted + queued >= 1.0 - tolerance
                };
                while found.len() < 20 && !found.last().is_some_and(is_near) {
                    let [first, last] = measure(sampler, Duration::from_millis(time));
                    let queued_ns = (last.loads[0] - first.loads[0]).queued_ns as f64;
                    let queued = queued_ns / (last.at_ns - first.at_ns) as f64;
                    found.push((last.operations_per_second(&first, 0).unwrap(), queued));
                }
                assert!(found.last().is_some_and(is_near), "{name}: {found:?}/s at a pace of {wanted}");
            }
            pace.set(0.0);
            let parked = await_parked(sampler);
            assert!(parked.on_cpu_ns < 20_000_000 * threads, "{parked:?}");
            assert!(parked.busy_ns < 20_000_000 * threads, "{parked:?}");
            pace.set(f64::INFINITY);
            let first = sampler.take().loads[0];
            // At the last pace, this would take 100 s.
            let operations = if has_engine { 1000 } else { 200_000 };
            until("the load is still slow", || (sampler.take().loads[0] - first).operations >= operations);
            let blocked_ns = (sampler.take().loads[0] - first).blocked_ns;
            assert_eq!(blocked_ns > 0, has_engine, "{name}: only an engine is waited for");
        });
        assert!(outcomes[0].is_ok(), "{outcomes:?}");
        let found = load.verification();
        let counts: inlane_core::load::Counts = load.meters().iter().map(|meter| meter.read()).sum();
        assert_eq!(found.transferred_bytes, counts.bytes);
        assert_eq!(counts.bytes, counts.operations * 4096);
        assert!(found.verified_bytes > 0 && found.altered_bytes == 0, "{found:?}");
    }
}

#[test]
fn a_stop_interrupts_slow_transfers_and_the_rest_is_verified() {
    // A transfer of 16 MiB through the twin's BAR takes 16 s.
    let mut load = load(crate::Path::Cpu, 16 << 20);
    let meters = load.meters();
    let (stopped, outcomes) = beside(&mut [&mut load], |_, _| {
        std::thread::sleep(Duration::from_millis(50));
        Instant::now()
    });
    // The interruption is noticed after each mebibyte.
    assert!(stopped.elapsed() < Duration::from_secs(10), "{:?}", stopped.elapsed());
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    assert_eq!(load.verification().transferred_bytes, meters[0].read().bytes);
}

#[test]
fn copies_by_the_cpu_count_live_and_stop_at_once() {
    // Other programs can delay a stop, so one of several must be quick.
    assert!((0..20).any(|_| time_to_stop() < Duration::from_millis(500)));
}

/// Returns how long copies by the CPU run after they are stopped.
fn time_to_stop() -> Duration {
    let ends = ["host", "host"].map(|end| end.parse::<Endpoint>().unwrap());
    let [from, to] = ends;
    let config = CopyLoadConfig {
        choice: PathChoice::Require(crate::Path::Cpu),
        rotate: 4 << 20,
        ..CopyLoadConfig::new(from, to, 64 << 10)
    };
    let mut load = prepared(CopyLoad::open(config).unwrap());
    assert_eq!(load.name(), "copy host to host by cpu");
    let meters = load.meters();
    let (stopped, outcomes) = beside(&mut [&mut load], |sampler, _| {
        let mut seen = 0;
        while sampler.take().loads[0].operations < 1000 {
            seen = seen.max(sampler.take().loads[0].operations);
            std::thread::sleep(Duration::from_millis(1));
        }
        Instant::now()
    });
    let took = stopped.elapsed();
    assert!(outcomes[0].is_ok());
    let counts = meters[0].read();
    assert!(counts.operations >= 1000 && counts.blocked_ns == 0 && counts.busy_ns > 0, "{counts:?}");
    assert!(load.verification().verified_bytes > 0);
    took
}

/// A mover that fails at its fifth transfer.
struct Fails {
    engine: Box<dyn Mover>,
    transfers: u64,
}

impl Mover for Fails {
    fn name(&self) -> String {
        self.engine.name()
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        self.engine.reaches(source, destination)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<Ticket> {
        self.transfers += 1;
        if self.transfers == 5 {
            return Err(Error::device_environment("twin:0", "it was unplugged; plug it in"));
        }
        self.engine.submit(source, destination)
    }

    fn done(&mut self) -> Result<Ticket> {
        self.engine.done()
    }

    fn wait(&mut self, ticket: Ticket, completion: CompletionMode) -> Result<()> {
        self.engine.wait(ticket, completion)
    }
}

#[test]
fn a_load_that_fails_ends_only_itself_and_keeps_what_it_has() {
    let missing =
        CopyLoadConfig::new("host".parse().unwrap(), "pci:ffff:ff:1f.7/bar0".parse().unwrap(), 4096);
    assert!(CopyLoad::open(missing).err().unwrap().to_string().contains("pci:ffff:ff:1f.7"));
    let (mut fails, mut goes_on) = (load(crate::Path::Dma, 4096), load(crate::Path::Dma, 4096));
    fails.copiers[0].selector.replace_mover(|engine| Box::new(Fails { engine, transfers: 0 }));
    let (_, outcomes) = beside(&mut [&mut fails, &mut goes_on], |sampler, _| {
        while sampler.take().loads[0].errors == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = sampler.take().loads[1].operations;
        until("the other load goes on", || sampler.take().loads[1].operations > before);
    });
    let error = outcomes[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("it was unplugged"), "{error}");
    assert!(outcomes[1].is_ok(), "{outcomes:?}");
    let counts = fails.meters()[0].read();
    assert_eq!((counts.errors, fails.verification().transferred_bytes), (1, counts.bytes));
    assert!(counts.operations <= 4);
}

#[test]
fn wrong_settings_are_refused() {
    let one = || config(crate::Path::Dma, 4096);
    for (config, expected) in [
        (CopyLoadConfig { size: 0, ..one() }, "0 bytes"),
        (CopyLoadConfig { threads: 0, ..one() }, "1 to 64"),
        (CopyLoadConfig { in_flight: Some(0), ..one() }, "at least 1"),
        (CopyLoadConfig { threads: 2, cores: vec![0], ..one() }, "a core for each thread"),
        (CopyLoadConfig { cores: vec![99_999], ..one() }, "core 99999"),
    ] {
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn every_path_can_be_a_load() {
    let (host, twins) = (host(), [twin(0), twin(1)]);
    for (from, to) in [(&host, &host), (&host, &twins[0]), (&twins[0], &host), (&twins[0], &twins[1])] {
        for path in crate::Path::candidates(from.endpoint(), to.endpoint()) {
            let ends = [from, to].map(|device| device.endpoint().clone());
            let [source, destination] = ends;
            let config = CopyLoadConfig { from: source, to: destination, ..config(path, 4096) };
            let load = CopyLoad::between(from, to, config);
            // Only DPDK's engine can be missing.
            if load.is_err() && path == crate::Path::Dma && from.endpoint() == to.endpoint() {
                eprintln!("SKIPPED every_path_can_be_a_load, {path}: {}", load.err().unwrap());
                continue;
            }
            let mut load = prepared(load.unwrap());
            assert_eq!(load.path().name, path);
            let (_, outcomes) = beside(&mut [&mut load], |sampler, _| {
                until("the load moves nothing", || sampler.take().loads[0].operations >= 3);
            });
            assert!(outcomes[0].is_ok(), "{path}: {outcomes:?}");
            assert!(load.verification().verified_bytes >= 3 * 4096, "{path}: {:?}", load.verification());
        }
    }
}
