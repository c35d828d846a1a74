//! What a hostile program, and an engine that has stopped, can do to other programs.

use super::*;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/peer.py");

/// A program sends the engine descriptors whose close blocks for ten seconds, in each way that it can.
#[test]
fn descriptors_whose_close_blocks_delay_nobody() {
    let Some(mut lab) = Lab::new("blocking", &[("python3", "python3")]) else { return };
    lab.serve(&[]);
    let _echo = Running::start(lab.on_kernel("python3").args([SCRIPT, "echo", KERNEL]));
    let mut exchange = lab.offloaded("python3");
    let exchange = exchange.args([SCRIPT, "exchange", KERNEL]).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut exchange = exchange.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(exchange.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "connected");
    let sent = must(lab.offloaded("python3").args([SCRIPT, "block", KERNEL]).arg(lab.socket()));
    assert_eq!(String::from_utf8_lossy(&sent), "sent 5\n");
    std::thread::sleep(Duration::from_secs(1));
    drop(exchange.stdin.take());
    let longest: f64 = lines.next().unwrap().unwrap().parse().unwrap();
    assert!(longest < 3.0, "one exchange took {longest} s");
    assert!(exchange.wait().unwrap().success());
    assert_eq!(lab.count("connected"), 4);
}

/// A program connects without waiting for the engine, as programs of root with one thread do.
#[test]
fn a_connect_does_not_wait_for_an_engine_that_has_stopped() {
    let Some(mut lab) = Lab::new("stopped", &[("python3", "python3")]) else { return };
    lab.serve(&["--loopback"]);
    // The kernel's listener has the same address as the one on the engine.
    let kernel = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = kernel.local_addr().unwrap().port().to_string();
    let mut program = lab.offloaded("python3");
    let program = program.args([SCRIPT, "connect", &port]).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(program.stdout.take().unwrap()));
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "connected");
    // The program waits for a peer that does not answer its SYNs, because the engine answers.
    let seconds: f64 = next().parse().unwrap();
    assert!(seconds >= 13.0, "the connect failed after {seconds} s");
    let engine = lab.engine.as_ref().unwrap().id() as i32;
    // SAFETY: the child was not yet waited for, so the id is still its own.
    unsafe { libc::kill(engine, libc::SIGSTOP) };
    let start = Instant::now();
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    let local = next();
    assert!(start.elapsed() < Duration::from_secs(45), "{:?}", start.elapsed());
    // SAFETY: as above.
    unsafe { libc::kill(engine, libc::SIGCONT) };
    assert_eq!(kernel.accept().unwrap().1.to_string(), local, "the kernel connects the second time");
    assert!(program.wait().unwrap().success());
    lab.wait("a socket is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}
