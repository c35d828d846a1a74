//! Tests of connections whose bytes go through memory that the engine shares with programs. Client and server
//! run `peer.py`, and the engine runs their sockets. The client checks every byte.

use super::{Lab, Running, must};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

pub const PEER: &str = include_str!("peer.py");
const KEPT: &str = include_str!("kept.py");
const OPENED: &str = include_str!("opened.py");
const SLEEPERS: &str = include_str!("sleepers.py");
const ITSELF: &str = include_str!("itself.py");
const PYTHON: &str = "/usr/bin/python3";
const CANCEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/direct/cancel.c");
const PROCESSES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/direct/processes.c");
const WHOLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/direct/whole.c");
const REGISTRATIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/direct/registrations.c");

fn start(test: &str) -> Option<Lab> {
    start_with(test, &[])
}

/// Does the same as [`start`], for a test that needs other programs. Each entry has a program, and the name
/// of the package that contains it.
fn start_with(test: &str, programs: &[(&str, &str)]) -> Option<Lab> {
    let mut lab = Lab::new(test, &[&[("python3", "python3")], programs].concat())?;
    lab.serve(&["--loopback", "--spin", "300us"]);
    Some(lab)
}

fn serve(lab: &Lab, port: &str) -> Running {
    serve_as(lab, "serve", port)
}

fn serve_as(lab: &Lab, role: &str, port: &str) -> Running {
    let mut command = lab.offloaded(PYTHON);
    command.args(["-c", PEER, role, port]).stdout(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Running(server)
}

/// Runs the clients of `peer.py` one after another. Each client has its own server. All clients must succeed. Connections get
/// a slot once they are used often.
fn check(lab: &Lab, clients: &[&str]) {
    check_with(lab, clients, &[]);
}

/// Does the same as [`check`], for connections that have slots from the start.
fn check_from_start(lab: &Lab, clients: &[&str]) {
    check_with(lab, clients, &["many"]);
}

fn check_with(lab: &Lab, clients: &[&str], more: &[&str]) {
    for (index, client) in clients.iter().enumerate() {
        let port = (5000 + index).to_string();
        let _server = serve(lab, &port);
        let said = must(lab.offloaded(PYTHON).args(["-c", PEER, client, &port]).args(more));
        assert_eq!(String::from_utf8_lossy(&said), "all right\n", "{client}");
    }
}

fn direct_bytes(lab: &Lab) -> u64 {
    lab.status()["connections"]["direct_bytes"].as_u64().unwrap()
}

/// Exchanges messages until at least 10,000 bytes have gone through shared memory. On a busy machine this takes
/// several attempts, because the engine often sleeps between two messages.
fn exchange_directly(lab: &Lab) {
    let start = Instant::now();
    for port in 6000.. {
        if direct_bytes(lab) > 10_000 {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no shared memory is used: {}", lab.status());
        let port = port.to_string();
        let _server = serve(lab, &port);
        must(lab.offloaded(PYTHON).args(["-c", PEER, "exchanges", &port]));
    }
}

#[test]
fn bytes_keep_their_order_whatever_function_sends_them() {
    let Some(lab) = start("direct-order") else { return };
    check(&lab, &["mixed", "threads", "unread", "unasked"]);
    exchange_directly(&lab);
}

/// A program that sends faster than the network finds the ring full at nearly every call.
#[test]
fn bulk_data_of_a_blocking_sender_stays_in_the_ring() {
    let Some(lab) = start("direct-bulk") else { return };
    let _server = serve_as(&lab, "drain", "5000");
    let start = Instant::now();
    loop {
        let mut command = lab.offloaded(PYTHON);
        command.args(["-c", PEER, "bulk", "5000"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = Running(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(client.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "sent\n");
        let status = lab.status();
        let number = |socket: &serde_json::Value, name: &str| socket[name].as_u64().unwrap_or(0);
        let sockets = status["sockets"].as_array().unwrap();
        let sender = sockets.iter().max_by_key(|socket| number(socket, "sent_bytes")).unwrap();
        if number(sender, "direct_bytes") > 16 << 20 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "most bytes went through the pair: {status}");
    }
}

/// Both ends of such a connection open it at the same time, and have the same sequence numbers.
#[test]
fn a_socket_that_is_connected_to_itself_gets_all_bytes() {
    let Some(lab) = start("direct-itself") else { return };
    let said = must(lab.offloaded(PYTHON).args(["-c", ITSELF]));
    assert_eq!(String::from_utf8_lossy(&said), "all right\n");
}

#[test]
fn processes_that_share_a_connection_lose_no_byte() {
    let Some(lab) = start("direct-processes") else { return };
    check(&lab, &["forked", "spawned", "passed", "killed"]);
    exchange_directly(&lab);
}

#[test]
fn calls_on_a_connection_with_shared_memory_behave_as_the_kernels() {
    let Some(lab) = start("direct-calls") else { return };
    check(&lab, &["reads", "reused", "interrupted", "ended", "high"]);
    exchange_directly(&lab);
    lab.wait("a connection is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

#[test]
fn waits_for_connections_with_shared_memory_report_what_the_kernels_do() {
    let Some(lab) = start("direct-waits") else { return };
    check(&lab, &["waits", "signalled", "limited"]);
    exchange_directly(&lab);
}

#[test]
fn event_driven_programs_get_each_byte_once_and_see_the_events_of_the_kernel() {
    let Some(lab) = start("direct-events") else { return };
    check(&lab, &["events", "crowded", "reset", "unregistered"]);
    exchange_directly(&lab);
}

/// Starts a role of `sleepers.py`, and waits for its first line.
fn start_sleepers(lab: &Lab, role: &str, port: &str) -> Running {
    let mut command = lab.offloaded(PYTHON);
    command.args(["-c", SLEEPERS, role, port]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(["ready\n", "done\n"].contains(&&line[..]), "{role}: {line}");
    program
}

/// A server that sleeps gets the messages of all connections but one through shared memory.
#[test]
fn one_message_of_many_wakes_a_server_that_sleeps() {
    let Some(lab) = start("direct-sleepers") else { return };
    let start = Instant::now();
    for port in 5000.. {
        let port = port.to_string();
        let _server = start_sleepers(&lab, "serve", &port);
        let _client = start_sleepers(&lab, "client", &port);
        let status = lab.status();
        let sockets = status["sockets"].as_array().unwrap();
        let of_server =
            |socket: &&serde_json::Value| socket["local"].as_str().unwrap().ends_with(&format!(":{port}"));
        let ring_bytes = |socket: &serde_json::Value| socket["ring_bytes"].as_u64().unwrap_or(0);
        let ring: u64 = sockets.iter().filter(of_server).map(ring_bytes).sum();
        // 24 connections have carried 40 messages of 4 bytes.
        if ring > 24 * 40 * 4 / 4 {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "only {ring} bytes went through shared memory");
    }
}

/// No connection sends often enough to request a slot.
#[test]
fn the_first_bytes_of_many_short_connections_go_through_shared_memory() {
    let Some(lab) = start("direct-short") else { return };
    let _server = serve(&lab, "5000");
    let start = Instant::now();
    while direct_bytes(&lab) < 100 {
        assert!(start.elapsed() < Duration::from_secs(60), "no shared memory is used: {}", lab.status());
        must(lab.offloaded(PYTHON).args(["-c", PEER, "short", "5000"]));
    }
}

/// The engine polls for long, because a pair is kept only while it is awake.
#[test]
fn accepted_connections_over_kept_pairs_behave_as_others() {
    let Some(mut lab) = Lab::new("direct-kept", &[("python3", "python3")]) else { return };
    lab.serve(&["--loopback", "--spin", "100ms"]);
    let said = must(lab.offloaded(PYTHON).args(["-c", KEPT]));
    assert_eq!(String::from_utf8_lossy(&said), "all right\n");
    lab.wait("a connection is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

/// As for accepted connections, the engine polls for long.
#[test]
fn connections_opened_over_kept_pairs_behave_as_others() {
    let Some(mut lab) = Lab::new("direct-opened", &[("python3", "python3")]) else { return };
    lab.serve(&["--loopback", "--spin", "100ms"]);
    for part in ["hostile", "all"] {
        let said = must(lab.offloaded(PYTHON).args(["-c", OPENED, part]));
        assert_eq!(String::from_utf8_lossy(&said), "all right\n");
        lab.wait("a connection is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
    }
}

#[test]
fn an_engine_with_threads_opens_connections_over_kept_pairs() {
    let Some(mut lab) = Lab::with_queues("direct-opened-threads", &[("python3", "python3")], 2) else {
        return;
    };
    lab.serve(&["--loopback", "--spin", "100ms", "--threads", "2"]);
    let said = must(lab.offloaded(PYTHON).args(["-c", OPENED, "threads"]));
    assert_eq!(String::from_utf8_lossy(&said), "all right\n");
    lab.wait("a connection is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

#[test]
fn kept_pairs_of_an_engine_that_has_ended_get_no_connection() {
    let Some(mut lab) = Lab::new("direct-opened-end", &[("python3", "python3")]) else { return };
    lab.serve(&["--loopback", "--spin", "100ms"]);
    let mut command = lab.offloaded(PYTHON);
    command.args(["-c", OPENED, "restart"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let mut engine = lab.engine.take().unwrap();
    engine.kill().unwrap();
    engine.wait().unwrap();
    lab.serve(&["--loopback", "--spin", "100ms"]);
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "all right");
    assert!(program.wait().unwrap().success());
}

#[test]
fn accept_finds_each_connection_that_waits() {
    let Some(lab) = start("direct-accepts") else { return };
    let said = must(lab.offloaded(PYTHON).args(["-c", PEER, "accepts", "5000"]));
    assert_eq!(String::from_utf8_lossy(&said), "all right\n");
    lab.wait("a connection is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

/// Each connection gets the slot of the one before, whose registration in an epoll instance the library still has.
#[test]
fn bytes_that_arrive_before_the_accept_stay_in_shared_memory() {
    let Some(lab) = start("direct-queued") else { return };
    let start = Instant::now();
    loop {
        let before = direct_bytes(&lab);
        let said = must(lab.offloaded(PYTHON).args(["-c", PEER, "queued", "5000"]));
        assert_eq!(String::from_utf8_lossy(&said), "all right\n");
        if direct_bytes(&lab) >= before + 30 {
            return;
        }
        // On a busy machine, the program takes the bytes too late.
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "few bytes go through shared memory: {}",
            lab.status()
        );
    }
}

#[test]
fn slots_from_the_start_behave_as_those_that_a_connection_gets_later() {
    let Some(lab) = start("direct-start") else { return };
    check_from_start(&lab, &["mixed", "threads", "unread", "forked", "spawned", "passed", "killed"]);
    check_from_start(&lab, &["reads", "reused", "interrupted", "ended", "high"]);
    lab.wait("a connection is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

#[test]
fn waits_for_slots_from_the_start_report_what_the_kernels_do() {
    let Some(lab) = start("direct-start-waits") else { return };
    check_from_start(&lab, &["waits", "signalled", "limited", "events", "crowded", "reset", "unregistered"]);
    lab.wait("a connection is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

#[test]
fn a_hostile_program_harms_only_its_own_connections() {
    let Some(lab) = start("direct-hostile") else { return };
    let before = lab.status()["connections"]["hostile"].as_u64().unwrap();
    check(&lab, &["hostile", "reads"]);
    let status = lab.status();
    assert!(status["connections"]["hostile"].as_u64().unwrap() > before, "{status}");
    lab.wait("a connection is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

#[test]
fn a_program_that_sends_through_shared_memory_notices_the_engines_death() {
    let Some(mut lab) = start("direct-death") else { return };
    let _server = serve(&lab, "5000");
    let mut command = lab.offloaded(PYTHON);
    command.args(["-c", PEER, "lasting", "5000"]).stdout(Stdio::piped());
    let mut client = command.spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "sending");
    let mut engine = lab.engine.take().unwrap();
    engine.kill().unwrap();
    engine.wait().unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "all right");
    assert!(client.wait().unwrap().success());
}

/// Compiles a C program into the folder of `lab`.
fn compile(lab: &Lab, source: &str, name: &str) -> String {
    let program = lab.folder.path().join(name);
    must(std::process::Command::new("cc").args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source));
    program.to_str().unwrap().to_owned()
}

#[test]
fn registrations_that_change_at_random_report_the_events_of_the_kernel() {
    let Some(lab) = start_with("direct-registrations", &[("cc", "gcc")]) else { return };
    let program = compile(&lab, REGISTRATIONS, "registrations");
    let _server = serve(&lab, "5000");
    let start = Instant::now();
    for seed in 1.. {
        let said = must(lab.offloaded(&program).args(["127.0.0.1", "5000", &seed.to_string()]));
        assert_eq!(String::from_utf8_lossy(&said), "all right\n");
        if direct_bytes(&lab) > 0 {
            return;
        }
        // On a busy machine, the engine may share no memory with the program.
        assert!(start.elapsed() < Duration::from_secs(60), "no shared memory is used: {}", lab.status());
    }
}

#[test]
fn children_and_reused_descriptors_leave_the_connections_of_a_program_unharmed() {
    let Some(lab) = start_with("direct-children", &[("cc", "gcc")]) else { return };
    let program = compile(&lab, PROCESSES, "processes");
    // The file is read several times, because the connection before it does not always have shared memory.
    for check in ["root", "child", "file", "file", "file", "environment"] {
        let said = must(lab.offloaded(&program).arg(check));
        assert_eq!(
            String::from_utf8_lossy(&said),
            "all right
",
            "{check}"
        );
    }
}

#[test]
fn cancelled_threads_end_in_every_wait_and_bad_pointers_are_errors() {
    let Some(lab) = start_with("direct-cancel", &[("cc", "gcc")]) else { return };
    let program = compile(&lab, CANCEL, "cancel");
    let _server = serve(&lab, "5000");
    let said = must(lab.offloaded(&program).args(["127.0.0.1", "5000"]));
    assert_eq!(String::from_utf8_lossy(&said), "all right\n");
}

/// The rings are shorter than most messages.
#[test]
fn receives_of_whole_messages_go_through_rings_and_end_as_on_the_kernel() {
    let Some(mut lab) = Lab::new("direct-whole", &[("cc", "gcc")]) else { return };
    lab.serve(&["--loopback", "--spin", "300us", "--buffer", "64K"]);
    let program = compile(&lab, WHOLE, "whole");
    let arguments = |port: u32| ["127.0.0.1".to_owned(), port.to_string(), "100".to_owned()];
    let said = must(lab.on_kernel(&program).args(arguments(5000)));
    assert_eq!(String::from_utf8_lossy(&said), "all right\n");
    let start = Instant::now();
    for port in 5000.. {
        let said = must(lab.offloaded(&program).args(arguments(port)));
        assert_eq!(String::from_utf8_lossy(&said), "all right\n");
        // On a busy machine, the engine and the program often sleep.
        if lab.count("ring_bytes") > 1_000_000 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no receive ring is used: {}", lab.status());
    }
}
