//! Tests waits for copies on GPUs that are slow, hang or fail. A stub replaces the CUDA driver, and hangs
//! where the driver would hang. Each test runs in its own process, because a process cannot use a GPU again
//! after it has abandoned it.

use inlane_core::mover::{Mover, Ticket};
use inlane_core::{CompletionMode, Region, Result};
use inlane_cuda::{CopyEngine, Gpu, PendingCopies, Stream, any_abandoned, drain, finish};
use std::ffi::c_void;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an operation that must not block may take on a busy machine.
const HANG: Duration = Duration::from_secs(60);

const ALL: [CompletionMode; 3] = [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive];

/// Builds the stub of the driver. Returns a directory with its `libcuda.so.1`, or `None` if there is no C
/// compiler.
fn stub() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/driver.c");
    let library = folder.path().join("libcuda.so.1");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED waits: no C compiler to build the stub of the driver");
        return None;
    }
    std::os::unix::fs::symlink(&library, folder.path().join("libcuda.so")).unwrap();
    Some(folder)
}

/// Runs one of the ignored tests below in a child process. The child loads the stub instead of the CUDA
/// driver. Fails unless the test passes within `most`.
fn runs(folder: &Path, name: &str, most: Duration) {
    let began = Instant::now();
    let output = folder.join("output");
    let file = std::fs::File::create(&output).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads", "1"])
        .env("LD_LIBRARY_PATH", folder)
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > most {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = std::fs::read_to_string(output).unwrap();
    assert!(status.success() && text.contains("1 passed"), "{name}, {:?}: {text}", began.elapsed());
}

#[test]
fn every_wait_ends() {
    let Some(folder) = stub() else { return };
    for name in ["slow", "hangs_polled", "hangs_asleep", "hangs_adaptive", "hangs_unawaited"] {
        runs(folder.path(), name, Duration::from_secs(60));
    }
    for name in [
        "a_failed_copy_gives_its_error",
        "another_fails_polled",
        "another_fails_asleep",
        "another_fails_adaptive",
        "another_fails_unawaited",
    ] {
        runs(folder.path(), name, Duration::from_secs(60));
    }
}

/// A stream of the stub driver. The test decides which copies of the stream complete or fail, and when.
#[derive(Clone, Copy)]
struct ScriptedStream(usize);

impl ScriptedStream {
    fn of(stream: &Stream) -> Self {
        Self(stream.raw() as usize)
    }

    fn call(self, name: &str, number: i32) {
        // SAFETY: the stub is already loaded, so opening it again does not run its initializers. Each
        // function takes a stream and a number, or only a stream. A function without the number ignores it.
        unsafe {
            let library = libloading::Library::new("libcuda.so.1").unwrap();
            let function: libloading::Symbol<unsafe extern "C" fn(*mut c_void, i32)> =
                library.get(name.as_bytes()).unwrap();
            function(self.0 as *mut c_void, number);
        }
    }

    /// Lets the first `copies` copies of this stream complete. Later copies stay in flight.
    fn allow(self, copies: i32) {
        self.call("stub_allow", copies);
    }

    fn fail(self) {
        self.call("stub_fail", 0);
    }

    /// Calls `act` on another thread after a delay. Returns that thread.
    fn later(self, after: Duration, act: impl FnOnce(Self) + Send + 'static) -> JoinHandle<()> {
        std::thread::spawn(move || {
            std::thread::sleep(after);
            act(self);
        })
    }
}

fn engine() -> (CopyEngine, Region, Region) {
    let gpu = Gpu::open(0).unwrap();
    let memory = (gpu.pinned(64).unwrap(), gpu.allocate(64).unwrap());
    (CopyEngine::new(&gpu).unwrap(), memory.0, memory.1)
}

#[test]
#[ignore = "run by the test above with the stub"]
fn slow() {
    let (mut engine, source, destination) = engine();
    let script = ScriptedStream::of(engine.stream());
    for round in 0..60 {
        // The copy completes before the wait begins, or 2 ms or 400 ms after the wait has begun. In 400 ms, a
        // sleeping wait also checks the other streams once.
        let late =
            Duration::from_millis([0, 2, 400][usize::from(round % 5 == 0) + usize::from(round % 15 == 0)]);
        script.allow(if late.is_zero() { round + 1 } else { round });
        let ticket = engine.submit(&source, &destination).unwrap();
        let before = if late.is_zero() { ticket } else { Ticket(round as u64) };
        assert_eq!(engine.done().unwrap(), before);
        let began = Instant::now();
        let allowing = script.later(late, move |script| script.allow(round + 1));
        engine.wait(ticket, ALL[round as usize % 3]).unwrap();
        assert!(began.elapsed() + Duration::from_millis(1) >= late.min(Duration::from_millis(400)));
        assert_eq!(engine.done().unwrap(), ticket);
        // Wait until this round's call of `allow` has set the number of copies that may complete. A late call
        // would lower the number that the next round sets.
        allowing.join().unwrap();
    }
    // The wait takes 4 s, longer than the timeout. It succeeds, because a copy completes every second.
    engine.set_timeout(Duration::from_secs(3));
    script.allow(60);
    let last = (0..4).map(|_| engine.submit(&source, &destination).unwrap()).next_back().unwrap();
    for copy in 1..5 {
        script.later(Duration::from_secs(1) * copy, move |script| script.allow(60 + copy as i32));
    }
    engine.wait(last, CompletionMode::Interrupt).unwrap();
    assert_eq!(engine.done().unwrap(), last);
    assert!(engine.wait(Ticket(999), CompletionMode::Interrupt).is_err());
    assert!(!any_abandoned());
}

/// Checks that waits, drops and frees return at once after a GPU was abandoned. A call of the stub driver
/// would never return.
fn nothing_waits_any_more(engine: CopyEngine, ticket: Ticket, memory: [Region; 2]) {
    let mut engine = engine;
    assert!(any_abandoned());
    let began = Instant::now();
    for completion in ALL {
        let again = engine.wait(ticket, completion).unwrap_err().to_string();
        assert!(again.contains("was abandoned"), "{again}");
    }
    assert!(finish(engine.stream()).unwrap_err().to_string().contains("was abandoned"));
    assert!(Gpu::open(1).is_err(), "no other GPU is opened");
    drop(engine);
    drop(memory);
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
}

fn hangs(completion: CompletionMode) {
    let (mut engine, source, destination) = engine();
    engine.set_timeout(Duration::from_millis(700));
    let script = ScriptedStream::of(engine.stream());
    script.allow(1);
    let first = engine.submit(&source, &destination).unwrap();
    let second = engine.submit(&source, &destination).unwrap();
    engine.wait(first, completion).unwrap();
    let began = Instant::now();
    let error = engine.wait(second, completion).unwrap_err().to_string();
    assert!(error.contains("copy 2 of 2 has not completed in 700ms") && error.contains("gpu:0"), "{error}");
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    nothing_waits_any_more(engine, second, [source, destination]);
}

#[test]
#[ignore = "as above"]
fn hangs_polled() {
    hangs(CompletionMode::Poll);
}

#[test]
#[ignore = "as above"]
fn hangs_asleep() {
    hangs(CompletionMode::Interrupt);
}

#[test]
#[ignore = "as above"]
fn hangs_adaptive() {
    hangs(CompletionMode::Adaptive);
}

#[test]
#[ignore = "as above"]
fn hangs_unawaited() {
    let (mut engine, source, destination) = engine();
    ScriptedStream::of(engine.stream()).allow(0);
    engine.submit(&source, &destination).unwrap();
    let began = Instant::now();
    drop(engine);
    assert!(began.elapsed() >= Duration::from_secs(10) && began.elapsed() < HANG, "{:?}", began.elapsed());
    assert!(any_abandoned());
    drop((source, destination));
}

/// Waiting for a failed copy returns its error at once. No GPU is abandoned (`Gpu::abandon`), because the
/// driver still answers.
#[test]
#[ignore = "as above"]
fn a_failed_copy_gives_its_error() {
    for completion in ALL {
        let (mut engine, source, destination) = engine();
        let script = ScriptedStream::of(engine.stream());
        script.allow(0);
        let ticket = engine.submit(&source, &destination).unwrap();
        script.later(Duration::from_millis(100), ScriptedStream::fail);
        let error = engine.wait(ticket, completion).unwrap_err().to_string();
        assert!(error.contains("ILLEGAL_ADDRESS") && error.contains("gpu:0"), "{error}");
        assert!(engine.wait(ticket, completion).unwrap_err().to_string().contains("ILLEGAL_ADDRESS"));
        assert!(engine.submit(&source, &destination).is_err());
        assert!(!any_abandoned());
    }
}

/// Waits for a copy whose stream waits for a failing stream of another GPU. The wait returns that stream's
/// error before the timeout.
fn another_fails(completion: CompletionMode) {
    let (from, to) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
    let (out, into) = (from.stream().unwrap(), to.stream().unwrap());
    let memory = [from.allocate(64).unwrap(), to.allocate(64).unwrap()];
    let mut pending = PendingCopies::new();
    ScriptedStream::of(&out).allow(0);
    ScriptedStream::of(&into).allow(0);
    let ticket = pending.push(&into, memory.clone()).unwrap();
    ScriptedStream::of(&out).later(Duration::from_millis(100), ScriptedStream::fail);
    let began = Instant::now();
    let outcome: Result<()> =
        pending.wait(&|| "staging".into(), ticket, completion, std::slice::from_ref(&out));
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("ILLEGAL_ADDRESS") && error.contains("gpu:0"), "{error}");
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    // The copy's stream never ends, because it waits for the failed stream. If the GPUs were not both
    // abandoned, the drop below would block.
    assert!(from.is_abandoned() && to.is_abandoned());
    drop((pending, memory, out, into));
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
}

/// Drains two streams that nothing has waited for: one has failed, and one never ends. `drain` must return in
/// time, and a GPU must be abandoned.
#[test]
#[ignore = "as above"]
fn another_fails_unawaited() {
    let (from, to) = (Gpu::open(0).unwrap(), Gpu::open(1).unwrap());
    let streams = [from.stream().unwrap(), to.stream().unwrap()];
    let mut pending = PendingCopies::new();
    let memory = [from.allocate(64).unwrap(), to.allocate(64).unwrap()];
    ScriptedStream::of(&streams[1]).allow(0);
    pending.push(&streams[1], memory.clone()).unwrap();
    ScriptedStream::of(&streams[0]).fail();
    let began = Instant::now();
    drain(&[&streams[1], &streams[0]]);
    drop((pending, memory, streams));
    assert!(any_abandoned() && began.elapsed() < HANG, "{:?}", began.elapsed());
}

#[test]
#[ignore = "as above"]
fn another_fails_polled() {
    another_fails(CompletionMode::Poll);
}

#[test]
#[ignore = "as above"]
fn another_fails_asleep() {
    another_fails(CompletionMode::Interrupt);
}

#[test]
#[ignore = "as above"]
fn another_fails_adaptive() {
    another_fails(CompletionMode::Adaptive);
}
