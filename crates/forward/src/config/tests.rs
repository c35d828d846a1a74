use super::*;
use crate::gpu::{Memory, Settings};
use std::time::Duration;

fn config() -> Config {
    Config::new(Route::one_way("null", ["null"]).unwrap())
}

#[test]
fn defaults_are_accepted() {
    config().check().unwrap();
}

#[test]
fn with_size_replaces_the_size_of_ports_that_make_packets() {
    for (rx, expected) in [
        ("null", Some("null:200")),
        ("null:64", Some("null:200")),
        ("gen:64,flows=4,seed=1", Some("gen:200,flows=4,seed=1")),
        ("gen:imix", Some("gen:200")),
        ("net_null:64,copy=on", Some("net_null:200,copy=on")),
        ("gen:oran,prbs=4", None),
        ("pcap:64", None),
        ("ring:64", None),
    ] {
        if !cfg!(feature = "dpdk") && (rx.starts_with("net_null") || rx.starts_with("ring")) {
            continue;
        }
        let route = Route::one_way(rx, ["null"]).unwrap();
        let sized = Config::new(route).with_size(200).map(|config| config.route).ok();
        let wanted = expected.map(|rx| Route::one_way(rx, ["null"]).unwrap());
        assert_eq!(sized, wanted, "{rx}");
    }
}

#[test]
fn wrong_settings_are_refused_with_the_flag() {
    type Break = fn(&mut Config);
    let cases: [(&str, Break); 11] = [
        ("pipelines=0", |c| c.pipelines = 0),
        ("burst=0", |c| c.per_pipeline.burst = 0),
        ("slots=3", |c| c.per_pipeline.slots = 3),
        ("work=3600s", |c| c.per_pipeline.work = Duration::from_secs(3600)),
        ("watchdog=0s", |c| c.per_pipeline.watchdog = Duration::ZERO),
        ("buffers=1", |c| c.buffers = 1),
        ("room=1048576", |c| c.room = 1 << 20),
        ("tx", |c| c.route = Route::one_way("null", []).unwrap()),
        ("between=null", |c| {
            let null = || PortSpec::parse("null").unwrap();
            c.route = Route::Between(null(), null());
        }),
        ("cores", |c| c.cores = Some(vec![100_000])),
        ("compete=large", |c| c.compete = Compete::Large),
    ];
    for (flag, break_it) in cases {
        let mut config = config();
        break_it(&mut config);
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(flag), "{error}");
    }
}

#[test]
fn settings_of_the_other_device_are_refused() {
    type Set = fn(&mut Settings);
    let cases: [(&str, Set); 9] = [
        ("memory=gpu-pool", |s| s.memory = Memory::Pool),
        ("header-split=64", |s| s.memory = Memory::Split(64)),
        ("blocks", |s| s.blocks = 8),
        ("threads", |s| s.threads = 64),
        ("streams", |s| s.streams = 2),
        ("graph-items", |s| s.graph_items = 8),
        ("graph-branches", |s| s.graph_branches = 2),
        ("pause", |s| s.pause = Duration::from_micros(1)),
        ("measure-pcie", |s| s.measure_pcie = true),
    ];
    for (flag, set) in cases {
        let mut settings = Settings::default();
        set(&mut settings);
        let refused =
            Executor::new(Device::Cpu, Method::Single, 0, settings.clone()).unwrap_err().to_string();
        assert!(refused.contains(&format!("{flag}: it applies to GPUs only")), "{refused}");
        Executor::new(Device::Gpu(0), Method::Graph, 0, settings).unwrap();
    }
    for (device, method, workers) in [
        (Device::Cpu, Method::Single, 1),
        (Device::Gpu(0), Method::Split, 1),
        (Device::Cpu, Method::Split, 65),
        (Device::Cpu, Method::Graph, 0),
    ] {
        assert!(Executor::new(device, method, workers, Settings::default()).is_err(), "{device} {method}");
    }
}

#[test]
fn an_executor_keeps_its_settings_when_the_method_changes() {
    let gpu = Settings { blocks: 7, ..Settings::default() };
    let gpu = Executor::new(Device::Gpu(3), Method::Single, 0, gpu).unwrap();
    let graph = gpu.with_method(Method::Graph).unwrap();
    let Executor::Gpu { index: 3, settings } = &graph else { panic!("{graph:?}") };
    assert_eq!((settings.blocks, graph.method(), graph.threads()), (7, Method::Graph, 2));
    let split = Executor::new(Device::Cpu, Method::Split, 3, Settings::default()).unwrap();
    assert_eq!((split.workers(), split.threads()), (3, 4));
    assert_eq!(split.with_method(Method::Split).unwrap().workers(), 3);
    assert!(split.with_method(Method::Stream).is_none());
}
