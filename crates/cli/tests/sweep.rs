//! Tests `inlane forward --sweep` as a process, on the CPU.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

const NULL: [&str; 7] = ["forward", "--rx", "null:64", "--tx", "null", "--duration", "60ms"];

fn inlane(arguments: &[&str], more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
    command.args(arguments).args(more).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str], more: &[&str]) -> Output {
    inlane(arguments, more).output().expect("the binary runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

struct Files {
    directory: tempfile::TempDir,
    json: String,
    svg: String,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
        Self { json: at("r.json"), svg: at("r.svg"), directory }
    }

    fn document(&self) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(&self.json).unwrap()).unwrap()
    }
}

#[test]
fn every_combination_is_run_repeatedly_and_shown_in_table_and_figure() {
    let files = Files::new();
    let flags =
        ["--sweep", "method=all", "--sweep", "burst=8..32", "--repeats", "3", "--function", "macswap"];
    let output = inlane(&NULL, &flags).args(["--json", &files.json, "--svg", &files.svg]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 18, "one line per run: {}", stderr(&output));
    let document = files.document();
    let schema: serde_json::Value = serde_json::from_slice(
        &std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/packets.json")).unwrap(),
    )
    .unwrap();
    let errors: Vec<_> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(&document)
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    let results = document["results"].as_array().unwrap();
    let points: Vec<_> = results
        .iter()
        .map(|result| {
            assert_eq!(result["repeats"]["packets_per_second"]["repeats"], 3);
            assert!(result["tx"]["packets"].as_u64().unwrap() > 0);
            assert_eq!(result["ports"], serde_json::json!(["null:64", "null"]));
            let parameters = &result["parameters"];
            let function = result["path"]["hops"][0][1].as_str().unwrap();
            assert!(function.contains(parameters["method"].as_str().unwrap()), "{function}");
            (parameters["method"].as_str().unwrap(), parameters["burst"].as_u64().unwrap())
        })
        .collect();
    let expected =
        [("single", 8), ("single", 16), ("single", 32), ("split", 8), ("split", 16), ("split", 32)];
    assert_eq!(points, expected);
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(table.lines().filter(|line| line.starts_with('|')).count(), 8, "{table}");
    let svg = std::fs::read_to_string(&files.svg).unwrap();
    for text in ["burst size, packets", "Mpps", "single", "split", "macswap, on cpu"] {
        assert!(svg.contains(text), "{text} is not in the figure");
    }
    assert!(!svg.contains("Latency"), "no latency was measured");
}

#[test]
fn sizes_replace_those_of_the_port_and_a_settings_file_can_hold_sweeps() {
    let files = Files::new();
    let settings = files.directory.path().join("settings.toml");
    std::fs::write(&settings, "[forward]\nsweep = ['size=64,200', 'rate=20Kpps,40Kpps']\nburst = 4\n")
        .unwrap();
    let ports = ["forward", "--rx", "gen:64,flows=2", "--tx", "check", "--duration", "300ms"];
    let output = inlane(&ports, &["--config", settings.to_str().unwrap(), "--json", &files.json])
        .args(["--svg", &files.svg])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let document = files.document();
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    for result in results {
        let size: u64 = result["parameters"]["size_bytes"].as_u64().unwrap();
        assert_eq!(result["rx"]["bytes"].as_u64().unwrap(), size * result["rx"]["packets"].as_u64().unwrap());
        assert_eq!(result["parameters"]["burst"], 4);
        assert!(result["latency"]["p99_ns"].as_f64().unwrap() > 0.0);
    }
    let checked: u64 = results.iter().map(|result| result["tx"]["packets"].as_u64().unwrap()).sum();
    let verified: u64 =
        results.iter().map(|result| result["verification"]["verified_packets"].as_u64().unwrap()).sum();
    assert_eq!(verified, checked, "every point is verified");
    let svg = std::fs::read_to_string(&files.svg).unwrap();
    assert!(svg.contains("Latency") && svg.contains("rate 20.00 kpps"), "two plots with one line per rate");
}

#[test]
fn a_point_that_fails_is_recorded_and_the_others_run() {
    let files = Files::new();
    let output = inlane(&NULL, &["--sweep", "rx=null:64,pcap:/no/such.pcap,null:128"])
        .args(["--function", "macswap", "--json", &files.json])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 of 3 points failed"), "{}", stderr(&output));
    let results = files.document()["results"].as_array().unwrap().clone();
    let failed: Vec<bool> = results.iter().map(|result| !result["error"].is_null()).collect();
    assert_eq!(failed, [false, true, false]);
    assert_eq!(results[1]["parameters"]["rx"], "pcap:/no/such.pcap");
    assert!(results[2]["tx"]["packets"].as_u64().unwrap() > 0);
}

#[test]
fn a_wrong_sweep_is_refused_before_anything_runs() {
    let cases: [(&[&str], &str); 15] = [
        (&["--sweep", "brust=1,2"], "burst, "),
        (&["--sweep", "burst"], "burst=16,32"),
        (&["--sweep", "burst=16,x"], "--burst x: give a whole number from 1 to 1024"),
        (&["--sweep", "burst=16,32", "--interval", "1s"], "--interval"),
        (&["--sweep", "burst=16,0"], "1 to 1024"),
        (&["--sweep", "method=split,slow"], "persistent"),
        (&["--sweep", "method=persistent"], "--on gpu:0"),
        (&["--sweep", "burst=all"], "burst=1,2,4"),
        (&["--sweep", "burst=1", "--sweep", "burst=2"], "twice"),
        (&["--sweep", "overload=wait,dropp"], "shrink"),
        (&["--sweep", "method=all", "--svg", "/dev/null"], "--svg"),
        (&["--rx", "ring:x", "--sweep", "size=64"], "--size"),
        (&["--sweep", "memory=all"], "memory=gpu: --memory gpu: it applies to GPUs only"),
        (&["--sweep", "blocks=0,8"], "blocks=8: --blocks: it applies to GPUs only"),
        (&["--on", "gpu:0", "--sweep", "memory=all", "--header-split", "64"], "leave one of them out"),
    ];
    for (flags, said) in cases {
        let arguments: &[&str] = if flags[0] == "--rx" { &["forward", "--tx", "null"] } else { &NULL };
        let output = run(arguments, flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{flags:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("[1/"), "{flags:?}: nothing ran");
    }
}

#[test]
fn if_every_point_fails_the_first_error_is_reported() {
    if has_gpu() {
        return;
    }
    let output = run(&NULL, &["--on", "gpu:0", "--sweep", "method=all"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().filter(|line| line.starts_with('[')).count(), 5);
}

fn has_gpu() -> bool {
    std::path::Path::new("/dev/nvidiactl").exists()
}

#[test]
fn a_signal_keeps_the_points_that_are_done() {
    let files = Files::new();
    let mut child = inlane(&["forward", "--rx", "null:64", "--tx", "null", "--duration", "1s"], &[])
        .args(["--sweep", "burst=1..1024", "--json", &files.json])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Wait for the line that reports the first point as done. The signal below then interrupts the second
    // point.
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.starts_with("[1/11] burst=1:"), "{line}");
    std::thread::sleep(Duration::from_millis(300));
    // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    drop(said);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let document = files.document();
    let results = document["results"].as_array().unwrap();
    assert!((1..11).contains(&results.len()), "{}", results.len());
    assert!(results.iter().all(|result| result["tx"]["packets"].as_u64().unwrap() > 0));
    assert!(document["notes"].as_array().unwrap().iter().any(|n| n.as_str().unwrap().contains("signal")));
}

#[test]
fn a_competing_job_is_measured() {
    let files = Files::new();
    let output =
        inlane(&["forward", "--rx", "null:64", "--tx", "null", "--duration", "400ms"], &["--stages"])
            .args([
                "--sweep",
                "compete=all",
                "--sweep",
                "burst=64",
                "--json",
                &files.json,
                "--svg",
                &files.svg,
            ])
            .output()
            .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let document = files.document();
    assert!(document["results"][0]["competitor"].is_null());
    let competitor = &document["results"][1]["competitor"];
    let kept = competitor["kept"].as_f64().unwrap();
    let ratio =
        competitor["beside_per_second"].as_f64().unwrap() / competitor["alone_per_second"].as_f64().unwrap();
    assert!((kept - ratio).abs() < 1e-9);
    // The two jobs share the core. On a busy machine the scheduler may divide the core unequally, and the job may have had
    // little of it alone, so only implausible shares fail.
    assert!(kept > 0.0 && kept < 100.0, "{kept}");
    assert!(std::fs::read_to_string(&files.svg).unwrap().contains("competing job"));
}

#[test]
fn outputs_are_opened_first_and_a_failed_run_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let (json, svg) = (directory.path().join("new.json"), directory.path().join("new.svg"));
    let missing = ["forward", "--rx", "pcap:/nonexistent", "--tx", "null", "--sweep", "burst=16,32"];
    let output = run(&missing, &["--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()]);
    assert!(!output.status.success());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{}", stderr(&output));
    let output = run(&NULL, &["--sweep", "burst=16,32", "--svg", "/nonexistent/x.svg"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot write /nonexistent/x.svg"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("[1/2]"), "the output is opened before measuring: {}", stderr(&output));
}
