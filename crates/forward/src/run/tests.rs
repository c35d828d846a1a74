use super::*;
use crate::config::Route;

fn config(rx: &str, tx: &str) -> Config {
    let mut config = Config::new(Route::one_way(rx, [tx]).unwrap());
    config.per_pipeline.packets = 1000;
    config.cores = Some(Vec::new());
    config
}

fn run_it(config: &Config) -> Result<RunOutcome> {
    run(config, &Control::default(), &mut |_, _| ())
}

#[test]
fn generators_captures_and_checks_need_no_device() {
    let directory = tempfile::tempdir().unwrap();
    let capture = format!("pcap:{}", directory.path().join("x.pcap").display());
    for (rx, tx) in [("gen:64", "check"), ("gen:64", &*capture), (&*capture, "null"), ("null", "null")] {
        let mut config = config(rx, tx);
        config.function = "macswap".into();
        let outcome = run_it(&config).unwrap();
        assert!(outcome.errors.is_empty(), "{rx} -> {tx}: {:?}", outcome.errors);
        assert_eq!(outcome.result.tx.packets, 1000, "{rx} -> {tx}");
        assert!(outcome.result.verification.is_none_or(|found| found.passed()), "{rx} -> {tx}");
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_needs_the_feature_cuda() {
    use crate::config::{Device, Executor, Method};
    let mut config = config("null", "null");
    config.executor = Executor::new(Device::Gpu(0), Method::Single, 0, Default::default()).unwrap();
    let refused = run_it(&config).err().unwrap();
    assert_eq!(refused.class(), inlane_core::error::Class::Environment, "{refused}");
    assert!(refused.to_string().contains("cargo feature cuda"), "{refused}");
    config.executor = Executor::new(Device::Cpu, Method::Split, 2, Default::default()).unwrap();
    assert_eq!(run_it(&config).unwrap().result.tx.packets, 1000);
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn dpdk_ports_need_the_feature_dpdk() {
    let refused = Route::one_way("net_null:64", ["null"]).err().unwrap();
    assert_eq!(refused.class(), inlane_core::error::Class::Environment, "{refused}");
    assert!(refused.to_string().contains("cargo feature dpdk"), "{refused}");
}

/// Checks frames of 65,549 bytes. Linux may deliver such frames, because it segments datagrams of 64 KiB only
/// at the network card.
#[test]
fn the_largest_frames_pass() {
    let directory = tempfile::tempdir().unwrap();
    let capture = format!("pcap:{}", directory.path().join("x.pcap").display());
    for (rx, tx) in [("gen:65549", "check"), ("gen:65549", &*capture), (&*capture, "null")] {
        let mut config = config(rx, tx);
        config.per_pipeline.packets = 50;
        config.buffers = 256;
        let outcome = run_it(&config).unwrap();
        assert!(outcome.errors.is_empty(), "{rx} -> {tx}: {:?}", outcome.errors);
        assert_eq!(outcome.result.tx.bytes, 50 * 65_549, "{rx} -> {tx}");
    }
}
