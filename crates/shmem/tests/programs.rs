//! Compiles C programs against the header and the library, and runs them as jobs of several sizes.

use inlane_pgas::launch::Job;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program and links it to the library beside this test. Returns `None` if there is no compiler.
fn compile(directory: &Path, source: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = std::env::current_exe().unwrap().with_file_name("libinlane_shmem.so");
    // Make links under both names: the linker looks for the first, and the loader for the soname.
    for name in ["libinlane_shmem.so", "libinlane_shmem.so.0"] {
        let link = directory.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(&library, link).unwrap();
        }
    }
    let (variable, usual, standard) = match source.ends_with(".cpp") {
        true => ("CXX", "c++", "-std=c++11"),
        false if source == "types.c" => ("CC", "cc", "-std=c11"),
        false => ("CC", "cc", "-std=gnu99"),
    };
    let program = directory.join(source).with_extension("program");
    let compiler = std::env::var(variable).unwrap_or_else(|_| usual.into());
    let output = Command::new(&compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-O2", "-o"])
        .arg(&program)
        .arg(here.join("tests/programs").join(source))
        .arg("-I")
        .arg(here.join("include"))
        .arg("-L")
        .arg(directory)
        .args(["-linlane_shmem", "-pthread"])
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .output();
    match output {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(program)
        }
        Err(error) => {
            eprintln!("SKIPPED {source}: no compiler '{compiler}': {error}");
            None
        }
    }
}

/// Runs a program as jobs of several sizes.
fn run(source: &str, sizes: &[u32]) {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile(directory.path(), source) else { return };
    for pes in sizes {
        let job = Job { pes: *pes, heap_bytes: 64 << 20, ..Job::default() };
        assert_eq!(job.run(&program.clone().into(), &[]).unwrap(), (0, None), "{source}: {pes} PEs");
    }
}

#[test]
fn teams_contexts_and_collectives_of_teams() {
    run("teams.c", &[1, 2, 4, 5]);
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
        faults: "delay=10us,reorder,torn,lose=0.2,duplicate=0.2,early=0.2".into(),
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
        ("late", 0),
        ("twice", 0),
    ] {
        let (seen, why) = job.run(&program, &[how.into()]).unwrap();
        assert_eq!(seen, status, "{how}: {why:?}");
        assert_eq!(why.is_some(), status != 0, "{how}: {why:?}");
    }
}
