use super::*;
use crate::config::Executor;
use crate::config::Route;
use crate::gpu;
use crate::result::{CeilingOf, Moved, PacketTotals};
use inlane_result::Ceiling;

fn config(rx: &str) -> Config {
    Config::new(Route::one_way(rx, ["null"]).unwrap())
}

fn with_method(rx: &str, method: Method) -> Config {
    let mut config = config(rx);
    config.executor = config.executor.with_method(method).unwrap();
    config
}

fn on_gpu(method: Method, memory: Memory) -> Config {
    let settings = gpu::Settings { method, memory, ..Default::default() };
    Config { executor: Executor::Gpu { index: 0, settings }, ..config("null:1024") }
}

/// Returns the outcome of a 1 s run at 1 Mpps with packets of 1000 bytes. `busy` is each dispatching thread's
/// share of time with work.
fn outcome(config: &Config, busy: &[f64]) -> RunOutcome {
    let flow = PacketTotals {
        packets: 1_000_000,
        bytes: 1_000_000_000,
        packets_per_second: 1e6,
        bits_per_second: 8e9,
        ..PacketTotals::default()
    };
    let mut result =
        PacketResult { duration_ns: 1_000_000_000, rx: flow, tx: flow, ..PacketResult::default() };
    result.cpu_ns = (config.executor.threads() * busy.len()) as u64 * 1_000_000_000;
    let time_shares = busy.iter().map(|&busy| TimeShares { busy, ..TimeShares::default() }).collect();
    RunOutcome { time_shares, queued_ns: 1, ..RunOutcome::of(result) }
}

fn with_ceiling(mut outcome: RunOutcome, packets_per_second: f64) -> RunOutcome {
    let packets_per_second = Some(packets_per_second);
    let resource = CeilingOf::BareKernel { gpu: 0, moved: Moved::Whole, copy_engine_bytes_per_second: None };
    outcome.result.ceiling = Some(Ceiling { resource, bytes_per_second: None, packets_per_second });
    outcome
}

/// Asserts that the text about the run's limit begins with `words[0]` and contains the other words.
fn assert_limit(config: &Config, outcome: &RunOutcome, words: &[&str]) {
    let said = limit(config, outcome).unwrap().to_string();
    assert!(said.starts_with(words[0]), "{said}");
    for word in words {
        assert!(said.contains(word), "{said}");
    }
    for sentence in said.split_once(": ").unwrap().1.split("; ") {
        assert!(sentence.split(' ').count() <= 20, "{sentence}");
    }
}

#[test]
fn a_busy_thread_is_the_limit() {
    let single = config("null");
    assert_limit(&single, &outcome(&single, &[0.97]), &["thread: ", "busy 97 % of the time"]);
    let mut two = config("pcap:-");
    two.pipelines = 2;
    assert_limit(&two, &outcome(&two, &[0.02, 0.99]), &["thread: ", "busy 2 % to 99 %"]);
}

#[test]
fn a_thread_that_waits_is_limited_by_what_it_waits_for() {
    let mut split = with_method("gen:64", Method::Split);
    assert_limit(&split, &outcome(&split, &[0.4]), &["workers: ", "busy 40 %", "always more"]);
    // Unlike a generator, a pipe can run out of packets. If none was lost, the source is the limit. If some were lost,
    // the workers are the limit.
    split.route = config("pcap:-").route;
    assert_limit(&split, &outcome(&split, &[0.4]), &["source: ", "nothing was lost", "busy 40 %"]);
    let mut missed = outcome(&split, &[0.4]);
    missed.result.rx.missed = 7;
    assert_limit(&split, &missed, &["workers: ", "7 packets were lost"]);
}

#[test]
fn a_stalled_sink_is_the_limit_however_it_stalls() {
    let mut config = with_method("gen:64", Method::Split);
    // The sending port accepts nothing for 80 % of the time. The thread also waits long for a processor,
    // because the machine is busy. The port must still be reported as the limit.
    let mut waiting = outcome(&config, &[0.1]);
    waiting.time_shares[0].refused = 0.8;
    (waiting.result.cpu_ns, waiting.queued_ns) = (500_000_000, 1_400_000_000);
    assert_limit(&config, &waiting, &["sending port: ", "took nothing for 80 %"]);
    // The sending port blocks in its system call. The thread has work for 99 % of the time, but uses the
    // processor only little. The system calls must be reported as the limit.
    let mut sleeping = outcome(&config, &[0.99]);
    sleeping.result.cpu_ns = 100_000_000;
    assert_limit(&config, &sleeping, &["system calls: ", "blocked for 95 %"]);
    // The calls were those that send, for example because an interface is shaped.
    sleeping.work = Some(WorkShares { receive: 0.02, function: 0.01, send: 0.97 });
    assert_limit(&config, &sleeping, &["sending port: ", "blocked for 95 %", "sending 97 %"]);
    sleeping.work = Some(WorkShares { receive: 0.49, function: 0.01, send: 0.5 });
    assert_limit(&config, &sleeping, &["system calls: "]);
    // A full sending port, with overload mode `drop`. The thread looks busy because it drops packets, but the
    // port is the limit.
    config.per_pipeline.overload = Overload::Drop;
    let mut dropping = outcome(&config, &[0.99]);
    (dropping.refused_packets, dropping.result.dropped_overload) = (600_000, 600_000);
    assert_limit(&config, &dropping, &["sending port: ", "full for 60 % of the packets"]);
    // The burst ring is full, so packets were dropped. The sending port accepted every packet. The limit is
    // therefore the dispatching thread.
    dropping.refused_packets = 0;
    assert_limit(&config, &dropping, &["thread: "]);
}

#[test]
fn threads_that_others_keep_from_running_are_limited_by_processors() {
    let split = config("null");
    let mut crowded = outcome(&split, &[0.95]);
    (crowded.result.cpu_ns, crowded.queued_ns) = (500_000_000, 500_000_000);
    assert_limit(&split, &crowded, &["processors: ", "waited 50 % of the time"]);
    // Simulate a kernel that does not count the time in run queues.
    crowded.queued_ns = 0;
    assert_limit(&split, &crowded, &["processors or system calls: ", "not running for 50 %"]);
    crowded.result.duration_ns = 1_000_000;
    assert_eq!(limit(&split, &crowded), None, "too short");
}

#[test]
fn a_used_up_quota_is_the_limit_and_not_the_processors() {
    let split = config("null");
    let mut throttled = outcome(&split, &[0.95]);
    (throttled.result.cpu_ns, throttled.queued_ns) = (200_000_000, 800_000_000);
    throttled.quota = Some(CpuQuota { cores: 0.2, periods: 32, throttled_periods: 32 });
    assert_limit(&split, &throttled, &["CPU quota: ", "0.20 cores", "throttled in 32 of 32 periods"]);
    throttled.quota = Some(CpuQuota { cores: 2.0, periods: 32, throttled_periods: 0 });
    assert_limit(&split, &throttled, &["processors: "]);
}

#[test]
fn a_slow_source_is_the_limit_although_polling_threads_wait_for_cores() {
    for rx in ["gen:64,rate=1kpps", "pcap:-"] {
        let slow = config(rx);
        let mut waiting = outcome(&slow, &[0.01]);
        (waiting.result.cpu_ns, waiting.queued_ns) = (200_000_000, 800_000_000);
        assert_limit(&slow, &waiting, &["source: ", "nothing was lost", "busy 1 % of the time"]);
        // A thread that had work all the time did not wait for packets.
        waiting.time_shares[0].busy = 0.95;
        assert_limit(&slow, &waiting, &["processors: "]);
    }
    let mut paced = config("gen:64");
    paced.rate = Some(Rate::Packets(1.02e6));
    let mut waiting = outcome(&paced, &[0.3]);
    (waiting.result.cpu_ns, waiting.queued_ns) = (200_000_000, 800_000_000);
    assert_limit(&paced, &waiting, &["offered rate: "]);
}

#[test]
fn the_work_of_a_busy_thread_is_divided() {
    let checked = config("gen:64");
    let mut busy = outcome(&checked, &[0.97]);
    busy.work = Some(WorkShares { receive: 0.4, function: 0.01, send: 0.59 });
    let limit = limit(&checked, &busy).unwrap();
    assert_eq!((limit.kind, limit.resource), (LimitKind::Busy, Resource::Thread));
    assert_limit(&checked, &busy, &["thread: ", "receiving took 40 %, the function 1 %, sending 59 %"]);
    let json = serde_json::to_value(&limit).unwrap();
    assert_eq!((&json["resource"], &json["evidence"][1]["send_share"]), (&"thread".into(), &0.59.into()));
}

#[test]
fn the_offered_rate_is_a_limit_only_if_it_arrived() {
    let mut paced = config("gen:1000");
    paced.rate = Some(Rate::Packets(1e6));
    assert_limit(&paced, &outcome(&paced, &[0.2]), &["offered rate: ", "1.00 Mpps of 1.00 Mpps arrived"]);
    paced.rate = Some(Rate::Bits(8.3e9));
    assert_limit(&paced, &outcome(&paced, &[0.2]), &["offered rate: ", "8.00 Gb/s of 8.30 Gb/s arrived"]);
    assert_limit(&paced, &outcome(&paced, &[0.95]), &["thread: "]);
    paced.rate = Some(Rate::Packets(2e6));
    paced.executor = paced.executor.with_method(Method::Split).unwrap();
    assert_limit(&paced, &outcome(&paced, &[0.5]), &["workers: ", "only 1.00 Mpps of 2.00 Mpps arrived"]);
}

#[cfg(feature = "dpdk")]
#[test]
fn a_full_link_is_the_limit_in_each_direction() {
    let xdp = config("af_xdp:eth0");
    let mut full = outcome(&xdp, &[0.95]);
    full.link_bits_per_second = Some(8.3e9);
    assert_limit(&xdp, &full, &["link: ", "99 % of 8.30 Gb/s"]);
    let port = |text| inlane_ports::spec::PortSpec::parse(text).unwrap();
    let between = Config::new(Route::Between(port("af_xdp:a"), port("af_xdp:b")));
    let mut half = outcome(&between, &[0.95, 0.95]);
    half.link_bits_per_second = Some(8.3e9);
    assert_limit(&between, &half, &["thread: "]);
}

#[test]
fn on_a_gpu_the_bare_kernel_shows_what_memory_allows() {
    let pulled = on_gpu(Method::Persistent, Memory::Gpu);
    let near = with_ceiling(outcome(&pulled, &[0.3]), 1.02e6);
    assert_limit(&pulled, &near, &["PCIe: ", "98 % of the rate of a bare kernel"]);
    let pool = on_gpu(Method::Persistent, Memory::Pool);
    assert_limit(&pool, &with_ceiling(outcome(&pool, &[0.3]), 1.02e6), &["GPU memory: ", "98 %"]);
    let waits = with_ceiling(outcome(&pulled, &[0.3]), 1e7);
    assert_limit(&pulled, &waits, &["GPU: ", "busy 30 %", "the rate is 10 % of a bare kernel's"]);
    let split = on_gpu(Method::Split, Memory::Pinned);
    assert_limit(&split, &with_ceiling(outcome(&split, &[0.96]), 1e7), &["thread: ", "busy 96 %"]);
}

#[test]
fn a_busy_feeder_is_the_limit_of_a_gpu_run() {
    let fed = |config: &Config, feeding: &[f64]| {
        let mut outcome = outcome(config, &vec![0.3; feeding.len()]);
        outcome.time_shares.iter_mut().zip(feeding).for_each(|(shares, &share)| shares.feeding = share);
        outcome
    };
    let mut split = on_gpu(Method::Split, Memory::Pinned);
    let launches = "the thread that launches kernels was busy 97 % of the time";
    assert_limit(&split, &fed(&split, &[0.97]), &["launches: ", launches, "sends was busy 30 %"]);
    let idle = "the thread that launches kernels was busy 40 %";
    assert_limit(&split, &fed(&split, &[0.4]), &["GPU: ", idle, "always more"]);
    let graph = on_gpu(Method::Graph, Memory::Pinned);
    assert_limit(
        &graph,
        &fed(&graph, &[0.92]),
        &["posting: ", "the thread that posts kernels was busy 92 %"],
    );
    split.pipelines = 2;
    let several = "the threads that launch kernels were busy 50 % to 95 %";
    assert_limit(&split, &fed(&split, &[0.5, 0.95]), &["launches: ", several]);
}

#[test]
fn a_real_run_names_its_limit() {
    let mut slow = with_method("null", Method::Split);
    slow.cores = Some(Vec::new());
    slow.per_pipeline.work = Duration::from_micros(20);
    slow.duration = Some(Duration::from_millis(200));
    let outcome = crate::run::run(&slow, &Default::default(), &mut |_, _| ()).unwrap();
    assert!(outcome.time_shares[0].busy < 0.5, "{:?}", outcome.time_shares);
    // The workers are the limit on an idle machine. Also accept the processors as the limit, because other
    // jobs may use this machine.
    let said = limit(&slow, &outcome).unwrap().to_string();
    assert!(said.starts_with("workers: ") || said.starts_with("processors: "), "{said}");
}

#[test]
fn a_file_is_endless_and_a_pipe_is_not() {
    let pipe = config("pcap:-");
    assert_limit(&pipe, &outcome(&pipe, &[0.01]), &["source: "]);
    let file = config(concat!("pcap:", env!("CARGO_MANIFEST_DIR"), "/../../examples/capture/mixed.pcap"));
    assert_limit(&file, &outcome(&file, &[0.01]), &["ports: ", "always more to receive"]);
}
