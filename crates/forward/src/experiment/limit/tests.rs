use super::*;
use crate::config::Executor;
use crate::gpu;
use crate::result::Flow;
use inlane_core::result::Ceiling;

fn config(rx: &str) -> Config {
    Config::new(Route::OneWay { rx: rx.into(), tx: vec!["null".into()] })
}

fn on_gpu(method: Method, memory: Memory) -> Config {
    let mut config = config("null:1024");
    config.executor =
        Executor::Gpu { index: 0, settings: gpu::Settings { method, memory, ..Default::default() } };
    config
}

/// A second at 1 Mpps of 1000 bytes, all of it with a processor, of which the threads were busy for these shares.
fn outcome(config: &Config, busy: &[f64]) -> RunOutcome {
    let flow = Flow {
        packets: 1_000_000,
        bytes: 1_000_000_000,
        packets_per_second: 1e6,
        bits_per_second: 8e9,
        ..Flow::default()
    };
    let mut result =
        PacketResult { duration_ns: 1_000_000_000, rx: flow, tx: flow, ..PacketResult::default() };
    result.cpu_ns = config.executor.threads() as u64 * 1_000_000_000;
    RunOutcome {
        result,
        devices: Vec::new(),
        twin: false,
        link_bits_per_second: None,
        time_shares: busy.iter().map(|&busy| TimeShares { busy, ..TimeShares::default() }).collect(),
        queued_ns: 0,
        refused_packets: 0,
        notes: Vec::new(),
        errors: Vec::new(),
    }
}

fn with_ceiling(mut outcome: RunOutcome, packets_per_second: f64) -> RunOutcome {
    let packets_per_second = Some(packets_per_second);
    outcome.result.ceiling = Some(Ceiling { what: "x".into(), bytes_per_second: None, packets_per_second });
    outcome
}

/// What is said, which holds these words.
fn says(config: &Config, outcome: &RunOutcome, words: &[&str]) {
    let said = limit(config, outcome).unwrap();
    for word in words {
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn who_is_always_busy_is_the_limit() {
    let single = config("null");
    let evidence = ["thread: ", "busy 97 % of the time", "the function alone takes 25 %"];
    says(&single, &with_ceiling(outcome(&single, &[0.97]), 4e6), &evidence);
    let mut two = config("af_xdp:eth0");
    two.pipelines = 2;
    let mut uneven = outcome(&two, &[0.02, 0.99]);
    uneven.result.cpu_ns *= 2;
    says(&two, &uneven, &["thread: ", "busy 2 % to 99 %"]);
}

#[test]
fn who_waits_waits_for_somebody() {
    let mut split = config("gen:64");
    split.executor = split.executor.with_method(Method::Split).unwrap();
    says(&split, &outcome(&split, &[0.4]), &["workers: ", "busy 40 %", "always more"]);
    // The port in front had no more, or had, and lost it.
    split.route = config("af_xdp:eth0").route;
    says(&split, &outcome(&split, &[0.4]), &["source: ", "offered no more", "busy 40 %"]);
    let mut missed = outcome(&split, &[0.4]);
    missed.result.rx.missed = 7;
    says(&split, &missed, &["workers: ", "7 packets were lost"]);
    let mut refused = outcome(&split, &[0.1]);
    refused.time_shares[0].refused = 0.8;
    says(&split, &refused, &["sending port: ", "took nothing for 80 %"]);
}

#[test]
fn what_was_asked_for_or_a_link_carries_is_no_more() {
    let mut paced = config("gen:1000");
    paced.rate = Some(Rate::Packets(1e6));
    says(&paced, &outcome(&paced, &[0.2]), &["offered rate: ", "1.00 Mpps"]);
    paced.rate = Some(Rate::Bits(8.3e9));
    says(&paced, &outcome(&paced, &[0.2]), &["offered rate: ", "of 8.30 Gb/s asked for 8.00 Gb/s came"]);
    says(&paced, &outcome(&paced, &[0.95]), &["thread: "]);
    paced.rate = Some(Rate::Packets(2e6));
    paced.executor = paced.executor.with_method(Method::Split).unwrap();
    says(&paced, &outcome(&paced, &[0.5]), &["workers: ", "though of 2.00 Mpps asked for 1.00 Mpps came"]);
    let xdp = config("af_xdp:eth0");
    let mut full = outcome(&xdp, &[0.95]);
    full.link_bits_per_second = Some(8.3e9);
    says(&xdp, &full, &["link: ", "99 %"]);
}

#[test]
fn on_a_gpu_a_bare_kernel_tells_what_its_memory_gives() {
    let pulled = on_gpu(Method::Persistent, Memory::Gpu);
    says(
        &pulled,
        &with_ceiling(outcome(&pulled, &[0.3]), 1.02e6),
        &["PCIe: 98 % of the rate of a bare kernel"],
    );
    let pool = on_gpu(Method::Persistent, Memory::Pool);
    says(&pool, &with_ceiling(outcome(&pool, &[0.3]), 1.02e6), &["GPU memory: 98 %"]);
    let waits = with_ceiling(outcome(&pulled, &[0.3]), 1e7);
    says(&pulled, &waits, &["GPU: ", "busy 30 %", "at 10 % of a bare kernel's rate"]);
    let split = on_gpu(Method::Split, Memory::Pinned);
    says(&split, &with_ceiling(outcome(&split, &[0.96]), 1e7), &["thread: ", "busy 96 %"]);
}

#[test]
fn who_feeds_a_gpu_is_the_limit_or_the_gpu_is() {
    let fed = |config: &Config, shares: &[f64]| {
        let mut outcome = outcome(config, &vec![0.3; shares.len()]);
        outcome.time_shares.iter_mut().zip(shares).for_each(|(spent, &share)| spent.feeding = share);
        outcome
    };
    let mut split = on_gpu(Method::Split, Memory::Pinned);
    let launches =
        ["launches: the thread that launches kernels was busy 97 % of the time, ", "packets was busy 30 %"];
    says(&split, &fed(&split, &[0.97]), &launches);
    says(
        &split,
        &fed(&split, &[0.4]),
        &["GPU: the thread that launches kernels was busy 40 %", "always more"],
    );
    let graph = on_gpu(Method::Graph, Memory::Pinned);
    says(&graph, &fed(&graph, &[0.92]), &["posting: the thread that posts kernels was busy 92 %"]);
    split.pipelines = 2;
    let mut two = fed(&split, &[0.5, 0.95]);
    two.result.cpu_ns *= 2;
    says(&split, &two, &["launches: the threads that launch kernels were busy 50 % to 95 %"]);
}

#[test]
fn who_has_no_processor_is_told_so_and_who_hardly_ran_nothing() {
    let split = config("null");
    let mut crowded = outcome(&split, &[0.95]);
    crowded.result.cpu_ns /= 2;
    says(&split, &crowded, &["processors: ", "had one for 50 %"]);
    crowded.result.duration_ns = 1_000_000;
    assert_eq!(limit(&split, &crowded), None);
}

/// The threads of a real run tell their time.
#[test]
fn a_run_says_what_limits_it() {
    let mut slow = config("null");
    slow.executor = slow.executor.with_method(Method::Split).unwrap();
    slow.cores = Some(Vec::new());
    slow.per_pipeline.work = Duration::from_micros(20);
    slow.duration = Some(Duration::from_millis(200));
    let outcome = crate::run::run(&slow, &Default::default(), &mut |_, _| ()).unwrap();
    assert!(outcome.time_shares[0].busy < 0.5, "{:?}", outcome.time_shares);
    // The processors may be shared with whatever else runs here.
    let said = limit(&slow, &outcome).unwrap();
    assert!(said.starts_with("workers: ") || said.starts_with("processors: "), "{said}");
}

#[test]
fn a_capture_has_more_as_a_file_and_not_as_a_pipe() {
    let pipe = config("pcap:-");
    says(&pipe, &outcome(&pipe, &[0.01]), &["source: "]);
    let file = config(concat!("pcap:", env!("CARGO_MANIFEST_DIR"), "/../../examples/capture/mixed.pcap"));
    says(&file, &outcome(&file, &[0.01]), &["always more to receive"]);
}
