//! `inlane forward --load` as a user runs it. Alone in its file, which cargo runs by itself: the trials want two processors, and beside
//! other tests none of them would pass.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Threads of a run on the CPU that want a processor each: one forwards, one watches.
const THREADS: usize = 2;

/// The least that one of as many spinning threads gets of a processor: 1 on an idle machine.
fn share_of_a_processor() -> f64 {
    let spin = || {
        let used = || {
            // SAFETY: a clock that every thread has, and room for its time.
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
fn latency_is_drawn_against_load() {
    let skip = |why: String| eprintln!("SKIPPED latency_is_drawn_against_load: {why}");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < THREADS {
        return skip(format!("it needs {THREADS} processors, and there is {processors}"));
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    // A rate passes with 99.8 % of what was offered, of which starting takes up to a millisecond: shorter trials fail at any rate.
    let run = || {
        Command::new(env!("CARGO_BIN_EXE_inlane"))
            .args(["forward", "--rx", "gen:64", "--tx", "check", "--duration", "500ms", "--load=20,50"])
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
        // Whoever was busy on them may just have ended.
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
