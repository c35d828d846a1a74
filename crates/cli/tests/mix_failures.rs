//! Tests sessions of `inlane mix` in which something fails: they end soon, tell what failed, and keep what was measured.

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A session ends within this time, however busy the machine is.
const SOON: Duration = Duration::from_secs(300);

fn inlane(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    command
}

/// Waits until the process has ended. Its output must fit into a pipe.
fn end_of(mut child: Child) -> Output {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > SOON {
            child.kill().unwrap();
            panic!("the session hangs: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Starts a session with short phases whose result goes to `json`.
fn session(loads: &[&str], json: &Path) -> Child {
    let mut arguments = vec!["mix", "--duration", "50ms", "--settle", "20ms", "--limit", "10m"];
    loads.iter().for_each(|load| arguments.extend(["--load", *load]));
    arguments.extend(["--json", json.to_str().unwrap()]);
    inlane(&arguments).spawn().unwrap()
}

/// Checks that a session failed because of `load`, and kept what it had measured. Returns its row.
fn failed(output: &Output, json: &Path, load: &str, why: &str) -> Value {
    assert_eq!(output.status.code(), Some(1), "{}", errors(output));
    let told = errors(output);
    assert!(told.contains(&format!("load {load} failed: ")) && told.contains(why), "{told}");
    let document: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let row = document["results"][0].clone();
    assert!(row["cut"]["load_failed"]["error"].as_str().unwrap().contains(why), "{}", row["cut"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("incomplete"), "{text}");
    row
}

#[test]
fn a_source_that_ends_ends_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let (capture, json) = (folder.path().join("short.pcap"), folder.path().join("mix.json"));
    let to = format!("pcap:{}", capture.display());
    let made = inlane(&["forward", "--rx", "gen:64,packets=1000", "--tx", &to]).spawn().unwrap();
    assert!(end_of(made).status.success());
    let short = format!("forward name=short from={to} to=null");
    let output = end_of(session(&["cpu name=cpu", &short], &json));
    failed(&output, &json, "short", "its source has ended");
}

#[test]
fn a_target_that_vanishes_ends_the_session_with_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("mix.json");
    let mut target =
        inlane(&["nvme", "target", "--listen", "127.0.0.1:0", "--namespace", "memory:16M"]).spawn().unwrap();
    let mut line = String::new();
    let mut told = BufReader::new(target.stderr.take().unwrap());
    let address = loop {
        line.clear();
        assert!(told.read_line(&mut line).unwrap() > 0, "the target ended");
        if let Some(found) = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")) {
            break found.trim_end_matches([',', ';', '.', ':']).to_owned();
        }
    };
    let nvme = format!("nvme name=nvme target={address} depth=4");
    let session = session(&[&nvme, "cpu name=worker"], &json);
    // In this time the load has run in each of its phases.
    support::until_threads_used(&session, "mix-worker", Duration::from_secs(1));
    target.kill().unwrap();
    target.wait().unwrap();
    let row = failed(&end_of(session), &json, "nvme", &address);
    let is_alone = |observation: &&Value| observation["phase"]["alone"]["load"] == 1;
    assert!(row["observations"].as_array().unwrap().iter().any(|of| is_alone(&of)), "{row}");
}

#[test]
fn a_reader_that_leaves_ends_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, json) = (folder.path().join("packets.pcap"), folder.path().join("mix.json"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let tx = format!("tx name=tx to=pcap:{} size=1024", pipe.display());
    // The reader takes 16 MiB, and leaves.
    let reader = Command::new("head").args(["-c", "16M"]).arg(&pipe).stdout(Stdio::null()).spawn().unwrap();
    let output = end_of(session(&[&tx, "cpu name=cpu"], &json));
    failed(&output, &json, "tx", "packets.pcap");
    end_of(reader);
}

#[test]
fn a_rate_out_of_reach_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("mix.json");
    let flags = ["mix", "--duration", "50ms", "--settle", "20ms", "--limit", "0"];
    let loads = ["--load", "cpu name=cpu rate=100Mop/s", "--json", json.to_str().unwrap()];
    let output = end_of(inlane(&[&flags[..], &loads].concat()).spawn().unwrap());
    assert!(output.status.success(), "{}", errors(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("% of its rate, even alone"), "{text}");
}
