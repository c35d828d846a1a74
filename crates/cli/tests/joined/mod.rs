//! Two engines joined by shared memory: a memif port or an NTB.

use super::threads::{PYTHON, check, serve};
use super::{ENGINE, Running, build_library, must};
use std::io::{BufRead, BufReader};
use std::process::{ChildStderr, Command, Stdio};

#[test]
fn two_engines_with_two_threads_each_carry_streams_over_memif_with_faults() {
    carry_streams("memif", 2, FAULTS);
}

/// Without faults, frames are read in place.
#[test]
fn two_engines_with_two_threads_each_carry_streams_over_memif() {
    carry_streams("memif", 2, &[]);
}

#[test]
fn two_engines_with_two_threads_each_carry_streams_by_rdma_over_memif() {
    let Some(statuses) = carry_streams("memif", 2, &["--transport", "rdma"]) else { return };
    for status in statuses {
        let count = |name: &str| status["rdma"][name].as_u64().unwrap();
        assert_eq!(
            count("placed_bytes") + count("stored_bytes"),
            status["connections"]["received_bytes"],
            "{status}"
        );
    }
}

#[test]
fn two_engines_with_two_threads_each_carry_streams_by_rdma_over_memif_with_faults() {
    let flags = [&["--transport", "rdma"], FAULTS].concat();
    let Some(statuses) = carry_streams("memif", 2, &flags) else { return };
    for status in statuses {
        let count = |name: &str| status["rdma"][name].as_u64().unwrap();
        let streams = status["connections"]["received_bytes"].as_u64().unwrap();
        assert!(count("placed_bytes") > streams / 2, "{status}");
        assert!(count("returned") * 10 < count("connections"), "{status}");
        assert!(count("retransmitted") > 0 && count("duplicates") > 0, "{status}");
    }
}

#[test]
fn two_engines_carry_streams_over_an_ntb() {
    carry_streams("ntb", 1, &[]);
}

#[test]
fn two_engines_carry_streams_by_rdma_over_an_ntb_with_faults() {
    let flags = [&["--transport", "rdma", "--mtu", "9000"], FAULTS].concat();
    let Some(statuses) = carry_streams("ntb", 1, &flags) else { return };
    for status in statuses {
        assert!(status["rdma"]["placed_bytes"].as_u64().unwrap() > 0, "{status}");
    }
}

/// An engine that was killed leaves no word, and its peer serves the next one.
#[test]
fn an_engine_that_is_killed_and_started_again_is_joined_again() {
    let Some(mut joined) = Joined::start("ntb", 1, &[]) else { return };
    let server = serve(joined.offloaded(0), ENGINE);
    check(joined.offloaded(1), "streams", ENGINE);
    joined.kill(1);
    joined.start_engine(1);
    check(joined.offloaded(1), "streams", ENGINE);
    drop(server);
    joined.kill(0);
    joined.start_engine(0);
    let _server = serve(joined.offloaded(0), ENGINE);
    check(joined.offloaded(1), "streams", ENGINE);
}

pub const FAULTS: &[&str] = &["--faults", "drop=0.5%,duplicate=1%,reorder=1%:3,seed=5"];

/// Two engines, 0 with the role server and 1 with the role client.
pub struct Joined {
    folder: tempfile::TempDir,
    kind: &'static str,
    flags: Vec<String>,
    /// Each engine, and its standard error. The pipe stays open, because the engine fails to write further lines to a closed
    /// pipe.
    engines: [Option<(Running, BufReader<ChildStderr>)>; 2],
}

fn inlane() -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "5", "100", env!("CARGO_BIN_EXE_inlane"), "offload"]);
    command
}

impl Joined {
    /// Starts two engines with ports of a kind and `flags`. Returns `None` if the test cannot run on this machine.
    pub fn start(kind: &'static str, threads: usize, flags: &[&str]) -> Option<Self> {
        if !std::path::Path::new(PYTHON).exists() {
            eprintln!("SKIPPED joined-{kind}: the program python3 is missing; apt-get install python3");
            return None;
        }
        build_library();
        let threads = ["--threads".to_owned(), threads.to_string()];
        let flags = threads.into_iter().chain(flags.iter().map(|flag| flag.to_string())).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut joined = Self { folder, kind, flags, engines: [None, None] };
        let spawned = [0, 1].map(|side| joined.spawn(side));
        joined.engines = spawned.map(|engine| Some(ready(engine)));
        Some(joined)
    }

    fn spawn(&self, side: usize) -> Running {
        let (link, role) = (self.folder.path().join("link"), ["server", "client"][side]);
        let mut command = inlane();
        command.arg("serve").args(&self.flags);
        command.arg("--port").arg(format!("{}:{},role={role},wait=60", self.kind, link.display()));
        command.args(["--mac", &format!("02:00:00:00:00:0{}", side + 1)]);
        command.args(["--address", &format!("10.79.0.{}/24", side + 1), "--socket"]).arg(self.control(side));
        Running(command.stderr(Stdio::piped()).spawn().unwrap())
    }

    pub fn start_engine(&mut self, side: usize) {
        self.engines[side] = Some(ready(self.spawn(side)));
    }

    /// Kills an engine.
    pub fn kill(&mut self, side: usize) {
        self.signal(side, libc::SIGKILL);
        self.engines[side] = None;
    }

    /// Sends a signal to an engine.
    pub fn signal(&self, side: usize, signal: i32) {
        let (engine, _log) = self.engines[side].as_ref().unwrap();
        // The engine is the only child of the program timeout, which ends with it.
        let parent = engine.0.id();
        let child = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        let child: i32 = child.trim().parse().unwrap();
        // SAFETY: timeout has not waited for its child yet, because it runs.
        unsafe { libc::kill(child, signal) };
    }

    pub fn control(&self, side: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("control{side}"))
    }

    /// Returns a command that runs Python on an engine.
    pub fn offloaded(&self, side: usize) -> Command {
        self.runs(side, std::path::Path::new(PYTHON))
    }

    /// Returns a command that runs a program on an engine.
    pub fn runs(&self, side: usize, program: &std::path::Path) -> Command {
        let mut command = inlane();
        command.args(["run", "--require", "--socket"]).arg(self.control(side)).arg("--").arg(program);
        command
    }

    pub fn status_of(&self, side: usize) -> serde_json::Value {
        let said = must(inlane().args(["status", "--json", "-", "--socket"]).arg(self.control(side)));
        serde_json::from_slice::<serde_json::Value>(&said).unwrap()["results"][0].clone()
    }
}

/// Waits until an engine is ready. Returns it with its standard error.
fn ready(mut engine: Running) -> (Running, BufReader<ChildStderr>) {
    let mut log = BufReader::new(engine.0.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    assert!(line.contains("engine ready"), "{line}");
    (engine, log)
}

/// Runs two clients at once. Usually each of two threads of their engine gets one client, so both queues of the link
/// carry connections. `kind` is the kind of the engines' ports, and `flags` are further flags of the engines. Returns their
/// states, or `None` if the test cannot run on this machine.
fn carry_streams(kind: &'static str, threads: usize, flags: &[&str]) -> Option<[serde_json::Value; 2]> {
    let joined = Joined::start(kind, threads, flags)?;
    let _server = serve(joined.offloaded(0), ENGINE);
    let has_idle_thread = |side: usize| {
        let status = joined.status_of(side);
        let all = status["threads"].as_array().unwrap();
        assert_eq!(all.len(), threads, "{status}");
        all.iter().any(|thread| thread["received_packets"] == 0 || thread["sent_packets"] == 0)
    };
    let mut rounds = 0;
    while rounds == 0 || has_idle_thread(0) || has_idle_thread(1) {
        rounds += 1;
        let status_of = |side| joined.status_of(side);
        assert!(rounds <= 10, "a thread carries no packets: {} {}", status_of(0), status_of(1));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| check(joined.offloaded(1), "streams", ENGINE));
            }
        });
    }
    let statuses = [0, 1].map(|side| joined.status_of(side));
    for status in statuses.iter().filter(|_| flags.contains(&FAULTS[0])) {
        assert!(status["connections"]["retransmitted_bytes"].as_u64().unwrap() > 0, "{status}");
    }
    Some(statuses)
}
