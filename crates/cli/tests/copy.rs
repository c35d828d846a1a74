//! Tests `inlane copy` as a process: stored calibration, interrupted and failed runs, and the result's
//! rows.

mod support;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::until_thread_runs;

fn copy(cache: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
    command.arg("copy").args(arguments.split_whitespace()).env("XDG_CACHE_HOME", cache);
    // To zero the usual 256 MiB at each end takes longer than to measure.
    command.env("INLANE_COPY_ROTATE", "1M");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn document(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn validate(name: &str, document: &serde_json::Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema").join(name);
    let schema = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    jsonschema::validate(&schema, document).unwrap();
}

/// Returns the calibrated time in milliseconds from a text that contains "least calibrated time for 16 MiB,
/// 8.44 ms".
fn calibrated_ms(text: &str) -> f64 {
    let (_, rest) = text.split_once("least calibrated time for 16 MiB, ").expect(text);
    let (number, unit) = rest.split_once(' ').expect(text);
    number.parse::<f64>().expect(text) * if unit.starts_with("us") { 1e-3 } else { 1.0 }
}

#[test]
fn settings_that_change_nothing_are_no_error() {
    let cache = tempfile::tempdir().unwrap();
    let file = cache.path().join("inlane.toml");
    std::fs::write(&file, "[copy]\nsm-slots = 4\nin-flight = 3\n").unwrap();
    let run = |rest: &str| {
        let line = "--from twin:0 --to twin:1 --sizes 4K --repeats 1 --duration 1ms --warm-up 1ms \
                    --no-ceiling --measure latency";
        let mut command = copy(cache.path(), &format!("{line} {rest}"));
        command.env("INLANE_CONFIG", &file).env("INLANE_COPY_CHUNK", "1M").output().unwrap()
    };
    let output = run("");
    assert!(output.status.success(), "{}", text(&output));
    let refused = run("--sm-slots 5");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("--sm-slots: it needs path staged-sm"), "{}", text(&refused));
}

#[test]
fn calibration_is_kept_for_each_pair_and_covers_larger_sizes() {
    let cache = tempfile::tempdir().unwrap();
    let quick = "--repeats 1 --duration 1ms --warm-up 1ms --no-ceiling --measure latency";
    let run = |ends: &str, rest: &str| {
        let output = copy(cache.path(), &format!("{ends} {quick} {rest}")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let (forward, backward) = ("--from twin:0 --to twin:1", "--from twin:1 --to twin:0");
    run(forward, "--sizes 4K");
    let kept = calibrated_ms(&run(forward, "--sizes 64K,16M"));
    // The result must be the calibrated time for 16 MiB. In the twin's model this is at least 6.5 ms, but a
    // busy machine may extrapolate half of it from smaller sizes. The time for 64 KiB would be 0.03 ms.
    assert!(kept >= 3.0, "{kept} ms");
    run(backward, "--sizes 4K");
    run("--from host --to host", "--sizes 4K --access 4");
    let file = cache.path().join("inlane").join("copy-costs.json");
    let entries: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(entries.len(), 3, "{:?}", entries.keys());
    for (key, entry) in &entries {
        let path = if key.contains("twin") { "staged" } else { "cpu" };
        let points = entry["costs"]["paths"][path]["points"].as_array().unwrap();
        assert!(points.last().unwrap()[0].as_u64().unwrap() > 4096, "{key}: {points:?}");
    }
    // The next run must use the stored calibration unless it is known to be wrong. So the calibration must have the
    // same time, and the file must not be written again.
    let forward_entry =
        entries.iter().find(|(key, _)| key.contains("twin:0") && key.find("twin:0") < key.find("twin:1"));
    let disturbed = forward_entry.unwrap().1["costs"]["disturbed"] == true;
    let before = std::fs::metadata(&file).unwrap().modified().unwrap();
    let output = run(forward, "--sizes 16M");
    let written = std::fs::metadata(&file).unwrap().modified().unwrap() != before;
    assert_eq!(written, disturbed || output.contains("calibrated again"), "{output}");
    assert!(written || calibrated_ms(&output) == kept, "{kept} ms, {output}");
}

/// Runs with `arguments`, and returns the result document.
fn measured(cache: &Path, arguments: &str) -> serde_json::Value {
    let result = cache.join("result.json");
    let output = copy(cache, arguments).arg("--json").arg(&result).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    document(&result)
}

#[test]
fn a_wrong_stored_calibration_is_replaced_and_reported() {
    let cache = tempfile::tempdir().unwrap();
    let line = "--from host --to host --sizes 4K,64K --repeats 1 --duration 20ms --warm-up 1ms --no-ceiling";
    measured(cache.path(), line);
    let file = cache.path().join("inlane").join("copy-costs.json");
    let mut entries = document(&file);
    for entry in entries.as_object_mut().unwrap().values_mut() {
        entry["costs"]["disturbed"] = false.into();
        for point in entry["costs"]["paths"]["cpu"]["points"].as_array_mut().unwrap() {
            point[1] = (point[1].as_f64().unwrap() * 63.0).into();
        }
    }
    std::fs::write(&file, serde_json::to_vec(&entries).unwrap()).unwrap();
    let found = measured(cache.path(), line);
    let notes = found["notes"].to_string();
    assert!(notes.contains("host to host: calibrated again, because cpu took "), "{notes}");
    let rows = found["results"].as_array().unwrap();
    let sizes: Vec<_> = rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [4 << 10, 64 << 10]);
    for row in rows {
        let calibrated = row["path"]["reason"]["calibrated_ns"].as_f64().unwrap();
        assert!(calibrated < 10.0 * row["latency_ns"]["median"].as_f64().unwrap(), "{row}");
    }
    assert_ne!(document(&file), entries);
}

/// Calibrates beside two busy processes. A later run must not choose by a wrong time without a word.
#[test]
fn a_calibration_beside_busy_processes_deceives_no_later_run() {
    let cache = tempfile::tempdir().unwrap();
    let line =
        "--from twin:0 --to twin:1 --sizes 4K,1M --repeats 1 --duration 50ms --warm-up 5ms --no-ceiling";
    let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let mut spinners = [busy(), busy()];
    let first = measured(cache.path(), line);
    for spinner in &mut spinners {
        spinner.kill().unwrap();
        spinner.wait().unwrap();
    }
    let second = measured(cache.path(), line);
    let notes = second["notes"].to_string();
    for row in second["results"].as_array().unwrap() {
        let calibrated = row["path"]["reason"]["calibrated_ns"].as_f64().unwrap();
        let measured = row["latency_ns"]["median"].as_f64().unwrap();
        let is_reported = notes.contains("calibrated again") || notes.contains(" calibrated by this run");
        assert!(calibrated <= 2.0 * measured || is_reported, "{row}, {notes}; first {}", first["notes"]);
    }
    let entries = document(&cache.path().join("inlane").join("copy-costs.json"));
    let disturbed = entries.as_object().unwrap().values().next().unwrap()["costs"]["disturbed"] == true;
    assert_eq!(disturbed, notes.contains("other processes used the processors"), "{notes}");
}

/// Interrupts runs during calibration, preparation, transfers by CPU and DMA, and verification. A run without
/// a finished measurement must write no result.
#[test]
fn an_interrupted_run_ends_and_reports_nothing_unfinished() {
    let runs = [
        "--from twin:0 --to twin:1 --sizes 256M --require cpu",
        "--from twin:0 --to twin:1 --sizes 256M --require cpu --direction both",
        "--from twin:0 --to twin:1 --sizes 256M --calibrate --direction both",
        "--from twin:0 --to twin:1 --sizes 256M --require hybrid --duration 3600s",
        "--from twin:0 --to twin:1 --sizes 256M --require staged --duration 3600s",
        "--from host --to host --sizes 256M --require cpu --duration 3600s",
        "--published --duration 3600s",
    ];
    for arguments in runs {
        for wait in [100, 1200] {
            let cache = tempfile::tempdir().unwrap();
            let result = cache.path().join("result.json");
            let mut child = copy(cache.path(), arguments).arg("--json").arg(&result).spawn().unwrap();
            until_thread_runs(&child, "inlane-signals", Duration::ZERO);
            std::thread::sleep(Duration::from_millis(wait));
            // SAFETY: the process ID is still the child's, because nobody has waited for the child yet.
            assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
            let interrupted = Instant::now();
            while child.try_wait().unwrap().is_none() {
                let waited = interrupted.elapsed();
                assert!(waited < Duration::from_secs(60), "{arguments}, after {wait} ms: does not end");
                std::thread::sleep(Duration::from_millis(5));
            }
            eprintln!("{arguments}, after {wait} ms: ended {:?} later", interrupted.elapsed());
            let output = child.wait_with_output().unwrap();
            let text = text(&output);
            assert_eq!(output.status.code(), Some(1), "{arguments}, after {wait} ms: {text}");
            assert!(text.contains("so there is no result"), "{arguments}, after {wait} ms: {text}");
            assert!(!result.exists(), "{arguments}, after {wait} ms");
        }
    }
}

/// A second signal ends the process at once. The empty result files that the process created must be gone.
#[test]
fn a_second_signal_leaves_no_empty_files() {
    let cache = tempfile::tempdir().unwrap();
    let (result, figure) = (cache.path().join("result.json"), cache.path().join("figure.svg"));
    let arguments = "--from host --to host --sizes 1M --require cpu --duration 60s";
    let mut child =
        copy(cache.path(), arguments).arg("--json").arg(&result).arg("--svg").arg(&figure).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !figure.exists() {
        assert!(Instant::now() < until, "the run does not open its outputs");
        std::thread::sleep(Duration::from_millis(1));
    }
    until_thread_runs(&child, "inlane-signals", Duration::ZERO);
    while child.try_wait().unwrap().is_none() {
        // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
        unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!result.exists() && !figure.exists());
}

#[test]
fn measurements_before_an_interruption_are_kept() {
    let cache = tempfile::tempdir().unwrap();
    let result = cache.path().join("result.json");
    // Measure 4 KiB and then 64 MiB, and interrupt the run during the 64 MiB. With `--path p2p` the run
    // prints, before its first transfer, that p2p is not available. The test waits for that line.
    let arguments = "--from host --to twin:0 --path p2p --sizes 4K,64M --without dma --repeats 1 --duration 1ms \
                     --warm-up 1ms --no-ceiling";
    let mut child = copy(cache.path(), arguments).arg("--json").arg(&result).spawn().unwrap();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    assert!(line.contains("inlane takes cpu instead"), "{line}");
    // Wait 3 s. By then, the measurement of 4 KiB is complete, because a transfer takes less than 1 ms. The
    // measurement of 64 MiB is not, because a transfer takes 9 s.
    std::thread::sleep(Duration::from_secs(3));
    // SAFETY: the process ID is still the child's, because nobody has waited for the child yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
    let output = child.wait_with_output().unwrap();
    let mut errors = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut errors).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("interrupted after 1 measurement"), "{errors}");
    let document = document(&result);
    let results = document["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["size_bytes"]), (1, &4096.into()));
    assert!(results[0]["verification"]["verified_bytes"].as_u64().unwrap() > 0);
    assert!(document["notes"].to_string().contains("left out"), "{}", document["notes"]);
}

#[test]
fn a_failed_measurement_is_a_row_and_the_next_one_follows() {
    let cache = tempfile::tempdir().unwrap();
    let (result, figure) = (cache.path().join("result.json"), cache.path().join("figure.svg"));
    let arguments = "--from host --to host --require dma --sizes 4K,64K --repeats 1 --duration 1ms";
    let run = |completion: &str| {
        let mut command = copy(cache.path(), arguments);
        command.args(["--completion", completion, "--json"]).arg(&result).arg("--svg").arg(&figure);
        command.output().unwrap()
    };
    let output = run("interrupt,poll");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("2 of 4 measurements failed; the first: "), "{}", text(&output));
    let document = document(&result);
    validate("transfers.json", &document);
    for row in document["results"].as_array().unwrap() {
        let failed = row["completion"] == "interrupt";
        assert_eq!(row["error"].to_string().contains("raise no interrupts"), failed, "{row}");
        assert_eq!(row["bytes_per_second"].is_null(), failed, "{row}");
        assert_eq!(row["verification"]["verified_bytes"] == 0, failed, "{row}");
        assert_eq!(row["latency_percentiles"]["p999_ns"].is_number(), !failed, "{row}");
    }
    assert!(figure.exists());
    // Remove the first run's output files, because a run removes only files that it created. In the second
    // run every measurement fails. It must exit with the status of the first error, and must leave no output
    // files.
    std::fs::remove_file(&result).unwrap();
    std::fs::remove_file(&figure).unwrap();
    let output = run("interrupt");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(!result.exists() && !figure.exists());
}

#[test]
fn outputs_are_opened_before_anything_is_measured() {
    let cache = tempfile::tempdir().unwrap();
    for flag in ["--json", "--svg"] {
        // The measurement would take an hour. If an output file cannot be created, the command must fail
        // before the measurement starts.
        let arguments = format!("--from host --to twin:0 --duration 3600s {flag} /nonexistent/file");
        let output = copy(cache.path(), &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", text(&output));
        assert!(text(&output).contains("cannot write /nonexistent/file"), "{}", text(&output));
    }
}

#[test]
fn rows_have_the_completion_mode_and_the_window_in_effect() {
    let cache = tempfile::tempdir().unwrap();
    let result = cache.path().join("result.json");
    let rows = |ends: &str| {
        let rest =
            "--sizes 4K --repeats 1 --duration 1ms --warm-up 1ms --no-ceiling --completion interrupt,poll";
        let output =
            copy(cache.path(), &format!("{ends} {rest}")).arg("--json").arg(&result).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let document = document(&result);
        let row = |row: &serde_json::Value| {
            let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
            (text(&row["path"]["name"]), text(&row["completion"]), row["in_flight"].as_u64().unwrap())
        };
        let rows: Vec<_> = document["results"].as_array().unwrap().iter().map(row).collect();
        (rows, document["notes"].to_string())
    };
    let row = |path: &str, completion: &str, in_flight: u64| (path.into(), completion.into(), in_flight);
    let (found, notes) = rows("--from host --to twin:0 --path cpu,dma");
    assert_eq!(found, [row("cpu", "poll", 1), row("dma", "interrupt", 32), row("dma", "poll", 32)]);
    assert!(notes.contains("cpu is measured by poll instead of interrupt"), "{notes}");
    let (found, _) = rows("--from twin:0 --to twin:1 --path staged");
    assert_eq!(found, [row("staged", "interrupt", 1), row("staged", "poll", 1)]);
}

#[test]
fn each_row_has_its_own_reason_and_ceiling_and_counts_checked_bytes_apart() {
    let cache = tempfile::tempdir().unwrap();
    let result = cache.path().join("result.json");
    let arguments = "--from twin:0 --to twin:1 --sizes 4K,1M --repeats 1 --duration 20ms --warm-up 1ms";
    let table = cache.path().join("result.csv");
    let output =
        copy(cache.path(), arguments).arg("--json").arg(&result).arg("--csv").arg(&table).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let csv = std::fs::read_to_string(table).unwrap();
    assert_eq!(csv.lines().count(), 3, "a header and two rows: {csv}");
    let document = document(&result);
    validate("transfers.json", &document);
    for (row, size) in document["results"].as_array().unwrap().iter().zip([4 << 10, 1 << 20]) {
        assert_eq!(row["size_bytes"], size, "{row}");
        let (reason, others) = (&row["path"]["reason"], row["path"]["not_taken"].as_array().unwrap());
        assert_eq!(
            (&reason["kind"], &reason["size_bytes"]),
            (&"least-time".into(), &row["size_bytes"]),
            "{row}"
        );
        assert_eq!(others.len(), 2, "{row}");
        for other in others {
            let (time, chosen) = (&other["why"]["calibrated_ns"], &other["why"]["chosen_ns"]);
            assert_eq!(
                (&other["why"]["kind"], chosen),
                (&"slower".into(), &reason["calibrated_ns"]),
                "{row}"
            );
            assert!(time.as_f64() >= chosen.as_f64(), "{row}");
        }
        assert_eq!(row["ceiling"]["bytes_per_second"], 3.94e9, "{row}");
        assert!(row["share_of_ceiling"].is_number() && row["predicted_ns"].is_number(), "{row}");
        let bytes = |name: &str| row["verification"][name].as_u64().unwrap();
        assert!(
            bytes("transferred_bytes") >= bytes("verified_bytes") && bytes("verified_bytes") > 0,
            "{row}"
        );
        assert_eq!(bytes("altered_bytes"), 0, "{row}");
    }
}

#[test]
fn paths_are_listed_with_their_movers_or_the_reason_against_them() {
    let cache = tempfile::tempdir().unwrap();
    let result = cache.path().join("paths.json");
    let output =
        copy(cache.path(), "--list --from twin:0 --to twin:1").arg("--json").arg(&result).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let document = document(&result);
    validate("paths.json", &document);
    let rows = document["results"].as_array().unwrap();
    assert_eq!(rows.len(), 8, "{rows:?}");
    for row in rows {
        let available = ["cpu", "hybrid", "staged"].contains(&row["path"].as_str().unwrap());
        assert_eq!(row["available"], available, "{row}");
        assert_eq!(row["why_not"].is_null(), available, "{row}");
    }
    assert!(text(&output).contains("needs two GPUs"), "{}", text(&output));
}

#[test]
fn sizes_that_do_not_fit_leave_the_others() {
    let cache = tempfile::tempdir().unwrap();
    let result = cache.path().join("result.json");
    for direction in ["forward", "both"] {
        let arguments = format!(
            "--from twin:0 --to host --require dma --sizes 2G,4K --rotate 0 --direction {direction} --repeats 1 --duration 1ms --no-ceiling"
        );
        let output = copy(cache.path(), &arguments).arg("--json").arg(&result).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let document = document(&result);
        let rows = document["results"].as_array().unwrap();
        let sizes: Vec<_> = rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes[..2], [2 << 30, 4096], "{rows:?}");
        assert!(rows[0]["error"].as_str().unwrap().contains("memory of twin:0"), "{rows:?}");
        assert!(
            rows[1..].iter().all(|row| row["verification"]["verified_bytes"].as_u64() > Some(0)),
            "{rows:?}"
        );
    }
}
