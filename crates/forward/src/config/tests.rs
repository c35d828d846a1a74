use super::*;

fn config() -> Config {
    Config::new(Route::OneWay { rx: "null".into(), tx: vec!["null".into()] })
}

#[test]
fn defaults_are_right() {
    config().check().unwrap();
    assert!(!allowed_cores().is_empty());
}

#[test]
fn a_size_goes_into_the_port_that_makes_packets() {
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
        let route = Route::OneWay { rx: rx.into(), tx: vec!["null".into()] };
        let sized = Config::new(route).with_size(200).map(|config| config.route).ok();
        let wanted = expected.map(|rx| Route::OneWay { rx: rx.into(), tx: vec!["null".into()] });
        assert_eq!(sized, wanted, "{rx}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_flag_named() {
    type Break = fn(&mut Config);
    let cases: [(&str, Break); 17] = [
        ("--pipelines", |c| c.pipelines = 0),
        ("--workers", |c| c.workers = 1),
        ("--buffers", |c| c.buffers = 1),
        ("--room", |c| c.room = 1 << 20),
        ("--tx", |c| c.route = Route::OneWay { rx: "null".into(), tx: vec![] }),
        ("--cores", |c| c.cores = Some(vec![100_000])),
        ("--memory gpu-pool: is of a GPU", |c| c.gpu.memory = Memory::Pool),
        ("--split 64: is of a GPU", |c| c.gpu.memory = Memory::Split(64)),
        ("--blocks: is of a GPU", |c| c.gpu.blocks = 8),
        ("--threads: is of a GPU", |c| c.gpu.threads = 64),
        ("--streams: is of a GPU", |c| c.gpu.streams = 2),
        ("--graph-items: is of a GPU", |c| c.gpu.graph_items = 8),
        ("--graph-branches: is of a GPU", |c| c.gpu.graph_branches = 2),
        ("--pause: is of a GPU", |c| c.gpu.pause = Duration::from_micros(1)),
        ("--watchdog: is of a GPU", |c| c.gpu.watchdog = Duration::from_secs(1)),
        ("--priority: is of a GPU", |c| c.gpu.urgent = false),
        ("--measure-pcie: is of a GPU", |c| c.measure_pcie = true),
    ];
    for (flag, break_it) in cases {
        let mut config = config();
        break_it(&mut config);
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(flag), "{error}");
        if error.contains("is of a GPU") {
            config.on = Device::Gpu(0);
            config.check().unwrap();
        }
    }
}
