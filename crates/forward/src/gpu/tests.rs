//! Tests that need no GPU: compilation for every architecture, launch shapes, the watchdog and posting.

use super::posters::{NextPost, PostingCursor, RingView};
use super::settings::MOST_THREADS;
use super::*;
use crate::error::Error;
use crate::method::Method;
use inlane_function::{CallKind, PacketFunction};

/// Returns true if the run-time compiler is installed. If not, prints that the test is skipped.
fn compiler_is_installed(test: &str) -> bool {
    match inlane_cuda::compiler_version() {
        Ok(_) => true,
        Err(error) => {
            eprintln!("SKIPPED {test}: {error}");
            false
        }
    }
}

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

/// Compiles each function for one architecture, the next function for the next one, because all combinations take more than a
/// minute. `make test-all` sets INLANE_TEST_ALL and tries all of them.
#[test]
fn every_function_compiles_with_the_executor() {
    if !compiler_is_installed("every_function_compiles_with_the_executor") {
        return;
    }
    let all = std::env::var_os("INLANE_TEST_ALL").is_some();
    for (index, builtin) in inlane_function::builtins().iter().enumerate() {
        let function = PacketFunction::parse(builtin.example).unwrap();
        let next = index % ARCHITECTURES.len();
        let architectures = if all { &ARCHITECTURES[..] } else { &ARCHITECTURES[next..=next] };
        for (arch, pulls) in architectures.iter().flat_map(|&arch| [(arch, false), (arch, true)]) {
            let compiled = loaded_function::compile(&function, pulls, arch, &[])
                .unwrap_or_else(|error| panic!("{arch}: {error}"));
            assert_eq!(compiled.log(), "", "{} for {arch}, pulls: {pulls}", builtin.name);
        }
    }
}

/// Checks by the compiler's report that no register is spilled. A spilled register would be reloaded from
/// memory after each acquire.
#[test]
fn the_persistent_kernel_spills_no_registers() {
    if !compiler_is_installed("the_persistent_kernel_spills_no_registers") {
        return;
    }
    for builtin in ["macswap", "l3-decrement"] {
        let function = PacketFunction::parse(builtin).unwrap();
        for (arch, pulls) in ARCHITECTURES.into_iter().flat_map(|arch| [(arch, false), (arch, true)]) {
            let compiled = loaded_function::compile(&function, pulls, arch, &["--ptxas-options=-v"]).unwrap();
            let mut lines = compiled.log().lines();
            let kernel = lines.find(|line| line.contains("properties for inlane_persistent"));
            let properties = kernel.and_then(|_| lines.next()).unwrap_or_default();
            assert!(
                properties.contains(" 0 bytes spill stores"),
                "{builtin} for {arch}, pulls: {pulls}: {properties} in\n{}",
                compiled.log()
            );
        }
    }
}

#[test]
fn the_bare_kernels_compile_for_every_architecture() {
    if !compiler_is_installed("the_bare_kernels_compile_for_every_architecture") {
        return;
    }
    let headers = [inlane_cuda::SYSTEM_HEADER];
    let program =
        inlane_cuda::Source { name: "bare.cu", source: ceilings::SOURCE, headers: &headers, options: &[] };
    for arch in ARCHITECTURES {
        let compiled = inlane_cuda::compile(&program, arch).unwrap();
        assert_eq!(compiled.log(), "");
    }
}

#[test]
fn shapes_fit_every_burst() {
    for method in Method::ALL {
        for memory in [Memory::Pinned, Memory::Gpu, Memory::Split(64), Memory::Pool] {
            let settings = Settings { method, memory, ..Settings::default() };
            for burst in [1, 7, 16, 33, 128, 1024] {
                for kind in [CallKind::Packet, CallKind::Burst] {
                    let threads = settings.threads_for(burst, kind);
                    assert!(threads.is_multiple_of(32) && (32..=MOST_THREADS).contains(&threads));
                    let warps = kind == CallKind::Burst || memory.pull() != 0;
                    assert!(threads >= if warps { 128 } else { 32 });
                }
                let slots = settings.slots_for(2, burst);
                assert!(slots.is_power_of_two() && slots >= 2);
                assert_eq!(slots % settings.graph_items_for().min(slots), 0, "graphs tile the ring");
                assert_eq!(settings.graph_items_for() % settings.graph_branches_for(), 0);
            }
        }
    }
}

#[test]
fn shapes_fit_any_settings() {
    for method in Method::ALL {
        let most = u32::MAX;
        let settings = Settings {
            method,
            blocks: most,
            threads: most,
            streams: most,
            graph_items: most,
            graph_branches: most,
            ..Settings::default()
        };
        assert_eq!(settings.threads_for(64, CallKind::Packet), MOST_THREADS);
        assert_eq!((settings.graph_items_for(), settings.graph_branches_for()), (1024, 1024));
        let slots = settings.slots_for(1 << 16, 64);
        assert!(slots.is_power_of_two() && slots <= 1 << 16);
        let usual = Settings { method, ..Settings::default() };
        let launched = matches!(method, Method::Split | Method::Stream | Method::Graph);
        assert_eq!(usual.slots_for(1 << 16, 64), if launched { 512 } else { 1 << 16 }, "{method}");
    }
}

#[test]
fn the_watchdog_reports_an_item_that_is_not_completed() {
    use inlane_core::ring::{NextItem, Ring};
    use std::time::Duration;
    use watchdog::{Watchdog, oldest_in_flight};
    let (mut dispatcher, mut workers) = Ring::between_threads(2, 1, 1).unwrap();
    let ring = dispatcher.ring().clone();
    let packet = [inlane_core::Packet::EMPTY];
    let mut work = || match workers[0].poll() {
        NextItem::Item(item) => item.complete(0),
        _ => panic!("an item was submitted"),
    };
    assert_eq!(oldest_in_flight(&ring), None);
    for position in 0..5 {
        assert!(dispatcher.submit(&packet));
        assert_eq!(oldest_in_flight(&ring), Some(position));
        work();
        assert_eq!(
            oldest_in_flight(&ring),
            None,
            "a completed item that was not taken back is not the GPU's"
        );
        dispatcher.poll().expect("the item is complete").free();
        assert_eq!(oldest_in_flight(&ring), None);
    }
    let mut watchdog = Watchdog::new(Duration::from_millis(20));
    let mut check = |oldest| watchdog.check(oldest, "slow", &[]);
    for item in 0..4 {
        check(Some(item)).expect("the oldest item changed");
        std::thread::sleep(Duration::from_millis(15));
    }
    check(None).expect("nothing is in flight");
    std::thread::sleep(Duration::from_millis(30));
    check(Some(4)).expect("item 4 was seen for the first time");
    std::thread::sleep(Duration::from_millis(30));
    assert!(matches!(check(Some(4)), Err(Error::Stuck { item: 4, .. })));
}

#[test]
fn released_waits_are_not_reported_as_stuck_items() {
    use inlane_core::ring::{NextItem, Ring};
    use watchdog::oldest_in_flight;
    let (mut dispatcher, mut workers) = Ring::between_threads(4, 1, 1).unwrap();
    let ring = dispatcher.ring().clone();
    let packet = [inlane_core::Packet::EMPTY];
    for position in 0..6 {
        assert!(dispatcher.submit(&packet));
        let NextItem::Item(item) = workers[0].poll() else { panic!("item {position} was submitted") };
        item.complete(0);
        dispatcher.poll().expect("the item is complete").free();
    }
    // Release four waits, because waits and kernels were posted for 10 items, but the source has ended after
    // 6.
    dispatcher.close();
    ring.release_waits(10);
    assert_eq!(ring.submitted(6), Some(0));
    assert_eq!(
        oldest_in_flight(&ring),
        None,
        "all items are complete, so a slow last send is not the GPU's fault"
    );
}

#[test]
fn large_bursts_need_permission_for_shared_memory() {
    use loaded_function::{SharedMemory, fit_shared, shared_bytes};
    const KIB: u32 = 1 << 10;
    // Bytes of shared memory. `most` is the smallest limit for a block of any supported GPU. `declared` is
    // the most that a packet function can declare.
    let (most, declared) = (99 * KIB, 48 * KIB);
    assert_eq!(shared_bytes(1024, false), 16 * KIB);
    assert_eq!(shared_bytes(1024, true), 40 * KIB);
    assert_eq!(fit_shared(1024, true, 8 * KIB, most), Ok(SharedMemory::Usual));
    assert_eq!(
        fit_shared(1024, true, 8 * KIB + 1, most),
        Ok(SharedMemory::Allowed),
        "the launch's memory is aligned to 16"
    );
    for burst in [1, 64, inlane_core::ring::layout::MAX_BURST] {
        assert_eq!(fit_shared(burst, true, declared, most), Ok(SharedMemory::Allowed), "{burst} packets");
    }
    let refused = fit_shared(1024, true, declared, 64 * KIB).unwrap_err();
    assert!(refused.contains("need 90112 bytes") && refused.contains("can have 65536"), "{refused}");
    assert!(refused.ends_with("use burst=409 or less"), "{refused}");
    assert_eq!(
        fit_shared(409, true, declared, 64 * KIB),
        Ok(SharedMemory::Allowed),
        "the suggested burst fits"
    );
    assert!(fit_shared(410, true, declared, 64 * KIB).is_err());
    let hopeless = fit_shared(1, false, 64 * KIB, 64 * KIB).unwrap_err();
    assert!(hopeless.ends_with("declare less in the packet function"), "{hopeless}");
}

#[test]
fn memory_names_parse_to_what_they_print() {
    for memory in [Memory::Pinned, Memory::Gpu, Memory::Pool] {
        assert_eq!(memory.to_string().parse::<Memory>().unwrap(), memory);
    }
    assert!("fast".parse::<Memory>().is_err());
}

#[test]
fn every_wait_has_its_own_hardware_queue() {
    for method in [Method::Stream, Method::Graph] {
        for ticks in [false, true] {
            for lanes in 1..=16 {
                let settings = Settings { method, ..Settings::default() }.for_lanes(lanes, ticks).unwrap();
                let chains = if method == Method::Graph { settings.graph_branches_for() } else { 1 };
                let queues = lanes as usize * (settings.streams_for() * chains + ticks as usize);
                assert!(queues <= 32, "{method}: {queues} queues for {lanes} pipelines");
            }
            let alone = Settings { method, ..Settings::default() }.for_lanes(1, ticks).unwrap();
            assert_eq!(alone.streams_for(), Settings { method, ..Settings::default() }.streams_for());
        }
        let greedy = Settings { method, streams: 16, ..Settings::default() };
        assert!(greedy.for_lanes(1, false).is_ok());
        assert!(greedy.for_lanes(4, false).unwrap_err().to_string().contains("ask for fewer"));
        assert!(Settings { method, ..Settings::default() }.for_lanes(64, false).is_err());
    }
    let persistent = Settings { streams: 64, ..Settings::default() };
    assert!(persistent.for_lanes(64, true).is_ok(), "a persistent lane has no waits");
    assert_eq!(persistent.streams_for(), 1);
}

/// The state of a ring without a GPU. The items from `freed` to `submitted` (exclusive) are in flight.
#[derive(Debug)]
struct FakeRing {
    submitted: u64,
    freed: u64,
}

const SLOTS: u64 = 64;

impl RingView for FakeRing {
    fn slots(&self) -> u64 {
        SLOTS
    }

    fn freed(&self) -> u64 {
        self.freed
    }

    fn is_submitted(&self, position: u64) -> bool {
        // As in a real ring, the word of a slot keeps the lap of its item until the slot is reused.
        position < self.submitted && position + SLOTS >= self.submitted
    }
}

/// Submits items, frees items and posts kernels in random order. Checks these properties:
///
/// - Each item gets exactly one kernel.
/// - No wait is posted for a slot of the ring whose previous item is in flight.
/// - At the end, few waits are left for `release_waits`.
#[test]
fn every_item_is_posted_for_once() {
    let mut dice = 0x2545_f491_4f6c_dd1du64;
    let mut roll = |sides: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % sides
    };
    // The parameters of `PostingCursor::next`: the items of a stretch, the most stretches posted before their
    // submission, and the most items of one post. A stretch has one item in method `stream`, more in `graph`.
    for (stretch, ahead, most) in [(1, 8, SLOTS), (1, 1, SLOTS), (16, 2, 16), (16, 1, 16), (64, 1, 64)] {
        for published in 0..600 {
            // The average number of submissions and of frees between two calls of `PostingCursor::next`.
            let others = [1, 3, 100][published as usize % 3];
            let mut cursor = PostingCursor::default();
            let mut ring = FakeRing { submitted: 0, freed: 0 };
            let (mut worked, mut waits) = (0, 0);
            let mut rounds = 0;
            while ring.freed < published || cursor.posted < published {
                match roll(2 * others + 2) / others.max(1) {
                    0 => ring.submitted = (ring.submitted + roll(9)).min(ring.freed + SLOTS).min(published),
                    // An item is freed only after it was submitted and its kernel was posted. So both counts
                    // limit `freed`.
                    1 => ring.freed = (ring.freed + roll(9)).min(ring.submitted.min(cursor.posted)),
                    _ => match cursor.next(&ring, stretch, ahead, most) {
                        NextPost::Nothing => {}
                        NextPost::Kernels(items) => {
                            assert!(items % stretch == 0 && items <= most);
                            assert!(
                                cursor.posted + items <= ring.submitted,
                                "kernels for items that were not submitted"
                            );
                            (cursor.posted, worked) = (cursor.posted + items, worked + items);
                        }
                        NextPost::Waits => {
                            assert!(
                                cursor.posted + stretch <= ring.freed + SLOTS,
                                "a wait for a slot whose previous item is in flight"
                            );
                            (cursor.posted, waits) = (cursor.posted + stretch, waits + stretch);
                        }
                    },
                }
                rounds += 1;
                assert!(rounds < 1_000_000, "no progress: {published} items, {ring:?}, {cursor:?}");
            }
            assert_eq!(worked + waits, cursor.posted);
            assert!(cursor.posted < published + (ahead + 1) * stretch, "{cursor:?}");
        }
    }
}

#[test]
fn waiting_for_the_competing_job_ends() {
    use competing_kernel::{LaunchEnd, wait_for_end};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};
    let (stop, running) = (AtomicBool::new(true), AtomicBool::new(false));
    let (long, short) = (Duration::from_secs(3600), Duration::from_millis(20));
    // A launch that never ends. The wait ends when the GPU is abandoned or the time limit passes.
    let asked = AtomicBool::new(false);
    let never = || {
        asked.store(true, Ordering::Relaxed);
        Ok(false)
    };
    assert_eq!(wait_for_end(never, || true, &running, long).unwrap(), LaunchEnd::Abandoned);
    assert!(!asked.load(Ordering::Relaxed), "the driver of an abandoned GPU is not called");
    let begun = Instant::now();
    let meanwhile = || begun.elapsed() > short;
    assert_eq!(wait_for_end(never, meanwhile, &running, long).unwrap(), LaunchEnd::Abandoned);
    let begun = Instant::now();
    assert_eq!(wait_for_end(never, || false, &stop, short).unwrap(), LaunchEnd::Late);
    assert!(begun.elapsed() >= short);
    // This launch takes three times the time limit. The limit counts only after a stop was ordered. No stop
    // was ordered here, so the launch is not late.
    let begun = Instant::now();
    let slow = || Ok(begun.elapsed() > 3 * short);
    assert_eq!(wait_for_end(slow, || false, &running, short).unwrap(), LaunchEnd::Done);
    let faulty = || Err(Error::Competitor("a fault".into()));
    assert!(wait_for_end(faulty, || false, &running, long).is_err());
}

#[test]
fn the_watchdog_runs_until_the_thread_that_moves_packets_ends() {
    use crate::control::Control;
    use crate::pipeline::{PipelineContext, Tally};
    use inlane_core::clock::Clock;
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;
    let (meters, clock) = ([std::sync::Arc::default()], Clock::new());
    let started = |control: &Control, moving: fn(&Control) -> Tally, stuck: bool| {
        let context = PipelineContext::new(control, &meters, &clock, 0, &[]);
        let feeding = None::<fn() -> crate::error::Result<()>>;
        let watching = |ended: &std::sync::mpsc::Receiver<()>| {
            if !stuck {
                assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected));
                return Ok(());
            }
            control.abort();
            Err(Error::Stuck { function: "slow".into(), item: 0, seconds: 2.0 })
        };
        run::on_threads(|| moving(control), feeding, watching, &context).errors
    };
    // Simulates a thread that is blocked in a port: returns only when the run is aborted.
    let blocked_in_a_port = |control: &Control| {
        while !control.aborting() {
            std::thread::yield_now();
        }
        Tally::default()
    };
    let errors = started(&Control::default(), blocked_in_a_port, true);
    assert!(matches!(errors[..], [Error::Stuck { .. }]));
    assert!(started(&Control::default(), |_| Tally::default(), false).is_empty());
    let errors = started(&Control::default(), |_| panic!("a port panics"), false);
    assert!(matches!(errors[..], [Error::Panicked { .. }]));
}
