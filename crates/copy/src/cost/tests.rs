use super::*;
use crate::endpoint::Endpoint;
use inlane_core::error::Class;
use inlane_pci::Permission;

fn curve(points: &[(u64, f64)]) -> Curve {
    Curve { points: points.to_vec() }
}

#[test]
fn curves_interpolate_between_points_and_extrapolate_beyond_them() {
    let curve = curve(&[(1000, 10.0), (2000, 20.0), (4000, 30.0)]);
    assert_eq!(curve.time(1), Some(10.0));
    assert_eq!(curve.time(1500), Some(15.0));
    assert_eq!(curve.time(3000), Some(25.0));
    assert_eq!(curve.time(8000), Some(50.0));
    assert_eq!(Curve::default().time(1), None);
}

const BAR: &str = "pci:0000:00:04.0/bar2@0+64K";

fn calibrate(from: &Arc<Device>, to: &Arc<Device>, options: &PathOptions) -> Error {
    PathCosts::calibrate(from, to, options).unwrap_err()
}

fn host() -> Arc<Device> {
    crate::device::open(&[Endpoint::Host], &Permission::default()).unwrap().remove(0)
}

#[test]
fn refusals_that_the_user_can_change_are_usage_errors() {
    let memory = || Region::host(64 << 10).unwrap();
    let closed = Device::bar(BAR, memory(), Permission::default().read());
    let both = PathOptions { both_ways: true, ..PathOptions::default() };
    for error in [calibrate(&host(), &closed, &PathOptions::default()), calibrate(&closed, &host(), &both)] {
        assert_eq!(error.class(), Class::Usage);
        assert!(error.to_string().starts_with(&format!("{BAR}: it may not be written")), "{error}");
    }
    let odd = memory().slice(2, 32 << 10).unwrap();
    let odd = Device::bar(BAR, odd, Permission::default().read().write());
    let error = calibrate(&host(), &odd, &PathOptions::default());
    assert_eq!(error.class(), Class::Usage);
    assert!(error.to_string().contains("multiples of 4"), "{error}");
    let without = PathOptions { without: vec![Path::Cpu], ..PathOptions::default() };
    let error = calibrate(&host(), &host(), &without);
    assert_eq!(error.class(), Class::Usage);
    assert!(error.to_string().contains("cpu: excluded by without; dma: a software copy"), "{error}");
    let ends = ["twin:0", "twin:1"].map(|end| end.parse().unwrap());
    let twins = crate::open(&ends, &Permission::default()).unwrap();
    let options = PathOptions { without: Path::ALL.to_vec(), ..PathOptions::default() };
    let excluded = "twin:0 to twin:1: without excludes every path: cpu, hybrid, staged; allow one of them";
    assert_eq!(calibrate(&twins[0], &twins[1], &options).to_string(), excluded);
}

/// Maps the same memory at two addresses, as source and destination. Poisoning the destination then also
/// overwrites the source, so a transfer delivers wrong bytes.
fn twice(bytes: usize) -> [Region; 2] {
    // SAFETY: nothing else uses this file. Both mappings stay until the process ends.
    unsafe {
        let file = libc::memfd_create(c"twice".as_ptr(), 0);
        assert!(file >= 0 && libc::ftruncate(file, bytes as libc::off_t) == 0);
        [(); 2].map(|()| {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let address = libc::mmap(std::ptr::null_mut(), bytes, rights, libc::MAP_SHARED, file, 0);
            assert_ne!(address, libc::MAP_FAILED);
            Region::from_raw(address as u64, bytes, inlane_core::Location::Host, Arc::new(()))
        })
    }
}

#[test]
fn wrong_bytes_fail_the_calibration() {
    let may = || Permission::default().read().write();
    let [first, second] = twice(64 << 10);
    let first = Device::bar(BAR, first, may());
    let second = Device::bar("pci:0000:00:05.0/bar2@0+64K", second, may());
    let error = calibrate(&first, &second, &PathOptions { both_ways: true, ..PathOptions::default() });
    assert_eq!(error.class(), Class::Failed);
    assert!(matches!(error, Error::Altered { .. }), "{error}");
    assert!(error.to_string().starts_with("calibration of cpu, "), "{error}");
}

#[test]
fn the_gravest_of_several_errors_determines_the_class() {
    let host = host();
    let environment = || Error::device_environment("gpu:0", "has no memory left");
    let refused = |paths: &[Path]| paths.iter().map(|path| (*path, Reason::unavailable("why"))).collect();
    let class = |errors: Vec<Error>| {
        let error = no_path_error([&host, &host], &refused(&[Path::Cpu, Path::Dma]), errors);
        assert!(
            error.to_string().contains("no path is available: cpu, dma: why; remove one of these causes"),
            "{error}"
        );
        error.class()
    };
    assert_eq!(class(vec![environment(), environment()]), Class::Environment);
    assert_eq!(class(vec![environment(), Error::invalid("a", "b")]), Class::Usage);
    assert_eq!(class(vec![Error::device_failed("a", "b"), environment()]), Class::Failed);
    let only = no_path_error([&host, &host], &refused(&[Path::Cpu]), vec![environment()]);
    assert_eq!(only.to_string(), "gpu:0: has no memory left");
}

#[test]
fn winners_are_the_paths_that_are_cheapest_for_some_size() {
    let costs = PathCosts {
        paths: [
            (Path::StagedSm, curve(&[(4096, 8e3), (16 << 20, 400e3)])),
            (Path::Staged, curve(&[(4096, 20e3), (16 << 20, 330e3)])),
            (Path::Hybrid, curve(&[(4096, 25e3), (16 << 20, 2e6)])),
        ]
        .into(),
        ..PathCosts::default()
    };
    assert_eq!(costs.winners(), [Path::StagedSm, Path::Staged]);
}

#[test]
fn hybrid_takes_the_sum_of_its_stages_and_staging_the_slower_one() {
    let stages = [("out", 2.0), ("cpu", 3.0), ("in", 1.0)];
    let stages =
        stages.map(|(name, slope)| (name.into(), curve(&[(1 << 20, slope * 1e5), (16 << 20, slope * 16e5)])));
    let costs = PathCosts { stages: stages.into(), ..PathCosts::default() };
    assert_eq!(costs.predict(Path::Hybrid, 16 << 20), Some(96e5));
    assert_eq!(costs.predict(Path::Staged, 16 << 20), Some(32e5 + 1e5));
    assert_eq!(costs.predict(Path::P2p, 16 << 20), None);
}

/// A mover that delays three of four transfers, as other work on the machine does.
struct Delays(CpuMover, u32);

impl Mover for Delays {
    fn name(&self) -> String {
        "delays".into()
    }

    fn reaches(&self, source: &Region, destination: &Region) -> bool {
        self.0.reaches(source, destination)
    }

    fn submit(&mut self, source: &Region, destination: &Region) -> Result<inlane_core::mover::Ticket> {
        self.1 += 1;
        if !self.1.is_multiple_of(4) {
            std::thread::sleep(Duration::from_millis(4));
        }
        self.0.submit(source, destination)
    }

    fn done(&mut self) -> Result<inlane_core::mover::Ticket> {
        self.0.done()
    }

    fn wait(&mut self, ticket: inlane_core::mover::Ticket, completion: CompletionMode) -> Result<()> {
        self.0.wait(ticket, completion)
    }
}

#[test]
fn delayed_transfers_do_not_count() {
    let [source, destination] = [(); 2].map(|()| Region::host(64 << 10).unwrap());
    let mut mover = Delays(CpuMover::widest(), 0);
    let mut load = Load { stop: Arc::default(), waited: false };
    let curve = Curve::measure(&mut mover, &source, &destination, &mut load).unwrap();
    for size in [4 << 10, 64 << 10] {
        let time = curve.time(size).unwrap();
        assert!(time < 1e6, "{size}: {time} ns");
    }
}

#[test]
fn disturbed_costs_keep_the_shorter_times_and_others_replace_them() {
    let costs = |times: [f64; 2], disturbed| PathCosts {
        paths: [(Path::Cpu, curve(&[(4096, times[0]), (65536, times[1])]))].into(),
        disturbed,
        ..PathCosts::default()
    };
    let stored = costs([10.0, 400.0], true);
    assert_eq!(costs([30.0, 300.0], true).improved_by(&stored), costs([10.0, 300.0], true));
    assert_eq!(costs([30.0, 300.0], false).improved_by(&stored), costs([30.0, 300.0], false));
}
