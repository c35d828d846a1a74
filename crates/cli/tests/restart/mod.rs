//! An engine ends while programs listen, and another one starts.

use super::*;
use std::io::{BufRead, BufReader, Lines};
use std::time::Instant;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/restart/peer.py");

/// How long the programs run without an engine.
const PAUSE: Duration = Duration::from_secs(3);

/// The longest processor time that a server may use during [`PAUSE`]. It wakes once a second.
const MOST_CPU: Duration = Duration::from_millis(300);

/// A program, ended when the value is dropped, and the lines that it prints.
struct Talking {
    child: Child,
    lines: Lines<BufReader<std::process::ChildStdout>>,
}

impl Talking {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> String {
        self.lines.next().expect("the program has ended").unwrap()
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
    }
}

/// Returns the processor time that a process has used.
fn cpu(process: &str) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // The fields of proc_pid_stat(5) that follow the name begin with the third one; utime is the 14th.
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // SAFETY: has no preconditions.
    Duration::from_millis(ticks * 1000 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64)
}

/// Ends the engine of `lab` by `signal`.
fn end_engine(lab: &mut Lab, signal: i32) {
    let mut engine = lab.engine.take().unwrap();
    // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
    unsafe { libc::kill(engine.id() as i32, signal) };
    engine.wait().unwrap();
}

/// Returns the processes of a server, which it prints first.
fn processes(server: &mut Talking, count: usize) -> Vec<String> {
    (0..count).map(|_| server.next().strip_prefix("process ").unwrap().to_owned()).collect()
}

/// Checks that no process uses the processor during [`PAUSE`].
fn check_quiet(processes: &[String], test: &str) {
    let before: Vec<Duration> = processes.iter().map(|process| cpu(process)).collect();
    std::thread::sleep(PAUSE);
    for (process, before) in processes.iter().zip(before) {
        let used = cpu(process) - before;
        assert!(used < MOST_CPU, "{test}: {used:?} of processor time without an engine");
    }
}

/// Runs a server that waits by `wait`. Ends the engine twice by `signal`, and starts another one.
fn check(test: &str, wait: &str, signal: i32, threads: &str) {
    let Some(mut lab) = Lab::with_queues(test, &[("python3", "python3")], threads.parse().unwrap()) else {
        return;
    };
    // An engine that spins shares memory with programs.
    let more =
        ["--spin", if ["block", "accepts"].contains(&wait) { "50us" } else { "0s" }, "--threads", threads];
    lab.serve(&more);
    let mut server = Talking::start(lab.offloaded("python3").args([SCRIPT, "serve", ENGINE, wait]));
    let asks = if wait == "accepts" { 30 } else { 1 };
    let processes = processes(&mut server, if wait == "exclusive" { 2 } else { 1 });
    lab.wait_for_listener(8011);
    for _ in 0..2 {
        let mut client = Talking::start(lab.on_kernel("python3").args([SCRIPT, "hold", ENGINE]));
        assert_eq!(client.next(), "connected");
        end_engine(&mut lab, signal);
        assert_eq!(server.next(), "end ConnectionResetError", "{test}");
        check_quiet(&processes, test);
        lab.serve(&more);
        lab.wait_for_listener(8011);
        client.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let end = client.next();
        assert!(end == "end ConnectionResetError" || end == "end BrokenPipeError", "{test}: {end}");
        // If threads replaced each other's renewed listener, the server would accept about one connection a second.
        let begun = Instant::now();
        must(lab.on_kernel("python3").args([SCRIPT, "ask", ENGINE, &asks.to_string()]));
        for _ in 0..asks {
            assert_eq!(server.next(), "end finished", "{test}");
        }
        assert!(asks == 1 || begun.elapsed() < Duration::from_secs(20), "{test}: {:?}", begun.elapsed());
    }
    let accepted = lab.count("accepted");
    assert_eq!(accepted, asks, "{test}: {}", lab.status());
}

#[test]
fn listeners_in_epoll_outlive_a_killed_engine() {
    check("rs-epoll", "epoll", libc::SIGKILL, "1");
}

#[test]
fn listeners_in_epoll_outlive_a_terminated_engine() {
    check("rs-term", "epoll", libc::SIGTERM, "1");
}

#[test]
fn listeners_of_two_workers_outlive_an_engine() {
    check("rs-workers", "exclusive", libc::SIGKILL, "1");
}

#[test]
fn listeners_in_poll_outlive_an_engine() {
    check("rs-poll", "poll", libc::SIGKILL, "1");
}

#[test]
fn listeners_in_select_outlive_an_engine() {
    check("rs-select", "select", libc::SIGTERM, "1");
}

#[test]
fn listeners_of_blocking_accepts_outlive_an_engine() {
    check("rs-block", "block", libc::SIGKILL, "1");
}

#[test]
fn listeners_of_several_accepting_threads_outlive_an_engine() {
    check("rs-accepts", "accepts", libc::SIGKILL, "1");
}

#[test]
fn listeners_with_a_time_limit_outlive_an_engine() {
    check("rs-timed", "timed", libc::SIGTERM, "1");
}

#[test]
fn listeners_of_two_threads_outlive_an_engine() {
    check("rs-threads", "epoll", libc::SIGKILL, "2");
}
