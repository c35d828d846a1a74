//! Tests of transfers between GPUs: sizes and alignments, movers dropped with transfers in flight, pauses,
//! both directions at once, kernels that trap, and a GPU that does not answer. On a machine with one GPU,
//! that GPU is both endpoints. Without a GPU, each test prints that it is skipped.

use inlane_copy::open_path;
use inlane_copy::{Device, Path, PathOptions, open};
use inlane_core::mover::{Mover, Ticket};
use inlane_core::{CompletionMode, Location, Region};
use inlane_cuda::{CopyEngine, Gpu, MemoryOperation, WaitUntil};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an operation that must not block may take on a busy machine.
const HANG: Duration = Duration::from_secs(60);

fn devices(test: &str) -> Option<[Arc<Device>; 2]> {
    let count = match inlane_cuda::device_count() {
        Ok(count) if count > 0 => count,
        Ok(_) => return skip(test, "no GPU"),
        Err(error) => return skip(test, &error.to_string()),
    };
    let ends = ["gpu:0", if count > 1 { "gpu:1" } else { "gpu:0" }].map(|end| end.parse().unwrap());
    let opened = open(&ends, &Default::default()).unwrap();
    Some([opened[0].clone(), opened[1].clone()])
}

fn skip<T>(test: &str, why: &str) -> Option<T> {
    eprintln!("SKIPPED {test}: {why}");
    None
}

fn staged_sm(from: &Arc<Device>, to: &Arc<Device>, resident: bool) -> Box<dyn Mover> {
    let options = PathOptions { resident, ..PathOptions::default() };
    open_path(Path::StagedSm, from, to, &options).unwrap()
}

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// Makes transfers of odd sizes at odd addresses, several in flight, in every completion mode. The bytes
/// around the destinations must stay unchanged.
#[test]
fn every_size_and_alignment_arrives_and_nothing_else_changes() {
    let Some([from, to]) = devices("every_size_and_alignment_arrives_and_nothing_else_changes") else {
        return;
    };
    const SPAN: usize = 4 << 20;
    let (source, destination) = (from.allocate(SPAN).unwrap(), to.allocate(SPAN).unwrap());
    from.fill(&source, 3).unwrap();
    let (from_gpu, to_gpu) = (from.gpu().unwrap(), to.gpu().unwrap());
    let sent = from_gpu.read(&source).unwrap();
    for resident in [true, false] {
        let mut mover = staged_sm(&from, &to, resident);
        let mut numbers = Numbers(7);
        for round in 0..200 {
            to.poison(&destination).unwrap();
            let mut expected = vec![inlane_copy::device::POISON; SPAN];
            let mut ticket = Ticket(0);
            // Each of the four transfers in flight writes to its own quarter of the destination.
            for part in 0..4 {
                let bound = [40, 5_000, 300_000, SPAN / 4 - 64][numbers.below(4)];
                let (length, at) = (1 + numbers.below(bound), part * SPAN / 4 + numbers.below(17));
                let take = numbers.below(SPAN - length);
                ticket = mover
                    .submit(&source.slice(take, length).unwrap(), &destination.slice(at, length).unwrap())
                    .unwrap();
                expected[at..at + length].copy_from_slice(&sent[take..take + length]);
            }
            let how = [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive][round % 3];
            mover.wait(ticket, how).unwrap();
            mover.quiesce().unwrap();
            let arrived = to_gpu.read(&destination).unwrap();
            if let Some(wrong) = (0..SPAN).find(|&at| arrived[at] != expected[at]) {
                panic!("resident {resident}, round {round}: byte {wrong} differs");
            }
        }
    }
}

#[test]
fn a_mover_dropped_at_any_point_leaves_nothing_behind() {
    let Some([from, to]) = devices("a_mover_dropped_at_any_point_leaves_nothing_behind") else { return };
    let gpu = from.gpu().unwrap().clone();
    let size = 1 << 20;
    let (source, destination) = (from.allocate(size).unwrap(), to.allocate(size).unwrap());
    drop(staged_sm(&from, &to, true));
    let (free, _) = gpu.memory().unwrap();
    let mut numbers = Numbers(11);
    let began = Instant::now();
    for round in 0..60 {
        from.fill(&source, round).unwrap();
        let mut mover = staged_sm(&from, &to, round % 2 == 0);
        for _ in 0..numbers.below(20) {
            mover.submit(&source, &destination).unwrap();
        }
        let spin = Instant::now();
        while spin.elapsed() < Duration::from_micros(numbers.below(300) as u64) {}
        drop(mover);
    }
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    assert_eq!(gpu.memory().unwrap().0, free);
}

/// Pauses for longer than 10 s and for longer than 30 s. A timer ends idle kernels after 10 s. Without the
/// timer, kernels would end by themselves after 30 s. After each pause, a transfer launches the kernels
/// again.
#[test]
fn a_resident_path_works_after_a_long_pause() {
    let Some([from, to]) = devices("a_resident_path_works_after_a_long_pause") else { return };
    let size = 1 << 20;
    let (source, destination) = (from.allocate(size).unwrap(), to.allocate(size).unwrap());
    let mut mover = staged_sm(&from, &to, true);
    for pause in [Duration::from_secs(12), Duration::from_secs(32), Duration::ZERO] {
        let seed = 100 + pause.as_secs();
        from.fill(&source, seed).unwrap();
        to.poison(&destination).unwrap();
        let ticket = mover.submit(&source, &destination).unwrap();
        mover.wait(ticket, CompletionMode::Poll).unwrap();
        if !pause.is_zero() {
            std::thread::sleep(pause);
            // An allocation waits for running kernels. A quick allocation shows that the timer has ended the
            // kernels. Without the timer they run for 30 s, so the allocation would take another 18 s.
            let began = Instant::now();
            drop(to.allocate(64 << 20).unwrap());
            assert!(began.elapsed() < Duration::from_secs(15), "kernels still run: {:?}", began.elapsed());
        }
        assert_eq!(to.count_wrong(&destination, seed).unwrap(), 0);
    }
    mover.quiesce().unwrap();
}

#[test]
fn both_directions_end_every_time() {
    let Some([from, to]) = devices("both_directions_end_every_time") else { return };
    let size = 2 << 20;
    let memory: Vec<[Region; 2]> = [(&from, &to), (&to, &from)]
        .map(|(a, b)| [a.allocate(size).unwrap(), b.allocate(size).unwrap()])
        .into();
    let began = Instant::now();
    for round in 0..100u64 {
        for ([source, destination], (a, b)) in memory.iter().zip([(&from, &to), (&to, &from)]) {
            a.fill(source, round).unwrap();
            b.poison(destination).unwrap();
        }
        let resident = round % 4 != 3;
        let mut ways = [staged_sm(&from, &to, resident), staged_sm(&to, &from, resident)];
        std::thread::scope(|scope| {
            for (mover, [source, destination]) in ways.iter_mut().zip(&memory) {
                scope.spawn(move || {
                    let mut last = Ticket(0);
                    for turn in 0..200 {
                        // Small transfers are sent as lines, large ones as chunks. The 200 transfers use each
                        // slot of both rings, for lines and for chunks, several times.
                        let length = [4096, 65_536, 300_000, size][turn % 4];
                        let pair = [source, destination].map(|region| region.slice(0, length).unwrap());
                        last = mover.submit(&pair[0], &pair[1]).unwrap();
                    }
                    mover.wait(last, CompletionMode::Poll).unwrap();
                    mover.quiesce().unwrap();
                });
            }
        });
        for ([_, destination], b) in memory.iter().zip([&to, &from]) {
            assert_eq!(b.count_wrong(destination, round).unwrap(), 0, "round {round}");
        }
    }
    eprintln!("100 rounds of both directions in {:?}", began.elapsed());
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
}

/// Runs the ignored test `name` of this file in a process of its own. Returns the process's output and its
/// duration.
fn child(name: &str) -> (std::process::Output, Duration) {
    let began = Instant::now();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads", "1"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output, began.elapsed())
}

/// Runs test `name`, which makes a GPU fail, in its own process. That test must succeed within `most`, and
/// the next process must be able to use the GPU.
fn child_that_breaks_something(name: &str, most: Duration) {
    let (output, took) = child(name);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {text}");
    assert!(took < most, "{name}: {took:?}");
    eprintln!("{name}, {took:?}: {}", text.lines().find(|line| line.contains("error:")).unwrap_or_default());
    let (output, _) = child("one_transfer_works");
    assert!(output.status.success(), "after {name}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_kernel_that_traps_is_a_clear_error_and_the_next_process_works() {
    if let Err(error) = inlane_cuda::device_count() {
        skip::<()>("a_kernel_that_traps_is_a_clear_error_and_the_next_process_works", &error.to_string());
        return;
    }
    for name in [
        "trap_in_push",
        "trap_in_pull",
        "trap_in_push_launched",
        "trap_while_waiting_for_an_interrupt",
        "trap_in_sm",
        "trap_beside_dma",
        "trap_beside_staged_at_its_source",
        "trap_beside_staged_at_its_destination",
        "trap_beside_staged_while_waiting_for_an_interrupt",
    ] {
        child_that_breaks_something(name, Duration::from_secs(20));
    }
}

#[test]
fn a_gpu_that_does_not_answer_is_given_up() {
    if let Err(error) = inlane_cuda::device_count() {
        skip::<()>("a_gpu_that_does_not_answer_is_given_up", &error.to_string());
        return;
    }
    for name in
        ["stuck_and_polled", "stuck_and_waiting_for_an_interrupt", "stuck_and_adaptive", "stuck_and_dropped"]
    {
        child_that_breaks_something(name, Duration::from_secs(25));
    }
}

/// Returns a region with an address at which there is no memory. A kernel that accesses the region traps.
fn nowhere(device: &Device, size: usize) -> Region {
    let index = device.gpu().unwrap().index();
    // SAFETY: only GPU kernels access the address, and the test expects their trap.
    unsafe { Region::from_raw(0x1000, size, Location::Gpu(index), Arc::new(())) }
}

/// Ends the process as `inlane` does: skips the CUDA library's exit handlers if a GPU was abandoned. Those
/// handlers would wait for that GPU.
fn leave() {
    if inlane_cuda::any_abandoned() {
        // SAFETY: `_exit` ends the process at once and runs no exit handler.
        unsafe { libc::_exit(0) }
    }
}

fn trap(push: bool, resident: bool, completion: CompletionMode) {
    let Some([from, to]) = devices("trap") else { return };
    let size = 1 << 20;
    let (source, destination) = (from.allocate(size).unwrap(), to.allocate(size).unwrap());
    let mut mover = staged_sm(&from, &to, resident);
    let ticket = mover.submit(&source, &destination).unwrap();
    mover.wait(ticket, CompletionMode::Poll).unwrap();
    let bad = match push {
        true => mover.submit(&nowhere(&from, size), &destination),
        false => mover.submit(&source, &nowhere(&to, size)),
    };
    let error = bad.and_then(|ticket| mover.wait(ticket, completion)).unwrap_err();
    eprintln!("error: {error}");
    let text = error.to_string();
    assert!(text.contains("ILLEGAL_ADDRESS") && text.contains("gpu:"), "{text}");
    assert!(mover.submit(&source, &destination).is_err(), "the mover accepts no transfer after the error");
    let began = Instant::now();
    drop(mover);
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
}

#[test]
#[ignore = "a kernel traps, so a test above runs it in a process of its own"]
fn trap_in_push() {
    trap(true, true, CompletionMode::Poll);
}

#[test]
#[ignore = "as above"]
fn trap_in_pull() {
    trap(false, true, CompletionMode::Adaptive);
}

#[test]
#[ignore = "as above"]
fn trap_in_push_launched() {
    trap(true, false, CompletionMode::Poll);
}

#[test]
#[ignore = "as above"]
fn trap_while_waiting_for_an_interrupt() {
    trap(true, true, CompletionMode::Interrupt);
}

fn pinned(gpu: &Arc<Gpu>, size: usize) -> Region {
    gpu.pinned(size).unwrap()
}

/// A mover, a source, and a destination without memory. Copying to this destination makes the mover's kernel
/// trap.
struct Trap(Box<dyn Mover>, Region, Region);

impl Trap {
    fn on(device: &Arc<Device>) -> Self {
        let ends = ["host".parse().unwrap(), device.endpoint().clone()];
        let host = open(&ends, &Default::default()).unwrap().remove(0);
        let mut mover = open_path(Path::Sm, &host, device, &PathOptions::default()).unwrap();
        let source = pinned(device.gpu().unwrap(), 4096);
        // Launch a kernel now, because the first launch loads code. Later, loading would wait for the
        // test's transfers.
        let ticket = mover.submit(&source, &device.allocate(4096).unwrap()).unwrap();
        mover.wait(ticket, CompletionMode::Poll).unwrap();
        Self(mover, source, nowhere(device, 4096))
    }

    fn spring(&mut self) -> inlane_core::Result<Ticket> {
        self.0.submit(&self.1, &self.2)
    }
}

/// Checks copies on a GPU on which another kernel traps. The copies must fail soon with the GPU's error, and
/// dropping their mover must not block forever. Copies already in flight may still complete.
fn expect_failure(
    mut mover: Box<dyn Mover>,
    mut ticket: inlane_core::Result<Ticket>,
    completion: CompletionMode,
    [source, destination]: [&Region; 2],
) {
    let began = Instant::now();
    let error = loop {
        match ticket.and_then(|ticket| mover.wait(ticket, completion)) {
            Err(error) => break error,
            Ok(()) => ticket = mover.submit(source, destination),
        }
        assert!(began.elapsed() < HANG, "copies still succeed after the trap");
    };
    eprintln!("error: {error} (after {:?})", began.elapsed());
    let text = error.to_string();
    assert!(text.contains("ILLEGAL_ADDRESS") && text.contains("gpu:"), "{text}");
    drop(mover);
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
}

#[test]
#[ignore = "as above"]
fn trap_in_sm() {
    let Some([device, _]) = devices("trap_in_sm") else { return };
    let mut trap = Trap::on(&device);
    let ticket = trap.spring();
    let Trap(mover, source, nowhere) = trap;
    expect_failure(mover, ticket, CompletionMode::Poll, [&source, &nowhere]);
    leave();
}

#[test]
#[ignore = "as above"]
fn trap_beside_dma() {
    let Some([device, _]) = devices("trap_beside_dma") else { return };
    let size = 64 << 20;
    let (source, destination) = (pinned(device.gpu().unwrap(), size), device.allocate(size).unwrap());
    let mut trap = Trap::on(&device);
    let mut engine = CopyEngine::new(device.gpu().unwrap()).unwrap();
    // These copies take tens of milliseconds in all. So some of them are in flight when the kernel traps.
    let tickets: Vec<_> = (0..64).map(|_| engine.submit(&source, &destination)).collect();
    let _ = trap.spring();
    expect_failure(
        Box::new(engine),
        tickets.into_iter().next_back().unwrap(),
        CompletionMode::Interrupt,
        [&source, &destination],
    );
    drop((trap, source, destination));
    leave();
}

fn trap_beside_staged(at_source: bool, completion: CompletionMode) {
    let Some([from, to]) = devices("trap_beside_staged") else { return };
    let size = 64 << 20;
    let (source, destination) = (from.allocate(size).unwrap(), to.allocate(size).unwrap());
    let mut trap = Trap::on(if at_source { &from } else { &to });
    let mut staged = open_path(Path::Staged, &from, &to, &PathOptions::default()).unwrap();
    let tickets: Vec<_> = (0..32).map(|_| staged.submit(&source, &destination)).collect();
    let _ = trap.spring();
    expect_failure(staged, tickets.into_iter().next_back().unwrap(), completion, [&source, &destination]);
    drop((trap, source, destination));
    leave();
}

#[test]
#[ignore = "as above"]
fn trap_beside_staged_at_its_source() {
    trap_beside_staged(true, CompletionMode::Poll);
}

#[test]
#[ignore = "as above"]
fn trap_beside_staged_at_its_destination() {
    trap_beside_staged(false, CompletionMode::Adaptive);
}

#[test]
#[ignore = "as above"]
fn trap_beside_staged_while_waiting_for_an_interrupt() {
    trap_beside_staged(true, CompletionMode::Interrupt);
}

/// Queues a copy behind a wait for a word that nobody writes, so the copy never completes. Waits for the copy
/// in the mode `completion`, then drops the mover. With `None`, only drops the mover. In both cases, the GPU
/// must be marked as abandoned, and nothing may hang.
fn stuck(completion: Option<CompletionMode>) {
    let Some([device, _]) = devices("stuck") else { return };
    let gpu = device.gpu().unwrap();
    let size = 1 << 20;
    let (source, destination, word) = (pinned(gpu, size), device.allocate(size).unwrap(), pinned(gpu, 8));
    let mut engine = CopyEngine::new(gpu).unwrap();
    let never = MemoryOperation::Wait { address: word.address(), value: 1, until: WaitUntil::Equal };
    // SAFETY: the GPU will be abandoned, and the memory of an abandoned GPU is never freed. So the word stays
    // allocated.
    unsafe { engine.stream().memory_operations(&[never]).unwrap() };
    let ticket = engine.submit(&source, &destination).unwrap();
    if let Some(completion) = completion {
        engine.set_timeout(Duration::from_secs(2));
        let began = Instant::now();
        let error = engine.wait(ticket, completion).unwrap_err().to_string();
        eprintln!("error: {error} (after {:?})", began.elapsed());
        assert!(error.contains("has not completed in 2s") && error.contains("gpu:"), "{error}");
        assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
        let again = engine.wait(ticket, completion).unwrap_err().to_string();
        assert!(again.contains("was abandoned"), "{again}");
    }
    let began = Instant::now();
    drop(engine);
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    let began = Instant::now();
    assert!(inlane_cuda::any_abandoned());
    let error = device.fill(&destination, 1).unwrap_err().to_string();
    assert!(error.contains("was abandoned"), "{error}");
    drop((source, destination, word));
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    leave();
}

#[test]
#[ignore = "as above"]
fn stuck_and_polled() {
    stuck(Some(CompletionMode::Poll));
}

#[test]
#[ignore = "as above"]
fn stuck_and_waiting_for_an_interrupt() {
    stuck(Some(CompletionMode::Interrupt));
}

#[test]
#[ignore = "as above"]
fn stuck_and_adaptive() {
    stuck(Some(CompletionMode::Adaptive));
}

#[test]
#[ignore = "as above"]
fn stuck_and_dropped() {
    stuck(None);
}

#[test]
#[ignore = "a test above runs it in a process of its own after a fault"]
fn one_transfer_works() {
    let Some([from, to]) = devices("one_transfer_works") else { return };
    let size = 3 << 20;
    let (source, destination) = (from.allocate(size).unwrap(), to.allocate(size).unwrap());
    from.fill(&source, 5).unwrap();
    let mut mover = staged_sm(&from, &to, true);
    let ticket = mover.submit(&source, &destination).unwrap();
    mover.wait(ticket, CompletionMode::Adaptive).unwrap();
    mover.quiesce().unwrap();
    assert_eq!(to.count_wrong(&destination, 5).unwrap(), 0);
}

/// Copies by every path of a GPU as loads, two at a time. Each pair starts together, stops at once, and its bytes are right.
#[test]
fn loads_run_beside_each_other() {
    use inlane_copy::{CopyLoad, CopyLoadConfig, PathChoice};
    use inlane_core::load::{Load, Running, prepare, run_together};
    let Some([one, two]) = devices("loads_run_beside_each_other") else { return };
    let [one, two] = [&one, &two].map(|device| device.endpoint().clone());
    let host: inlane_copy::Endpoint = "host".parse().unwrap();
    for (from, to) in [(&host, &one), (&one, &host), (&one, &two)] {
        for path in Path::candidates(from, to) {
            let config = CopyLoadConfig {
                choice: PathChoice::Require(path),
                rotate: 32 << 20,
                ..CopyLoadConfig::new(from.clone(), to.clone(), 1 << 20)
            };
            let back = CopyLoadConfig { from: to.clone(), to: from.clone(), ..config.clone() };
            let (forth, back) = (CopyLoad::open(config), CopyLoad::open(back));
            let (Ok(mut forth), Ok(mut back)) = (forth, back) else {
                eprintln!("SKIPPED loads_run_beside_each_other: {path} is unavailable");
                continue;
            };
            let loads: &mut [&mut dyn Load] = &mut [&mut forth, &mut back];
            let prepared = prepare(loads, || Ok::<(), ()>(())).unwrap();
            assert!(prepared.iter().all(Result::is_ok), "{path}: {prepared:?}");
            let run = Running::new(2);
            let mut stopped = None;
            let outcomes = run_together(loads, &run, |_| {
                let time = Duration::from_millis(300);
                if run.start.started().is_some_and(|started| started.elapsed() >= time) && stopped.is_none() {
                    run.stop();
                    stopped = Some(Instant::now());
                }
                Duration::from_millis(10)
            });
            assert!(stopped.unwrap().elapsed() < Duration::from_millis(500), "{path} stops late");
            assert!(outcomes.iter().all(Result::is_ok), "{path}: {outcomes:?}");
            for load in [&forth, &back] {
                let found = load.verification();
                assert!(found.verified_bytes >= 1 << 20 && found.altered_bytes == 0, "{path}: {found:?}");
            }
        }
    }
}
