//! Compiles C programs against the header and the library. Runs the programs as jobs of several sizes.

mod compiling;
mod launching;
mod leaving;

use compiling::{compile, compile_with};
use inlane_pgas::launch::Job;
use inlane_pgas::transport::select::TransportKind;
use inlane_pgas::transport::windows::options::Options;
use launching::{Starter, behind_a_shell, kill_launcher, noted, run_launcher, run_shown, runs, wait};
use leaving::{LEFT, check_left};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

fn run(source: &str, sizes: &[u32]) {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), source) else { return };
    for pes in sizes {
        let job = Job { pes: *pes, heap_bytes: 64 << 20, ..Job::default() };
        assert_eq!(run_shown(&job, &[], &program, &[]), (0, None), "{source}: {pes} PEs");
    }
}

#[test]
fn teams_contexts_and_collectives_of_teams() {
    run("teams.c", &[1, 2, 4, 5]);
}

#[test]
fn a_job_has_more_than_64_pes() {
    run("checked.c", &[96]);
}

#[test]
fn threads_call_collectives_of_different_teams() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "threads.c") else { return };
    let faulty = "delay=10us,reorder,torn,lose=0.2,duplicate=0.2";
    for (pes, teams, faults) in [(1, "many", ""), (2, "many", ""), (5, "few", ""), (3, "few", faulty)] {
        let job = Job {
            pes,
            heap_bytes: 64 << 20,
            windows: Options { faults: faults.into(), ..Options::default() },
            ..Job::default()
        };
        let outcome = run_shown(&job, &[], &program, &[teams]);
        assert_eq!(outcome, (0, None), "{pes} PEs, {teams} teams, faults '{faults}'");
    }
}

#[test]
fn waits_signals_atomics_and_memory() {
    run("waits.c", &[1, 2, 4]);
}

#[test]
fn every_type_through_the_macros_of_c11() {
    run("types.c", &[2, 4]);
}

#[test]
fn overloads_and_profiling_names_in_cpp() {
    run("overloads.cpp", &[2, 4]);
}

#[test]
fn the_functions_work_from_c_with_and_without_faults() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "basics.c") else { return };
    let program: OsString = program.into();
    for pes in [1, 2, 4] {
        let job = Job { pes, heap_bytes: 64 << 20, ..Job::default() };
        assert_eq!(job.run(&program, &[]).unwrap(), (0, None), "{pes} PEs");
    }
    let faulty = Job {
        pes: 3,
        heap_bytes: 64 << 20,
        windows: Options {
            faults: "delay=10us,reorder,torn,lose=0.2,duplicate=0.2,early=0.2".into(),
            ..Options::default()
        },
        ..Job::default()
    };
    assert_eq!(faulty.run(&program, &[]).unwrap(), (0, None), "with faults");
}

#[test]
fn locks_are_granted_in_the_order_of_the_calls() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "locks.c") else { return };
    for pes in [1, 4] {
        let job = Job { pes, heap_bytes: 4 << 20, ..Job::default() };
        assert_eq!(job.run(&program.clone().into(), &[]).unwrap(), (0, None), "{pes} PEs");
    }
}

#[test]
fn threads_of_one_pe_compete_for_a_lock() {
    run("lock_threads.c", &[1, 2]);
}

#[test]
fn forbidden_calls_end_the_program_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "misuse.c") else { return };
    for (how, why) in [
        ("stack", "do not lie within the symmetric heap or a static object"),
        ("end", "begin in symmetric memory, but only"),
        ("free", "it is no block of shmem_malloc"),
        ("twice", "it is no block of shmem_malloc"),
        ("realloc", "it is no block of shmem_malloc"),
        ("unlock", "it is not set"),
        ("pe", "the job has PEs 0 to 0"),
        ("context", "SHMEM_CTX_INVALID"),
        ("team", "PE 7 of a context: its team has PEs 0 to 0"),
    ] {
        let output = Command::new("timeout").arg("60").arg(&program).arg(how).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{how}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{how}: {output:?}");
    }
}

#[test]
fn calls_of_the_heap_are_checked_if_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "misuse.c") else { return };
    let job = Job { pes: 2, heap_bytes: 64 << 20, ..Job::default() };
    let run = |program: &Path, how: &str| {
        let output = tempfile::NamedTempFile::new().unwrap();
        let line =
            format!("INLANE_SHMEM_CHECK=1 exec {} {how} 2>>{}", program.display(), output.path().display());
        let status = job.run(&"sh".into(), &["-c".into(), line.into()]).unwrap().0;
        (status, std::fs::read_to_string(output.path()).unwrap())
    };
    for (how, why) in [
        ("asymmetric", &["an allocation of 64 bytes", "an allocation of 128 bytes", "same calls"][..]),
        ("mixed", &["an allocation of 64 bytes", "the release of the block at heap offset"]),
        ("nothing", &["an allocation of 64 bytes", "the release of a null pointer"]),
        ("freed", &["not allocated"]),
        ("beyond", &["only 64 bytes of the allocated block follow"]),
    ] {
        let (status, output) = run(&program, how);
        assert_eq!(status, 1, "{how}: {output}");
        assert!(why.iter().all(|part| output.contains(part)), "{how}: {output}");
    }
    assert_eq!(run(&program, "poison"), (0, String::new()));
    for source in ["basics.c", "teams.c", "waits.c", "contexts.c"] {
        let Some(program) = compile(directory.path(), source) else { return };
        assert_eq!(run(&program, ""), (0, String::new()), "{source}");
    }
}

#[test]
fn a_call_before_the_start_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "misuse.c") else { return };
    let output = Command::new("timeout").arg("60").arg(&program).arg("before").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let expected = "inlane shmem: shmem_barrier_all was called before shmem_init; call shmem_init first\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

#[test]
fn scripts_know_the_number_of_their_pe() {
    let job = Job { pes: 2, heap_bytes: 4 << 20, ..Job::default() };
    let outcome = job.run(&"sh".into(), &["-c".into(), "exit $((4 + INLANE_NTB_PE / 2))".into()]).unwrap();
    assert_eq!(outcome.0, 4, "{outcome:?}");
    let outcome = job.run(&"sh".into(), &["-c".into(), "exit $((1 - INLANE_NTB_PE))".into()]).unwrap();
    assert_eq!(outcome.0, 1, "{outcome:?}");
}

#[test]
fn a_second_clear_of_a_lock_that_others_want_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "misuse.c") else { return };
    let job = Job { pes: 2, heap_bytes: 4 << 20, ..Job::default() };
    let output = directory.path().join("output");
    let line = format!("{} 'unlock twice' 2>>{}", program.display(), output.display());
    assert_eq!(job.run(&"sh".into(), &["-c".into(), line.into()]).unwrap().0, 1);
    let output = std::fs::read_to_string(output).unwrap();
    assert!(output.contains("it is not set by this PE"), "{output}");
}

#[test]
fn polls_let_other_pes_run() {
    let processors = inlane_pgas::launch::processors().len() as u32;
    run("polls.c", &[(4 * processors).min(processors + 16)]);
}

#[test]
fn forked_children_reach_the_parents_memory() {
    run("forked.c", &[1, 3]);
}

#[test]
fn signals_names_and_forked_children() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "signals.c") else { return };
    let job = Job { pes: 2, heap_bytes: 4 << 20, ..Job::default() };
    assert_eq!(job.run(&program.into(), &[]).unwrap(), (0, None));
}

#[test]
fn an_early_end_ends_the_job() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "endings.c") else { return };
    let program: OsString = program.into();
    let job = Job { pes: 3, heap_bytes: 4 << 20, ..Job::default() };
    for (how, status) in [
        ("global", 9),
        ("status", 5),
        ("abort", 128 + 6),
        ("return", 6),
        ("quick", 1),
        ("early", 1),
        ("late", 0),
        ("twice", 0),
    ] {
        let (seen, why) = job.run(&program, &[how.into()]).unwrap();
        assert_eq!(seen, status, "{how}: {why:?}");
        assert_eq!(why.is_some(), status != 0, "{how}: {why:?}");
    }
}

#[test]
fn waits_for_pes_that_have_left_end_the_job() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "left.c") else { return };
    for case in LEFT {
        check_left(&program, TransportKind::Windows, case);
    }
    check_left(&program, TransportKind::Windows, ("child", 3, None));
}

#[test]
fn global_exit_keeps_buffered_output_and_leaves_no_process() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "leftovers.c") else { return };
    let job = Job { pes: 2, heap_bytes: 4 << 20, ..Job::default() };
    for shell in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let outcome = match shell {
            true => job.run(&"sh".into(), &behind_a_shell(&program, "exit", folder.path())),
            false => job.run(&program.clone().into(), &["exit".into(), folder.path().into()]),
        };
        assert_eq!(outcome.unwrap(), (0, None), "shell: {shell}");
        for pe in 0..2 {
            let output = std::fs::read_to_string(folder.path().join(format!("output.{pe}"))).unwrap();
            assert_eq!(output, format!("written by PE {pe}"), "shell: {shell}");
        }
        let all = [noted(folder.path(), "pe"), noted(folder.path(), "child")].concat();
        assert!(all.len() >= 2, "{all:?}");
        // Wait for the processes to end. The launcher may return earlier, because it finds processes by their
        // environment, and an exiting process loses its environment before it ends.
        wait("all processes end", || !all.iter().any(|process| runs(process)));
    }
}

/// Runs a job in a process of its own. [`the_end_of_the_launcher_ends_the_job`] kills that process.
#[test]
#[ignore = "a part of another test"]
fn launcher() {
    run_launcher(TransportKind::Windows);
}

#[test]
fn the_end_of_the_launcher_ends_the_job() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "leftovers.c") else { return };
    for starter in [Starter::Launcher, Starter::Shell] {
        kill_launcher(&program, starter);
    }
}

#[test]
fn programs_run_under_the_address_sanitizer() {
    let directory = tempfile::tempdir().unwrap();
    match compile_with(directory.path(), "checked.c", &["-g", "-fsanitize=address"], &["-linlane_shmem"]) {
        None => {}
        Some(Err(error)) => eprintln!("SKIPPED address sanitizer: the compiler has none: {error}"),
        Some(Ok(program)) => {
            let job = Job { pes: 2, heap_bytes: 4 << 20, ..Job::default() };
            assert_eq!(run_shown(&job, &[], &program, &[]), (0, None));
        }
    }
}

#[test]
fn programs_run_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("SKIPPED valgrind: the program is missing; apt-get install valgrind");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), "checked.c") else { return };
    let job = Job { pes: 2, heap_bytes: 4 << 20, ..Job::default() };
    let arguments = ["-q".into(), "--error-exitcode=9".into(), program.into()];
    assert_eq!(job.run(&"valgrind".into(), &arguments).unwrap(), (0, None));
}

#[test]
fn static_programs_may_replace_functions() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libinlane_shmem.a");
    std::fs::copy(std::env::current_exe().unwrap().with_file_name("libinlane_shmem.a"), &library).unwrap();
    let weaken = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/openshmem/weaken");
    match Command::new("objcopy").arg("--version").output() {
        Ok(_) => assert!(Command::new(weaken).arg(&library).status().unwrap().success()),
        Err(error) => return eprintln!("SKIPPED static library: no objcopy: {error}"),
    }
    let libraries = [library.to_str().unwrap(), "-ldl", "-lm"];
    let Some(program) = compile_with(directory.path(), "replaced.c", &[], &libraries) else { return };
    let job = Job { pes: 2, heap_bytes: 4 << 20, ..Job::default() };
    assert_eq!(job.run(&program.unwrap().into(), &[]).unwrap(), (0, None));
}
