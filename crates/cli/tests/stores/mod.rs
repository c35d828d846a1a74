//! Two engines on one host that store data into each other's memory.

use super::joined::Joined;
use super::{ENGINE, Running, must};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The clients of `peer.py` that need no certain address.
pub const CLIENTS: [&str; 15] = [
    "mixed",
    "threads",
    "forked",
    "spawned",
    "passed",
    "killed",
    "reads",
    "reused",
    "interrupted",
    "ended",
    "waits",
    "signalled",
    "limited",
    "events",
    "crowded",
];

/// Starts a server on engine 0.
fn serve(joined: &Joined, port: &str) -> Running {
    let mut server = program(joined, 0, ["serve", port]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Running(server)
}

/// Returns the command of a program on an engine.
fn program(joined: &Joined, side: usize, arguments: [&str; 2]) -> Command {
    let mut command = joined.offloaded(side);
    command.args(["-c", super::direct::PEER]).args(arguments).env("INLANE_TEST_ADDRESS", ENGINE);
    command
}

/// Runs all programs for shared memory between two engines. Returns the states of the engines.
fn run_programs(threads: usize, flags: &[&str]) -> Option<[serde_json::Value; 2]> {
    let joined = Joined::start("memif", threads, flags)?;
    for (index, client) in CLIENTS.iter().enumerate() {
        let port = (5000 + index).to_string();
        let _server = serve(&joined, &port);
        let said = must(&mut program(&joined, 1, [client, &port]));
        assert_eq!(String::from_utf8_lossy(&said), "all right\n", "{client}");
    }
    Some([0, 1].map(|side| joined.status_of(side)))
}

fn count(status: &serde_json::Value, name: &str) -> u64 {
    status["rdma"][name].as_u64().unwrap()
}

const RDMA: [&str; 4] = ["--transport", "rdma", "--spin", "300us"];

#[test]
fn programs_use_memory_of_the_peers_engine_as_they_use_packets() {
    let Some(statuses) = run_programs(1, &RDMA) else { return };
    // How many at the client depends on when its engine finds bytes that the program has not taken yet.
    assert!(count(&statuses[0], "stored_bytes") > 0, "{}", statuses[0]);
    for status in statuses {
        let all = status["connections"]["received_bytes"].as_u64().unwrap();
        assert_eq!(count(&status, "stored_bytes") + count(&status, "placed_bytes"), all, "{status}");
        assert_eq!(count(&status, "returned") + count(&status, "refused_range"), 0, "{status}");
    }
}

#[test]
fn engines_with_two_threads_store_and_an_engine_can_refuse() {
    for transport in ["rdma", "rdma-packets"] {
        let Some(joined) = Joined::start("memif", 2, &["--transport", transport, "--spin", "300us"]) else {
            return;
        };
        let _server = serve(&joined, "5000");
        let stores = transport == "rdma";
        let mut statuses = [0, 1].map(|side| joined.status_of(side));
        // On a busy machine, a connection may end before its ring is shared.
        for round in 0..20 {
            if round > 0 && (!stores || count(&statuses[0], "stored_bytes") > 0) {
                break;
            }
            let said = must(&mut program(&joined, 1, ["mixed", "5000"]));
            assert_eq!(String::from_utf8_lossy(&said), "all right\n");
            statuses = [0, 1].map(|side| joined.status_of(side));
        }
        let stored = statuses.each_ref().map(|status| count(status, "stored_bytes"));
        // The client often waits in select, so its engine may share nothing.
        assert_eq!(stored[0] > 0, stores, "{statuses:?}");
        assert!(stores || stored[1] == 0, "{statuses:?}");
    }
}

/// The program takes a message that the client's engine has stored, answers and closes, while its own engine is stopped. On a busy
/// machine, most messages come by packets, and the program sees them only after the stop.
#[test]
fn an_answer_arrives_whole_if_the_program_closes_before_its_engine_sees_the_question() {
    let Some(joined) = Joined::start("memif", 1, &RDMA) else { return };
    for port in 5000..5010 {
        let port = port.to_string();
        let mut server = program(&joined, 0, ["answer", &port]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let _server = Running(server);
        let (closed, closes) = std::sync::mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(closed.send(line))));
        let mut client = program(&joined, 1, ["question", &port]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "warm");
        joined.signal(0, libc::SIGSTOP);
        drop(client.stdin.take());
        let _ = closes.recv_timeout(Duration::from_millis(200));
        joined.signal(0, libc::SIGCONT);
        assert_eq!(lines.next().unwrap().unwrap(), "all right");
        assert!(client.wait().unwrap().success());
    }
}

/// A stopped engine delays the bytes. Those of a killed one end with it.
#[test]
fn connections_outlive_stops_of_an_engine_and_end_with_it() {
    let Some(mut joined) = Joined::start("memif", 1, &RDMA) else { return };
    let _server = serve(&joined, "5000");
    let mut client = program(&joined, 1, ["mixed", "5000"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stops = 0;
    while client.try_wait().unwrap().is_none() {
        let side = stops % 2;
        joined.signal(side, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(20));
        joined.signal(side, libc::SIGCONT);
        std::thread::sleep(Duration::from_millis(20));
        stops += 1;
    }
    let said = client.wait_with_output().unwrap().stdout;
    assert_eq!(String::from_utf8_lossy(&said), "all right\n", "{stops} stops");

    let mut client = program(&joined, 1, ["lasting", "5000"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "sending");
    let before = count(&joined.status_of(0), "stored_bytes");
    let limit = Instant::now() + Duration::from_secs(60);
    while count(&joined.status_of(0), "stored_bytes") == before {
        assert!(Instant::now() < limit, "{}", joined.status_of(0));
    }
    joined.kill(0);
    assert_eq!(lines.next().unwrap().unwrap(), "all right");
    assert!(client.wait().unwrap().success());
}
