//! Tests `inlane nvme` as a process, against inlane's target: discover, read, write, bench and export. If a
//! test needs another program such as QEMU or fio and it is missing, the test prints this and is skipped.

mod ends;
mod failures;
mod nbd;
mod proxy;
#[path = "../support/mod.rs"]
mod support;
mod transfers;
mod workloads;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const INLANE: &str = env!("CARGO_BIN_EXE_inlane");

/// How long a test waits before it fails.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A process that is killed when the value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts inlane and waits until it prints a line with `marker` to standard error. Returns the process and
/// that line.
fn start(arguments: &[&str], marker: &str) -> (Running, String) {
    start_command(Command::new(INLANE).args(arguments), marker)
}

fn start_command(command: &mut Command, marker: &str) -> (Running, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("inlane starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let running = Running(child);
    let line = loop {
        let line = lines.next().expect("the program ended early").expect("text");
        if line.contains(marker) {
            break line;
        }
    };
    // Read the rest of the output, because the program would block on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    (running, line)
}

fn target(namespace: &str) -> (Running, String) {
    let arguments = ["nvme", "target", "--listen", "127.0.0.1:0", "--threads", "1", "--namespace", namespace];
    let (running, line) = start(&arguments, "listens on");
    (running, address_in(&line))
}

fn address_in(line: &str) -> String {
    let address = line.split("listens on ").nth(1).and_then(|rest| rest.split([' ', ',']).next());
    address.expect("an address").to_string()
}

fn inlane(arguments: &[&str]) -> Output {
    inlane_with_input(arguments, &[])
}

fn inlane_with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(INLANE)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("inlane starts");
    // Ignore an error, because a program that fails early does not read its input.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("inlane ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(arguments: &[&str]) -> String {
    let output = inlane(arguments);
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stderr), text(&output.stdout));
    text(&output.stdout)
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n % 251) as u8 ^ (n >> 12) as u8).collect()
}

/// Starts a target and exports its namespace over NBD at a Unix socket. Returns both processes.
fn export(namespace: &str, socket: &Path) -> (Running, Running) {
    let (target, address) = target(namespace);
    let listen = format!("unix:{}", socket.display());
    let (export, _) = start(&["nvme", "export", "nbd", &address, "--listen", &listen], "is exported");
    (target, export)
}

/// Returns true if a program can be run. Otherwise prints that the test is skipped, and returns false.
fn has(test: &str, program: &str) -> bool {
    let found =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("SKIPPED {test}: {program} is missing; run packaging/setup test");
    }
    found
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: the test has not waited for the child yet, so no other process can have its ID.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}
