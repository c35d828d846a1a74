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
    // The slower link takes 16 MiB in 6.5 ms; how long a busy machine needs is anybody's guess.
    assert!(kept >= 6.0, "{kept} ms");
    run(back, "--sizes 4K");
    run(forth, "--sizes 4K --access 4");
    let file = cache.path().join("inlane").join("copy-costs.json");
    let entries: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(entries.len(), 3, "{:?}", entries.keys());
    for (key, entry) in &entries {
        let points = entry["costs"]["paths"]["staged"]["points"].as_array().unwrap();
        // Large sizes, though 4 KiB were asked for; the last is that which takes long.
        assert!(points.last().unwrap()[0].as_u64().unwrap() >= 1 << 20, "{key}: {points:?}");
    }
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
            assert!(text.contains("is not reported"), "{arguments}, after {wait} ms: {text}");
            assert!(!result.exists(), "{arguments}, after {wait} ms");
            eprintln!("{arguments}, after {wait} ms: ended {took:?} later");
            // A second on a machine that has a core for it.
            assert!(took < Duration::from_secs(4), "{arguments}, after {wait} ms: {took:?}");
        }
    }
}

/// The second signal ends the process at once.
#[test]
fn who_cannot_wait_for_the_end_finds_no_empty_file() {
    let cache = tempfile::tempdir().unwrap();
    let (result, figure) = (cache.path().join("result.json"), cache.path().join("figure.svg"));
    let arguments = "--from host --to host --sizes 1M --require bar --time 60s";
    let mut child =
        copy(cache.path(), arguments).arg("--json").arg(&result).arg("--svg").arg(&figure).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !figure.exists() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(50));
    while child.try_wait().unwrap().is_none() {
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!result.exists() && !figure.exists());
}

fn document(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn what_was_measured_before_an_interruption_is_kept() {
    let cache = tempfile::tempdir().unwrap();
    let result = cache.path().join("result.json");
    // The second size takes minutes.
    let arguments =
        "--from host --to twin:0 --require bar --sizes 4K,64M --repeats 1 --time 1ms --warm-up 1ms";
    let child = copy(cache.path(), arguments).arg("--json").arg(&result).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    // SAFETY: a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("interrupted after 1 measurements"), "{}", text(&output));
    let document = document(&result);
    let results = document["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["size_bytes"]), (1, &4096.into()));
    assert!(results[0]["verified_bytes"].as_u64().unwrap() > 0);
    assert!(document["notes"].to_string().contains("left out"), "{}", document["notes"]);
}

#[test]
fn a_measurement_that_fails_is_noted_and_the_next_is_made() {
    let cache = tempfile::tempdir().unwrap();
    let (result, figure) = (cache.path().join("result.json"), cache.path().join("figure.svg"));
    let arguments = "--from host --to host --require dma --sizes 4K,64K --repeats 1 --time 1ms --no-ceiling";
    let run = |completion: &str| {
        let mut command = copy(cache.path(), arguments);
        command.args(["--completion", completion, "--json"]).arg(&result).arg("--svg").arg(&figure);
        command.output().unwrap()
    };
    let output = run("interrupt,poll");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("2 of 4 measurements failed; the first: "), "{}", text(&output));
    let document = document(&result);
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/transfers.json");
    let schema = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    jsonschema::validate(&schema, &document).unwrap();
    for row in document["results"].as_array().unwrap() {
        let failed = row["completion"] == "interrupt";
        assert_eq!(row["error"].to_string().contains("raise no interrupts"), failed, "{row}");
        assert_eq!(row["bytes_per_second"].is_null(), failed, "{row}");
        assert_eq!(row["verified_bytes"] == 0, failed, "{row}");
    }
    assert!(figure.exists());
    // Of which nothing is left: the status is what is wrong, and no file stays that was made for the result.
    std::fs::remove_file(&result).unwrap();
    std::fs::remove_file(&figure).unwrap();
    let output = run("interrupt");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(!result.exists() && !figure.exists());
}

#[test]
fn outputs_are_tried_before_anything_is_measured() {
    let cache = tempfile::tempdir().unwrap();
    for flag in ["--json", "--svg"] {
        let began = Instant::now();
        let arguments = format!("--from host --to twin:0 --time 60s {flag} /nonexistent/file");
        let output = copy(cache.path(), &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", text(&output));
        assert!(text(&output).contains("cannot write /nonexistent/file"), "{}", text(&output));
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn rows_name_the_completion_and_the_window_that_there_were() {
    let cache = tempfile::tempdir().unwrap();
    let result = cache.path().join("result.json");
    let rows = |ends: &str| {
        let rest = "--sizes 4K --repeats 1 --time 1ms --warm-up 1ms --no-ceiling --completion interrupt,poll";
        let output =
            copy(cache.path(), &format!("{ends} {rest}")).arg("--json").arg(&result).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let document = document(&result);
        let row = |row: &serde_json::Value| {
            let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
            (text(&row["path"]), text(&row["completion"]), text(&row["parameters"]["window"]))
        };
        let rows: Vec<_> = document["results"].as_array().unwrap().iter().map(row).collect();
        (rows, document["notes"].to_string())
    };
    let row = |path: &str, completion: &str, window: &str| (path.into(), completion.into(), window.into());
    let (found, notes) = rows("--from host --to twin:0 --path bar,dma");
    assert_eq!(found, [row("bar", "poll", "1"), row("dma", "interrupt", "32"), row("dma", "poll", "32")]);
    assert!(notes.contains("bar is measured by poll, not interrupt"), "{notes}");
    let (found, _) = rows("--from twin:0 --to twin:1 --path staged");
    assert_eq!(found, [row("staged", "interrupt", "1"), row("staged", "poll", "1")]);
}

#[test]
fn sizes_beyond_the_memory_leave_the_others() {
    let cache = tempfile::tempdir().unwrap();
    let result = cache.path().join("result.json");
    for direction in ["forward", "both"] {
        let arguments = format!(
            "--from twin:0 --to host --require dma --sizes 2G,4K --rotate 0 --direction {direction} --repeats 1 --time 1ms --no-ceiling"
        );
        let output = copy(cache.path(), &arguments).arg("--json").arg(&result).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let document = document(&result);
        let rows = document["results"].as_array().unwrap();
        let sizes: Vec<_> = rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes[..2], [2 << 30, 4096], "{rows:?}");
        assert!(rows[0]["error"].as_str().unwrap().contains("memory of twin:0"), "{rows:?}");
        assert!(rows[1..].iter().all(|row| row["verified_bytes"].as_u64() > Some(0)), "{rows:?}");
    }
}
