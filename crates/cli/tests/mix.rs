//! Tests `inlane mix` as a command: its documents, scenarios that are wrong, interrupted and continued sessions.
//!
//! Other jobs may use the machine meanwhile, so tests judge the structure of results and large differences, not figures.

mod support;

use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Flags of a session of one short block.
const SHORT: [&str; 6] = ["--duration", "50ms", "--settle", "20ms", "--limit", "0"];

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
    command.arg("mix").args(arguments);
    command
}

fn inlane(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn document(text: &[u8]) -> Value {
    let document: Value = serde_json::from_slice(text).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/mix.json");
    let schema = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    jsonschema::validate(&schema, &document).unwrap();
    document
}

#[test]
fn a_session_has_a_document_and_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("mix.json");
    let name = json.to_str().unwrap();
    let loads = ["--load", "cpu cores=0", "--load", "memory buffer=1M name=copies cores=0"];
    let svg = folder.path().join("mix.svg");
    let output = inlane(&[&loads[..], &SHORT, &["--json", name, "--svg", svg.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("Rates over time") && !drawn.contains("NaN"));
    assert!(errors(&output).contains("warning: cpu and copies share core 0"), "{}", errors(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let document = document(&std::fs::read(&json).unwrap());
    let row = &document["results"][0];
    // A mix is not predicted if other programs disturbed each run of a load alone.
    let disturbed = row["loads"].as_array().unwrap().iter().any(|load| load["alone"]["disturbed"] == true);
    for expected in [
        "| cpu ",
        "Gained when another load was slowed",
        "| copies to 85 %",
        if disturbed { "disturbed" } else { "| predicted | #" },
        "the time limit was reached",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(row["cut"], "time_limit");
    assert_eq!(row["loads"][1]["name"], "copies");
    assert_eq!(row["scenario"][1]["buffer"], "1M");
    let alone = row["loads"][0]["alone"]["operations_per_second"]["median"].as_f64().unwrap();
    let together = row["loads"][0]["together"]["operations_per_second"]["median"].as_f64().unwrap();
    assert!(alone > 0.0 && together > 0.0, "{row}");
    assert_eq!(row["exchange"].as_array().unwrap().len(), 2);
    let resources = row["antagonists"].as_array().unwrap().iter().map(|it| it["resource"].clone());
    let expected = json!([{ "kind": "host_memory" }, { "kind": "core", "name": 0 }]);
    assert_eq!(Value::Array(resources.collect()), expected);
    // Equal phases are measured twice, and all others once, unless they were disturbed.
    let together = row["observations"].as_array().unwrap().iter().filter(|it| it["phase"] == "together");
    assert!(together.count() >= 2);
}

#[test]
fn wrong_scenarios_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    std::fs::write(&file, "[[load]]\nkind = \"memory\"\nsise = \"4K\"\n").unwrap();
    let name = file.to_str().unwrap();
    let own = |text: &str| text.to_string();
    for (arguments, status, expected) in [
        (
            &["--scenario", name][..],
            2,
            format!("scenario {name}:3: a load of kind memory has no key 'sise'; did you mean size?"),
        ),
        (&["--scenario", "/nothing.toml"], 3, own("scenario /nothing.toml: cannot be read")),
        (&[], 2, own("--load")),
        (&["--load", "memroy"], 2, own("did you mean memory?")),
        (&["--load", "cpu cores=0-4095"], 2, own("--load 'cpu cores=0-4095': cores")),
        (&["--load", "cpu cores=900"], 2, own("load cpu: core 900: this process may use only")),
        (&["--load", "cpu", "--cores", "900"], 2, own("core 900: this process may use only")),
        (
            &["--load", "cpu", "--set", "cpus.cores=0"],
            2,
            own("--set cpus.cores=0: there is no such setting; did you mean cpu?"),
        ),
        (
            &["--load", "cpu", "--sweep", "cpu.threads=1,x"],
            2,
            own("--set cpu.threads=x: threads: 'x': give a whole number"),
        ),
        (&["--load", "memory buffer=1000T"], 2, own("half of what is available; give smaller buffers")),
        (&["--load", "memory size=1G buffer=1M"], 2, own("give a smaller size or a larger buffer")),
        (&["--load", "cpu rate=5GB/s"], 2, own("the size of its operations is not known")),
        (&["--load", "tx"], 2, own("the key to is missing; give the port that packets go to")),
        (&["--load", "forward from=gen:64 to=nul"], 2, own("did you mean null?")),
        (&["--load", "forward from=gen:64 to=null on=gpu:x"], 2, own("choose one of cpu, gpu:N")),
        (&["--load", "nvme target=127.0.0.1:1"], 3, own("127.0.0.1:1")),
        (&["--load", "nvme target=127.0.0.1:1 operation=reed"], 2, own("choose one of read, write")),
        (&["--load", "dma from=host to=moon"], 2, own("moon")),
        (&["--load", "cpu", "--precision", "0"], 2, own("give a fraction above 0")),
    ] {
        let output = inlane(&[arguments, &SHORT].concat());
        let error = errors(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        assert!(error.contains(&expected), "{arguments:?}: {error}");
    }
}

#[test]
fn a_sweep_over_ports_with_privileges_tells_how_to_keep_them() {
    let sweep = ["--load", "tx name=tx to=af_packet:lo size=64", "--sweep", "tx.size=64,128"];
    let output = inlane(&[&sweep[..], &SHORT].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(
        errors(&output).contains("load tx") && errors(&output).contains("--keep-privileges"),
        "{}",
        errors(&output)
    );
}

#[test]
fn an_interrupted_session_is_kept_and_can_be_continued() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("mix.json");
    let name = json.to_str().unwrap();
    let loads = ["--load", "cpu cores=0", "--load", "memory name=copies buffer=1M cores=0"];
    let flags = ["--duration", "50ms", "--settle", "20ms", "--json", name];
    let mut session = command(&[&loads[..], &flags].concat());
    let session = session.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    support::until_threads_used(&session, "mix-copies", Duration::from_millis(50));
    // SAFETY: the call names a child that has not been waited for.
    unsafe { libc::kill(session.id() as i32, libc::SIGINT) };
    let output = session.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    assert!(errors(&output).contains("the session was interrupted"), "{}", errors(&output));
    let first = document(&std::fs::read(&json).unwrap());
    assert_eq!(first["results"][0]["cut"], "interrupted");
    let before = first["results"][0]["observations"].as_array().unwrap().len();

    let next = folder.path().join("next.json");
    let next_name = next.to_str().unwrap();
    let resume = [&SHORT[..], &["--resume", name, "--json", next_name]].concat();
    let output = inlane(&[&loads[..], &resume].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let document = document(&std::fs::read(&next).unwrap());
    assert!(document["results"][0]["observations"].as_array().unwrap().len() > before);

    let other = ["--load", "cpu cores=0", "--load", "memory name=copies buffer=2M cores=0"];
    let output = inlane(&[&other[..], &resume].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("its loads have other settings"), "{}", errors(&output));
    std::fs::write(&json, "{}").unwrap();
    let output = inlane(&[&loads[..], &resume].concat());
    assert!(errors(&output).contains("it is no result of 'inlane mix'"), "{}", errors(&output));
}

/// Makes the command unable to write files of more than `length` bytes, as if the disk were full.
fn limit_files(command: &mut Command, length: u64) {
    let limit = libc::rlimit { rlim_cur: length, rlim_max: length };
    // SAFETY: both functions may be called between fork and exec, and `limit` outlives the call.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

#[test]
fn a_full_disk_keeps_the_session_that_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("mix.json");
    let name = json.to_str().unwrap();
    let load = ["--load", "cpu cores=0"];
    let output = inlane(&[&load[..], &SHORT, &["--json", name]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let before = std::fs::read(&json).unwrap();
    let new = folder.path().join("new.json");
    for target in [&json, &new] {
        let to = ["--resume", name, "--json", target.to_str().unwrap()];
        let mut next = command(&[&load[..], &SHORT, &to].concat());
        limit_files(&mut next, before.len() as u64 + 10);
        let output = next.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
        assert!(errors(&output).contains("File too large"), "{}", errors(&output));
        assert!(std::fs::read(&json).unwrap() == before, "the earlier session is lost");
    }
    assert!(!new.exists(), "a part of a result is of no use");
}

#[test]
fn results_that_do_not_fit_are_not_continued() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("mix.json");
    let name = json.to_str().unwrap();
    let load = ["--load", "cpu cores=0"];
    let output = inlane(&[&load[..], &SHORT, &["--json", name]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let text = std::fs::read_to_string(&json).unwrap();
    let refused = |text: &str, flags: &[&str], why: &str| {
        std::fs::write(&json, text).unwrap();
        let output = inlane(&[&load[..], flags, &["--resume", name]].concat());
        assert_eq!(output.status.code(), Some(2), "{why}: {}", errors(&output));
        assert!(errors(&output).contains(why), "{why}: {}", errors(&output));
    };
    refused(&text[..text.len() / 2], &SHORT, "it is cut off");
    refused("", &SHORT, "it is not JSON");
    refused(&text, &["--duration", "50ms", "--settle", "30ms"], "settled for another time");
    let changed = |change: fn(&mut Value)| {
        let mut document: Value = serde_json::from_str(&text).unwrap();
        change(&mut document["results"][0]);
        document.to_string()
    };
    let unfit = "its observations are not those of such a session";
    refused(&changed(|row| row["observations"][0]["block"] = json!(1_000_000_000)), &SHORT, unfit);
    refused(&changed(|row| row["observations"][0]["block"] = json!(u64::MAX)), &SHORT, unfit);
    let phase = |row: &mut Value| row["observations"][0]["phase"] = json!({ "alone": { "load": 99 } });
    refused(&changed(phase), &SHORT, unfit);
    let rate = |row: &mut Value| row["observations"][0]["loads"][0]["operations_per_second"] = json!(-1.0);
    refused(&changed(rate), &SHORT, unfit);
    let name = |row: &mut Value| row["loads"][0]["name"] = json!("other");
    refused(&changed(name), &SHORT, "loads in its session were others");
}

#[test]
fn a_sweep_has_a_row_for_each_value() {
    let loads = ["--load", "memory name=reads operation=read buffer=1M", "--sweep", "reads.size=4K,64K"];
    let output = inlane(&[&loads[..], &SHORT, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", errors(&output));
    let document = document(&output.stdout);
    let rows = document["results"].as_array().unwrap();
    let swept: Vec<&str> = rows.iter().map(|row| row["swept"]["reads.size"].as_str().unwrap()).collect();
    assert_eq!(swept, ["4K", "64K"]);
    let bytes = |row: &Value| {
        let rate = &row["loads"][0]["alone"];
        rate["bytes_per_second"]["median"].as_f64().unwrap()
            / rate["operations_per_second"]["median"].as_f64().unwrap()
    };
    // Bytes and operations are counted at slightly different moments, which differ more on a busy machine.
    for (row, size) in rows.iter().zip([4096.0, 65536.0]) {
        assert!((size / 2.0..size * 2.0).contains(&bytes(row)), "{} bytes in each operation", bytes(row));
    }
}

#[test]
fn a_full_disk_is_told_after_the_text_was_printed() {
    let Ok(mut full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
        eprintln!("SKIPPED a_full_disk_is_told_after_the_text_was_printed: /dev/full is missing");
        return;
    };
    assert!(full.write_all(b"x").is_err());
    let output = inlane(&[&["--load", "cpu", "--json", "/dev/full"][..], &SHORT].concat());
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    assert!(errors(&output).contains("No space left"), "{}", errors(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("| cpu "));
}

#[test]
fn the_shipped_scenarios_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/mix");
    let mut number = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.display().to_string();
        let mut draft = inlane_mix::Draft::default();
        draft.add_file(&name, &text).unwrap();
        assert!(!draft.title.is_empty(), "{name}");
        // Give each open parameter a value that fits any machine.
        let open: Vec<String> = draft.parameters.keys().cloned().collect();
        for key in open {
            let value = match key.as_str() {
                key if key.ends_with("cores") => "0",
                "tx_queues" => "1",
                "target" => "127.0.0.1:4420",
                "rate" => "1Gb/s",
                "port" => "null",
                "card" if !name.ends_with("-gpu.toml") => "twin:0",
                _ => continue,
            };
            draft.set(&key, value).unwrap();
        }
        let cores = draft.scenario(&[]).map(|scenario| scenario.loads.len());
        assert!(cores.is_ok(), "{name}: {cores:?}");
        number += 1;
    }
    assert_eq!(number, 11);
}
