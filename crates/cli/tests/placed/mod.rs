//! Receives whose bytes the engine places directly into the program's buffer. `placed.c` checks every byte, and that a buffer that
//! was given back is never written again.

use super::joined::Joined;
use super::{ENGINE, Running, must};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PLACED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/placed/placed.c");
const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../preload/include");

/// The bursts that a source sends to a sink.
const BURSTS: u32 = 100;
/// The bursts of a short connection. On a busy machine, the first bytes of a connection are the most likely to find a waiting sink.
const FEW: u32 = 10;

const CASES: [&str; 8] = ["plain", "whole", "timeouts", "signals", "peek", "readers", "cancel", "shared"];

/// Starts two engines, and compiles the program with this compiler. Returns `None` if the machine lacks something.
fn start(compiler: &str, transport: &str) -> Option<(Joined, PathBuf)> {
    if Command::new(compiler).arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED placed: the program {compiler} is missing");
        return None;
    }
    let joined = Joined::start("memif", 1, &["--transport", transport, "--spin", "1ms"])?;
    let program = joined.control(0).with_file_name("placed");
    let flags = ["-O2", "-Wall", "-pthread", "-I", HEADERS, "-o"];
    must(Command::new(compiler).args(flags).arg(&program).arg(PLACED).arg("-ldl"));
    Some((joined, program))
}

/// Runs a source at engine 1 and a sink at engine 0. Calls `meanwhile` again and again until the sink has ended.
fn receive(joined: &Joined, program: &Path, port: u16, case: &str, bursts: u32, mut meanwhile: impl FnMut()) {
    let (port, bursts) = (port.to_string(), bursts.to_string());
    let mut sink = joined.runs(0, program);
    let mut sink = sink.args(["sink", ENGINE, &port, case]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(sink.stdout.take().unwrap()).lines();
    let mut sink = Running(sink);
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let lossy = ["lossy"].into_iter().filter(|_| case == "cancel");
    let _source = Running(
        joined.runs(1, program).args(["source", ENGINE, &port, &bursts]).args(lossy).spawn().unwrap(),
    );
    let start = Instant::now();
    while sink.0.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(90), "{case} hangs: {}", joined.status_of(0));
        meanwhile();
    }
    let line = lines.next().unwrap_or_else(|| panic!("the sink failed: {case}")).unwrap();
    assert!(line.starts_with("all right "), "{case}: {line}");
}

fn nothing() {
    std::thread::sleep(Duration::from_millis(5));
}

fn placed(joined: &Joined) -> u64 {
    joined.status_of(0)["connections"]["buffer_bytes"].as_u64().unwrap()
}

/// Runs the cases, and then the first again until some bytes were placed: on a busy machine, they seldom arrive while the sink waits.
fn check(joined: &Joined, program: &Path, cases: &[&str]) {
    for (port, case) in (5000..).zip(cases) {
        receive(joined, program, port, case, BURSTS, nothing);
    }
    let start = Instant::now();
    for port in 6000.. {
        if placed(joined) > 0 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(80), "nothing is placed: {}", joined.status_of(0));
        receive(joined, program, port, cases[0], FEW, nothing);
    }
    let status = joined.status_of(0);
    let count = |name: &str| status["connections"][name].as_u64().unwrap();
    let received = count("buffer_bytes") + count("ring_bytes") + count("pair_bytes");
    assert_eq!((received, count("hostile")), (count("received_bytes"), 0), "{status}");
}

#[test]
fn buffers_that_were_given_back_are_never_written_by_tcp() {
    let Some((joined, program)) = start("cc", "tcp") else { return };
    check(&joined, &program, &CASES);
}

#[test]
fn buffers_that_were_given_back_are_never_written_by_rdma() {
    let Some((joined, program)) = start("cc", "rdma-packets") else { return };
    check(&joined, &program, &CASES);
}

/// The peer's engine stores into the ring, and no buffer is posted while it publishes.
#[test]
fn buffers_and_stores_of_the_peers_engine_lose_no_byte() {
    let Some((joined, program)) = start("cc", "rdma") else { return };
    for (port, case) in (5000..).zip(["plain", "whole", "readers"]) {
        receive(&joined, &program, port, case, BURSTS, nothing);
    }
}

#[test]
fn programs_of_musl_receive_into_their_buffers() {
    let Some((joined, program)) = start("musl-gcc", "tcp") else { return };
    check(&joined, &program, &["plain", "whole", "cancel"]);
}

/// The sink's receives end by their timeouts while its engine is stopped, also in the middle of a write into a buffer.
#[test]
fn an_engine_that_is_stopped_does_not_write_later() {
    let Some((joined, program)) = start("cc", "tcp") else { return };
    let mut stops = 0;
    receive(&joined, &program, 5000, "timeouts", BURSTS, || {
        std::thread::sleep(Duration::from_millis(10));
        joined.signal(0, libc::SIGSTOP);
        // Some stops are longer than the program waits for a write of the engine.
        std::thread::sleep(Duration::from_millis(if stops % 8 == 0 { 250 } else { 20 }));
        joined.signal(0, libc::SIGCONT);
        stops += 1;
    });
    assert!(stops > 0);
}
