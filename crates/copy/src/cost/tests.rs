use super::*;
use inlane_core::error::Class;
use inlane_pci::Permission;

fn curve(points: &[(u64, f64)]) -> Curve {
    Curve { points: points.to_vec() }
}

#[test]
fn curves_are_lines_between_points_and_go_on_at_the_last_rate() {
    let curve = curve(&[(1000, 10.0), (2000, 20.0), (4000, 30.0)]);
    assert_eq!(curve.time(1), Some(10.0));
    assert_eq!(curve.time(1500), Some(15.0));
    assert_eq!(curve.time(3000), Some(25.0));
    assert_eq!(curve.time(8000), Some(50.0));
    assert_eq!(Curve::default().time(1), None);
}

const BAR: &str = "pci:0000:00:04.0/bar2@0+64K";

fn calibrate(from: &Arc<Device>, to: &Arc<Device>, options: &PathOptions) -> Error {
    Costs::calibrate(from, to, options).unwrap_err()
}

fn host() -> Arc<Device> {
    crate::device::open(&[Endpoint::Host], &Permission::default()).unwrap().remove(0)
}

#[test]
fn what_the_user_can_mend_is_said_plainly_and_is_usage() {
    let memory = || Region::host(64 << 10).unwrap();
    let closed = Device::bar(BAR, memory(), Permission::default().read());
    let both = PathOptions { both_ways: true, ..PathOptions::default() };
    for error in [calibrate(&host(), &closed, &PathOptions::default()), calibrate(&closed, &host(), &both)] {
        assert_eq!(error.class(), Class::Usage);
        assert!(error.to_string().starts_with(&format!("{BAR}: may not be written")), "{error}");
    }
    let odd = memory().slice(2, 32 << 10).unwrap();
    let odd = Device::bar(BAR, odd, Permission::default().read().write());
    let error = calibrate(&host(), &odd, &PathOptions::default());
    assert_eq!(error.class(), Class::Usage);
    assert!(error.to_string().contains("multiples of 4"), "{error}");
    let without = PathOptions { without: vec![Path::Bar], ..PathOptions::default() };
    let error = calibrate(&host(), &host(), &without);
    assert_eq!(error.class(), Class::Usage);
    assert!(error.to_string().contains("excluded by --without"), "{error}");
}

/// Memory that is there twice, at two addresses: what is poisoned as a destination was filled as a source.
fn twice(bytes: usize) -> [Region; 2] {
    // SAFETY: a file of its own, mapped whole twice; nothing else knows of it, and it stays mapped until the test ends.
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
fn bytes_that_arrive_wrong_are_no_matter_of_the_machine() {
    let may = || Permission::default().read().write();
    let [first, second] = twice(64 << 10);
    let first = Device::bar(BAR, first, may());
    let second = Device::bar("pci:0000:00:05.0/bar2@0+64K", second, may());
    let error = calibrate(&first, &second, &PathOptions { both_ways: true, ..PathOptions::default() });
    assert_eq!(error.class(), Class::Failed);
    assert!(matches!(error, Error::Altered { .. }), "{error}");
    assert!(error.to_string().starts_with("calibration of bar, "), "{error}");
}

#[test]
fn of_several_reasons_the_gravest_decides() {
    let host = host();
    let environment = || Error::device_environment("gpu:0", "has no memory left");
    let refused = |paths: &[Path]| paths.iter().map(|path| (*path, "why".to_string())).collect();
    let class = |errors: Vec<Error>| {
        let error = no_path_error([&host, &host], &refused(&[Path::Bar, Path::Dma]), errors);
        assert!(error.to_string().contains("no path is available: bar: why; dma: why"), "{error}");
        error.class()
    };
    assert_eq!(class(vec![environment(), environment()]), Class::Environment);
    assert_eq!(class(vec![environment(), Error::invalid("a", "b")]), Class::Usage);
    assert_eq!(class(vec![Error::device_failed("a", "b"), environment()]), Class::Failed);
    let only = no_path_error([&host, &host], &refused(&[Path::Bar]), vec![environment()]);
    assert_eq!(only.to_string(), "gpu:0: has no memory left");
}

#[test]
fn winners_are_those_that_win_somewhere() {
    let costs = Costs {
        paths: [
            (Path::StagedSm, curve(&[(4096, 8e3), (16 << 20, 400e3)])),
            (Path::Staged, curve(&[(4096, 20e3), (16 << 20, 330e3)])),
            (Path::Hybrid, curve(&[(4096, 25e3), (16 << 20, 2e6)])),
        ]
        .into(),
        ..Costs::default()
    };
    assert_eq!(costs.winners(), [Path::StagedSm, Path::Staged]);
}

#[test]
fn hybrid_is_the_sum_of_its_legs_and_staging_the_slower_one() {
    let legs = [("out", 2.0), ("cpu", 3.0), ("in", 1.0)];
    let legs =
        legs.map(|(name, slope)| (name.into(), curve(&[(1 << 20, slope * 1e5), (16 << 20, slope * 16e5)])));
    let costs = Costs { legs: legs.into(), ..Costs::default() };
    assert_eq!(costs.predict(Path::Hybrid, 16 << 20), Some(96e5));
    assert_eq!(costs.predict(Path::Staged, 16 << 20), Some(32e5 + 1e5));
    assert_eq!(costs.predict(Path::P2p, 16 << 20), None);
}
