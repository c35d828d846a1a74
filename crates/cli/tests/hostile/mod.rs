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
    // A close that blocks lasts for ten seconds.
    assert!(longest < 8.0, "one exchange took {longest} s");
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

/// A program that waits for an engine that has stopped.
struct Waiting {
    program: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Waiting {
    fn start(lab: &Lab, arguments: &[&str]) -> Self {
        let mut program = lab.offloaded("python3");
        let program = program.arg(SCRIPT).args(arguments).stdout(Stdio::piped()).stdin(Stdio::piped());
        let mut program = program.spawn().unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(program.stdout.take().unwrap()));
        Self { program, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn go_on(&mut self) {
        self.program.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

/// As on the kernel, a time limit and a signal end a connect. Nobody sees the connection that was given up.
#[test]
fn a_connect_to_an_engine_that_has_stopped_ends_at_its_limit_and_by_signals() {
    let Some(mut lab) = Lab::new("given-up", &[("python3", "python3")]) else { return };
    lab.serve(&["--loopback"]);
    let mut programs = ["limit", "signal"].map(|how| Waiting::start(&lab, &["give-up", how]));
    for program in &mut programs {
        assert_eq!(program.line(), "connected");
    }
    let connected = lab.count("connected");
    let engine = lab.engine.as_ref().unwrap().id() as i32;
    // SAFETY: the child was not yet waited for, so the id is still its own.
    unsafe { libc::kill(engine, libc::SIGSTOP) };
    programs.iter_mut().for_each(Waiting::go_on);
    let seconds = [0, 1].map(|index| programs[index].line().parse::<f64>().unwrap());
    // SAFETY: as above.
    unsafe { libc::kill(engine, libc::SIGCONT) };
    for ((program, seconds), least) in programs.iter_mut().zip(seconds).zip([3.9, 11.9]) {
        assert!((least..least + 30.0).contains(&seconds), "the connect ended after {seconds} s");
        program.go_on();
    }
    for program in &mut programs {
        assert_eq!((program.line(), program.line()), ("nothing".into(), "connected".into()));
        assert!(program.program.wait().unwrap().success());
    }
    assert_eq!(lab.count("connected"), connected + 2);
    lab.wait("a socket is left", || lab.status()["sockets"].as_array().unwrap().is_empty());
}

/// Starts an engine and the program `peer.py MODE`, and stops the engine once the program has connected.
fn stopped(test: &str, mode: &str) -> Option<(Lab, Waiting, i32)> {
    let mut lab = Lab::new(test, &[("python3", "python3")])?;
    lab.serve(&["--loopback"]);
    let mut program = Waiting::start(&lab, &[mode]);
    assert_eq!(program.line(), "connected");
    let engine = lab.engine.as_ref().unwrap().id() as i32;
    // SAFETY: the child was not yet waited for, so the id is still its own.
    unsafe { libc::kill(engine, libc::SIGSTOP) };
    program.go_on();
    Some((lab, program, engine))
}

/// Nobody sees a connection that was given up, however the program closes it.
#[test]
fn each_way_to_close_a_descriptor_withdraws_a_connect_that_was_given_up() {
    let Some((_lab, mut program, engine)) = stopped("withdrawn", "withdraw") else { return };
    assert_eq!(program.line(), "closed []");
    // SAFETY: the child was not yet waited for, so the id is still its own.
    unsafe { libc::kill(engine, libc::SIGCONT) };
    program.go_on();
    assert_eq!(program.line(), "child 0 arrived 5");
    assert!(program.program.wait().unwrap().success());
}

/// The kernel's connect continues after the handler of a signal with SA_RESTART, and fails after one without.
#[test]
fn only_signals_without_sa_restart_end_a_connect() {
    let Some((_lab, mut program, engine)) = stopped("restarted", "restart") else { return };
    assert_eq!(program.line(), format!("-1 {} False", libc::EINTR));
    assert_eq!(program.line(), "waiting");
    // The program tells whether a connect took more than 2 s.
    std::thread::sleep(Duration::from_secs(4));
    // SAFETY: the child was not yet waited for, so the id is still its own.
    unsafe { libc::kill(engine, libc::SIGCONT) };
    let line = program.line();
    assert!(line.starts_with("0 ") && line.ends_with("True"), "{line}");
    assert!(program.program.wait().unwrap().success());
}

/// A connect with a time limit fails if the engine does not answer the request, and succeeds later.
#[test]
fn a_connect_succeeds_after_one_that_the_engine_did_not_answer_in_time() {
    let Some((_lab, mut program, engine)) = stopped("retried", "retry") else { return };
    assert_eq!(program.line(), format!("-1 {}", libc::ETIMEDOUT));
    // SAFETY: the child was not yet waited for, so the id is still its own.
    unsafe { libc::kill(engine, libc::SIGCONT) };
    program.go_on();
    let line = program.line();
    assert!(line.starts_with("0 ") && line.ends_with(" 1"), "{line}");
    assert!(program.program.wait().unwrap().success());
}
