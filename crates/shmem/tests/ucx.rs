//! Runs C programs as jobs over UCX: over shared memory, over TCP, and with a PE that is killed.

mod compiling;
#[allow(dead_code)]
mod launching;
mod leaving;

use compiling::{compile, compile_with};
use inlane_pgas::launch::Job;
use inlane_pgas::transport::select::TransportKind;
use inlane_pgas::transport::ucx::Ucx;
use launching::{Starter, kill_launcher, run_launcher, run_shown};
use leaving::{LEFT, check_left};
use std::ffi::OsString;
use std::path::Path;

/// Values of `UCX_TLS`: shared memory, TCP, and UCX's choice.
const METHODS: [&str; 3] = ["shm,self", "tcp,self", "all"];

/// Returns true if UCX is installed. Otherwise prints that `test` is skipped, and returns false.
fn has_ucx(test: &str) -> bool {
    let found = Ucx::version();
    if let Err(error) = &found {
        eprintln!("SKIPPED {test}: {error}");
    }
    found.is_ok()
}

/// TCP with a small send buffer, so that puts wait for room in the socket.
const SMALL_BUFFER: &str = "tcp,self UCX_TCP_SNDBUF=16K";

/// Runs a program as a job of `pes` PEs over UCX with the transports `methods` (UCX_TLS), which more variables
/// may follow. Returns the status and the reason for a failure.
fn run(program: &Path, methods: &str, pes: u32, arguments: &[&str]) -> (i32, Option<String>) {
    let job = Job { pes, heap_bytes: 64 << 20, transport: TransportKind::Ucx, ..Job::default() };
    let variables = format!("UCX_TLS={methods}");
    let variables: Vec<_> = variables.split(' ').collect();
    run_shown(&job, &variables, program, arguments)
}

#[test]
fn programs_work_over_shared_memory_and_tcp() {
    if !has_ucx("programs_work_over_shared_memory_and_tcp") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for source in ["basics.c", "sources.c", "waits.c", "teams.c", "threads.c", "locks.c", "lock_threads.c"] {
        let Some(program) = compile(directory.path(), source) else { return };
        for methods in METHODS {
            assert_eq!(run(&program, methods, 3, &[]), (0, None), "{source} over {methods}");
        }
        if source == "sources.c" {
            assert_eq!(run(&program, SMALL_BUFFER, 3, &[]), (0, None), "{source} over {SMALL_BUFFER}");
        }
    }
}

#[test]
fn leak_checks_work_if_the_program_is_linked_to_ucx() {
    let test = "leak_checks_work_if_the_program_is_linked_to_ucx";
    if !has_ucx(test) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let flags = ["-g", "-fsanitize=address"];
    let libraries = ["-linlane_shmem", "-Wl,--no-as-needed", "-l:libucp.so.0"];
    let program = match compile_with(directory.path(), "checked.c", &flags, &libraries) {
        None => return,
        Some(Err(error)) => return eprintln!("SKIPPED {test}: {error}"),
        Some(Ok(program)) => program,
    };
    let suppressions = directory.path().join("suppressions");
    std::fs::write(&suppressions, "leak:libuc\n").unwrap();
    for methods in ["shm,self", "tcp,self"] {
        let variables = format!("{methods} LSAN_OPTIONS=suppressions={}", suppressions.display());
        assert_eq!(run(&program, &variables, 2, &[]), (0, None), "{methods}");
    }
}

#[test]
fn contexts_are_completed_for_themselves() {
    if !has_ucx("contexts_are_completed_for_themselves") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "contexts.c") else { return };
    for (methods, pes) in [("tcp,self", 3), (SMALL_BUFFER, 2), ("shm,self", 3), ("self", 1)] {
        assert_eq!(run(&program, methods, pes, &[]), (0, None), "{pes} PEs over {methods}");
    }
}

#[test]
fn a_job_has_more_than_64_pes() {
    if !has_ucx("a_job_has_more_than_64_pes") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "checked.c") else { return };
    assert_eq!(run(&program, "shm,self", 96, &[]), (0, None));
}

#[test]
fn sparse_calls_do_not_delay_other_pes() {
    if !has_ucx("sparse_calls_do_not_delay_other_pes") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "sparse.c") else { return };
    assert_eq!(run(&program, SMALL_BUFFER, 2, &[]), (0, None));
}

#[test]
fn operations_without_a_quiet_take_little_memory() {
    if !has_ucx("operations_without_a_quiet_take_little_memory") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "unquiet.c") else { return };
    let methods = format!("{SMALL_BUFFER} UCX_TCP_RCVBUF=16K");
    assert_eq!(run(&program, &methods, 2, &[]), (0, None));
}

#[test]
fn polls_let_other_pes_run() {
    if !has_ucx("polls_let_other_pes_run") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "polls.c") else { return };
    let processors = inlane_pgas::launch::processors().len() as u32;
    for methods in METHODS {
        let pes = (4 * processors).min(processors + 16);
        assert_eq!(run(&program, methods, pes, &[]), (0, None), "{methods}");
    }
}

#[test]
fn forked_children_are_no_pes() {
    if !has_ucx("forked_children_are_no_pes") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for source in ["signals.c", "forked.c"] {
        let Some(program) = compile(directory.path(), source) else { return };
        for methods in METHODS {
            assert_eq!(run(&program, methods, 2, &[]), (0, None), "{source} over {methods}");
        }
    }
}

#[test]
fn an_early_end_ends_the_job() {
    if !has_ucx("an_early_end_ends_the_job") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "endings.c") else { return };
    for methods in ["shm,self", "tcp,self"] {
        for (how, status) in
            [("global", 9), ("status", 5), ("return", 6), ("quick", 1), ("early", 1), ("late", 0)]
        {
            let (seen, why) = run(&program, methods, 3, &[how]);
            assert_eq!(seen, status, "{how} over {methods}: {why:?}");
        }
        let (seen, why) = run(&program, methods, 3, &["abort"]);
        assert_eq!(seen, 128 + 6, "abort over {methods}: {why:?}");
        assert!(why.unwrap().starts_with("PE 1 was killed by signal 6"), "abort over {methods}");
    }
}

#[test]
fn waits_for_pes_that_have_left_end_the_job() {
    if !has_ucx("waits_for_pes_that_have_left_end_the_job") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "left.c") else { return };
    for case in LEFT {
        check_left(&program, TransportKind::Ucx, case);
    }
}

#[test]
fn a_killed_pe_ends_the_job_whatever_the_others_do() {
    if !has_ucx("a_killed_pe_ends_the_job_whatever_the_others_do") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "killed.c") else { return };
    for methods in ["shm,self", "tcp,self"] {
        for doing in ["start", "barrier", "put", "get", "atomic", "wait", "compute"] {
            let (status, why) = run(&program, methods, 3, &[doing]);
            assert_eq!(status, 128 + 9, "{doing} over {methods}: {why:?}");
            assert!(why.unwrap().starts_with("PE 1 was killed by signal 9"), "{doing} over {methods}");
        }
    }
}

/// Runs a job in a process of its own. [`the_end_of_the_launcher_leaves_no_files`] kills that process.
#[test]
#[ignore = "a part of another test"]
fn launcher() {
    run_launcher(TransportKind::Ucx);
}

#[test]
fn the_end_of_the_launcher_leaves_no_files() {
    if !has_ucx("the_end_of_the_launcher_leaves_no_files") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "leftovers.c") else { return };
    for starter in [Starter::Launcher, Starter::Shell] {
        let pes = kill_launcher(&program, starter);
        check_folders(&pes);
    }
}

#[test]
fn the_end_of_the_launcher_during_the_start_leaves_no_files() {
    let test = "the_end_of_the_launcher_during_the_start_leaves_no_files";
    if !has_ucx(test) {
        return;
    }
    if !Path::new("/proc/sysvipc/shm").exists() {
        return eprintln!("SKIPPED {test}: no System V shared memory here");
    }
    let directory = tempfile::tempdir().unwrap();
    let flags = ["-rdynamic"];
    let Some(program) = compile_with(directory.path(), "starting.c", &flags, &["-linlane_shmem"]) else {
        return;
    };
    check_folders(&kill_launcher(&program.unwrap(), Starter::Launcher));
}

/// Checks that the ended processes `pes` have left no folder of UCX's files.
fn check_folders(pes: &[String]) {
    let files = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    let files: Vec<_> = files.map(|name| name.into_string().unwrap()).collect();
    for pe in pes {
        let left = files.iter().find(|name| name.starts_with(&format!("inlane-ucx-{pe}-")));
        assert_eq!(left, None, "the folder of process {pe}");
    }
}

/// Runs `program` as 2 PEs over UCX with `heap` bytes of symmetric heap. `prepare` is a line of shell that each PE
/// runs first, in a mount namespace of its own. Returns the status and what the PEs wrote to standard error.
/// Returns `None` if there are no mount namespaces.
fn run_prepared(program: &Path, methods: &str, heap: u64, prepare: &str) -> Option<(i32, String)> {
    let shell = |line: &str| ["-m", "sh", "-c", line].map(OsString::from);
    let tried = std::process::Command::new("unshare").args(shell(prepare)).output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED limits of memory: 'unshare -m' and this line fail: {prepare}: {tried:?}");
        return None;
    }
    let output = tempfile::NamedTempFile::new().unwrap();
    let (program, messages) = (program.display(), output.path().display());
    let line = format!("{prepare} && UCX_TLS={methods} exec {program} 2>>{messages}");
    let job = Job { pes: 2, heap_bytes: heap, transport: TransportKind::Ucx, ..Job::default() };
    let (status, _) = job.run(&"unshare".into(), &shell(&line)).unwrap();
    Some((status, std::fs::read_to_string(output.path()).unwrap()))
}

/// Puts a file system of 16 MiB at /dev/shm.
const SMALL_FILES: &str = "mount -t tmpfs -o size=16M shm /dev/shm";

#[test]
fn a_heap_larger_than_memory_is_refused() {
    if !has_ucx("a_heap_larger_than_memory_is_refused") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "checked.c") else { return };
    // The small file system keeps the machine's memory safe if the heap is not refused.
    for (methods, heap, why) in [
        ("shm,self", 1020 << 30, "this machine has"),
        ("posix,self", 1020 << 30, "this machine has"),
        ("posix,self", 64 << 20, "/dev/shm"),
    ] {
        let Some((status, output)) = run_prepared(&program, methods, heap, SMALL_FILES) else { return };
        assert_eq!(status, 1, "{heap} bytes over {methods}: {output}");
        assert!(output.contains(why) && output.contains("smaller"), "{heap} over {methods}: {output}");
        assert!(!output.contains("UCX  ERROR"), "{heap} bytes over {methods}: {output}");
    }
    // UCX's own buffers need files, too, whatever the heap needs.
    let Some((status, output)) =
        run_prepared(&program, "all", 4 << 20, "mount -t tmpfs -o size=1M shm /dev/shm")
    else {
        return;
    };
    assert!(status == 1 && output.contains("5 MiB in /dev/shm"), "{output}");
    // System V's shared memory needs no file.
    let Some(seen) = run_prepared(&program, "sysv,self", 64 << 20, SMALL_FILES) else { return };
    assert_eq!(seen.0, 0, "{}", seen.1);
}

/// A control group that limits memory.
struct MemoryGroup(std::path::PathBuf);

impl MemoryGroup {
    /// Makes a group below that of this process. Returns `None` if the system refuses.
    fn new(bytes: u64) -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let path = |controllers: &str| {
            let lines = own.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
            lines.into_iter().find(|(found, _)| *found == controllers).map(|(_, path)| path.to_string())
        };
        let name = format!("inlane-test-{}", std::process::id());
        let group = |root: &str, path: String, limit: &str| {
            let group = Self(Path::new(root).join(path.trim_start_matches('/')).join(&name));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        };
        path("memory")
            .and_then(|path| group("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"))
            .or_else(|| group("/sys/fs/cgroup", path("")?, "memory.max"))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_heap_larger_than_the_limit_of_a_control_group_is_refused() {
    let test = "a_heap_larger_than_the_limit_of_a_control_group_is_refused";
    if !has_ucx(test) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "checked.c") else { return };
    let Some(group) = MemoryGroup::new(256 << 20) else {
        return eprintln!("SKIPPED {test}: no control group with a limit of memory can be made here");
    };
    let enter = format!("echo $$ >{}", group.0.join("cgroup.procs").display());
    for (heap, refused) in [(1u64 << 30, true), (16 << 20, false)] {
        let Some((status, output)) = run_prepared(&program, "all", heap, &enter) else { return };
        assert_eq!(status, i32::from(refused), "{heap} bytes: {output}");
        assert_eq!(output.contains("control group"), refused, "{heap} bytes: {output}");
    }
}
