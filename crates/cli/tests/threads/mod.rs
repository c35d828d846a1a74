//! Tests of an engine with two threads, each with a queue of a veth. `peer.py` runs on the engine and on the
//! kernel's stack, and checks every byte.

use super::joined::FAULTS;
use super::{ENGINE, KERNEL, Lab, Running, must};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const PEER: &str = include_str!("peer.py");
pub const PYTHON: &str = "/usr/bin/python3";

/// Starts an engine with two threads. Returns `None` if the test cannot run on this machine.
fn start(test: &str, more: &[&str]) -> Option<Lab> {
    let mut lab = Lab::with_queues(test, &[("python3", "python3")], 2)?;
    lab.serve(&[&["--threads", "2", "--loopback"], more].concat());
    Some(lab)
}

/// Starts `peer.py serve` and waits until it listens.
pub fn serve(mut command: Command, address: &str) -> Running {
    command.args(["-c", PEER, "serve", address, "5000"]).stdout(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Running(server)
}

/// Runs `peer.py ROLE` against the server at `address`.
pub fn check(mut command: Command, role: &str, address: &str) {
    let said = must(command.args(["-c", PEER, role, address, "5000"]));
    assert_eq!(String::from_utf8_lossy(&said), "all right\n");
}

#[test]
fn two_threads_serve_connections_in_all_directions() {
    let Some(lab) = start("threads", &[]) else { return };
    for address in [ENGINE, "fd79::1"] {
        let _server = serve(lab.offloaded(PYTHON), address);
        check(lab.on_kernel(PYTHON), "check", address);
        check(lab.offloaded(PYTHON), "check", address);
    }
    for address in [KERNEL, "fd79::2"] {
        let _server = serve(lab.on_kernel(PYTHON), address);
        check(lab.offloaded(PYTHON), "check", address);
    }
    let status = lab.status();
    let threads = status["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2);
    for thread in threads {
        for counter in ["received_packets", "sent_packets", "cpu_ns"] {
            assert!(thread[counter].as_u64().unwrap() > 0, "{counter}: {status}");
        }
    }
    lab.wait("a socket is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
    let connections = &lab.status()["connections"];
    assert!(connections["accepted"].as_u64().unwrap() > 800, "{connections}");
    assert!(connections["connected"].as_u64().unwrap() > 800, "{connections}");
}

#[test]
fn two_threads_survive_loss_and_reordering() {
    let Some(lab) = start("threads-faults", FAULTS) else {
        return;
    };
    let server = serve(lab.offloaded(PYTHON), ENGINE);
    check(lab.on_kernel(PYTHON), "streams", ENGINE);
    drop(server);
    lab.wait("a socket is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

#[test]
fn connections_of_all_threads_are_reset_if_the_engine_is_killed() {
    let Some(mut lab) = start("threads-killed", &[]) else { return };
    let _server = serve(lab.on_kernel(PYTHON), KERNEL);
    let mut client = lab.offloaded(PYTHON);
    client.args(["-c", PEER, "held", KERNEL, "5000"]).stdout(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "running");
    let mut engine = lab.engine.take().unwrap();
    engine.kill().unwrap();
    engine.wait().unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "all right");
    assert!(client.wait().unwrap().success());
}

#[test]
fn sockets_of_two_threads_behave_as_programs_expect() {
    let Some(mut lab) = start("threads-sockets", &[]) else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sockets.py");
    must(lab.offloaded("python3").arg(script));
    let engine = lab.engine.as_mut().unwrap();
    // SAFETY: the process ID is still the child's, because nobody has waited for the child yet.
    unsafe { libc::kill(engine.id() as i32, libc::SIGTERM) };
    assert!(engine.wait().unwrap().success());
    assert!(!lab.socket().exists());
}

#[test]
fn more_threads_than_queues_are_refused_with_a_remedy() {
    let Some(lab) = Lab::with_queues("threads-few", &[], 2) else { return };
    for (flags, status, expected) in [
        (["--threads", "3"], 2, "give --threads 2 or less"),
        (["--threads", "0"], 2, "1 to 64"),
        (["--cores", "0,0"], 2, "--cores"),
    ] {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &lab.name("e"), env!("CARGO_BIN_EXE_inlane"), "offload", "serve"]);
        command.args(["--port", "af_xdp:e0", "--address", "10.79.0.1/24", "--socket"]).arg(lab.socket());
        let output = command.args(flags).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{flags:?}: {said}");
        assert!(said.contains(expected), "{flags:?}: {said}");
    }
}
