//! Jobs whose launcher is a process of its own, and the processes of jobs. The programs are `leftovers.c` and
//! `starting.c`.

use inlane_pgas::launch::Job;
use inlane_pgas::transport::select::TransportKind;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

/// The environment variable with the program and its arguments, one on each line.
const ARGUMENTS: &str = "LAUNCHER_ARGUMENTS";

/// Runs `program` with `arguments` in every PE of `job`. `variables` are assignments for the program's environment, such as
/// `UCX_TLS=all`. Returns the status and, for a failure, the reason with what the PEs have written.
pub fn run_shown(job: &Job, variables: &[&str], program: &Path, arguments: &[&str]) -> (i32, Option<String>) {
    let output = tempfile::NamedTempFile::new().unwrap();
    let line = format!(r#"exec env "$@" >>{} 2>&1"#, output.path().display());
    let mut all: Vec<OsString> = vec!["-c".into(), line.into(), "sh".into()];
    all.extend(variables.iter().map(Into::into));
    all.push(program.into());
    all.extend(arguments.iter().map(Into::into));
    let (status, why) = job.run(&"sh".into(), &all).unwrap();
    let written = std::fs::read_to_string(output.path()).unwrap_or_default();
    (status, why.map(|why| format!("{why}; the PEs have written: {written}")))
}

/// Returns the process IDs of the job's processes. Each process has created a file `what`.PID in `folder`.
pub fn noted(folder: &Path, what: &str) -> Vec<String> {
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| Some(name.strip_prefix(what)?.strip_prefix('.')?.to_string())).collect()
}

/// Returns true if the process exists and is no zombie.
pub fn runs(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.contains("State:") && !status.contains("State:\tZ")
}

/// Blocks until `done` returns true, for at most 60 s.
pub fn wait(what: &str, done: impl Fn() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !done() {
        assert!(std::time::Instant::now() < until, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Returns arguments for `sh` that run `program` as a child of the shell. The command line ends with `true`,
/// because a shell would run its last command in its own process.
pub fn behind_a_shell(program: &Path, how: &str, folder: &Path) -> Vec<OsString> {
    let line = format!("{} {how} {}; true", program.display(), folder.display());
    vec!["-c".into(), line.into()]
}

/// Runs the job that [`kill_launcher`] describes. Call it in an ignored test with the name `launcher`.
pub fn run_launcher(transport: TransportKind) {
    let arguments: Vec<OsString> = std::env::var(ARGUMENTS).unwrap().lines().map(Into::into).collect();
    let job = Job { pes: 2, heap_bytes: 4 << 20, transport, ..Job::default() };
    let _ = job.run(&arguments[0], &arguments[1..]);
}

/// Who has started a PE: the launcher itself, or a shell that the launcher has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starter {
    Launcher,
    Shell,
}

/// Runs the test `launcher` of this test program in a process of its own, which starts `program` as a job. Kills that
/// process once the PEs and their children run, and blocks until these have ended. Returns the process IDs of the PEs.
pub fn kill_launcher(program: &Path, starter: Starter) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let arguments = match starter {
        Starter::Launcher => vec![program.into(), "stay".into(), folder.path().into()],
        Starter::Shell => [vec!["sh".into()], behind_a_shell(program, "stay", folder.path())].concat(),
    };
    let mut launcher = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "launcher", "--ignored"])
        .env(ARGUMENTS, arguments.join(OsStr::new("\n")))
        .spawn()
        .unwrap();
    let pes = || noted(folder.path(), "pe");
    let all = || [pes(), noted(folder.path(), "child")].concat();
    wait("all processes start", || all().len() == 4);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    wait("all processes end", || !all().iter().any(|process| runs(process)));
    pes()
}
