//! `inlane copy` from outside: what is kept between runs, and runs that are told to end.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn copy(cache: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
    command.arg("copy").args(arguments.split_whitespace()).env("XDG_CACHE_HOME", cache);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The milliseconds of 'least calibrated time for 16 MiB, 8.44 ms'.
fn calibrated_ms(text: &str) -> f64 {
    let (_, rest) = text.split_once("least calibrated time for 16 MiB, ").expect(text);
    let (number, unit) = rest.split_once(' ').expect(text);
    number.parse::<f64>().expect(text) * if unit.starts_with("us") { 1e-3 } else { 1.0 }
}

#[test]
fn a_calibration_of_small_sizes_holds_for_large_ones_and_pairs_are_kept_beside_each_other() {
    let cache = tempfile::tempdir().unwrap();
    let quick = "--repeats 1 --time 1ms --warm-up 1ms --no-ceiling --measure latency";
    let run = |ends: &str, rest: &str| {
        let output = copy(cache.path(), &format!("{ends} {quick} {rest}")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let (forth, back) = ("--from twin:0 --to twin:1", "--from twin:1 --to twin:0");
    run(forth, "--sizes 4K");
    let kept = calibrated_ms(&run(forth, "--sizes 64K,16M"));
    // The slower link takes 16 MiB in 6.5 ms; a busy machine needs longer, 4 KiB times 4096 were 135 ms.
    assert!((6.0..60.0).contains(&kept), "{kept} ms");
    run(back, "--sizes 4K");
    run(forth, "--sizes 4K --access 4");
    let file = cache.path().join("inlane").join("copy-costs.json");
    let entries: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(entries.len(), 3, "{:?}", entries.keys());
    // What is kept is used: no run measures again.
    let before = std::fs::metadata(&file).unwrap().modified().unwrap();
    assert_eq!(calibrated_ms(&run(forth, "--sizes 16M")), kept);
    assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), before);
}

/// Interrupted while it calibrates, fills, transfers by the CPU or by DMA, or checks: it ends within a second or so, and writes no
/// result.
#[test]
fn an_interrupted_run_ends_soon() {
    let runs = [
        "--from twin:0 --to twin:1 --sizes 256M --require bar",
        "--from twin:0 --to twin:1 --sizes 256M --require bar --direction both",
        "--from twin:0 --to twin:1 --sizes 256M --calibrate --direction both",
        "--from twin:0 --to twin:1 --sizes 256M --require hybrid --time 60s",
        "--from twin:0 --to twin:1 --sizes 256M --require staged --time 60s",
        "--from host --to host --sizes 256M --require bar --time 60s",
        "--published --time 60s",
    ];
    for arguments in runs {
        for wait in [200, 1200] {
            let cache = tempfile::tempdir().unwrap();
            let result = cache.path().join("result.json");
            let mut child = copy(cache.path(), arguments).arg("--json").arg(&result).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(wait));
            // SAFETY: a signal to a child that has not been waited for.
            assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
            let told = Instant::now();
            while child.try_wait().unwrap().is_none() {
                assert!(
                    told.elapsed() < Duration::from_secs(20),
                    "{arguments}, after {wait} ms: does not end"
                );
                std::thread::sleep(Duration::from_millis(5));
            }
            let took = told.elapsed();
            let output = child.wait_with_output().unwrap();
            let text = text(&output);
            assert_eq!(output.status.code(), Some(1), "{arguments}, after {wait} ms: {text}");
            assert!(text.contains("nothing of it is reported"), "{arguments}, after {wait} ms: {text}");
            assert!(!result.exists(), "{arguments}, after {wait} ms");
            eprintln!("{arguments}, after {wait} ms: ended {took:?} later");
            // A second on a machine that has a core for it.
            assert!(took < Duration::from_secs(4), "{arguments}, after {wait} ms: {took:?}");
        }
    }
}
