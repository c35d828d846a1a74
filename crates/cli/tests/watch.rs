//! Watching a run: JSON lines of `--interval`, and pages of `--metrics`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inlane"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Interrupts the command. Returns its exit status and its standard output.
fn interrupt(child: Child) -> (Option<i32>, String) {
    // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reads the address of the page from the command's standard error. The rest of it is discarded.
fn page_of(child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let found = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("metrics on http://")?.1.split_once("/metrics")?.0.to_owned()));
    std::thread::spawn(move || lines.for_each(drop));
    found.expect("the command names its page")
}

/// Gets the page again and again until it has `sample` with a value that `is_wanted`.
fn until_sample(address: &str, sample: &str, is_wanted: impl Fn(f64) -> bool) {
    let begun = Instant::now();
    loop {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let value = page.lines().find_map(|line| line.strip_prefix(sample)?.trim().parse::<f64>().ok());
        if value.is_some_and(&is_wanted) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{sample} in:\n{page}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn lines_are_json_if_the_result_is() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("result.json");
    let arguments =
        ["--rx", "gen:64", "--tx", "check", "--duration", "60s", "--interval", "1s", "--no-baseline"];
    let mut child = start(&[&["forward"], &arguments[..], &["--json", json.to_str().unwrap()]].concat());
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let lines: Vec<serde_json::Value> =
        lines.map_while(Result::ok).filter_map(|line| serde_json::from_str(&line).ok()).take(2).collect();
    let [first, second] = &lines[..] else { panic!("two lines: {lines:?}") };
    assert!(second["elapsed_ns"].as_u64() > first["elapsed_ns"].as_u64());
    let (rx, tx) = (&second["ports"][0], &second["ports"][1]);
    assert_eq!((rx["port"].as_str(), tx["port"].as_str()), (Some("gen:64"), Some("check")));
    assert!(rx["rx"]["packets"].as_u64() > first["ports"][0]["rx"]["packets"].as_u64(), "{lines:?}");
    assert!(tx["tx"]["packets"].as_u64() > Some(0) && rx["tx"].is_null() && tx["rx"].is_null(), "{lines:?}");
    assert_eq!((second["missed_packets"].as_u64(), second["dropped_packets"].as_u64()), (Some(0), Some(0)));
    assert_eq!(interrupt(child).0, Some(0));
}

#[test]
fn pages_show_the_counters_of_a_run_and_of_a_target() {
    let arguments = ["forward", "--rx", "gen:64", "--tx", "null", "--duration", "120s", "--no-baseline"];
    let mut child = start(&[&arguments[..], &["--metrics", "127.0.0.1:0"]].concat());
    let page = page_of(&mut child);
    let sample = "inlane_forward_packets_total{port=\"null\",direction=\"tx\"}";
    until_sample(&page, sample, |packets| packets > 0.0);
    assert_eq!(interrupt(child).0, Some(0));
    let arguments =
        ["nvme", "target", "--listen", "127.0.0.1:0", "--namespace", "memory:1M", "--threads", "1"];
    let mut child = start(&[&arguments[..], &["--keep-privileges", "--metrics", "127.0.0.1:0"]].concat());
    let page = page_of(&mut child);
    until_sample(&page, "inlane_target_namespace_size_bytes{namespace=\"1\"}", |size| size == 1_048_576.0);
    until_sample(&page, "inlane_target_connections_total", |connections| connections == 0.0);
    assert_eq!(interrupt(child).0, Some(0));
}

#[test]
fn a_series_and_a_used_port_are_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let common = ["forward", "--rx", "null:64", "--tx", "null", "--metrics", &address];
    for (more, status, expected) in [
        (&["--sweep", "burst=16,32"][..], 2, "a series has several runs"),
        (&["--duration", "1s"][..], 3, "cannot listen there"),
    ] {
        let output = start(&[&common[..], more].concat()).wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(status) && text.contains(expected), "{text}");
        assert!(text.contains("--metrics"), "{text}");
    }
}
