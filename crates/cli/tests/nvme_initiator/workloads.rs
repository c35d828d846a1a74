//! Tests of `inlane nvme bench`, and of failover between paths.

use super::proxy::Proxy;
use super::*;
use std::sync::atomic::Ordering;
use std::time::Instant;

#[test]
fn workloads_are_verified() {
    let (_target, address) = target("memory:16M");
    for (rw, bs, digests, spin, queues) in [
        ("write", "64K", "none", "0", "1"),
        ("read", "64K", "both", "50us", "2"),
        ("randrw", "4K", "data", "0", "3"),
        ("rw", "512", "header", "50us", "1"),
        ("randwrite", "128K", "both", "0", "2"),
    ] {
        let size = if bs == "512" { "256K" } else { "8M" };
        let bench = ["nvme", "bench", &address, "--rw", rw, "--bs", bs, "--iodepth", "16", "--numjobs", "2"];
        let rest = ["--size", size, "--verify", "crc32c", "--digests", digests, "--json", "-"];
        let document = succeeds(&[&bench[..], &rest, &["--spin", spin, "--queues", queues]].concat());
        let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
        let rows = document["results"].as_array().unwrap();
        assert_eq!(rows.len(), if rw.ends_with("rw") { 2 } else { 1 }, "{rw}");
        for row in rows {
            assert_eq!(row["verification"]["altered_bytes"], 0, "{rw}: {row}");
            assert!(row["operations"].as_u64().unwrap() > 0, "{rw}: {row}");
            assert_eq!(row["io_queues"].to_string(), queues, "{rw}");
            assert_eq!(row["latency_percentiles"].as_array().unwrap().len(), 17, "{rw}");
        }
        let verified: u64 =
            rows.iter().map(|row| row["verification"]["verified_bytes"].as_u64().unwrap()).sum();
        assert!(verified > 0, "{rw}");
    }
    assert!(
        inlane_with_input(&["nvme", "write", &address, "--offset", "64K", "-"], &[7; 4096]).status.success()
    );
    let output = inlane(&[
        "nvme", "bench", &address, "--rw", "read", "--bs", "128K", "--size", "4M", "--verify", "crc32c",
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(
        text(&output.stderr).contains("verification failed: the block at offset 0"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn lists_of_sizes_and_depths_are_measured_in_turns() {
    let (_target, address) = target("memory:16M");
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("figure.svg");
    let series =
        ["--rw", "randrw", "--bs", "4K,16K", "--iodepth", "1,4", "--repeats", "3", "--duration", "30ms"];
    let verify = ["--size", "4M", "--verify", "crc32c", "--json", "-", "--svg", svg.to_str().unwrap()];
    let output = inlane(&[&["nvme", "bench", &address][..], &series, &verify].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = document["results"].as_array().unwrap();
    let points: Vec<_> = rows
        .iter()
        .map(|row| (row["block_bytes"].as_u64(), row["iodepth"].as_u64(), row["operation"].as_str()))
        .collect();
    let expected = [4096, 16384].into_iter().flat_map(|size| [1, 4].map(|depth| (Some(size), Some(depth))));
    let expected: Vec<_> = expected
        .flat_map(|(size, depth)| ["read", "write"].map(|operation| (size, depth, Some(operation))))
        .collect();
    assert_eq!(points, expected);
    for row in rows {
        let rate = &row["repeats"]["operations_per_second"];
        assert_eq!(rate["values"].as_array().unwrap().len(), 3, "{row}");
        assert_eq!(rate["median"], row["operations_per_second"], "the row is that of the median run");
        assert_eq!(row["verification"]["altered_bytes"], 0, "{row}");
    }
    let progress = text(&output.stderr);
    assert!(progress.contains("[12/12] bs 16 KiB, iodepth 4: read "), "{progress}");
    assert!(
        progress.contains("[2/12] bs 4.00 KiB, iodepth 4") || progress.contains("[2/12] bs 4 KiB, iodepth 4"),
        "{progress}"
    );
    assert!(std::fs::read_to_string(&svg).unwrap().contains("iodepth 4"));
    let once = ["--bs", "4K", "--duration", "30ms", "--json", "-"];
    let document = succeeds(&[&["nvme", "bench", &address][..], &once].concat());
    let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    assert!(document["results"][0]["repeats"].is_null());
}

#[test]
fn a_series_ends_with_the_first_failure_and_keeps_what_it_has_measured() {
    let (_target, address) = target("memory:16M");
    // The second size exceeds the range.
    let line = ["--rw", "randread", "--bs", "4K,64K", "--size", "32K", "--duration", "30ms", "--json", "-"];
    let output = inlane(&[&["nvme", "bench", &address][..], &line].concat());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--bs"), "{}", text(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(document["results"].as_array().unwrap().len(), 1);
}

#[test]
fn commands_in_flight_are_sent_again_on_the_other_path() {
    let (_target, address) = target("memory:16M");
    let proxy = Proxy::start(&address);
    let paths = format!("{},{address}", proxy.address);
    let bench = std::thread::spawn(move || {
        succeeds(&[
            "nvme",
            "bench",
            &paths,
            "--rw",
            "randrw",
            "--bs",
            "4K",
            "--iodepth",
            "16",
            "--size",
            "2M",
            "--duration",
            "10s",
            "--verify",
            "crc32c",
            "--json",
            "-",
        ])
    });
    let started = Instant::now();
    while proxy.bytes.load(Ordering::SeqCst) < 1 << 20 {
        assert!(started.elapsed() < TIMEOUT, "no commands pass the first path");
        std::thread::sleep(Duration::from_millis(5));
    }
    proxy.cut();
    let document: serde_json::Value = serde_json::from_str(&bench.join().unwrap()).expect("JSON");
    for row in document["results"].as_array().unwrap() {
        assert_eq!(row["failovers"], 1, "{row}");
        assert_eq!(row["verification"]["altered_bytes"], 0, "{row}");
        assert!(row["path"]["hops"][0].as_array().unwrap().iter().any(|hop| *hop == address), "{row}");
    }
}

/// The blocks that an interrupted run wrote were not checked, so it must not look like a success.
#[test]
fn an_interrupted_verification_fails() {
    let (_target, address) = target("memory:64M");
    let arguments = ["nvme", "bench", &address, "--rw", "write", "--verify", "crc32c", "--duration", "60s"];
    let child = Command::new(INLANE)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    support::until_threads_used(&child, "nvme-0", Duration::from_millis(200));
    signal(&child, libc::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(
        text(&output.stderr).contains("the verification: it was interrupted"),
        "{}",
        text(&output.stderr)
    );
    assert!(
        text(&output.stdout).contains("| write"),
        "the partial result is printed: {}",
        text(&output.stdout)
    );
}
