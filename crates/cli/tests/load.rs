//! Tests `inlane forward --load`, which measures the latency at shares of the highest rate without loss. The
//! test has its own file, because cargo runs test files one after the other. Its trials need two idle
//! processors.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The number of threads in a trial that need a processor of their own: one thread forwards packets, the
/// other ends the trial on time.
const THREADS: usize = 2;

/// Keeps [`THREADS`] threads busy for a second. Returns the smallest share of a processor that one thread
/// got: 1 on an idle machine.
fn share_of_a_processor() -> f64 {
    let spin = || {
        let used = || {
            // SAFETY: the clock exists for every thread, and `time` has the type that the call writes.
            let time = unsafe {
                let mut time: libc::timespec = std::mem::zeroed();
                libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
                time
            };
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let (begun, before) = (Instant::now(), used());
        while begun.elapsed() < Duration::from_secs(1) {
            std::hint::spin_loop();
        }
        (used() - before).as_secs_f64() / begun.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(spin)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(1.0, f64::min)
    })
}

#[test]
fn latency_is_measured_and_drawn_against_load() {
    let skip = |why: String| eprintln!("SKIPPED latency_is_measured_and_drawn_against_load: {why}");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < THREADS {
        return skip(format!("it needs {THREADS} processors, and there is {processors}"));
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let run = || {
        Command::new(env!("CARGO_BIN_EXE_inlane"))
            .args(["forward", "--rx", "gen:64", "--tx", "check", "--duration", "100ms", "--load=20,50"])
            .args(["--sweep", "burst=16,64", "--json"])
            .arg(at("r.json"))
            .arg("--svg")
            .arg(at("r.svg"))
            .stdin(Stdio::null())
            .output()
            .expect("the binary runs")
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let none_passed =
        |output: &Output| output.status.code() == Some(1) && said(output).contains("no rate passed");
    let mut output = run();
    if none_passed(&output) {
        let share = share_of_a_processor();
        if share < 0.9 {
            let of = format!("{:.0} % of one", 100.0 * share);
            return skip(format!(
                "it needs {THREADS} processors, and others are busy on them: a thread got {of}"
            ));
        }
        // No rate passed although processors are idle now. The jobs that disturbed the run may have ended, so
        // try once more.
        output = run();
    }
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(at("r.json")).unwrap()).unwrap();
    let results = document["results"].as_array().unwrap();
    let offered = |result: &serde_json::Value| -> f64 {
        result["parameters"]["offered_packets_per_second"].as_f64().unwrap()
    };
    assert_eq!(results.len(), 4);
    assert!(offered(&results[0]) < offered(&results[1]));
    let svg = std::fs::read_to_string(at("r.svg")).unwrap();
    for text in ["offered rate, Mpps", "burst 16", "burst 64", "dashed"] {
        assert!(svg.contains(text), "{text}");
    }
}
